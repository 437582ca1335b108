"""What a family implements: a sequence's `State`, and one of two model contracts.

Both contracts end in the same fact: a step commits zero or more tokens. The engine above knows nothing else of a model.
One thread, the engine's, touches a model and its states; nothing here locks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lmhub.types import Denoising

if TYPE_CHECKING:
    import numpy as np

Want = Literal["none", "last", "all"]


class State(ABC):
    """The memory of one sequence: its KV cache, its recurrent state, or both.

    Rows can be saved and brought back where `layout` is not empty: `read_rows` and `write_rows` exchange them as bytes,
    with any state of an equal layout, also on another thread than the engine's while nobody else uses the state.
    """

    n_tokens: int  # committed positions
    capacity: int  # positions that fit
    can_rewind: bool = True  # whether `truncate` works at every position
    can_step_back: bool = False  # whether `step_back` works, where `truncate` does not
    layout: str = ""  # what the bytes of a row are: geometry and types
    row_nbytes: int = 0  # of one position, over all layers
    fixed_nbytes: int = 0  # beside the rows, however many there are

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes reserved for this sequence (they commit lazily)."""

    @abstractmethod
    def truncate(self, n_tokens: int) -> bool:
        """Forget everything from position `n_tokens` on. False when this state cannot rewind; it is then unchanged."""

    @abstractmethod
    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        """Become a copy of `other` cut to `n_tokens`. False when that is impossible; this state is then empty."""

    def advance(self, n_tokens: int) -> None:
        """A step over `n_tokens` more tokens has succeeded: commit what it has written."""
        self.n_tokens += n_tokens

    def step_back(self) -> bool:
        """Right behind a step, go back to where it began. False where that is impossible; nothing has changed then."""
        return False

    def trim(self) -> None:  # noqa: B027 - optional
        """Give back the memory behind `n_tokens` that earlier tokens have used."""

    def read_rows(self, start: int, stop: int) -> np.ndarray:
        """Positions [start, stop) as uint8 ((stop - start) * row_nbytes,): layer by layer, all keys, then values."""
        raise NotImplementedError

    def write_rows(self, rows: np.ndarray) -> None:
        """Append what `read_rows` gave behind `n_tokens`. Raises KernelError if it does not fit."""
        raise NotImplementedError

    def checkpoint(self) -> bytes | None:
        """What `truncate` cannot bring back, for states that cannot rewind; may be written to disk. None: nothing."""
        return None

    def restore(self, checkpoint: bytes, n_tokens: int) -> bool:
        """Go back to `checkpoint`, taken when `n_tokens` positions were committed; rows behind them are forgotten.

        The rows before them must be in place. False, with the state empty, where that is impossible.
        """
        return self.truncate(n_tokens)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's share of a step: tokens to append to `state`, and whose logits are wanted."""

    state: State
    tokens: Sequence[int]
    want: Want = "last"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a loaded model costs, in bytes. `weights_mapped` is page cache and can be reclaimed."""

    weights_mapped: int
    weights_packed: int
    state: int  # one sequence at the planned context
    scratch: int = 0  # buffers of a step; 0 = not reckoned
    checkpoint: int = 0  # one checkpoint of a sequence that cannot rewind


class CausalLM(ABC):
    """A model that predicts the next token of every row.

    Row invariance: the logits of a row are bit-identical whatever else shares the step, however the prompt was cut into
    chunks and however many threads ran. A family that cannot promise it sets `row_invariant = False`.
    """

    n_vocab: int
    n_ctx_train: int
    block_size: int = 1  # tokens that a reply grows by
    row_invariant: bool = True

    @abstractmethod
    def new_state(self, n_ctx: int) -> State:
        """An empty state with room for `n_ctx` positions."""

    @abstractmethod
    def forward(self, chunks: Sequence[Chunk]) -> np.ndarray:
        """One step over a ragged batch: appends every chunk to its state.

        Returns float32 `(n_wanted, n_vocab)` in chunk order; the array is valid until the next call. No state may occur
        twice. Raises KernelError with every state unchanged when the step fails, GenerationError when it was aborted.
        """

    def abort(self) -> None:  # noqa: B027 - optional
        """Make a running `forward` return early, from any thread (shutdown); the next one runs normally."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release weights. States must not be used afterwards."""


class Canvas(ABC):
    """A block of one sequence while it is being denoised; a family's own class, made by `BlockLM.canvas`."""

    draft: np.ndarray  # int32 (block_size,): the likeliest tokens after the last pass
    n_passes: int = 0
    is_settled: bool = False  # whether `draft` is final


class BlockLM(ABC):
    """A diffusion model: denoises a canvas of `block_size` positions in passes, then commits it as a whole.

    What is committed is encoded by an ordinary causal pass, so that prefixes can be kept, cut and copied as those of a
    CausalLM. Row invariance holds here too: a block depends on the tokens before it, on the wishes and on the seed, and
    on nothing that shares its passes.
    """

    n_vocab: int
    n_ctx_train: int
    block_size: int
    denoising: Denoising  # what the file recommends

    @abstractmethod
    def new_state(self, n_ctx: int) -> State:
        """An empty causal state with room for `n_ctx` positions."""

    @abstractmethod
    def encode(self, chunks: Sequence[Chunk]) -> None:
        """One causal pass over a ragged batch of prompts and committed blocks; `Chunk.want` is of no account.

        Raises as `CausalLM.forward` does, with every state unchanged.
        """

    @abstractmethod
    def canvas(self, wish: Denoising, number: int, bias: Mapping[int, float]) -> Canvas:
        """A canvas of noise for block `number` of a reply. `bias` is added to logits; -inf forbids a token."""

    @abstractmethod
    def denoise(self, work: Sequence[tuple[State, Canvas]]) -> None:
        """One pass over canvases that have not settled, each behind the tokens of its state, which stays as it is.

        The state must have room for a block. Raises KernelError when the pass fails, GenerationError when it was
        aborted; every canvas is then as it was.
        """

    def abort(self) -> None:  # noqa: B027 - optional
        """Make a running pass return early, from any thread (shutdown); the next one runs normally."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release weights."""
