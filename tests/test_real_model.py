"""SmolLM2-135M-Instruct, real weights, end to end. `make real-model` fetches the file and runs this."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import openai
import pytest

from lmhub import HERMES, hookimpl
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.serving import running

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
LLAMA_CPP_PERPLEXITY = 25.4683  # benchmarks/perplexity.py MODEL --window 512, llama-cpp-python 0.3.36

pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    if not MODEL.exists():
        pytest.skip(f"{MODEL.name} is not here; `make real-model` fetches it")
    hub = Hub()
    style = ModuleType("style")  # the file's template declares no tools; calls are forced all the same
    style.lmhub_tool_style = hookimpl(lambda model: HERMES)  # type: ignore[attr-defined]
    hub.plugins.register(style, "style")
    hub.load(MODEL, EngineSettings(ctx=2048, batch=4))
    with running(hub) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none") as made:
        yield made
    hub.close()


def answer(client: openai.OpenAI, messages: list[Any], stream: bool) -> str:
    options: dict[str, Any] = {"model": "smol", "messages": messages, "temperature": 0, "max_tokens": 80}
    if not stream:
        return client.chat.completions.create(**options).choices[0].message.content or ""
    chunks = client.chat.completions.create(**options, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_five_turns_streamed_and_whole(client: openai.OpenAI) -> None:
    messages: list[Any] = []
    said = []
    for question in (
        "Hello! Who are you?",
        "What is the capital of France?",
        "Name one famous building there.",
        "Write one sentence about the sea.",
        "Thank you, goodbye!",
    ):
        messages.append({"role": "user", "content": question})
        whole, streamed = answer(client, messages, stream=False), answer(client, messages, stream=True)
        assert whole == streamed
        messages.append({"role": "assistant", "content": whole})
        said.append(whole)
    assert "Paris" in said[1]
    assert "Eiffel Tower" in said[2]
    assert "sea" in said[3].lower()


def test_perplexity_is_that_of_llama_cpp(client: openai.OpenAI) -> None:
    script = [sys.executable, ROOT / "benchmarks" / "perplexity.py", MODEL, "--window", "512", "--json"]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    ours = json.loads(done.stdout)["perplexity"]["lmhub"]
    assert abs(ours / LLAMA_CPP_PERPLEXITY - 1) < 0.005


FIELDS: dict[str, Any] = {
    "name": {"type": "string", "maxLength": 40},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "colour": {"enum": ["red", "green", "blue"]},
    "happy": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3},
    "place": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
        "required": ["city", "zip"],
        "additionalProperties": False,
    },
}
SCHEMAS = [  # every three of the fields, all of them required
    {"type": "object", "properties": {n: FIELDS[n] for n in names}, "required": names, "additionalProperties": False}
    for names in map(list, itertools.combinations(FIELDS, 3))
]


def of_a_hundred(
    client: openai.OpenAI, ask: Callable[[dict[str, Any]], dict[str, Any]], read: Callable[[Any], str]
) -> int:
    """How many of a hundred hot replies, four at a time, are what their schema says."""

    def good(number: int) -> bool:
        schema = SCHEMAS[number % len(SCHEMAS)]
        question = [{"role": "user", "content": f"Invent person {number} and describe them as JSON."}]
        common: dict[str, Any] = {"model": "smol", "messages": question, "temperature": 1.0, "seed": number}
        reply = client.chat.completions.create(**common, **ask(schema), max_tokens=300)
        try:
            jsonschema.validate(json.loads(read(reply.choices[0].message)), schema)
        except (ValueError, TypeError, IndexError, jsonschema.ValidationError):
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(good, range(100)))


def test_a_hundred_of_a_hundred_replies_match_their_schema(client: openai.OpenAI) -> None:
    def ask(schema: dict[str, Any]) -> dict[str, Any]:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}}

    assert of_a_hundred(client, ask, lambda message: message.content) == 100


def test_a_hundred_of_a_hundred_forced_calls_match_their_tool(client: openai.OpenAI) -> None:
    def ask(schema: dict[str, Any]) -> dict[str, Any]:
        function = {"name": "save_person", "parameters": schema, "strict": True}
        return {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}

    assert of_a_hundred(client, ask, lambda message: message.tool_calls[0].function.arguments) == 100
