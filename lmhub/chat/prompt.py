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

from lmhub.chat.messages import arrangements, declared, turns_of
from lmhub.chat.reply import ChannelParser
from lmhub.chat.template import ChatTemplate, TemplateRefused
from lmhub.chat.traced import segments, written
from lmhub.errors import ModelFileError, RequestError
from lmhub.family import ThinkMarkers, ToolStyle
from lmhub.types import Message, ReplyParser, Text, Tool, ToolCall, ToolResult

if TYPE_CHECKING:
    from lmhub.tokenize import Tokenizer

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_NO_TEMPLATE = "this model carries no chat template; use the completions API, or a file with tokenizer.chat_template"
_PROBE = '{"probe": 1}'


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: `(text, is_markup)` segments, their ids, and whether the reply starts in reasoning."""

    segments: tuple[tuple[str, bool], ...]
    ids: tuple[int, ...]
    opens_reasoning: bool = False

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
    ):
        """`template` may be the error that kept it from compiling: then only chat is refused, not the model."""
        self._template = template
        self._tokenizer = tokenizer
        self._think = think
        self._tools = tools
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
    ) -> ChatFormat:
        """The format of a file's `tokenizer.chat_template`; without one, ChatML if the vocabulary has its tokens."""
        source = metadata.get("tokenizer.chat_template")
        template: ChatTemplate | ModelFileError | None = None
        if source is None and {"<|im_start|>", "<|im_end|>"} <= set(tokenizer.specials):
            source = _CHATML
        try:
            if isinstance(source, str) and source:
                template = ChatTemplate(source)
        except ModelFileError as error:
            template = error
        return cls(template, tokenizer, think=think, tools=tools)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        *,
        reasoning: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> Prompt:
        """The prompt for `messages`.

        `reasoning` sets the template's own switch, None leaves it alone; a switch among `template_kwargs` wins. A
        template that refuses an order of messages gets them rearranged (`messages.arrangements`). Raises RequestError
        if there is no template, if it refuses all the same (with its own message), and for reserved names in
        `template_kwargs`.
        """
        template = self._ready()
        variables = self._variables(template, reasoning, template_kwargs or {})
        variables |= {"tools": declared(tools), "add_generation_prompt": add_generation_prompt}
        first: TemplateRefused | None = None
        for turns in arrangements(turns_of(messages, parsed_arguments=self._wants_mappings)):
            try:
                return self._prompt(template.render(variables | {"messages": turns}))
            except TemplateRefused as error:
                first = first or error
        assert first is not None
        raise first

    def parser(self, prompt: Prompt, tools: Sequence[Tool] = ()) -> ReplyParser:
        """A parser for the reply to `prompt`; calls are looked for only if `tools` were declared."""
        return ChannelParser(
            self._tokenizer.token_id,
            think=self._think,
            tools=self._tools if tools else None,
            opens_reasoning=prompt.opens_reasoning,
        )

    def _ready(self) -> ChatTemplate:
        if isinstance(self._template, ChatTemplate):
            return self._template
        raise RequestError(_NO_TEMPLATE if self._template is None else f"this model cannot chat: {self._template}")

    def _variables(self, template: ChatTemplate, reasoning: bool | None, extra: Mapping[str, Any]) -> dict[str, Any]:
        variables: dict[str, Any] = dict(self._tokens)
        reserved = template.globals | self._tokens.keys() | {"messages", "tools", "add_generation_prompt"}
        for name in extra:
            if name in reserved:
                raise RequestError(
                    f"chat_template_kwargs cannot set {name!r}, which the server sets itself; leave it out",
                    param="chat_template_kwargs",
                )
        if reasoning is not None and self._think is not None and self._think.switch is not None:
            variables[self._think.switch] = reasoning
        return variables | dict(extra)

    def _prompt(self, text: str) -> Prompt:
        cut = segments(text)
        ids = tuple(self._tokenizer.with_bos(self._tokenizer.encode_segments(cut)))
        tail = cut[-1][0].rstrip() if cut and cut[-1][1] else ""
        return Prompt(cut, ids, self._think is not None and tail.endswith(self._think.open))

    @cached_property
    def _wants_mappings(self) -> bool:
        """Whether call arguments must be parsed for this template.

        Their text is replayed as the model wrote it only where text and mapping come out alike, which keeps the tokens
        of earlier turns; a template that treats the two differently is written for mappings.
        """
        history = (
            Message("user", (Text("probe"),)),
            Message("assistant", (ToolCall("call_0", "probe", _PROBE),)),
            Message("tool", (ToolResult("call_0", "probe"),)),
        )
        variables: dict[str, Any] = dict(self._tokens) | {"tools": None, "add_generation_prompt": True}
        outcomes: list[str | None] = []
        for parsed in (True, False):
            turns = turns_of(history, parsed_arguments=parsed)
            try:
                outcomes.append(self._ready().render(variables | {"messages": turns}))
            except RequestError:
                outcomes.append(None)
        return outcomes[0] is not None and outcomes[0] != outcomes[1]
