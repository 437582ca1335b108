"""Loads a diffusion-gemma file, and makes the passes: Gemma 4's layers in two modes, and what comes of the logits.

The causal mode, which prompts and committed blocks go through, has layer scales of its own and no head; all other
weights are shared with the passes over canvases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from lmhub_gemma4._kernels import ffi as gemma
from lmhub_gemma4._kernels import lib as gemma_lib
from lmhub_gemma4.hparams import Hparams
from lmhub_gemma4.model import fill_model
from numpy.typing import NDArray

from lmhub.errors import ModelFileError, PromptTooLong, RequestError
from lmhub.family import LoadOptions
from lmhub.forward import Geometry, RaggedModel
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.model import BlockLM, Canvas, Chunk, MemoryPlan, State
from lmhub.native import bind, check
from lmhub.types import Denoising
from lmhub.weights import Weights
from lmhub_diffusion_gemma._kernels import ffi, lib
from lmhub_diffusion_gemma.sampler import EntropyBound, Outcome

F32 = NDArray[np.float32]

LEAST = 1e-7  # probability: what is below, over a whole vocabulary of 262,144 at most 0.03, is expected of no position
AT_ONCE = 4  # canvases in a pass, for the memory plan


def read_denoising(file: GGUFFile) -> Denoising:
    """What the file recommends; its keys have no architecture before them. Raises ModelFileError for nonsense."""

    def real(name: str, default: float, least: float, most: float) -> float:
        value = file.metadata.get(f"diffusion.{name}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise ModelFileError(
                f"{file.path.name}: diffusion.{name} must be a number from {least:g} to {most:g}; convert it again."
            )
        return value

    t_max = float(real("eb_t_max", 0.8, 1e-3, 100.0))
    return Denoising(
        steps=int(real("eb_max_steps", 48, 1, 10_000)),
        t_min=float(real("eb_t_min", 0.4, 1e-3, t_max)),
        t_max=t_max,
        entropy_bound=float(real("eb_entropy_bound", 0.1, 0.0, 1e6)),
        stability=int(real("eb_stability_threshold", 1, 0, 10_000)),
        confidence=float(real("eb_confidence_threshold", 0.005, 0.0, 1e6)),
    )


def block_size(file: GGUFFile) -> int:
    """Positions of a canvas. Raises ModelFileError."""
    size = file.metadata.get("diffusion.canvas_length")
    if type(size) is not int or not 1 <= size <= 1 << 14:
        raise ModelFileError(
            f"{file.path.name}: diffusion.canvas_length must be a whole number from 1 to {1 << 14}; convert it again."
        )
    return size


class DiffusionGemma(BlockLM):
    """A loaded model. See BlockLM."""

    def __init__(self, file: GGUFFile, options: LoadOptions):
        """Raises ModelFileError or UnsupportedModel naming what is wrong with the file."""
        hp, weights = Hparams.from_gguf(file), Weights(file, options.progress, options.borrow)
        self.n_vocab, self.n_ctx_train = hp.n_vocab, hp.n_ctx_train
        self.block_size, self.denoising = block_size(file), read_denoising(file)
        self._n_embd, self._geometry = hp.n_embd, hp.geometry(options)
        self._model, layers = fill_model(hp, Keys(file), weights)
        self._condition = _condition(hp, weights)
        causal, causal_layers = _causal(self._model, layers, weights)
        weights.finish()
        keep = (layers, causal_layers, weights)
        self._encoder = RaggedModel(
            gemma,
            gemma_lib.gemma_forward,
            causal,
            self._geometry,
            n_vocab=hp.n_vocab,
            n_ctx_train=hp.n_ctx_train,
            keep=keep,
        )
        address = self._encoder.context.address
        self._ctx, self._gemma_ctx = ffi.cast("lmk_ctx *", address), gemma.cast("lmk_ctx *", address)
        table = gemma.addressof(self._model, "token_embd")
        self._table = ffi.cast("lmk_weight *", int(gemma.cast("uintptr_t", table)))
        self._logits = np.empty((self.block_size, self.n_vocab), np.float32)

    def new_state(self, n_ctx: int) -> State:
        return self._encoder.new_state(n_ctx)

    def encode(self, chunks: Sequence[Chunk]) -> None:
        self._encoder.forward([Chunk(chunk.state, chunk.tokens, "none") for chunk in chunks])

    def canvas(self, wish: Denoising, number: int, bias: Mapping[int, float]) -> EntropyBound:
        return EntropyBound(wish, number, self.block_size, self.n_vocab, bias)

    def denoise(self, work: Sequence[tuple[State, Canvas]]) -> None:
        canvases = [self._checked(state, canvas) for state, canvas in work]
        passes = zip(canvases, self._passes(work), strict=True)
        found = [(canvas, *self._judged(canvas, logits)) for canvas, logits in passes]
        for canvas, outcome, soft in found:
            canvas.advance(outcome, soft)

    def logits(self, work: Sequence[tuple[State, Canvas]]) -> F32:
        """What a pass would see: soft-capped logits `(len(work), block_size, n_vocab)`. Changes nothing."""
        return np.array([logits.copy() for logits in self._passes(work)])

    def expected(self, probabilities: F32) -> F32:
        """The expected embedding `(n, n_embd)` of rows of probabilities `(n, n_vocab)`."""
        soft = np.empty((len(probabilities), self._n_embd), np.float32)
        rows = ffi.from_buffer("float[]", probabilities)
        check(lib.canvas_expect(self._ctx, self._table, rows, len(soft), LEAST, ffi.from_buffer("float[]", soft)))
        return soft

    def abort(self) -> None:
        self._encoder.abort()

    def close(self) -> None:
        self._encoder.close()

    def _passes(self, work: Sequence[tuple[State, Canvas]]) -> Iterator[F32]:
        """The logits of each canvas `(block_size, n_vocab)`, in a buffer that the next one's will overwrite."""
        canvases = [self._checked(state, canvas) for state, canvas in work]
        size, n = self.block_size, len(work) * self.block_size
        if not n:
            return
        spans = gemma.new("lmk_span[]", len(work))
        soft, hidden = np.zeros((n, self._n_embd), np.float32), np.empty((n, self._n_embd), np.float32)
        for at, (state, canvas) in enumerate(zip((state for state, _ in work), canvases, strict=True)):
            spans[at].kv = gemma.cast("lmk_kv *", state.address)  # type: ignore[attr-defined]
            spans[at].n_past, spans[at].row, spans[at].n = state.n_tokens, at * size, size
            if canvas.soft is not None:
                soft[at * size : (at + 1) * size] = canvas.soft
        tokens = np.concatenate([canvas.tokens for canvas in canvases])
        pointers = (
            gemma.from_buffer("int32_t[]", tokens),
            n,
            *(gemma.from_buffer("float[]", x) for x in (soft, hidden)),
        )
        check(gemma_lib.gemma_canvas(self._model, self._condition, self._gemma_ctx, spans, len(work), *pointers))
        out = gemma.from_buffer("float[]", self._logits)
        for at in range(len(work)):
            rows = gemma.from_buffer("float[]", hidden[at * size : (at + 1) * size])
            check(gemma_lib.gemma_head(self._model, self._gemma_ctx, rows, size, out))
            yield self._logits

    def _judged(self, canvas: EntropyBound, logits: F32) -> tuple[Outcome, F32 | None]:
        """What a pass with these logits, which it turns into probabilities, makes of a canvas."""
        noise, size = canvas.noise(), self.block_size
        best, drawn, entropy = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size, np.float64)
        ids, bias = canvas.bias_ids, canvas.bias
        wish = ffi.new("canvas_wish *", {"temperature": canvas.temperature, "n_bias": len(ids)})
        wish.ids, wish.bias = ffi.from_buffer("int32_t[]", ids), ffi.from_buffer("float[]", bias)
        lib.canvas_read(
            self._ctx,
            wish,
            ffi.from_buffer("float[]", logits),
            size,
            self.n_vocab,
            ffi.from_buffer("double[]", noise.uniform),
            *(ffi.from_buffer("int32_t[]", tokens) for tokens in (best, drawn)),
            ffi.from_buffer("double[]", entropy),
        )
        outcome = canvas.judged(best, drawn, entropy, noise.tokens)
        return outcome, None if outcome.is_settled else self.expected(logits)

    def _checked(self, state: State, canvas: Canvas) -> EntropyBound:
        if not isinstance(canvas, EntropyBound) or canvas.is_settled or not self._geometry.fits(state):
            raise RequestError("A canvas or a state belongs to another model, or has settled; make new ones.")
        if state.n_tokens + self.block_size > state.capacity:
            raise PromptTooLong(
                f"A block of {self.block_size} tokens does not fit behind the {state.n_tokens} in a context of "
                f"{state.capacity}; shorten the prompt or open the model with a larger context."
            )
        return canvas


