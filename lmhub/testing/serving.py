"""A hub that serves a scripted model through the real engine, for tests of hooks, dialects and clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lmhub.family import HERMES, Caps, Family, ThinkMarkers
from lmhub.hub import Hub, Served
from lmhub.loaded import LoadedModel
from lmhub.model import CausalLM, MemoryPlan
from lmhub.settings import EngineSettings
from lmhub.testing.fake import PATIENCE_S, FakeModel, FakeTokenizer
from lmhub.types import SamplingParams

FAMILY = Family(
    "fake", ("fake",), load="none:none", caps=Caps(tools=True, reasoning=True), think=ThinkMarkers(), tools=HERMES
)


def fake_loaded(model: CausalLM, name: str = "fake", n_ctx: int = 512, **fields: Any) -> LoadedModel:
    """A LoadedModel around a fake model; `fields` replace any of its fields. Its prompts are ChatML."""
    known: dict[str, Any] = {
        "id": name,
        "family": FAMILY,
        "distribution": "lmhub-fake",
        "metadata": {"general.name": "A scripted model"},
        "model": model,
        "tokenizer": FakeTokenizer(),
        "n_ctx": n_ctx,
        "plan": MemoryPlan(0, 0, 0),
        "created": 1760000000,
        "n_params": 1000,
        "nbytes": 4000,
        "quantization": "F32",
        "sampling": SamplingParams(),
    }
    return LoadedModel(**{**known, **fields})


@contextmanager
def serve_fake(
    hub: Hub, reply: str | Sequence[int] | Callable[..., Sequence[int]], **settings: Any
) -> Iterator[Served]:
    """Serve a FakeModel on `hub` and close the hub at the end.

    `reply` is a text, in which `<think>` and the other markers of FakeTokenizer become their tokens, or what FakeModel
    takes.
    """
    script = FakeTokenizer().encode(reply, special=True) if isinstance(reply, str) else reply
    try:
        yield hub.serve(fake_loaded(FakeModel(script)), EngineSettings(**settings))
    finally:
        hub.close()


@contextmanager
def running(hub: Hub, load: Callable[[], object] | None = None, **settings: Any) -> Iterator[str]:
    """Serve `hub` over HTTP on a free port of 127.0.0.1, on a thread of its own: the URL, without a path.

    It is ready inside the block, unless `load` was given: then it has only begun to load.
    """
    from lmhub.server.run import HubServer
    from lmhub.settings import ServerSettings

    ready: queue.SimpleQueue[str | BaseException] = queue.SimpleQueue()

    def begin() -> None:
        if load is not None:
            ready.put(server.address)
            load()

    server = HubServer(hub, ServerSettings(port=0, **settings), begin, ready.put)

    def main() -> None:
        try:
            server.serve_until_stopped()
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=main, name="lmhub-test-server")
    thread.start()
    try:
        address = ready.get(timeout=PATIENCE_S)
        if isinstance(address, BaseException):
            raise address
        yield address
    finally:
        server.stop()
        thread.join(PATIENCE_S)
