"""Files that were made to harm, and files that were cut off: one sentence each, and no more memory than they have."""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lmhub_nanochat.folder import open_folder
from lmhub_nanochat.pickles import Made, unpickled
from lmhub_nanochat.vocabulary import PATTERN, pairs_of, read_vocabulary, spelled

from lmhub.errors import LmhubError
from lmhub.gguf.parse import Damaged
from lmhub.tokenize import load_tokenizer

MADE = run_path(str(Path(__file__).with_name("checkpoints.py")))
SMALL = {"resid_lambdas": np.ones(3, np.float32), "lm_head.weight": np.ones((4, 4), np.float32)}
ENCODING = ("tiktoken.core.Encoding",)


def encoding(ranks: Any, special: Any, pattern: Any = PATTERN) -> bytes:
    """A tokenizer.pkl as tiktoken's own pickling makes one."""
    state = {"name": "x", "pat_str": pattern, "mergeable_ranks": ranks, "special_tokens": special}
    body = pickle.dumps(state, 4)[2:-1]  # without the protocol and the stop
    return b"\x80\x04\x8c\x0dtiktoken.core\x8c\x08Encoding\x93)\x81" + body + b"b."


def words() -> tuple[dict[bytes, int], dict[str, int]]:
    tokens = spelled(MADE["MERGES"])
    return {token: i for i, token in enumerate(tokens)}, {t: len(tokens) + i for i, t in enumerate(MADE["SPECIALS"])}


# --- pickles ---------------------------------------------------------------------------------------------------------


