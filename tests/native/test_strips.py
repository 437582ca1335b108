"""Packed products of many rows: on tiles where the machine has them, and always the bits of one row at a time."""

from __future__ import annotations

import resource
import threading
from typing import Any

import numpy as np
import pytest

from lmhub import native
from lmhub.errors import KernelError
from lmhub.gguf.types import GGMLType
from lmhub.testing.blocks import random_blocks

Q8_0 = GGMLType.Q8_0.id
QUADS = (GGMLType.Q4_K, GGMLType.Q6_K, GGMLType.IQ4_XS)  # minimums, two scales in a block, a table


def stored(rows: int, cols: int, rng: np.random.Generator, kind: GGMLType = GGMLType.Q8_0) -> np.ndarray:
    """The bytes of a random weight with values around 1: (rows, bytes of a row)."""
    return random_blocks(kind, (rows, cols), 1.0, rng).reshape(rows, -1)


# Outputs: less than a group, a group, an odd number of them. Columns: one, two, three blocks, a run of blocks and parts
# of the next; likewise of types with units of 256. Rows: around the number from which strips are used, and around whole
# strips.
@pytest.mark.parametrize(
    ("kind", "cols"),
    [
        *((GGMLType.Q8_0, cols) for cols in (32, 64, 96, 1024, 1056, 2080)),
        *((kind, cols) for kind in QUADS for cols in (256, 512, 1280)),
    ],
    ids=lambda value: value.name if isinstance(value, GGMLType) else str(value),
)
@pytest.mark.parametrize("rows", [1, 16, 33, 80])
def test_any_shape_gives_the_bits_of_one_row_at_a_time(
    kind: GGMLType, rows: int, cols: int, levels: tuple[str, ...], kernels: Any, rng: np.random.Generator
) -> None:
    data, x = stored(rows, cols, rng, kind), rng.standard_normal((37, cols), np.float32)
    want = None
    for level in levels:
        ops = kernels(level)
        w = ops.weight(kind.id, data, rows, cols)
        if want is None:
            want = np.concatenate([ops.linear(w, x[i : i + 1]) for i in range(len(x))])
        for n in (1, 4, 5, 8, 9, 12, 13, 16, 17, 32, 37):
            assert ops.linear(w, x[:n]).tobytes() == want[:n].tobytes(), (level, n)


def test_more_rows_than_one_part_of_a_segment(
    levels: tuple[str, ...], kernels: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    """8192 columns: the strips of some hundred rows fill the cache, and the rest is another part."""
    rows, cols, n = 48, 8192, 200
    data, x = stored(rows, cols, rng), rng.standard_normal((n, cols), np.float32)
    found = []
    for level in levels[1:] or levels:
        ops = kernels(level)
        w = ops.weight(Q8_0, data, rows, cols)
        found += [ops.linear(w, x).tobytes() for _ in thread_counts()]
    assert len(set(found)) == 1
    alone = kernels(levels[-1])
    last = alone.linear(alone.weight(Q8_0, data, rows, cols), x[-1:])
    assert found[0][-last.nbytes :] == last.tobytes()


@pytest.mark.parametrize("n", [1, 3, 40])
def test_weights_that_share_an_input_give_what_each_gives_alone(
    n: int, ops: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    """Packed ones, whose inputs are rounded in two ways, and others, of few rows and of many."""
    x = rng.standard_normal((n, 256), np.float32)
    floats = rng.standard_normal((90, 256), np.float32).view(np.uint8)
    q8 = [ops.weight(Q8_0, stored(rows, 256, rng), rows, 256) for rows in (16, 300, 33)]
    quads = [ops.weight(kind.id, stored(40, 256, rng, kind), 40, 256) for kind in QUADS]
    ws = [q8[0], quads[0], ops.weight(0, floats, 90, 256), q8[1], quads[1], quads[2], q8[2]]
    alone = [ops.linear(w, x).tobytes() for w in ws]
    for _ in thread_counts():
        assert [y.tobytes() for y in ops.linear_many(ws, x)] == alone


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [GGMLType.Q8_0, *QUADS], ids=lambda kind: kind.name)
def test_numerical_failure_shows_in_its_own_row_and_what_is_tiny_is_zero(
    kind: GGMLType, bad: float, ops: Any, rng: np.random.Generator
) -> None:
    w = ops.weight(kind.id, stored(20, 256, rng, kind), 20, 256)
    x = rng.standard_normal((37, 256), np.float32)
    good = ops.linear(w, x)
    x[3, 40] = x[36, 200] = bad
    x[17], x[30] = 0.0, 2.0**-101
    y = ops.linear(w, x)
    assert np.isnan(y[[3, 36]]).all() and not y[[17, 30]].any()
    others = [row for row in range(37) if row not in (3, 17, 30, 36)]
    assert y[others].tobytes() == good[others].tobytes()


def test_weights_of_other_sizes_cannot_share_an_input(ops: Any, rng: np.random.Generator) -> None:
    ws = [ops.weight(Q8_0, stored(16, cols, rng), 16, cols) for cols in (64, 96)]
    with pytest.raises(KernelError, match="rows of 64 and of 96 cannot share an input"):
        ops.linear_many(ws, rng.standard_normal((2, 64), np.float32))


def test_experts_of_few_and_of_many_rows(levels: tuple[str, ...], kernels: Any, rng: np.random.Generator) -> None:
    rows, cols, n, n_expert, k = 40, 96, 60, 6, 2
    data, x = stored(n_expert * rows, cols, rng), rng.standard_normal((n, cols), np.float32)
    # Most rows go to two experts, one or two to each of the others.
    logits = np.tile(np.array([4, 5, 0, 0, 0, 0], np.float32), (n, 1))
    logits[7, 3] = logits[8, 2] = logits[9, 2] = logits[20, 5] = 9.0
    found = []
    for level in levels:
        ops = kernels(level)
        route, expert, _ = ops.route(logits, k)
        w = ops.weight(Q8_0, data, rows, cols, n_expert)
        y = ops.linear_experts(w, x, route, False)
        found.append(y.tobytes())
        for slot in (0, 1, 15, 17, 41, 119):
            own = ops.weight(Q8_0, data.reshape(n_expert, rows, -1)[expert[slot // k, slot % k]], rows, cols)
            assert ops.linear(own, x[slot // k : slot // k + 1]).tobytes() == y[slot].tobytes()
    assert len(set(found)) == 1


def test_context_switches_between_many_threads_lose_nothing(
    level: str, kernels: Any, rng: np.random.Generator, thread_counts: Any
) -> None:
    """Far more threads than cores, all in the middle of products: the system must carry their registers along."""
    rows, cols, n = 512, 256, 48
    data, x = stored(rows, cols, rng), rng.standard_normal((n, cols), np.float32)
    ops = kernels(level)
    w = ops.weight(Q8_0, data, rows, cols)
    want = ops.linear(w, x).tobytes()
    wrong: list[int] = []

    def switches() -> int:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_nvcsw + used.ru_nivcsw

    until = switches() + 3000

    def many(seed: int) -> None:
        own = kernels(level)
        for turn in range(2000):
            if switches() > until:
                return
            if own.linear(w, x).tobytes() != want:
                wrong.append(seed * 2000 + turn)

    next(thread_counts())  # the number of threads is restored afterwards
    native.set_threads(24)
    workers = [threading.Thread(target=many, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert switches() > until
