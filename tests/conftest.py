"""Fixtures for every test of the core."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with the golden models beside the repository; tests that need it are skipped where it is absent."""
    path = Path(__file__).resolve().parents[2] / "shared"
    if not path.is_dir():
        pytest.skip(f"the golden models are not here ({path} does not exist)")
    return path
