"""A tiny inkling model behind the server: whole, in parts of which the first is empty, and with experts in the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import httpx
import numpy as np
import pytest

from lmhub.errors import UnsupportedModel
from lmhub.gguf import GGMLType, GGUFFile, open_gguf
from lmhub.gguf.writer import GGUFWriter
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing import drive
from lmhub.testing.agent import Agent
from lmhub.testing.serving import running
from lmhub.testing.tiny import write
from lmhub.types import Message, Text, Tool

TINY = run_path(str(Path(__file__).with_name("tiny_inkling.py")))
HI = [{"role": "user", "content": "Hi!"}]
CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("inkling") / "talks.gguf", TINY["TALKS"])


@pytest.fixture(scope="module")
def hub(path: Path) -> Iterator[Hub]:
    made = Hub()
    made.load(path, EngineSettings(ctx=1024))
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(hub: Hub) -> Iterator[httpx.Client]:
    with running(hub) as address, httpx.Client(base_url=address, timeout=60) as made:
        yield made


def split(whole: GGUFFile, folder: Path, n_parts: int = 3) -> Path:
    """The same in parts, of which the first holds the keys alone and the others a tensor each in turns."""
    n, names = len(whole.tensors), list(whole.tensors)
    for part in range(n_parts):
        with GGUFWriter(folder / f"split-{part + 1:05}-of-{n_parts:05}.gguf", None) as out:
            own = whole.metadata if part == 0 else {"general.architecture": "inkling"}
            for key, value in own.items():
                out.add(key, value)
            for key, value in {"split.no": part, "split.count": n_parts, "split.tensors.count": n}.items():
                out.add(key, value, "uint16")
            for name in names[part - 1 :: n_parts - 1] if part else ():
                tensor = whole.tensors[name]
                out.add_tensor(name, tensor.data, tensor.type, tensor.shape)
    return folder / f"split-{n_parts - 1:05}-of-{n_parts:05}.gguf"


def test_a_split_file_whose_first_part_has_no_tensors_is_the_whole_one(path: Path, tmp_path: Path) -> None:
    with open_gguf(path) as whole:
        given = split(whole, tmp_path)
    with open_gguf(given) as parts:
        assert not any(tensor.path == parts.path for tensor in parts.tensors.values())
    models = [drive.load("lmhub_inkling", one, 128) for one in (path, given)]
    tokens = drive.random_tokens(60, models[0].n_vocab)
    assert drive.logits_of(models[0], tokens).tobytes() == drive.logits_of(models[1], tokens).tobytes()
    hub = Hub()
    hub.load(given, EngineSettings(ctx=256, borrow="experts", expert_cache=1 << 18))
    with running(hub) as address:
        asked = {"messages": HI, "max_tokens": 24, "ignore_eos": True}
        told = httpx.post(address + CHAT, json=asked, timeout=60).raise_for_status().json()["lmhub"]["experts"]
    hub.close()
    assert 0 < told["hits"] < told["used"] and told["read_bytes"] > 1 << 18


def test_padding_is_no_part_of_the_vocabulary(hub: Hub) -> None:
    [model] = hub.models
    tokens = model.metadata["tokenizer.ggml.tokens"]
    assert tokens[model.model.n_vocab].startswith("[PAD") and len(tokens) == 320
    assert model.tokenizer.n_vocab == model.model.n_vocab == TINY["TALKS"].hparams["unpadded_vocab_size"]


def test_a_reply_ends_with_its_own_end_or_before_another_turn_and_not_with_a_block(hub: Hub) -> None:
    [model] = hub.models
    ends = {model.tokenizer.token_text(id) for id in model.tokenizer.eog}
    assert ends >= {"<|content_model_end_sampling|>", *(f"<|message_{name}|>" for name in ("user", "system", "tool"))}
    assert not ends & {"<|end_message|>", "<|message_model|>"}
    assert model.chat is not None and model.chat.render([Message("user", (Text("Hi"),))]).ids[0] == (
        model.tokenizer.token_id("<|message_system|>")
    )


def test_an_agent_goes_on_where_it_was(hub: Hub) -> None:
    """States that cannot be cut back go on from checkpoints; every reply begins as it would on a fresh server."""
    agent = Agent(hub.models[0], (Tool("f", "", {"type": "object"}),))
    for question in range(2):
        agent.hears(Message("user", (Text(f"Question {question}?"),)))
        for step in range(3):
            call = '<|message_model|>f<|content_invoke_tool_json|>{"name":"f","args":{"n":1}}<|end_message|>'
            text = "<|message_model|><|content_text|>Five.<|end_message|>" if step == 2 else call
            cold = agent.cold()
            cost = agent.replies(f"<|content_thinking|>Look é.<|end_message|>{text}")
            assert cost.logits == cold
            assert (question, step) == (0, 0) or (cost.source == "slot" and cost.n_read <= 15)  # what is new
            if step < 2:
                agent.hears_results(f"result {step}")


def test_a_forced_call(client: httpx.Client) -> None:
    asked = {"messages": HI, "max_tokens": 120, "seed": 7, "tools": [TOOL], "tool_choice": "required"}
    choice = client.post(CHAT, json=asked).raise_for_status().json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "f"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {}


@pytest.mark.parametrize(
    ("route", "part", "named"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}, "of type image_url"),
        (CHAT, {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}, "of type input_audio"),
        (
            "/v1/messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            "an image",
        ),
    ],
)
def test_images_and_sounds_are_refused(client: httpx.Client, route: str, part: dict[str, Any], named: str) -> None:
    asked = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [part]}]}
    reply = client.post(route, json=asked)
    assert reply.status_code == 400
    sentence = f"messages[0].content[0] is {named}, and this server reads text only; leave it out"
    assert reply.json()["error"]["message"] == sentence


def test_a_file_with_the_towers_alone_is_refused(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "mmproj.gguf", "clip") as out:
        out.add("clip.has_vision_encoder", True)
        out.add_tensor("v.hmlp.0.linear.weight", np.ones((4, 4), np.float32), GGMLType.F32)
    hub = Hub()
    with pytest.raises(UnsupportedModel, match=r"mmproj\.gguf is what a model sees or hears with.*own file"):
        hub.load(tmp_path / "mmproj.gguf", EngineSettings())
    hub.close()


def test_another_architecture_of_the_same_maker_is_named(tmp_path: Path) -> None:
    with GGUFWriter(tmp_path / "second.gguf", "inkling2") as out:
        out.add("inkling2.block_count", 1)
    hub = Hub()
    with pytest.raises(UnsupportedModel, match=r"architecture 'inkling2', which no installed plugin serves"):
        hub.load(tmp_path / "second.gguf", EngineSettings())
    hub.close()
