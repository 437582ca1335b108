"""What a Responses server must do, statement by statement, over a real socket: a scripted model behind the real engine,
asked by hand and through the official SDK. The numbers are those of the protocol's conformance checklist (116-154).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from lmhub.engine import Engine
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.fake import FakeModel, FakeTokenizer, Tokens
from lmhub.testing.serving import fake_loaded, running

N_CTX = 16384
TEMPLATE = (
    "{%- for t in tools or [] %}<tool>{{ t.function.name }}</tool>\n{% endfor -%}"
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor -%}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edit files."}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
PATCHED = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** a\\n+\\"b\\""}}\n</tool_call>'
REPLIES = {  # what the model says when its prompt ends with this
    "hi": "Hello",
    "say nothing": "",
    "count": "one two three four five",
    "think": "<think>\nhm\n</think>\n\n42",
    "call": CALL,
    "call twice": CALL + "\n" + CALL,
    "talk and call": "Checking." + CALL + "Done.",
    "patch": PATCHED,
    "json": '{"a": 1, "b": "x"}',
    "prose": "It is yes, I think.",
    "think and call": "<think>\nhm\n</think>\n\n" + CALL,
    "think and call mcp": "<think>\nhm\n</think>\n\n" + CALL.replace("weather", "mcp__x__weather"),
}


class Site:
    """A running server, the prompts that its model was given, and clients."""

    def __init__(self, url: str, engine: Engine, prompts: list[str]):
        self.url, self.engine, self.prompts = url, engine, prompts
        self.http = httpx.Client(base_url=url, timeout=30)
        self.sdk = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0, timeout=30)

    def post(self, path: str = "/v1/responses", **body: Any) -> httpx.Response:
        """The answer to a request."""
        return self.http.post(path, json=body)

    def ask(self, input: Any = "hi", **body: Any) -> Any:
        """The response object that a request leads to."""
        answer = self.post(input=input, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, input: Any = "hi", **body: Any) -> list[Any]:
        """The events of a stream, after checking their frames."""
        answer = self.post(**{"input": input, **body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = []
        for block in answer.text.removesuffix("\n\n").split("\n\n"):
            event, data = block.split("\n")
            value = json.loads(data.removeprefix("data: "))
            assert event == f"event: {value['type']}"
            told.append(value)
        return told

    def refused(self, **body: Any) -> Any:
        """The error object of a request that is a 400."""
        answer = self.post(**body)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        return error


def answer_of(script: Callable[[str], str], prompts: list[str]) -> Callable[[Tokens], Sequence[int]]:
    """A FakeModel's reply function over texts; keeps every prompt."""
    tokenizer = FakeTokenizer()

    def reply(prompt: Tokens) -> Sequence[int]:
        text = b"".join(
            bytes((token,)) if token < 256 else tokenizer.token_text(token).encode() for token in prompt
        ).decode()
        prompts.append(text)
        return tokenizer.encode(script(text), special=True)

    return reply


def scripted(prompt: str) -> str:
    """The reply that REPLIES has for the last turn's text, else that text, after how many turns there were."""
    *_, last, _ = prompt.split("<|im_start|>")
    asked = last.partition("\n")[2].removesuffix("<|im_end|>\n")
    return REPLIES.get(asked, f"{prompt.count('<|im_start|>')}: {asked}")


@contextmanager
def site(**settings: Any) -> Iterator[Site]:
    """A site with these settings."""
    hub = Hub(entry_points=False)
    prompts: list[str] = []
    model = FakeModel(answer_of(scripted, prompts), n_ctx_train=N_CTX)
    metadata = {"general.name": "A scripted model", "tokenizer.chat_template": TEMPLATE}
    served = hub.serve(fake_loaded(model, n_ctx=N_CTX, metadata=metadata), EngineSettings(ctx=N_CTX))
    with running(hub, **settings) as url:
        one = Site(url, served.engine, prompts)
        try:
            yield one
        finally:
            one.http.close()
            one.sdk.close()


@pytest.fixture(scope="module")
def on() -> Iterator[Site]:
    """A site that keeps responses."""
    with site() as one:
        yield one


@pytest.fixture(scope="module")
def off() -> Iterator[Site]:
    """A site that keeps none."""
    with site(responses_store=0) as one:
        yield one


def user(text: str) -> dict[str, Any]:
    """A message item of the user's."""
    return {"role": "user", "content": text}


def kinds(output: Sequence[Any]) -> list[str]:
    """The types of items."""
    return [item["type"] for item in output]


