"""Folders of every layout and generation: what is recognised, what is read, and that all of them say the same."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from runpy import run_path
from typing import Any

import lmhub_nanochat
import numpy as np
import pytest
from lmhub_nanochat.command import group
from lmhub_nanochat.export import export
from lmhub_nanochat.folder import Options, open_folder
from lmhub_nanochat.model import load
from typer.testing import CliRunner

from lmhub.errors import LmhubError, ModelFileError, UnsupportedModel
from lmhub.family import LoadOptions
from lmhub.gguf import GGUFFile, open_gguf
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing import drive
from lmhub.testing.reference import nmse
from lmhub.tokenize import load_tokenizer

MADE = run_path(str(Path(__file__).with_name("checkpoints.py")))
CONFIG, V = MADE["CONFIG"], MADE["V"]
TOKENS = drive.random_tokens(200, V)


def opened(path: Path, **options: Any) -> GGUFFile:
    file = open_folder(path, Options(**options))
    assert file is not None
    return file


def logits(file: GGUFFile) -> np.ndarray:
    return drive.logits_of(load(file, LoadOptions(n_ctx=200, kv_dtype="f32")), TOKENS)


def export_of(tmp_path: Path, generation: str = "G", **changes: Any) -> Path:
    folder: Path = MADE["save_export"](tmp_path / generation, MADE["weights"](generation), {**CONFIG, **changes})
    return folder


@pytest.mark.parametrize(
    ("generation", "pattern", "base", "sharp", "gate", "windows"),
    [
        ("A", None, 1e4, 1.0, None, [0, 0, 0]),
        ("B", None, 1e4, 1.0, None, [0, 0, 0]),
        ("B", "SL", 1e4, 1.0, None, [257, 513, 513]),  # its window pattern makes it the next generation
        ("E", "SSSL", 1e4, 1.0, 2.0, [257, 257, 513]),
        ("F", "ssL", 1e5, 1.15, 3.0, [257, 257, 513]),
        ("G", "SSSL", 1e5, 1.2, 3.0, [129, 129, 513]),
        ("G", None, 1e5, 1.2, 3.0, [513, 513, 513]),
    ],
)
def test_generations(
    tmp_path: Path, generation: str, pattern: str | None, base: float, sharp: float, gate: float | None, windows: Any
) -> None:
    file = opened(export_of(tmp_path, generation, window_pattern=pattern))
    assert file.get("nanochat.rope.freq_base") == base and file.get("nanochat.attention.qk_scale") == sharp
    assert file.get("nanochat.attention.value_gate_scale") == gate
    assert file.get("nanochat.attention.sliding_window") == windows
    assert file.tensor("token_embd.weight").shape == (V, 64)  # padding is cut off
    assert logits(file).shape == (200, V)


@pytest.mark.parametrize(
    ("generation", "length", "short"),
    [("B", 2048, 1024), ("E", 2048, 1024), ("F", 2048, 768), ("G", 2048, 512), ("G", 64, 128), ("G", 1000, 256)],
)
def test_short_windows(tmp_path: Path, generation: str, length: int, short: int) -> None:
    file = opened(export_of(tmp_path, generation, window_pattern="SL", sequence_len=length))
    assert file.get("nanochat.attention.sliding_window") == [short + 1, length + 1, length + 1]


@pytest.mark.parametrize("name", ["value_embed_A.weight", "value_embed.weight", "v0_lambdas", "bigram_embed.weight"])
def test_development_snapshots_are_refused(tmp_path: Path, name: str) -> None:
    arrays = MADE["weights"]("B") | {name: np.ones(3, np.float32)}
    with pytest.raises(UnsupportedModel, match="development snapshot"):
        open_folder(MADE["save_export"](tmp_path / "d", arrays))


def test_gates_of_another_width_are_taken_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = MADE["weights"]("F")
    name = "transformer.h.0.attn.ve_gate.weight", "transformer.h.2.attn.ve_gate.weight"
    arrays |= {one: np.ones((2, 16), np.float32) for one in name}
    with caplog.at_level(logging.WARNING, "lmhub"):
        assert opened(MADE["save_export"](tmp_path / "w", arrays)).get("nanochat.attention.value_gate_scale") == 3.0
    assert "16 channels" in caplog.text


def test_all_layouts_say_the_same(tmp_path: Path) -> None:
    """torch's file in several guises, safetensors, GGUF; to the bit."""
    arrays = MADE["weights"]()
    want = logits(opened(MADE["save_export"](tmp_path / "s", arrays)))
    compiled = {f"_orig_mod.{name}": a for name, a in arrays.items()} | {"cos": np.ones((1, 4), np.float32)}
    turned = {name: np.asfortranarray(a) for name, a in arrays.items()}  # strides that are not in a row
    within = {name: np.concatenate([a, a])[: len(a)] for name, a in arrays.items()}  # part of a larger storage
    for i, one in enumerate((arrays, compiled, turned, within)):
        folder = MADE["save_torch"](tmp_path / f"t{i}", one)
        assert logits(opened(folder)).tobytes() == want.tobytes()
        assert logits(opened(folder / "model_000001.pt")).tobytes() == want.tobytes()
    file = opened(tmp_path / "t0")
    export(file, tmp_path / "x.gguf")
    export(file, tmp_path / "x")
    for found in (open_gguf(tmp_path / "x.gguf"), opened(tmp_path / "x")):
        assert logits(found).tobytes() == want.tobytes()
        assert load_tokenizer(found.metadata).encode("well, the hero") == load_tokenizer(file.metadata).encode(
            "well, the hero"
        )


