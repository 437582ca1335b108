"""The numbered conformance statements of transport, security and admission.

Those that need a model which is held back are in test_serve.py (2, 23, 32, 38, 39, 41) and test_app.py (33, 34, 42).
"""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from lmhub.errors import GenerationError
from lmhub.testing.fake import FakeModel, Gate

Make = Callable[..., Any]

CHAT, MESSAGES, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"
USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER]},
    MESSAGES: {"messages": [USER], "model": "m", "max_tokens": 8},
    RESPONSES: {"input": "hi"},
    COMPLETIONS: {"prompt": "hi"},
}
PATHS = pytest.mark.parametrize("path", BODIES)


def ask(made: Any, path: str, *, body: Any = None, **headers: str) -> httpx.Response:
    """POST the minimal body of `path`, or `body`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    content = json.dumps(BODIES[path] if body is None else body).encode()
    response: httpx.Response = made.request(
        "POST", path, content=content, headers={"content-type": "application/json", **named}
    )
    return response


def test_001_health_needs_no_key(api: Make) -> None:
    response = api(api_keys=("k",)).get("/health")
    body = response.json()
    assert response.status_code == 200
    assert (body["status"], body["model"], body["queue_depth"]) == ("ok", "fake", 0)
    assert body["slots_idle"] == body["slots_total"] == 4 and body["context_length"] == 2048


def test_003_the_list_of_models_needs_the_key(api: Make) -> None:
    assert api(api_keys=("k",)).get("/v1/models").status_code == 401


@PATHS
@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer k"}, {"authorization": "bearer   k"}, {"x_api_key": "k"}]
)
def test_004_ways_to_send_the_key(api: Make, path: str, headers: dict[str, str]) -> None:
    assert ask(api(api_keys=("other", "k")), path, **headers).status_code == 200


@PATHS
def test_005_and_006_a_wrong_key(api: Make, path: str) -> None:
    response = ask(api(api_keys=("k",)), path, authorization="Bearer x")
    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    error = response.json()["error"]
    if path == MESSAGES:
        assert response.json()["type"] == "error" and error["type"] == "authentication_error"
    else:
        assert error["code"] == "invalid_api_key" and error.keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize("key", ["secre", "secrets", "", "SECRET"])
def test_007_almost_the_key(api: Make, key: str) -> None:
    assert ask(api(api_keys=("secret",)), CHAT, x_api_key=key).status_code == 401


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer x", "x_api_key": "k"}, {"authorization": "Bearer k", "x_api_key": "x"}]
)
def test_008_one_right_key_is_enough(api: Make, headers: dict[str, str]) -> None:
    assert ask(api(api_keys=("k",)), CHAT, **headers).status_code == 200


@pytest.mark.parametrize("value", ["Bearer dummy", "Bearer ", "Bearer", ""])
def test_009_without_a_key_any_will_do(api: Make, value: str) -> None:
    assert ask(api(), CHAT, authorization=value).status_code == 200


def test_010_an_unknown_path(api: Make) -> None:
    response = api().get("/v1/nothing")
    error = response.json()["error"]
    assert response.status_code == 404 and "unknown endpoint" in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}


def test_011_an_unknown_path_of_another_dialect(api: Make) -> None:
    response = api().post("/v1/messages/batches")
    assert (response.status_code, response.json()["type"]) == (404, "error")
    assert response.json()["error"]["type"] == "not_found_error"
    compact = api().post("/v1/responses/compact")
    assert (compact.status_code, compact.headers["x-should-retry"]) == (501, "false")
    assert api().post("/api/pull").json().keys() == {"error"}


@PATHS
def test_012_a_wrong_method(api: Make, path: str) -> None:
    response = api().get(path)
    assert response.status_code == 405 and "POST" in response.headers["allow"]


@pytest.mark.parametrize("path", ["/health", "/", "/api/hello", "/v1/models"])
def test_013_head(api: Make, path: str) -> None:
    response = api().request("HEAD", path)
    assert response.status_code == 200


def test_014_queries_do_not_matter(api: Make) -> None:
    assert api().post(f"{CHAT}?api-version=x", **BODIES[CHAT]).status_code == 200
    assert api().post(f"{MESSAGES}?beta=true", **BODIES[MESSAGES]).status_code == 200


@PATHS
def test_015_the_prefix_may_be_left_out_or_doubled(api: Make, path: str) -> None:
    made = api()
    for spelled in (path.removeprefix("/v1"), f"/v1{path}", f"{path}/", f"/{path}"):
        assert made.post(spelled, **BODIES[path]).status_code == 200


def test_016_preflights_without_cors(api: Make) -> None:
    for path in (CHAT, "/nothing"):
        response = api().request("OPTIONS", path, headers={"origin": "http://a.example"})
        assert response.status_code == 204
        assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize("origins", [("http://a.example",), ("http://b.example", "http://a.example"), ("*",)])
def test_017_every_answer_carries_the_origin(api: Make, origins: tuple[str, ...]) -> None:
    made = api(api_keys=("k",), cors_origin=origins)
    origin, key = "http://a.example", "k"
    answers = [
        ask(made, CHAT, origin=origin, x_api_key=key),
        ask(made, CHAT, origin=origin, x_api_key=key, body={"messages": []}),
        ask(made, CHAT, origin=origin),
        ask(made, CHAT, origin=origin, x_api_key=key, body=BODIES[CHAT] | {"stream": True}),
        ask(made, CHAT, origin=origin, host="evil.example"),
    ]
    assert [answer.status_code for answer in answers] == [200, 400, 401, 200, 403]
    expected = "*" if origins == ("*",) else origin
    assert {answer.headers["access-control-allow-origin"] for answer in answers} == {expected}
    assert all("retry-after" in answer.headers["access-control-expose-headers"] for answer in answers)
    foreign = ask(made, CHAT, origin="http://c.example", x_api_key=key)
    assert ("access-control-allow-origin" in foreign.headers) is (origins == ("*",))
    assert "access-control-allow-credentials" not in foreign.headers


def test_018_the_preflight(api: Make) -> None:
    asked = {"access-control-request-headers": "x-stainless-lang, bad name", "origin": "http://a.example"}
    asked["access-control-request-private-network"] = "true"
    headers = api(cors_origin=("http://a.example",)).request("OPTIONS", CHAT, headers=asked).headers
    assert {"GET", "POST"} <= set(headers["access-control-allow-methods"].split(", "))
    allowed = headers["access-control-allow-headers"].split(", ")
    assert {"x-stainless-lang", "Authorization", "anthropic-version"} <= set(allowed) and "bad name" not in allowed
    assert headers["access-control-allow-private-network"] == "true"
    foreign = api(cors_origin=("http://b.example",)).request("OPTIONS", CHAT, headers=asked).headers
    assert "access-control-allow-private-network" not in foreign


@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/health"])
def test_019_a_foreign_host(api: Make, path: str) -> None:
    response = api(api_keys=("k",)).request("POST", path, headers={"host": "evil.example"}, json={})
    assert response.status_code == 403 and "evil" not in response.text
    assert "--allow-host" in response.text
    assert response.json()["error"]["type"] == ("permission_error" if path == MESSAGES else "invalid_request_error")


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:8080", "LOCALHOST", ""])
def test_020_local_hosts(api: Make, host: str) -> None:
    assert api().request("GET", "/health", headers={"host": host}).status_code == 200


def test_021_an_allowed_host(api: Make) -> None:
    made = api(allow_host=("foo",))
    assert made.get("/health", host="foo:1234").status_code == made.get("/health", host="FOO.").status_code == 200
    assert made.get("/health", host="bar").status_code == 403
    assert api(host="0.0.0.0", allow_host=("foo",)).get("/health", host="bar").status_code == 403
    assert api(host="0.0.0.0").get("/health", host="bar").status_code == 200


def test_022_a_page_of_another_origin(api: Make) -> None:
    made = api()
    evil = {"origin": "http://evil.example", "content_type": "text/plain"}
    assert ask(made, CHAT, **evil).status_code == 403
    assert ask(made, CHAT, **evil | {"content_type": "application/json"}).status_code == 200
    assert ask(api(cors_origin=("http://evil.example",)), CHAT, **evil).status_code == 200


@PATHS
def test_024_a_body_over_the_limit(api: Make, path: str) -> None:
    response = ask(api(max_body=10), path)
    assert (response.status_code, response.headers["connection"]) == (413, "close")
    error = response.json()["error"]
    assert (error["type"] if path == MESSAGES else error["code"]) == "request_too_large"


def wire(running: Any, *pieces: bytes) -> bytes:
    """What a server answers to these bytes, up to the end of the connection."""
    host, port = running.address.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for piece in pieces:
            connection.sendall(piece)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def head(path: str, *lines: str) -> bytes:
    """The head of a POST that ends its connection."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: localhost", "connection: close", *lines, "", ""]).encode()