def names(told: Sequence[Any]) -> list[str]:
    """The types of events without their prefix, runs of one as one."""
    short = [value["type"].removeprefix("response.") for value in told]
    return [name for place, name in enumerate(short) if place == 0 or name != short[place - 1]]


# --- requests ---


def test_116_a_string_leads_to_one_message(on: Site) -> None:
    response = on.ask("hi")
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "fake")
    (item,) = response["output"]
    assert (item["type"], item["role"], [part["type"] for part in item["content"]]) == (
        "message",
        "assistant",
        ["output_text"],
    )
    assert item["content"][0]["text"] == "Hello"
    assert on.sdk.responses.create(model="fake", input="hi").output_text == "Hello"


def test_117_instructions_are_system_text(on: Site) -> None:
    on.ask("hi", instructions="Be brief.")
    assert on.prompts[-1].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>")


def test_118_items_without_a_type(on: Site) -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}]
    on.ask([user("x"), {"role": "assistant", "content": parts}, {"role": "user", "content": parts}])
    assert "assistant\nab<|im_end|>" in on.prompts[-1] and "user\nab<|im_end|>" in on.prompts[-1]


def test_119_replayed_reasoning(on: Site) -> None:
    for more in ({}, {"content": None}, {"content": []}, {"summary": None}, {"encrypted_content": "gAAAA"}):
        item = {"type": "reasoning", "id": "rs_1", "summary": [], **more}
        assert on.ask([user("x"), item, {"role": "assistant", "content": "y"}, user("hi")])["status"] == "completed"
        assert "<think>" not in on.prompts[-1]


def test_120_calls_and_outputs_render(on: Site) -> None:
    for output in ("sunny", [{"type": "input_text", "text": "sun"}, {"type": "input_text", "text": "ny"}]):
        call = {"type": "function_call", "call_id": "c", "name": "weather", "arguments": '{"city":"Paris"}'}
        on.ask([user("x"), call, {"type": "function_call_output", "call_id": "c", "output": output}], tools=[WEATHER])
        assert "<tool_call>weather " in on.prompts[-1] and "Paris" in on.prompts[-1]
        assert "<|im_start|>tool\nsunny<|im_end|>" in on.prompts[-1]


def test_121_missing_and_unknown_input(on: Site) -> None:
    assert on.refused(model="fake")["param"] == "input"
    error = on.refused(input=[user("x"), {"type": "teleport"}])
    assert error["param"] == "input" and "unsupported item type" in error["message"]


def test_122_what_is_refused_by_name(on: Site) -> None:
    for given in ({"conversation": "c"}, {"prompt": {"id": "p"}}, {"background": True}):
        error = on.refused(input="hi", **given)
        assert [error["param"]] == list(given) and error["code"] == "unsupported_parameter"
    assert on.ask("hi", background=False)["background"] is False


def test_123_truncation(on: Site) -> None:
    assert on.ask("hi", truncation="disabled")["truncation"] == "disabled"
    assert on.refused(input="hi", truncation="auto")["param"] == "truncation"


# --- the store ---


def test_124_previous_response_id(on: Site, off: Site) -> None:
    error = off.refused(input="hi", previous_response_id="resp_x")
    assert (error["param"], error["code"]) == ("previous_response_id", "unsupported_parameter")
    error = on.refused(input="hi", previous_response_id="resp_x")
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")


def test_125_item_reference(on: Site, off: Site) -> None:
    reference = [user("hi"), {"type": "item_reference", "id": "msg_x"}]
    assert off.refused(input=reference)["param"] == "input"
    error = on.refused(input=reference)
    assert (error["param"], error["code"]) == ("input", "item_not_found") and "msg_x" in error["message"]


def test_126_chains_and_forks(on: Site) -> None:
    first = on.sdk.responses.create(model="fake", input="A", instructions="Be brief.")
    left = on.sdk.responses.create(model="fake", input="B", previous_response_id=first.id)
    assert left.previous_response_id == first.id
    third = "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n3: A<|im_end|>\n<|im_start|>user\nB<|im_end|>"
    assert on.prompts[-1].startswith(third), "instructions are not inherited"
    on.sdk.responses.create(model="fake", input="C", previous_response_id=first.id)
    assert on.prompts[-1].startswith(third.replace("B", "C"))
    on.sdk.responses.create(model="fake", input="D", previous_response_id=left.id)
    assert on.prompts[-1].startswith(third) and "D" in on.prompts[-1] and "C" not in on.prompts[-1]


