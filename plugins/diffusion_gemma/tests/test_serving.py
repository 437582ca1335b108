"""A diffusion model behind a real server, asked by the SDKs: what is the same as with any model, and what is its own.

The model is a golden one with random weights: what it says is noise, the same noise each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.serving import running

SIZE = 32  # of a block
HI: Any = [{"role": "user", "content": "Hi there"}]
QUICK: Any = {"denoising": {"steps": 3}}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def url(zoo: Path) -> Iterator[str]:
    import lmhub_diffusion_gemma

    hub = Hub(entry_points=False)
    hub.plugins.register(lmhub_diffusion_gemma, "diffusion_gemma")
    settings = EngineSettings(ctx=512, batch=3, kv_slots=6, threads=1, read_ahead=False)
    hub.load(zoo / "diffusion-gemma" / "model-f32.gguf", settings)
    with running(hub) as address:
        yield address
    hub.close()


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url + "/v1", api_key="x", max_retries=0) as made:
        yield made


def asked(client: openai.OpenAI, seed: int = 1, max_tokens: int = 80, **options: Any) -> Any:
    body = {"extra_body": {**QUICK, "ignore_eos": True}, "messages": HI, **options}
    return client.chat.completions.create(model="m", seed=seed, max_tokens=max_tokens, **body)


def said(reply: Any) -> str:
    """The text of a whole reply."""
    text: str = reply.choices[0].message.content
    return text


def test_a_whole_reply_and_a_stream_of_blocks(client: openai.OpenAI) -> None:
    whole = asked(client)
    assert whole.choices[0].finish_reason == "length" and whole.usage.completion_tokens == 80
    chunks = list(asked(client, stream=True, stream_options={"include_usage": True}))
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert "".join(texts) == said(whole)
    assert 2 <= len(texts) <= 3 + 1  # three blocks, the last one cut; what a parser held back comes by itself
    assert chunks[-1].usage.completion_tokens == 80


def test_seeds_reproduce_whatever_shares_the_passes(client: openai.OpenAI) -> None:
    alone = {seed: said(asked(client, seed)) for seed in (1, 2, 3)}
    assert len(set(alone.values())) == 3
    with ThreadPoolExecutor(3) as pool:
        together = dict(zip(alone, pool.map(lambda seed: asked(client, seed), alone), strict=True))
    assert {seed: said(reply) for seed, reply in together.items()} == alone


def test_the_wishes_of_a_request_count(client: openai.OpenAI) -> None:
    def text(**wishes: Any) -> str:
        said: str = (
            asked(client, extra_body={"denoising": {"steps": 3, **wishes}, "ignore_eos": True})
            .choices[0]
            .message.content
        )
        return said

    assert text() == text()
    assert len({text(), text(steps=4), text(t_max=2.0), text(entropy_bound=40.0)}) == 4
    loose: Any = {"denoising": {"steps": 3, "entropy_bound": 40.0}, "ignore_eos": True}
    greedy = [said(asked(client, temperature=0, extra_body=loose)) for _ in range(2)]
    assert greedy[0] == greedy[1] != text(entropy_bound=40.0)


def test_a_prefix_is_found_again(client: openai.OpenAI) -> None:
    history = [*HI, {"role": "assistant", "content": said(asked(client, 5))}, {"role": "user", "content": "And?"}]
    usage = asked(client, 6, messages=history).usage
    again = asked(client, 7, messages=history).usage
    assert usage.prompt_tokens_details.cached_tokens > 10
    assert again.prompt_tokens_details.cached_tokens == again.prompt_tokens - 1


def test_stop_strings_end_a_reply_within_a_block(client: openai.OpenAI) -> None:
    whole = said(asked(client, 1))
    stop = re.findall("[A-Za-z]{3}", whole)[-1]
    reply = asked(client, 1, stop=stop)
    assert reply.choices[0].finish_reason == "stop"
    assert said(reply) == whole[: whole.index(stop)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
        ({"logprobs": True}, "logprobs"),
        ({"extra_body": {"denoising": {"steps": 0}}}, "denoising.steps"),
        ({"extra_body": {"denoising": {"sleps": 1}}}, "denoising"),
        ({"extra_body": {"denoising": {"t_max": 0.1}}}, "denoising"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(client: openai.OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        asked(client, **fields)
    assert str(refusal.value.param).startswith(param.split(".", maxsplit=1)[0])


def test_tools_may_be_offered(client: openai.OpenAI) -> None:
    assert asked(client, tools=TOOLS).usage.completion_tokens == 80


def test_drafts_are_comments(url: str, client: openai.OpenAI) -> None:
    body = {"model": "m", "messages": HI, "max_tokens": SIZE, "seed": 1, "stream": True, "ignore_eos": True}
    wishes = {"steps": 3, "drafts": True, "confidence": 0}
    raw = httpx.post(f"{url}/v1/chat/completions", json={**body, "denoising": wishes}, timeout=60).text
    drafts = [json.loads(line.removeprefix(": draft ")) for line in raw.splitlines() if line.startswith(": draft ")]
    assert [one["choice"] for one in drafts] == [0, 0] and all(one["text"] for one in drafts)
    assert drafts[0]["text"] != drafts[1]["text"]
    options: Any = {"max_tokens": SIZE, "extra_body": {"denoising": wishes, "ignore_eos": True}}
    chunks = asked(client, stream=True, **options)
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert streamed == said(asked(client, **options))


def test_the_other_dialects(url: str, client: openai.OpenAI) -> None:
    options: Any = {"extra_body": {**QUICK, "seed": 1, "ignore_eos": True}}
    with anthropic.Anthropic(base_url=url, api_key="x", max_retries=0) as other:
        whole = other.messages.create(model="m", max_tokens=40, messages=HI, **options)
        with other.messages.stream(model="m", max_tokens=40, messages=HI, **options) as stream:
            text = "".join(stream.text_stream)
    assert whole.stop_reason == "max_tokens" and whole.usage.output_tokens == 40
    assert text == "".join(block.text for block in whole.content if block.type == "text")
    assert text == said(asked(client, max_tokens=40))
    response = client.responses.create(model="m", input="Hi there", max_output_tokens=40, **options)
    assert response.output_text == text and response.usage and response.usage.output_tokens == 40
    completion = client.completions.create(model="m", prompt="Once", max_tokens=40, extra_body=QUICK)
    assert completion.usage and completion.usage.prompt_tokens > 0


def test_a_model_of_single_tokens_has_no_denoising(hub: Hub, tiny_gguf: Any) -> None:
    from lmhub.errors import RequestError
    from lmhub.testing.fake import FakeModel
    from lmhub.testing.serving import fake_loaded
    from lmhub.types import ChatRequest, Message, Text

    served = hub.serve(fake_loaded(FakeModel(b"x")), EngineSettings())
    with pytest.raises(RequestError, match="without `denoising`"):
        served.model.prepare(ChatRequest((Message("user", (Text("hi"),)),), denoising={"steps": 3}), "a")