def chunked(data: bytes) -> bytes:
    """`data` in two chunks."""
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:7], data[7:])) + b"0\r\n\r\n"


def test_025_026_028_framing_on_the_wire(rig: Any, serving: Any) -> None:
    body = json.dumps(BODIES[CHAT]).encode()
    kind = "content-type: application/json"
    with serving(rig(FakeModel(b"Hello")).hub) as running:
        for path in (CHAT, "/tokenize"):
            assert wire(running, head(path, kind)).startswith(b"HTTP/1.1 411")
        assert b"Hello" in wire(running, head(CHAT, kind, "transfer-encoding: chunked"), chunked(body))
        multipart = head(CHAT, "content-type: multipart/form-data; boundary=x", "content-length: 2")
        assert wire(running, multipart, b"{}").startswith(b"HTTP/1.1 415")
        both = head(CHAT, kind, "transfer-encoding: chunked", f"content-length: {len(body)}")
        assert wire(running, both, chunked(body)).split()[1] in (b"400", b"200")
        large = head(CHAT, kind, "content-length: 2", "x: " + "y" * 20000)
        assert wire(running, large, b"{}").split()[1] in (b"431", b"400")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", None, "text/plain"])
def test_027_content_types(api: Make, kind: str | None) -> None:
    content = b"\xef\xbb\xbf" + json.dumps(BODIES[CHAT]).encode()
    headers = {"content-type": kind} if kind else {}
    assert api().request("POST", CHAT, content=content, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content_type": "multipart/form-data"},
        {"content_type": "application/json; charset=latin-1"},
        {"content_encoding": "br"},
        {"content_encoding": "gzip, gzip"},
    ],
)
@pytest.mark.parametrize("path", [CHAT, MESSAGES, "/tokenize"])
def test_028_what_is_not_read(api: Make, headers: dict[str, str], path: str) -> None:
    assert ask(api(), path, body={}, **headers).status_code == 415


