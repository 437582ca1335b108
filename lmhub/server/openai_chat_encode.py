"""Events to Chat Completions: chunks of a stream, or one body. Pure; knows neither sockets nor requests in flight."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lmhub.dialect import ReplyHead
from lmhub.errors import GenerationError, LmhubError
from lmhub.server.choices import total
from lmhub.server.extension import extension
from lmhub.server.logprobs import entries
from lmhub.server.openai_chat_delta import Delta, Deltas
from lmhub.server.openai_chat_parse import ChatEcho
from lmhub.server.openai_usage import timings, usage
from lmhub.server.wire import SSE_DONE, SSE_PING, openai_error_object, sse, to_json
from lmhub.types import ChatRequest, Event, Failure, Finish, TextDelta, TokenIds

FINISH_REASONS = {
    "stop": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "cancelled": "stop",
}


class ChatEncoder:
    """One streamed reply. SDKs concatenate the deltas, so role, call ids and names are said exactly once per choice.

    `both`: the reasoning comes under `reasoning` as well as under `reasoning_content`.
    """

    def __init__(self, head: ReplyHead, both: bool = False):
        self._head, self._request = head, _chat(head)
        self._deltas = [Deltas(_echo(head), both) for _ in range(self._request.n)]
        self._token_ids: list[list[int]] = [[] for _ in self._deltas]
        self._finishes: dict[int, Finish] = {}

    def event(self, event: Event, choice: int = 0) -> bytes:
        """The frames of one event. After a Failure the stream ends without `[DONE]`: SDKs raise on the error itself."""
        if isinstance(event, Failure):
            return sse(openai_error_object(as_lmhub_error(event.error)))
        if isinstance(event, TokenIds):
            self._token_ids[choice] += event.tokens
            return b""
        frames = b"".join(self._chunk(choice, delta, event) for delta in self._deltas[choice].of(event))
        return frames + self._closing(event, choice) if isinstance(event, Finish) else frames

    def ping(self) -> bytes:
        """A comment; allowed anywhere between events, before the first one as well."""
        return SSE_PING

    def _closing(self, finish: Finish, choice: int) -> bytes:
        self._finishes[choice] = finish
        more = {"timings": timings(finish)} if _echo(self._head).timings else {}
        if len(self._finishes) == len(self._deltas):
            more |= extension(self._finishes.values())
        frames = self._chunk(choice, {}, finish, FINISH_REASONS[finish.reason], more)
        if len(self._finishes) < len(self._deltas):
            return frames
        if self._request.include_usage:
            counts = usage(total(self._request, [self._finishes[k] for k in sorted(self._finishes)]))
            frames += sse({**_common(self._head, "chat.completion.chunk"), "choices": [], "usage": counts})
        return frames + SSE_DONE

    def _chunk(
        self, number: int, delta: Delta, event: Event, finish_reason: str | None = None, more: Delta | None = None
    ) -> bytes:
        logprobs = None
        if isinstance(event, TextDelta) and event.logprobs and delta.get("role") is None:
            logprobs = {"content": entries(event.logprobs), "refusal": None}
        choice: dict[str, Any] = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        if self._request.return_token_ids and "role" in delta:
            choice["prompt_token_ids"] = self._head.prompts[number]
        elif self._request.return_token_ids:
            choice["token_ids"], self._token_ids[number] = self._token_ids[number], []
        return sse({**_common(self._head, "chat.completion.chunk"), "choices": [choice], **(more or {})})


def collect(head: ReplyHead, replies: Sequence[Sequence[Event]], both: bool = False) -> bytes:
    """The body of a reply that is not streamed. The last event of each choice is a Finish."""
    finishes = [events[-1] for events in replies if isinstance(events[-1], Finish)]
    body = {
        **_common(head, "chat.completion"),
        "service_tier": "default",
        "choices": [_choice(head, number, events, both) for number, events in enumerate(replies)],
        "usage": usage(total(head.request, finishes)),
        **extension(finishes),
    }
    if _echo(head).timings:
        body["timings"] = timings(finishes[0])
    if head.request.return_token_ids:
        body["prompt_token_ids"] = head.prompts[0]
    return to_json(body)


def as_lmhub_error(error: Exception) -> LmhubError:
    """`error` itself if it is fit to be shown, else a sentence that says as much as a client may know."""
    if isinstance(error, LmhubError):
        return error
    return GenerationError("the generation failed; the server's log says why")


def _choice(head: ReplyHead, number: int, events: Sequence[Event], both: bool) -> dict[str, Any]:
    finish = events[-1]
    assert isinstance(finish, Finish)
    logprobs = None
    if head.request.logprobs is not None:
        tokens = [token for event in events if isinstance(event, TextDelta) for token in event.logprobs]
        logprobs = {"content": entries(tokens), "refusal": None}
    choice: dict[str, Any] = {
        "index": number,
        "message": _message(events, Deltas(_echo(head), both)),
        "logprobs": logprobs,
        "finish_reason": FINISH_REASONS[finish.reason],
    }
    if head.request.return_token_ids:
        choice["prompt_token_ids"] = head.prompts[number]
        choice["token_ids"] = [token for event in events if isinstance(event, TokenIds) for token in event.tokens]
    return choice


def _message(events: Sequence[Event], deltas: Deltas) -> dict[str, Any]:
    """The assistant's message, put together as a client would from the stream.

    Keys of what there is none of are left out: an empty array of calls stalls clients.
    """
    said = [delta for event in events for delta in deltas.of(event)]
    calls: dict[int, dict[str, Any]] = {}
    for delta in said:
        for part in delta.get("tool_calls", ()):
            _join(calls, part)
    text = _joined("content", said)
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    message |= {"refusal": None, "annotations": []}
    message |= {name: text for name in ("reasoning_content", "reasoning") if (text := _joined(name, said))}
    if calls:
        message["tool_calls"] = list(calls.values())
    return message


def _join(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    """Add a fragment of a call to the call of its index."""
    if "id" in part:
        kind = part["type"]
        calls[part["index"]] = {"id": part["id"], "type": kind, kind: dict(part[kind])}
        return
    call = calls[part["index"]]
    ((name, fragment),) = part[call["type"]].items()
    call[call["type"]][name] += fragment


def _joined(name: str, said: Iterable[Delta]) -> str:
    return "".join(delta.get(name) or "" for delta in said)


def _chat(head: ReplyHead) -> ChatRequest:
    assert isinstance(head.request, ChatRequest)
    return head.request


def _echo(head: ReplyHead) -> ChatEcho:
    return head.request.echo if isinstance(head.request.echo, ChatEcho) else ChatEcho()


def _common(head: ReplyHead, kind: str) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
