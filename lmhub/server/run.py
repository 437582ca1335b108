"""Runs the application on a socket: bind first, load behind an open port, drain on the first signal, go on the second.

Prints nothing; `on_ready` tells the caller. What a request meets at each phase is decided in state.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from lmhub.hub import Hub
from lmhub.server.app import call_shutdown, call_startup, create_app
from lmhub.server.gate import HEAD_BYTES
from lmhub.server.listen import bind
from lmhub.server.state import ServerState
from lmhub.settings import ServerSettings

KEEP_ALIVE_S = 75  # longer than the pools of the usual clients keep a connection, so that the client closes first
# Shares of `grace_s`: replies may run on, then connections may be flushed; at the last the process ends whatever hangs.
RUN_ON, FLUSH, LAST = 0.6, 0.2, 0.95


def serve(
    hub: Hub,
    settings: ServerSettings,
    load: Callable[[], object],
    on_ready: Callable[[str], object] = lambda address: None,
    listener: socket.socket | None = None,
) -> None:
    """Serve `hub` until SIGINT or SIGTERM; returns within `settings.grace_s` of it, with every engine stopped.

    Where sequences are written to disk at the end, that has its own time on top (`Hub.flush_s`). `listener` is a socket
    that `bind` has made of `settings`, for a caller who needed the port earlier; it is closed at the end.
    `load` fills the hub, on a thread of its own while the port already answers 503; then `on_ready(address)` is called
    on the event loop, `address` being a URL. Signals are handled only where this runs on the main thread. Raises
    LmhubError if the port cannot be bound, and whatever `load` raises.
    """
    HubServer(hub, settings, load, on_ready, listener).serve_until_stopped()


class HubServer(uvicorn.Server):
    """A uvicorn server that loads its models behind an open port and lets replies finish before it stops."""

    def __init__(
        self,
        hub: Hub,
        settings: ServerSettings,
        load: Callable[[], object],
        on_ready: Callable[[str], object],
        listener: socket.socket | None = None,
    ) -> None:
        self.hub_state = ServerState()
        super().__init__(
            uvicorn.Config(
                create_app(hub, settings, self.hub_state),
                http="h11",  # the parser whose refusals this server is tested with
                loop="asyncio",
                ws="none",
                lifespan="off",  # it would end before the models are loaded
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=settings.grace_s * FLUSH,  # type: ignore[arg-type]  # any number of seconds
                h11_max_incomplete_event_size=HEAD_BYTES,
            )
        )
        self._hub, self._settings, self._load, self._on_ready = hub, settings, load, on_ready
        self._loader = threading.Thread(target=self._load_all, name="lmhub-loader", daemon=True)
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = False
        self._last: threading.Timer | None = None
        self._socket = listener

    def serve_until_stopped(self) -> None:
        """Bind, run, stop the engines. Raises LmhubError if the port cannot be bound, and whatever loading raised."""
        self._socket = self._socket or bind(self._settings.host, self._settings.port)
        with self._socket, self._signals():
            try:
                self.run(sockets=[self._socket])
            finally:
                self._close_hub()
                if self._last is not None:
                    self._last.cancel()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Drain and stop, from any thread; returns at once. What hangs is waited for, unlike after a signal."""
        self._stopping = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_drain)

    # --- loading -----------------------------------------------------------------------------------------------------

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port, then start loading."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self._loader.start()
        if self._stopping:  # a signal came before there was a loop to tell
            self._begin_drain()

    def _load_all(self) -> None:
        error: BaseException | None = None
        try:
            self._load()
        except BaseException as raised:  # handed to the main thread, which raises it
            error = raised
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._loaded, error)
        except RuntimeError:  # the loop is closed: the server was stopped while it loaded
            return

    def _loaded(self, error: BaseException | None) -> None:
        if self.hub_state.phase != "loading":
            return
        if error is None:
            try:
                call_startup(self._hub)
                self.hub_state.phase = "ready"
                self._on_ready(self.address)
            except Exception as raised:
                error = raised
        if error is not None:
            self._failure = error
            self.should_exit = True

    @property
    def address(self) -> str:
        """Where a client on this machine reaches the server, as a URL without a path."""
        assert self._socket is not None
        host, port = self._socket.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    # --- stopping ----------------------------------------------------------------------------------------------------

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: `_signals` covers the stopping of the engines as well, and uvicorn would re-raise what it caught."""
        yield

    @contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains; the second ends the process, since a native call cannot be interrupted otherwise."""
        if self._stopping:
            _exit_now(128 + sig)
        self._last = threading.Timer(self._settings.grace_s * LAST + self._hub.flush_s, _exit_now, (0,))
        self._last.daemon = True
        self._last.start()
        self.stop()

    def _begin_drain(self) -> None:
        if self.hub_state.phase == "draining":
            return
        self.hub_state.phase = "draining"
        self._drain_task = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        """Answer new requests with 503 while the running ones finish; cut those that take too long."""
        try:
            async with asyncio.timeout(self._settings.grace_s * RUN_ON):
                await self.hub_state.idle.wait()
        except TimeoutError:
            self.hub_state.cut.set()
        self.should_exit = True

    def _close_hub(self) -> None:
        if self._loader.is_alive():  # what it loads ends with the process
            return
        self._hub.close()
        call_shutdown(self._hub)


def _exit_now(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
