"""The numbered conformance statements of the Messages dialect, over a real server, mostly through the official SDK."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import anthropic
import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from lmhub.errors import GenerationError
from lmhub.family import Family
from lmhub.hub import Hub
from lmhub.model import Chunk
from lmhub.settings import EngineSettings
from lmhub.testing.fake import FakeModel, FakeTokenizer, Gate
from lmhub.testing.serving import FAMILY, fake_loaded, running

HI: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CLOCK: Any = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
PARIS = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
CALLED: Any = {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}]}
PIXEL = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
# As strict as templates get: one system turn, which comes first; alternating roles; reasoning after the last user only.
STRICT = """
{%- macro turn(role, text) %}{{ '<|im_start|>' + role + '\\n' + text + '<|im_end|>\\n' }}{% endmacro -%}
{%- if tools %}{{ turn('tools', tools | tojson) }}{% endif -%}
{%- set ns = namespace(before='', last_user=0, calls='') -%}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif %}{% endfor -%}
{%- for m in messages -%}
  {%- if m.role == 'system' and not loop.first %}{{ raise_exception('System comes first.') }}{% endif -%}
  {%- if m.role == ns.before and m.role != 'tool' %}{{ raise_exception('Roles must alternate.') }}{% endif -%}
  {%- set ns.before = m.role -%}
  {%- set think = '<think>' + m.reasoning_content + '</think>' if m.reasoning_content and loop.index0 > ns.last_user -%}
  {%- set ns.calls = '' -%}
  {%- for call in m.tool_calls or [] -%}
    {%- set ns.calls = ns.calls ~ '<tool_call>\\n' ~ (call.function | tojson) ~ '\\n</tool_call>' -%}
  {%- endfor -%}
  {{- turn(m.role, (think or '') + m.content + ns.calls) -}}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
  {%- if not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif -%}
{%- endif -%}
"""


@dataclass
class Bench:
    """A server with one scripted model. `seen` holds the prompts that the model was given."""

    url: str
    client: anthropic.Anthropic
    http: httpx.Client
    seen: dict[str, None]

    @property
    def prompts(self) -> list[str]:
        """The prompts in their order, each once."""
        return list(self.seen)

    def create(self, **fields: Any) -> anthropic.types.Message:
        """A whole reply, through the SDK."""
        message: anthropic.types.Message = self.client.messages.create(**_body(fields))
        return message

    def post(self, path: str = "/v1/messages", headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """What a plain POST is answered; fields that are None are left out."""
        body = {key: value for key, value in _body(fields).items() if value is not ...}
        return self.http.post(self.url + path, json=body, headers=headers)

    def refused(self, **fields: Any) -> str:
        """The message of a 400 in the dialect's envelope."""
        response = self.post(**fields)
        answer = response.json()
        assert response.status_code == 400, answer
        assert answer["type"] == "error" and answer["error"]["type"] == "invalid_request_error"
        assert answer["request_id"] == response.headers["request-id"]
        message: str = answer["error"]["message"]
        return message

    def frames(self, **fields: Any) -> list[dict[str, Any]]:
        """The data of all frames of a streamed reply."""
        return frames(self.post(stream=True, **fields).text)

    def final(self, **fields: Any) -> anthropic.types.Message:
        """What the SDK's accumulator makes of a streamed reply."""
        with self.client.messages.stream(**_body(fields)) as stream:
            message: anthropic.types.Message = stream.get_final_message()
            return message


def _body(fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 400, "messages": HI} | fields


def frames(stream: str) -> list[dict[str, Any]]:
    """The data of the frames of `stream`, each of which has an event line that agrees with it."""
    found = []
    for frame in stream.removesuffix("\n\n").split("\n\n"):
        event, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert event == "event: " + found[-1]["type"]
    return found


def kinds(found: Sequence[dict[str, Any]]) -> list[str]:
    """The types of frames."""
    return [frame["type"] for frame in found]


