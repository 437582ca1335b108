"""The numbered conformance statements that compare dialects: one conversation, told in three languages."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from lmhub.engine.drafts import Speculator
from lmhub.testing.fake import FakeModel, Gate, NoiseModel

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
PARIS = '{"city": "Paris"}'

# Each conversation as the body of Chat Completions, of Responses and of Messages.
CHAT: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": "and now?"},
        ]
    },
    "responses": {
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
        ],
    },
    "messages": {
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "user", "content": "and now?"},
        ],
    },
}
TOOLS: dict[str, dict[str, Any]] = {
    "chat": {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": PARIS}},
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
    },
    "responses": {
        "input": [
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": PARIS},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        ],
        "tools": [{"type": "function", "strict": False, **FUNCTION}],
    },
    "messages": {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}]},
        ],
        "tools": [{"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}],
    },
}
CONVERSATIONS = {"chat": CHAT, "tools": TOOLS}
ORDERS = [("chat", "responses", "messages"), ("messages", "chat", "responses"), ("responses", "messages", "chat")]


def fingerprint(prompt: Sequence[int]) -> bytes:
    """A reply that says what the prompt was."""
    return b"%08x" % zlib.crc32(b"".join(token.to_bytes(2, "big") for token in prompt))


def ask(address: str, dialect: str, body: dict[str, Any]) -> tuple[str, int, int]:
    """The text of the reply, the tokens of the prompt, and how many of them came from the cache."""
    if dialect == "chat":
        answer = httpx.post(f"{address}/v1/chat/completions", json={"temperature": 0, **body}).json()
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], usage["prompt_tokens"], cached
    if dialect == "responses":
        answer = httpx.post(f"{address}/v1/responses", json={"model": "m", "temperature": 0, **body}).json()
        usage = answer["usage"]
        text = "".join(part["text"] for item in answer["output"] for part in item.get("content", ()))
        return text, usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]
    fixed = {"model": "m", "max_tokens": 64, "temperature": 0}
    answer = httpx.post(f"{address}/v1/messages", json={**fixed, **body}).json()
    usage = answer["usage"]
    cached = usage["cache_read_input_tokens"]
    return answer["content"][0]["text"], usage["input_tokens"] + cached, cached


@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_215_one_conversation_has_one_answer(
    rig: Callable[..., Any], serving: Callable[..., Any], conversation: str
) -> None:
    with serving(rig(FakeModel(fingerprint)).hub) as server:
        replies = {ask(server.address, *told)[:2] for told in CONVERSATIONS[conversation].items()}
    ((text, n_prompt),) = replies
    assert len(text) == 8 and n_prompt > 20


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("order", ORDERS)
def test_216_one_dialect_warms_the_next(
    rig: Callable[..., Any], serving: Callable[..., Any], conversation: str, order: tuple[str, ...]
) -> None:
    told = CONVERSATIONS[conversation]
    with serving(rig(FakeModel(fingerprint)).hub) as server:
        _, n_prompt, cold = ask(server.address, order[0], told[order[0]])
        warm = [ask(server.address, dialect, told[dialect])[2] for dialect in order[1:]]
    assert cold == 0 and warm == [n_prompt - 1, n_prompt - 1]


# --- 217: test_fuzz.py -----------------------------------------------------------------------------------------------

KEY = "sk-kept-to-itself"
SECRET = "/srv/models/secret.txt"
POST: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "max_tokens": 60, "messages": [{"role": "user", "content": "hi"}]},
}
WRONG: list[dict[str, Any]] = [
    {"json": []},
    {"content": b"{"},
    {"content": b"{}", "headers": {"authorization": "Bearer " + KEY[:-1]}},
    {"content": b"{}", "headers": {"content-encoding": "br"}},
    {"content": b"{}", "headers": {"content-type": "multipart/form-data"}},
    {"content": b"x" * 9000},
    {"json": {"temperature": "hot"}},
    {"json": {"model": SECRET}},
    {"json": {"regex": "("}},
    {"json": {"json_schema": {"$ref": "file:///etc/passwd"}}},
    {"json": {"lark": "%import /etc/passwd"}},
    {"json": {"previous_response_id": "../../etc/passwd"}},
    {"json": {"messages": [{"role": "user", "content": "x" * 5000}], "input": "x" * 5000, "prompt": "x" * 5000}},
    {"json": {}},  # the model fails
    {"json": {"stream": True}},
]


def breaks_down(chunks: object) -> None:
    """What a model whose file has gone away does."""
    raise FileNotFoundError(2, "No such file or directory", SECRET)


@pytest.mark.parametrize("path", [*POST, "/v1/nowhere", "/v1/models"])
def test_218_errors_tell_neither_keys_nor_paths(
    rig: Callable[..., Any], serving: Callable[..., Any], path: str, caplog: pytest.LogCaptureFixture
) -> None:
    hub = rig(FakeModel(b"x", before_step=breaks_down)).hub
    told = []
    with serving(hub, api_keys=(KEY,), max_body=8000, strict_model=False) as server:
        for wrong in WRONG:
            headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json", **wrong.get("headers", {})}
            body = {"json": {**POST.get(path, {}), **wrong["json"]}} if isinstance(wrong.get("json"), dict) else wrong
            answer = httpx.post(server.address + path, **{**body, "headers": headers})
            assert answer.status_code >= 400 or "json" in body, answer.text
            told += [answer.text] if answer.status_code >= 400 else []
    assert len(told) > 10
    for text in told:
        assert KEY[:-1] not in text and SECRET not in text and __file__.rpartition("/")[0] not in text
        assert "site-packages" not in text and ".py" not in text and "Traceback" not in text
    assert KEY not in caplog.text


ODD = (
    'data: [DONE]\n\ndata: {"error": 1}\r\n\r\nevent: x\n\n\u2028\u2029\u0085\0"\'\\"\\u0000\t\x1b[0m\ufeff'
    "\U0001f600 é\n\n: ping\n\n"
)


def spoken(path: str, stream: str) -> str:
    """The text of a streamed reply, its frames cut as the simplest of clients cuts them."""
    text = ""
    for frame in stream.split("\n\n")[:-1]:
        data = frame.rpartition("\n")[2].removeprefix("data: ")
        assert frame.endswith(data) and "\r" not in frame
        chunk = {} if data == "[DONE]" else json.loads(data)
        if path == "/v1/messages":
            text += chunk.get("delta", {}).get("text", "")
        elif path == "/v1/responses":
            text += chunk["delta"] if chunk["type"] == "response.output_text.delta" else ""
        elif chunk.get("choices"):
            text += chunk["choices"][0].get("text") or chunk["choices"][0].get("delta", {}).get("content") or ""
    return text


def whole(path: str, answer: dict[str, Any]) -> str:
    """The text of a reply in one piece."""
    if path == "/v1/messages":
        return str(answer["content"][0]["text"])
    if path == "/v1/responses":
        return str(answer["output"][0]["content"][0]["text"])
    choice = answer["choices"][0]
    return str(choice["text"] if path == "/v1/completions" else choice["message"]["content"])


@pytest.mark.parametrize("path", POST)
def test_219_any_text_survives(rig: Callable[..., Any], serving: Callable[..., Any], path: str) -> None:
    body = {**POST[path], "max_tokens": 300}
    with serving(rig(FakeModel(ODD.encode())).hub) as server:
        streamed = httpx.post(server.address + path, json={**body, "stream": True}).content.decode()
        said = whole(path, httpx.post(server.address + path, json=body).json())
    assert spoken(path, streamed) == said == ODD


LONG = "x" * 5000


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        ("/v1/chat/completions", {"tools": [{"type": LONG}]}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {"name": LONG + " "}}],
                                  "tool_choice": "required"}),
        ("/v1/chat/completions", {"json_schema": {"$ref": "#/$defs/" + LONG}}),
        ("/v1/chat/completions", {"json_schema": {"type": LONG}}),
        ("/v1/chat/completions", {"messages": [{"role": LONG, "content": "hi"}]}),
        ("/v1/completions", {"regex": "(" + LONG}),
        ("/v1/responses", {"tools": [{"type": "function", "name": "f", "parameters": {}}],
                           "tool_choice": {"type": "function", "name": LONG}}),
        ("/v1/responses", {"previous_response_id": LONG}),
        ("/v1/messages", {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": LONG}}),
        ("/v1/messages", {"output_config": {"format": {"type": LONG}}}),
    ],
)  # fmt: skip
def test_220_long_errors_have_valid_envelopes(
    rig: Callable[..., Any], serving: Callable[..., Any], path: str, wrong: dict[str, Any], stream: bool
) -> None:
    with serving(rig(FakeModel(b"Hello")).hub) as server:
        answer = httpx.post(server.address + path, json={**POST[path], **wrong, "stream": stream})
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and 10 < len(error["message"]) < len(LONG) + 500


def repeating(prompt: Sequence[int]) -> bytes:
    """A reply that says over and over what the prompt was, so that the rest of it is easily guessed."""
    return b"%b, again: " % fingerprint(prompt) * 15


@pytest.mark.parametrize("path", POST)
def test_221_guessing_ahead_changes_neither_text_nor_usage(
    rig: Callable[..., Any], serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(Speculator, "stepped", lambda *_: None)  # what guesses cost here and now must not decide
    body = {**POST[path], "temperature": 0}
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    stop = "stop_sequences" if path == "/v1/messages" else "stop"
    asked = [{most: 40}, {most: 300}, {most: 200, stop: ["n: "]}]
    told = []
    for spec in (False, True):
        with serving((made := rig(FakeModel(repeating), spec=spec, n_ctx=1024)).hub) as server:
            answers = [httpx.post(server.address + path, json={**body, **fields}).json() for fields in asked]
            stats = made.engine.stats()
        told.append([(whole(path, answer), *outcome(path, answer)) for answer in answers])
        assert (stats.accepted > 20) == spec
        assert [len(text) for text, *_ in told[0]][:2] == [40, 15 * len("01234567, again: ")]
    assert without_ids(told[1]) == without_ids(told[0])


CROWD: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"temperature": 0, "max_tokens": 30}),
    ("/v1/chat/completions", {"temperature": 2, "seed": 5, "max_tokens": 25, "logprobs": True, "top_logprobs": 3}),
    ("/v1/chat/completions", {"temperature": 0.7, "seed": 1, "n": 2, "max_tokens": 20, "repeat_penalty": 1.3}),
    ("/v1/chat/completions", {"regex": "[a-e]{5}", "seed": 4, "max_tokens": 20}),
    ("/v1/completions", {"temperature": 1, "seed": 9, "max_tokens": 40, "stop": ["e", "a"], "logprobs": 1}),
    ("/v1/completions", {"temperature": 0, "max_tokens": 7, "logit_bias": {"65": 100}}),
    ("/v1/responses", {"temperature": 1, "seed": 2, "max_output_tokens": 15, "store": False}),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "r", "schema": SCHEMA}}, "seed": 7}),
    ("/v1/messages", {"temperature": 1, "seed": 3, "max_tokens": 11, "stop_sequences": ["t"]}),
]


def outcome(path: str, answer: dict[str, Any]) -> list[Any]:
    """What a reply says and costs, without what differs every time."""
    usage = answer["usage"]
    costs = [usage.get("completion_tokens", usage.get("output_tokens"))]
    costs.append(usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0))
    return [*costs, answer.get("choices") or answer.get("content") or [item["content"] for item in answer["output"]]]


def test_222_neighbours_do_not_mix(rig: Callable[..., Any], serving: Callable[..., Any]) -> None:
    def asked(address: str, number: int) -> dict[str, Any]:
        path, fields = CROWD[number]
        response = httpx.post(address + path, json={**POST[path], **fields}, timeout=60)
        answer: dict[str, Any] = response.json()
        assert response.status_code == 200, answer
        return answer

    everybody = range(len(CROWD))
    with serving(rig(NoiseModel(), batch=1).hub) as server:
        alone = [outcome(CROWD[number][0], asked(server.address, number)) for number in everybody]
    gate = Gate()
    model = NoiseModel(gate=gate)
    with serving(rig(model, batch=4).hub) as server, ThreadPoolExecutor(len(CROWD)) as pool:
        replies = [pool.submit(asked, server.address, number) for number in everybody]
        waiting = 0
        # The second choice of one of them begins when the first has read the prompt. A refusal is told below.
        while waiting < len(CROWD) and not any(reply.done() for reply in replies):
            health = httpx.get(server.address + "/health").json()
            waiting = health["queue_depth"] + health["busy"]
        gate.open()
        together = [outcome(CROWD[number][0], reply.result()) for number, reply in enumerate(replies)]
    assert max(len(step) for step in model.steps) == 4
    assert without_ids(together) == without_ids(alone)


def without_ids(value: Any) -> Any:
    """`value` without the ids of its items."""
    if isinstance(value, dict):
        return {key: without_ids(inner) for key, inner in value.items() if key != "id"}
    return [without_ids(inner) for inner in value] if isinstance(value, list | tuple) else value
