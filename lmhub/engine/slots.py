"""The places where sequences run: at most `n_slots` states of one size, made when first needed and then reused.

A slot pairs one generation with the state that it runs on. Which tokens of a prompt a parked state already holds is
decided in `SlotPool._take`, and nowhere else. Knows nothing of steps, sampling or events.
"""

from __future__ import annotations

import time

import numpy as np

from lmhub.engine.generation import Generation
from lmhub.engine.penalties import PenaltyWindow
from lmhub.model import CausalLM, State


class Slot:
    """A running generation: its state, and every token of its sequence, forwarded or not."""

    def __init__(self, generation: Generation, state: State, n_cached: int):
        request = generation.request
        self.generation = generation
        self.request = request
        self.state = state
        self.n_cached = n_cached  # tokens of the prompt that the state held already
        self.tokens = list(request.prompt)  # prompt and reply; the state holds the first `state.n_tokens` of them
        self.penalties = PenaltyWindow(request.sampling, request.prompt, generation.reply.budget)
        self.suppressed = np.array(sorted(request.suppressed), np.int32)
        self.is_sound = True  # False: a failed step may have left the state in any condition
        self.admitted_s = time.monotonic()
        self.decoding_s: float | None = None  # when the first token was committed

    @property
    def n_pending(self) -> int:
        """Tokens that the state has yet to see. One while decoding; a prompt's last token is always among them."""
        return len(self.tokens) - self.state.n_tokens

    @property
    def n_completion(self) -> int:
        """Tokens of the reply so far, which is also the index of the next one."""
        return len(self.tokens) - len(self.request.prompt)

    def commit(self, token: int) -> None:
        """Append a token that is final."""
        self.tokens.append(token)
        self.penalties.push(token)
        if self.decoding_s is None:
            self.decoding_s = time.monotonic()


class SlotPool:
    """Hands out slots in the order of admission. Never holds more than `n_slots` states."""

    def __init__(self, model: CausalLM, n_slots: int, n_ctx: int):
        self._model = model
        self._n_slots = n_slots
        self._n_ctx = n_ctx
        self._parked: list[State] = []
        self.running: list[Slot] = []

    @property
    def has_room(self) -> bool:
        """Whether one more generation can be admitted."""
        return len(self.running) < self._n_slots

    def admit(self, generation: Generation) -> Slot:
        """Give `generation` a state. Raises what `new_state` raises; the pool is then unchanged."""
        state, n_cached = self._take()
        slot = Slot(generation, state, n_cached)
        self.running.append(slot)
        return slot

    def release(self, slot: Slot) -> None:
        """End `slot`. Its state is parked, or dropped if it is not sound."""
        self.running.remove(slot)
        if slot.is_sound:
            self._parked.append(slot.state)

    def _take(self) -> tuple[State, int]:
        """A state, and how many leading tokens of the prompt it holds (so far always none)."""
        while self._parked:
            state = self._parked.pop()
            if state.truncate(0):
                return state, 0
        return self._model.new_state(self._n_ctx), 0
