"""Experts of which only some are in memory: the same products, the budget, and what is counted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.gguf import GGMLType, GGUFFile, open_gguf
from lmhub.gguf.writer import GGUFWriter
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.shelf import Shelf
from lmhub.testing import drive
from lmhub.testing.tiny import tiny_gguf
from lmhub.weights import Weights

N_EXPERT, ROWS, COLS = 12, 256, 512
ONE = ROWS * GGMLType.Q8_0.row_bytes(COLS)
"""Bytes of an expert of one weight: 136 KiB."""


@pytest.fixture
def file(tmp_path: Path, rng: np.random.Generator) -> Iterator[GGUFFile]:
    """Two layers of three weights, and experts that every row goes to."""
    with GGUFWriter(tmp_path / "moe.gguf", "any") as out:
        for layer in range(2):
            for stem in ("gate_exps", "up_exps", "down_exps", "up_shexp"):
                n = N_EXPERT if stem.endswith("exps") else 2
                values = rng.standard_normal((n, ROWS, COLS), np.float32)
                out.add_tensor(f"blk.{layer}.ffn_{stem}.weight", values, GGMLType.Q8_0)
    with open_gguf(tmp_path / "moe.gguf") as opened:
        yield opened


def test_a_served_mixture_says_what_its_experts_do(tmp_path: Path) -> None:
    """Its reply is the packed one's, though only some of its experts are ever in memory."""
    sizes: dict[str, Any] = {"qk_norm": True, "n_expert": 16, "n_expert_used": 2, "n_ff": 256, "n_layer": 3}
    path, replies = tiny_gguf("qwen3moe", tmp_path / "moe.gguf", kind=GGMLType.Q8_0, **sizes), []
    for settings in (EngineSettings(ctx=128), EngineSettings(ctx=128, borrow="experts", expert_cache=1 << 20)):
        hub = Hub()
        served = hub.load(path, settings)
        tokens = drive.random_tokens(40, served.model.model.n_vocab)
        replies.append(served.engine.call(lambda: drive.greedy(served.model.model, tokens, 20)).result())  # noqa: B023
        shelf = served.model.shelf
        numbers = None if shelf is None else shelf.numbers()
        hub.close()
    assert replies[0] == replies[1] and shelf is not None and numbers is not None
    assert 0 < numbers.hits < numbers.used
    assert numbers.held <= 1 << 20 < shelf.nbytes < numbers.read


def weights_of(file: GGUFFile, ops: Any, layer: int) -> list[Any]:
    taken = Weights(file, borrow="experts")
    made = [
        taken.matrix(f"blk.{layer}.ffn_{stem}_exps.weight", ROWS, COLS, N_EXPERT) for stem in ("gate", "up", "down")
    ]
    assert not any(one.packed_bytes for one in made)
    return [(ops.ffi.cast("lmk_weight *", one.address), one) for one in made]


def route_to(ops: Any, chosen: list[list[int]]) -> Any:
    """A route of rows to experts."""
    logits = np.zeros((len(chosen), N_EXPERT), np.float32)
    for row, experts in enumerate(chosen):
        logits[row, experts] = 5.0
    return ops.route(logits, len(chosen[0]))[0]


def run(ops: Any, weights: list[Any], chosen: list[list[int]], x: np.ndarray) -> list[bytes]:
    """Two weights that share x, then the third one, as a forward pass uses them."""
    r = route_to(ops, chosen)
    both = ops.linear_experts_many([w for w, _ in weights[:2]], x, r, False)
    return [one.tobytes() for one in (*both, ops.linear_experts(weights[2][0], x, r, False))]


@pytest.mark.parametrize("n_kept", [1, 7, 100])
def test_products_are_the_same_and_the_budget_is_kept(
    n_kept: int, file: GGUFFile, ops: Any, rng: np.random.Generator
) -> None:
    x = rng.standard_normal((6, COLS), np.float32)
    chosen = [sorted(rng.choice(N_EXPERT, 4, replace=False).tolist()) for _ in range(6)]
    layers = [weights_of(file, ops, layer) for layer in range(2)]
    want = [run(ops, one, chosen, x) for one in layers]
    shelf = Shelf(file, n_kept * ONE)
    try:
        assert [run(ops, one, chosen, x) for one in layers] == want
        numbers = shelf.numbers()
        assert numbers.held <= max(n_kept, 2) * ONE  # a product of two weights needs an expert of either
        assert numbers.used == 2 * 3 * len({expert for row in chosen for expert in row})
    finally:
        shelf.close()


def test_what_was_used_longest_ago_goes(file: GGUFFile, ops: Any, rng: np.random.Generator) -> None:
    x, weights = rng.standard_normal((1, COLS), np.float32), weights_of(file, ops, 0)
    shelf = Shelf(file, 9 * ONE)  # three experts of three weights
    try:
        hits = []
        for expert in (0, 1, 2, 0, 3, 0, 1, 2):
            before = shelf.numbers().hits
            run(ops, weights, [[expert]], x)
            hits.append(shelf.numbers().hits - before)
        assert hits == [0, 0, 0, 3, 0, 3, 0, 0]
        numbers = shelf.numbers()
        assert (numbers.used, numbers.held, numbers.read) == (24, 9 * ONE, 18 * ONE)
    finally:
        shelf.close()


def test_the_layers_other_weights_are_asked_for_at_once(file: GGUFFile, ops: Any, rng: np.random.Generator) -> None:
    """They are read while the first product runs, and are no hits when their turn comes."""
    x, weights = rng.standard_normal((1, COLS), np.float32), weights_of(file, ops, 0)
    shelf = Shelf(file, 100 * ONE)
    try:
        ops.linear_experts_many([w for w, _ in weights[:2]], x, route_to(ops, [[3, 5]]), False)
        numbers = shelf.numbers()
        assert (numbers.used, numbers.hits, numbers.read) == (4, 0, 6 * ONE)
        ops.linear_experts(weights[2][0], x, route_to(ops, [[3, 5]]), False)
        numbers = shelf.numbers()
        assert (numbers.used, numbers.hits, numbers.read) == (6, 0, 6 * ONE)
    finally:
        shelf.close()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's account of mappings")
def test_memory_is_given_back(file: GGUFFile, ops: Any, rng: np.random.Generator) -> None:
    def resident() -> int:
        """Bytes of the file that this process has mapped in."""
        own = Path("/proc/self/smaps").read_text().partition(str(file.path))[2]
        found = re.search(r"\nRss: +(\d+) kB", own)
        assert found is not None
        return int(found[1]) << 10

    x, weights = rng.standard_normal((1, COLS), np.float32), weights_of(file, ops, 0)
    shelf, around = Shelf(file, 6 * ONE), 2 << 16  # what the system maps in beside a page that is asked for
    try:
        outside = resident()
        for expert in range(N_EXPERT):
            run(ops, weights, [[expert]], x)
        assert resident() <= outside + 6 * (ONE + around)
    finally:
        shelf.close()
    for expert in range(N_EXPERT):
        run(ops, weights, [[expert]], x)
    assert resident() > outside + 30 * ONE  # a negative control: without a shelf, all of it stays


def test_experts_that_every_row_goes_to_are_packed(file: GGUFFile) -> None:
    shelf = Shelf(file, ONE)
    assert shelf.nbytes == 2 * 3 * N_EXPERT * ONE
    shelf.close()
    assert Weights(file, borrow="experts").matrix("blk.0.ffn_up_shexp.weight", ROWS, COLS, 2).packed_bytes
