"""`benchmarks/models.py`: the files are sound, of the sizes they claim, and can be chatted with."""

from __future__ import annotations

import math
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lmhub
from lmhub.errors import RequestError
from lmhub.gguf import open_gguf
from lmhub.gguf.quant import dequantize
from lmhub.tokenize import load_tokenizer

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "models.py"
sys.path.insert(0, str(SCRIPT.parent))  # as for a script, whose folder is on the path
MODELS = runpy.run_path(str(SCRIPT))
RANDOM = runpy.run_path(str(SCRIPT.with_name("random_model.py")))
SMALLEST = MODELS["Geometry"](2, 256, 256, 4, 2, 64, 1024, 512)
SMALLEST_MOE = MODELS["Geometry"](2, 256, 256, 4, 2, 64, 1024, 512, n_expert=8, n_expert_used=2, tied=False)


@pytest.mark.parametrize("kind", MODELS["TYPES"])
def test_every_type_gives_a_model_that_answers(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"{kind}.gguf"
    seen: list[tuple[int, int]] = []
    MODELS["model"](SMALLEST, MODELS["TYPES"][kind]).write(path, progress=lambda *step: seen.append(step))
    assert seen[-1][0] == seen[-1][1]
    with open_gguf(path) as file:
        assert file.tensors["blk.0.attn_q.weight"].type is MODELS["TYPES"][kind].kind
        assert dequantize(file.tensors["blk.0.attn_q.weight"]).std() == pytest.approx(1 / 16, rel=0.5)
    with lmhub.open(path, ctx=64) as model:
        logits = model.logits(list(range(40)))
        assert np.isfinite(logits).all()
        assert 0.5 < logits.std() < 20
        assert model.chat([{"role": "user", "content": "Hello"}], max_tokens=3).usage.prompt_tokens > 5


def test_experts(tmp_path: Path) -> None:
    path = tmp_path / "moe.gguf"
    MODELS["model"](SMALLEST_MOE, MODELS["TYPES"]["q4_k_m"]).write(path)
    with lmhub.open(path, ctx=64) as model:
        logits = model.logits(list(range(40)))
        assert np.isfinite(logits).all()
        assert 0.5 < logits.std() < 20


def test_a_mixture_favours_the_output_and_half_of_the_layers() -> None:
    geometry, recipe = MODELS["GEOMETRIES"]["qwen3-0.6b"], MODELS["TYPES"]["q4_k_m"]
    kinds = {name: kind.name for name, _, _, kind in MODELS["typed"](geometry, recipe)}
    assert kinds["token_embd.weight"] == "Q6_K"
    assert kinds["blk.0.ffn_down.weight"] == kinds["blk.27.attn_v.weight"] == "Q6_K"
    assert kinds["blk.3.ffn_down.weight"] == kinds["blk.0.attn_q.weight"] == "Q4_K"
    share = sum(kind == "Q6_K" for kind in kinds.values()) / len(kinds)
    assert 0.1 < share < 0.2


def test_rows_that_are_no_whole_blocks_become_q8_0() -> None:
    geometry = MODELS["GEOMETRIES"]["small"]
    kinds = {name: kind.name for name, _, _, kind in MODELS["typed"](geometry, MODELS["TYPES"]["q4_k"])}
    assert kinds["blk.0.ffn_gate.weight"] == "Q8_0"
    assert kinds["blk.0.ffn_down.weight"] == "Q4_K"


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    files = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        path = tmp_path / f"{name}.gguf"
        MODELS["model"](SMALLEST, MODELS["TYPES"]["q8_0"]).write(path, seed=seed)
        with open_gguf(path) as file:
            files.append({name: tensor.data.tobytes() for name, tensor in file.tensors.items()})
    assert files[0] == files[1] != files[2]


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-1.7b", "qwen3-30b-a3b"])
def test_public_geometries(name: str) -> None:
    n_params = sum(math.prod(shape) for _, shape, _ in MODELS["matrices"](MODELS["GEOMETRIES"][name]))
    assert n_params == pytest.approx(
        {"qwen3-0.6b": 596e6, "qwen3-1.7b": 1720e6, "qwen3-30b-a3b": 30.5e9}[name], rel=0.01
    )


def test_the_full_vocabulary_is_one_that_encodes() -> None:
    collected: dict[str, object] = {}

    class Sink:
        def add(self, key: str, value: object, kind: str | None = None) -> None:
            collected[key] = value

    RANDOM["add_vocabulary"](Sink(), 151936, "qwen2")
    tokenizer = load_tokenizer(collected)
    assert tokenizer.n_vocab == 151936
    assert tokenizer.eog >= {151645, 151643}
    assert tokenizer.token_id("<|im_start|>") == 151644
    assert tokenizer.token_id("</think>") == 151668
    text = "the late train to Töno"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) < len(text)


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "small.gguf"
    words = [sys.executable, str(SCRIPT), "--geometry", "small", "--type", "q8_0", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"{out}: {out.stat().st_size / 1e6:.0f} MB\n"
    assert done.stderr == ""
    refused = subprocess.run([*words, "--layers", "7"], capture_output=True, text=True, check=False)
    assert "small has 6 layers; --layers takes 1 to 6" in refused.stderr
    words[-1] = str(tmp_path / "missing" / "small.gguf")
    failed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert failed.returncode == 2
    assert "cannot be written: no such file or directory" in failed.stderr


GEMMA = runpy.run_path(str(SCRIPT.with_name("gemma_models.py")))
SMALL_GEMMA = GEMMA["Gemma"](4, 2, 256, 256, 4, (2, 1), 16, head_dim=(64, 128), n_vocab=1024)


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_per_layer": 256, "n_shared": 2},
        {"n_expert": 4, "n_expert_used": 2, "n_ff_expert": 64},
    ],
)
def test_gemma(sizes: dict[str, int], tmp_path: Path) -> None:
    path = tmp_path / "gemma.gguf"
    GEMMA["model"](replace(SMALL_GEMMA, **sizes), MODELS["TYPES"]["q4_k_m"]).write(path)
    with lmhub.open(path, ctx=64) as model:
        logits = model.logits(list(range(40)))
        assert np.isfinite(logits).all()
        assert 0.5 < logits.std() < 20


