"""What the plugin refuses and ignores, other spellings of the same, and states that go back to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import LmhubError, ModelFileError, UnsupportedModel
from lmhub.gguf import GGMLType, GGUFFile, open_gguf
from lmhub.gguf.writer import GGUFWriter
from lmhub.testing import drive
from lmhub.testing.blocks import random_blocks
from lmhub.testing.reference import nmse
from lmhub.testing.rewrite import rewrite
from lmhub.testing.tiny import write

TINY = run_path(str(Path(__file__).with_name("tiny_inkling.py")))
N_CTX = 128


@pytest.fixture
def sound(tmp_path: Path) -> GGUFFile:
    return open_gguf(write(tmp_path / "sound.gguf", TINY["MODELS"]["both"]))


def logits(path: Path) -> np.ndarray:
    return drive.logits_of(drive.load("lmhub_inkling", path, N_CTX), drive.random_tokens(60, 281))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 9),
        ("nextn_predict_layers", 3),
        ("embedding_length", 2**40),
        ("attention.head_count", 3),
        ("attention.head_count_kv", [2, 2]),
        ("attention.head_count_kv", 0),
        ("attention.key_length", 48),
        ("attention.value_length", 16),
        ("attention.sliding_window", 0),
        ("attention.sliding_window_pattern", [True]),
        ("d_rel", 0),
        ("rel_extent", 23),
        ("rel_extent_swa", 2**30),
        ("shortconv_kernel", 1),
        ("shortconv_kernel", 3),
        ("shortconv_kernel", 10**9),
        ("expert_count", 9),
        ("expert_used_count", 9),
        ("expert_shared_count", 1),
        ("dense_block_count", 4),
        ("logit_scale_denom", 0.0),
        ("log_scaling_alpha", float("nan")),
        ("unpadded_vocab_size", 289),
        ("feed_forward_length", 64),
    ],
)
def test_damaged_numbers(sound: GGUFFile, tmp_path: Path, key: str, value: Any) -> None:
    path = rewrite(sound, tmp_path / "damaged.gguf", metadata={f"inkling.{key}": value})
    with pytest.raises(ModelFileError, match=r"damaged\.gguf"):
        logits(path)


@pytest.mark.parametrize(
    "key", ["d_rel", "rel_extent", "logit_scale_denom", "shortconv_kernel", "attention.key_length"]
)
def test_what_has_no_default_is_asked_for(sound: GGUFFile, tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"inkling\.{key} is missing"):
        logits(rewrite(sound, tmp_path / "silent.gguf", drop=(f"inkling.{key}",)))


def test_another_gate_is_refused(sound: GGUFFile, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="expert_gating_func"):
        logits(rewrite(sound, tmp_path / "softmax.gguf", metadata={"inkling.expert_gating_func": 1}))


def test_sizes_that_the_convolutions_do_not_take(sound: GGUFFile, tmp_path: Path) -> None:
    with pytest.raises(LmhubError, match="multiples of 16"):
        logits(rewrite(sound, tmp_path / "odd.gguf", metadata={"inkling.embedding_length": 72}))


@pytest.mark.parametrize(
    "metadata",
    [
        {"inkling.attention.sliding_window_pattern": [1, 1, 0]},
        {"inkling.attention.head_count_kv": [2, 2, 1, 7]},
        {"inkling.rope.freq_base": 1e4},
        {"inkling.future.key": 3},
    ],
)
def test_other_spellings_of_the_same(sound: GGUFFile, tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = rewrite(sound, tmp_path / "spelled.gguf", metadata=metadata)
    assert logits(path).tobytes() == logits(sound.path).tobytes()


def test_without_a_pattern_each_sixth_layer_is_full(tmp_path: Path, oracle: Callable[..., np.ndarray]) -> None:
    source = open_gguf(write(tmp_path / "long.gguf", TINY["inkling"]("sssssf")))
    path = rewrite(source, tmp_path / "silent.gguf", drop=("inkling.attention.sliding_window_pattern",))
    assert logits(path).tobytes() == logits(source.path).tobytes()


def test_blocks_that_draft_and_towers_are_not_read(
    sound: GGUFFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    added = {name: np.ones((3, 3), np.float32) for name in ("v.hmlp.weight", "a.dmel.weight", "blk.3.attn_q.weight")}
    metadata = {"inkling.block_count": 4, "inkling.nextn_predict_layers": 1}
    path = rewrite(sound, tmp_path / "more.gguf", replace=added, metadata=metadata)
    assert logits(path).tobytes() == logits(sound.path).tobytes()
    assert not caplog.records


@pytest.mark.parametrize("borrow", ["none", "experts"])
def test_weights_of_one_expert_have_types_of_their_own(
    borrow: Any, tmp_path: Path, oracle: Callable[..., np.ndarray]
) -> None:
    """As in the public files. One layer, so that no rounded activation takes another expert."""
    rng = np.random.default_rng(3)
    tiny = TINY["inkling"]("f", n_embd=256, n_ff_expert=256, n_dense=0)
    kinds = {
        "gate_exps": "IQ1_S",
        "up_exps": "IQ2_XS",
        "down_exps": "IQ3_XXS",
        "gate_shexp": "Q5_K",
        "down_shexp": "Q6_K",
    }
    path = tmp_path / "mixed.gguf"
    with open_gguf(write(tmp_path / "plain.gguf", tiny)) as plain, GGUFWriter(path, None) as out:
        for key, value in plain.metadata.items():
            out.add(key, value)
        for name, tensor in plain.tensors.items():
            kind = GGMLType[next((kind for stem, kind in kinds.items() if f"ffn_{stem}." in name), "F32")]
            made = random_blocks(kind, tensor.shape, 0.1, rng) if kind is not GGMLType.F32 else tensor.data
            out.add_tensor(name, made, kind, tensor.shape)
    tokens = drive.random_tokens(40, 281)
    got = drive.logits_of(drive.load("lmhub_inkling", path, N_CTX, borrow=borrow), tokens)
    assert nmse(got, oracle(open_gguf(path), tokens)) <= 2e-3


def test_a_state_that_is_cut_without_its_memory_is_refused(sound: GGUFFile) -> None:
    """Keys and values alone would give wrong rows and say nothing."""
    model = drive.load("lmhub_inkling", sound.path, N_CTX)
    tokens, state = drive.random_tokens(60, 281), model.new_state(N_CTX)
    drive.logits_of(model, tokens[:40], state=state)
    kept = state.checkpoint()
    whole = drive.logits_of(model, tokens[40:], state=state)
    assert not state.truncate(40)
    assert state.restore(kept, 40)
    assert drive.logits_of(model, tokens[40:], state=state).tobytes() == whole.tobytes()