class Terse(FakeModel):
    """Held to a grammar that rules out its script, it takes a blank only where nothing else is allowed."""

    def row(self, tokens: tuple[int, ...], n_prompt: int) -> NDArray[np.float32]:
        """The logits of the script, the blanks beside it less likely than all else."""
        row = super().row(tokens, n_prompt)
        for blank in b"\t\n\r ":
            row[blank] = row[blank] if row[blank] > 0 else -2e9
        return row


@pytest.fixture(scope="module")
def benches() -> Iterator[Callable[..., Bench]]:
    """Starts servers, which run until the module's tests are over."""
    with ExitStack() as stack:

        def start(
            reply: str, *, n_ctx: int = 4000, family: Family = FAMILY, batch: int = 4, gate: Gate | None = None,
            before_step: Any = None, **settings: Any,
        ) -> Bench:  # fmt: skip
            tokenizer = FakeTokenizer()
            script = tokenizer.encode(reply, special=True)
            prompts: dict[str, None] = {}

            def answer(prompt: tuple[int, ...]) -> Sequence[int]:
                prompts[_text(tokenizer, prompt)] = None
                return script

            hub = Hub(entry_points=False)
            stack.callback(hub.close)
            model = Terse(answer, gate=gate, before_step=before_step, n_ctx_train=n_ctx)
            metadata = {"general.name": "A scripted model", "tokenizer.chat_template": STRICT}
            loaded = fake_loaded(model, n_ctx=n_ctx, metadata=metadata, family=family)
            hub.serve(loaded, EngineSettings(ctx=n_ctx, batch=batch))
            url = stack.enter_context(running(hub, **settings))
            http = stack.enter_context(httpx.Client(verify=False, timeout=30))
            client = anthropic.Anthropic(base_url=url, api_key="dummy", max_retries=0)
            return Bench(url, stack.enter_context(client), http, prompts)

        yield start


@pytest.fixture(scope="module")
def known() -> dict[Any, Bench]:
    """The servers that tests share, by what they were made of."""
    return {}


@pytest.fixture
def serve(benches: Callable[..., Bench], known: dict[Any, Bench]) -> Callable[..., Bench]:
    """`serve(reply, fresh=, n_ctx=, family=, batch=, gate=, before_step=, **server settings)`: a running Bench.

    Unless `fresh`, an equal one is used again, without the prompts that it has seen.
    """

    def get(reply: str = "Hello", *, fresh: bool = False, **settings: Any) -> Bench:
        if fresh:
            return benches(reply, **settings)
        key = repr((reply, settings))
        if key not in known:
            known[key] = benches(reply, **settings)
        known[key].seen.clear()
        return known[key]

    return get


def _text(tokenizer: FakeTokenizer, tokens: Sequence[int]) -> str:
    pieces = [bytes((one,)) if one < 256 else tokenizer.token_text(one).encode() for one in tokens]
    return b"".join(pieces).decode()


# --- requests --------------------------------------------------------------------------------------------------------


def test_163_a_minimal_request(serve: Any) -> None:
    bench = serve("Grüße 👋")
    reply = bench.create()
    assert (reply.type, reply.role, reply.stop_reason, reply.stop_sequence) == (
        "message",
        "assistant",
        "end_turn",
        None,
    )
    assert reply.model == "fake" and reply.id.startswith("msg_") and len(reply.id) >= 28
    (block,) = reply.content
    assert block.type == "text" and block.text == "Grüße 👋"
    assert reply.usage.input_tokens > 0 and reply.usage.output_tokens > 0
    assert bench.create(max_tokens=2).stop_reason == "max_tokens"


@pytest.mark.parametrize("name", ["model", "max_tokens", "messages"])
def test_164_what_is_required(serve: Any, name: str) -> None:
    bench = serve()
    assert name in bench.refused(**{name: None}) and name in bench.refused(**{name: ...})
    assert "messages" in bench.refused(messages=[])


@pytest.mark.parametrize("budget", [0, -1])
def test_165_a_budget_is_at_least_one(serve: Any, budget: int) -> None:
    assert "max_tokens" in serve().refused(max_tokens=budget)