def test_a_gemma_that_denoises(tmp_path: Path) -> None:
    path = tmp_path / "diffusion.gguf"
    GEMMA["model"](replace(SMALL_GEMMA, canvas=16), MODELS["TYPES"]["q8_0"]).write(path)
    with lmhub.open(path, ctx=128) as model:
        hello = [{"role": "user", "content": "Hello"}]
        assert model.chat(hello, max_tokens=20, denoising={"steps": 2}).usage.completion_tokens <= 20
        with pytest.raises(RequestError, match="steps must be a whole number from 1"):
            model.chat(hello, denoising={"steps": 0})


def test_fewer_layers_of_a_gemma_are_whole_periods() -> None:
    small = GEMMA["cut"](GEMMA["E2B"], 15)
    assert (small.n_layer, small.n_shared) == (15, 5) and small.is_full(14)
    with pytest.raises(ValueError, match="multiple of 5"):
        GEMMA["cut"](GEMMA["E2B"], 7)


INKLING = runpy.run_path(str(SCRIPT.with_name("inkling_models.py")))
SMALL_INKLING = INKLING["Inkling"](3, 256, 256, 4, (2, 1), 256, n_dense=1, head_dim=64, n_expert=8, n_vocab=1024)


@pytest.mark.parametrize("mixture", INKLING["TYPES"])
def test_inkling(mixture: str, tmp_path: Path) -> None:
    path = tmp_path / "inkling.gguf"
    INKLING["model"](SMALL_INKLING, INKLING["TYPES"][mixture]).write(path)
    with open_gguf(path) as file:
        kinds = {name.removeprefix("blk.1."): tensor.type for name, tensor in file.tensors.items()}
    assert kinds["ffn_gate_exps.weight"] is INKLING["TYPES"][mixture].wide is not kinds["ffn_down_exps.weight"]
    with lmhub.open(path, ctx=64) as model:
        logits = model.logits(list(range(40)))
        assert np.isfinite(logits).all()
        assert 0.5 < logits.std() < 20


@pytest.mark.parametrize(("name", "n_tensors", "n_params"), [("inkling", 1512, 975e9), ("inkling-small", 960, 276e9)])
def test_public_sizes_of_inkling(name: str, n_tensors: int, n_params: float) -> None:
    g = INKLING["GEOMETRIES"][name]
    assert len([*INKLING["matrices"](g), *INKLING["vectors"](g)]) == n_tensors
    own = sum(math.prod(shape) for _, shape, _ in INKLING["matrices"](g))
    assert own == pytest.approx(n_params, rel=0.05)  # the public number has the blocks that draft in it
    assert [INKLING["cut"](g, 3).is_full(layer) for layer in range(3)] == [False, False, True]