def _condition(hp: Hparams, weights: Weights) -> Any:
    """The `gemma_condition`, which is as wide as the dense feed-forward."""
    c, ff = gemma.new("gemma_condition *"), hp.layers[0].n_ff
    weights.bind(gemma, c, "norm", weights.vector("self_cond_pre_norm.weight", hp.n_embd))
    weights.bind(gemma, c, "ones", np.ones(hp.n_embd, np.float32))
    weights.bind(gemma, c, "gate", weights.matrix("self_cond_gate.weight", ff, hp.n_embd))
    weights.bind(gemma, c, "up", weights.matrix("self_cond_up.weight", ff, hp.n_embd))
    weights.bind(gemma, c, "down", weights.matrix("self_cond_down.weight", hp.n_embd, ff))
    return c


def _causal(model: Any, layers: Any, weights: Weights) -> tuple[Any, Any]:
    """The same model and layers with the scales of the causal mode."""
    causal, causal_layers = gemma.new("gemma_model *", model[0]), gemma.new("gemma_layer[]", len(layers))
    gemma.memmove(causal_layers, layers, gemma.sizeof(layers))
    causal.layers = causal_layers
    for il, layer in enumerate(causal_layers):
        layer.output_scale = weights.vector(f"blk.{il}.enc_layer_output_scale.weight", 1)[0]
    return causal, causal_layers


def load(file: GGUFFile, options: LoadOptions) -> DiffusionGemma:
    """The model in an open diffusion-gemma file. Raises ModelFileError or UnsupportedModel naming what is wrong."""
    bind(gemma_lib, "lmhub-gemma4")
    bind(lib, "lmhub-diffusion-gemma")
    return DiffusionGemma(file, options)


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from metadata and the tensor directory."""
    hp = Hparams.from_gguf(file)
    geometry: Geometry = hp.geometry(options)
    known = geometry.plan(file, options)
    size = block_size(file)
    experts = hp.n_expert_used * (3 * hp.layers[0].n_ff_expert + hp.n_embd)
    row = 8 * hp.n_embd + 3 * hp.layers[0].n_ff + experts + hp.n_expert
    scratch = 4 * size * (hp.n_vocab + AT_ONCE * row)
    return MemoryPlan(known.weights_mapped, known.weights_packed, known.state, scratch)