def test_127_store_false_cannot_be_referenced(on: Site) -> None:
    response = on.ask("hi", store=False)
    assert response["store"] is False
    error = on.refused(input="hi", previous_response_id=response["id"])
    assert error["code"] == "previous_response_not_found"
    assert on.refused(input=[{"id": response["output"][0]["id"]}])["code"] == "item_not_found"


def test_128_stored_responses_are_resources(on: Site, off: Site) -> None:
    response = on.sdk.responses.create(model="fake", input="hi")
    assert on.sdk.responses.retrieve(response.id).output_text == "Hello"
    (item,) = on.sdk.responses.input_items.list(response.id).data
    assert item.type == "message" and item.content[0].text == "hi"
    on.sdk.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        on.sdk.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        on.sdk.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError):
        off.sdk.responses.retrieve(response.id)


def test_129_a_two_step_loop_that_refers_to_items(on: Site) -> None:
    first = on.ask([user("think and call")], tools=[WEATHER], include=["reasoning.encrypted_content"])
    reasoning, call = first["output"]
    call = {name: call[name] for name in ("type", "call_id", "name", "arguments")}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hi"}
    references = [{"type": "item_reference", "id": reasoning["id"]}]
    response = on.ask([user("think and call"), *references, call, output], tools=[WEATHER])
    assert response["output"][0]["content"][0]["text"] == "Hello"
    assert "<think>hm</think><tool_call>weather" in on.prompts[-1]
    text = on.ask("hi")["output"][0]
    assert on.ask([user("hi"), {"type": "item_reference", "id": text["id"]}, user("hi")])["status"] == "completed"
    assert "<|im_start|>assistant\nHello<|im_end|>" in on.prompts[-1]


# --- streams ---


def test_130_the_budget(on: Site) -> None:
    told = on.stream("count", max_output_tokens=5)
    response = told[-1]["response"]
    assert told[-1]["type"] == "response.incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["usage"]["output_tokens"] == 5
    assert response["output"][0]["status"] == "incomplete"
    assert on.ask("count", max_output_tokens=5)["status"] == "incomplete"