def raw_deflate(data: bytes) -> bytes:
    """Deflate without its zlib header, as some clients send it."""
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress), ("Deflate", raw_deflate)]
)
def test_028_packed_bodies(api: Make, name: str, pack: Callable[[bytes], bytes]) -> None:
    made = api(max_body=1000)
    headers = {"content-encoding": name, "content-type": "application/json"}
    packed = pack(json.dumps(BODIES[CHAT]).encode())
    assert made.request("POST", CHAT, content=packed, headers=headers).status_code == 200
    bomb = pack(b" " * 100_000)
    assert len(bomb) < 1000
    assert made.request("POST", CHAT, content=bomb, headers=headers).status_code == 413
    for damaged in (packed[:-3], b"\x1f\x8b\x08nonsense", b""):
        assert made.request("POST", CHAT, content=damaged, headers=headers).status_code == 400


@PATHS
@pytest.mark.parametrize(
    ("body", "says"),
    [(b"{nope", "not valid JSON"), (b"", "not valid JSON"), (b"[]", "JSON object"), (b'"x"', "JSON object")],
)
def test_029_bodies_that_are_no_json_object(api: Make, path: str, body: bytes, says: str) -> None:
    response = api().request("POST", path, content=body)
    assert response.status_code == 400 and says in response.json()["error"]["message"]


@PATHS
def test_030_and_031_hostile_bodies(api: Make, path: str) -> None:
    made = api()
    for body in (b'{"messages":"\xff\xfe"}', b'{"input":' + b"[" * 100_000 + b"]" * 100_000 + b"}"):
        assert made.request("POST", path, content=body).status_code == 400
    assert ask(made, path).status_code == 200


