"""nanochat's tokenizers: the three files that hold one, as the `tokenizer.ggml.*` keys that lmhub's BPE reads.

Ids 0 to 255 are bytes, id 256 + i is the i-th merge, special tokens come last. Knows no models. The files are
untrusted: whatever a merge makes is measured before it is made.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.gguf.parse import Damaged
from lmhub.safetensors import read_json
from lmhub.tokenize import TokenType
from lmhub.tokenize.pieces import byte_alphabet
from lmhub_nanochat.pickles import Made, unpickled
from lmhub_nanochat.template import TEMPLATE

MAGIC = b"NCTOKz01"
MAX_VOCAB = 1 << 20
MAX_TOKEN = 1 << 12  # bytes
MAX_FILE = 1 << 26
BOS, END, USER = "<|bos|>", "<|assistant_end|>", "<|user_start|>"
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""How text is cut before it is merged: since the first commit, and equal to lmhub's pre-tokenizer `nanochat`."""

Pair = tuple[int, int]


def read_vocabulary(folders: Sequence[Path]) -> dict[str, Any]:
    """The tokenizer in the first of `folders` that has one, as metadata. Raises ModelFileError or UnsupportedModel."""
    readers = {"tokenizer.json": _from_json, "tokenizer.bin": _from_bin, "tokenizer.pkl": _from_pickle}
    for folder in folders:
        for name, read in readers.items():
            path = folder / name
            if path.is_file():
                try:
                    return read(path)
                except Damaged as damage:
                    raise ModelFileError(f"{name}: {damage}; copy it from the training machine again.") from None
    raise ModelFileError(
        f"{folders[0].name} has no tokenizer ({', '.join(readers)}); put the one that the model was trained with there."
    )


