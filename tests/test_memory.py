"""The memory plan: the guard's table, sums for three kinds of caches, what is proposed, and that nothing is read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmhub.errors import KernelError, LmhubError
from lmhub.gguf import GGUFFile, GGUFWriter, open_gguf
from lmhub.hub import Hub
from lmhub.machine import Memory
from lmhub.memory import (
    GRAMMAR,
    INDEX_MAX,
    INDEXED,
    KV,
    PROCESS,
    RECYCLED,
    TOKENIZER,
    VERIFIED,
    Plan,
    guard,
    plan,
    settled,
)
from lmhub.model import MemoryPlan
from lmhub.settings import MIB, EngineSettings
from lmhub.testing.tiny import tiny_gguf

GIB = 1 << 30
VOCAB = 1000


@pytest.mark.parametrize(
    ("requested", "per_slot", "available", "can_clamp", "expected"),
    [
        (4, 1, 16, True, ("ok", 4)),
        (4, 3, 16, True, ("pressure", 4)),
        (16, 4, 16, True, ("clamp", 2)),
        (4, 10, 8, True, ("clamp", 1)),
        (16, 4, 16, False, ("overcommit", 16)),
        (64, 4, None, True, ("ok", 64)),
        (64, 0, 16, True, ("ok", 64)),
        (0, 1, 16, True, ("ok", 1)),
    ],
)
def test_the_guard(requested: int, per_slot: int, available: int | None, can_clamp: bool, expected: Any) -> None:
    free = None if available is None else available * GIB
    assert guard(requested, per_slot * GIB, free, can_clamp) == expected


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> GGUFFile:
    """A file with the numbers of a model and no tensors worth mentioning."""
    numpy = pytest.importorskip("numpy")
    with GGUFWriter(tmp_path / "m.gguf", "martian") as out:
        for key, value in {"embedding_length": 64, "feed_forward_length": 96}.items():
            out.add(f"martian.{key}", value)
        out.add("martian.attention.head_count", 4)
        out.add("martian.attention.head_count_kv", [2, 1])
        out.add("martian.attention.key_length", 32)
        out.add("tokenizer.ggml.tokens", [str(number) for number in range(VOCAB)])
        out.add_tensor("x", numpy.ones(4, numpy.float32))
    return open_gguf(tmp_path / "m.gguf")


BYTES = {"f32": (4, 1), "f16": (2, 1), "q8_0": (34, 32)}


def cache(rows: dict[int, tuple[int, int, int]], fixed: int = 0, checkpoint: int = 0) -> Callable[..., MemoryPlan]:
    """What a family would reckon: `rows` maps the number of layers to (kv heads, key width, value width)."""

    def cost(ctx: int, dtype: str) -> MemoryPlan:
        times, per = BYTES[dtype]
        state = sum(n * ctx * heads * (k + v) * times // per for n, (heads, k, v) in rows.items())
        return MemoryPlan(5 * MIB, 4 * MIB, state + fixed, checkpoint=checkpoint)

    return cost


UNIFORM = cache({28: (8, 128, 128)})
MIXED = cache({25: (4, 256, 256), 5: (1, 512, 512)})
HYBRID = cache({6: (2, 256, 256)}, fixed=3 * MIB, checkpoint=3 * MIB)


def made(file: GGUFFile, cost: Any, free: int = 64 * GIB, ctx: int = 4096, **settings: Any) -> Plan:
    """A plan on a machine with `free` bytes."""
    return plan(file, cost, ctx, EngineSettings(**settings), Memory(64 * GIB, free), clampable=True)


@pytest.mark.parametrize(
    ("cost", "dtype", "per_slot"),
    [
        (UNIFORM, "f16", 4096 * 114688),  # 112 KiB a row
        (UNIFORM, "q8_0", 4096 * 114688 * 17 // 32),
        (MIXED, "f16", 4096 * (25 * 4 * 512 + 5 * 1024) * 2),
        (HYBRID, "f16", 4096 * 6 * 2 * 512 * 2 + 3 * MIB + 8 * 3 * MIB),
    ],
)
def test_the_bytes_of_a_sequence(file: GGUFFile, cost: Any, dtype: str, per_slot: int) -> None:
    one = made(file, cost, kv_dtype=dtype, batch=3)
    assert (one.per_slot, one.slots, one.wanted) == (per_slot, 6, 6)
    assert {item.name: item.nbytes for item in one.items}[KV] == 6 * per_slot


def test_all_items_and_their_sums(file: GGUFFile, tmp_path: Path) -> None:
    one = made(file, UNIFORM, batch=2, kv_ram=7 * MIB, kv_cache_dir=str(tmp_path), kv_disk_max=9 * MIB)
    rows, width = 512 + 2, 4 * 64 + 2 * (4 + 2 * 2) * 32 + 3 * 96
    expected = {
        "weights, mapped": (5 * MIB, "mapped"),
        "weights, packed": (4 * MIB, "at load"),
        KV: (4 * 4096 * 114688, "lazy"),
        "KV beyond the slots": (7 * MIB, "lazy"),
        "KV on disk": (9 * MIB, "disk"),
        "step scratch": (4 * (rows * width + 2 * 17 * VOCAB), "lazy"),
        "tokenizer": (TOKENIZER * VOCAB, "at load"),
        "speculation": (RECYCLED * VOCAB + INDEXED * 4096 * 4, "lazy"),
        "grammars": (GRAMMAR * VOCAB, "lazy"),
        "process": (PROCESS, "at load"),
    }
    assert {item.name: (item.nbytes, item.kind) for item in one.items} == expected
    assert one.mapped == 5 * MIB
    assert one.committed == sum(nbytes for nbytes, kind in expected.values() if kind == "at load")
    assert one.worst == one.committed + sum(nbytes for nbytes, kind in expected.values() if kind == "lazy")
    assert one.typical == one.committed + 4096 * 114688
    assert (one.fits, one.fixes, one.warnings) == (True, (), ())


def test_a_family_may_know_its_own_scratch(file: GGUFFile) -> None:
    one = made(file, lambda ctx, dtype: MemoryPlan(0, 0, 10, scratch=123), spec=False)
    names = {item.name: item.nbytes for item in one.items}
    assert names["step scratch"] == 123
    assert not names.keys() & {"weights, packed", "speculation", "KV on disk", "KV beyond the slots"}


def test_what_runs_at_once_is_raised_before_the_guard(file: GGUFFile) -> None:
    assert made(file, UNIFORM, batch=8, kv_slots=3).slots == 8


SLOT = 4096 * 114688


def free_for(file: GGUFFile, slots: float, **settings: Any) -> int:
    """Memory in which the rest of the plan and so many sequences fit."""
    one = made(file, UNIFORM, **settings)
    return one.worst - one.slots * SLOT + int(slots * SLOT)


def test_without_a_wish_as_many_are_kept_as_fit(file: GGUFFile) -> None:
    one = made(file, UNIFORM, free_for(file, 5, batch=2), batch=2)
    assert (one.fits, one.wanted, one.slots, one.verdict) == (True, 4, 4, "pressure")
    one = made(file, UNIFORM, free_for(file, 3, batch=2), batch=2)
    assert (one.fits, one.slots, one.warnings) == (True, 2, ())


def test_a_wish_that_does_not_fit_is_cut_and_fixes_are_named(file: GGUFFile) -> None:
    settings: dict[str, Any] = {"batch": 2, "kv_slots": 8, "kv_ram": GIB}
    one = made(file, UNIFORM, free_for(file, 6, **settings), **settings)
    assert (one.fits, one.verdict, one.wanted, one.slots) == (False, "clamp", 8, 3)
    assert {item.name: item.nbytes for item in one.items}[KV] == 8 * SLOT  # what was asked for
    assert one.worst > one.available
    flags = {fix.flags: fix for fix in one.fixes}
    assert list(flags) == ["--kv-ram 0", "--kv-slots 6", "--kv-dtype q8_0"]
    assert all(fix.fits and fix.total <= one.available for fix in one.fixes)
    assert flags["--kv-slots 6"].total == one.worst - 2 * SLOT
    assert "3 sequences are kept instead of 8" in one.warnings[0]
    kept = settled(one, EngineSettings(**settings))
    assert (kept.kv_slots, kept.batch) == (3, 2)
    assert made(file, UNIFORM, one.available, **{**settings, "kv_slots": 3}).fits


def test_fewer_than_run_at_once_lower_the_batch(file: GGUFFile) -> None:
    one = made(file, UNIFORM, free_for(file, 2.5, batch=4), batch=4)
    assert (one.fits, one.slots) == (False, 1)
    assert one.fixes[0].flags == "--kv-slots 2 --batch 2"
    assert settled(one, EngineSettings(batch=4)).batch == 1


def test_a_context_that_is_too_long_is_answered_with_the_longest_that_fits(file: GGUFFile) -> None:
    one = made(file, UNIFORM, free_for(file, 0.25, batch=1), batch=1)
    assert (one.fits, one.slots) == (False, 1)
    fixes = {fix.flags: fix.fits for fix in one.fixes}
    assert fixes["--ctx 1024"]  # a quarter of 4096
    shorter = made(file, UNIFORM, one.available, ctx=1024, batch=1)
    assert shorter.fits
    assert not made(file, UNIFORM, one.available, ctx=1280, batch=1).fits


def test_a_cache_type_that_the_model_cannot_have_is_not_proposed(file: GGUFFile) -> None:
    def cost(ctx: int, dtype: str) -> MemoryPlan:
        if dtype == "q8_0":
            raise KernelError("head dimensions")
        return UNIFORM(ctx, dtype)

    one = made(file, cost, free_for(file, 0.5, batch=1), batch=1)
    assert [fix.flags for fix in one.fixes] == ["--ctx 2048"]


def test_force_keeps_what_does_not_fit_and_says_so(file: GGUFFile) -> None:
    settings = EngineSettings(batch=1, kv_slots=8, kv_slots_force=True)
    one = plan(file, UNIFORM, 4096, settings, Memory(64 * GIB, 2 * GIB))
    assert (one.verdict, one.slots, one.fits) == ("overcommit", 8, False)
    assert "do not fit" in " ".join(one.warnings)
    assert settled(one, settings).kv_slots == 8


def test_a_file_that_stays_mapped_wants_page_cache(file: GGUFFile) -> None:
    def borrowed(ctx: int, dtype: str) -> MemoryPlan:
        return MemoryPlan(40 * GIB, 0, SLOT)

    assert "wait for the disk" in made(file, borrowed, 16 * GIB).warnings[0]
    assert not made(file, borrowed, 40 * GIB).warnings


def test_a_full_disk_is_told(file: GGUFFile, tmp_path: Path) -> None:
    one = made(file, UNIFORM, kv_cache_dir=str(tmp_path), kv_disk_max=1 << 62)
    assert "less than --kv-disk-max" in one.warnings[0]


# --- of files --------------------------------------------------------------------------------------------------------


def test_a_plan_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf("qwen3", tmp_path / "t.gguf", qk_norm=True, tied=True)
    with open_gguf(path) as file:
        tensor = type(next(iter(file.tensors.values())))

        def touched(self: object) -> None:
            raise AssertionError("a tensor was read")

        monkeypatch.setattr(tensor, "data", property(touched))
        one = Hub().plan(file, EngineSettings())
    assert one.fits and one.ctx == 256 and one.model == "t.gguf"
    assert json.loads(json.dumps(one.as_dict())) == one.as_dict() | {
        "items": [dataclasses.asdict(item) for item in one.items],
        "warnings": [],
        "fixes": [],
    }


def test_what_served_models_may_still_take_is_taken(tmp_path: Path) -> None:
    path = tiny_gguf("qwen3", tmp_path / "t.gguf", qk_norm=True, tied=True)
    hub = Hub()
    try:
        served = hub.load(path, EngineSettings(ctx=64, batch=2))
        assert served.plan is not None and served.plan.slots == served.settings.kv_slots == 4
        with open_gguf(path) as file:
            taken = hub.plan(file, EngineSettings(), taken=1 << 60)
        assert not taken.fits and taken.available == 0
    finally:
        hub.close()


def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf("qwen3", tmp_path / "t.gguf", qk_norm=True, tied=True, n_ctx=100_000)
    with open_gguf(path) as file:
        one = Hub().plan(file, EngineSettings(ctx=100_000, batch=1))
    enough = one.committed + one.per_slot // 2
    monkeypatch.setattr("lmhub.hub.memory", lambda: Memory(2 * enough, enough))
    hub = Hub()
    with pytest.raises(LmhubError, match=r"choose a context of at most \d+ \(--ctx\)") as refused:
        hub.load(path, EngineSettings(ctx=100_000, batch=1))
    assert "t.gguf" in str(refused.value) and not hub.models
    monkeypatch.setattr("lmhub.hub.memory", lambda: Memory(2, 1))
    with pytest.raises(LmhubError, match="choose a smaller model"):
        hub.load(path, EngineSettings(ctx=64, batch=1))


def test_a_wish_that_does_not_fit_is_cut_when_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny_gguf("qwen3", tmp_path / "t.gguf", qk_norm=True, tied=True)
    with open_gguf(path) as file:
        one = Hub().plan(file, EngineSettings(batch=2, kv_slots=40))
    free = one.worst - 30 * one.per_slot
    monkeypatch.setattr("lmhub.hub.memory", lambda: Memory(free, free))
    hub = Hub()
    try:
        served = hub.load(path, EngineSettings(batch=2, kv_slots=40))
        assert served.plan is not None and served.plan.fits
        assert served.settings.kv_slots == served.engine.stats().kv_slots == served.plan.slots == 5
        assert "t.gguf: memory is short: 5 sequences are kept instead of 40" in caplog.text
    finally:
        hub.close()


@pytest.mark.parametrize("dtype", ["f16", "f32", "q8_0"])
def test_the_plan_of_a_real_family_is_what_it_allocates(tmp_path: Path, dtype: str) -> None:
    path = tiny_gguf("qwen3", tmp_path / "t.gguf", qk_norm=True, tied=True)
    hub = Hub()
    try:
        served = hub.load(path, EngineSettings(ctx=64, batch=1, kv_dtype=dtype))
        made = served.engine.call(lambda: served.model.model.new_state(64).nbytes).result()
        assert served.plan is not None and served.plan.per_slot == made
    finally:
        hub.close()


def test_what_speculation_is_priced_at_is_what_it_may_take() -> None:
    from lmhub.engine.drafts.gate import DEFAULT
    from lmhub.engine.drafts.index import MAX_TOKENS, DraftIndex
    from lmhub.engine.drafts.recycling import Recycling

    assert (MAX_TOKENS, 1 + DEFAULT.max_draft) == (INDEX_MAX, VERIFIED)
    assert Recycling(VOCAB).nbytes == RECYCLED * VOCAB
    index = DraftIndex(VOCAB)
    index.feed([number * number % VOCAB for number in range(4096)])
    assert index.nbytes <= INDEXED * 4096
