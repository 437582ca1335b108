"""Which file is found for a prompt, and which ones go: against straightforward answers to the same questions."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lmhub.engine.disk.catalog import Catalog, Entry, key_of
from lmhub.engine.disk.lmkv import Blob, Header, Prefix


def entry(
    name: str, tokens: list[int], nbytes: int = 100, layout: str = "f16", at: tuple[int, ...] | None = None
) -> Entry:
    """A file of these tokens; with `at`, one that has checkpoints there and cannot be cut elsewhere."""
    header = Header(
        v=1,
        identity="m",
        layout=layout,
        row_nbytes=1,
        n_rows=len(tokens),
        n_tokens=len(tokens),
        n_stable=0,
        prefix=Prefix(0),
        rewind=at is None,
        chunks=(),
        states=tuple(Blob(position, 0, 1, 0) for position in at or ()),
        created=0.0,
        writer="",
    )
    return Entry(name, nbytes, header, key_of(np.array(tokens, np.int32)))


def foreign(name: str, nbytes: int = 100) -> Entry:
    return Entry(name, nbytes)


def ids(*tokens: int) -> bytes:
    return key_of(np.array(tokens, np.int32))


def names(entries: list[Entry]) -> list[str]:
    return [one.name for one in entries]


def common(one: list[int], other: list[int]) -> int:
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n


SEQUENCES = st.lists(st.lists(st.sampled_from([0, 1, 2, 255, 256, 70000]), min_size=1, max_size=6), max_size=30)


@settings(max_examples=200, deadline=None)
@given(SEQUENCES, st.lists(st.sampled_from([0, 1, 2, 255, 256, 70000]), max_size=7))
def test_find_gives_the_longest_common_beginning(sequences: list[list[int]], prompt: list[int]) -> None:
    catalog = Catalog(1 << 30, 1000)
    for index, tokens in enumerate(sequences):
        catalog.add(entry(str(index), tokens), index)
    best = max((common(tokens, prompt) for tokens in sequences), default=0)
    found = catalog.find(ids(*prompt))
    assert (found[1] if found else 0) == best
    if found:
        assert common(sequences[int(found[0].name)], prompt) == best
    covers = any(tokens[: len(prompt)] == prompt for tokens in sequences)
    assert (catalog.covering(ids(*prompt), len(prompt)) is not None) == covers


@settings(max_examples=100, deadline=None)
@given(SEQUENCES, st.data())
def test_what_was_taken_out_is_not_found(sequences: list[list[int]], data: st.DataObject) -> None:
    catalog = Catalog(1 << 30, 1000)
    entries = [entry(str(index), tokens) for index, tokens in enumerate(sequences)]
    for one in entries:
        catalog.add(one, 0)
    gone = data.draw(st.sets(st.sampled_from(entries))) if entries else set()
    for one in gone:
        catalog.replace(one, None)
    assert catalog.counts == (len(entries) - len(gone), 100 * (len(entries) - len(gone)))
    for one in gone:
        found = catalog.find(one.key)
        assert found is None or found[0] not in gone


def test_of_equals_the_last_used_one_is_found() -> None:
    catalog = Catalog(1000, 10)
    for index, tokens in enumerate(([1, 2, 3, 9], [1, 2, 3, 4], [1, 2, 3, 6])):
        catalog.add(entry(str(index), tokens), 10 - index)
    catalog.touch(catalog.get("1"), 99.0)  # type: ignore[arg-type]
    found = catalog.find(ids(1, 2, 3, 5))
    assert found is not None and (found[0].name, found[1]) == ("1", 3)


def test_checkpoints_decide_how_far_an_entry_reaches() -> None:
    catalog = Catalog(1000, 10)
    catalog.add(entry("near", [1, 2, 3, 4, 5, 6], at=(2, 6)), 0)
    catalog.add(entry("far", [1, 2, 3, 4, 9], at=(4, 5)), 0)
    found = catalog.find(ids(1, 2, 3, 4, 5, 7))
    assert found is not None and (found[0].name, found[1]) == ("far", 4)
    assert catalog.find(ids(1, 7)) is None
    assert catalog.covering(ids(1, 2, 3), 3) is None
    assert catalog.covering(ids(1, 2), 2) is not None


def test_superseded_are_beginnings_that_reach_no_further() -> None:
    catalog = Catalog(1000, 10)
    for name, tokens in {"a": [1], "ab": [1, 2], "ax": [1, 9], "b": [2]}.items():
        catalog.add(entry(name, tokens), 0)
    catalog.add(entry("check", [1, 2, 3], at=(3,)), 0)
    assert names(catalog.superseded(entry("new", [1, 2, 3, 4]))) == ["a", "ab", "check"]
    assert names(catalog.superseded(entry("new", [1, 2, 3, 4], at=(4,)))) == []


def test_the_budget_takes_strangers_first_then_the_least_recently_used() -> None:
    catalog = Catalog(500, 10)
    catalog.add(foreign("other-new"), 50)
    catalog.add(foreign("other-old"), 40)
    for index in range(3):
        catalog.add(entry(f"own{index}", [index] * 50), index)
    assert names(catalog.victims()) == []
    assert names(catalog.victims(100)) == ["other-old"]
    assert names(catalog.victims(201)) == ["other-old", "other-new", "own0"]
    assert names(catalog.victims(0, 6)) == ["other-old"]
    assert names(catalog.victims(100, 1, [catalog.get("own1")])) == []  # type: ignore[list-item]
    catalog.touch(catalog.get("own0"), 99.0)  # type: ignore[arg-type]
    assert names(catalog.victims(300))[2:] == ["own1"]


def test_greedy_dual_ages_what_saves_much_per_byte() -> None:
    """A dense file outlives sparse ones that are used more recently, but not for ever."""
    catalog = Catalog(300, 10)
    catalog.add(entry("dense", [7] * 80, nbytes=100), 0)
    catalog.add(entry("s0", [0] * 30, nbytes=100), 1)
    catalog.add(entry("s1", [1] * 30, nbytes=100), 2)
    order = []
    for index in range(2, 8):
        (victim,) = catalog.victims(100, 1)
        catalog.evict(victim)
        order.append(victim.name)
        catalog.add(entry(f"s{index}", [index] * 30, nbytes=100), index + 1)
    assert order == ["s0", "s1", "s2", "s3", "dense", "s4"]


def test_the_index_brings_back_order_and_clock() -> None:
    first = Catalog(300, 10)
    for index, name in enumerate("abc"):
        first.add(entry(name, [index] * 50), index)
    first.evict(first.get("c"))  # type: ignore[arg-type]
    first.touch(first.get("a"), 77.0)  # type: ignore[arg-type]
    again = Catalog(200, 10)
    again.load_index(first.dump_index())
    for name in "ba":
        again.add(entry(name, [ord(name)] * 50), 1e9)
    assert names(again.victims(100)) == ["b"]
    assert again.get("a").used_s == 77.0  # type: ignore[union-attr]
    for broken in (b"", b"{", b"[" * 100_000, b'{"v":1,"clock":-1,"files":{}}', b'{"v":1,"clock":0,"files":{"a":[1]}}'):
        Catalog(1, 1).load_index(broken)


def test_another_layout_is_another_model() -> None:
    catalog = Catalog(1000, 10)
    catalog.add(entry("f16", [1, 2, 3]), 0)
    catalog.add(entry("f32", [1, 2, 3, 4], layout="f32"), 5)
    catalog.use_layout("f16")
    catalog.add(entry("q8", [1, 2, 3, 4], layout="q8_0"), 6)
    found = catalog.find(ids(1, 2, 3, 4))
    assert found is not None and found[0].name == "f16"
    assert catalog.counts == (1, 300)
    assert names(catalog.victims(800)) == ["f32"]


def test_among_thousands_with_one_system_prompt_the_right_one_is_found() -> None:
    catalog = Catalog(1 << 40, 100_000)
    system = list(range(500))
    random = np.random.default_rng(3)
    tails = random.integers(0, 2000, (3000, 5))
    for index, tail in enumerate(tails.tolist()):
        catalog.add(entry(str(index), [*system, *tail]), index)
    for tail in tails[::500].tolist():
        found = catalog.find(ids(*system, *tail[:3], 9999))
        assert found is not None and found[1] >= 503
