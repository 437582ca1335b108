"""The application in process: routes, keys, hosts, bodies, admission, errors, pings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from lmhub.dialect import Dialect
from lmhub.errors import LmhubError, PluginError, RequestError
from lmhub.hookspecs import hookimpl
from lmhub.server.app import create_app
from lmhub.server.body import read_body
from lmhub.server.http_errors import BodyTimeout
from lmhub.server.openai_chat import chat_dialect
from lmhub.server.state import ServerState
from lmhub.settings import ServerSettings
from lmhub.testing.fake import FakeModel, Gate

DIALECT = chat_dialect(ServerSettings())
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


def ready() -> ServerState:
    """The state of a server whose models are loaded."""
    return ServerState(phase="ready")


@asynccontextmanager
async def client(app: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `app` on the loopback address."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", **options) as one:
        yield one


@pytest.fixture
def ask(rig: Callable[..., Any]) -> Callable[..., httpx.Response]:
    """`ask(method, path, settings=, state=, **request)`: the answer of a server whose model says "Hello"."""

    def one(method: str, path: str, *, settings: Any = None, state: Any = None, **request: Any) -> httpx.Response:
        hub = rig(FakeModel(b"Hello")).hub

        async def main() -> httpx.Response:
            async with client(create_app(hub, settings or ServerSettings(), state or ready())) as http:
                return await http.request(method, path, **request)

        return asyncio.run(main())

    return one


def error_of(response: httpx.Response) -> Any:
    """The error object, after checking that all four keys are there."""
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    return error


# --- routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/chat/completions/",
        "/v1/v1/chat/completions",
        "//v1//chat/completions",
        "/v1/chat/completions?api-version=x",
        "/v1/chat%2Fcompletions",
    ],
)
def test_clumsy_paths_lead_to_the_route(ask: Any, path: str) -> None:
    response = ask("POST", path, json=BODY)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "Hello"


def test_an_unknown_path_is_a_404_that_spells_it(ask: Any) -> None:
    for method in ("GET", "POST"):
        response = ask(method, "/v1/nope")
        assert response.status_code == 404
        error = error_of(response)
        assert f"unknown endpoint {method} /v1/nope" in error["message"]
        assert error["type"] == "invalid_request_error"


def test_a_wrong_method_is_a_405_that_names_the_right_one(ask: Any) -> None:
    response = ask("GET", CHAT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert error_of(response)["code"] == "method_not_allowed"
    assert ask("POST", "/health").status_code == 405


def test_a_path_that_climbs_is_refused(ask: Any) -> None:
    assert ask("GET", "/v1/%2e%2e/models").status_code == 400


@pytest.mark.parametrize(
    "path", ["/", "/health", "/v1/health", "/healthz", "/livez", "/readyz", "/api/hello", "/version"]
)
def test_probes_need_no_key(ask: Any, path: str) -> None:
    settings = ServerSettings(api_keys=("secret",))
    assert ask("GET", path, settings=settings).status_code == 200
    assert ask("HEAD", path, settings=settings).status_code == 200


def test_preflights_are_answered_everywhere_without_a_key(ask: Any) -> None:
    response = ask("OPTIONS", "/v1/whatever", settings=ServerSettings(api_keys=("secret",)))
    assert (response.status_code, response.content) == (204, b"")
    assert not [name for name in response.headers if name.startswith("access-control")]


def test_every_answer_has_one_id_under_two_names(ask: Any) -> None:
    answers = [
        ask("GET", "/health"),
        ask("GET", "/nope"),
        ask("POST", CHAT, json=BODY),
        ask("POST", CHAT, content=b"{"),
    ]
    ids = {answer.headers["request-id"] for answer in answers}
    assert len(ids) == 4
    assert all(answer.headers["x-request-id"] == answer.headers["request-id"] for answer in answers)
    assert all(id.startswith("req_") for id in ids)
    assert ask("GET", "/health", headers={"x-request-id": "mine-1"}).headers["request-id"] == "mine-1"
    assert ask("GET", "/health", headers={"x-request-id": "no no"}).headers["request-id"] != "no no"


# --- models and health -----------------------------------------------------------------------------------------------


def test_models(ask: Any) -> None:
    listing = ask("GET", "/v1/models").json()
    entry = listing["data"][0]
    assert listing["object"] == "list" and listing["first_id"] == "fake"
    assert (entry["id"], entry["object"], entry["created"]) == ("fake", "model", 1760000000)
    assert entry["meta"]["n_ctx"] == entry["max_model_len"] == 512
    assert ask("GET", "/v1/models/fake").json() == entry
    missing = ask("GET", "/models/org%2Fother")
    assert missing.status_code == 404
    assert error_of(missing) == {
        "message": "model 'org/other' is not served here; served: fake",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


def test_health_tells_the_phases_apart(ask: Any) -> None:
    healthy = ask("GET", "/health")
    assert healthy.status_code == 200
    assert healthy.json() | {"status": "ok", "model": "fake", "queue_depth": 0} == healthy.json()
    loading = ask("GET", "/health", state=ServerState())
    assert (loading.status_code, loading.json()["status"]) == (503, "loading model")
    draining = ask("GET", "/health", state=ServerState(phase="draining"))
    assert (draining.status_code, draining.json()) == (503, {"status": "draining"})
    assert ask("GET", "/livez", state=ServerState()).status_code == 200


def test_nothing_is_served_before_and_after_the_time(ask: Any) -> None:
    for method, path in (("POST", CHAT), ("GET", "/v1/models")):
        loading = ask(method, path, state=ServerState())
        assert loading.status_code == 503 and int(loading.headers["retry-after"]) >= 1
        assert error_of(loading)["message"].startswith("Loading model")
        draining = ask(method, path, state=ServerState(phase="draining"))
        assert draining.status_code == 503 and draining.headers["x-should-retry"] == "false"
        assert error_of(draining)["type"] == "unavailable_error"


def test_the_model_name_selects_among_several(rig: Callable[..., Any]) -> None:
    app = create_app(rig(FakeModel(b"one"), FakeModel(b"two")).hub, ServerSettings(), ready())

    async def main() -> list[httpx.Response]:
        async with client(app) as http:
            return [await http.post(CHAT, json=BODY | {"model": name}) for name in ("fake", "fake1", "other")]

    first, second, other = asyncio.run(main())
    assert first.json()["choices"][0]["message"]["content"] == "one"
    assert second.json()["choices"][0]["message"]["content"] == "two"
    assert second.json()["model"] == "fake1"
    assert other.status_code == 404 and "fake, fake1" in error_of(other)["message"]


# --- keys and hosts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer secret"}, 200),
        ({"authorization": "bearer   secret"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({"api-key": "secret"}, 200),
        ({"authorization": "Bearer stale", "x-api-key": "secret"}, 200),
        ({"authorization": "Bearer secret", "x-api-key": "stale"}, 200),
        ({"authorization": "Bearer secre"}, 401),
        ({"authorization": "Bearer secrets"}, 401),
        ({"authorization": "Basic secret"}, 401),
        ({"authorization": "Bearer "}, 401),
    ],
)
def test_keys(ask: Any, headers: dict[str, str], status: int) -> None:
    response = ask("GET", "/v1/models", settings=ServerSettings(api_keys=("secret",)), headers=headers)
    assert response.status_code == status
    if status == 401:
        assert error_of(response)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert "secret" not in response.text


def test_a_wrong_key_is_noticed_before_the_body_and_after_the_route(ask: Any) -> None:
    settings = ServerSettings(api_keys=("secret",))
    assert ask("POST", CHAT, settings=settings, content=b"{").status_code == 401
    assert ask("POST", "/v1/nope", settings=settings).status_code == 404


def test_without_a_configured_key_any_will_do(ask: Any) -> None:
    for given in ("Bearer anything", "Bearer "):
        assert ask("GET", "/v1/models", headers={"authorization": given}).status_code == 200


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:8080", "LOCALHOST", "127.8.8.8", "localhost."])
def test_local_hosts_pass(ask: Any, host: str) -> None:
    assert ask("GET", "/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nope"])
def test_a_foreign_host_is_refused_on_loopback_only(ask: Any, path: str) -> None:
    settings = ServerSettings(api_keys=("secret",))
    response = ask("GET", path, headers={"host": "evil.example:8080"}, settings=settings)
    assert response.status_code == 403
    error = error_of(response)
    assert error["code"] == "host_not_allowed" and "evil" not in error["message"]
    public = ask("GET", "/health", headers={"host": "evil.example"}, settings=ServerSettings(host="0.0.0.0"))
    assert public.status_code == 200


def test_a_page_of_another_origin_cannot_post_without_a_preflight(ask: Any) -> None:
    content = json.dumps(BODY).encode()
    foreign = {"origin": "http://evil.example"}
    for kind in ("text/plain", "text/plain;charset=utf-8", "application/x-www-form-urlencoded"):
        assert ask("POST", CHAT, content=content, headers=foreign | {"content-type": kind}).status_code == 403
    assert ask("POST", CHAT, content=content, headers=foreign | {"content-type": "application/json"}).status_code == 200
    near = {"origin": "http://localhost:3000", "content-type": "text/plain"}
    assert ask("POST", CHAT, content=content, headers=near).status_code == 200


# --- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "text/plain", "application/vnd.x+json", None])
def test_media_types_that_are_read(ask: Any, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert ask("POST", CHAT, content=json.dumps(BODY).encode(), headers=headers).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "application/json; charset=utf-16"},
        {"content-encoding": "zstd"},
        {"content-encoding": "br"},
    ],
)
def test_media_types_that_are_not(ask: Any, headers: dict[str, str]) -> None:
    response = ask("POST", CHAT, content=json.dumps(BODY).encode(), headers=headers)
    assert response.status_code == 415
    assert error_of(response)["code"] == "unsupported_media_type"


async def _chunks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def test_a_body_may_come_in_chunks(ask: Any) -> None:
    whole = json.dumps(BODY).encode()
    assert ask("POST", CHAT, content=_chunks(whole[:9], whole[9:])).status_code == 200


def test_a_body_over_the_limit_is_refused_as_declared_and_as_read(ask: Any) -> None:
    settings = ServerSettings(max_body=50)
    exact = json.dumps(BODY).ljust(50).encode()
    assert ask("POST", CHAT, content=exact, settings=settings).status_code == 200
    for content in (exact + b" ", _chunks(exact, b" ")):
        response = ask("POST", CHAT, content=content, settings=settings)
        assert response.status_code == 413
        assert error_of(response)["code"] == "request_too_large"
        assert response.headers["connection"] == "close"


def test_framing_that_is_ambiguous_is_refused(ask: Any) -> None:
    async def post(headers: list[tuple[bytes, bytes]]) -> int:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        path = {"path": CHAT, "raw_path": CHAT.encode(), "query_string": b"", "root_path": ""}
        app = create_app(hub, ServerSettings(), ready())
        await app({"type": "http", "method": "POST", "headers": headers, **path}, receive, send)
        return statuses[0]

    from lmhub.hub import Hub

    hub = Hub(entry_points=False)
    both = [(b"content-length", b"2"), (b"transfer-encoding", b"chunked")]
    assert asyncio.run(post([])) == 411
    assert asyncio.run(post(both)) == 400


def test_a_body_that_never_comes_is_given_up() -> None:
    async def receive() -> Any:
        return await asyncio.Future()

    with pytest.raises(BodyTimeout):
        asyncio.run(read_body(receive, 10, timeout_s=0.0))


def test_a_prompt_longer_than_the_context_is_plain_json_even_for_a_stream(ask: Any) -> None:
    long = {"messages": [{"role": "user", "content": "x" * 40_000}]}  # large enough for the tokenizing thread
    for stream in (False, True):
        response = ask("POST", CHAT, json=long | {"stream": stream})
        assert response.status_code == 400
        error = error_of(response)
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 512 tokens" in error["message"]


def test_a_very_long_error_message_is_a_valid_envelope(ask: Any) -> None:
    response = ask("POST", CHAT, json=BODY | {"stop": ["x", {"y" * 5000: 1}]})
    assert response.status_code == 400 and error_of(response)["param"] == "stop"


# --- admission and life cycle ----------------------------------------------------------------------------------------


def test_033_034_more_requests_than_conns_get_503_and_more_than_the_queue_429(rig: Callable[..., Any]) -> None:
    gate = Gate()
    hub = rig(FakeModel(b"Hello", gate=gate), batch=1, queue=1).hub
    state = ready()
    app = create_app(hub, ServerSettings(conns=3), state)

    async def main() -> list[httpx.Response]:
        async with client(app) as http:
            running = asyncio.ensure_future(http.post(CHAT, json=BODY))
            await asyncio.to_thread(gate.arrive)
            queued = asyncio.ensure_future(http.post(CHAT, json=BODY))
            while hub.acquire("fake").engine.stats().queued == 0:
                await asyncio.sleep(0)
            refused = await http.post(CHAT, json=BODY)
            with state.admitted(3):
                overloaded = await http.post(CHAT, json=BODY)
                health = await http.get("/health")
            gate.open()
            return [refused, overloaded, health, await running, await queued]

    refused, overloaded, health, running, queued = asyncio.run(main())
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert error_of(refused)["code"] == "rate_limit_exceeded"
    assert "x-should-retry" not in refused.headers
    assert overloaded.status_code == 503 and overloaded.headers["retry-after"] == "2"
    assert error_of(overloaded)["type"] == "unavailable_error"
    assert (health.status_code, health.json()["queue_depth"], health.json()["busy"]) == (200, 1, 1)
    assert running.status_code == queued.status_code == 200
    assert state.n_active == 0 and state.idle.is_set()


def test_042_pings_are_sent_until_the_first_token(rig: Callable[..., Any]) -> None:
    gate = Gate()
    app = create_app(rig(FakeModel(b"Hello", gate=gate)).hub, ServerSettings(), ready(), ping_s=0.001)
    body = json.dumps(BODY | {"stream": True}).encode()
    sent: list[Any] = []

    async def main() -> None:
        done = asyncio.Event()

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body") == b": ping\n\n" and len(sent) == 4:
                gate.open()
            if message["type"] == "http.response.body" and not message.get("more_body"):
                done.set()

        messages = iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            for message in messages:
                return message
            await done.wait()
            return {"type": "http.disconnect"}

        path = {"path": CHAT, "raw_path": CHAT.encode(), "query_string": b"", "root_path": ""}
        headers = [(b"content-length", str(len(body)).encode())]
        await app({"type": "http", "method": "POST", "headers": headers, **path}, receive, send)

    asyncio.run(main())
    frames = [message["body"] for message in sent[1:]]
    assert sent[0]["status"] == 200 and frames[:3] == [b": ping\n\n"] * 3
    text = b"".join(frames).decode()
    assert text.count('"role":"assistant"') == 1
    assert text.endswith("data: [DONE]\n\n")
    assert "id:" not in [line[:3] for line in text.splitlines()]


def test_a_stream_is_sse_whatever_accept_says(ask: Any) -> None:
    response = ask("POST", CHAT, json=BODY | {"stream": True}, headers={"accept": "application/json"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


def test_a_stream_and_a_whole_reply_say_the_same(ask: Any) -> None:
    whole = ask("POST", CHAT, json=BODY).json()
    stream = ask("POST", CHAT, json=BODY | {"stream": True, "stream_options": {"include_usage": True}}).text
    chunks = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    content = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1])
    assert content == whole["choices"][0]["message"]["content"] == "Hello"
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


def test_a_failure_in_the_first_step_is_plain_json_and_a_later_one_is_told_in_the_stream(
    rig: Callable[..., Any],
) -> None:
    def run(fail_at: int, stream: bool) -> httpx.Response:
        steps: list[int] = []

        def before_step(chunks: Any) -> None:
            steps.append(1)
            if len(steps) >= fail_at:
                raise LmhubError("the kernel gave up")

        app = create_app(rig(FakeModel(b"Hello", before_step=before_step)).hub, ServerSettings(), ready())

        async def main() -> httpx.Response:
            async with client(app) as http:
                return await http.post(CHAT, json=BODY | {"stream": stream})

        return asyncio.run(main())

    for response in (run(1, True), run(1, False), run(4, False)):
        assert response.status_code == 500
        assert error_of(response)["type"] == "server_error"
    late = run(4, True)
    assert late.status_code == 200
    frames = late.text.split("\n\n")
    assert frames[-1] == "" and json.loads(frames[-2][6:])["error"]["type"] == "server_error"
    assert "[DONE]" not in late.text


# --- plugins ---------------------------------------------------------------------------------------------------------


class Refuses:
    """A plugin that wants nothing said about the weather."""

    @hookimpl
    def lmhub_validate(self, request: Any) -> None:
        if "weather" in request.messages[-1].text:
            raise RequestError("not the weather again", "messages")


class Shouts:
    """A plugin with a dialect of its own, whose encoder is broken."""

    def __init__(self, route: str):
        self._route = route

    @hookimpl
    def lmhub_dialects(self) -> list[Dialect]:
        def broken(*_: Any) -> Any:
            raise ValueError("broken")

        def shout(error: LmhubError) -> bytes:
            return json.dumps({"shout": str(error).upper()}).encode()

        return [Dialect("shout", (self._route,), "shout-", DIALECT.parse, DIALECT.encoder, broken, shout)]


def test_plugins_may_refuse_requests_and_bring_dialects(rig: Callable[..., Any]) -> None:
    made = rig(FakeModel(b"Hello"))
    made.hub.plugins.register(Refuses(), "refuses")
    made.hub.plugins.register(Shouts("/shout"), "shouts")
    app = create_app(made.hub, ServerSettings(api_keys=("secret",)), ready())
    weather = {"messages": [{"role": "user", "content": "how is the weather?"}]}

    async def main() -> list[httpx.Response]:
        async with client(app, headers={"x-api-key": "secret"}) as http:
            return [
                await http.post(CHAT, json=weather),
                await http.post("/v1/shout", content=b"{"),
                await http.post("/shout/further"),
                await http.post("/shout", headers={"x-api-key": "wrong"}),
                await http.post("/shout", json=BODY),
            ]

    refused, bad, unknown, unauthorised, broken = asyncio.run(main())
    assert (refused.status_code, error_of(refused)["message"]) == (400, "not the weather again")
    assert "NOT VALID JSON" in bad.json()["shout"]
    assert (unknown.status_code, "shout" in unknown.json()) == (404, True)
    assert (unauthorised.status_code, "shout" in unauthorised.json()) == (401, True)
    assert broken.status_code == 500 and "BROKEN" not in broken.json()["shout"]


def test_two_dialects_on_one_route_are_an_error_that_names_both(rig: Callable[..., Any]) -> None:
    made = rig(FakeModel(b"Hello"))
    made.hub.plugins.register(Shouts("/chat/completions"), "shouts")
    with pytest.raises(PluginError, match="builtin and shouts both serve POST /chat/completions"):
        create_app(made.hub, ServerSettings(), ready())
