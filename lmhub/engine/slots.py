"""A running generation: its state, the tokens of its sequence, and what it takes to choose the next ones.

Which state a generation gets is the pool's business (`pool.py`), what a step does with it the stepper's.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lmhub.engine.generation import Generation
from lmhub.engine.penalties import PenaltyWindow
from lmhub.model import Canvas, State
from lmhub.types import GenerationRequest, Source

if TYPE_CHECKING:
    from lmhub.engine.drafts import DraftIndex, Drafting
    from lmhub.sampling import Score
    from lmhub.shelf import ShelfNumbers

Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SlotStats:
    """How far a running sequence is, in tokens: in its state, in its prompt, in its reply, and found in the cache."""

    n_past: int
    n_prompt: int
    n_decoded: int
    n_cached: int
    is_paused: bool = False


class Slot:
    """A running generation and every token of its sequence, forwarded or not.

    Its state comes and goes: it has none while it waits for another slot to read the beginning of its prompt
    (`waits_for`), nor while its reader has stalled and the memory went to somebody else.
    """

    def __init__(self, generation: Generation, admitted_s: float, is_ahead: bool = False):
        """`is_ahead`: nobody waits for it; it reads what the next turn of a conversation will begin with."""
        request = generation.request
        self.generation = generation
        self.is_ahead = is_ahead
        self.request = request
        self.prompt: Ids = np.array(request.prompt, np.int32)
        self.tokens = list(request.prompt)  # prompt and reply; the state holds the first `state.n_tokens` of them
        self.state: State | None = None
        self.n_cached = 0  # tokens of the prompt that the state held already
        self.source: Source = "none"  # where those came from
        self.waits_for: tuple[Slot, int] | None = None  # who reads the prompt up to which token
        self.restoring: Future[int] | None = None  # rows on their way from disk into the state
        self.paused_s: float | None = None  # since when its reader is behind and does not read
        self.n_read = 0  # how much that reader had read then
        self.n_drafted = self.n_accepted = 0
        self.checkpoints: list[tuple[int, bytes]] = []  # ascending; of states that cannot rewind
        self.cuts: tuple[int, ...] = ()  # positions at which a step must end, for a checkpoint
        self.prompt_scores: list[Score] = []  # of the prompt's second token and those behind it, where asked for
        self.penalties = PenaltyWindow(request.sampling, request.prompt, generation.reply.budget)
        self.bias_ids, self.bias = _biases(request)
        self.index: DraftIndex | None = None  # of its tokens, for drafts
        self.drafting: Drafting | None = None
        self.canvas: Canvas | None = None  # of a diffusion model: what is being denoised behind the tokens
        self.n_blocks = 0  # that were committed
        self.deficit = 0  # prompt tokens that are still due to it (deficit round robin)
        self.is_sound = True  # False: a failed step may have left the state in any condition
        self.admitted_s = admitted_s
        self.decoding_s: float | None = None  # when the prompt had been read
        self.shelf_then: ShelfNumbers | None = None  # of a model with a shelf of experts, when it was admitted

    @property
    def is_ready(self) -> bool:
        """Whether it can take part in a step now."""
        return self.state is not None and self.restoring is None and self.paused_s is None

    @property
    def n_past(self) -> int:
        """Tokens that the state has seen."""
        return 0 if self.state is None else self.state.n_tokens

    @property
    def n_pending(self) -> int:
        """Tokens that the state has yet to see. One while decoding, none while a block is denoised."""
        return len(self.tokens) - self.n_past

    @property
    def n_completion(self) -> int:
        """Tokens of the reply so far, which is also the index of the next one."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def n_stable(self) -> int:
        """Tokens that the next turn of the conversation will repeat whatever the reply is."""
        stable = self.request.n_stable
        return len(self.request.prompt) if stable is None else stable

    @property
    def scores_prompt(self) -> bool:
        """Whether the next tokens to be seen are those of a prompt that is to be scored, and has not been yet."""
        return self.request.score_prompt and not self.n_completion and self.n_past < len(self.request.prompt)

    def held(self) -> Ids:
        """The ids that the state has seen."""
        n = self.n_past
        return self.prompt[:n] if n <= len(self.prompt) else np.array(self.tokens[:n], np.int32)

    def stats(self) -> SlotStats:
        """A snapshot, for anybody to keep."""
        return SlotStats(
            self.n_past, len(self.request.prompt), self.n_completion, self.n_cached, self.paused_s is not None
        )

    def accept(self, token: int, score: Score | None = None) -> None:
        """Append a token that is final, and let the reply read it.

        A reasoning that has used up its budget with it is closed with tokens that nobody chose. Raises GenerationError
        if the request's constraint does not allow the token.
        """
        reply = self.generation.reply
        self._append(token)
        reply.push(token, score)
        if reply.must_close:
            for forced in self.request.close_reasoning[: reply.budget - reply.n_tokens]:
                self._append(forced)
                reply.push(forced)

    def _append(self, token: int) -> None:
        if self.request.constraint is not None:
            self.request.constraint.commit(token)
        self.tokens.append(token)
        self.penalties.push(token)


def _biases(request: GenerationRequest) -> tuple[Ids, NDArray[np.float32]]:
    """The ids whose logits are changed before sampling, and by how much; suppressed ones are never sampled."""
    by_id = dict(request.logit_bias) | dict.fromkeys(request.suppressed, -np.inf)
    return np.array(list(by_id), np.int32), np.array(list(by_id.values()), np.float32)
