"""What a reply tells of experts that are read from the file, over a real socket, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmhub.gguf import GGMLType
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.serving import running
from lmhub.testing.tiny import tiny_gguf

MIXTURE: dict[str, Any] = {"qk_norm": True, "n_expert": 16, "n_expert_used": 2, "n_ff": 256, "n_layer": 2}
HI = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": 6},
    "/v1/completions": {"prompt": "hi there", "max_tokens": 6},
    "/v1/messages": {"model": "m", "messages": HI, "max_tokens": 6},
    "/v1/responses": {"input": "hi", "max_output_tokens": 6},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf("qwen3moe", tmp_path_factory.mktemp("moe") / "moe.gguf", kind=GGMLType.Q8_0, **MIXTURE)


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[tuple[Hub, httpx.Client]]:
    """A mixture of which the memory holds some of the experts."""
    hub = Hub()
    hub.load(path, EngineSettings(ctx=256, borrow="experts", expert_cache=1 << 20))
    with running(hub) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield hub, client
    hub.close()


def tellings(body: Any) -> list[Any]:
    """What stands under `lmhub` in a body or a frame, the response of the Responses API included."""
    found = [body[name] for name in ("lmhub",) if name in body]
    return found + (tellings(body["response"]) if "response" in body else [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", ASKED)
def test_a_reply_says_what_its_experts_did(served: tuple[Hub, httpx.Client], route: str, stream: bool) -> None:
    hub, client = served
    [model] = hub.models
    assert model.shelf is not None
    before = model.shelf.numbers()
    reply = client.post(route, json={**ASKED[route], "ignore_eos": True, "stream": stream}).raise_for_status()
    frames = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    [told] = [one for frame in (frames if stream else [reply.text]) for one in tellings(json.loads(frame))]
    after = model.shelf.numbers()
    used, hits = after.used - before.used, after.hits - before.hits
    assert told == {
        "experts": {"used": used, "hits": hits, "hit_rate": hits / used, "read_bytes": after.read - before.read}
    }
    assert 0 < hits < used >= 6 * 2 * 3 * 2  # steps, layers, weights, experts


def test_choices_tell_it_once(served: tuple[Hub, httpx.Client]) -> None:
    hub, client = served
    [model] = hub.models
    assert model.shelf is not None
    before = model.shelf.numbers()
    asked = {**ASKED["/v1/chat/completions"], "n": 2, "stream": True}
    reply = client.post("/v1/chat/completions", json=asked).raise_for_status()
    frames = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    [told] = [one for frame in frames for one in tellings(json.loads(frame))]
    assert told["experts"]["used"] == model.shelf.numbers().used - before.used


@pytest.mark.parametrize("borrow", ["none", "experts"])
def test_without_a_budget_there_is_nothing_to_tell(path: Path, borrow: Any) -> None:
    hub = Hub()
    hub.load(path, EngineSettings(ctx=256, borrow=borrow))
    with running(hub) as address:
        reply = httpx.post(f"{address}/v1/chat/completions", json=ASKED["/v1/chat/completions"]).raise_for_status()
    hub.close()
    assert "lmhub" not in reply.json()
