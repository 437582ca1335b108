"""SmolLM2-135M-Instruct, real weights, end to end. `make real-model` fetches the file and runs this."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

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
    hub.load(MODEL, EngineSettings(ctx=2048))
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