def test_the_first_generation_goes_to_transformers_and_back(tmp_path: Path) -> None:
    file = opened(export_of(tmp_path, "A"), softcap=20.0)
    export(file, tmp_path / "hf", layout="hf")
    back = opened(tmp_path / "hf")
    export(back, tmp_path / "again")
    for found in (back, opened(tmp_path / "again")):
        assert logits(found).tobytes() == logits(file).tobytes()
        assert found.metadata["tokenizer.ggml.tokens"] == file.metadata["tokenizer.ggml.tokens"]
        assert found.metadata["tokenizer.ggml.merges"] == file.metadata["tokenizer.ggml.merges"]


@pytest.mark.parametrize(("kind", "bound"), [("bf16", 1e-4), ("f16", 1e-5), ("q8_0", 5e-3)])
def test_exports_of_another_type_are_close(tmp_path: Path, kind: str, bound: float) -> None:
    file = opened(export_of(tmp_path))
    export(file, tmp_path / "x.gguf", kind)
    found = open_gguf(tmp_path / "x.gguf")
    assert found.tensor("blk.0.attn_q.weight").type.name.lower() == kind
    assert 0 < nmse(logits(found), logits(file)) < bound


def test_what_is_not_exported(tmp_path: Path) -> None:
    file = opened(export_of(tmp_path))
    for target, kind, layout, named in (
        ("x", "q8_0", "safetensors", "hold no q8_0"),
        ("x", "q4_0", "safetensors", "is not written"),
        ("x", None, "onnx", "is not written"),
        ("x", None, "hf", "later generation"),
        ("G", None, "safetensors", "exists already"),
    ):
        with pytest.raises(LmhubError, match=named):
            export(file, tmp_path / target, kind, layout)
    assert not (tmp_path / "x").exists()


def test_the_command(tmp_path: Path) -> None:
    source = export_of(tmp_path)
    done = CliRunner().invoke(group(), ["export", str(source), str(tmp_path / "x.gguf"), "--type", "f16"])
    assert done.exit_code == 0 and open_gguf(tmp_path / "x.gguf").architecture == "nanochat"


# --- what is recognised ----------------------------------------------------------------------------------------------


