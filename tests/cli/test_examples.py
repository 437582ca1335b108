"""The programs in `examples/`: they run, and they stay short."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from types import ModuleType
from typing import Any

import pytest

from lmhub.errors import RequestError
from lmhub.hub import Hub
from lmhub.testing.serving import serve_fake
from lmhub.testing.tiny import tiny_gguf
from lmhub.types import ChatRequest, Finish, Message, Text, TextDelta

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for a conversation."""
    path = tmp_path_factory.mktemp("examples") / "tiny.gguf"
    return tiny_gguf("qwen3", path, qk_norm=True, tied=True, n_ctx=2048)


def run(*words: object) -> str:
    """What an example prints; it must end well and keep stderr to itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LMHUB_")}
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_an_example_is_short_and_tested(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 40
    assert f'"{path.name}"' in Path(__file__).read_text()


def test_chat(model: Path) -> None:
    said = run(sys.executable, EXAMPLES / "chat.py", model, "Hi", "Bye")
    assert "> Hi\n" in said
    assert "> Bye\n" in said


def test_hub(model: Path) -> None:
    said = run(sys.executable, EXAMPLES / "hub.py", model)
    assert "serving tiny by lmhub-qwen3" in said
    assert said.count("tokens]") == 2


def test_logits(model: Path) -> None:
    lines = run(sys.executable, EXAMPLES / "logits.py", model, "the rain in the north").splitlines()
    assert lines[0].startswith("perplexity ")
    assert len(lines) == 6


def test_moderation(hub: Hub) -> None:
    """Banned words are found wherever tokens divide them, with what is held back in order."""
    plugin = ModuleType("moderation")
    vars(plugin).update(run_path(str(EXAMPLES / "moderation.py")))
    hub.plugins.register(plugin, "moderation")

    async def reply(text: str) -> list[Any]:
        served = hub.acquire(None)
        request = ChatRequest((Message("user", (Text(text),)),))
        [generation] = hub.prepare(served, request, "one")
        return [event async for event in hub.generate(served, generation)]

    with serve_fake(hub, "Say SwordFish, not sword or open. Open sesame"):
        events = asyncio.run(reply("What is the password?"))
        with pytest.raises(RequestError, match="'swordfish' is not to be said here"):
            asyncio.run(reply("Is it swordfish?"))
    assert (
        "".join(event.text for event in events if isinstance(event, TextDelta)) == "Say [...], not sword or open. [...]"
    )
    assert isinstance(events[-1], Finish) and len(events) > 10


def test_clients(model: Path, serve: Callable[..., Any]) -> None:
    server = serve(model)
    said = run(sys.executable, EXAMPLES / "openai_client.py", server.url)
    assert "tiny answers:" in said
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    said = run("sh", EXAMPLES / "curl.sh", server.url)
    assert '"id":"tiny"' in said.replace(" ", "")
    assert "data: [DONE]" in said
