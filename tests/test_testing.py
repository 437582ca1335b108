"""The fixtures and helpers that lmhub.testing hands to plugins' suites."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmhub.gguf import open_gguf
from lmhub.hub import Hub
from lmhub.server import create_app
from lmhub.settings import ServerSettings
from lmhub.testing.serving import serve_fake
from lmhub.testing.sse import app_client, frames
from lmhub.testing.zoo import FamilyZoo

ASK = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_frames_read_events_and_skip_comments() -> None:
    text = 'event: a\ndata: {"x": 1}\n\n: ping\n\ndata: [DONE]\n\n'
    assert list(frames(text)) == [("a", '{"x": 1}'), (None, "[DONE]")]


@pytest.mark.parametrize("text", ["data: 1\n", "id: 7\ndata: 1\n\n", "event: a\n\n", "data: 1\ndata: 2\n\n"])
def test_frames_refuse_what_clients_stumble_over(text: str) -> None:
    with pytest.raises(ValueError, match="frame"):
        list(frames(text))


def test_app_client_needs_no_socket(hub: Hub) -> None:
    async def ask() -> str:
        async with app_client(create_app(hub, ServerSettings())) as client:
            return (await client.post("/v1/chat/completions", json=ASK)).text

    with serve_fake(hub, "Hello"):
        said = [json.loads(data) for _, data in frames(asyncio.run(ask())) if data != "[DONE]"]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in said if c["choices"]) == "Hello"


def test_fake_server_answers_over_a_socket(fake_server: Callable[..., str]) -> None:
    answer = httpx.post(fake_server("<think>hm</think>Hello") + "/v1/chat/completions", json={**ASK, "stream": False})
    message: dict[str, Any] = answer.json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Hello", "hm")


def test_tiny_gguf_writes_a_model_of_any_architecture(tiny_gguf: Callable[..., Path]) -> None:
    with open_gguf(tiny_gguf("markov", n_layer=3)) as file:
        assert file.architecture == "markov"
        assert file.require("markov.block_count", int) == 3


def test_what_has_no_case_is_no_test() -> None:
    """A skip would read as if this machine lacked something."""

    class Some(FamilyZoo):
        plugin, float32, quantised, invariant = "lmhub_markov", ("markov",), (), (("markov", "f32"),)

    assert Some.test_quantised_files_are_as_close_as_an_8_bit_engine is None
    assert Some.test_other_forms_of_the_same_weights is None
    assert Some.test_greedy_continuations is FamilyZoo.test_greedy_continuations
    assert Some.test_cuts_and_neighbours_do_not_matter is not None
