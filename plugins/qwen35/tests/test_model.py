"""What the plugin refuses and ignores, and what files may leave out or say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import LmhubError, ModelFileError, UnsupportedModel
from lmhub.gguf import GGUFFile, open_gguf
from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.rewrite import rewrite
from lmhub.testing.tiny import write

TINY = run_path(str(Path(__file__).with_name("tiny_qwen35.py")))
N_CTX = 64


@pytest.fixture
def sound(tmp_path: Path) -> Callable[[str], GGUFFile]:
    """The file of one of the tiny models."""
    return lambda name: open_gguf(write(tmp_path / f"{name}.gguf", TINY["MODELS"][name]))


def load(path: Path) -> Any:
    return drive.load("lmhub_qwen35", path, N_CTX)


def logits(path: Path) -> bytes:
    return drive.logits_of(load(path), drive.random_tokens(20, 288)).tobytes()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 9),
        ("embedding_length", 2**40),
        ("attention.head_count", 3),
        ("attention.head_count", 0),
        ("attention.head_count_kv", 0),
        ("attention.head_count_kv", 3),
        ("attention.key_length", 64),
        ("attention.value_length", 16),
        ("attention.scale", -1.0),
        ("attention.recurrent_layers", [True, True, True, False]),
        ("attention.recurrent_layers", [True]),
        ("attention.layer_norm_rms_epsilon", float("nan")),
        ("rope.dimension_count", 33),
        ("rope.dimension_sections", [3, 3, 3, 0]),
        ("rope.dimension_sections", [8, 0]),
        ("rope.dimension_sections", [9, -1, 0, 0]),
        ("rope.dimension_sections", 8),
        ("ssm.conv_kernel", 0),
        ("ssm.conv_kernel", 3),
        ("ssm.conv_kernel", 17),
        ("ssm.state_size", 0),
        ("ssm.state_size", 32),
        ("ssm.group_count", 0),
        ("ssm.group_count", 4),
        ("ssm.group_count", 3),
        ("ssm.time_step_rank", 2**33),
        ("ssm.inner_size", 97),
        ("feed_forward_length", [96, 96]),
        ("context_length", 0),
    ],
)
def test_damaged_numbers(sound: Callable[[str], GGUFFile], tmp_path: Path, key: str, value: Any) -> None:
    path = rewrite(sound("dense"), tmp_path / "damaged.gguf", metadata={f"qwen35.{key}": value})
    with pytest.raises(ModelFileError, match=r"damaged\.gguf"):
        load(path)


@pytest.mark.parametrize("value", [0, 7, 2**20])
@pytest.mark.parametrize(
    "key",
    ["expert_count", "expert_used_count", "expert_feed_forward_length", "expert_shared_feed_forward_length"],
)
def test_damaged_numbers_of_experts(sound: Callable[[str], GGUFFile], tmp_path: Path, key: str, value: int) -> None:
    path = rewrite(sound("moe"), tmp_path / "damaged.gguf", metadata={f"qwen35moe.{key}": value})
    with pytest.raises(ModelFileError, match=r"damaged\.gguf"):
        load(path)


@pytest.mark.parametrize(
    "key",
    ["rope.dimension_sections", *(f"ssm.{s}" for s in ("conv_kernel", "state_size", "group_count", "inner_size"))],
)
def test_keys_that_must_be_there(sound: Callable[[str], GGUFFile], tmp_path: Path, key: str) -> None:
    with pytest.raises(ModelFileError, match=rf"qwen35\.{key}"):
        load(rewrite(sound("dense"), tmp_path / "silent.gguf", drop=(f"qwen35.{key}",)))


@pytest.mark.parametrize(
    ("metadata", "added", "named"),
    [
        ({"prism.hadamard.version": 1}, {}, "prism.hadamard.version"),
        ({"prism.future": "x"}, {}, "prism.future"),
        ({"qwen35.pooling_type": 3}, {}, "embedding"),
        ({"qwen35.ssm.state_size": 24, "qwen35.ssm.inner_size": 144}, {}, "ssm.state_size is 24"),
        ({}, {"blk.0.ssm_ba.weight": np.ones((4, 64), np.float32)}, "qwen3next"),
        ({}, {"blk.0.ffn_up.scale": np.ones(1, np.float32)}, "blk.0.ffn_up.scale"),
    ],
)
def test_what_means_something_else_is_refused_by_name(
    sound: Callable[[str], GGUFFile], tmp_path: Path, metadata: dict[str, Any], added: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModel) as refusal:
        load(rewrite(sound("dense"), tmp_path / "other.gguf", metadata=metadata, replace=added))
    assert named in str(refusal.value)


def test_layers_without_attention_alone_are_refused(sound: Callable[[str], GGUFFile], tmp_path: Path) -> None:
    source = sound("dense")
    gone = tuple(name for name in source.tensors if name.startswith("blk.2.attn"))
    path = rewrite(
        source,
        tmp_path / "all.gguf",
        drop=gone,
        replace={"blk.2.ssm_a": -np.ones(6, np.float32)},
        metadata={"qwen35.attention.recurrent_layers": [True] * 4},
    )
    with pytest.raises(UnsupportedModel, match="no layer has attention"):
        load(path)


def test_logarithms_of_decays_are_refused(sound: Callable[[str], GGUFFile], tmp_path: Path) -> None:
    values = np.array([-1, -1, 0.5, -1, -1, -1], np.float32)
    with pytest.raises(ModelFileError, match=r"blk\.1\.ssm_a"):
        load(rewrite(sound("dense"), tmp_path / "raw.gguf", replace={"blk.1.ssm_a": values}))


@pytest.mark.parametrize("shape", [(1,), (2, 2, 2), (1, 1)])
@pytest.mark.parametrize("name", ["token_embd.weight", "blk.2.attn_k_norm.weight", "blk.0.ssm_conv1d.weight"])
def test_tensors_of_another_rank(
    sound: Callable[[str], GGUFFile], tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(LmhubError):
        load(rewrite(sound("dense"), tmp_path / "damaged.gguf", replace={name: np.ones(shape, np.float32)}))


@pytest.mark.parametrize(
    ("name", "drop", "metadata"),
    [
        ("dense", ("qwen35.attention.key_length", "qwen35.attention.value_length"), {}),
        ("dense", (), {"qwen35.attention.head_count_kv": [0, 0, 2, 0]}),
        ("dense", (), {"qwen35.attention.head_count": [0, 0, 4, 0], "qwen35.feed_forward_length": [96] * 4}),
        ("dense", ("qwen35.rope.dimension_sections",), {"qwen35.rope.mrope_section": [4, 4, 0]}),
        ("dense", (), {"qwen35.ssm.v_head_reordered": True, "qwen35.rope.mrope_interleaved": True}),
        ("dense", (), {"qwen35.attention.recurrent_layers": [1, 1, 0, 1]}),
        ("tied", (), {"qwen35.attention.recurrent_layers": [True, False] * 2, "qwen35.full_attention_interval": 9}),
        ("moe", (), {"qwen35moe.expert_weights_norm": True, "qwen35moe.norm_top_k_prob": True}),
        ("moe", tuple(f"qwen35moe.expert_{s}feed_forward_length" for s in ("", "shared_")), {}),
    ],
)
def test_other_spellings_of_the_same(
    sound: Callable[[str], GGUFFile], tmp_path: Path, name: str, drop: tuple[str, ...], metadata: dict[str, Any]
) -> None:
    source = sound(name)
    path = rewrite(source, tmp_path / "spelled.gguf", drop=drop, metadata=metadata)
    assert logits(path) == logits(source.path)


def test_what_travels_in_the_same_file_is_not_read(
    sound: Callable[[str], GGUFFile], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Vision, and blocks behind the layers, which predict further tokens: with scales, which are refused elsewhere."""
    source = sound("dense")
    names = ("v.patch_embd.weight", "mm.0.weight", "mtp.fc.weight", "blk.4.attn_q.weight", "blk.4.nextn.enorm.scale")
    path = rewrite(
        source,
        tmp_path / "more.gguf",
        replace={name: np.ones((3, 3), np.float32) for name in names},
        metadata={"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1},
    )
    assert logits(path) == logits(source.path)
    assert not caplog.records


def test_a_step_that_ends_between_layers_leaves_the_state_as_it_was(sound: Callable[[str], GGUFFile]) -> None:
    """By a table whose last op fails: the memories of all layers have been written by then."""
    from lmhub_qwen35._kernels import ffi, lib

    model, tokens = load(sound("dense").path), drive.random_tokens(12, 288)
    state = model.new_state(N_CTX)
    drive.logits_of(model, tokens[:5], state=state)
    before = state.checkpoint()
    address = ffi.cast("lmk_ctx *", model.context.address)
    span = ffi.new("lmk_span *", {"n_past": 5, "n": 7, "want": lib.LMK_WANT_LAST})
    span.kv = ffi.cast("lmk_kv *", state.address)
    out, ids = ffi.new("float[]", 288), ffi.new("int32_t[]", tokens[5:])
    assert lib.qwen35_forward(model._keep[0], address, span, 1, ids, 7, out) == 0
    assert state.checkpoint() == before and state.n_tokens == 5  # nobody has said that it succeeded
    rest = model.forward([Chunk(state, tokens[5:], "all")])
    assert rest[-1].tobytes() == bytes(ffi.buffer(out))
    assert rest.tobytes() == drive.logits_of(model, tokens)[5:].tobytes()
