"""Plain values that travel between the wire, the engine and back. Frozen and slotted; standard library only.

The path: `bytes -parse-> ChatRequest -prepare-> GenerationRequest -submit-> Slot -step-> Commit -reply-> Event
-encode-> bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "stop_sequence", "length", "tool_calls", "cancelled"]
Role = Literal["system", "user", "assistant", "tool"]

# --- conversation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Text:
    """Words that a person or a model wrote. Never markup, whatever they spell."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought before it answered; replayed only where its template wants it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made. `arguments` is JSON text, as the model or the client wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered to the call `call_id`."""

    call_id: str
    content: str


Part = Text | Reasoning | ToolCall | ToolResult


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All text parts, joined without a separator."""
        return "".join(part.text for part in self.parts if isinstance(part, Text))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema, or None where the client gave none."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None


# --- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is drawn from logits, everything resolved. The defaults are neutral: greedy, no cuts, no penalty."""

    temperature: float = 0.0
    top_k: int = 0  # 0 = no limit
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64  # tokens of prompt and reply that the penalties look back on; -1 = all
    seed: int = 0  # 64 bits


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A conversation to be continued, as a dialect understood it. None and empty mean "not given"."""

    messages: tuple[Message, ...]
    model: str | None = None
    tools: tuple[Tool, ...] = ()
    sampling: Mapping[str, float | int] = field(default_factory=dict)  # only the given fields of SamplingParams
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    reasoning: bool | None = None  # None: the template's own default
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False
    include_usage: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of the visible reply. `literal` bytes (a malformed call that flows back) are exempt from stop strings."""

    data: bytes
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Thought:
    """Bytes of the reasoning."""

    data: bytes


class ReplyParser(Protocol):
    """Sorts the bytes of one reply into channels; the engine then looks for stop strings, then decodes UTF-8.

    `token -> piece -> ReplyParser -> stop scanner (Content only) -> UTF-8 decoder -> events`. So a parser works on
    bytes, may cut inside a character, and never sees what a stop string cut off. One instance serves one reply. The
    token that ends the generation is not fed. A change of channel, and every tool event, is a boundary that no stop
    string spans.
    """

    reasoning_tokens: int  # tokens fed so far that belonged to reasoning, its markers included

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """What `token`, whose text is `piece` (none for control tokens), completes. Possible markers are held back."""
        ...

    def finish(self) -> Sequence[ReplyItem]:
        """What was held back when the reply ended by itself or its budget. Not called after a stop string or cancel."""
        ...


LogitsProcessor = Callable[["np.ndarray", Sequence[int]], None]  # (float32 (n_vocab,), prompt and reply so far)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What the engine runs: ids in, a budget, and how to read what comes out. Nothing is optional by accident."""

    id: str
    prompt: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    eog: frozenset[int]
    stop: tuple[str, ...] = ()
    suppressed: frozenset[int] = frozenset()  # ids that must never be sampled (vocabulary fillers)
    processors: tuple[LogitsProcessor, ...] = ()  # edit a copy of the logits in place, on the engine's thread
    parser: ReplyParser | None = None  # None: everything is text


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. `cached_tokens` of the prompt were taken from an earlier request's state."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the visible reply."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The model opened its call number `index` (from 0)."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the JSON text of the arguments of call `index`."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one generation went, in seconds."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of a generation that ended as planned."""

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    timings: Timings = Timings()


@dataclass(frozen=True, slots=True)
class Failure:
    """The last event of a generation that did not. `error` is a LmhubError."""

    error: Exception


ReplyItem = Content | Thought | ToolCallStart | ToolCallDelta
Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | Finish | Failure


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """One generation that ended, for metrics and logs."""

    id: str
    model: str
    family: str
    finish: FinishReason | Literal["failed"]
    usage: Usage
    timings: Timings
