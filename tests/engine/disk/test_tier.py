"""`DiskTier` as the engine uses it: rows come back bit for bit, or not at all. test_upkeep.py: which files stay."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.engine.disk import DiskTier
from lmhub.testing.tiers import WAIT_S, chunk_offsets, files, flip, found, joined, loaded, saved, some_tokens

MakeState = Callable[..., Any]
OpenTier = Callable[..., DiskTier]


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
