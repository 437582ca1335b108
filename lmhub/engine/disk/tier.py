"""`DiskTier`: the sequences in a folder, as the engine sees them, and the one thread that does all the work on files.

The engine asks what there is (`find`, `covers`), which never waits for a disk, and hands over what takes long (`save`,
`load`), for which it gets futures. The thread serves loads before saves, also in the middle of one, and reads the
folder whenever nothing else is to be done. Whatever goes wrong costs what was saved, never a request.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lmhub.engine.disk.catalog import Catalog, Entry, key_of
from lmhub.engine.disk.lmkv import MAX_ROWS, MAX_STATES, MAX_TEXT
from lmhub.engine.disk.store import Store
from lmhub.engine.disk.transfer import Checkpoint, Record, Stopped, load, save, shortened, with_older
from lmhub.engine.rates import Rate
from lmhub.model import State

log = logging.getLogger("lmhub")

T = TypeVar("T")

MIN_TOKENS = 64  # shorter sequences are forwarded again as fast
MAX_PENDING = 2  # saves; each keeps a state in memory
READ_RATE = 0.5e9  # bytes per second, until it has been measured
OFF_S = 60.0  # for so long nothing is written after the disk was full or failed
INDEX_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Found:
    """A file whose first `n` tokens are those of a prompt; `nbytes` have to be read for them."""

    entry: Entry
    n: int
    nbytes: int
    seconds: float  # that this is predicted to take


@dataclass(frozen=True, slots=True)
class DiskStats:
    """A snapshot. `entries` can be used by this model, `nbytes` are those of all files of the folder.

    The others count from the start: sequences, and bytes read and written. `pending` sequences wait to be saved.
    """

    entries: int = 0
    nbytes: int = 0
    saved: int = 0
    loaded: int = 0
    failed: int = 0
    evicted: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    pending: int = 0
    writable: bool = False


class DiskTier:
    """Opens the folder, or raises LmhubError. `identity` names whatever makes rows mean the same (gguf.fingerprint).

    `clock` gives Unix seconds.
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        *,
        max_bytes: int,
        max_files: int,
        clock: Callable[[], float] = time.time,
    ):
        if len(identity) > MAX_TEXT:
            raise ValueError(f"an identity has at most {MAX_TEXT} characters, not {len(identity)}")
        self._catalog = Catalog(max_bytes, max_files)
        self._store = Store(folder, identity, self._catalog)
        self._identity, self._clock, self._max_bytes = identity, clock, max_bytes
        self._reading = Rate(READ_RATE)
        self._stats = DiskStats()
        self._off_since_s: float | None = None
        self.scanned = threading.Event()  # set when all files of the folder have been looked at

        self._changed = threading.Condition()  # guards what follows
        self._loads: deque[tuple[Future[int], Entry, int, State]] = deque()
        self._saves: deque[tuple[Future[bool], Record]] = deque()
        self._n_saving = 0  # queued or running
        self._closed = False
        self._deadline_s: float | None = None  # time.monotonic() after which nothing is begun or continued
        self._thread = threading.Thread(target=self._run, name="lmhub-disk", daemon=True)
        self._thread.start()

    # --- for the engine; none of it waits for a disk -----------------------------------------------------------------

    @property
    def read_rate(self) -> float:
        """Bytes per second that loads have run at lately."""
        return self._reading.value

    def find(self, prompt: NDArray[np.int32]) -> Found | None:
        """The file that brings a state furthest into the prompt. How far is worth it is for the caller to say."""
        found = self._catalog.find(key_of(prompt))
        if found is None:
            return None
        entry, n = found
        nbytes = entry.to_read(n)
        return Found(entry, n, nbytes, nbytes / self.read_rate)

    def covers(self, tokens: NDArray[np.int32]) -> bool:
        """Whether a file brings a state to the end of `tokens` already."""
        return self._catalog.covering(key_of(tokens), len(tokens)) is not None

    def stable(self, found: Found) -> int:
        """The `n_stable` that it was saved with."""
        return found.entry.header.n_stable if found.entry.header is not None else 0

    def stats(self) -> DiskStats:
        """A snapshot."""
        entries, nbytes = self._catalog.counts
        return replace(
            self._stats,
            entries=entries,
            nbytes=nbytes,
            failed=self._store.failed,
            evicted=self._store.evicted,
            pending=self._n_saving,
            writable=self._store.folder.writable,
        )

    def save(
        self,
        state: State,
        tokens: NDArray[np.int32],
        n_stable: int,
        checkpoints: Sequence[Checkpoint] = (),
        *,
        flush: bool = False,
    ) -> Future[bool]:
        """Keep the first `len(tokens)` positions of `state`, which must be left alone until the future is done.

        True: a file holds them. False, often at once: they are not worth it or cannot be written now, or MAX_PENDING
        others are on their way. `flush`: for the end, when states need not make room; any number may wait then.
        """
        future: Future[bool] = Future()
        n = min(len(tokens), state.n_tokens)
        inside = {at: blob for at, blob in checkpoints if 0 < at <= n} if not state.can_rewind else {}
        record = Record(state, np.array(tokens[:n], np.int32), n_stable, tuple(sorted(inside.items())[-MAX_STATES:]))
        is_possible = MIN_TOKENS <= n <= MAX_ROWS and 0 < len(state.layout) <= MAX_TEXT and record.reach > 0
        with self._changed:
            if self._closed or not is_possible or self._is_off() or (self._n_saving >= MAX_PENDING and not flush):
                future.set_result(False)
                return future
            self._n_saving += 1
            self._saves.append((future, record))
            self._changed.notify()
        return future

    def load(self, found: Found, n: int, state: State) -> Future[int]:
        """Bring the empty `state` to the first `n` tokens that were found; it must be left alone meanwhile.

        The result is how many it has then: fewer than `n` where the file turns out to be damaged, where a chunk does
        not fit behind the others, or where the last checkpoint lies before; 0, with the state empty, if none are left.
        A state that can neither rewind nor restore may keep some rows then; `n_tokens` says so.
        """
        if state.n_tokens:
            raise ValueError(f"rows can be loaded into an empty state only, and this one has {state.n_tokens}")
        future: Future[int] = Future()
        with self._changed:
            if self._closed:
                future.set_result(0)
                return future
            self._loads.append((future, found.entry, n, state))
            self._changed.notify()
        return future

    def close(self, deadline_s: float) -> None:
        """Finish what waits, for at most so many seconds; then everything else comes to nothing, and others may write.

        Returns a little later where the system is slow to write what it was given.
        """
        with self._changed:
            self._closed = True
            self._deadline_s = time.monotonic() + deadline_s
            self._changed.notify()
        self._thread.join(deadline_s + 5.0)
        if self._thread.is_alive():
            log.warning("%s: the disk does not answer; what was to be saved there is lost", self._store.folder.path)

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        scan: Iterator[None] | None = self._store.scan()
        try:
            while True:
                with self._changed:
                    if not (self._loads or self._saves or self._closed or scan):
                        self._changed.wait(INDEX_EVERY_S if self._store.has_old_index else None)
                    if self._closed and not (self._loads or self._saves):
                        return
                self._serve_loads()
                if job := self._next_save():
                    scan = self._do_save(*job) or scan
                elif scan is not None and not self._closed:
                    scan = self._step(scan)
                self._write_index(INDEX_EVERY_S)
        finally:
            self._end()

    def _step(self, scan: Iterator[None]) -> Iterator[None] | None:
        """Look at one more file. None when that was the last one."""
        try:
            next(scan)
            return scan
        except StopIteration:
            pass
        except OSError as error:
            log.warning("%s: the folder cannot be read: %s", self._store.folder.path, error)
        self.scanned.set()
        return None

    def _end(self) -> None:
        with self._changed:
            self._closed = True
            loads, saves = list(self._loads), list(self._saves)
            self._loads.clear()
            self._saves.clear()
            self._n_saving = 0
        for loading, *_ in loads:
            _settle(loading, 0)
        for saving, _ in saves:
            _settle(saving, False)
        self._write_index(0.0)
        self._store.folder.close()
        self.scanned.set()

    def _has_time(self) -> bool:
        return self._deadline_s is None or time.monotonic() < self._deadline_s

    # --- loading -----------------------------------------------------------------------------------------------------

    def _serve_loads(self) -> None:
        while True:
            with self._changed:
                if not self._loads:
                    return
                future, entry, n, state = self._loads.popleft()
            if future.set_running_or_notify_cancel():
                future.set_result(self._load(entry, n, state))

    def _load(self, found: Entry, n: int, state: State) -> int:
        self._catalog.use_layout(state.layout)
        entry = self._catalog.get(found.name)  # what was found may have been evicted, or cut, in between
        if entry is None or entry.header is None or not self._has_time():
            return 0
        begun = time.monotonic()
        try:
            with self._store.folder.open(entry.name) as (file, size):
                loaded = load(file, size, entry, n, state, self._has_time)
        except Exception as error:  # no file may harm a request, whatever is wrong with it
            log.warning("%s cannot be loaded: %s", entry.name, error)
            self._catalog.replace(entry, None)
            self._store.failed += 1
            state.truncate(0)
            return 0
        if loaded.nbytes:
            self._reading.observe(loaded.nbytes, time.monotonic() - begun)
        if loaded.sound is not None:
            rest = shortened(entry, loaded.sound)
            self._catalog.replace(entry, rest)
            if rest is None:
                self._store.discard(entry, loaded.damage)
            else:
                log.warning("%s is damaged, but for its first %d tokens: %s", entry.name, loaded.sound, loaded.damage)
                self._store.failed += 1
        if loaded.n:
            if kept := self._catalog.get(entry.name):
                self._store.touch(kept, self._clock())
            self._count(loaded=1, read_bytes=loaded.nbytes)
        return loaded.n

    # --- saving ------------------------------------------------------------------------------------------------------

    def _next_save(self) -> tuple[Future[bool], Record] | None:
        with self._changed:
            return self._saves.popleft() if self._saves else None

    def _do_save(self, future: Future[bool], record: Record) -> Iterator[None] | None:
        """Save it, and resolve the future. A new scan, if the folder has become ours meanwhile."""
        scan: Iterator[None] | None = None
        is_saved = False
        is_wanted = future.set_running_or_notify_cancel()
        if is_wanted:
            if not self._store.folder.writable and self._store.folder.lock():
                scan = self._store.scan()
            try:
                is_saved = self._save(record)
            except Stopped:
                pass
            except OSError as error:
                self._switch_off(error)
            except Exception:  # of a state, say: the sequence is lost, and that is all
                log.exception("a sequence could not be saved")
                self._store.failed += 1
        with self._changed:
            self._n_saving -= 1
        if is_wanted:
            future.set_result(is_saved)
        return scan

    def _save(self, record: Record) -> bool:
        self._catalog.use_layout(record.state.layout)
        known = self._catalog.covering(key_of(record.tokens), record.reach)
        if known is not None:
            self._store.touch(known, self._clock())
            return True
        record = with_older(record, self._catalog.beginnings(key_of(record.tokens)), self._store.folder)
        now_s = self._clock()
        planned = record.planned(self._identity, now_s)
        if not self._store.folder.writable or self._is_off() or planned[2] > self._max_bytes or not self._has_time():
            return False
        name = self._store.new_name()
        leaving = self._catalog.superseded(Entry(name, planned[2], planned[0], key_of(record.tokens)))
        self._store.evict(self._catalog.victims(planned[2], 1, leaving))
        entry = save(self._store.folder, name, record, planned, self._between_chunks)
        self._catalog.add(entry, now_s)
        for old in leaving:
            self._catalog.replace(old, None)
            self._store.remove(old)
        self._off_since_s = None
        self._count(saved=1, written_bytes=entry.nbytes)
        self._store.index_is_old()
        return True

    def _between_chunks(self) -> bool:
        self._serve_loads()
        return self._has_time()

    def _is_off(self) -> bool:
        return self._off_since_s is not None and 0 <= self._clock() - self._off_since_s < OFF_S

    def _switch_off(self, error: OSError) -> None:
        """Nothing is written for a while. Said once, until writing works again."""
        if self._off_since_s is None:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            reason = "the disk is full" if full else str(error)
            log.warning("%s: sequences cannot be saved (%s); trying again later", self._store.folder.path, reason)
        self._off_since_s = self._clock()
        self._store.failed += 1

    # --- the index and the counters ----------------------------------------------------------------------------------

    def _write_index(self, after_s: float) -> None:
        if not self._is_off():
            try:
                self._store.write_index(after_s)
            except OSError as error:
                self._switch_off(error)

    def _count(self, **more: int) -> None:
        """Only the thread counts, so that a snapshot is a plain read."""
        self._stats = replace(self._stats, **{name: getattr(self._stats, name) + n for name, n in more.items()})


def _settle(future: Future[T], value: T) -> None:
    """Resolve a future that waits, unless it has been cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)
