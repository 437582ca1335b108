"""Downloads models into the cache of the Hugging Face tools: in pieces that survive an interruption, and checked.

Names, tokens, redirects and the cache's layout are `huggingface_hub`'s business. Its own transfers begin anew after an
interruption and check the length only, so large files are fetched here, into `<etag>.incomplete` beside the blobs, and
handed to it when their SHA-256 is the repository's.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from lmhub.errors import LmhubError
from lmhub.remote.cache import find, folder
from lmhub.remote.names import Reference, choices, choose

log = logging.getLogger("lmhub")

Progress = Callable[[str, int, int], None]
"""`progress(file, done_bytes, total_bytes)`."""

_PIECE = 1 << 20  # bytes of an earlier attempt that are read at once
_TRIES = 6  # in a row that brought nothing


def pull(
    asked: Reference, progress: Progress | None = None, *, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """The first file of the model; what the cache lacks of the repository's `main` is downloaded, part by part.

    `endpoint` and `cache` are those of the Hugging Face tools (HF_ENDPOINT, HF_HOME). Without a connection, or with
    HF_HUB_OFFLINE, it is what the cache has. Raises LmhubError with one sentence, or Ambiguous with a list.
    """
    try:
        from huggingface_hub import HfApi, constants
    except ImportError:
        raise LmhubError(
            "models are pulled with huggingface_hub, which is not installed; pip install 'lmhub[hub]'"
        ) from None
    endpoint, cache = endpoint or constants.ENDPOINT, cache or folder()
    if constants.HF_HUB_OFFLINE:
        cached = find(asked, cache)
        if cached is None:
            raise LmhubError(f"{asked} is not in {cache}, and HF_HUB_OFFLINE is set; unset it to download the model")
        return cached
    try:
        with _told(asked, endpoint):
            info = HfApi(endpoint).model_info(asked.repo, files_metadata=True)
    except Unreachable as error:
        if (cached := find(asked, cache)) is None:
            raise
        log.warning("%s; until then, what is in the cache is used", error)
        return cached
    siblings = {one.rfilename: one for one in info.siblings or ()}
    chosen = choose(asked, choices({name: one.size or 0 for name, one in siblings.items()}))
    paths = []
    for name in chosen.files:
        lfs = siblings[name].lfs
        sha256 = lfs.sha256 if lfs else None
        if sha256 is not None and not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise LmhubError(f"{endpoint} gives no SHA-256 of {name}; it is no hub of models")
        file = _File(endpoint, asked, name, str(info.sha), siblings[name].size or 0, sha256)
        with _told(asked, endpoint):
            paths.append(_fetched(file, cache, progress or (lambda file, done, total: None)))
    return paths[0]


class Unreachable(LmhubError):
    """The other side does not answer, or not as it should."""


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a repository at one commit. `sha256` is None for small files, which are kept in Git itself."""

    endpoint: str
    asked: Reference
    name: str
    commit: str
    nbytes: int
    sha256: str | None


def _fetched(file: _File, cache: Path, progress: Progress) -> Path:
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]  # its documented place

    kept = try_to_load_from_cache(file.asked.repo, file.name, cache_dir=cache, revision=file.commit)
    if isinstance(kept, str):
        return Path(kept)
    if file.sha256 is not None:
        repo = f"models--{file.asked.repo.replace('/', '--')}"
        blob, lock = cache / repo / "blobs" / file.sha256, cache / ".locks" / repo / f"{file.sha256}.lock"
        for path in (blob, lock):
            path.parent.mkdir(parents=True, exist_ok=True)
        with WeakFileLock(lock):
            if not blob.exists():
                _Transfer(file, blob, progress).run()
    return Path(hf_hub_download(file.asked.repo, file.name, cache_dir=cache, endpoint=file.endpoint))


class _Transfer:
    """Brings one blob, going on where an earlier attempt ended."""

    def __init__(self, file: _File, blob: Path, progress: Progress):
        self._file, self._blob, self._progress = file, blob, progress
        self._partial = blob.with_name(f"{blob.name}.incomplete")
        self._hash = hashlib.sha256()
        self._done = 0

    def run(self) -> None:
        """Raises LmhubError, and whatever the client raises once it has failed too often."""
        with self._partial.open("a+b") as out:
            self._read(out)
            self._check_room()
            failed = 0
            while self._done < self._file.nbytes:
                before = self._done
                try:
                    self._receive(out)
                except Exception:
                    failed = failed + 1 if self._done == before else 0
                    if failed >= _TRIES:
                        raise
                    time.sleep(failed)
        if self._hash.hexdigest() != self._file.sha256:
            self._partial.unlink()
            raise LmhubError(
                f"what came of {self._file.name} is not what {self._file.asked.repo} says it is (its SHA-256 differs); "
                "it was deleted, so pull it again"
            )
        self._partial.replace(self._blob)

    def _read(self, out: BinaryIO) -> None:
        """Hash what an earlier attempt has left."""
        out.seek(0)
        while piece := out.read(_PIECE):
            self._hash.update(piece)
            self._done += len(piece)
            self._progress(self._file.name, self._done, self._file.nbytes)
        if self._done > self._file.nbytes:
            self._restart(out)

    def _restart(self, out: BinaryIO) -> None:
        out.truncate(0)
        self._hash, self._done = hashlib.sha256(), 0

    def _check_room(self) -> None:
        missing, free = self._file.nbytes - self._done, shutil.disk_usage(self._blob.parent).free
        if missing > free:
            raise LmhubError(
                f"{self._file.name} needs {missing / 1e9:.1f} GB more, and {self._blob.parent} has {free / 1e9:.1f} GB "
                "left; make room, or set HF_HOME to another disk"
            )

    def _receive(self, out: BinaryIO) -> None:
        """One request for what is missing."""
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

        file = self._file
        url = hf_hub_url(file.asked.repo, file.name, revision=file.commit, endpoint=file.endpoint)
        headers: dict[str, Any] = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if self._done:
            headers["Range"] = f"bytes={self._done}-"
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, follow_redirects=True, timeout=timeout) as answer:
            hf_raise_for_status(answer)
            if self._done and answer.status_code != 206:  # it sends everything all the same
                self._restart(out)
            for piece in answer.iter_bytes():
                out.write(piece)
                self._hash.update(piece)
                self._done += len(piece)
                self._progress(self._file.name, self._done, self._file.nbytes)


@contextmanager
def _told(asked: Reference, endpoint: str) -> Iterator[None]:
    """The client's errors as sentences."""
    try:
        yield
    except LmhubError:
        raise
    except Exception as error:
        raise _sentence(error, asked, endpoint) from None


def _sentence(error: Exception, asked: Reference, endpoint: str) -> LmhubError:
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    repo = asked.repo
    if isinstance(error, GatedRepoError):
        return LmhubError(f"{repo} is gated: accept its terms at {endpoint}/{repo}, then log in with `hf auth login`")
    if isinstance(error, RepositoryNotFoundError):
        said = f"{endpoint} has no repository {repo}, or it is private: check the name, or run `hf auth login`"
        return LmhubError(said)
    if isinstance(error, HfHubHTTPError):
        return Unreachable(f"{endpoint} answered {error.response.status_code} for {repo}; try again later")
    why = " ".join(str(error).split())[:200] or type(error).__name__
    return Unreachable(
        f"{asked} cannot be had from {endpoint} ({why}); check the connection, and pull it again to go on"
    )