def test_131_the_order_of_events(on: Site) -> None:
    assert names(on.stream("count")) == [
        *("created", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]


def test_132_sequence_numbers_and_places(on: Site) -> None:
    told = on.stream("count")
    assert [value["sequence_number"] for value in told] == list(range(len(told)))
    for value in told:
        if value["type"].endswith(".delta"):
            assert value["item_id"] and value["output_index"] == 0 and value["content_index"] == 0
    assert len({value["response"]["id"] for value in told if "response" in value}) == 1


def test_133_created_is_empty(on: Site) -> None:
    response = on.stream("hi")[0]["response"]
    assert (response["output"], response["usage"], response["status"]) == ([], None, "in_progress")


def test_134_deltas_add_up(on: Site) -> None:
    told = on.stream("count")
    text = "".join(value["delta"] for value in told if value["type"] == "response.output_text.delta")
    (done,) = [value for value in told if value["type"] == "response.output_text.done"]
    assert text == done["text"] == told[-1]["response"]["output"][0]["content"][0]["text"] == REPLIES["count"]


def test_135_no_done_marker(on: Site) -> None:
    answer = on.post(input="hi", stream=True)
    assert "[DONE]" not in answer.text
    on.stream("hi")  # compares the names of the frames with their data


def test_136_a_reply_of_calls_only(on: Site) -> None:
    assert kinds(on.ask("call", tools=[WEATHER])["output"]) == ["function_call"]
    assert kinds(on.ask("call twice", tools=[WEATHER])["output"]) == ["function_call"] * 2


def test_137_an_empty_reply(on: Site) -> None:
    (item,) = on.ask("say nothing")["output"]
    assert [part["text"] for part in item["content"]] == [""]
    with on.sdk.responses.stream(model="fake", input="say nothing") as stream:
        assert stream.get_final_response().output_text == ""


def test_138_text_call_text(on: Site) -> None:
    told = on.stream("talk and call", tools=[WEATHER])
    added = [value for value in told if value["type"] == "response.output_item.added"]
    assert [value["output_index"] for value in added] == [0, 1, 2]
    output = told[-1]["response"]["output"]
    assert kinds(output) == ["message", "function_call", "message"]
    assert [output[place]["content"][0]["text"] for place in (0, 2)] == ["Checking.", "Done."]


def test_139_function_calls(on: Site) -> None:
    told = on.stream("call", tools=[WEATHER])
    item = told[-1]["response"]["output"][0]
    assert item["id"].startswith("fc_") and item["call_id"].startswith("call_")
    (done,) = [value for value in told if value["type"] == "response.function_call_arguments.done"]
    deltas = [value["delta"] for value in told if value["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == done["arguments"] == item["arguments"]
    assert (json.loads(item["arguments"]), item["name"]) == ({"city": "Paris"}, "weather")
    (closed,) = [value for value in told if value["type"] == "response.output_item.done"]
    assert closed["item"] == item and item["status"] == "completed"


def test_140_reasoning_comes_first(on: Site) -> None:
    told = on.stream("think", reasoning={"effort": "high"})
    assert kinds(told[-1]["response"]["output"]) == ["reasoning", "message"]
    raw = [value for value in told if value["type"].startswith("response.reasoning_text.")]
    assert raw and all(value["content_index"] == 0 for value in raw)
    item, message = told[-1]["response"]["output"]
    assert item["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "42"


def test_141_summaries(on: Site) -> None:
    told = on.stream("think", reasoning={"effort": "high", "summary": "auto"})
    assert names(told)[2:8] == [
        *("output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta"),
        *("reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done"),
    ]
    assert told[-1]["response"]["output"][0]["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert told[-1]["response"]["reasoning"] == {"effort": "high", "summary": "auto"}


def test_142_encrypted_reasoning(off: Site) -> None:
    asked = {"tools": [WEATHER], "include": ["reasoning.encrypted_content"], "store": False}
    reasoning, call = off.ask("think and call", **asked)["output"]
    assert isinstance(reasoning["encrypted_content"], str) and reasoning["encrypted_content"]
    opaque = {**reasoning, "content": None}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hi"}
    off.ask([user("think and call"), opaque, call, output], **asked)
    assert "<think>hm</think><tool_call>" in off.prompts[-1]
    corrupt = {**opaque, "encrypted_content": reasoning["encrypted_content"][:-8] + "AAAAAAAA"}
    assert off.ask([user("think and call"), corrupt, call, output], **asked)["status"] == "completed"
    assert "<think>" not in off.prompts[-1]


# --- contents ---


def test_143_schemas_are_enforced(on: Site) -> None:
    schema = {
        "type": "object",
        "properties": {"v": {"enum": ["yes"]}},
        "required": ["v"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    text = on.ask("prose", text=form, max_output_tokens=400)["output"][0]["content"][0]["text"]
    assert json.loads(text) == {"v": "yes"}
    broken = {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object", "properties": 5}}}
    assert on.refused(input="prose", text=broken)["param"] == "text.format"


def test_144_the_request_is_repeated(on: Site) -> None:
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": False}
    given = {"tools": [WEATHER, PATCH], "tool_choice": "auto", "instructions": "Be brief."}
    response = on.ask("json", text={"format": form}, metadata={"k": "v"}, **given)
    assert {name: response[name] for name in given} == given
    assert response["text"]["format"] == form and response["metadata"] == {"k": "v"}


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "image_generation"},
        {"type": "mcp", "server_label": "s", "server_url": "http://x"},
        {"type": "namespace", "name": "mcp__s", "tools": [{**WEATHER, "name": "here"}]},
        {"type": "tool_of_the_future"},
    ],
)
def test_145_hosted_tools_do_not_fail_a_request(on: Site, tool: dict[str, Any]) -> None:
    response = on.ask("call", tools=[tool, WEATHER], tool_choice="auto")
    assert kinds(response["output"]) == ["function_call"]
    assert response["tools"] == [tool, WEATHER]


def test_146_hosted_tools_cannot_be_forced(on: Site) -> None:
    for tools in ([{"type": "web_search"}], [{"type": "web_search"}, WEATHER]):
        error = on.refused(input="hi", tools=tools, tool_choice={"type": "web_search"})
        assert error["param"] == "tool_choice"
    assert on.refused(input="hi", tools=[{"type": "mcp"}], tool_choice="required")["param"] == "tool_choice"


def test_147_custom_tools(on: Site) -> None:
    told = on.stream("patch", tools=[PATCH])
    (item,) = told[-1]["response"]["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", '*** a\n+"b"')
    (done,) = [value for value in told if value["type"] == "response.custom_tool_call_input.done"]
    deltas = [value["delta"] for value in told if value["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == done["input"] == item["input"]
    output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "ok"}
    on.ask([user("patch"), item, output], tools=[PATCH])
    assert "<tool_call>apply_patch " in on.prompts[-1] and "<|im_start|>tool\nok<|im_end|>" in on.prompts[-1]


def test_148_a_forced_call_wins_over_a_format(on: Site) -> None:
    form = {"format": {"type": "json_schema", "name": "n", "schema": WEATHER["parameters"], "strict": True}}
    choice = {"type": "function", "name": "weather"}
    response = on.ask("call", tools=[WEATHER], tool_choice=choice, text=form, max_output_tokens=400)
    (item,) = response["output"]
    assert (item["type"], item["name"]) == ("function_call", "weather")
    assert "city" in json.loads(item["arguments"])


def test_149_usage(on: Site) -> None:
    usage = on.ask("think", reasoning={"effort": "low"})["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] >= 0
    assert usage["output_tokens_details"]["reasoning_tokens"] > 0
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]


def test_150_null_is_absence(on: Site) -> None:
    assert on.ask("hi", reasoning=None, text=None, include=[], metadata=None, tools=None)["status"] == "completed"


def codex_body(input: Sequence[Any]) -> dict[str, Any]:
    """What Codex sends, abbreviated."""
    return {
        "model": "fake",
        "instructions": "You are a coding agent.",
        "input": input,
        "tools": [
            {**WEATHER, "name": "shell_command", "strict": False},
            {
                "type": "custom",
                "name": "apply_patch",
                "description": "Edit files.",
                "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
            },
            {"type": "web_search"},
            {"type": "namespace", "name": "mcp__x", "tools": [{**WEATHER, "strict": False}]},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"x": "y"},
        "text": {"verbosity": "medium"},
    }


def test_151_codex(on: Site) -> None:
    history = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Skills."}]},
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "Place."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "think and call mcp"}]},
    ]
    told = on.stream(**codex_body(history))
    assert told[-1]["type"] == "response.completed"
    reasoning, call = told[-1]["response"]["output"]
    assert (call["name"], call["namespace"]) == ("weather", "mcp__x")
    assert reasoning["summary"] and reasoning["encrypted_content"]
    for value in told:
        if value["type"] == "response.reasoning_summary_text.delta":
            assert value["summary_index"] == 0
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "hi"}
    told = on.stream(**codex_body([*history, reasoning, call, output]))
    assert told[-1]["type"] == "response.completed"
    assert "<think>hm</think><tool_call>mcp__x__weather" in on.prompts[-1]
    usage = told[-1]["response"]["usage"]
    assert all(isinstance(usage[name], int) for name in ("input_tokens", "output_tokens", "total_tokens"))


def test_152_a_failure_in_the_stream() -> None:
    hub = Hub(entry_points=False)

    def fail_late(chunks: Sequence[Any]) -> None:
        if any(chunk.state.n_tokens > len(b"x") + 60 for chunk in chunks):
            raise RuntimeError("a kernel failed")

    hub.serve(fake_loaded(FakeModel(b"x" * 200, before_step=fail_late)), EngineSettings())
    with running(hub) as url:
        text = httpx.post(f"{url}/v1/responses", json={"input": "hi", "stream": True}, timeout=30).text
        told = [json.loads(block.partition("\ndata: ")[2]) for block in text.removesuffix("\n\n").split("\n\n")]
        error, failed = told[-2:]
        assert error["type"] == "error" and error["error"]["message"] == error["message"]
        assert error["error"]["code"] == error["code"] == "server_error"
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"]["code"] == "server_error"
        assert failed["response"]["output"][0]["content"][0]["text"].startswith("x")
        with (
            openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as sdk,
            pytest.raises(openai.APIError),
            sdk.responses.stream(model="fake", input="hi") as stream,
        ):
            stream.until_done()


class Answer(BaseModel):
    """What the scripted reply to "json" holds."""

    a: int
    b: str


class weather(BaseModel):  # the SDK names the tool after the class
    """The weather in a city."""

    city: str


def test_153_the_helpers_of_the_sdk(on: Site) -> None:
    with on.sdk.responses.stream(model="fake", input="count") as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == text == REPLIES["count"]
    with on.sdk.responses.stream(model="fake", input="think", reasoning={"effort": "low"}) as stream:
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message"]
    tool = openai.pydantic_function_tool(weather)
    flat = {"type": "function", **tool["function"]}
    with on.sdk.responses.stream(model="fake", input="talk and call", tools=[flat]) as stream:  # type: ignore[list-item]
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["message", "function_call", "message"]
    parsed = on.sdk.responses.parse(model="fake", input="json", text_format=Answer)
    assert parsed.output_parsed == Answer(a=1, b="x")
    with on.sdk.responses.stream(model="fake", input="json", text_format=Answer) as stream:
        assert stream.get_final_response().output_parsed == Answer(a=1, b="x")
    with on.sdk.responses.stream(model="fake", input="patch", tools=[PATCH]) as stream:  # type: ignore[list-item]
        assert stream.get_final_response().output[0].type == "custom_tool_call"


def test_154_input_tokens(on: Site) -> None:
    body = {"input": [user("hi")], "instructions": "Be brief.", "tools": [WEATHER]}
    counted = on.post("/v1/responses/input_tokens", **body).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": on.ask(**body)["usage"]["input_tokens"]}


# --- beyond the checklist ---


def test_clients_with_different_keys_do_not_see_each_other() -> None:
    with site(api_keys=("a", "b")) as one:
        mine = openai.OpenAI(base_url=f"{one.url}/v1", api_key="a", max_retries=0)
        other = openai.OpenAI(base_url=f"{one.url}/v1", api_key="b", max_retries=0)
        with mine, other:
            for stream in (False, True):
                if stream:
                    with mine.responses.stream(model="fake", input="hi") as told:
                        response: Any = told.get_final_response()
                else:
                    response = mine.responses.create(model="fake", input="hi")
                assert mine.responses.retrieve(response.id).id == response.id
                with pytest.raises(openai.NotFoundError):
                    other.responses.retrieve(response.id)
                with pytest.raises(openai.BadRequestError, match="not found"):
                    other.responses.create(model="fake", input="x", previous_response_id=response.id)


def test_a_prompt_that_does_not_fit_names_the_input(on: Site) -> None:
    error = on.refused(input="x" * (N_CTX + 1))
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")
    assert f"maximum context length is {N_CTX} tokens" in error["message"]


def test_the_turn_of_the_assistant_can_be_continued(on: Site) -> None:
    history = [user("hi"), {"role": "assistant", "content": "Well"}]
    on.ask(history, continue_final_message=True)
    assert on.prompts[-1].endswith("<|im_start|>assistant\nWell")
    on.ask(history)
    assert on.prompts[-1].endswith("<|im_start|>assistant\nWell<|im_end|>\n<|im_start|>assistant\n")


def test_a_namespaced_tool_keeps_its_namespace(on: Site) -> None:
    tools = [{"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]}]
    item = {"type": "function_call", "call_id": "c", "name": "b", "namespace": "a", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "ok"}
    assert on.ask([user("x"), item, output, user("hi")], tools=tools)["status"] == "completed"
    assert "<tool>a__b</tool>" in on.prompts[-1] and "<tool_call>a__b " in on.prompts[-1]


def test_a_forced_custom_tool_follows_its_grammar(on: Site) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "go (left|left)"}
    choice = {"type": "custom", "name": "apply_patch"}
    response = on.ask("prose", tools=[{**PATCH, "format": form}, WEATHER], tool_choice=choice, max_output_tokens=200)
    (item,) = response["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", "go left")


def test_one_call_at_most(on: Site) -> None:
    response = on.ask("call twice", tools=[WEATHER], parallel_tool_calls=False)
    assert kinds(response["output"]) == ["function_call"] and response["status"] == "completed"


def test_log_probabilities_add_up_to_the_text(on: Site) -> None:
    told = on.stream("count", include=["message.output_text.logprobs"], top_logprobs=2)
    part = told[-1]["response"]["output"][0]["content"][0]
    assert bytes(byte for one in part["logprobs"] for byte in one["bytes"]).decode() == part["text"]
    assert all(len(one["top_logprobs"]) == 2 and one["logprob"] <= 0 for one in part["logprobs"])
    deltas = [value["logprobs"] for value in told if value["type"] == "response.output_text.delta"]
    assert [one for delta in deltas for one in delta] == part["logprobs"]


def test_token_ids(on: Site) -> None:
    response = on.ask("hi", return_token_ids=True)
    assert bytes(response["token_ids"][:5]) == b"Hello"
    assert len(response["prompt_token_ids"]) == response["usage"]["input_tokens"]


def test_the_budget_of_reasoning(on: Site) -> None:
    reasoning, message = on.ask("think", reasoning={"effort": "low"}, thinking_budget_tokens=3)["output"]
    assert (reasoning["type"], message["type"]) == ("reasoning", "message")
    assert reasoning["content"][0]["text"] == "h"
