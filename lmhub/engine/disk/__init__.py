"""Sequences that survive a restart: `DiskTier` keeps the rows of states in files of one folder.

`tier.py` is what the engine sees and the thread that does the work, `transfer.py` moves rows between states and files,
`catalog.py` knows what is there and what goes first, `store.py` keeps it and the files the same, `folder.py` owns the
folder, `lmkv.py` the format of the files.
"""

from lmhub.engine.disk.tier import DiskStats, DiskTier, Found

__all__ = ["DiskStats", "DiskTier", "Found"]
