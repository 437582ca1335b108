"""The places where sequences run: at most `n_slots` states of one size, made when first needed and then reused.

A slot pairs one generation with the state that it runs on. When it ends, its state is parked with the tokens that it
holds, and a later prompt that begins alike goes on from there. Which state a prompt gets is decided in
`SlotPool._take`, and nowhere else. Knows nothing of steps, sampling or events.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lmhub.engine.generation import Generation
from lmhub.engine.penalties import PenaltyWindow
from lmhub.model import CausalLM, State
from lmhub.types import GenerationRequest

if TYPE_CHECKING:
    from lmhub.sampling import Score

WORTH_COPYING = 16  # tokens; forwarding fewer is as cheap as copying their rows


@dataclass(frozen=True, slots=True)
class SlotStats:
    """How far a running sequence is, in tokens: in its state, in its prompt, in its reply, and found in the cache."""

    n_past: int
    n_prompt: int
    n_decoded: int
    n_cached: int


class Slot:
    """A running generation: its state, and every token of its sequence, forwarded or not."""

    def __init__(self, generation: Generation, state: State, n_cached: int):
        request = generation.request
        self.generation = generation
        self.request = request
        self.state = state
        self.n_cached = n_cached  # tokens of the prompt that the state held already
        self.tokens = list(request.prompt)  # prompt and reply; the state holds the first `state.n_tokens` of them
        self.prompt_scores: list[Score] = []  # of the prompt's second token and those behind it, where asked for
        self.penalties = PenaltyWindow(request.sampling, request.prompt, generation.reply.budget)
        self.bias_ids, self.bias = _biases(request)
        self.is_sound = True  # False: a failed step may have left the state in any condition
        self.admitted_s = time.monotonic()
        self.decoding_s: float | None = None  # when the prompt had been read

    @property
    def n_pending(self) -> int:
        """Tokens that the state has yet to see. One while decoding; a prompt's last token is always among them."""
        return len(self.tokens) - self.state.n_tokens

    @property
    def n_completion(self) -> int:
        """Tokens of the reply so far, which is also the index of the next one."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def scores_prompt(self) -> bool:
        """Whether the next tokens to be seen are those of a prompt that is to be scored."""
        return self.request.score_prompt and self.state.n_tokens < len(self.request.prompt)

    def stats(self) -> SlotStats:
        """A snapshot, for anybody to keep."""
        return SlotStats(self.state.n_tokens, len(self.request.prompt), self.n_completion, self.n_cached)

    def commit(self, token: int) -> None:
        """Append a token that is final. Raises GenerationError if the request's constraint does not allow it."""
        if self.request.constraint is not None:
            self.request.constraint.commit(token)
        self.tokens.append(token)
        self.penalties.push(token)


def _biases(request: GenerationRequest) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The ids whose logits are changed before sampling, and by how much; suppressed ones are never sampled."""
    by_id = dict(request.logit_bias) | dict.fromkeys(request.suppressed, -np.inf)
    return np.array(list(by_id), np.int32), np.array(list(by_id.values()), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Parked:
    """A state that waits for work, and the ids that it holds: int32 (state.n_tokens,)."""

    state: State
    tokens: NDArray[np.int32]


class SlotPool:
    """Hands out slots in the order of admission. Never holds more than `n_slots` states."""

    def __init__(self, model: CausalLM, n_slots: int, n_ctx: int):
        self._model = model
        self._n_slots = n_slots
        self._n_ctx = n_ctx
        self._parked: list[Parked] = []  # the one that was used last at the end
        self.running: list[Slot] = []

    @property
    def has_room(self) -> bool:
        """Whether one more generation can be admitted."""
        return len(self.running) < self._n_slots

    def admit(self, generation: Generation) -> Slot:
        """Give `generation` a state. Raises what `new_state` raises; the pool is then unchanged."""
        state = self._take(generation.request)
        slot = Slot(generation, state, state.n_tokens)
        self.running.append(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """End `slot`. Its state is parked, or dropped if it is not sound."""
        self.running.remove(slot)
        if slot.is_sound:
            self._parked.append(Parked(slot.state, _held(slot)))

    def _take(self, request: GenerationRequest) -> State:
        """A state that holds as much of the prompt's beginning as can be had, never all of it.

        A parked state goes on from the part that it has in common with the prompt, if that is at least half of one of
        the two: what is lost of it then is a reply's tail. Otherwise the prompt gets a new state, or the one that has
        waited longest, and what another state holds of it is copied. A prompt that is scored is read from its start.
        """
        prompt = np.array(request.prompt[:-1], np.int32)  # the last token has to be forwarded for its logits
        if request.score_prompt:
            prompt = prompt[:0]
        shared = [(common(parked.tokens, prompt), parked) for parked in self._parked]
        shared.sort(key=lambda one: one[0], reverse=True)
        for n, parked in shared:
            if n and 2 * n >= min(len(parked.tokens), len(prompt)) and _cut(parked.state, n):
                self._parked.remove(parked)
                return parked.state
        state, n_kept = self._free(prompt)
        donors = [(n, parked.state) for n, parked in shared if parked.state is not state]
        donors += [(common(_held(slot), prompt), slot.state) for slot in self.running]
        n, donor = max(donors, key=lambda one: one[0], default=(0, state))
        if n >= n_kept + WORTH_COPYING:
            state.copy_prefix(donor, n)
        return state

    def _free(self, prompt: NDArray[np.int32]) -> tuple[State, int]:
        """A new state while there may be more, else the one that was parked first; and what it holds of `prompt`."""
        while len(self._parked) + len(self.running) >= self._n_slots:
            parked = self._parked.pop(0)
            n = common(parked.tokens, prompt)
            if _cut(parked.state, n) or _cut(parked.state, 0):
                return parked.state, parked.state.n_tokens
        return self._model.new_state(self._n_ctx), 0


def _held(slot: Slot) -> NDArray[np.int32]:
    return np.array(slot.tokens[: slot.state.n_tokens], np.int32)


def _cut(state: State, n_tokens: int) -> bool:
    return state.truncate(n_tokens) or state.n_tokens == n_tokens


def common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """How many leading ids are equal."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n
