"""Fixtures of the llama suite. Test modules import nothing of each other; what they share is here."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def oracle() -> Callable[..., np.ndarray]:
    """`oracle.logits(file, tokens, mutation="")`, the float64 forward pass."""
    spec = importlib.util.spec_from_file_location("lmhub_llama_oracle", HERE / "oracle.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    logits: Callable[..., np.ndarray] = module.logits
    return logits


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder of golden models beside the repository."""
    path = HERE.parents[2].parent / "shared" / "zoo"
    if not path.is_dir():
        pytest.skip("the golden models are not beside this repository")
    return path
