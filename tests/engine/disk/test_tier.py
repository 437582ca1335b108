"""`DiskTier` as the engine uses it: rows come back bit for bit, or not at all, and the budget holds."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmhub.engine.disk import DiskTier, Found
from lmhub.model import State

WAIT_S = 30.0
MakeState = Callable[..., Any]
OpenTier = Callable[..., DiskTier]


def some_tokens(n: int, seed: int = 0) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, 150_000, n).astype(np.int32)


def joined(*parts: NDArray[np.int32]) -> NDArray[np.int32]:
    return np.concatenate(parts)


def saved(tier: DiskTier, state: State, tokens: NDArray[np.int32], n_stable: int = 0, **rest: Any) -> bool:
    return tier.save(state, tokens, n_stable, **rest).result(WAIT_S)


def loaded(tier: DiskTier, found: Found, n: int, state: State) -> int:
    return tier.load(found, n, state).result(WAIT_S)


def found(tier: DiskTier, prompt: NDArray[np.int32]) -> Found:
    answer = tier.find(prompt)
    assert answer is not None
    return answer


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("kv-*.lmkv"))


def chunk_offsets(path: Path) -> list[int]:
    from lmhub.engine.disk.lmkv import read_header

    with open(path, "rb", buffering=0) as file:
        return [chunk.offset for chunk in read_header(file, path.stat().st_size)[0].chunks]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


# --- there and back ---------------------------------------------------------------------------------------------------


def test_rows_come_back_bit_for_bit_after_a_restart(open_tier: OpenTier, make_state: MakeState) -> None:
    tokens = some_tokens(700)
    state = make_state().grow(tokens)
    tier = open_tier()
    assert saved(tier, state, tokens, 650)
    tier.close(WAIT_S)
    tier = open_tier()
    hit = found(tier, joined(tokens, some_tokens(50, 1)))
    assert (hit.n, hit.nbytes, tier.stable(hit)) == (700, 700 * 24, 650)
    other = make_state()
    assert loaded(tier, hit, 700, other) == 700
    assert other.used() == state.used()
    stats = tier.stats()
    assert (stats.entries, stats.loaded, stats.read_bytes, stats.failed) == (1, 1, 700 * 24, 0)
    assert stats.writable


@pytest.mark.parametrize("dtype", ["f16", "f32", "q8_0"])
def test_kv_caches_come_back_bit_for_bit(open_tier: OpenTier, dtype: str) -> None:
    from lmhub.kv import KVState

    def make(capacity: int) -> KVState:
        return KVState(3, 2, 64, 32, capacity, dtype)

    tokens = some_tokens(300)
    state = make(512)
    state.write_rows(np.random.default_rng(5).integers(0, 256, 300 * state.row_nbytes, np.uint8))
    tier = open_tier()
    assert saved(tier, state, tokens)
    for n, capacity in ((300, 512), (300, 300), (299, 1024), (256, 256), (3, 512)):
        other = make(capacity)
        assert loaded(tier, found(tier, tokens), n, other) == other.n_tokens == n
        assert other.read_rows(0, n).tobytes() == state.read_rows(0, n).tobytes()
    small = make(280)  # the second chunk does not fit, and a chunk is not cut
    assert loaded(tier, found(tier, tokens), 280, small) == small.n_tokens == 256


def test_only_the_chunks_that_are_needed_are_read(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    tokens = some_tokens(1000)
    state = make_state().grow(tokens)
    tier = open_tier()
    assert saved(tier, state, tokens)
    offsets = chunk_offsets(files(folder)[0])
    flip(files(folder)[0], offsets[2])  # of no importance to whoever does not need it
    hit = found(tier, joined(tokens[:400], some_tokens(100, 1)))
    assert (hit.n, hit.nbytes) == (400, 512 * 24)
    other = make_state()
    assert loaded(tier, hit, 400, other) == 400
    assert other.used() == state.used()[: 400 * 24]
    assert tier.stats().read_bytes == 512 * 24


def test_a_state_without_rows_or_tokens_is_not_worth_it(open_tier: OpenTier, make_state: MakeState) -> None:
    tier = open_tier()
    tokens = some_tokens(100)
    assert not saved(tier, make_state().grow(tokens), tokens[:63])
    assert not saved(tier, make_state().grow(tokens[:63]), tokens)
    assert not saved(tier, make_state(layout="").grow(tokens), tokens)
    assert not saved(tier, make_state(can_rewind=False).grow(tokens), tokens)  # and no checkpoint
    assert saved(tier, make_state().grow(tokens), tokens[:64])
    with pytest.raises(ValueError, match="empty"):
        tier.load(found(tier, tokens), 5, make_state().grow(tokens[:1]))


def test_recurrent_states_come_back_at_a_checkpoint(open_tier: OpenTier, make_state: MakeState) -> None:
    tokens = some_tokens(600)
    points = [(n, bytes(tokens[:n].astype(np.uint8))) for n in (100, 300, 600)]
    tier = open_tier()
    assert saved(tier, make_state(can_rewind=False).grow(tokens), tokens, 300, checkpoints=points)
    for n_common, n in ((600, 600), (599, 300), (300, 300), (299, 100), (100, 100)):
        hit = found(tier, joined(tokens[:n_common], np.array([200_000], np.int32)))
        assert hit.n == n
        other = make_state(can_rewind=False)
        assert loaded(tier, hit, hit.n, other) == n
        assert other.used() == make_state(can_rewind=False).grow(tokens[:n]).used()
    assert tier.find(tokens[:99]) is None
    assert not tier.covers(tokens[:200]) and tier.covers(tokens[:300])


def test_a_longer_file_takes_over_the_checkpoints_of_those_that_it_replaces(
    open_tier: OpenTier, make_state: MakeState, folder: Path
) -> None:
    """Of many those that lie apart, and the newest; what cannot be read is left out."""
    tokens = some_tokens(1200)

    def save(tier: DiskTier, n: int, *places: int) -> None:
        points = [(at, bytes(tokens[:at].astype(np.uint8))) for at in places]
        assert saved(tier, make_state(can_rewind=False).grow(tokens[:n]), tokens[:n], checkpoints=points)

    tier = open_tier()
    save(tier, 300, 100, 290, 300)
    save(tier, 500, 450, 500)
    save(tier, 1200, 600, 700, 1100, 1190, 1200)
    assert len(files(folder)) == 1
    for n_common, n in ((1199, 1190), (699, 600), (499, 450), (299, 290), (289, 100)):
        hit = found(tier, tokens[:n_common])
        assert hit.n == n
        other = make_state(can_rewind=False)
        assert loaded(tier, hit, n, other) == n
        assert other.used() == make_state(can_rewind=False).grow(tokens[:n]).used()
    assert tier.find(tokens[:99]) is None


def test_a_checkpoint_that_cannot_be_read_is_not_taken_over(
    open_tier: OpenTier, make_state: MakeState, folder: Path
) -> None:
    tokens = some_tokens(300)
    tier = open_tier()
    for n, places in ((260, (100, 260)), (300, (300,))):
        points = [(at, bytes(tokens[:at].astype(np.uint8))) for at in places]
        assert saved(tier, make_state(can_rewind=False).grow(tokens[:n]), tokens[:n], checkpoints=points)
        if n == 260:
            flip(files(folder)[0], files(folder)[0].stat().st_size - 20)  # in the one at 260
    assert [found(tier, tokens[:n]).n for n in (300, 299)] == [
        300,
        260,
    ]  # the old file stays, for what it may be good for
    assert found(tier, tokens[:200]).n == 100


def test_recurrent_states_without_rows(open_tier: OpenTier, make_state: MakeState) -> None:
    tokens = some_tokens(80)
    tier = open_tier()
    state = make_state(width=0, can_rewind=False).grow(tokens)
    assert saved(tier, state, tokens, checkpoints=[(80, state.checkpoint())])
    other = make_state(width=0, can_rewind=False)
    assert loaded(tier, found(tier, tokens), 80, other) == 80
    assert other.used() == state.used()


# --- damage -----------------------------------------------------------------------------------------------------------


def test_rows_before_a_damaged_chunk_are_kept(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    tokens = some_tokens(600)
    state = make_state().grow(tokens)
    tier = open_tier()
    assert saved(tier, state, tokens)
    flip(files(folder)[0], chunk_offsets(files(folder)[0])[1] + 5)
    other = make_state()
    assert loaded(tier, found(tier, tokens), 600, other) == 256
    assert other.used() == state.used()[: 256 * 24]
    assert found(tier, tokens).n == 256
    assert tier.stats().failed == 1
    assert loaded(tier, found(tier, tokens), 256, make_state()) == 256
    assert saved(tier, state, tokens)  # what is left of it does not stand in the way
    assert found(tier, tokens).n == 600
    assert len(files(folder)) == 1


def test_a_file_whose_first_chunk_is_damaged_goes(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    tokens = some_tokens(600)
    tier = open_tier()
    assert saved(tier, make_state().grow(tokens), tokens)
    flip(files(folder)[0], chunk_offsets(files(folder)[0])[0])
    other = make_state()
    assert loaded(tier, found(tier, tokens), 600, other) == other.n_tokens == 0
    assert files(folder) == []
    assert tier.find(tokens) is None
    assert tier.stats().failed == 1


def test_an_older_checkpoint_stands_in_for_a_damaged_one(
    open_tier: OpenTier, make_state: MakeState, folder: Path
) -> None:
    tokens = some_tokens(300)
    points = [(n, bytes(tokens[:n].astype(np.uint8))) for n in (260, 300)]
    tier = open_tier()
    assert saved(tier, make_state(can_rewind=False).grow(tokens), tokens, checkpoints=points)
    path = files(folder)[0]
    flip(path, path.stat().st_size - 20)
    for _ in range(2):
        other = make_state(can_rewind=False)
        assert loaded(tier, found(tier, tokens), 300, other) == 260
        assert other.used() == make_state(can_rewind=False).grow(tokens[:260]).used()
    assert found(tier, tokens).n == 260


@pytest.mark.parametrize("change", ["gone", "cut", "link", "other"])
def test_files_that_change_after_they_were_found_bring_nothing(
    open_tier: OpenTier, make_state: MakeState, folder: Path, tmp_path: Path, change: str
) -> None:
    tokens = some_tokens(300)
    tier = open_tier()
    assert saved(tier, make_state().grow(tokens), tokens)
    path = files(folder)[0]
    data = path.read_bytes()
    if change == "gone":
        path.unlink()
    elif change == "cut":
        os.truncate(path, len(data) // 2)
    elif change == "link":
        (tmp_path / "moved").write_bytes(data)
        path.unlink()
        path.symlink_to(tmp_path / "moved")
    else:
        path.write_bytes(os.urandom(len(data)))
    other = make_state()
    assert loaded(tier, found(tier, tokens), 300, other) == other.n_tokens == 0
    assert tier.find(tokens) is None
    assert saved(tier, make_state().grow(tokens), tokens)


def test_damaged_files_are_removed_at_the_start(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    tier = open_tier()
    for seed in range(4):
        assert saved(tier, make_state().grow(some_tokens(300, seed)), some_tokens(300, seed))
    tier.close(WAIT_S)
    paths = files(folder)
    flip(paths[0], 40)
    flip(paths[1], 4096 + 7)
    os.truncate(paths[2], 5000)
    tier = open_tier()
    assert files(folder) == [paths[3]]
    stats = tier.stats()
    assert (stats.entries, stats.failed) == (1, 3)


def test_a_state_that_refuses_rows_costs_only_the_rows(open_tier: OpenTier, make_state: MakeState) -> None:
    tokens = some_tokens(300)
    tier = open_tier()
    assert saved(tier, make_state().grow(tokens), tokens)
    other = make_state()
    other.write_rows = None
    assert loaded(tier, found(tier, tokens), 300, other) == 0
    broken = make_state().grow(tokens)
    broken.read_rows = None
    assert not saved(tier, broken, some_tokens(300, 2)[:300])
    assert saved(tier, make_state().grow(some_tokens(300, 3)), some_tokens(300, 3))


# --- identity ---------------------------------------------------------------------------------------------------------


def test_other_models_and_layouts_are_left_alone(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    tokens = some_tokens(300)
    tier = open_tier("model=a numerics=1")
    assert saved(tier, make_state(layout="f16").grow(tokens), tokens)
    tier.close(WAIT_S)
    for identity in ("model=b numerics=1", "model=a numerics=2"):
        tier = open_tier(identity)
        assert tier.find(tokens) is None
        assert tier.stats().nbytes == files(folder)[0].stat().st_size
        tier.close(WAIT_S)
    tier = open_tier("model=a numerics=1")
    other = make_state(layout="q8_0")
    assert loaded(tier, found(tier, tokens), 300, other) == 0  # the tier learns here which layout there is
    assert tier.find(tokens) is None
    assert saved(tier, make_state(layout="q8_0").grow(tokens), tokens)
    assert len(files(folder)) == 2


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_a_longer_sequence_supersedes_its_beginnings(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    tokens, fork = some_tokens(400), joined(some_tokens(400)[:100], some_tokens(100, 9))
    tier = open_tier()
    for part in (tokens[:100], tokens[:200], fork, tokens):
        assert saved(tier, make_state().grow(part), part)
    assert len(files(folder)) == 2
    assert found(tier, tokens).n == 400 and found(tier, fork).n == 200
    assert tier.stats().saved == 4 and tier.stats().evicted == 0


def test_what_is_contained_is_not_written_again(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    tokens = some_tokens(400)
    tier = open_tier()
    assert saved(tier, make_state().grow(tokens), tokens)
    assert tier.covers(tokens) and tier.covers(tokens[:300])
    assert not tier.covers(joined(tokens, tokens[:1]))
    assert saved(tier, make_state().grow(tokens[:300]), tokens[:300])
    assert tier.stats().saved == 1 and len(files(folder)) == 1


def test_the_byte_budget_holds_and_the_least_used_goes(
    open_tier: OpenTier, make_state: MakeState, folder: Path
) -> None:
    parts = [some_tokens(200, seed) for seed in range(6)]
    tier = open_tier()
    assert saved(tier, make_state().grow(parts[0]), parts[0])
    size = files(folder)[0].stat().st_size
    tier.close(WAIT_S)
    tier = open_tier(max_bytes=3 * size + size // 2)
    for part in parts[1:3]:
        assert saved(tier, make_state().grow(part), part)
    assert loaded(tier, found(tier, parts[0]), 200, make_state()) == 200
    for part in parts[3:5]:
        assert saved(tier, make_state().grow(part), part)
        assert sum(path.stat().st_size for path in files(folder)) <= 3 * size
    assert [tier.find(part) is not None for part in parts] == [True, False, False, True, True, False]
    assert tier.stats().evicted == 2
    large = some_tokens(2000, 50)
    assert not saved(tier, make_state().grow(large), large)  # larger than the budget: nothing goes for it
    assert tier.stats().entries == 3


def test_order_survives_a_restart_and_a_smaller_budget_is_kept_at_once(
    open_tier: OpenTier, make_state: MakeState, folder: Path
) -> None:
    parts = [some_tokens(200, seed) for seed in range(4)]
    tier = open_tier()
    for part in parts:
        assert saved(tier, make_state().grow(part), part)
    for path in files(folder):
        os.utime(path, (5, 5))
    assert loaded(tier, found(tier, parts[1]), 200, make_state()) == 200
    tier.close(WAIT_S)
    tier = open_tier(max_files=2)
    assert [tier.find(part) is not None for part in parts] == [False, True, False, True]


def test_strangers_go_first(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    mine, other = some_tokens(200, 1), some_tokens(200, 2)
    tier = open_tier("mine")
    assert saved(tier, make_state().grow(mine), mine)
    tier.close(WAIT_S)
    tier = open_tier("other")
    assert saved(tier, make_state().grow(other), other)
    tier.close(WAIT_S)
    tier = open_tier("mine", max_files=2)
    new = some_tokens(200, 3)
    assert saved(tier, make_state().grow(new), new)
    assert tier.find(mine) is not None and tier.find(new) is not None
    assert tier.stats().entries == len(files(folder)) == 2


# --- two at once ------------------------------------------------------------------------------------------------------


def test_the_second_opener_reads_and_writes_once_the_first_has_gone(
    open_tier: OpenTier, make_state: MakeState, folder: Path
) -> None:
    one, two = some_tokens(300, 1), some_tokens(300, 2)
    first = open_tier()
    assert saved(first, make_state().grow(one), one)
    second = open_tier(max_files=1)
    assert not second.stats().writable
    assert loaded(second, found(second, one), 300, make_state()) == 300
    assert not saved(second, make_state().grow(two), two)
    assert saved(first, make_state().grow(two), two)
    flip(files(folder)[0], 4096 + 1300)
    flip(files(folder)[1], 4096 + 1300)
    assert loaded(second, found(second, one), 300, make_state()) == 0
    assert len(files(folder)) == 2  # damaged, but not the second one's to remove
    first.close(WAIT_S)
    three = some_tokens(300, 3)
    assert saved(second, make_state().grow(three), three)
    assert second.stats().writable


# --- time and trouble -------------------------------------------------------------------------------------------------


class Held:
    """Makes a state's `read_rows` wait, so that a test decides how long a save takes."""

    def __init__(self, state: Any):
        self.state, self.begun, self.go = state, threading.Event(), threading.Event()
        real = state.read_rows

        def read_rows(start: int, stop: int) -> NDArray[np.uint8]:
            self.begun.set()
            assert self.go.wait(WAIT_S)
            rows: NDArray[np.uint8] = real(start, stop)
            return rows

        state.read_rows = read_rows