@pytest.mark.parametrize("role", ["system", "assistant", "tool", "wizard"])
def test_166_the_first_message_is_the_users(serve: Any, role: str) -> None:
    assert "messages[0].role" in serve().refused(messages=[{"role": role, "content": "x"}, *HI])


def test_167_system_as_text_and_as_blocks(serve: Any) -> None:
    bench = serve()
    blocks = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    assert bench.create(system="Be brief.\n\nBe kind.").content == bench.create(system=blocks).content
    (prompt,) = bench.prompts
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nBe kind.<|im_end|>")
    assert "system[0]" in bench.refused(system=[PIXEL])


def test_168_system_text_between_the_turns_is_folded(serve: Any) -> None:
    bench = serve()
    note = {"role": "system", "content": "The date has changed."}
    bench.create(messages=[*HI, note, {"role": "assistant", "content": "Hello"}, note, *HI, note])
    reminder = "<system-reminder>\nThe date has changed.\n</system-reminder>"
    (prompt,) = bench.prompts
    assert f"user\nhi\n\n{reminder}<|im_end|>" in prompt
    assert f"user\n{reminder}\n\nhi\n\n{reminder}<|im_end|>" in prompt


def test_169_system_text_does_not_separate_a_call_from_its_result(serve: Any) -> None:
    bench = serve()
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    note = {"role": "system", "content": "note"}
    bench.create(messages=[*HI, CALLED, note, {"role": "user", "content": [result]}], tools=[WEATHER])
    (prompt,) = bench.prompts
    call, _, rest = prompt.rpartition('"arguments": {}')
    assert call and "<|im_end|>\n<|im_start|>tool\nsunny\n\n<system-reminder>\nnote" in rest
    assert rest.count("<|im_start|>") == 2  # the results and the reply: no user turn in between


@pytest.mark.parametrize(("name", "value"), [("temperature", 1.1), ("top_p", 1.1), ("top_k", -2)])
def test_170_sampling_ranges(serve: Any, name: str, value: float) -> None:
    bench = serve()
    assert name in bench.refused(**{name: value})
    assert bench.post(**{name: 1}).status_code == 200


def test_171_cache_control_is_ignored(serve: Any) -> None:
    bench = serve()
    mark = {"cache_control": {"type": "ephemeral"}}
    blocks = [{"type": "text", "text": "hi"}]
    plain = bench.post(system=blocks, tools=[WEATHER], messages=[{"role": "user", "content": blocks}])
    marked = [{"type": "text", "text": "hi"} | mark]
    again = bench.post(system=marked, tools=[WEATHER | mark], messages=[{"role": "user", "content": marked}], **mark)
    assert (plain.status_code, again.status_code, len(bench.prompts)) == (200, 200, 1)


@pytest.mark.parametrize(
    "headers",
    [{}, {"anthropic-version": "2023-06-01"}, {"anthropic-version": "2999-01-01", "anthropic-beta": "a-2030-01-01,b"}],
)
def test_172_versions_and_betas(serve: Any, headers: dict[str, str]) -> None:
    assert serve().post("/v1/messages?beta=true", headers).status_code == 200


def test_173_bookkeeping_is_accepted(serve: Any) -> None:
    response = serve().post(
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": "u"},
        container=None,
        service_tier="auto",
        speed="fast",
        output_config={"effort": "high"},
        mcp_servers=[{"type": "url", "url": "https://mcp.invalid", "name": "x"}],
    )
    assert response.status_code == 200


# --- thinking --------------------------------------------------------------------------------------------------------


def test_174_thinking_is_switched(serve: Any) -> None:
    bench = serve()
    for given in ({"type": "enabled", "budget_tokens": 100}, {"type": "adaptive"}):
        bench.create(thinking=given)
    (prompt,) = bench.prompts
    assert prompt.endswith("assistant\n")
    bench.create(thinking={"type": "disabled"})
    bench.create()
    assert len(bench.prompts) == 2 and bench.prompts[1].endswith("</think>\n\n")
    assert "thinking.type" in bench.refused(thinking={"type": "sometimes"})
    plain = serve("Hello", family=replace(FAMILY, think=None))
    assert plain.create(thinking={"type": "enabled", "budget_tokens": 100}).content[0].type == "text"


