"""One step of a ragged batch through a family's C forward: chunks in, logits out.

Checks the chunks, lays them out as `lmk_span` and token arrays, makes the one call, and only then advances the states.
Knows no architecture: the family hands over its ffi and a function of (spans, n_spans, tokens, n, logits) -> status.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import KernelError, PromptTooLong, RequestError
from lmhub.family import KVDtype, LoadOptions
from lmhub.gguf import GGUFFile
from lmhub.kv import KVGroups, KVState, Layers
from lmhub.model import CausalLM, Chunk, MemoryPlan, State
from lmhub.native import Context, check, lib
from lmhub.recurrent import RecurrentState
from lmhub.weights import packed_bytes

StepFunction = Callable[[Any, int, Any, int, Any], int]

_WANT = {"none": lib.LMK_WANT_NONE, "last": lib.LMK_WANT_LAST, "all": lib.LMK_WANT_ALL}


class Geometry:
    """The shape of a sequence's state, apart from its capacity: groups of layers with a KV cache, one or several that
    differ, and `n_floats` that recurrent layers remember.

    Raises KernelError for a dtype that does not fit the head dimensions.
    """

    def __init__(self, dtype: KVDtype, *groups: Layers, n_floats: int = 0):
        self.dtype, self.groups, self.n_floats = dtype, groups, n_floats
        self._nbytes(1)

    def state(self, n_ctx: int) -> KVState | KVGroups | RecurrentState:
        """An empty state of `n_ctx` positions. Raises KernelError when that is not possible."""
        if n_ctx < 1:
            raise KernelError(f"A context of {n_ctx} positions is not possible; choose at least 1.")
        caches = [KVState(*group, n_ctx, self.dtype) for group in self.groups]
        cache = caches[0] if len(caches) == 1 else KVGroups(caches)
        return RecurrentState(cache, self.n_floats) if self.n_floats else cache

    def fits(self, state: State) -> bool:
        """Whether C may write what this model remembers there."""
        if isinstance(state, RecurrentState):
            return state.layers == self.groups and state.n_floats == self.n_floats
        return isinstance(state, KVState | KVGroups) and state.layers == self.groups and not self.n_floats

    def plan(self, file: GGUFFile, options: LoadOptions, tables: Iterable[str] = ()) -> MemoryPlan:
        """What loading the file takes, when each sequence has one such state.

        All matrices are packed but borrowed ones and those of which only rows are looked up (`Weights.table`): `tables`
        and an embedding that is not the head as well.
        """
        unpacked = {*tables, *(("token_embd.weight",) if "output.weight" in file.tensors else ())}
        packed = sum(
            packed_bytes(tensor, options.borrow) for name, tensor in file.tensors.items() if name not in unpacked
        )
        mapped = sum(tensor.nbytes for tensor in file.tensors.values())
        return MemoryPlan(mapped, packed, self._nbytes(options.n_ctx), checkpoint=4 * self.n_floats)

    def _nbytes(self, n_ctx: int) -> int:
        """Bytes of a state of `n_ctx` positions."""
        caches = sum(KVState.nbytes_for(*group, n_ctx, self.dtype) for group in self.groups)
        return caches + 2 * 4 * self.n_floats


class RaggedModel(CausalLM):
    """A family's model: `forward(model, ctx, spans, n_spans, tokens, n, logits)` of its C, and the struct `model`.

    `keep` is whatever the struct points to and nothing else holds.
    """

    def __init__(
        self, ffi: Any, forward: Any, model: Any, geometry: Geometry, *, n_vocab: int, n_ctx_train: int, keep: Any
    ):
        self.n_vocab, self.n_ctx_train = n_vocab, n_ctx_train
        self.context = Context()
        self._geometry = geometry
        self._keep: Any = (model, keep)
        step = partial(forward, model, ffi.cast("lmk_ctx *", self.context.address))
        self._run = RaggedForward(ffi, step, n_vocab, geometry)

    def new_state(self, n_ctx: int) -> State:
        return self._geometry.state(n_ctx)

    def forward(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        return self._run(chunks)

    def abort(self) -> None:
        self.context.abort()

    def close(self) -> None:
        self._run.close()
        self._keep = None


class RaggedForward:
    """Runs steps of one model. Buffers grow to the largest step so far: steady decoding allocates nothing."""

    def __init__(self, ffi: Any, step: StepFunction, n_vocab: int, geometry: Geometry):
        self._ffi = ffi
        self._step: StepFunction | None = step
        self._geometry = geometry
        self._n_vocab = n_vocab
        self._spans = ffi.new("lmk_span[]", 1)
        self._tokens = np.empty(1, np.int32)
        self._logits = np.empty((1, n_vocab), np.float32)
        self._tokens_c = ffi.from_buffer("int32_t[]", self._tokens)
        self._logits_c = ffi.from_buffer("float[]", self._logits)

    def __call__(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """`CausalLM.forward`: float32 `(n_wanted, n_vocab)`, valid until the next call.

        Raises RequestError (PromptTooLong where a state is full) before anything has run; GenerationError when the step
        was aborted and KernelError when it failed, with every state as it was.
        """
        if self._step is None:
            raise KernelError("The model has been closed; open it again.")
        if not chunks:
            return self._logits[:0]
        tokens = checked(chunks, self._n_vocab, self._geometry.fits)
        counts = [len(one) for one in tokens]
        n = sum(counts)
        wanted = sum({"none": 0, "last": 1, "all": count}[c.want] for c, count in zip(chunks, counts, strict=True))
        self._reserve(len(chunks), n, wanted)
        row = 0
        for span, chunk, ids in zip(self._spans, chunks, tokens, strict=False):
            self._tokens[row : row + len(ids)] = ids
            span.kv = self._ffi.cast("lmk_kv *", chunk.state.address)  # type: ignore[attr-defined]
            span.n_past, span.row, span.n, span.want = chunk.state.n_tokens, row, len(ids), _WANT[chunk.want]
            row += len(ids)
        check(self._step(self._spans, len(chunks), self._tokens_c, n, self._logits_c))
        for chunk, count in zip(chunks, counts, strict=True):
            chunk.state.advance(count)
        return self._logits[:wanted]

    def close(self) -> None:
        """Run no more steps: the weights are about to go."""
        self._step = None

    def _reserve(self, n_spans: int, n: int, wanted: int) -> None:
        """Room for a step of that size."""
        if n_spans > len(self._spans):
            self._spans = self._ffi.new("lmk_span[]", n_spans)
        if n > len(self._tokens):
            self._tokens = np.empty(n, np.int32)
            self._tokens_c = self._ffi.from_buffer("int32_t[]", self._tokens)
        if wanted > len(self._logits):
            self._logits = np.empty((wanted, self._n_vocab), np.float32)
            self._logits_c = self._ffi.from_buffer("float[]", self._logits)


def checked(chunks: Sequence[Chunk], n_vocab: int, fits: Callable[[State], bool]) -> list[NDArray[Any]]:
    """The token ids of every chunk as arrays, after all checks of what `CausalLM.forward` takes.

    `fits` says whether a state is of this model. Raises RequestError, PromptTooLong where a state is full.
    """
    if len({id(chunk.state) for chunk in chunks}) < len(chunks):
        raise RequestError("A state occurs twice in one step; give each sequence one chunk.")
    out = []
    for chunk in chunks:
        ids = np.asarray(chunk.tokens)
        if ids.size == 0:
            raise RequestError("A chunk holds no tokens; give at least one.")
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= n_vocab:
            raise RequestError(f"A token id is not a whole number from 0 to {n_vocab - 1}; check the prompt.")
        state = chunk.state
        if not fits(state):
            raise RequestError("A state belongs to another model; make one with new_state of this model.")
        if state.n_tokens + len(ids) > state.capacity:
            raise PromptTooLong(
                f"{len(ids)} tokens do not fit behind the {state.n_tokens} in a context of {state.capacity}; "
                f"shorten the prompt or open the model with a larger context."
            )
        out.append(ids)
    return out
