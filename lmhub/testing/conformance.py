"""`FamilyConformance`: what every causal family must satisfy, as a pytest mixin. Subclass it next to the plugin.

    class TestMarkov(FamilyConformance):
        plugin = "lmhub_markov"
        models = {"plain": decoder("markov"), "tied": decoder("markov", tied=True)}
        wide = decoder("markov", n_embd=256, n_head=8, n_ff=256)

The suite's conftest gives a fixture `oracle`: a function (file, tokens) -> float64 logits `(n, n_vocab)` of every
position, computed without lmhub's kernels.

Row invariance is tested bit for bit; numbers are tested against the family's own oracle. docs/porting.md lists what
each version of the suite checks.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from lmhub.errors import GenerationError, KernelError, LmhubError, ModelFileError, RequestError
from lmhub.family import LoadOptions
from lmhub.gguf import GGMLType, GGUFFile, open_gguf
from lmhub.model import Chunk, State, Want
from lmhub.testing import drive
from lmhub.testing.blocks import RANDOM_KINDS
from lmhub.testing.cases import Cases, Named
from lmhub.testing.reference import nmse, relative_error
from lmhub.testing.rewrite import changed
from lmhub.testing.tiny import Paths, Tiny, write

VERSION = 2
"""Of the suite: goes up when a check is added, which then says since when it exists."""

N_CTX = 160
Oracle = Callable[..., np.ndarray]


def since(version: int) -> Callable[[Any], Any]:
    """Marks a check for suites of that version and later ones."""
    return pytest.mark.conformance_since(version)


class FamilyConformance(Cases):
    """Subclass with `plugin` and the attributes below; every test runs for every model."""

    suite: ClassVar[int] = VERSION
    """The version whose checks the family is held to: a plugin that names one stays green when lmhub adds more."""
    models: ClassVar[Mapping[str, Tiny]]
    """Name -> a small model; one for each thing that the family can do."""
    wide: ClassVar[Tiny]
    """A dense model all of whose rows are multiples of 256, for the quantised types."""
    optional: ClassVar[tuple[str, ...]] = ("output.weight", ".bias", "rope_freqs.weight")
    """Endings of tensor names that a file may leave out."""
    substitutes: ClassVar[tuple[str, ...]] = ()
    """Endings of tensors in whose place another layout has others, or that sizes are read from: when they are missing
    or misshapen, a neighbour in the same block may be what is named."""
    kinds: ClassVar[tuple[GGMLType, ...]] = (GGMLType.F16, GGMLType.BF16, *RANDOM_KINDS)
    """Tensor types to try on `wide`."""
    exact_kinds: ClassVar[tuple[GGMLType, ...]] = (GGMLType.F16, GGMLType.BF16)
    """Those for which the kernels do not round activations to 8 bits."""
    damaged: ClassVar[Mapping[str, Sequence[tuple[str, Any]]]] = {}
    """Name of a model -> (key without the architecture, value) pairs with which it must be refused."""

    @classmethod
    def cases(cls) -> dict[str, Named]:
        damaged = [(name, *pair) for name, pairs in cls.damaged.items() for pair in pairs]
        return {
            "tiny": list(cls.models.items()),
            "kind": [(kind.name, kind) for kind in cls.kinds],
            "damage": [(f"{name}-{key}-{value}"[:60], (name, key, value)) for name, key, value in damaged],
        }

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.suite > VERSION:
            raise LmhubError(
                f"{cls.__name__} wants version {cls.suite} of the conformance suite, and this lmhub has {VERSION}; "
                f"upgrade lmhub."
            )

    @pytest.fixture(autouse=True)
    def _skip_what_came_later(self, request: pytest.FixtureRequest) -> None:
        mark = request.node.get_closest_marker("conformance_since")
        if mark is not None and mark.args[0] > self.suite:
            pytest.skip(f"version {mark.args[0]} of the suite; the plugin asks for {self.suite}")

    @pytest.fixture
    def path(self, tiny: Tiny, paths: Paths) -> Path:
        return paths(tiny)

    @pytest.fixture
    def model(self, path: Path) -> Any:
        return drive.load(self.plugin, path, N_CTX)

    # --- records and files -------------------------------------------------------------------------------------------

    def test_importing_the_plugin_loads_nothing_heavy(self) -> None:
        code = (
            f"import sys, {self.plugin} as p; p.lmhub_families(); "
            f"print([m for m in ('numpy', 'lmhub.native', '{self.plugin}._kernels') if m in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.strip() == "[]"

    def test_records_name_what_they_load(self) -> None:
        for tiny in self.models.values():
            family = drive.family_of(self.plugin, tiny.arch)
            assert family.name and family.doc and ":" in family.load

    def test_missing_tensors_are_named(self, tiny: Tiny, path: Path) -> None:
        source = open_gguf(path)
        for name in source.tensors:
            if not name.endswith(self.optional):
                self._refused(changed(source, drop=(name,)), name)

    def test_misshapen_tensors_are_named(self, tiny: Tiny, path: Path) -> None:
        source = open_gguf(path)
        for name, tensor in source.tensors.items():
            shape = (*tensor.shape[:-1], tensor.shape[-1] + 32)
            message = self._refused(changed(source, replace={name: np.zeros(shape, np.float32)}), name)
            assert str(shape[-1]) in message and str(tensor.shape[-1]) in message, message

    def test_every_weight_counts(self, tiny: Tiny, path: Path, model: Any) -> None:
        source, rng = open_gguf(path), np.random.default_rng(1)
        tokens = list(range(0, model.n_vocab, 7))
        before = drive.logits_of(model, tokens)
        for name, tensor in source.tensors.items():
            values = tensor.data.view(np.float32).reshape(tensor.shape)
            other = values * rng.uniform(0.5, 1.5, tensor.shape).astype(np.float32)
            after = drive.logits_of(drive.load(self.plugin, changed(source, replace={name: other}), N_CTX), tokens)
            assert np.abs(after - before).max() > 1e-3, f"{name} does not reach the logits"

    def test_the_plan_comes_from_the_directory(self, tiny: Tiny, path: Path, model: Any) -> None:
        family = drive.family_of(self.plugin, tiny.arch)
        if family.plan is None:
            pytest.skip("the family has no plan")
        module, _, name = family.plan.partition(":")
        file = open_gguf(path)
        plan = getattr(import_module(module), name)(file, LoadOptions(n_ctx=N_CTX, kv_dtype="f32"))
        assert plan.weights_mapped >= sum(tensor.nbytes for tensor in file.tensors.values())
        assert plan.state == model.new_state(N_CTX).nbytes

    # --- numbers -----------------------------------------------------------------------------------------------------

    def test_logits_agree_with_the_oracle(self, tiny: Tiny, path: Path, model: Any, oracle: Oracle) -> None:
        tokens = drive.random_tokens(120, model.n_vocab)
        got, want = drive.logits_of(model, tokens), oracle(open_gguf(path), tokens)
        assert relative_error(got, want) <= 1e-4
        assert nmse(got, want) <= 1e-9

    def test_half_precision_cache_is_close(self, tiny: Tiny, path: Path, oracle: Oracle) -> None:
        model = drive.load(self.plugin, path, N_CTX, kv_dtype="f16")
        tokens = drive.random_tokens(60, model.n_vocab)
        assert nmse(drive.logits_of(model, tokens), oracle(open_gguf(path), tokens)) <= 1e-4

    def test_an_eight_bit_cache_is_close_and_as_exact_as_any(self, tiny: Tiny, path: Path, oracle: Oracle) -> None:
        """Row invariance, and rows that are saved and brought back. Or a refusal, where head dimensions rule it out."""
        try:
            model = drive.load(self.plugin, path, N_CTX, kv_dtype="q8_0")
        except KernelError as error:
            assert "multiples of 32" in str(error)
            return
        tokens = drive.random_tokens(70, model.n_vocab)
        state, source, target, other = (model.new_state(N_CTX) for _ in range(4))
        whole = drive.logits_of(model, tokens, state=state)
        rows = zip(whole, oracle(open_gguf(path), tokens), strict=True)
        assert np.median([nmse(*row) for row in rows]) <= 5e-4  # single rows may take another expert
        for cut in (1, 7, 64):
            assert _same(drive.logits_of(model, tokens, cut), whole), f"{cut} tokens to a step"
        drive.logits_of(model, tokens[:30], state=source)
        _bring(source, target)
        chunks = [Chunk(other, tokens[:9], "all"), Chunk(target, tokens[30:], "all")]
        assert _same(model.forward(chunks), np.concatenate([whole[:9], whole[30:]]))
        assert target.read_rows(0, 70).tobytes() == state.read_rows(0, 70).tobytes()

    def test_quantised_weights_agree_with_their_expansion(self, kind: GGMLType, tmp_path: Path, oracle: Oracle) -> None:
        path = write(tmp_path / "wide.gguf", self.wide, kind)
        model = drive.load(self.plugin, path, N_CTX)
        tokens = drive.random_tokens(24, model.n_vocab)
        got, want = drive.logits_of(model, tokens), oracle(open_gguf(path), tokens)
        assert nmse(got, want) <= (1e-6 if kind in self.exact_kinds else 2e-3)

    @pytest.mark.parametrize("n", [1, 24])
    def test_weights_that_stay_in_the_file_give_the_same_bits(self, n: int, tmp_path: Path) -> None:
        """`LoadOptions.borrow`: the plan counts no packed copy, and there is none to be seen in the logits."""
        path = write(tmp_path / "wide.gguf", self.wide, GGMLType.Q8_0)
        packed, borrowed = (drive.load(self.plugin, path, N_CTX, borrow=one) for one in ("none", "all"))
        tokens = drive.random_tokens(n, packed.n_vocab)
        assert _same(drive.logits_of(borrowed, tokens), drive.logits_of(packed, tokens))
        family = drive.family_of(self.plugin, self.wide.arch)
        if family.plan is not None:
            module, _, name = family.plan.partition(":")
            options = LoadOptions(n_ctx=N_CTX, kv_dtype="f32", borrow="all")
            assert getattr(import_module(module), name)(open_gguf(path), options).weights_packed == 0

    @since(2)
    def test_damaged_numbers_are_refused(self, damage: tuple[str, str, Any], paths: Paths) -> None:
        name, key, value = damage
        source = open_gguf(paths(self.models[name]))
        with pytest.raises(ModelFileError, match=source.path.name):
            drive.load(self.plugin, changed(source, metadata={f"{source.architecture}.{key}": value}), N_CTX)

    # --- row invariance, bit for bit ---------------------------------------------------------------------------------

    def test_cuts_do_not_matter(self, tiny: Tiny, model: Any) -> None:
        tokens = drive.random_tokens(70, model.n_vocab)
        whole = drive.logits_of(model, tokens)
        for cut in (1, 3, 7, 64):
            assert _same(drive.logits_of(model, tokens, cut), whole), f"{cut} tokens to a step"

    def test_wanted_rows(self, tiny: Tiny, model: Any) -> None:
        tokens = drive.random_tokens(9, model.n_vocab)
        whole = drive.logits_of(model, tokens)
        wants: tuple[Want, ...] = ("none", "last", "all", "none")
        states = [model.new_state(N_CTX) for _ in wants]
        chunks = [Chunk(state, tokens, want) for state, want in zip(states, wants, strict=True)]
        rows = model.forward(chunks).copy()
        assert rows.shape == (10, model.n_vocab) and rows.dtype == np.float32
        assert _same(rows[:1], whole[-1:]) and _same(rows[1:], whole)
        assert [state.n_tokens for state in states] == [9] * 4
        assert model.forward([Chunk(model.new_state(N_CTX), tokens, "none")]).shape == (0, model.n_vocab)

    def test_neighbours_do_not_matter(self, tiny: Tiny, model: Any) -> None:
        prompts = [drive.random_tokens(n, model.n_vocab, seed=n) for n in (1, 17, 66)]
        alone = [drive.logits_of(model, prompt) for prompt in prompts]
        states = [model.new_state(N_CTX) for _ in prompts]
        for state, prompt in zip(states[1:], prompts[1:], strict=True):  # different pasts, then one mixed step
            drive.logits_of(model, prompt[: len(prompt) // 3], state=state)
        rest = [prompt[state.n_tokens :] for state, prompt in zip(states, prompts, strict=True)]
        mixed = model.forward([Chunk(s, tokens, "all") for s, tokens in zip(states, rest, strict=True)])
        want = np.concatenate([rows[-len(tokens) :] for rows, tokens in zip(alone, rest, strict=True)])
        assert _same(mixed, want)

    def test_threads_do_not_matter(self, tiny: Tiny, model: Any) -> None:
        from lmhub import native

        tokens, before = drive.random_tokens(70, model.n_vocab), native.threads()
        try:
            native.set_threads(1)
            one = drive.logits_of(model, tokens), drive.logits_of(model, tokens, 1)
            native.set_threads(3)
            three = drive.logits_of(model, tokens), drive.logits_of(model, tokens, 1)
        finally:
            native.set_threads(before)
        assert _same(one[0], three[0]) and _same(one[1], three[1])

    # --- states ------------------------------------------------------------------------------------------------------

    def test_truncate_then_continue(self, tiny: Tiny, model: Any) -> None:
        first, second = (drive.random_tokens(40, model.n_vocab, seed) for seed in (1, 2))
        state = model.new_state(N_CTX)
        drive.logits_of(model, first, state=state)
        if not drive.family_of(self.plugin, tiny.arch).caps.rewind:
            assert not state.truncate(15) and state.n_tokens == 40
            return
        assert state.truncate(15) and state.n_tokens == 15
        fresh = drive.logits_of(model, first[:15] + second)
        assert _same(drive.logits_of(model, second, state=state), fresh[15:])
        assert state.truncate(0) and _same(drive.logits_of(model, first[:15], state=state), fresh[:15])

    def test_copy_prefix_then_continue(self, tiny: Tiny, model: Any) -> None:
        first, second = (drive.random_tokens(40, model.n_vocab, seed) for seed in (1, 2))
        source, copy = model.new_state(N_CTX), model.new_state(N_CTX // 2)
        drive.logits_of(model, first, state=source)
        drive.logits_of(model, second, state=copy)
        if not copy.copy_prefix(source, 15):
            assert copy.n_tokens == 0
            return
        fresh = drive.logits_of(model, first[:15] + second)
        assert copy.n_tokens == 15 and _same(drive.logits_of(model, second, state=copy), fresh[15:])
        assert source.n_tokens == 40  # and the source is untouched by what its copy went on to do
        rest = drive.logits_of(model, first + second)[40:]
        assert _same(drive.logits_of(model, second, state=source), rest)

    @since(2)
    def test_checkpoints_then_continue(self, tiny: Tiny, model: Any) -> None:
        """What cannot be cut back goes on from where it was, in place and in another state, whatever came between."""
        first, second = (drive.random_tokens(40, model.n_vocab, seed) for seed in (1, 2))
        state, other = model.new_state(N_CTX), model.new_state(N_CTX)
        drive.logits_of(model, first[:15], state=state)
        checkpoint = state.checkpoint()
        drive.logits_of(model, second, state=other)
        assert other.truncate(0)
        _bring(state, other)
        drive.logits_of(model, first[15:], state=state)
        if checkpoint is None:
            assert state.can_rewind
            return
        assert state.restore(checkpoint, 15) and state.n_tokens == 15
        fresh = drive.logits_of(model, first[:15] + second)
        for one in (state, other):
            assert _same(drive.logits_of(model, second, 7, one), fresh[15:])
        assert state.truncate(0) and _same(drive.logits_of(model, first[:15], state=state), fresh[:15])

    # --- refusals ----------------------------------------------------------------------------------------------------

    def test_bad_steps_change_nothing(self, tiny: Tiny, model: Any) -> None:
        tokens = drive.random_tokens(8, model.n_vocab)
        state, other = model.new_state(12), model.new_state(12)
        drive.logits_of(model, tokens, state=state)
        bad: list[list[Chunk]] = [
            [Chunk(state, [])],
            [Chunk(other, tokens), Chunk(state, [-1])],
            [Chunk(other, tokens), Chunk(state, [model.n_vocab])],
            [Chunk(state, [2**31])],
            [Chunk(state, [2**70])],
            [Chunk(state, [1.5])],  # type: ignore[list-item]
            [Chunk(other, tokens), Chunk(state, tokens[:5])],
            [Chunk(state, tokens[:1]), Chunk(state, tokens[:1])],
        ]
        for chunks in bad:
            with pytest.raises(RequestError) as refusal:
                model.forward(chunks)
            assert len(str(refusal.value)) > 20
            assert (state.n_tokens, other.n_tokens) == (8, 0)
        rest = drive.logits_of(model, tokens[:4], state=state)
        assert _same(rest, drive.logits_of(model, tokens + tokens[:4])[8:])

    def test_abort_ends_one_step(self, tiny: Tiny, model: Any) -> None:
        tokens, state = drive.random_tokens(8, model.n_vocab), model.new_state(N_CTX)
        model.abort()
        with pytest.raises(GenerationError):
            model.forward([Chunk(state, tokens)])
        assert state.n_tokens == 0
        assert _same(drive.logits_of(model, tokens, state=state), drive.logits_of(model, tokens))

    @since(2)
    def test_steady_decoding_allocates_nothing(self, tiny: Tiny, model: Any) -> None:
        if drive.family_of(self.plugin, tiny.arch).kernels is None:
            pytest.skip("the forward pass is not in C")
        states = [model.new_state(N_CTX) for _ in range(2)]
        model.forward([Chunk(state, [1, 2, 3]) for state in states])
        first = model.forward([Chunk(state, [4]) for state in states])
        before = model.context.stats()
        for token in range(40):
            assert model.forward([Chunk(state, [token]) for state in states]).ctypes.data == first.ctypes.data
        assert model.context.stats() == before

    def _refused(self, file: GGUFFile, name: str) -> str:
        """The sentence with which the file is refused; it names the tensor."""
        with pytest.raises(LmhubError) as refusal:
            drive.load(self.plugin, file, N_CTX)
        named = name[: name.index(".", 4) + 1] if name.endswith(self.substitutes or ("\0",)) else name
        assert named in str(refusal.value), f"{refusal.value!r} does not name {named}"
        return str(refusal.value)


def _bring(source: State, target: State) -> None:
    """Make the empty `target` what `source` is, by what can be written to disk."""
    target.write_rows(source.read_rows(0, source.n_tokens))
    checkpoint = source.checkpoint()
    assert checkpoint is None or target.restore(checkpoint, source.n_tokens)


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()