def test_175_thinking_comes_first_and_is_signed(serve: Any) -> None:
    bench = serve("<think>\nhm\n</think>\n\nSo.")
    for reply in (bench.create(thinking={"type": "adaptive"}), bench.final(thinking={"type": "adaptive"})):
        thought, text = reply.content
        assert thought.type == "thinking" and thought.thinking.strip() == "hm" and thought.signature
        assert text.type == "text" and text.text == "So."
        assert reply.usage.output_tokens_details and reply.usage.output_tokens_details.thinking_tokens > 0


def test_176_replayed_thinking(serve: Any) -> None:
    bench = serve("<think>\nhm\n</think>\n\nSo.")
    own = bench.create(thinking={"type": "adaptive"}).content
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    unsigned = {"type": "thinking", "thinking": "unsigned"}
    blocks = [unsigned, {"type": "redacted_thinking", "data": "xyz"}, *CALLED["content"]]
    bench.create(
        messages=[
            *HI,
            {"role": "assistant", "content": [block.to_dict() for block in own]},
            *HI,
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result]},
        ]
    )
    prompt = bench.prompts[-1]
    assert "<think>hm" not in prompt and "<think>unsigned</think>" in prompt  # as the template wants it


def test_175_thinking_ends_at_its_budget(serve: Any) -> None:
    bench = serve("<think>\n" + "hm " * 40 + "</think>\n\nSo.")
    reply = bench.create(thinking={"type": "enabled", "budget_tokens": 20})
    assert reply.content[0].type == "thinking" and len(reply.content[0].thinking) <= 20
    assert reply.content[1].type == "text"
    hidden = bench.create(thinking={"type": "adaptive", "display": "omitted"})
    assert hidden.content[0].thinking == "" and hidden.content[0].signature
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    replayed = [block.to_dict() for block in hidden.content[:1]] + CALLED["content"]
    bench.seen.clear()
    bench.create(messages=[*HI, {"role": "assistant", "content": replayed}, {"role": "user", "content": [result]}])
    assert "<think>hm hm " in bench.prompts[0]


def test_166_a_last_reply_is_continued(serve: Any) -> None:
    bench = serve(" Paris.")
    begun = [*HI, {"role": "assistant", "content": "The capital is"}]
    reply = bench.create(messages=begun)
    assert reply.content[0].text == " Paris." and bench.prompts[0].endswith("assistant\nThe capital is")
    assert "thinking" in bench.refused(messages=begun, thinking={"type": "adaptive"})
    assert "forced" in bench.refused(messages=begun, tools=[WEATHER], tool_choice={"type": "any"})
    form = {"type": "json_schema", "schema": {}}
    assert "constrained" in bench.refused(messages=begun, output_config={"format": form})


# --- stop sequences and tools ----------------------------------------------------------------------------------------


def test_177_stop_sequences(serve: Any) -> None:
    bench = serve("one two END three")
    for reply in (bench.create(stop_sequences=["X", "END"]), bench.final(stop_sequences=["X", "END"])):
        assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")
        assert reply.content[0].type == "text" and reply.content[0].text == "one two "
    ten = bench.create(stop_sequences=[f"stop{number}" for number in range(10)])
    assert ten.stop_reason == "end_turn" and ten.stop_sequence is None
    assert "stop_sequences" in bench.refused(stop_sequences=[""])
    assert "stop_sequences" in bench.refused(stop_sequences="END")


def test_178_a_call(serve: Any) -> None:
    bench = serve(PARIS)
    ids = set()
    for reply in (bench.create(tools=[WEATHER]), bench.final(tools=[WEATHER])):
        (call,) = reply.content
        assert reply.stop_reason == "tool_use" and call.type == "tool_use" and call.id.startswith("toolu_")
        assert (call.name, call.input) == ("weather", {"city": "Paris"})
        ids.add(call.id)
    assert len(ids) == 2


