"""The prompt format of one model: conversations to token ids, and a parser for what comes back.

Text is never markup: the model's template runs on the client's real text, and afterwards only those characters that the
template itself wrote can become special tokens (`traced`). So a client can neither spell a control token nor complete
one that a template begins, whatever its texts, names, schemas or arguments say. Knows nothing of HTTP, engines or model
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lmhub.chat.chatml import PLAIN
from lmhub.chat.forcing import LazyTools, Markers, forced_call, opened_call
from lmhub.chat.lark import literal
from lmhub.chat.messages import Null, Turn, arrangements, declared, told, turns_of
from lmhub.chat.order import with_results_inside, with_texts, without_texts
from lmhub.chat.reply import ChannelParser, imported
from lmhub.chat.template import ChatTemplate, TemplateRefused
from lmhub.chat.traced import segments, shown, written
from lmhub.chat.traits import Traits
from lmhub.errors import ModelFileError, RequestError
from lmhub.family import Fallback, ThinkMarkers, ToolStyle
from lmhub.types import GrammarSpec, Message, ReplyParser, Text, Tool, ToolCall, ToolChoice

if TYPE_CHECKING:
    from lmhub.tokenize import Tokenizer

_NO_TEMPLATE = "this model carries no chat template; use the completions API, or a file with tokenizer.chat_template"
_EFFORT = "reasoning_effort"
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_END = "\ue000end of the prefix {}\ue001"  # stands where the reply is to continue


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: `(text, is_markup)` segments, their ids, and whether the reply starts in reasoning.

    The first `n_stable` ids are the conversation, which the next turn repeats; behind them the template opens the
    reply, which the next turn may show otherwise. None: not known, or nothing was opened.
    """

    segments: tuple[tuple[str, bool], ...]
    ids: tuple[int, ...]
    opens_reasoning: bool = False
    n_stable: int | None = None

    @property
    def text(self) -> str:
        """The prompt as one string, for people to read: what is markup in it can no longer be told."""
        return "".join(text for text, _ in self.segments)


