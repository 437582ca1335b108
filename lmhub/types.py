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
class GrammarSpec:
    """What a text must match.

    `source` is a JSON schema as JSON text, whose key order counts, or text in the kind's language. `param` is
    the request field that it came from; an error about the grammar names it.
    """

    kind: Literal["json_schema", "regex", "lark", "gbnf", "choice"]  # choice: a JSON list of strings
    source: str
    param: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema, or None where the client gave none.

    A custom tool takes free text instead, which `format` may constrain; the model sees it as a function of one string,
    `input`. `strict` asks for the schema to be enforced on forced calls, `eager` for arguments in fragments as they
    come.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False
    custom: bool = False
    format: GrammarSpec | None = None
    eager: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """auto: the model decides; none: no calls; any: exactly one call. `names` narrows auto and any to these tools."""

    mode: Literal["auto", "none", "any"] = "auto"
    names: tuple[str, ...] = ()


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
class Denoising:
    """How a diffusion model turns a canvas of noise into a block, everything resolved.

    Temperatures fall from `t_max` at the first of `steps` passes towards `t_min`. A pass keeps the positions it is
    surest of, as long as their entropies come to no more than `entropy_bound` nats together, and fills the others with
    noise again. The block has settled after `stability` passes with the same likeliest tokens as the one before and a
    mean entropy below `confidence` nats, or after the last pass. `greedy`: kept positions get their likeliest token
    instead of a drawn one.
    """

    steps: int = 48
    t_min: float = 0.4
    t_max: float = 0.8
    entropy_bound: float = 0.1
    stability: int = 1
    confidence: float = 0.005
    greedy: bool = False
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
    reasoning_budget: int | None = None  # tokens; the reasoning is closed when they are used up
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    grammar: GrammarSpec | None = None
    continue_final: bool = False  # the reply continues the last message, which is the assistant's
    n: int = 1
    logprobs: int | None = None  # alternatives to report for each token; None: no log probabilities at all
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    return_token_ids: bool = False
    stream: bool = False
    include_usage: bool = False
    denoising: Mapping[str, float | int] = field(default_factory=dict)  # only the given fields of Denoising
    drafts: bool = False  # see GenerationRequest
    ping_s: float | None = None  # seconds of silence after which a stream gets a ping; -1: never; None: as served
    lenient: bool = False  # a model without tools or reasoning answers without them instead of refusing the request
    echo: Any = None  # what the dialect's encoder wants to remember of the request; nobody else looks at it


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """Raw texts or ids to be continued, without a chat template; `len(prompts) * n` choices, prompt by prompt."""

    prompts: tuple[str | tuple[int, ...], ...]
    model: str | None = None
    suffix: str | None = None
    echo_prompt: bool = False
    sampling: Mapping[str, float | int] = field(default_factory=dict)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    grammar: GrammarSpec | None = None
    n: int = 1
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    ignore_eos: bool = False
    return_token_ids: bool = False
    stream: bool = False
    include_usage: bool = False
    denoising: Mapping[str, float | int] = field(default_factory=dict)  # only the given fields of Denoising
    drafts: bool = False  # see GenerationRequest
    ping_s: float | None = None
    echo: Any = None


Request = ChatRequest | CompletionRequest


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
    in_reasoning: bool  # whether the next token would be reasoning

    @property
    def n_calls(self) -> int:
        """Tool calls that are complete."""
        ...

    def feed(self, token: int, piece: bytes) -> Sequence[ReplyItem]:
        """What `token`, whose text is `piece` (none for control tokens), completes. Possible markers are held back."""
        ...

    def finish(self, cut: bool = False) -> Sequence[ReplyItem]:
        """What was held back when the reply ended by itself or its budget. Not called after a stop string or cancel.

        `cut`: its budget ended it, so that a call which is not complete is none.
        """
        ...


