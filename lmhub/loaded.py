"""A loaded model with everything around it that a request needs: tokenizer, prompt format, defaults, limits.

`LoadedModel.prepare` turns a conversation into token ids and a budget; whatever it refuses is refused before the queue.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from lmhub.errors import PromptTooLong, RequestError, quoted
from lmhub.family import Family, ThinkMarkers, ToolStyle
from lmhub.model import BlockLM, CausalLM, MemoryPlan
from lmhub.types import ChatRequest, GenerationRequest, ReplyParser, SamplingParams

if TYPE_CHECKING:
    from lmhub.chat.prompt import ChatFormat
    from lmhub.tokenize import Tokenizer

log = logging.getLogger("lmhub")

_FILE_SAMPLING: dict[str, tuple[str, float, float]] = {  # key -> field of SamplingParams, least, largest
    "temp": ("temperature", 0, 100),
    "top_k": ("top_k", 0, 2**31 - 1),
    "top_p": ("top_p", 0, 1),
    "min_p": ("min_p", 0, 1),
    "penalty_repeat": ("repeat_penalty", 1e-3, 100),
    "penalty_last_n": ("repeat_last_n", -1, 2**31 - 1),
}


@dataclass(slots=True)
class LoadedModel:
    """One model in memory. `id` is the name that clients use; `n_ctx` is in positions, `created` in Unix seconds."""

    id: str
    family: Family
    distribution: str
    metadata: Mapping[str, Any]
    model: CausalLM | BlockLM
    tokenizer: Tokenizer
    n_ctx: int
    plan: MemoryPlan
    created: int
    n_params: int
    nbytes: int
    quantization: str
    sampling: SamplingParams
    think: ThinkMarkers | None = None
    tools: ToolStyle | None = None
    chat: ChatFormat | None = None
    suppressed: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        """Rows of the vocabulary that no token belongs to take part in the logits but are never sampled."""
        padding = range(self.tokenizer.n_vocab, self.model.n_vocab)
        self.suppressed = self.tokenizer.suppressed.union(padding)

    def prepare(self, request: ChatRequest, id: str) -> GenerationRequest:
        """Render, tokenize and check a conversation. Raises RequestError or PromptTooLong."""
        if request.tools and self.tools is None:
            raise RequestError(
                f"model {self.id} has no way to call tools; send the request without `tools`",
                param="tools",
                code="unsupported_parameter",
            )
        if request.reasoning and self.think is None:
            raise RequestError(
                f"model {self.id} has no reasoning channel; send the request without a reasoning effort",
                param="reasoning_effort",
                code="unsupported_parameter",
            )
        assert self.chat is not None
        prompt = self.chat.render(
            request.messages, request.tools, reasoning=request.reasoning, template_kwargs=request.template_kwargs
        )
        return self.generation(
            prompt.ids,
            id,
            request.sampling,
            max_tokens=request.max_tokens,
            stop=request.stop,
            parser=self.chat.parser(prompt, request.tools),
        )

    def generation(
        self,
        ids: tuple[int, ...],
        id: str,
        sampling: Mapping[str, Any],
        *,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        parser: ReplyParser | None = None,
    ) -> GenerationRequest:
        """The engine's request for a prompt that is already ids; absent settings take the model's defaults.

        The budget is what was asked for, or the rest of the context, whichever is smaller. Raises PromptTooLong.
        """
        room = self.n_ctx - len(ids)
        if room < 1:
            raise PromptTooLong(
                f"this model's maximum context length is {self.n_ctx} tokens. However, your messages resulted in "
                f"{len(ids)} tokens; shorten them or serve the model with a larger --ctx",
                param="messages",
            )
        given = dict(sampling)
        given.setdefault("seed", secrets.randbits(64))
        return GenerationRequest(
            id=id,
            prompt=ids,
            sampling=replace(self.sampling, **given),
            max_tokens=min(max_tokens or room, room),
            eog=self.tokenizer.eog,
            stop=stop,
            suppressed=self.suppressed,
            parser=parser,
        )


def default_sampling(family: Family, metadata: Mapping[str, Any]) -> SamplingParams:
    """The sampling a model is meant to be run with: the file's `general.sampling.*` keys over the family's record.

    What the file recommends out of bounds is left out, with a warning: requests can set better values.
    """
    values: dict[str, Any] = dict(family.sampling)
    for key, (name, least, largest) in _FILE_SAMPLING.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= largest:
            values[name] = value
        elif value is not None:
            said = quoted(value)
            log.warning("general.sampling.%s is %s and not used: it must be from %g to %g", key, said, least, largest)
    whole = {one.name for one in fields(SamplingParams) if one.type == "int"}
    known: dict[str, Callable[[Any], Any]] = {name: int if name in whole else float for name in values}
    return SamplingParams(**{name: known[name](value) for name, value in values.items()})