def test_few_saves_wait_unless_it_is_the_end(open_tier: OpenTier, make_state: MakeState) -> None:
    parts = [some_tokens(100, seed) for seed in range(5)]
    tier = open_tier()
    held = Held(make_state().grow(parts[0]))
    first = tier.save(held.state, parts[0], 0)
    assert held.begun.wait(WAIT_S)
    second = tier.save(make_state().grow(parts[1]), parts[1], 0)
    assert tier.stats().pending == 2
    assert tier.save(make_state().grow(parts[2]), parts[2], 0).result(0) is False
    third = tier.save(make_state().grow(parts[3]), parts[3], 0, flush=True)
    assert tier.find(parts[0]) is None  # and it does not wait
    held.go.set()
    assert first.result(WAIT_S) and second.result(WAIT_S) and third.result(WAIT_S)
    assert tier.stats().pending == 0


def test_loads_do_not_wait_for_a_save(open_tier: OpenTier, make_state: MakeState) -> None:
    one, two = some_tokens(300, 1), some_tokens(600, 2)
    tier = open_tier()
    assert saved(tier, make_state().grow(one), one)
    held = Held(make_state().grow(two))
    saving = tier.save(held.state, two, 0)
    assert held.begun.wait(WAIT_S)
    loading = tier.load(found(tier, one), 300, make_state())
    loading.add_done_callback(lambda _: done.append(saving.done()))
    done: list[bool] = []
    held.go.set()
    assert loading.result(WAIT_S) == 300 and saving.result(WAIT_S)
    assert done == [False]