LogitsProcessor = Callable[["np.ndarray", Sequence[int]], None]  # (float32 (n_vocab,), prompt and reply so far)


class Constraint(Protocol):
    """Says which tokens may come next. One instance serves one reply; one thread at a time uses it.

    It may sleep: `mask` returns None as long as everything is allowed, for instance until a reasoning block is closed
    or a tool call is opened.
    """

    def mask(self) -> np.ndarray | None:
        """uint32 (at least ceil(n_vocab / 32),): bit i % 32 of word i // 32 is set where token i is allowed.

        Valid until `commit`.
        """
        ...

    def commit(self, token: int) -> None:
        """`token` was chosen. Raises GenerationError if it cannot follow."""
        ...

    def forced(self) -> Sequence[int]:
        """The tokens that come next because nothing else may, as far as that is known. Nothing is committed."""
        ...

    def accepts(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, in this order, may come next. Nothing is committed."""
        ...


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
    constraint: Constraint | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to raw logits; <= -100: only as a last resort
    logprobs: int | None = None
    score_prompt: bool = False  # report the prompt's own log probabilities as well (PromptScored)
    return_token_ids: bool = False
    reasoning_budget: int | None = None
    close_reasoning: tuple[int, ...] = ()  # what is committed when the budget is used up inside the reasoning
    max_calls: int | None = None  # the reply ends when that many tool calls are complete
    choice: int = 0  # which choice of its request this is
    n_stable: int | None = None  # tokens before the opener of the reply, which the next turn repeats; None: all
    denoising: Denoising | None = None  # of a diffusion model; None: as the file recommends
    drafts: bool = False  # of a diffusion model: report what a block looks like after each pass


# --- events ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts; the token that ended a reply is in none of them.

    `cached_tokens` of the prompt were taken from an earlier request's state.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was chosen, and what might have been: natural logarithms of the model's own distribution.

    `piece` are the bytes that the token adds to the reply; `top` holds (token, piece, logprob), the likeliest first.
    `logprob` is None for the first token of a scored prompt.
    """

    token: int
    piece: bytes
    logprob: float | None
    top: tuple[tuple[int, bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the visible reply. `logprobs` are of exactly the tokens whose text ends within it.

    The text may be empty: when a stop string cuts a token whose beginning has been shown, only its entry is left.
    """

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The prompt's tokens, first of all events where `score_prompt` was asked for."""

    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The ids that a step committed, where `return_token_ids` was asked for; they come before their text."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """The model opened its call number `index` (from 0). `custom`: its fragments are the raw input text, not JSON."""

    index: int
    id: str
    name: str
    custom: bool = False


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the JSON text of the arguments of call `index`, or of the input of a custom tool."""

    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of one generation went, in seconds."""

    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """What steps did with experts that stay in the file: `used` and `hits` (those of them that were in memory when they
    were needed) count experts of one weight in one step; `read` are bytes.
    """

    used: int
    hits: int
    read: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The last event of a generation that ended as planned.

    `experts`: of a model whose experts stay in the file, what its steps did with them from this generation's admission
    to its end, those for others included.
    """

    reason: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    timings: Timings = Timings()
    experts: ExpertReads | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What a diffusion model's next block would be if it settled now. Nothing of it is final, and no text counts it."""

    text: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The last event of a generation that did not. `error` is a LmhubError."""

    error: Exception


ReplyItem = Content | Thought | ToolCallStart | ToolCallDelta
Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta | PromptScored | TokenIds | Draft | Finish | Failure


Source = Literal["none", "slot", "copy", "ram", "disk"]  # where the cached part of a prompt came from


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """One generation that ended, for metrics and logs. `n_drafted` tokens were guessed ahead, `n_accepted` rightly."""

    id: str
    model: str
    family: str
    finish: FinishReason | Literal["failed"]
    usage: Usage
    timings: Timings
    source: Source = "none"
    n_drafted: int = 0
    n_accepted: int = 0
