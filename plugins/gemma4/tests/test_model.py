"""What the plugin refuses and ignores, and what files may leave out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import LmhubError, ModelFileError, UnsupportedModel
from lmhub.family import LoadOptions
from lmhub.gguf import GGMLType, GGUFFile, open_gguf
from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.rewrite import rewrite
from lmhub.testing.tiny import write

TINY = run_path(str(Path(__file__).with_name("tiny_gemma.py")))
N_CTX = 128


@pytest.fixture
def sound(tmp_path: Path) -> Callable[[str], GGUFFile]:
    """The file of one of the tiny models."""
    return lambda name: open_gguf(write(tmp_path / f"{name}.gguf", TINY["MODELS"][name]))


def load(path: Path) -> Any:
    return drive.load("lmhub_gemma4", path, N_CTX)


def logits(path: Path) -> np.ndarray:
    return drive.logits_of(load(path), drive.random_tokens(40, 288))


@pytest.mark.parametrize(
    "key", ["attention.sliding_window", "attention.sliding_window_pattern", "attention.key_length_swa"]
)
def test_gemma4_must_say_how_its_layers_differ(sound: Callable[[str], GGUFFile], tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"gemma4\.{key} is missing"):
        load(rewrite(sound("dense"), tmp_path / "silent.gguf", drop=(f"gemma4.{key}",)))


def test_scaled_experts_are_refused(sound: Callable[[str], GGUFFile], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="scales its experts"):
        load(rewrite(sound("moe"), tmp_path / "other.gguf", metadata={"gemma4.expert_weights_scale": 2.5}))


def test_only_full_layers_of_gemma4_take_keys_for_values(sound: Callable[[str], GGUFFile], tmp_path: Path) -> None:
    for name in ("dense", "gemma3"):
        gone = "blk.0.attn_v.weight"
        with pytest.raises(ModelFileError, match=r"blk\.0\.attn_v\.weight"):
            load(rewrite(sound(name), tmp_path / "none.gguf", drop=(gone,)))


@pytest.mark.parametrize("shape", [(1,), (2, 2, 2), (1, 1)])
@pytest.mark.parametrize("name", ["token_embd.weight", "rope_freqs.weight", "per_layer_token_embd.weight"])
def test_tensors_of_another_rank(
    sound: Callable[[str], GGUFFile], tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(LmhubError):
        load(rewrite(sound("e2b"), tmp_path / "damaged.gguf", replace={name: np.ones(shape, np.float32)}))


def test_keys_and_values_of_layers_that_share_others_are_not_read(
    sound: Callable[[str], GGUFFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Public files carry them. Nor are vision and audio, which some files carry too."""
    source, rng = sound("e2b"), np.random.default_rng(1)
    kinds = {5: 32, 6: 32, 7: 64}  # of the three layers at the end
    decoys = {
        f"blk.{i}.attn_{s}.weight": rng.standard_normal((d, 64), np.float32) for i, d in kinds.items() for s in "kv"
    }
    decoys |= {f"blk.{i}.attn_k_norm.weight": rng.standard_normal(d, np.float32) for i, d in kinds.items()}
    decoys |= {name: np.ones((3, 3), np.float32) for name in ("v.patch_embd.weight", "a.conv.weight", "mm.0.weight")}
    path = rewrite(source, tmp_path / "decoys.gguf", replace=decoys)
    assert logits(path).tobytes() == logits(source.path).tobytes()
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("dense", {"gemma4.attention.sliding_window_pattern": [1, 1, 0, 1, 0]}),
        ("dense", {"gemma4.feed_forward_length": [96] * 5}),
        ("dense", {"gemma4.attention.head_count": [4] * 5}),
        ("moe", {"gemma4.expert_feed_forward_length": [32] * 3}),
        ("gemma3", {"gemma3.attention.sliding_window_pattern": [True, True, False, True]}),
        ("gemma3", {"gemma3.rope.freq_base_swa": 10000.0}),
        ("gemma3", {"gemma3.future.key": 3}),
    ],
)
def test_other_spellings_of_the_same(
    sound: Callable[[str], GGUFFile], tmp_path: Path, name: str, metadata: dict[str, Any]
) -> None:
    source = sound(name)
    path = rewrite(source, tmp_path / "spelled.gguf", metadata=metadata)
    assert logits(path).tobytes() == logits(source.path).tobytes()


def test_an_absent_period_is_six(tmp_path: Path, oracle: Callable[..., np.ndarray]) -> None:
    source = open_gguf(write(tmp_path / "long.gguf", TINY["gemma3"](7)))
    path = rewrite(source, tmp_path / "six.gguf", drop=("gemma3.attention.sliding_window_pattern",))
    want = oracle(open_gguf(path), drive.random_tokens(40, 288))
    assert np.abs(logits(path) - want).max() < 1e-4 * np.abs(want).max()


def test_the_largest_gemma3_has_a_scale_of_its_own(tmp_path: Path) -> None:
    """62 layers: queries are scaled by their share of the embedding, 64 / 4, not by their 32 dimensions."""
    from lmhub_gemma4.hparams import Hparams

    scales = [
        Hparams.from_gguf(open_gguf(write(tmp_path / f"{n}.gguf", TINY["gemma3"](n)))).attention_scale for n in (61, 62)
    ]
    assert scales == pytest.approx([32**-0.5, 16**-0.5])


def test_tables_are_not_packed(tmp_path: Path) -> None:
    """More than half of a small Gemma 4 is a table of which each token reads a row."""
    from lmhub_gemma4.model import plan

    from lmhub.weights import packed_bytes

    file = open_gguf(write(tmp_path / "wide.gguf", TINY["WIDE"], GGMLType.Q8_0))
    packed = {name: packed_bytes(tensor) for name, tensor in file.tensors.items()}
    assert packed["per_layer_token_embd.weight"] > 0
    assert plan(file, LoadOptions()).weights_packed == sum(packed.values()) - packed["per_layer_token_embd.weight"]


def test_a_prompt_without_wanted_logits_caches_the_same(sound: Callable[[str], GGUFFile]) -> None:
    """Layers that have no keys of their own are run for rows whose logits somebody wants, and for no others."""
    model, tokens = load(sound("e2b").path), drive.random_tokens(50, 288)
    states = [model.new_state(N_CTX) for _ in range(3)]
    whole = model.forward([Chunk(states[0], tokens, "all")]).copy()
    assert (
        model.forward([Chunk(states[1], tokens[:-1], "none"), Chunk(states[2], tokens)]).tobytes()
        == whole[-1].tobytes()
    )
    assert states[1].read_rows(0, 49).tobytes() == states[0].read_rows(0, 49).tobytes()
    assert model.forward([Chunk(states[1], tokens[-1:])]).tobytes() == whole[-1].tobytes()
