"""What the cache of the Hugging Face tools holds of a repository. Asks nobody, imports none of their code.

<cache>/models--ORG--REPO/refs/main                     the commit that `main` was when it was last looked at
                         /snapshots/<commit>/<file>     a link to, or on systems without links a copy of
                         /blobs/<etag>                  the content; for large files the etag is its SHA-256
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lmhub.remote.names import Ambiguous, Reference, choices, choose


def folder() -> Path:
    """The cache's folder: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or that in the user's cache folder."""
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if named:
        return Path(os.path.expandvars(named)).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    return Path(os.path.expandvars(home)).expanduser() / "hub"


def find(asked: Reference, cache: Path) -> Path | None:
    """The first file of the model, in the newest snapshot that has all of it. Raises Ambiguous if several are meant."""
    refused: Ambiguous | None = None
    for snapshot in _snapshots(cache / f"models--{asked.repo.replace('/', '--')}"):
        found = {path.relative_to(snapshot).as_posix(): path for path in snapshot.rglob("*") if path.is_file()}
        offered = choices({name: path.stat().st_size for name, path in found.items()})
        try:
            if offered:
                return found[choose(asked, offered).files[0]]
        except Ambiguous as error:
            refused = refused or (error if asked.quant is None else None)
    if refused is not None:
        raise refused
    return None


def _snapshots(repo: Path) -> Iterator[Path]:
    """What `main` was last, then the others, the newest first."""
    try:
        head = (repo / "refs" / "main").read_text().strip()
    except OSError:
        head = ""
    kept = [path for path in repo.glob("snapshots/*") if path.is_dir()]
    yield from sorted(kept, key=lambda path: (path.name == head, path.stat().st_mtime), reverse=True)