class ChatFormat:
    """How one model is talked to. It holds no state between requests and may be used from several threads."""

    def __init__(
        self,
        template: ChatTemplate | ModelFileError | None,
        tokenizer: Tokenizer,
        *,
        think: ThinkMarkers | None = None,
        tools: ToolStyle | None = None,
        reply: str | None = None,
    ):
        """`template` may be the error that kept it from compiling: then only chat is refused, not the model."""
        self._template = template
        self._tokenizer = tokenizer
        self._think = think
        self._tools = tools
        self._reply = None if reply is None else imported(reply)
        names = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        self._tokens = {name: written(tokenizer.token_text(id)) for name, id in names.items() if id is not None}

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        tokenizer: Tokenizer,
        *,
        think: ThinkMarkers | None = None,
        tools: ToolStyle | None = None,
        fallback: Fallback | None = None,
        reply: str | None = None,
    ) -> ChatFormat:
        """The format of a file's `tokenizer.chat_template`; `fallback` is as for `template_source`.

        `reply` is `Family.reply`.
        """
        source = template_source(metadata, tokenizer, fallback)
        template: ChatTemplate | ModelFileError | None = None
        try:
            if source:
                template = ChatTemplate(source)
        except ModelFileError as error:
            template = error
        return cls(template, tokenizer, think=think, tools=tools, reply=reply)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        reasoning: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
    ) -> Prompt:
        """The prompt for `messages`.

        `reasoning` sets the template's own switch; None turns it off, unless the template refuses that. A switch among
        `template_kwargs` wins. A template that refuses an order of messages gets them rearranged
        (`messages.arrangements`), one that refuses a `reasoning_effort` the nearest that it knows. `continue_final`
        ends the prompt right behind the text of the last message, the assistant's. Raises RequestError if there is no
        template, if it refuses all the same (with its own message), if it cannot continue the last message, and for
        reserved names in `template_kwargs`.
        """
        template = self._ready()
        end = None
        if continue_final:
            messages, end = _with_end(messages)
        variables = self._variables(template, template_kwargs or {})
        told = None if self._tools is None or self._tools.schema is None else imported(self._tools.schema)
        variables |= {
            "tools": declared(tools, told),
            "add_generation_prompt": add_generation_prompt and not continue_final,
        }
        switches = self._switches(template, reasoning, variables)
        efforts = _efforts(template, variables)
        tried = [{**variables, **switch, **effort} for switch in switches for effort in efforts]
        text = shown(self._rendered(template, tried, self._turns(messages, tools)))
        if end is not None:
            return self._prompt(_up_to(text, end))
        if add_generation_prompt and (end_of_turn := self.traits.turn_end).strip() and text.endswith(end_of_turn):
            # The last turn is closed and no reply opened, as some templates leave it behind a call with a text.
            text += self.traits.opener({**self._set(variables), **switches[0]})
        return self._prompt(text, self._openers if add_generation_prompt else ())

    def parser(self, prompt: Prompt, tools: Sequence[Tool] = ()) -> ReplyParser:
        """A parser for the reply to `prompt`; calls are looked for only if `tools` were declared."""
        own = self._tools.reply if tools and self._tools is not None else None
        make = self._reply if own is None else imported(own)
        if make is not None:
            made: ReplyParser = make(self._tokenizer.token_id, prompt.ids, tools)
            return made
        return ChannelParser(
            self._tokenizer.token_id,
            think=self._think,
            tools=self._tools if tools else None,
            offered=tools,
            opens_reasoning=prompt.opens_reasoning,
        )

    def forced(self, tools: Sequence[Tool], choice: ToolChoice) -> GrammarSpec:
        """A grammar for a reply that is exactly one call of a tool that `choice` allows; see `forcing.forced_call`."""
        if self._tools is None:
            raise RequestError("this model has no way to call tools; send the request without tools", "tool_choice")
        return forced_call(self._tools, tools, choice, self._markers(self._tools))

    def lazy(self, tools: Sequence[Tool]) -> LazyTools | None:
        """What holds calls to `tools` once the model opens one; None if that cannot be told from a single token."""
        style = self._tools
        opener = None if style is None else self._tokenizer.token_id(style.open)
        if style is None or style.shape is None or opener is None or not tools:
            return None
        return opened_call(style, tools, opener, self._markers(style))

    @cached_property
    def close_ids(self) -> tuple[int, ...]:
        """The ids that end open reasoning: the closing marker with the line breaks that the template puts around it."""
        if self._think is None:
            return ()
        text = self.traits.closing if isinstance(self._template, ChatTemplate) else self._think.close
        return tuple(self._tokenizer.encode_segments(((text, True),)))

    @property
    def close_id(self) -> int | None:
        """The token that ends reasoning; None if there is no single one."""
        return None if self._think is None else self._tokenizer.token_id(self._think.close)

    @cached_property
    def can_switch_reasoning(self) -> bool:
        """Whether the template has the switch that turns reasoning on and off."""
        switch = self._think.switch if self._think is not None else None
        return switch is not None and isinstance(self._template, ChatTemplate) and self._template.mentions(switch)

    @cached_property
    def _openers(self) -> tuple[tuple[int, ...], ...]:
        """The ids of what may open a reply, the longest first."""
        encode = self._tokenizer.encode_segments
        return tuple(sorted((tuple(encode(segments(text))) for text in self.traits.openers), key=len, reverse=True))

    @cached_property
    def traits(self) -> Traits:
        """What the template does. Raises RequestError if there is none."""
        return Traits(self._ready(), self._tokens, self._think)

    def _markers(self, style: ToolStyle) -> Markers:
        def piece(text: str) -> str:
            id = self._tokenizer.token_id(text)
            return (literal(text) if text else "") if id is None else f"<[{id}]>"

        rules = "".join(f"{name}: {piece(text)}\n" for name, text in style.tokens)
        return Markers(piece(style.open), piece(style.close), rules)

    def _turns(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[Turn]:
        traits = self.traits
        writes_null = self._tools is not None and self._tools.writes_null
        with_tools = any(not isinstance(part, Text) for message in messages for part in message.parts)
        turns = turns_of(
            messages,
            parsed_arguments=with_tools and traits.wants_mappings,
            inline=self._think if self._reply is None and traits.leaves_reasoning_inline else None,
            custom={tool.name for tool in tools if tool.custom},
            null=Null() if writes_null and with_tools and traits.shows_nothing_as_none else None,
            in_order=traits.wants_parts,
        )
        if any(turn["role"] == "tool" or "tool_calls" in turn for turn in turns):
            if not traits.shows_tool_turns:
                return told(turns)
            if not traits.shows_orphans:
                turns = told(turns, orphans_only=True)
            if traits.wants_results_inside:
                turns = with_results_inside(turns)
        return turns

    def _rendered(self, template: ChatTemplate, variants: Sequence[Mapping[str, Any]], turns: list[Turn]) -> str:
        """The text of `turns`, each in the order in which the model wrote it."""
        has_both = any("tool_calls" in turn and turn["content"] for turn in turns)
        if has_both and self._tools is not None and self.traits.shows_text_behind_calls:
            silent, texts = without_texts(turns)
            text = with_texts(self._accepted(template, variants, silent), texts, self._tools.open)
            if text is not None:
                return text
        return self._accepted(template, variants, turns)

    def _accepted(self, template: ChatTemplate, variants: Sequence[Mapping[str, Any]], turns: list[Turn]) -> str:
        """What the first of the variables and arrangements that the template accepts give."""
        late = any(turn["role"] == "system" for turn in turns[1:])
        first: TemplateRefused | None = None
        for variables in variants:
            for arranged in arrangements(turns, fold=late and not self.traits.shows_late_system):
                try:
                    return template.render({**variables, "messages": arranged})
                except TemplateRefused as error:
                    first = first or error
        assert first is not None
        raise first

    def _ready(self) -> ChatTemplate:
        if isinstance(self._template, ChatTemplate):
            return self._template
        raise RequestError(_NO_TEMPLATE if self._template is None else f"this model cannot chat: {self._template}")

    def _variables(self, template: ChatTemplate, extra: Mapping[str, Any]) -> dict[str, Any]:
        reserved = template.globals | self._tokens.keys() | {"messages", "tools", "add_generation_prompt"}
        for name in extra:
            if name in reserved:
                raise RequestError(
                    f"chat_template_kwargs cannot set {name!r}, which the server sets itself; leave it out",
                    param="chat_template_kwargs",
                )
        return {**self._tokens, **extra}

    def _set(self, variables: Mapping[str, Any]) -> dict[str, bool]:
        """The reasoning switch, where the client has set it."""
        switch = None if self._think is None else self._think.switch
        return {switch: bool(variables[switch])} if switch is not None and switch in variables else {}

    def _switches(
        self, template: ChatTemplate, reasoning: bool | None, variables: Mapping[str, Any]
    ) -> Sequence[Mapping[str, bool]]:
        """The settings of the reasoning switch to try, in this order."""
        switch = None if self._think is None else self._think.switch
        if switch is None or switch in variables:
            return ({},)
        if reasoning is not None:
            return ({switch: reasoning},)
        return ({switch: False}, {}) if self.can_switch_reasoning else ({},)

    def _prompt(self, text: str, openers: Sequence[tuple[int, ...]] = ()) -> Prompt:
        cut = segments(text)
        ids = tuple(self._tokenizer.with_bos(self._tokenizer.encode_segments(cut)))
        tail = cut[-1][0].rstrip() if cut and cut[-1][1] else ""
        opener = next((one for one in openers if one and ids[-len(one) :] == one), None)
        n_stable = None if opener is None else len(ids) - len(opener)
        opens = self._think is not None and tail.endswith(self._think.open + self._think.label)
        return Prompt(cut, ids, opens, n_stable)


def template_source(metadata: Mapping[str, Any], tokenizer: Tokenizer, fallback: Fallback | None = None) -> str | None:
    """The text of the template that a model is talked to with; None if it has none.

    A file that carries none has `fallback`, the family's. Where that is a text it is ChatML, as is the plain one behind
    it: for vocabularies that have ChatML's tokens. Where it is a function, what that gives goes before the file's own.
    """
    source = fallback(metadata) if callable(fallback) else None
    source = metadata.get("tokenizer.chat_template") if source is None else source
    if source is None and {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.specials):
        return fallback if isinstance(fallback, str) else PLAIN
    return source if isinstance(source, str) and source else None


def _efforts(template: ChatTemplate, variables: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """The efforts to try, the nearest to what is asked for first and of two equally near ones the higher first.

    Templates know two or three of the names, and some refuse the others.
    """
    asked = variables.get(_EFFORT)
    if asked not in _EFFORTS or not template.mentions(_EFFORT):
        return ({},)
    at = _EFFORTS.index(asked)
    nearest = sorted(range(len(_EFFORTS)), key=lambda place: (abs(place - at), -place))
    return [{_EFFORT: _EFFORTS[place]} for place in nearest]


def _with_end(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """The messages with a mark behind the text of the last one, and that mark. Raises RequestError."""
    last = messages[-1] if messages else None
    if last is None or last.role != "assistant" or any(isinstance(part, ToolCall) for part in last.parts):
        raise RequestError(
            "only a last message of the assistant without tool calls can be continued; leave out the continuation",
            param="messages",
        )
    said = "".join(message.text for message in messages)
    end = next(mark for number in range(len(said) + 1) if (mark := _END.format(number)) not in said)
    *before, text = last.parts if last.parts and isinstance(last.parts[-1], Text) else (*last.parts, Text(""))
    assert isinstance(text, Text)
    return (*messages[:-1], Message(last.role, (*before, Text(text.text + end)))), end


def _up_to(text: str, end: str) -> str:
    if text.count(end) != 1:
        raise RequestError(
            "this model's chat template cannot leave the last message open; send it without a continuation",
            param="messages",
        )
    return text[: text.index(end)]
