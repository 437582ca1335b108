"""A real server on a real port, asked by the official SDK and by hand."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import httpx
import openai
import pytest

from lmhub.errors import LmhubError
from lmhub.hookspecs import hookimpl
from lmhub.server.listen import bind
from lmhub.server.run import serve
from lmhub.settings import ServerSettings
from lmhub.testing.fake import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL, FakeModel, Gate

PATIENCE_S = 30.0  # a test that waits longer than this hangs, and fails
HI: Any = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = (TOOL_CALL, *b'\n{"name": "weather", "arguments": {"city": "Paris"}}\n', END_TOOL_CALL)


def sdk(address: str, **options: Any) -> openai.OpenAI:
    """The official client."""
    return openai.OpenAI(base_url=address + "/v1", api_key="dummy", max_retries=0, **options)


def test_the_sdk_gets_a_whole_reply(rig: Any, serving: Any) -> None:
    with serving(rig(FakeModel("Grüße 👋".encode())).hub) as running, sdk(running.address) as client:
        reply = client.chat.completions.create(model="anything", messages=HI, temperature=0)
        assert reply.choices[0].message.content == "Grüße 👋"
        assert reply.choices[0].finish_reason == "stop"
        assert reply.model == "fake" == client.models.list().data[0].id == client.models.retrieve("fake").id
        assert reply.usage and reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
        short = client.chat.completions.create(model="m", messages=HI, max_tokens=3)
        assert (short.choices[0].message.content, short.choices[0].finish_reason) == ("Gr\ufffd", "length")
        stopped = client.chat.completions.create(model="m", messages=HI, stop=" ")
        assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("Grüße", "stop")


def test_the_sdk_gets_a_stream(rig: Any, serving: Any) -> None:
    with serving(rig(FakeModel("Grüße 👋".encode())).hub) as running, sdk(running.address) as client:
        options: Any = {"include_usage": True}
        chunks = list(client.chat.completions.create(model="m", messages=HI, stream=True, stream_options=options))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == "Grüße 👋"
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage and not chunks[-1].choices
        with client.chat.completions.stream(model="m", messages=HI) as stream:
            kinds = [event.type for event in stream]
            final = stream.get_final_completion()
        assert "content.done" in kinds
        assert final.choices[0].message.content == "Grüße 👋" and final.choices[0].message.role == "assistant"


def test_the_sdk_gets_reasoning_and_a_call(rig: Any, serving: Any) -> None:
    model = FakeModel((THINK, *b"hm", END_THINK, *CALL))
    with serving(rig(model).hub) as running, sdk(running.address) as client:
        whole = client.chat.completions.create(model="m", messages=HI, tools=TOOLS)
        with client.chat.completions.stream(model="m", messages=HI, tools=TOOLS) as stream:
            streamed = stream.until_done().get_final_completion()
        for reply in (whole, streamed):
            choice = reply.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content in (None, "")
            (call,) = choice.message.tool_calls or ()
            assert call.type == "function" and call.id.startswith("call_")
            assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
        assert whole.choices[0].message.model_extra == {"reasoning_content": "hm"}
        ids = {reply.choices[0].message.tool_calls[0].id for reply in (whole, streamed)}  # type: ignore[index]
        assert len(ids) == 2


def test_the_sdk_raises_the_right_errors(rig: Any, serving: Any) -> None:
    hub = rig(FakeModel(b"Hello"), FakeModel(b"Hello")).hub
    with serving(hub, api_keys=("secret",)) as running:
        with sdk(running.address) as client, pytest.raises(openai.AuthenticationError) as unauthorised:
            client.chat.completions.create(model="fake", messages=HI)
        assert unauthorised.value.code == "invalid_api_key" and unauthorised.value.request_id
        with sdk(running.address, default_headers={"x-api-key": "secret"}) as client:
            with pytest.raises(openai.BadRequestError) as bad:
                client.chat.completions.create(model="fake", messages=HI, temperature=3)
            assert bad.value.param == "temperature"
            with pytest.raises(openai.NotFoundError) as missing:
                client.chat.completions.create(model="nothing", messages=HI)
            assert missing.value.code == "model_not_found"


def test_the_sdk_is_told_of_a_full_queue_and_of_a_failure_in_the_stream(rig: Any, serving: Any) -> None:
    gate = Gate()
    gate.let(1)
    made = rig(FakeModel(b"Hello", gate=gate), batch=1, queue=0)
    with serving(made.hub, grace_s=1.0) as running, sdk(running.address) as client:
        stream = client.chat.completions.create(model="m", messages=HI, stream=True)
        assert next(stream).choices[0].delta.role == "assistant"
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="m", messages=HI)
        running.server.stop()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)


def test_032_one_connection_serves_many_requests(rig: Any, serving: Any) -> None:
    with serving(rig(FakeModel(b"Hello")).hub) as running, socket.create_connection(_place(running.address)) as wire:
        for _ in range(3):
            wire.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            _read_until(wire, b'"status":"ok"')


def _read_until(wire: socket.socket, marker: bytes) -> None:
    """Read up to `marker` at least; fails if the connection ends before."""
    read = b""
    while marker not in read:
        piece = wire.recv(4096)
        assert piece, f"{read!r} without {marker!r}"
        read += piece


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix("http://").partition(":")
    return host, int(port)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", b"411"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.0\r\n\r\n", b"200"),
        (b"GET http://localhost/v1/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"200"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 17_000 + b"\r\n\r\n", b"431"),
        (b"\x00\xff\r\n\r\n", b"400"),
    ],
)
def test_framing_on_the_wire(rig: Any, serving: Any, head: bytes, status: bytes) -> None:
    with serving(rig(FakeModel(b"Hello")).hub) as running, socket.create_connection(_place(running.address)) as wire:
        wire.sendall(head)
        answer = b"".join(iter(lambda: wire.recv(4096), b""))  # to the end: the server closes
        assert answer.split(b" ")[1] == status


def test_023_the_sender_of_a_body_over_the_limit_can_read_the_answer(rig: Any, serving: Any) -> None:
    with serving(rig(FakeModel(b"Hello")).hub, max_body=1000) as running:
        response = httpx.post(running.address + CHAT, content=b"x" * 8_000_000)
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "request_too_large"


def _request(running: Any, *, stream: bool) -> socket.socket:
    """A connection over which a request has been sent."""
    body = json.dumps({"messages": HI, "stream": stream}).encode()
    wire = socket.create_connection(_place(running.address))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
    wire.sendall(head + body)
    return wire


@pytest.mark.parametrize("stream", [True, False])
def test_039_a_client_that_goes_away_frees_its_slot(rig: Any, serving: Any, stream: bool) -> None:
    gate = Gate()
    made = rig(FakeModel(b"x" * 400, gate=gate), batch=1)
    with serving(made.hub) as running:
        with _request(running, stream=stream) as wire:
            gate.arrive()
            if stream:
                gate.step()
                _read_until(wire, b"assistant")
        made.observer.closed.get(timeout=PATIENCE_S)
        gate.open()
        record = made.observer.records.get(timeout=PATIENCE_S)
        assert record.finish == "cancelled" and record.usage.completion_tokens < 10
        after = httpx.post(running.address + CHAT, json={"messages": HI, "max_tokens": 2})
        assert after.status_code == 200
    assert running.server.hub_state.n_active == 0


def test_038_a_client_that_goes_away_while_it_waits_never_runs(rig: Any, serving: Any) -> None:
    gate = Gate()
    model = FakeModel(b"Hello", gate=gate)
    made = rig(model, batch=1)
    with serving(made.hub) as running, _request(running, stream=False) as first:
        gate.arrive()
        with _request(running, stream=False):
            health = httpx.get(running.address + "/health").json()
            while health["queue_depth"] == 0:
                health = httpx.get(running.address + "/health").json()
        made.observer.closed.get(timeout=PATIENCE_S)
        assert httpx.get(running.address + "/health").json()["queue_depth"] == 0
        gate.open()
        _read_until(first, b'"content":"Hello"')
        records = [made.observer.records.get(timeout=PATIENCE_S) for _ in range(2)]
        assert {(record.finish, record.usage.completion_tokens) for record in records} == {
            ("cancelled", 0),
            ("stop", 5),
        }
        assert len(model.steps) == 6


# --- phases ----------------------------------------------------------------------------------------------------------


def test_002_the_port_answers_while_models_load(rig: Any, serving: Any) -> None:
    may_end = threading.Event()
    hub = rig(FakeModel(b"Hello")).hub
    with serving(hub, load=lambda: may_end.wait(PATIENCE_S)) as running:
        loading = httpx.get(running.address + "/health")
        assert (loading.status_code, loading.json()["status"]) == (503, "loading model")
        early = httpx.post(running.address + CHAT, json={"messages": HI})
        assert early.status_code == 503 and "retry-after" in early.headers
        may_end.set()
        assert running.reached.get(timeout=PATIENCE_S) == running.address
        assert httpx.get(running.address + "/health").status_code == 200


def test_a_failure_to_load_ends_the_server_and_is_raised() -> None:
    from lmhub.hub import Hub

    def load() -> None:
        raise LmhubError("this file is damaged")

    with pytest.raises(LmhubError, match="this file is damaged"):
        serve(Hub(entry_points=False), ServerSettings(port=0), load)


def test_plugins_hear_of_start_and_end(rig: Any, serving: Any) -> None:
    heard: list[str] = []

    class Listens:
        @hookimpl
        def lmhub_startup(self) -> None:
            heard.append("startup")

        @hookimpl
        def lmhub_shutdown(self) -> None:
            heard.append("shutdown")

    model = FakeModel(b"Hello")
    hub = rig(model).hub
    hub.plugins.register(Listens(), "listens")
    with serving(hub):
        assert heard == ["startup"]
    assert heard == ["startup", "shutdown"]
    assert model.closed


def test_041_draining_lets_replies_finish_and_refuses_new_ones(rig: Any, serving: Any) -> None:
    gate = Gate()
    gate.let(1)
    with serving(rig(FakeModel(b"Hello", gate=gate)).hub, grace_s=600.0) as running, sdk(running.address) as client:
        stream = client.chat.completions.create(model="m", messages=HI, stream=True)
        running.server.stop()
        health = httpx.get(running.address + "/health")
        while health.status_code == 200:  # the signal has to reach the loop first
            health = httpx.get(running.address + "/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=HI)
        gate.open()
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello"
    assert not running.failure


@pytest.mark.parametrize(("host", "says"), [("host.invalid", "host.invalid"), ("192.0.2.1", "192.0.2.1")])
def test_a_host_that_is_not_here_is_one_sentence(host: str, says: str) -> None:
    with pytest.raises(LmhubError, match=f"cannot listen on {says}:0: .*; choose another --host or --port"):
        bind(host, 0)


def test_a_port_in_use_is_one_sentence() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LmhubError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            bind("127.0.0.1", port)
    with pytest.raises(LmhubError, match="--port"):
        bind("127.0.0.1", 70000)
