"""Events to Responses: the typed events of a stream, or one body; a finished response goes to the store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lmhub.dialect import ReplyHead
from lmhub.errors import GenerationError, LmhubError, RequestError
from lmhub.server.responses_items import Frame
from lmhub.server.responses_object import failed, finished, in_progress
from lmhub.server.responses_output import Output
from lmhub.server.responses_record import Asked, Given
from lmhub.server.responses_seal import Seal
from lmhub.server.responses_store import Item, Kept, ResponseStore
from lmhub.server.wire import SSE_PING, to_json
from lmhub.types import Event, Failure, Finish

SILENCE_S = 59.0  # after so long a comment is not enough: some clients' idle timers count parsed events only

_ID_PREFIXES = {"message": "msg_", "function_call": "fc_", "custom_tool_call": "ctc_", "reasoning": "rs_"}


class ResponsesEncoder:
    """One streamed response. Sequence numbers run from 0 without gaps, repeated `in_progress` events included."""

    def __init__(self, head: ReplyHead, store: ResponseStore, seal: Seal, clock: Callable[[], float] = time.monotonic):
        self._head, self._store, self._clock = head, store, clock
        self._output = Output(head, seal.close)
        self._n_events = 0
        self._told = clock()  # when the last event went out

    def event(self, event: Event, choice: int = 0) -> bytes:
        """The frames of one event. A failure is told twice, for clients that look at one kind of frame only."""
        frames = [] if self._n_events else self._skeleton()
        if isinstance(event, Failure):
            error = _shown(event.error)
            response = failed(self._head, self._output, error)
            frames += [_error_frame(error), {"type": "response.failed", "response": response}]
        elif isinstance(event, Finish):
            frames += self._output.finish(event.reason)
            response = _settle(self._head, self._output, event, self._store)
            frames.append({"type": f"response.{response['status']}", "response": response})
        else:
            frames += self._output.feed(event)
        return self._written(frames)

    def ping(self) -> bytes:
        """A comment, and once in a minute of silence an event that says again what is known."""
        if self._clock() - self._told < SILENCE_S:
            return SSE_PING
        return self._written(self._skeleton()[1:] if self._n_events else self._skeleton())

    def _skeleton(self) -> list[Frame]:
        response = in_progress(self._head)
        return [
            {"type": "response.created", "response": response},
            {"type": "response.in_progress", "response": response},
        ]

    def _written(self, frames: Iterable[Frame]) -> bytes:
        out = b""
        for frame in frames:
            # The type goes first: clients that read by eye, or by prefix, expect it there.
            numbered = {"type": frame["type"], "sequence_number": self._n_events, **frame}
            out += b"event: " + frame["type"].encode() + b"\ndata: " + to_json(numbered) + b"\n\n"
            self._n_events += 1
            self._told = self._clock()
        return out


def collect(head: ReplyHead, replies: Sequence[Sequence[Event]], store: ResponseStore, seal: Seal) -> bytes:
    """The body of a response that is not streamed."""
    *events, finish = replies[0]
    assert isinstance(finish, Finish)
    output = Output(head, seal.close)
    for event in events:
        output.feed(event)
    output.finish(finish.reason)
    return to_json(_settle(head, output, finish, store))


def count(n_tokens: int) -> bytes:
    """The answer of `input_tokens`."""
    return to_json({"object": "response.input_tokens", "input_tokens": n_tokens})


def _settle(head: ReplyHead, output: Output, finish: Finish, store: ResponseStore) -> dict[str, Any]:
    """The finished response, which the store keeps unless the client asked it not to."""
    response = finished(head, output, finish)
    asked = head.request.echo
    assert isinstance(asked, Asked)
    if asked.store:
        given = tuple(_input_item(one, head.id, place) for place, one in enumerate(asked.input))
        made = tuple(Item(item["id"], to_json(item)) for item in output.kept_items())
        store.put(Kept(head.id, to_json(response), given, made))
    return response


def _input_item(given: Given, response_id: str, place: int) -> Item:
    """An input item with an id, which clients leave out."""
    if given.kept is not None:
        return given.kept
    value: Mapping[str, Any] = given.value
    id = value.get("id")
    if not isinstance(id, str) or not id:
        digest = hashlib.sha256(f"{response_id} input {place}".encode()).hexdigest()
        id = _ID_PREFIXES.get(value["type"], "item_") + digest[:24]
    return Item(id, to_json({**value, "id": id}))


def _error_frame(error: LmhubError) -> Frame:
    """Flat, as the documentation has it, and nested, as the hosted service sends it: SDKs raise on the latter only."""
    param = error.param if isinstance(error, RequestError) else None
    code = error.code or "server_error"
    told = {"code": code, "message": str(error), "param": param}
    return {"type": "error", **told, "error": {"type": error.kind, **told}}


def _shown(error: Exception) -> LmhubError:
    if isinstance(error, LmhubError):
        return error
    return GenerationError("the generation failed; the server's log says why")
