"""Fixtures for every test of the core."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("unhurried", deadline=None)  # an example may take as long as a busy machine needs
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds `model.gguf`, the file that the documentation speaks of: a tiny random Qwen3."""
    from lmhub.testing.tiny import decoder, write

    folder = tmp_path_factory.mktemp("docs")
    write(folder / "model.gguf", decoder("qwen3", qk_norm=True, n_ctx=1024))
    return folder


@pytest.fixture(scope="session")
def live_server(model_dir: Path) -> Iterator[str]:
    """`host:port` of a server that serves `model.gguf`, as `lmhub serve model.gguf` would."""
    from lmhub.hub import Hub
    from lmhub.settings import EngineSettings
    from lmhub.testing.serving import running

    hub = Hub()
    hub.load(model_dir / "model.gguf", EngineSettings(ctx=512))
    with running(hub) as url:
        yield url.removeprefix("http://")
    hub.close()