def test_the_latest_step_is_served_unless_another_is_named(tmp_path: Path) -> None:
    for step in (9, 10):
        MADE["save_torch"](tmp_path, MADE["weights"](), step, {**CONFIG, "sequence_len": 100 + step})
    assert opened(tmp_path).get("nanochat.context_length") == 110
    assert opened(tmp_path / "model_000009.pt").get("nanochat.context_length") == 109


def test_tokenizers_are_found_where_training_leaves_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "chatsft_checkpoints" / "d3"
    folder.parent.mkdir()
    MADE["save_torch"](folder, MADE["weights"]())
    kept = (folder / "tokenizer.bin").rename(tmp_path / "kept.bin")
    with pytest.raises(ModelFileError, match="d3 has no tokenizer"):
        open_folder(folder)
    monkeypatch.setenv("NANOCHAT_BASE_DIR", str(tmp_path / "base"))
    for place in (tmp_path / "base" / "tokenizer", tmp_path / "tokenizer", folder / "tokenizer", folder):
        place.mkdir(parents=True, exist_ok=True)
        (place / "tokenizer.bin").write_bytes(kept.read_bytes())
        assert opened(folder).get("nanochat.block_count") == 3
        (place / "tokenizer.bin").unlink()


def test_without_sizes_the_tensors_tell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = MADE["save_export"](tmp_path / "s", MADE["weights"](), None)
    with caplog.at_level(logging.WARNING, "lmhub"):
        file = opened(folder, sequence_len=512)
    assert "--nanochat-window-pattern" in caplog.text
    assert [file.get(f"nanochat.attention.{n}") for n in ("head_count", "head_count_kv", "key_length")] == [4, 2, 16]
    assert logits(file).tobytes() == logits(opened(export_of(tmp_path))).tobytes()
    plain = MADE["save_export"](tmp_path / "p", MADE["weights"]("A", d=128, n_head=1, n_kv=1), None)
    assert opened(plain).get("nanochat.attention.key_length") == 128
    assert opened(plain, head_dim=32).get("nanochat.attention.head_count") == 4


@pytest.mark.parametrize("files", [(), ("model.safetensors",), ("config.json", "model.safetensors"), ("model_x.pt",)])
def test_other_folders_are_left_to_others(tmp_path: Path, files: tuple[str, ...]) -> None:
    for name in files:
        (tmp_path / name).write_text('{"model_type": "llama"}')
    assert open_folder(tmp_path) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_layer", 0),
        ("n_layer", None),
        ("n_layer", 3.0),
        ("n_layer", 10**9),
        ("n_head", 0),
        ("n_head", 3),
        ("n_kv_head", 3),
        ("n_kv_head", True),
        ("n_embd", -1),
        ("n_embd", 128),
        ("n_embd", "64"),
        ("vocab_size", 10**9),
        ("vocab_size", 100),
        ("sequence_len", 0),
        ("window_pattern", ""),
        ("window_pattern", "SXL"),
        ("window_pattern", 3),
        ("window_pattern", "S" * 1000),
    ],
)
def test_damaged_sizes(tmp_path: Path, key: str, value: Any) -> None:
    hub = Hub(entry_points=False)
    hub.plugins.register(lmhub_nanochat, "nanochat")
    with pytest.raises(LmhubError) as refusal:
        hub.load(export_of(tmp_path, **{key: value}), EngineSettings(ctx=64))
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) > 20
    hub.close()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "relu2"),
        ({"attention_bias": True}, "biases"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "scales its positions"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta"),
    ],
)
def test_what_transformers_models_must_not_be(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    export(opened(export_of(tmp_path, "A")), tmp_path / "hf", layout="hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(LmhubError, match=named):
        open_folder(tmp_path / "hf")


def test_missing_meta(tmp_path: Path) -> None:
    (MADE["save_torch"](tmp_path, MADE["weights"]()) / "meta_000001.json").unlink()
    with pytest.raises(ModelFileError, match=r"meta_000001\.json is missing"):
        open_folder(tmp_path)
