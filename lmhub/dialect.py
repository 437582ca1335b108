"""The record with which an HTTP dialect registers, and the shape of its two pure halves.

A dialect turns bytes into a Request, and events into bytes. It knows neither sockets nor models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lmhub.errors import LmhubError
from lmhub.types import Event, GenerationRequest, Request


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every frame of a reply repeats. `created` is in Unix seconds."""

    id: str
    model: str
    created: int
    fingerprint: str
    request: Request
    prompts: tuple[tuple[int, ...], ...] = ()  # the token ids of each choice's prompt
    prompt_texts: tuple[str, ...] = ()  # their texts, where a CompletionRequest asks for them to be echoed
    generations: tuple[GenerationRequest, ...] = ()  # what the engine was asked for, choice by choice


class Encoder(Protocol):
    """Encodes one streamed reply of one or more choices."""

    def event(self, event: Event, choice: int = 0) -> bytes:
        """The frames for one event; the first call also yields what opens a stream, the last one what closes it.

        Every choice ends with a Finish; a Failure ends the whole stream, whatever other choices are still running.
        """
        ...

    def ping(self) -> bytes:
        """A frame that keeps the connection alive and that clients skip."""
        ...


@dataclass(frozen=True, slots=True)
class Field:
    """What becomes of one field of a request body, dotted where it is nested; `doc` says how, or what to do instead."""

    name: str
    kind: Literal["honoured", "ignored", "refused"]
    doc: str


@dataclass(frozen=True, slots=True)
class Page:
    """A small resource beside the generations, such as a stored reply.

    `path` may hold `{name}` parameters. `answer(parameters, query)` returns a JSON body or raises LmhubError; it must
    not block.
    """

    method: str
    path: str
    answer: Callable[[Mapping[str, str], Mapping[str, str]], bytes]


@dataclass(frozen=True, slots=True)
class Dialect:
    """An HTTP dialect. `routes` are POST paths without the `/v1` prefix, under which they are served as well.

    `id_prefix` starts its reply ids. `parse` raises RequestError; `collect` builds the body of a reply that is not
    streamed from all events of each choice, the last of which is a Finish; `error` frames a failure that comes before
    the first byte, for every path that starts with one of `prefixes`. `keeps_reasoning`: clients send the reasoning of
    a reply back with the next turn. `count_routes` take the same body as `routes` (or
    what `parse_count` parses) and are answered by `count`, given the number of prompt tokens. `pages` are served as
    well. `fields` and `schema` (a JSON schema of the body) describe the requests at `/openapi.json`.
    """

    name: str
    routes: tuple[str, ...]
    id_prefix: str
    parse: Callable[[bytes], Request]
    encoder: Callable[[ReplyHead], Encoder]
    collect: Callable[[ReplyHead, Sequence[Sequence[Event]]], bytes]
    error: Callable[[LmhubError], bytes]
    doc: str = ""
    prefixes: tuple[str, ...] = ()
    keeps_reasoning: bool = False
    count_routes: tuple[str, ...] = ()
    count: Callable[[int], bytes] | None = None
    parse_count: Callable[[bytes], Request] | None = None
    pages: tuple[Page, ...] = ()
    fields: tuple[Field, ...] = ()
    schema: Mapping[str, Any] | None = None