def read_bytes(path: Path) -> bytes:
    """A whole file of the tokenizer's. Raises Damaged."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise Damaged(f"it cannot be read ({type(error).__name__})") from None
    if len(data) > MAX_FILE:
        raise Damaged(f"it is longer than the {MAX_FILE} bytes that lmhub reads")
    return data


# --- tokenizer.bin ---------------------------------------------------------------------------------------------------


def _from_bin(path: Path) -> dict[str, Any]:
    data = read_bytes(path)
    if data[:8] != MAGIC or len(data) < 24:
        raise Damaged(f"it begins with {data[:8]!r}, not with {MAGIC!r}, or ends within its header")
    version, n_vocab, n_merges, n_special = struct.unpack_from("<4I", data, 8)
    if version != 1:
        raise Damaged(f"it has version {version}, and lmhub reads version 1")
    if n_vocab > MAX_VOCAB or n_merges * 8 > len(data) - 24:
        raise Damaged(f"it claims {n_vocab} tokens and {n_merges} merges, more than it can hold")
    merges: list[Pair] = list(struct.iter_unpack("<II", data[24 : 24 + 8 * n_merges]))
    at = 24 + 8 * n_merges
    specials: list[str] = []
    for _ in range(n_special):
        if at + 6 > len(data):
            raise Damaged("it ends within its special tokens")
        token, length = struct.unpack_from("<IH", data, at)
        if token != 256 + n_merges + len(specials) or at + 6 + length > len(data):
            raise Damaged(f"its special token {len(specials)} has the id {token}, or reaches beyond the file")
        specials.append(_text(data[at + 6 : at + 6 + length]))
        at += 6 + length
    if at != len(data) or n_vocab != 256 + n_merges + n_special:
        raise Damaged(f"it claims {n_vocab} tokens and has {256 + n_merges + n_special}, or something behind them")
    return as_metadata(spelled(merges), merges, specials)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Damaged("a special token is not UTF-8 text") from None


def spelled(merges: Sequence[Pair]) -> list[bytes]:
    """The bytes of every ordinary token. Raises Damaged for a merge of what comes later, and for tokens too long."""
    tokens = [bytes((byte,)) for byte in range(256)]
    for i, (left, right) in enumerate(merges):
        if left >= len(tokens) or right >= len(tokens):
            raise Damaged(f"its merge {i} joins {left} and {right}, of which one comes later")
        if len(tokens[left]) + len(tokens[right]) > MAX_TOKEN:
            raise Damaged(f"its merge {i} makes a token of more than {MAX_TOKEN} bytes")
        tokens.append(tokens[left] + tokens[right])
    return tokens


# --- tokenizer.pkl ---------------------------------------------------------------------------------------------------


def _from_pickle(path: Path) -> dict[str, Any]:
    found = unpickled(read_bytes(path), ("tiktoken.core.Encoding",))
    state = found.state if isinstance(found, Made) else None
    if not isinstance(state, dict):
        raise Damaged("it holds no tiktoken encoding")
    pattern, ranks, special = (state.get(key) for key in ("pat_str", "mergeable_ranks", "special_tokens"))
    if pattern != PATTERN:
        raise UnsupportedModel(f"{path.name} cuts text by another rule than nanochat's; use the model's own.")
    if not isinstance(ranks, dict) or not isinstance(special, dict) or len(ranks) + len(special) > MAX_VOCAB:
        raise Damaged("it holds no ranks and special tokens, or more than lmhub reads")
    if not all(type(token) is bytes and 0 < len(token) <= MAX_TOKEN for token in ranks):
        raise Damaged(f"it has tokens that are not 1 to {MAX_TOKEN} bytes")
    tokens = _in_order(ranks, 0)
    specials = _in_order(special, len(tokens))
    if tokens[:256] != [bytes((byte,)) for byte in range(256)] or not all(type(one) is str for one in specials):
        raise Damaged("its first 256 tokens are not the bytes, or its special tokens are no texts")
    return as_metadata(tokens, pairs_of(tokens), specials)


def _in_order(ids: Mapping[Any, Any], first: int) -> list[Any]:
    """The keys of `ids` by their values, which must be `first` and so on."""
    if not all(type(one) is int for one in ids.values()):
        raise Damaged("it has ids that are no whole numbers")
    keys = sorted(ids, key=lambda key: int(ids[key]))
    if [ids[key] for key in keys] != list(range(first, first + len(keys))):
        raise Damaged(f"its ids from {first} on have gaps")
    return keys


def pairs_of(tokens: Sequence[bytes]) -> list[Pair]:
    """The merge that made each token behind the 256 bytes: what merging by lower ranks leaves of it must be two parts.

    Raises Damaged for a token of which that cannot be said.
    """
    ranks = {token: i for i, token in enumerate(tokens)}
    pairs = []
    for rank in range(256, len(tokens)):
        parts = [bytes((byte,)) for byte in tokens[rank]]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank))
            if ranks.get(parts[best] + parts[best + 1], rank) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) != 2:
            raise Damaged(f"its token {rank} is not made of two tokens before it")
        pairs.append((ranks[parts[0]], ranks[parts[1]]))
    return pairs


# --- tokenizer.json --------------------------------------------------------------------------------------------------


def _from_json(path: Path) -> dict[str, Any]:
    found = read_json(path)
    model, added = found.get("model"), found.get("added_tokens")
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(added, list):
        raise UnsupportedModel(f"{path.name} holds no byte-level BPE; use the tokenizer of a nanochat model.")
    if PATTERN not in _patterns(found.get("pre_tokenizer")):
        raise UnsupportedModel(f"{path.name} cuts text by another rule than nanochat's; use the model's own.")
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, dict) or not isinstance(merges, list) or len(vocab) + len(added) > MAX_VOCAB:
        raise Damaged("it has no vocabulary and merges, or more than lmhub reads")
    if not all(isinstance(one, dict) and isinstance(one.get("content"), str) for one in added):
        raise Damaged("it has added tokens without a text")
    special = {one["content"]: one.get("id") for one in added}
    words = {word: token for word, token in vocab.items() if word not in special}
    latin = {char: byte for byte, char in byte_alphabet().items()}
    try:
        tokens = [bytes(latin[char] for char in word) for word in _in_order(words, 0)]
    except KeyError:
        raise Damaged("it has a token that is not spelled in bytes") from None
    ids = {token: i for i, token in enumerate(tokens)}
    return as_metadata(tokens, [_pair(one, latin, ids) for one in merges], _in_order(special, len(tokens)))


def _patterns(pre: Any) -> list[Any]:
    """The expressions of a pre-tokenizer's splits."""
    steps = pre.get("pretokenizers", [pre]) if isinstance(pre, dict) else []
    found = [step.get("pattern") for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
    return [pattern.get("Regex") for pattern in found if isinstance(pattern, dict)]


def _pair(merge: Any, latin: Mapping[str, int], ids: Mapping[bytes, int]) -> Pair:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    try:
        left, right = (ids[bytes(latin[char] for char in part)] for part in parts)
    except (KeyError, TypeError, ValueError):
        raise Damaged("one of its merges joins no two tokens") from None
    return left, right


# --- the way back ---------------------------------------------------------------------------------------------------


def as_bin(metadata: Mapping[str, Any]) -> bytes:
    """The tokenizer.bin of a vocabulary that this file has read."""
    words, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    ids = {word: i for i, word in enumerate(words)}
    specials = [i for i, kind in enumerate(kinds) if kind == TokenType.CONTROL]
    pairs = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    out = [MAGIC, struct.pack("<4I", 1, len(words), len(pairs), len(specials))]
    out += [struct.pack("<II", ids[left], ids[right]) for left, right in pairs]
    out += [struct.pack("<IH", i, len(words[i].encode())) + words[i].encode() for i in specials]
    return b"".join(out)


def as_json(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json of a vocabulary that this file has read, for the `tokenizers` package."""
    words, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": i, "content": words[i], **flags, "special": True}
        for i, kind in enumerate(kinds)
        if kind == TokenType.CONTROL
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
        "decoder": level,
        "model": {
            "type": "BPE",
            "vocab": {word: i for i, word in enumerate(words)},
            "merges": metadata["tokenizer.ggml.merges"],
            "ignore_merges": True,
        },
    }


# --- what lmhub reads ------------------------------------------------------------------------------------------------


def as_metadata(tokens: Sequence[bytes], merges: Sequence[Pair], specials: Sequence[str]) -> dict[str, Any]:
    """The tokenizer as GGUF metadata. Raises Damaged where a token that a chat needs is missing."""
    for name in (BOS, END, USER):
        if name not in specials:
            raise Damaged(f"it has no token {name}")
    letters = byte_alphabet()
    words = ["".join(letters[byte] for byte in token) for token in tokens]
    first = len(words)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "nanochat",
        "tokenizer.ggml.tokens": [*words, *specials],
        "tokenizer.ggml.token_type": [int(TokenType.NORMAL)] * first + [int(TokenType.CONTROL)] * len(specials),
        "tokenizer.ggml.merges": [f"{words[left]} {words[right]}" for left, right in merges],
        "tokenizer.ggml.bos_token_id": first + specials.index(BOS),
        "tokenizer.ggml.eos_token_id": first + specials.index(END),
        "tokenizer.ggml.eos_token_ids": [first + specials.index(name) for name in (END, BOS, USER)],
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    }