@pytest.mark.parametrize("script", [PARIS, "It is sunny.", PARIS.replace("Paris", "Berlin")])
def test_179_forced_calls_are_schema_valid(serve: Any, script: str) -> None:
    bench = serve(script)
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        reply = bench.create(tools=[WEATHER], tool_choice=choice)
        (call,) = reply.content
        assert reply.stop_reason == "tool_use" and call.type == "tool_use" and call.name == "weather"
        assert list(call.input) == ["city"] and call.input["city"] in ("Paris", "Rome")
    assert "tool_choice" in bench.refused(tools=[WEATHER], tool_choice={"type": "tool", "name": "nothing"})
    assert "tool_choice" in bench.refused(tool_choice={"type": "any"})


def test_180_no_choice_no_declarations(serve: Any) -> None:
    bench = serve()
    bench.create(tools=[WEATHER], tool_choice={"type": "none"})
    bench.create()
    assert len(bench.prompts) == 1
    bench.create(tools=[WEATHER])
    assert '"The weather of a city."' in bench.prompts[1]


def test_181_one_call_only(serve: Any) -> None:
    bench = serve(PARIS + "\n" + NOW)
    tools = [WEATHER, CLOCK]
    assert len(bench.create(tools=tools).content) == 2
    one = {"type": "auto", "disable_parallel_tool_use": True}
    for reply in (bench.create(tools=tools, tool_choice=one), bench.final(tools=tools, tool_choice=one)):
        assert [block.type for block in reply.content] == ["tool_use"] and reply.stop_reason == "tool_use"


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"content": "sunny"}, "sunny"),
        ({"content": [{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]}, "sunny"),
        ({}, ""),
        ({"content": "no such city", "is_error": True}, "Error: no such city"),
    ],
)
def test_182_results(serve: Any, result: dict[str, Any], shown: str) -> None:
    bench = serve()
    block = {"type": "tool_result", "tool_use_id": "toolu_1"} | result
    bench.create(messages=[*HI, CALLED, {"role": "user", "content": [block]}], tools=[WEATHER])
    assert f"<|im_start|>tool\n{shown}<|im_end|>" in bench.prompts[0]


def test_183_the_input_of_a_call_is_an_object(serve: Any) -> None:
    block = CALLED["content"][0] | {"input": "{}"}
    assert "input" in serve().refused(messages=[*HI, {"role": "assistant", "content": [block]}, *HI])


def test_184_hosted_tools_are_ignored_unless_forced(serve: Any) -> None:
    bench = serve()
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    bench.create(tools=[hosted, WEATHER])
    assert "web_search" not in bench.prompts[0] and "weather" in bench.prompts[0]
    forced = {"type": "tool", "name": "web_search"}
    assert "web_search" in bench.refused(tools=[hosted, WEATHER], tool_choice=forced)


def test_185_images_are_refused_and_addresses_never_fetched(serve: Any) -> None:
    bench = serve()
    assert "image" in bench.refused(messages=[{"role": "user", "content": [PIXEL]}])
    with socket.create_server(("127.0.0.1", 0)) as trap:
        url = f"http://127.0.0.1:{trap.getsockname()[1]}/x.png"
        block = {"type": "image", "source": {"type": "url", "url": url}}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [block]}
        assert "url" in bench.refused(messages=[{"role": "user", "content": [block]}])
        bench.create(messages=[*HI, CALLED, {"role": "user", "content": [result]}])
        assert "[image left out" in bench.prompts[0]
        trap.setblocking(False)
        with pytest.raises(BlockingIOError):
            trap.accept()


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_186_a_schema_is_enforced(serve: Any, field: str) -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "enum": [{"b": 1, "a": True}]}
    form = {"type": "json_schema", "schema": schema}
    bench = serve("Sure, here it is:")
    reply = bench.post(**{field: {"format": form} if field == "output_config" else form}).json()
    assert json.loads(reply["content"][0]["text"]) == {"b": 1, "a": True} and reply["stop_reason"] == "end_turn"


# --- streams ---------------------------------------------------------------------------------------------------------