class Evil:
    """Runs a command where Python's own unpickler reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("touch /tmp/lmhub-was-here",)


@pytest.mark.parametrize("protocol", range(5))
def test_a_pickle_that_runs_something_runs_nothing(protocol: int) -> None:
    with pytest.raises(Damaged, match=r"system.*may be hostile|instruction"):
        unpickled(pickle.dumps(Evil(), protocol), ENCODING)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x00xR.", "builtins.eval"),
        (b"\x8c\x08builtins\x8c\x04exec\x93.", "builtins.exec"),
        (b"(\x8c\x02os\x93.", "a name that is none"),
        (b"))\x93.", "a name that is none"),
        (b"(ios\nsystem\n.", "instruction"),
        (b"\x82\x01.", "instruction"),
        (b"}}}\x92.", "instruction"),
        (b"K\x01)R.", "calls what cannot be called"),
        (b"K\x01}b.", "gives a state"),
        (b"]K\x01K\x02s.", "sets items"),
        (b"}K\x01a.", "no list"),
        (b"}(K\x01u.", "sets items"),
        (b"}))s.", "neither text nor a number"),
        (b"}(K\x01K\x02", "too early"),
        (b"X\xff\xff\xff\xff.", "too early"),
        (b"\x8e" + b"\xff" * 8 + b".", "too early"),
        (b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.", "too early"),
        (b"\x8a\xff.", "too early"),
        (b"h\x07.", "damaged"),
        (b"j\xff\xff\xff\x7f.", "damaged"),
        (b".", "damaged"),
        (b"t.", "damaged"),
        (b"\x87.", "damaged"),
        (b"X\x01\x00\x00\x00\xff.", "damaged"),
        (b"c\xff\n\n.", "damaged"),
        (b"K\x01K\x02.", "damaged"),
        (b"", "too early"),
    ],
)
def test_damaged_pickles(data: bytes, named: str) -> None:
    with pytest.raises(Damaged, match=named):
        unpickled(data, ENCODING)


def test_a_pickle_cannot_grow_beyond_its_size(tmp_path: Path) -> None:
    """Tuples of themselves, forty deep: as a tree they would have 2^40 leaves. And a place in the memo far away."""
    nested = b")" + b"q\x00h\x00\x86" * 40 + b"r\xff\xff\xff\x7f"
    assert isinstance(unpickled(nested + b".", ENCODING), tuple)
    for data in (
        nested + b"\x8c\x01x\x93.",
        b"}" + nested + b"K\x01s.",
        b"ctiktoken.core\nEncoding\n" + nested + b"\x81.",
    ):
        made: Any = None
        try:
            made = unpickled(data, ENCODING)
        except Damaged as damage:
            assert len(str(damage)) < 300
        assert made is None or isinstance(made, Made)
    deep = encoding({}, {})[:-2] + b"\x8c\x07pat_str" + b")" + b"\x85" * 200_000 + b"sb."
    refused(tmp_path, "tokenizer.pkl", deep)


@given(st.binary(max_size=60))
def test_any_bytes(data: bytes) -> None:
    try:
        unpickled(data, ENCODING)
    except Damaged as damage:
        assert "\n" not in str(damage)


# --- torch's file ----------------------------------------------------------------------------------------------------


def opened(folder: Path, data: bytes) -> Any:
    MADE["save_torch"](folder, SMALL)
    (folder / "model_000001.pt").write_bytes(data)
    return open_folder(folder)


def pickled(*items: bytes) -> bytes:
    made: bytes = MADE["torch_file"](SMALL, b"\x80\x02}(" + b"".join(items) + b"u.")
    return made


text, tensor = MADE["text"], MADE["tensor"]


@pytest.mark.parametrize(
    ("item", "named"),
    [
        (tensor("0", (4, 4), (4, 1), 16), "beyond its storage"),  # of 12 bytes
        (tensor("1", (4, 4), (4, 1), 16, offset=1), "beyond its storage"),
        (tensor("1", (4, 4), (1 << 30, 1), 16), "beyond its storage"),
        (tensor("1", (2**31 - 1,) * 3, (0, 0, 0), 16), "repeats its elements"),
        (tensor("1", (4, 4), (-4, 1), 16), "no shape"),
        (tensor("1", (-4, 4), (4, 1), 16), "no shape"),
        (tensor("1", (4, 4), (4,), 16), "no shape"),
        (tensor("1", (0, 4), (4, 1), 16), "which is none"),
        (tensor("1", (1,) * 9, (1,) * 9, 16), "which is none"),
        (tensor("1", (4, 4), (4, 1), 16, offset=-1), "beyond its storage"),
        (tensor("7", (4, 4), (4, 1), 16), "not there"),
        (tensor("../0", (4, 4), (4, 1), 16), "not there"),
        (tensor("1", (4, 4), (4, 1), 16, kind="ByteStorage"), "torch.ByteStorage"),
        (b"K\x01", "no tensor"),
        (b"}", "no tensor"),
    ],
)
def test_damaged_tensors(tmp_path: Path, item: bytes, named: str) -> None:
    with pytest.raises(LmhubError, match=named) as refusal:
        opened(tmp_path, pickled(text("x"), item))
    assert "model_000001.pt" in str(refusal.value) and "\n" not in str(refusal.value)


def sound() -> bytes:
    made: bytes = MADE["torch_file"](MADE["weights"]())
    return made


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda data: b"", "empty"),
        (lambda data: data[:100], "damaged or cut off"),
        (lambda data: data[:-1], "damaged or cut off"),
        (lambda data: data[: len(data) // 2], "damaged or cut off"),
        (lambda data: b"\x80\x02" + data, "before 1.6"),
        (lambda data: pickle.dumps(0x1950A86A20F9469CFC6C, 2), "before 1.6"),
        (lambda data: data.replace(b"little", b"bigbig"), "big-endian"),
        (lambda data: data.replace(b"data.pkl", b"data.xyz"), "without a pickle"),
        (lambda data: data.replace(b"PK\x03\x04", b"PK\x03\x05"), "beyond the file"),
        (lambda data: data.replace(b"OrderedDict", b"defaultdict"), "collections.defaultdict"),
    ],
)
def test_damaged_files_of_torch(tmp_path: Path, change: Callable[[bytes], bytes], named: str) -> None:
    with pytest.raises(LmhubError, match=named) as refusal:
        opened(tmp_path, change(sound()))
    assert "\n" not in str(refusal.value)


def test_any_damage_to_torch_s_file(tmp_path: Path) -> None:
    """Refused in one sentence, or harmless: whatever is opened lies within the file."""
    data, rng, n_opened = sound(), random.Random(1), 0
    directory = data.index(b"PK\x01\x02")
    head = [*range(data.index(b"PK\x03\x04", 4))]  # the pickle
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 2)):
            at = rng.choice(head) if rng.random() < 0.6 else rng.randrange(directory, len(data))
            changed[at] = rng.randrange(256)
        try:
            file = opened(tmp_path, bytes(changed))
        except LmhubError as error:
            assert "\n" not in str(error)
            continue
        n_opened += 1
        assert all(len(one.data) == one.nbytes for one in file.tensors.values())
        file.close()
    assert 10 < n_opened < 190


# --- tokenizers ------------------------------------------------------------------------------------------------------


def test_all_tokenizers_say_the_same(tmp_path: Path) -> None:
    """tokenizer.bin and tokenizer.pkl of one vocabulary; of the ranks, the merges that made them are found again."""
    (tmp_path / "tokenizer.bin").write_bytes(MADE["tokenizer_bin"]())
    found = read_vocabulary([tmp_path])
    (tmp_path / "tokenizer.bin").unlink()
    (tmp_path / "tokenizer.pkl").write_bytes(encoding(*words()))
    assert read_vocabulary([tmp_path]) == found


def test_merges_are_those_of_merging_by_rank(tmp_path: Path) -> None:
    """Against the plain rule, on random words: as long as two neighbours are a token, join those of the lowest rank."""
    rng = random.Random(2)
    tokens = spelled([])
    while len(tokens) < 400:
        joined = rng.choice(tokens[97:100] + tokens[256:]) + rng.choice(tokens[97:100] + tokens[256:])
        if joined not in tokens and len(joined) < 9:
            ranks = {token: i for i, token in enumerate(tokens)}
            if len(by_rank(joined, ranks)) == 2:
                tokens.append(joined)
    ranks = {token: i for i, token in enumerate(tokens)}
    special = {t: len(tokens) + i for i, t in enumerate(MADE["SPECIALS"])}
    assert [tokens[left] + tokens[right] for left, right in pairs_of(tokens)] == tokens[256:]
    (tmp_path / "tokenizer.pkl").write_bytes(encoding(ranks, special))
    tokenizer = load_tokenizer(read_vocabulary([tmp_path]))
    n_equal = 0
    for _ in range(500):
        word = "".join(rng.choices("abc", k=rng.randint(1, 12)))
        n_equal += tokenizer.encode(word) == [ranks[part] for part in by_rank(word.encode(), ranks)]
    assert n_equal == 500


def by_rank(word: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    parts = [word[i : i + 1] for i in range(len(word))]
    while len(parts) > 1:
        found = [(ranks[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not found:
            break
        at = min(found)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def refused(folder: Path, name: str, data: bytes) -> str:
    (folder / name).write_bytes(data)
    with pytest.raises(LmhubError) as refusal:
        read_vocabulary([folder])
    assert name in str(refusal.value) and "\n" not in str(refusal.value)
    return str(refusal.value)


def test_every_beginning_of_a_tokenizer_bin_is_refused(tmp_path: Path) -> None:
    data = MADE["tokenizer_bin"]()
    for n in range(len(data)):
        refused(tmp_path, "tokenizer.bin", data[:n])
    refused(tmp_path, "tokenizer.bin", data + b"\0")


def test_a_merge_that_doubles_its_token_again_and_again(tmp_path: Path) -> None:
    """Sixty merges would make a token of 2^60 bytes."""
    data = b"NCTOKz01" + struct.pack("<4I", 1, 256 + 60, 60, 0)
    data += b"".join(struct.pack("<II", max(255 + i, 97), max(255 + i, 97)) for i in range(60))
    assert "more than 4096 bytes" in refused(tmp_path, "tokenizer.bin", data)
    refused(tmp_path, "tokenizer.bin", b"NCTOKz01" + struct.pack("<4I", 1, 1 << 31, 1 << 31, 0))


@pytest.mark.parametrize(
    "change",
    [
        lambda ranks, special: (ranks, special, r"\w+"),
        lambda ranks, special: (ranks, special, 7),
        lambda ranks, special: ({}, special),
        lambda ranks, special: (7, special),
        lambda ranks, special: ({**ranks, b"zz": 1 << 40}, special),
        lambda ranks, special: ({**ranks, b"he": "x"}, special),
        lambda ranks, special: ({**ranks, "text": len(ranks)}, special),
        lambda ranks, special: ({**ranks, b"q" * 5000: len(ranks)}, special),
        lambda ranks, special: ({**ranks, b"xyz": len(ranks)}, {t: i + 1 for t, i in special.items()}),
        lambda ranks, special: (ranks, {**special, "<|bos|>": 3}),
        lambda ranks, special: (ranks, {t.upper(): i for t, i in special.items()}),
        lambda ranks, special: (ranks, {t.encode(): i for t, i in special.items()}),
        lambda ranks, special: ({bytes((i ^ 1,)) if i < 256 else t: i for t, i in ranks.items()}, special),
    ],
)
def test_damaged_tokenizer_pickles(tmp_path: Path, change: Callable[..., Any]) -> None:
    refused(tmp_path, "tokenizer.pkl", encoding(*change(*words())))


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"{}",
        b'{"model": {"type": "WordPiece"}, "added_tokens": []}',
        b'{"model": {"type": "BPE"}, "added_tokens": [], "pre_tokenizer": {"pattern": {"Regex": "x"}}}',
        b'{"a": 1' * 1000,
    ],
)
def test_damaged_tokenizer_json(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, "tokenizer.json", data)
