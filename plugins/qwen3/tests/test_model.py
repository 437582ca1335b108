"""What the plugin refuses, and what it ignores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import KernelError, LmhubError, UnsupportedModel
from lmhub.family import LoadOptions
from lmhub.gguf import GGUFFile, open_gguf
from lmhub.model import Chunk
from lmhub.testing import drive
from lmhub.testing.rewrite import rewrite
from lmhub.testing.tiny import decoder, write

DENSE = decoder("qwen3", qk_norm=True)
MOE = decoder("qwen3moe", qk_norm=True, n_expert=6, n_expert_used=3, n_ff=64)


@pytest.fixture
def dense(tmp_path: Path) -> GGUFFile:
    return open_gguf(write(tmp_path / "dense.gguf", DENSE))


@pytest.fixture
def moe(tmp_path: Path) -> GGUFFile:
    return open_gguf(write(tmp_path / "moe.gguf", MOE))


def load(path: Path) -> Any:
    return drive.load("lmhub_qwen3", path, 64)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"qwen3.pooling_type": 3}, "embedding"),
        ({"qwen3.classifier.output_labels": ["yes", "no"]}, "reranking"),
        ({"qwen3.attention.causal": False}, "causal"),
        ({"qwen3.rope.scaling.type": "longrope"}, "longrope"),
        ({"qwen3.attention.head_count_kv": [2, 1]}, "head_count_kv"),
    ],
)
def test_other_kinds_of_files(dense: GGUFFile, tmp_path: Path, metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        load(rewrite(dense, tmp_path / "other.gguf", metadata=metadata))


@pytest.mark.parametrize(
    ("metadata", "named"),
    [({"qwen3moe.expert_weights_scale": 2.5}, "scales"), ({"qwen3moe.expert_gating_func": 2}, "softmax")],
)
def test_other_kinds_of_experts(moe: GGUFFile, tmp_path: Path, metadata: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        load(rewrite(moe, tmp_path / "other.gguf", metadata=metadata))


def test_a_draft_model(dense: GGUFFile, tmp_path: Path) -> None:
    gone = tuple(name for name in dense.tensors if name.startswith("blk.0."))
    with pytest.raises(UnsupportedModel, match="draft"):
        load(rewrite(dense, tmp_path / "draft.gguf", drop=gone))


def test_a_scale_tensor(dense: GGUFFile, tmp_path: Path) -> None:
    scale = {"blk.1.ffn_up.scale": np.ones(1, np.float32)}
    with pytest.raises(UnsupportedModel, match=r"blk\.1\.ffn_up\.scale"):
        load(rewrite(dense, tmp_path / "scaled.gguf", replace=scale))


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.0.attn_k_norm.weight", "blk.0.ffn_up.weight"])
@pytest.mark.parametrize("shape", [(1,), (2, 2, 2), (1, 1)])
def test_tensors_of_another_rank(dense: GGUFFile, tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(LmhubError):
        load(rewrite(dense, tmp_path / "damaged.gguf", replace={name: np.ones(shape, np.float32)}))


def test_draft_layers_at_the_end_are_skipped(dense: GGUFFile, tmp_path: Path) -> None:
    keys = {"qwen3.block_count": 3, "qwen3.nextn_predict_layers": 1}
    extra = {"blk.2.nextn.eh_proj.weight": np.ones((64, 128), np.float32)}
    tokens = drive.random_tokens(12, 288)
    with_draft = drive.logits_of(load(rewrite(dense, tmp_path / "draft.gguf", metadata=keys, replace=extra)), tokens)
    assert with_draft.tobytes() == drive.logits_of(load(dense.path), tokens).tobytes()


def test_hidden_sizes_may_differ_between_layers(tmp_path: Path, oracle: Any) -> None:
    wider = {f"blk.1.ffn_{s}.weight": (160, 64) for s in ("gate", "up")} | {"blk.1.ffn_down.weight": (64, 160)}
    model = DENSE.with_tensors(wider)
    path = write(tmp_path / "wider.gguf", model)
    path = rewrite(open_gguf(path), tmp_path / "sized.gguf", metadata={"qwen3.feed_forward_length": [96, 160]})
    tokens = drive.random_tokens(12, 288)
    want = oracle(open_gguf(path), tokens)
    assert np.abs(drive.logits_of(load(path), tokens) - want).max() < 1e-4 * np.abs(want).max()


def test_expert_size_comes_from_the_tensors_where_the_key_is_missing(moe: GGUFFile, tmp_path: Path) -> None:
    path = rewrite(moe, tmp_path / "unsized.gguf", drop=("qwen3moe.expert_feed_forward_length",))
    tokens = drive.random_tokens(12, 288)
    assert drive.logits_of(load(path), tokens).tobytes() == drive.logits_of(load(moe.path), tokens).tobytes()


def test_progress_ends_at_the_files_tensors(dense: GGUFFile) -> None:
    from lmhub_qwen3.model import load as load_file

    calls: list[tuple[int, int]] = []
    load_file(dense, LoadOptions(n_ctx=64, progress=lambda done, total: calls.append((done, total))))
    total = sum(tensor.nbytes for tensor in dense.tensors.values())
    assert calls[-1] == (total, total) and [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_a_closed_model_and_impossible_contexts(dense: GGUFFile) -> None:
    model = load(dense.path)
    for n_ctx in (0, -1, 2**60):
        with pytest.raises(KernelError):
            model.new_state(n_ctx)
    state = model.new_state(8)
    model.close()
    with pytest.raises(KernelError, match="closed"):
        model.forward([Chunk(state, [1])])


def test_a_state_of_another_model_is_refused(dense: GGUFFile, moe: GGUFFile, tmp_path: Path) -> None:
    other = load(write(tmp_path / "other.gguf", decoder("qwen3", qk_norm=True, n_layer=1)))
    with pytest.raises(LmhubError, match="another model"):
        load(dense.path).forward([Chunk(other.new_state(8), [1])])