STREAMS = {
    "text": "Hello",
    "nothing": "",
    "thinking": "<think>\nhm\n</think>\n\nSo.",
    "one tool": PARIS,
    "two tools": PARIS + "\n" + NOW,
    "interleaved": f"First.\n{PARIS}\nThen.\n{NOW}",
}


@pytest.mark.parametrize("name", STREAMS)
def test_187_the_start(serve: Any, name: str) -> None:
    start = serve(STREAMS[name]).frames(tools=[WEATHER, CLOCK])[0]
    assert start["type"] == "message_start"
    message = start["message"]
    assert message["content"] == [] and message["stop_reason"] is None and message["usage"]["input_tokens"] > 0


def test_188_the_prompts_tokens_are_split_not_doubled(serve: Any) -> None:
    bench = serve(fresh=True)
    cold, warm = bench.create().usage, bench.create().usage
    n_prompt = len(FakeTokenizer().encode(bench.prompts[0], special=True))
    assert (cold.input_tokens, cold.cache_read_input_tokens) == (n_prompt, 0)
    assert warm.input_tokens + warm.cache_read_input_tokens == n_prompt and warm.cache_read_input_tokens > 0
    streamed = bench.final().usage
    assert streamed.input_tokens + streamed.cache_read_input_tokens == n_prompt


@pytest.mark.parametrize("name", STREAMS)
def test_189_one_block_after_the_other(serve: Any, name: str) -> None:
    opened, current = 0, None
    for frame in serve(STREAMS[name]).frames(tools=[WEATHER, CLOCK], thinking={"type": "adaptive"}):
        if frame["type"] == "content_block_start":
            assert current is None and frame["index"] == opened
            current, opened = opened, opened + 1
        elif frame["type"] in ("content_block_delta", "content_block_stop"):
            assert frame["index"] == current
            current = None if frame["type"] == "content_block_stop" else current
    assert current is None and opened > 0


def test_190_thinking_ends_with_one_signature(serve: Any) -> None:
    found = serve(STREAMS["thinking"]).frames(thinking={"type": "adaptive"})
    deltas = [
        frame["delta"]["type"] for frame in found if frame["type"] == "content_block_delta" and not frame["index"]
    ]
    assert set(deltas[:-1]) == {"thinking_delta"} and deltas[-1] == "signature_delta"
    assert sum(frame["type"] == "content_block_stop" and not frame["index"] for frame in found) == 1


def test_191_arguments_add_up(serve: Any) -> None:
    joined = {0: "", 1: ""}
    for frame in serve(STREAMS["two tools"]).frames(tools=[WEATHER, CLOCK]):
        if frame["type"] == "content_block_start":
            assert frame["content_block"]["input"] == {}
        elif frame["type"] == "content_block_delta":
            joined[frame["index"]] += frame["delta"]["partial_json"]
    assert json.loads(joined[0]) == {"city": "Paris"} and json.loads(joined[1] or "{}") == {}


def test_191_arguments_come_in_fragments_where_that_is_asked_for(serve: Any) -> None:
    bench = serve(PARIS)
    for eager, n_deltas in ((False, 1), (True, 2)):
        tools = [WEATHER | {"eager_input_streaming": eager}]
        found = bench.frames(tools=tools)
        parts = [frame["delta"]["partial_json"] for frame in found if frame["type"] == "content_block_delta"]
        assert len(parts) >= n_deltas and (eager or len(parts) == 1)
        assert json.loads("".join(parts)) == {"city": "Paris"}
    cut = bench.final(tools=[WEATHER | {"eager_input_streaming": True}], max_tokens=len(PARIS) - 35)
    assert cut.stop_reason == "max_tokens" and [block.type for block in cut.content] == ["tool_use"]


