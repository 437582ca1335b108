"""Events to the older Completions: chunks of a stream, or one body. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmhub.dialect import ReplyHead
from lmhub.server.choices import total
from lmhub.server.extension import extension
from lmhub.server.logprobs import legacy
from lmhub.server.openai_chat_encode import FINISH_REASONS, as_lmhub_error
from lmhub.server.openai_usage import usage
from lmhub.server.wire import SSE_DONE, SSE_PING, openai_error_object, sse, to_json
from lmhub.types import CompletionRequest, Event, Failure, Finish, PromptScored, TextDelta, TokenIds, TokenLogprob


class CompletionEncoder:
    """One streamed reply of all choices. The echoed prompt is the first chunk of each."""

    def __init__(self, head: ReplyHead):
        self._head, self._request = head, _request(head)
        self._n_chars = [0] * (len(self._request.prompts) * self._request.n)  # of the text told so far
        self._token_ids: list[list[int]] = [[] for _ in self._n_chars]
        self._opened: set[int] = set()
        self._finishes: dict[int, Finish] = {}

    def event(self, event: Event, choice: int = 0) -> bytes:
        """The frames of one event."""
        if isinstance(event, Failure):
            return sse(openai_error_object(as_lmhub_error(event.error)))
        frames = b""
        if choice not in self._opened and not isinstance(event, PromptScored):
            frames += self._open(choice, ())
        if isinstance(event, PromptScored):
            frames += self._open(choice, event.logprobs)
        elif isinstance(event, TokenIds):
            self._token_ids[choice] += event.tokens
        elif isinstance(event, TextDelta):
            frames += self._text(choice, event.text, event.logprobs)
        elif isinstance(event, Finish):
            frames += self._closing(event, choice)
        return frames

    def ping(self) -> bytes:
        """A comment."""
        return SSE_PING

    def _open(self, choice: int, scored: Sequence[TokenLogprob]) -> bytes:
        self._opened.add(choice)
        text = echoed(self._head, choice)
        return self._text(choice, text, scored) if text or scored else b""

    def _text(self, choice: int, text: str, tokens: Sequence[TokenLogprob]) -> bytes:
        logprobs = legacy(tokens, self._n_chars[choice]) if tokens and self._request.logprobs is not None else None
        self._n_chars[choice] += len(text)
        return self._chunk(choice, text, logprobs)

    def _closing(self, finish: Finish, choice: int) -> bytes:
        self._finishes[choice] = finish
        is_last = len(self._finishes) == len(self._n_chars)
        more = extension(self._finishes.values()) if is_last else {}
        frames = self._chunk(choice, "", None, FINISH_REASONS[finish.reason], more)
        if not is_last:
            return frames
        if self._request.include_usage:
            counts = usage(total(self._request, [self._finishes[k] for k in sorted(self._finishes)]))
            frames += sse({**_common(self._head), "choices": [], "usage": counts})
        return frames + SSE_DONE

    def _chunk(
        self,
        number: int,
        text: str,
        logprobs: Any,
        finish_reason: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        if self._request.return_token_ids:
            choice["token_ids"], self._token_ids[number] = self._token_ids[number], []
            choice["prompt_token_ids"] = self._head.prompts[number]
        return sse({**_common(self._head), "choices": [choice], **(more or {})})


def collect(head: ReplyHead, replies: Sequence[Sequence[Event]]) -> bytes:
    """The body of a reply that is not streamed. The last event of each choice is a Finish."""
    finishes = [events[-1] for events in replies if isinstance(events[-1], Finish)]
    choices = [_choice(head, number, events) for number, events in enumerate(replies)]
    counts = usage(total(head.request, finishes))
    return to_json({**_common(head), "choices": choices, "usage": counts, **extension(finishes)})


def echoed(head: ReplyHead, choice: int) -> str:
    """The text of the choice's prompt where the request wants it back. Ids become the text that the model reads."""
    request = _request(head)
    if not request.echo_prompt:
        return ""
    prompt = request.prompts[choice // request.n]
    return prompt if isinstance(prompt, str) else head.prompt_texts[choice]


def _choice(head: ReplyHead, number: int, events: Sequence[Event]) -> dict[str, Any]:
    finish = events[-1]
    assert isinstance(finish, Finish)
    text = echoed(head, number) + "".join(event.text for event in events if isinstance(event, TextDelta))
    logprobs = None
    if head.request.logprobs is not None:
        scored = [token for event in events if isinstance(event, PromptScored) for token in event.logprobs]
        said = [token for event in events if isinstance(event, TextDelta) for token in event.logprobs]
        logprobs = legacy([*scored, *said], 0 if scored else len(echoed(head, number)))
    choice = {"index": number, "text": text, "logprobs": logprobs, "finish_reason": FINISH_REASONS[finish.reason]}
    if head.request.return_token_ids:
        choice["token_ids"] = [token for event in events if isinstance(event, TokenIds) for token in event.tokens]
        choice["prompt_token_ids"] = head.prompts[number]
    return choice


def _request(head: ReplyHead) -> CompletionRequest:
    assert isinstance(head.request, CompletionRequest)
    return head.request


def _common(head: ReplyHead) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
