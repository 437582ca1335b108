"""What a `DiskTier` keeps, and for how long: budgets, two tiers over one folder, the end, and disks that fail."""

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
from lmhub.testing.tiers import WAIT_S, files, flip, found, joined, loaded, saved, some_tokens

MakeState = Callable[..., Any]
OpenTier = Callable[..., DiskTier]


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
