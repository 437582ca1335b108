"""The vocabulary part of a GGUF file's metadata, checked once, so that nothing behind it has to doubt it.

Turns the `tokenizer.ggml.*` keys into a `Vocabulary`: token texts, their types, the ids that begin and end text, and
the ids that must never be sampled. Knows nothing about how text is cut into tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import compress
from math import isnan
from typing import Any

from lmhub.errors import ModelFileError, quoted


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`; the numbers are those of the file format."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Texts that end a turn wherever they are special tokens, whatever `eos_token_id` says: chat models ship with the base
# model's eos, or with one of several.
_ENDING = (
    "<|im_end|>", "<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|eot_id|>", "<|eom_id|>",
    "<|end_of_text|>", "<end_of_turn>", "<turn|>", "<|tool_response>",
)  # fmt: skip
# Gemma 4 files of the first weeks carry wrong types for these; the name decides.
_GEMMA4_CONTROL = (
    "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|think|>", "<|turn>", "<turn|>",
)  # fmt: skip
_GEMMA4_MARKERS = (
    "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|channel>", "<channel|>",
)  # fmt: skip
_NO_TOKEN = (-1, 2**32 - 1)  # how some converters write "there is none"
_FILLER = re.compile(r"\[PAD(\d+)\]")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything about the tokens of a file except how text becomes them.

    `types` holds one `TokenType` per token. `ids` maps a text to its id, without the UNUSED tokens. `model` is the
    tokenizer model that the file names, `pre` its pre-tokenizer ("" if absent).
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    types: bytes
    ids: Mapping[str, int]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog: frozenset[int]
    suppressed: frozenset[int]

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], model: str) -> Vocabulary:
        """Read and check the vocabulary. Raises ModelFileError with one sentence that names the key at fault."""
        tokens = tuple(read_strings(metadata, "tokenizer.ggml.tokens"))
        if not tokens:
            raise ModelFileError("tokenizer.ggml.tokens is empty: the file carries no vocabulary; convert it again.")
        n_vocab = len(tokens)
        types = _read_types(metadata, n_vocab)
        _mark_fillers(types, tokens)
        ids = _index(tokens, types)
        bos = _read_id(metadata, "bos_token_id", n_vocab)
        ends = [i for key in ("eos_token_id", "eos_token_ids") for i in _read_ids(metadata, key, n_vocab)]
        turn_ends = [i for key in ("eot_token_id", "eom_token_id") for i in _read_ids(metadata, key, n_vocab)]
        _repair_types(types, ids, model, [i for i in (bos, *ends, *turn_ends) if i is not None])
        named = (ids[text] for text in _ENDING if text in ids and types[ids[text]] in SPECIAL)
        suppressed = frozenset(compress(range(n_vocab), _flags(types, TokenType.UNUSED)))
        return cls(
            model=model,
            pre=read_text(metadata, "tokenizer.ggml.pre"),
            tokens=tokens,
            types=bytes(types),
            ids=ids,
            bos_id=bos,
            eos_id=ends[0] if ends else None,
            unknown_id=_read_id(metadata, "unknown_token_id", n_vocab),
            eog=frozenset((*ends, *turn_ends, *named)),
            suppressed=suppressed.union(_read_ids(metadata, "suppress_tokens", n_vocab)),
        )

    @property
    def n_vocab(self) -> int:
        return len(self.tokens)

    def of_type(self, *types: TokenType) -> dict[str, int]:
        """Text to id, of the tokens of these types."""
        return _ids(self.tokens, _flags(self.types, *types))

    def byte_values(self) -> dict[int, int]:
        """Byte value to token id, of the BYTE tokens (`<0x0A>`). Raises ModelFileError for any other spelling."""
        values = {}
        for text, i in self.of_type(TokenType.BYTE).items():
            match = _BYTE.fullmatch(text)
            if match is None:
                raise ModelFileError(
                    f"tokenizer.ggml.tokens: byte token {i} is {quoted(text)}, not of the form <0x0A>."
                )
            values[int(match[1], 16)] = i
        return values


SPECIAL = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)


def read_strings(metadata: Mapping[str, Any], key: str) -> Sequence[str]:
    """A list of strings, each of them valid Unicode. Raises ModelFileError."""
    value = metadata.get(key)
    if value is None:
        raise ModelFileError(f"{key} is missing: the file carries no complete tokenizer; convert it again.")
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ModelFileError(f"{key} must be a list of strings, not {type(value).__name__}.")
    strings = list(value)
    if not set(map(type, strings)) <= {str}:
        at = next(i for i, text in enumerate(strings) if type(text) is not str)
        raise ModelFileError(f"{key}[{at}] must be a string, not {type(strings[at]).__name__}.")
    try:
        "".join(strings).encode()
    except UnicodeEncodeError:
        raise ModelFileError(f"{key} holds text that is not valid Unicode; the file is damaged.") from None
    return strings


def read_floats(metadata: Mapping[str, Any], key: str, n: int) -> list[float]:
    """A list of `n` numbers without NaN. Raises ModelFileError."""
    try:
        values = [float(x) for x in _read_array(metadata, key, n)]
    except (TypeError, ValueError):
        raise ModelFileError(f"{key} must be a list of numbers.") from None
    if any(map(isnan, values)):
        raise ModelFileError(f"{key} holds NaN; the file is damaged.")
    return values


def _read_array(metadata: Mapping[str, Any], key: str, n: int) -> list[Any]:
    value = metadata.get(key)
    if value is None:
        raise ModelFileError(f"{key} is missing; this kind of tokenizer cannot work without it.")
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ModelFileError(f"{key} must be a list, not {type(value).__name__}.")
    values = list(value)
    if len(values) != n:
        raise ModelFileError(f"{key} has {len(values)} entries for {n} tokens; the file is damaged.")
    return values


def read_text(metadata: Mapping[str, Any], key: str) -> str:
    """A string, "" if the key is absent. Raises ModelFileError."""
    value = metadata.get(key, "")
    if not isinstance(value, str):
        raise ModelFileError(f"{key} must be a string, not {type(value).__name__}.")
    return value


def _read_types(metadata: Mapping[str, Any], n_vocab: int) -> bytearray:
    key = "tokenizer.ggml.token_type"
    if metadata.get(key) is None:  # files from before token types: everything is text, ids name the exceptions
        return bytearray([TokenType.NORMAL]) * n_vocab
    values = _read_array(metadata, key, n_vocab)
    try:
        types = bytearray(values)
    except (TypeError, ValueError):
        raise ModelFileError(f"{key} must hold numbers from 1 to 6.") from None
    if max(types) > TokenType.BYTE:
        raise ModelFileError(f"{key} holds the unknown type {max(types)}; the types are 1 to 6.")
    return types.replace(b"\0", b"\1")  # 0 is "undefined", which means ordinary text


def _read_ids(metadata: Mapping[str, Any], name: str, n_vocab: int) -> list[int]:
    """The token ids under `tokenizer.ggml.<name>`: one, a list of them, or none."""
    key = f"tokenizer.ggml.{name}"
    value = metadata.get(key)
    if value is None:
        return []
    many = isinstance(value, Iterable) and not isinstance(value, (str, bytes))
    ids = []
    for item in value if many else (value,):
        try:
            token = item.__index__()
        except AttributeError:
            raise ModelFileError(f"{key} must be a token id, not {type(item).__name__}.") from None
        if token in _NO_TOKEN:
            continue
        if isinstance(item, bool) or not 0 <= token < n_vocab:
            raise ModelFileError(f"{key} is {quoted(item)}, but the vocabulary ends at {n_vocab - 1}.")
        ids.append(token)
    return ids


def _read_id(metadata: Mapping[str, Any], name: str, n_vocab: int) -> int | None:
    ids = _read_ids(metadata, name, n_vocab)
    return ids[0] if ids else None


def _mark_fillers(types: bytearray, tokens: Sequence[str]) -> None:
    """Rows that only pad the embedding (`[PAD151935]` at 151935) become UNUSED; older files call them user-defined."""
    i = types.find(TokenType.USER_DEFINED)
    while i >= 0:
        match = _FILLER.fullmatch(tokens[i])
        if match is not None and match[1] == str(i):
            types[i] = TokenType.UNUSED
        i = types.find(TokenType.USER_DEFINED, i + 1)


def _flags(types: bytes | bytearray, *wanted: TokenType) -> bytes | bytearray:
    """A byte for each token: 1 where its type is one of these."""
    return types.translate(bytes(kind in wanted for kind in range(256)))


def _ids(tokens: Sequence[str], flags: bytes | bytearray) -> dict[str, int]:
    """Text to id, of the tokens whose flag is set."""
    return dict(zip(compress(tokens, flags), compress(range(len(tokens)), flags), strict=True))


def _index(tokens: Sequence[str], types: bytearray) -> dict[str, int]:
    unused = int(TokenType.UNUSED)
    ids = _ids(tokens, _flags(types, *(kind for kind in TokenType if kind != unused)))
    if len(ids) + types.count(unused) != len(tokens):
        text, i = next((text, i) for i, text in enumerate(tokens) if types[i] != unused and ids[text] != i)
        raise ModelFileError(
            f"tokenizer.ggml.tokens holds {quoted(text)} twice, as {i} and {ids[text]}; convert it again."
        )
    return ids


def _repair_types(types: bytearray, ids: Mapping[str, int], model: str, boundary: Sequence[int]) -> None:
    """What begins or ends text is never text itself, though files without proper types say so."""
    for i in boundary:
        if types[i] != TokenType.UNKNOWN:
            types[i] = TokenType.CONTROL
    if model == "gemma4":
        for names, kind in ((_GEMMA4_CONTROL, TokenType.CONTROL), (_GEMMA4_MARKERS, TokenType.USER_DEFINED)):
            for name in names:
                if name in ids:
                    types[ids[name]] = kind
