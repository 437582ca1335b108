"""A loaded model with everything around it that a request needs: tokenizer, prompt format, defaults, limits.

`LoadedModel.prepare` turns a request into what the engine runs (`prepare.py`); whatever it refuses is refused before
the queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lmhub.family import Family, ThinkMarkers, ToolStyle
from lmhub.model import BlockLM, CausalLM, MemoryPlan
from lmhub.prepare import counted, next_turn, prepared
from lmhub.types import ChatRequest, GenerationRequest, Message, Request, SamplingParams

if TYPE_CHECKING:
    from lmhub.chat.inner import Inner
    from lmhub.chat.prompt import ChatFormat
    from lmhub.grammar import GrammarEngine
    from lmhub.shelf import Shelf
    from lmhub.tokenize import Tokenizer


@dataclass(eq=False)
class LoadedModel:
    """One model in memory. `id` is the name that clients use; `n_ctx` is in positions, `created` in Unix seconds.

    `sampling` holds the defaults of replies that do not reason first, `reasoning_sampling` those of replies that do
    (None: the same). `lazy_tools`: once a model that may choose opens a tool call, a grammar holds it to the tools and
    their schemas. `shelf`: where experts are kept of which only some are in memory. `inner` is the tool that it runs by
    itself, `options` what plugins' flags say.
    """

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
    reasoning_sampling: SamplingParams | None = None
    think: ThinkMarkers | None = None
    tools: ToolStyle | None = None
    chat: ChatFormat | None = None
    lazy_tools: bool = True
    shelf: Shelf | None = None
    inner: Inner | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    suppressed: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        """Rows of the vocabulary that no token belongs to take part in the logits but are never sampled."""
        padding = range(self.tokenizer.n_vocab, self.model.n_vocab)
        self.suppressed = self.tokenizer.suppressed.union(padding)

    def close(self) -> None:
        """Release the weights, when no step runs any more."""
        self.model.close()
        if self.shelf is not None:
            self.shelf.close()

    @cached_property
    def grammar(self) -> GrammarEngine:
        """What holds replies to grammars. Cheap to ask for: it is built with its first grammar."""
        from lmhub.grammar import GrammarEngine

        return GrammarEngine(self.tokenizer, self.model.n_vocab, self.tokenizer.eog)

    def is_heavy(self, request: Request) -> bool:
        """Whether `prepare` may compile a grammar for this request, and so block: call it off the event loop then."""
        return request.grammar is not None or (isinstance(request, ChatRequest) and bool(request.tools))

    def prepare(self, request: Request, id: str) -> tuple[GenerationRequest, ...]:
        """What the engine is to run, choice by choice; a completion request has `n` choices for each of its prompts.

        Renders, tokenizes, compiles grammars and checks, and may block: see `is_heavy`. The budget is what was asked
        for, or the rest of the context, whichever is smaller. Raises RequestError, which names the field, and
        PromptTooLong.
        """
        return prepared(self, request, id)

    def count(self, request: Request) -> int:
        """The tokens of its prompts, which may be more than the context holds. Raises RequestError; never compiles."""
        return counted(self, request)

    def next_turn(self, request: ChatRequest, reply: Message) -> tuple[int, ...]:
        """The tokens with which the prompt will begin that goes on from `reply`, as far as they are known now.

        A template may show a reply in the history differently from how the model wrote it. Raises RequestError.
        """
        return next_turn(self, request, reply)
