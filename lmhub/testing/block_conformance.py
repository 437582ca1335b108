"""`BlockConformance`: what every diffusion family must satisfy, as a pytest mixin. Subclass it next to the plugin.

    class TestMarkovBlocks(BlockConformance):
        plugin = "lmhub_markov_blocks"
        models = {"plain": tiny_blocks()}

That a block depends on its text, its wish and its seed, and on nothing that shares its passes, is tested bit for bit;
what the numbers are is the family's own tests' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from lmhub.errors import GenerationError, LmhubError
from lmhub.gguf import GGMLType
from lmhub.model import Chunk, State
from lmhub.testing import drive
from lmhub.testing.cases import Cases, Named
from lmhub.testing.conformance import FamilyConformance
from lmhub.testing.tiny import Tiny, write

N_CTX = 160
STEPS = 4  # of the canvases here: enough for every rule to have had its turn


class BlockConformance(Cases):
    """Subclass with `plugin` and the attributes below; every test runs for every model."""

    models: ClassVar[Mapping[str, Tiny]]
    """Name -> a small model whose blocks have at most 32 positions."""
    optional: ClassVar[tuple[str, ...]] = ("output.weight",)
    """Endings of tensor names that a file may leave out."""
    substitutes: ClassVar[tuple[str, ...]] = ()
    """See FamilyConformance."""
    kinds: ClassVar[tuple[GGMLType, ...]] = (GGMLType.BF16, GGMLType.Q8_0)
    """Tensor types with which packed weights and those that stay in the file are compared."""

    @classmethod
    def cases(cls) -> dict[str, Named]:
        return {"tiny": list(cls.models.items())}

    path, model = FamilyConformance.path, FamilyConformance.model
    test_importing_the_plugin_loads_nothing_heavy = FamilyConformance.test_importing_the_plugin_loads_nothing_heavy
    test_missing_tensors_are_named = FamilyConformance.test_missing_tensors_are_named
    test_misshapen_tensors_are_named = FamilyConformance.test_misshapen_tensors_are_named
    test_the_plan_comes_from_the_directory = FamilyConformance.test_the_plan_comes_from_the_directory
    _refused = FamilyConformance._refused

    # --- what a block depends on -------------------------------------------------------------------------------------

    def test_neighbours_do_not_matter(self, tiny: Tiny, model: Any) -> None:
        prompts = [drive.random_tokens(n, model.n_vocab, seed=n) for n in (1, 17, 66)]
        alone = [settled(model, [read(model, prompt)], [seed])[0] for seed, prompt in enumerate(prompts)]
        together = settled(model, [read(model, prompt) for prompt in prompts], range(len(prompts)))
        assert together == alone

    def test_the_stage_of_neighbours_does_not_matter(self, tiny: Tiny, model: Any) -> None:
        states = [read(model, drive.random_tokens(n, model.n_vocab, seed=n)) for n in (5, 30)]
        alone = [settled(model, [state], [7])[0] for state in states]
        first, second = (canvas_of(model, 7) for _ in states)
        model.denoise([(states[0], first)])
        while not second.is_settled:
            work = [(states[1], second)] + ([] if first.is_settled else [(states[0], first)])
            model.denoise(work)
        assert [tuple(first.draft.tolist()), tuple(second.draft.tolist())] == alone

    def test_threads_do_not_matter(self, tiny: Tiny, model: Any) -> None:
        from lmhub import native

        before, found = native.threads(), []
        try:
            for n in (1, 3):
                native.set_threads(n)
                found += settled(model, [read(model, drive.random_tokens(40, model.n_vocab))], [3])
        finally:
            native.set_threads(before)
        assert found[0] == found[1]

    def test_cuts_of_the_prompt_do_not_matter(self, tiny: Tiny, model: Any) -> None:
        tokens = drive.random_tokens(70, model.n_vocab)
        whole = read(model, tokens)
        block = settled(model, [whole], [5])
        for cut in (1, 7, 64):
            state = read(model, tokens, cut)
            assert state.read_rows(0, 70).tobytes() == whole.read_rows(0, 70).tobytes(), f"{cut} tokens to a pass"
            assert settled(model, [state], [5]) == block

    def test_seeds_numbers_and_texts_matter(self, tiny: Tiny, model: Any) -> None:
        state = read(model, drive.random_tokens(20, model.n_vocab))
        first = settled(model, [state], [1])
        assert settled(model, [state], [1]) == first
        assert settled(model, [state], [2]) != first
        assert settled(model, [read(model, drive.random_tokens(20, model.n_vocab, seed=9))], [1]) != first
        wish = replace(model.denoising, steps=STEPS, seed=1)
        one, other = (model.canvas(wish, number, {}) for number in (0, 1))
        model.denoise([(state, one)])
        model.denoise([(state, other)])
        assert one.draft.tolist() != other.draft.tolist()

    def test_a_forbidden_token_is_in_no_draft(self, tiny: Tiny, model: Any) -> None:
        state = read(model, drive.random_tokens(20, model.n_vocab))
        [block] = settled(model, [state], [1])
        bias = dict.fromkeys(block[: len(block) // 2], -float("inf"))
        [other] = settled(model, [state], [1], bias)
        assert not set(other) & set(bias)

    # --- states ------------------------------------------------------------------------------------------------------

    def test_denoising_leaves_the_state_as_it_is(self, tiny: Tiny, model: Any) -> None:
        tokens = drive.random_tokens(70, model.n_vocab)
        state, plain = read(model, tokens[:40]), read(model, tokens)
        before = state.read_rows(0, 40).tobytes()
        settled(model, [state], [1])
        assert state.n_tokens == 40 and state.read_rows(0, 40).tobytes() == before
        model.encode([Chunk(state, tokens[40:])])
        assert state.read_rows(0, 70).tobytes() == plain.read_rows(0, 70).tobytes()

    def test_truncate_and_copy_then_denoise(self, tiny: Tiny, model: Any) -> None:
        tokens = drive.random_tokens(60, model.n_vocab)
        want = settled(model, [read(model, tokens[:25])], [1])
        state, copy = read(model, tokens), model.new_state(N_CTX)
        assert copy.copy_prefix(state, 25) and settled(model, [copy], [1]) == want
        assert state.truncate(25) and settled(model, [state], [1]) == want

    # --- refusals ----------------------------------------------------------------------------------------------------

    def test_a_block_must_fit(self, tiny: Tiny, model: Any) -> None:
        tokens = drive.random_tokens(10, model.n_vocab)
        state, tight = model.new_state(10 + model.block_size), model.new_state(9 + model.block_size)
        model.encode([Chunk(state, tokens), Chunk(tight, tokens)])
        fits, does_not = canvas_of(model, 1), canvas_of(model, 1)
        with pytest.raises(LmhubError):
            model.denoise([(state, fits), (tight, does_not)])
        assert fits.n_passes == does_not.n_passes == 0
        model.denoise([(state, fits)])
        assert fits.n_passes == 1

    def test_abort_ends_one_pass(self, tiny: Tiny, model: Any) -> None:
        state = read(model, drive.random_tokens(10, model.n_vocab))
        canvas, other = canvas_of(model, 1), canvas_of(model, 1)
        model.abort()
        with pytest.raises(GenerationError):
            model.denoise([(state, canvas)])
        assert canvas.n_passes == 0 and state.n_tokens == 10
        for one in (canvas, other):
            model.denoise([(state, one)])
        assert canvas.draft.tolist() == other.draft.tolist()

    def test_weights_may_stay_in_the_file(self, tiny: Tiny, tmp_path: Path) -> None:
        for kind in self.kinds:
            path = write(tmp_path / "kind.gguf", tiny, kind)
            found = []
            for borrow in ("none", "all"):
                model = drive.load(self.plugin, path, N_CTX, borrow=borrow)
                found += settled(model, [read(model, drive.random_tokens(20, model.n_vocab))], [1])
            assert found[0] == found[1], kind.name


def read(model: Any, tokens: Sequence[int], cut: int | None = None) -> State:
    """A state behind these tokens, `cut` of them to a pass."""
    state: State = model.new_state(N_CTX)
    step = cut or len(tokens)
    for at in range(0, len(tokens), step):
        model.encode([Chunk(state, tokens[at : at + step])])
    return state


def canvas_of(model: Any, seed: int, bias: Mapping[int, float] | None = None) -> Any:
    """A canvas of the first block, with few passes."""
    return model.canvas(replace(model.denoising, steps=STEPS, seed=seed), 0, bias or {})


def settled(
    model: Any, states: Sequence[State], seeds: Sequence[int], bias: Mapping[int, float] | None = None
) -> list[tuple[int, ...]]:
    """The blocks behind these states, denoised side by side."""
    canvases = [canvas_of(model, seed, bias) for seed in seeds]
    while work := [(s, canvas) for s, canvas in zip(states, canvases, strict=True) if not canvas.is_settled]:
        model.denoise(work)
    return [tuple(np.asarray(canvas.draft).tolist()) for canvas in canvases]
