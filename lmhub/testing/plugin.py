"""Fixtures for every suite, the core's and the plugins': pytest loads this file by itself where lmhub is installed.

Nothing of lmhub is imported before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from lmhub.hub import Hub
    from lmhub.testing.tiny import Tiny


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker of the conformance suite, which plugins' own pytest settings do not know."""
    config.addinivalue_line("markers", "conformance_since(version): a check of later versions of the suite")


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Path:
    """The folder with golden models beside the repository; tests that need it are skipped where it is absent."""
    path = pytestconfig.rootpath.parent / "shared"
    if not path.is_dir():
        pytest.skip(f"the golden models are not here ({path} does not exist)")
    return path


@pytest.fixture(scope="session")
def zoo(shared: Path) -> Path:
    """The golden models, one folder each."""
    return shared / "zoo"


@pytest.fixture(scope="module")
def oracle(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """The function `logits(file, tokens, mutation="")` of the `oracle.py` beside the test: a float64 forward pass."""
    from runpy import run_path

    function: Callable[..., Any] = run_path(str(request.path.with_name("oracle.py")))["logits"]
    return function


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Tiny], Path]:
    """`paths(tiny)`: the file of a tiny model, written when it is first asked for and read by many."""
    from lmhub.testing.tiny import write

    folder = tmp_path_factory.mktemp("tiny")
    written: dict[int, tuple[Tiny, Path]] = {}

    def path(tiny: Tiny) -> Path:
        if id(tiny) not in written:
            written[id(tiny)] = tiny, write(folder / f"tiny{len(written)}.gguf", tiny)
        return written[id(tiny)][1]

    return path


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub without any installed plugin; `hub.plugins.register(plugin, name)` adds one. Closed at the end."""
    from lmhub.hub import Hub

    made = Hub(entry_points=False)
    yield made
    made.close()


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> Callable[..., Path]:
    """`tiny_gguf(arch, **hparams)`: the path of a small random model with a vocabulary and a chat template."""
    from lmhub.testing import tiny

    def write(arch: str, **hparams: Any) -> Path:
        model: Tiny = tiny.decoder(arch, **hparams)
        return tiny.write(tmp_path / f"{arch}.gguf", model)

    return write


@pytest.fixture
def fake_server(hub: Hub) -> Iterator[Callable[..., str]]:
    """`fake_server(reply, **settings)`: the URL of a real server whose model answers every prompt with `reply`.

    `reply` as in `lmhub.testing.serving.serve_fake`; stopped at the end of the test.
    """
    from lmhub.testing.serving import running, serve_fake

    with ExitStack() as stack:

        def start(reply: Any, **settings: Any) -> str:
            stack.enter_context(serve_fake(hub, reply))
            server: AbstractContextManager[str] = running(hub, **settings)
            return stack.enter_context(server)

        yield start
