"""A hub that serves a scripted model through the real engine, and a real server on a real port in front of it."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from lmhub.engine import Engine
from lmhub.hookspecs import hookimpl
from lmhub.hub import Hub
from lmhub.loaded import LoadedModel
from lmhub.model import CausalLM
from lmhub.server.app import create_app
from lmhub.server.run import HubServer
from lmhub.settings import EngineSettings, ServerSettings
from lmhub.testing.fake import FakeModel, FakeTokenizer
from lmhub.testing.serving import fake_loaded
from lmhub.types import Event, GenerationRecord, GenerationRequest

PATIENCE_S = 30.0  # a test that waits longer than this hangs, and fails


class Observer:
    """A plugin that tells a test what became of its generations."""

    def __init__(self, hub: Hub):
        self._hub = hub
        self.records: queue.SimpleQueue[GenerationRecord] = queue.SimpleQueue()
        self.closed: queue.SimpleQueue[str] = queue.SimpleQueue()

    @hookimpl
    def lmhub_generation_finished(self, record: GenerationRecord) -> None:
        """Keep the record."""
        self.records.put(record)

    @hookimpl(tryfirst=True)
    def lmhub_generate(self, model: LoadedModel, request: GenerationRequest) -> AsyncIterator[Event]:
        """The engine's events; `closed` gets the id once the server lets go of them."""
        return self._events(self._hub.acquire(model.id).engine, request)

    async def _events(self, engine: Engine, request: GenerationRequest) -> AsyncIterator[Event]:
        events = engine.generate(request)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()  # type: ignore[attr-defined]
            self.closed.put(request.id)


@dataclass
class Rig:
    """A hub with one or more scripted models, and what its observer saw."""

    hub: Hub
    observer: Observer

    @property
    def engine(self) -> Engine:
        """The engine of the first model."""
        return self.hub.acquire(self.hub.models[0].id).engine


@pytest.fixture
def rig() -> Iterator[Callable[..., Rig]]:
    """`rig(model, ..., batch=, queue=)`: a hub that serves these models; its engines are stopped behind the test."""
    hubs: list[Hub] = []

    def make(*models: CausalLM, n_ctx: int = 512, **settings: int) -> Rig:
        hub = Hub(entry_points=False)
        hubs.append(hub)
        observer = Observer(hub)
        hub.plugins.register(observer, "observer")
        for number, model in enumerate(models):
            hub.serve(fake_loaded(model, f"fake{number or ''}", n_ctx), EngineSettings(**settings))
        return Rig(hub, observer)

    yield make
    for hub in hubs:
        hub.close()


@dataclass
class Api:
    """An application in process. Every call is a client of its own, on the one event loop of `runner`."""

    rig: Rig
    app: Any
    runner: asyncio.Runner

    def request(self, method: str, path: str, **request: Any) -> httpx.Response:
        """One request."""

        async def main() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, path, **request)

        return self.runner.run(main())

    def get(self, path: str, **headers: str) -> httpx.Response:
        """A GET; underscores in the names of headers become dashes."""
        return self.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """A JSON body of these fields."""
        return self.request("POST", path, json=fields)

    def chat(self, **fields: Any) -> httpx.Response:
        """A chat request; without `messages`, one short message."""
        return self.post("/v1/chat/completions", **{"messages": [{"role": "user", "content": "hi"}], **fields})

    def reply(self, **fields: Any) -> Any:
        """The first choice of a chat request, which must succeed."""
        response = self.chat(**fields)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    def error(self, **fields: Any) -> Any:
        """The error of a chat request, whose status must be 400."""
        response = self.chat(**fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"].keys() == {"message", "type", "param", "code"}
        return response.json()["error"]

    def chunks(self, path: str = "/v1/chat/completions", **fields: Any) -> list[Any]:
        """The chunks of a stream that ends with `[DONE]`."""
        if path.endswith("chat/completions"):
            fields = {"messages": [{"role": "user", "content": "hi"}], **fields}
        response = self.post(path, stream=True, **fields)
        assert response.status_code == 200, response.text
        frames = response.text.split("\n\n")
        assert frames[-2:] == ["data: [DONE]", ""]
        return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2] if not frame.startswith(":")]


@pytest.fixture
def api(rig: Callable[..., Rig]) -> Iterator[Callable[..., Api]]:
    """`api(reply, **settings)`: an application whose model is `reply`, or says it (with FakeTokenizer's markers)."""
    runners = ExitStack()

    def make(reply: str | CausalLM = "Hello", engine: dict[str, int] | None = None, **settings: Any) -> Api:
        model = FakeModel(FakeTokenizer().encode(reply, special=True)) if isinstance(reply, str) else reply
        made = rig(model, **{"n_ctx": 2048, **(engine or {})})
        app = create_app(made.hub, ServerSettings(**settings))
        return Api(made, app, runners.enter_context(asyncio.Runner()))

    with runners:
        yield make


@dataclass
class Running:
    """A server thread. `reached` gets the address once it is ready, `failure` what ended it, if anything did."""

    server: HubServer
    reached: queue.SimpleQueue[str]
    failure: list[BaseException]

    @property
    def address(self) -> str:
        """URL without a path."""
        return self.server.address


@pytest.fixture
def serving() -> Callable[..., Any]:
    """`with serving(hub, load=, **settings) as running:` a server on a free port, stopped at the end.

    It is ready inside the block, unless `load` was given: then it has only begun to load.
    """

    @contextmanager
    def run(hub: Hub, load: Callable[[], object] | None = None, **settings: Any) -> Iterator[Running]:
        reached: queue.SimpleQueue[str] = queue.SimpleQueue()
        failure: list[BaseException] = []

        def begin() -> None:
            if load is not None:
                reached.put("loading")
                load()

        server = HubServer(hub, ServerSettings(port=0, **settings), begin, reached.put)

        def main() -> None:
            try:
                server.serve_until_stopped()
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=main)
        thread.start()
        try:
            reached.get(timeout=PATIENCE_S)
            yield Running(server, reached, failure)
        finally:
            server.stop()
            thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not stop"

    return run
