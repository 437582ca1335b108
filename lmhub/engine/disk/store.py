"""The files behind the catalog: finding them when the folder is opened, removing them, and noting when they were used.

One thread uses it, the tier's. Knows no states and no futures.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lmhub.engine.disk.catalog import Catalog, Entry
from lmhub.engine.disk.folder import Folder, Listed
from lmhub.engine.disk.lmkv import Damaged, Unknown, read_header, read_tokens

log = logging.getLogger("lmhub")


class Store:
    """A folder and its catalog. `failed` counts files that were of no use, `evicted` those that had to make room."""

    def __init__(self, path: Path, identity: str, catalog: Catalog):
        """Raises LmhubError where the folder cannot be used."""
        self.folder = Folder(path)
        self.catalog = catalog
        self.failed = 0
        self.evicted = 0
        self._identity = identity
        self._kind = hashlib.sha256(identity.encode()).hexdigest()[:12]
        self._index_s: float | None = None  # monotonic time since when the index has not said everything

    def new_name(self) -> str:
        """For a file of this identity."""
        return self.folder.new_name(self._kind)

    # --- what is there -----------------------------------------------------------------------------------------------

    def scan(self) -> Iterator[None]:
        """Look at the files that are not known yet, one at each step, those that were written last first."""
        if self.folder.lock():
            self.folder.sweep()
        else:
            log.warning("%s: not writable, or another process has it; sequences are only read", self.folder.path)
        self.catalog.load_index(self.folder.read_index())
        for listed in self.folder.files():
            if listed.name not in self.catalog:
                self._register(listed)
                yield
        self.catalog.forget_past()
        self.evict(self.catalog.victims())

    def _register(self, listed: Listed) -> None:
        entry = Entry(listed.name, listed.nbytes)
        if listed.kind == self._kind:
            try:
                with self.folder.open(listed.name) as (file, size):
                    entry.nbytes = size
                    header, tokens_at = read_header(file, size)
                    if header.identity == self._identity:
                        tokens = read_tokens(file, header, tokens_at)
                        entry.key = np.frombuffer(tokens, "<u4").astype(">u4").tobytes()
                        entry.header = header
            except Damaged as damage:
                self.discard(entry, str(damage))
                return
            except Unknown:
                pass  # it takes up room, and a later version may use it
            except FileNotFoundError:  # whoever writes here has removed it
                return
            except OSError as error:
                log.warning("%s cannot be read: %s", listed.name, error)
                return
        self.catalog.add(entry, listed.modified_s)

    # --- what goes ---------------------------------------------------------------------------------------------------

    def discard(self, entry: Entry, damage: str) -> None:
        """Remove a damaged file, if that is ours to do."""
        log.warning("%s is damaged: %s", entry.name, damage)
        self.failed += 1
        if self.folder.writable:
            self.remove(entry)

    def evict(self, entries: Iterable[Entry]) -> None:
        """Remove files to make room, if that is ours to do."""
        if self.folder.writable:
            for entry in entries:
                self.catalog.evict(entry)
                self.remove(entry)
                self.evicted += 1

    def remove(self, entry: Entry) -> None:
        """Remove a file. Where that fails it is found again when the folder is opened next."""
        try:
            self.folder.remove(entry.name)
        except OSError as error:
            log.warning("%s cannot be removed: %s", entry.name, error)

    # --- the index ---------------------------------------------------------------------------------------------------

    def touch(self, entry: Entry, now_s: float) -> None:
        """It has been of use at `now_s`, Unix seconds."""
        self.catalog.touch(entry, now_s)
        self.index_is_old()

    def index_is_old(self) -> None:
        """The catalog knows what the index does not say yet."""
        if self._index_s is None:
            self._index_s = time.monotonic()

    @property
    def has_old_index(self) -> bool:
        """Whether `write_index` has something to write."""
        return self._index_s is not None

    def write_index(self, after_s: float) -> None:
        """Write the index, if that has been due for so long. Raises OSError; the next change is noted again then."""
        if self._index_s is not None and time.monotonic() - self._index_s >= after_s:
            self._index_s = None
            if self.folder.writable:
                self.folder.write_index(self.catalog.dump_index())