@pytest.mark.parametrize("name", STREAMS)
def test_192_the_end(serve: Any, name: str) -> None:
    bench = serve(STREAMS[name])
    found = bench.frames(tools=[WEATHER, CLOCK])
    assert kinds(found)[-2:] == ["message_delta", "message_stop"] and kinds(found).count("message_delta") == 1
    assert found[-2]["delta"]["stop_reason"] in ("end_turn", "tool_use")
    whole = bench.post(tools=[WEATHER, CLOCK]).json()
    assert found[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_193_every_frame_says_its_type_twice(serve: Any) -> None:
    response = serve(STREAMS["interleaved"]).post(stream=True, tools=[WEATHER, CLOCK])
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = response.text.splitlines()
    assert len(frames(response.text)) == sum(
        line.startswith("event: ") for line in lines
    )  # frames() compares the types
    assert {line.partition(":")[0] for line in lines} == {"event", "data", ""} and "[DONE]" not in response.text


def test_194_pings_come_after_the_start(serve: Any) -> None:
    gate = Gate()
    bench = serve(gate=gate, ping_s=0.01)
    with bench.http.stream("POST", bench.url + "/v1/messages", json=_body({"stream": True})) as response:
        lines = response.iter_lines()
        events = [next(line for line in lines if line.startswith("event: ")) for _ in range(3)]
        gate.open()
        rest = [line for line in lines if line.startswith("event: ")]
    assert events == ["event: message_start", "event: ping", "event: ping"]
    assert rest[-1] == "event: message_stop" and "event: message_start" not in rest


# --- errors ----------------------------------------------------------------------------------------------------------


def test_195_errors_before_the_first_event(serve: Any) -> None:
    bench = serve(api_keys=("secret",))
    with pytest.raises(anthropic.AuthenticationError) as caught:
        bench.create()
    assert caught.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    assert caught.value.request_id == caught.value.body["request_id"]  # type: ignore[index]
    key = {"authorization": "Bearer secret"}
    bad = bench.post(headers=key, stream=True, temperature=3)
    assert bad.status_code == 400 and bad.json()["error"]["type"] == "invalid_request_error"
    missing = bench.http.post(bench.url + "/v1/messages/batches", json={}, headers=key)
    assert missing.status_code == 404 and missing.json()["error"]["type"] == "not_found_error"
    garbage = bench.http.post(bench.url + "/v1/messages", content=b"{", headers=key)
    assert garbage.status_code == 400 and garbage.json()["type"] == "error"


def test_196_errors_in_the_stream(serve: Any) -> None:
    n_steps = 0

    def fail_at_the_third(chunks: Sequence[Chunk]) -> None:
        nonlocal n_steps
        n_steps += 1
        if n_steps == 3:
            raise GenerationError("the third step failed")

    bench = serve(before_step=fail_at_the_third)
    with pytest.raises(anthropic.APIStatusError, match="third step") as caught:
        bench.final()
    assert caught.value.status_code == 200 and caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    n_steps = 0
    found = bench.frames()
    assert kinds(found)[0] == "message_start" and kinds(found)[-1] == "error" and "message_stop" not in kinds(found)
    assert found[-1]["request_id"].startswith("req_")


def test_197_overflow(serve: Any) -> None:
    bench = serve(n_ctx=200)
    n_tokens = bench.client.messages.count_tokens(
        model="m", messages=[{"role": "user", "content": "x" * 300}]
    ).input_tokens
    message = bench.refused(messages=[{"role": "user", "content": "x" * 300}])
    assert message == f"prompt is too long: {n_tokens} tokens > 200 maximum"


@pytest.mark.parametrize("name", STREAMS)
def test_198_no_foreign_keys(serve: Any, name: str) -> None:
    bench = serve(STREAMS[name])
    whole = bench.post(tools=[WEATHER, CLOCK]).json()
    assert set(whole) == {
        "id",
        "type",
        "role",
        "model",
        "content",
        "stop_reason",
        "stop_sequence",
        "stop_details",
        "usage",
    }
    allowed = {"type", "message", "index", "content_block", "delta", "usage"}
    assert all(set(frame) <= allowed for frame in bench.frames(tools=[WEATHER, CLOCK]))


def test_199_replies_without_text(serve: Any) -> None:
    empty = serve("").create()
    assert [block.type for block in empty.content] == ["text"] and empty.content[0].text == ""
    assert [block.type for block in serve(PARIS).create(tools=[WEATHER]).content] == ["tool_use"]


# --- counting and the cache ------------------------------------------------------------------------------------------


def test_200_counts_are_those_of_the_real_call(serve: Any) -> None:
    bench = serve()
    asked: dict[str, Any] = {"model": "m", "messages": HI, "tools": [WEATHER], "system": "Be brief."}
    counted = bench.client.messages.count_tokens(**asked, thinking={"type": "adaptive"}).input_tokens
    usage = bench.create(**asked, thinking={"type": "adaptive"}).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert bench.client.messages.count_tokens(model="m", messages=HI).input_tokens < counted


def test_201_counting_needs_neither_room_nor_a_slot(serve: Any) -> None:
    gate = Gate()
    bench = serve(gate=gate, batch=1, n_ctx=200)
    with bench.http.stream(
        "POST", bench.url + "/v1/messages", json=_body({"stream": True, "sse_ping_interval": 0.01})
    ) as busy:
        next(busy.iter_lines())
        long: Any = [{"role": "user", "content": "x" * 5000}]
        assert bench.client.messages.count_tokens(model="m", messages=long).input_tokens > 5000
        gate.open()


def test_202_what_changes_every_turn_keeps_the_cache(serve: Any) -> None:
    bench = serve(fresh=True)

    def ask(cch: str, marked: int) -> anthropic.types.Usage:
        billing = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={cch};"
        blocks: list[Any] = [{"type": "text", "text": text} for text in (billing, "Be brief.", "Be kind.")]
        blocks[marked]["cache_control"] = {"type": "ephemeral"}
        reply: anthropic.types.Message = bench.create(system=blocks, metadata={"user_id": cch})
        return reply.usage

    first, second = ask("aaaa1", 1), ask("bbbb2", 2)
    assert first.cache_read_input_tokens == 0 and second.cache_read_input_tokens == first.input_tokens - 1


# --- whole clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAMS)
def test_203_the_sdk_accumulates_every_stream(serve: Any, name: str) -> None:
    bench = serve(STREAMS[name])
    fields: dict[str, Any] = {"tools": [WEATHER, CLOCK], "thinking": {"type": "adaptive"}}
    whole, streamed = bench.create(**fields), bench.final(**fields)
    assert [block.type for block in whole.content] == [block.type for block in streamed.content]
    for one, other in zip(whole.content, streamed.content, strict=True):
        assert one.to_dict() | {"id": ""} == other.to_dict() | {"id": ""}
    assert whole.stop_reason == streamed.stop_reason
    assert whole.usage.output_tokens == streamed.usage.output_tokens


def test_204_an_agents_request(serve: Any) -> None:
    bench = serve("<think>\nhm\n</think>\n\n" + PARIS, n_ctx=12000)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "additionalProperties": False}
    tools = [WEATHER] + [
        {"name": f"mcp__server__tool{n}", "description": "d" * 50, "input_schema": WEATHER["input_schema"] | schema}
        for n in range(19)
    ]
    response = bench.post(
        "/v1/messages?beta=true",
        {
            "authorization": "Bearer dummy",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,mid-conversation-system-2026-01-01",
            "x-app": "cli",
            "user-agent": "claude-cli/2.1.332 (external, sdk-cli)",
        },
        max_tokens=32000,
        stream=True,
        system=[
            {
                "type": "text",
                "text": "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=sdk-cli; cch=1f2e3;",
            },
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>"},
                    {"type": "text", "text": "say hi", "cache_control": {"type": "ephemeral"}},
                ],
            },
            {"role": "system", "content": "Be quick."},
        ],
        tools=tools,
        metadata={"user_id": "user_1"},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    )
    found = frames(response.text)
    assert kinds(found)[0] == "message_start" and kinds(found)[-1] == "message_stop"
    starts = [frame["content_block"]["type"] for frame in found if frame["type"] == "content_block_start"]
    assert starts == ["thinking", "tool_use"] and found[-2]["delta"]["stop_reason"] == "tool_use"
    assert "billing" not in bench.prompts[0] and "mcp__server__tool18" in bench.prompts[0]
    assert "say hi\n\n<system-reminder>\nBe quick." in bench.prompts[0]