def test_what_was_cancelled_is_not_done(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    one, two = some_tokens(100, 1), some_tokens(100, 2)
    tier = open_tier()
    held = Held(make_state().grow(one))
    first = tier.save(held.state, one, 0)
    assert held.begun.wait(WAIT_S)
    second = tier.save(make_state().grow(two), two, 0)
    assert second.cancel()
    held.go.set()
    assert first.result(WAIT_S)
    tier.close(WAIT_S)
    assert len(files(folder)) == 1
    assert tier.stats().pending == 0


def test_closing_finishes_what_waits(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    parts = [some_tokens(300, seed) for seed in range(3)]
    tier = open_tier()
    saving = [tier.save(make_state().grow(part), part, 0, flush=True) for part in parts]
    tier.close(WAIT_S)
    assert all(future.result(0) for future in saving)
    assert tier.save(make_state().grow(parts[0]), parts[0], 0).result(0) is False
    assert tier.load(Found(None, 1, 1, 0.0), 1, make_state()).result(0) == 0  # type: ignore[arg-type]
    tier = open_tier()
    assert all(found(tier, part).n == 300 for part in parts)


def test_closing_gives_up_at_the_deadline(open_tier: OpenTier, make_state: MakeState, folder: Path) -> None:
    parts = [some_tokens(600, seed) for seed in range(2)]
    tier = open_tier()
    held = Held(make_state().grow(parts[0]))
    first = tier.save(held.state, parts[0], 0)
    assert held.begun.wait(WAIT_S)
    second = tier.save(make_state().grow(parts[1]), parts[1], 0)
    closing = threading.Thread(target=tier.close, args=(0.0,))
    closing.start()
    while not tier._closed:
        closing.join(0.001)
    held.go.set()
    closing.join(WAIT_S)
    assert first.result(0) is False and second.result(0) is False
    assert [path.name for path in folder.iterdir() if path.name != ".lock"] == []
    assert open_tier().stats().writable


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at", ["write", "fsync", "rename"])
def test_a_full_or_broken_disk_stops_writing_for_a_while(
    open_tier: OpenTier,
    make_state: MakeState,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
    at: str,
) -> None:
    now = [1000.0]
    parts = [some_tokens(300, seed) for seed in range(4)]
    tier = open_tier(clock=lambda: now[0])
    assert saved(tier, make_state().grow(parts[0]), parts[0])
    trouble = [True]

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if trouble[0]:
                raise OSError(code, os.strerror(code))
            return real(*args, **named)

        return call

    if at == "write":
        from lmhub.engine.disk import lmkv

        monkeypatch.setattr(lmkv, "_write_at", failing(lmkv._write_at))
    else:
        monkeypatch.setattr(os, at, failing(getattr(os, at)))
    with caplog.at_level(logging.WARNING):
        assert not saved(tier, make_state().grow(parts[1]), parts[1])
        now[0] += 61.0
        assert not saved(tier, make_state().grow(parts[1]), parts[1])
        trouble[0] = False
        now[0] += 59.0
        assert not saved(tier, make_state().grow(parts[1]), parts[1])
    assert caplog.text.count("cannot be saved") == 1
    assert loaded(tier, found(tier, parts[0]), 300, make_state()) == 300
    now[0] += 2.0
    assert saved(tier, make_state().grow(parts[1]), parts[1])
    assert not list(folder.glob(".tmp-*"))
    assert len(files(folder)) == 2


def test_the_rate_of_reading_is_measured(open_tier: OpenTier, make_state: MakeState) -> None:
    tokens = some_tokens(500)
    tier = open_tier()
    assert saved(tier, make_state().grow(tokens), tokens)
    hit = found(tier, tokens)
    assert tier.read_rate == 0.5e9 and hit.seconds == hit.nbytes / 0.5e9
    assert loaded(tier, hit, 500, make_state()) == 500
    assert tier.read_rate != 0.5e9 and found(tier, tokens).seconds == hit.nbytes / tier.read_rate


# --- everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_rows_are_those_of_their_tokens(
    open_tier: OpenTier, make_state: MakeState, folder: Path, seed: int
) -> None:
    """Random saves, loads, damage, removals and restarts over a small budget: what comes back is right, or nothing."""
    random = np.random.default_rng(seed)
    pool = [some_tokens(700, 1), some_tokens(700, 2)]
    pool += [joined(pool[0][:n], some_tokens(700 - n, n)) for n in (100, 300, 600)]
    options = {"max_bytes": 60_000, "max_files": 4}
    tier = open_tier(**options)
    n_right = 0
    for _ in range(60):
        tokens = pool[random.integers(len(pool))][: random.integers(64, 700)]
        what = random.integers(10)
        if what < 4:
            saved(tier, make_state().grow(tokens), tokens)
            assert sum(path.stat().st_size for path in files(folder)) <= 60_000 and len(files(folder)) <= 4
        elif what < 8:
            if hit := tier.find(tokens):
                other = make_state()
                n = loaded(tier, hit, hit.n, other)
                assert n == other.n_tokens <= hit.n
                assert other.used() == make_state().grow(tokens[:n]).used()
                n_right += n > 0
        elif what == 8 and files(folder):
            path = files(folder)[random.integers(len(files(folder)))]
            flip(path, int(random.integers(path.stat().st_size)))
        else:
            tier.close(WAIT_S)
            tier = open_tier(**options)
    assert n_right > 5
    assert tier.stats().nbytes == sum(path.stat().st_size for path in files(folder))


# --- many -------------------------------------------------------------------------------------------------------------


def test_a_folder_with_many_files_is_usable_while_it_is_read(
    open_tier: OpenTier, make_state: MakeState, folder: Path
) -> None:
    tokens = some_tokens(64)
    tier = open_tier()
    assert saved(tier, make_state().grow(tokens), tokens)
    tier.close(WAIT_S)
    newest = files(folder)[0]
    data = newest.read_bytes()
    for index in range(1000):
        path = folder / f"{newest.name[:15]}-{index:032x}.lmkv"
        path.write_bytes(data)
        path.chmod(0o600)
        os.utime(path, (index, index))
    tier = DiskTier(folder, "model", max_bytes=1 << 40, max_files=10_000)
    try:
        state = make_state().grow(some_tokens(100, 7))
        assert saved(tier, state, some_tokens(100, 7))  # done between two files of the scan, or after it
        assert tier.scanned.wait(WAIT_S)
        assert tier.stats().entries == 1002
        other = make_state()
        assert loaded(tier, found(tier, tokens), 64, other) == 64
    finally:
        tier.close(WAIT_S)
    tier = open_tier(max_files=10)
    assert len(files(folder)) == 10
    assert found(tier, some_tokens(100, 7)).n == 100
