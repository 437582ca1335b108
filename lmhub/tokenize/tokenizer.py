"""Text to token ids and back, for a whole file: special tokens, ordinary text, segments, pieces.

The rule that everything here serves: client text never becomes a special token. Special tokens are recognised only in
text that the caller marks as markup; how the rest is cut is the business of an `Encoder` (`bpe.py`, `spm.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Protocol

from lmhub.errors import ModelFileError, RequestError, UnsupportedModel, quoted
from lmhub.tokenize.pieces import BLANK, Pieces, blank_pieces, byte_level_pieces
from lmhub.tokenize.pretokenize import pre_tokenizer
from lmhub.tokenize.specials import Splitter
from lmhub.tokenize.spm import Scored
from lmhub.tokenize.vocabulary import SPECIAL, TokenType, Vocabulary, read_floats, read_strings, read_text

# HTML elements that Gemma 3 has as user-defined tokens. Like runs of blanks they are shorthand for ordinary text and
# mean nothing to a chat template, so that they are recognised everywhere, as in training.
_SHORTHAND = re.compile(
    rf"[ \t\r\n{BLANK}]+|</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|b|i|u|s|sub|sup|code"
    r"|a|html|body|img|span|bbox|ul|li|div|iframe|footer)>"
)
_KNOWN_MODELS = ("gpt2", "llama", "gemma4")


class Encoder(Protocol):
    """Cuts ordinary text into token ids; special tokens do not exist for it. Knows the ids of ordinary tokens."""

    def encode(self, text: str) -> list[int]: ...

    def token_id(self, text: str) -> int | None: ...


class Tokenizer:
    """The tokens of one model file.

    `n_vocab`: size of the token list. `bos_id`, `eos_id`: None if the file names none. `eog`: ids that end a reply.
    `add_bos`: whether a prompt begins with `bos_id`. `specials`: the texts of control and user-defined tokens, which
    client text could imitate. `suppressed`: ids that must never be sampled.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoder,
        pieces: Pieces,
        *,
        add_bos: bool,
        space_prefix: bool = False,
    ):
        self.n_vocab = vocabulary.n_vocab
        self.bos_id = vocabulary.bos_id
        self.eos_id = vocabulary.eos_id
        self.eog = vocabulary.eog
        self.add_bos = add_bos and vocabulary.bos_id is not None
        self.suppressed = vocabulary.suppressed
        self._texts, self._types = vocabulary.tokens, vocabulary.types
        self._encoder = encoder
        self._pieces = pieces
        self._prefix = " " if space_prefix else ""
        special = vocabulary.of_type(*SPECIAL)
        self._others = special | vocabulary.of_type(TokenType.BYTE)
        defined = {text: i for text, i in special.items() if vocabulary.types[i] == TokenType.USER_DEFINED}
        shorthand = {text: i for text, i in defined.items() if _SHORTHAND.fullmatch(text)}
        markup = {text: i for text, i in special.items() if text not in shorthand}
        blanks = {text.replace(BLANK, " "): i for text, i in shorthand.items()}  # files spell them either way
        self.specials: tuple[str, ...] = tuple(markup)
        self._markup = Splitter(markup)
        self._shorthand = Splitter(blanks)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`, without BOS. `special=True`: texts of special tokens become these tokens.

        Raises RequestError if the text is not valid Unicode (a lone surrogate).
        """
        return self.encode_segments(((text, special),))

    def encode_continuation(self, text: str) -> list[int]:
        """Token ids of ordinary `text` in the middle of a reply: no blank is put before it. Raises as `encode`."""
        return self._encode_ordinary(text, prefix="")

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Token ids of `(text, is_markup)` segments, without BOS. Special tokens are recognised in markup only.

        Ordinary text is joined across segments before it is cut, so that harmless content gives exactly the ids that
        the whole string would give. A special token never spans markup and client text. Raises RequestError as above.
        """
        ids: list[int] = []
        waiting: list[str] = []
        for is_markup, run in groupby(segments, key=lambda segment: bool(segment[1])):
            text = "".join(part for part, _ in run)
            for item in self._markup.split(text) if is_markup else (text,):
                if isinstance(item, str):
                    waiting.append(item)
                else:
                    ids += self._encode_ordinary("".join(waiting))
                    waiting.clear()
                    ids.append(item)
        ids += self._encode_ordinary("".join(waiting))
        return ids

    def _encode_ordinary(self, text: str, prefix: str | None = None) -> list[int]:
        if not text:
            return []
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = ord(text[error.start])
            raise RequestError(f"The text holds U+{code:04X}, half of a surrogate pair, not a character.") from None
        ids: list[int] = []
        for item in self._shorthand.split((self._prefix if prefix is None else prefix) + text):
            if isinstance(item, str):
                ids += self._encoder.encode(item)
            else:
                ids.append(item)
        return ids

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        """`ids` behind one BOS if this model wants it; a template may have written it already."""
        if not self.add_bos or self.bos_id is None or (ids and ids[0] == self.bos_id):
            return list(ids)
        return [self.bos_id, *ids]

    def piece(self, token: int) -> bytes:
        """The bytes that a token adds to a reply: none for control and unused ones. IndexError from n_vocab on."""
        return self._pieces[token]

    def token_text(self, token: int) -> str:
        """The vocabulary's own spelling of a token. IndexError from n_vocab on."""
        return self._texts[token]

    def token_id(self, text: str) -> int | None:
        """The id of the token that the vocabulary spells like this, None if there is none."""
        found = self._others.get(text)
        return self._encoder.token_id(text) if found is None else found

    def is_control(self, token: int) -> bool:
        """Whether a token is a mark for machines (control, unknown, unused) and never shown."""
        return self._types[token] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of `ids`, invalid UTF-8 replaced; `special=True` shows control tokens by their texts.

        Undoes the blank that `encode` puts before text for some models, so that the two are inverse. A reply has no
        such blank: it is decoded by `piece` and `Utf8Stream`.
        """
        shown = [
            self.token_text(token).encode() if special and self.is_control(token) else self._pieces[token]
            for token in ids
        ]
        return b"".join(shown).decode("utf-8", "replace").removeprefix(self._prefix)


def load_tokenizer(metadata: Mapping[str, Any], *, normalize: bool = True) -> Tokenizer:
    """The tokenizer that a file's metadata (`tokenizer.ggml.*`) describes.

    `normalize=False` leaves out the Unicode normal form C that some models (Qwen) are trained with, as llama.cpp does:
    only decomposed text has other ids then.

    Raises UnsupportedModel for a tokenizer model that is not known, ModelFileError for damaged metadata.
    """
    model = read_text(metadata, "tokenizer.ggml.model")
    if not model:
        raise ModelFileError("tokenizer.ggml.model is missing: the file carries no tokenizer; convert it again.")
    if model not in _KNOWN_MODELS:
        known = ", ".join(_KNOWN_MODELS)
        raise UnsupportedModel(f"The tokenizer model {quoted(model)} is not supported; known are {known}.")
    if model == "llama" and metadata.get("tokenizer.ggml.pre") == "gemma4":
        model = "gemma4"  # some converters keep SentencePiece's name
    vocabulary = Vocabulary.from_metadata(metadata, model)
    if model == "gpt2":
        return _load_byte_level(metadata, vocabulary, normalize)
    return _load_ranked(metadata, vocabulary) if model == "gemma4" else _load_scored(metadata, vocabulary)


def _load_byte_level(metadata: Mapping[str, Any], vocabulary: Vocabulary, normalize: bool) -> Tokenizer:
    from lmhub.tokenize.bpe import ByteLevel

    pre = pre_tokenizer(vocabulary.pre)
    merges = read_strings(metadata, "tokenizer.ggml.merges")
    encoder = ByteLevel(vocabulary, merges, pre if normalize else replace(pre, nfc=False))
    pieces = byte_level_pieces(vocabulary)
    return Tokenizer(vocabulary, encoder, pieces, add_bos=_read_flag(metadata, "add_bos_token", pre.add_bos))


def _load_ranked(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Tokenizer:
    from lmhub.tokenize.bpe import Ranked

    encoder = Ranked(vocabulary, read_strings(metadata, "tokenizer.ggml.merges"))
    # These models degenerate without BOS, and some of their files deny it.
    return Tokenizer(vocabulary, encoder, blank_pieces(vocabulary), add_bos=True)


def _load_scored(metadata: Mapping[str, Any], vocabulary: Vocabulary) -> Tokenizer:
    encoder = Scored(vocabulary, read_floats(metadata, "tokenizer.ggml.scores", vocabulary.n_vocab))
    return Tokenizer(
        vocabulary,
        encoder,
        blank_pieces(vocabulary),
        add_bos=_read_flag(metadata, "add_bos_token", True),
        space_prefix=_read_flag(metadata, "add_space_prefix", True),
    )


def _read_flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, int):
        raise ModelFileError(f"tokenizer.ggml.{name} must be true or false, not {type(value).__name__}.")
    return bool(value)