def test_035_the_sdk_does_not_ask_again_for_what_is_not_there(rig: Any, serving: Any) -> None:
    made = rig(FakeModel(b"Hello"))
    with serving(made.hub) as running, openai.OpenAI(base_url=running.address + "/v1", api_key="k") as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.embeddings.create(model="m", input="x")
        assert caught.value.response.headers["x-should-retry"] == "false"
        text = httpx.get(running.address + "/metrics").text
    assert 'lmhub_http_requests_total{code="501",route="/embeddings"} 1.0' in text


def test_036_a_full_queue_may_be_asked_again(rig: Any, serving: Any) -> None:
    gate = Gate()
    with serving(rig(FakeModel(b"Hello", gate=gate), batch=1, queue=0).hub) as running:
        with httpx.stream(
            "POST", running.address + CHAT, json=BODIES[CHAT] | {"stream": True, "sse_ping_interval": 0.01}
        ):
            gate.arrive()
            for path in (CHAT, MESSAGES):
                full = httpx.post(running.address + path, json=BODIES[path])
                assert full.status_code == 429 and int(full.headers["retry-after"]) >= 1
                assert "x-should-retry" not in full.headers and "try again in" in full.text
                assert full.json()["error"]["type"] == "rate_limit_error"
        gate.open()


def test_037_request_ids(api: Make) -> None:
    made = api()
    answers = [
        ask(made, CHAT),
        ask(made, CHAT, body={}),
        made.get("/nothing"),
        made.get("/health", host="evil.example"),
    ]
    ids = [answer.headers["request-id"] for answer in answers]
    assert len(set(ids)) == 4 and all(id.startswith("req_") for id in ids)
    assert ids == [answer.headers["x-request-id"] for answer in answers]
    assert made.get("/health", x_request_id="mine").headers["request-id"] == "mine"
    assert made.post("/v1/messages").json()["request_id"].startswith("req_")


def test_040_a_client_that_reads_nothing_delays_nobody(rig: Any, serving: Any) -> None:
    made = rig(
        FakeModel(lambda prompt: b"x" * 3000 if b"long" in bytes(t for t in prompt if t < 256) else b"Hello"),
        n_ctx=4096,
    )
    with serving(made.hub) as running:
        host, port = running.address.removeprefix("http://").split(":")
        body = json.dumps({"messages": [{"role": "user", "content": "long"}], "stream": True}).encode()
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect((host, int(port)))
            lazy.sendall(head(CHAT, f"content-length: {len(body)}") + body)
            lazy.recv(1)
            for _ in range(3):
                assert httpx.post(running.address + CHAT, json=BODIES[CHAT]).status_code == 200


def test_042_pings_of_the_anthropic_dialect(rig: Any, serving: Any) -> None:
    gate = Gate()
    with serving(rig(FakeModel(b"Hello", gate=gate)).hub, ping_s=0.01) as running:
        asked = {"json": BODIES[MESSAGES] | {"stream": True}, "timeout": 30}
        with httpx.stream("POST", running.address + MESSAGES, **asked) as answer:
            told = ""
            for piece in answer.iter_text():
                told += piece
                if told.count("ping") > 1:
                    gate.open()
        before, _, after = told.partition("event: message_start")
        assert before.startswith(": ping") or "event: ping" in after
        assert told.rstrip().endswith('{"type":"message_stop"}')


@PATHS
def test_043_and_045_streams(api: Make, path: str) -> None:
    response = ask(api(), path, body=BODIES[path] | {"stream": True}, accept="application/json")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache" and "content-length" not in response.headers
    assert not [line for line in response.text.splitlines() if line.startswith(("id:", "retry:"))]


@PATHS
@pytest.mark.parametrize("fails", [False, True])
def test_044_streams_are_terminated(rig: Any, serving: Any, path: str, fails: bool) -> None:
    steps = iter(range(1000))

    def fail(chunks: Any) -> None:
        if fails and next(steps) > 2:
            raise GenerationError("the kernel gave up")

    body = json.dumps(BODIES[path] | {"stream": True}).encode()
    with serving(rig(FakeModel(b"Hello", before_step=fail)).hub) as running:
        answer = wire(running, head(path, f"content-length: {len(body)}"), body)
    assert answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"0\r\n\r\n")
    assert (b"gave up" in answer) is fails
    assert not (fails and b"[DONE]" in answer)
