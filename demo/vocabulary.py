"""The demo model's own byte-level BPE, and conversations as token ids.

The control tokens are the family's; ordinary text is cut by Qwen2's rule first, so that no digit joins another. Merges
are learnt from words without what stands before them, and a space joins only common words, last of all: an unknown name
is cut alike behind a space, a quote and a slash, so that copying it means writing the same tokens again.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from render import Piece

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SHOWN = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SPECIALS = (*CONTROL, *SHOWN)
_CUT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = re.compile(r"'(?:s|t|re|ve|m|ll|d)\b| ?[^\W\d_]+| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+")
_SPACE = "Ġ"  # as byte-level vocabularies write it
_SPACED_SHARE = 0.13  # of the entries: a space and a common word
_SPECIAL = re.compile("|".join(map(re.escape, SPECIALS)))

Encoded = tuple[NDArray[np.uint16], NDArray[np.bool_]]


def trained(texts: Iterable[str], size: int, names: Collection[str]) -> Tokenizer:
    """A tokenizer of `size` entries with the control tokens. `names` get no merges of their own: they are copied."""
    words = Counter(found[0] for text in texts for found in _WORD.finditer(text))
    n_spaced = int(_SPACED_SHARE * size)
    parts = _empty(models.BPE())
    parts.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS) - n_spaced,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        special_tokens=[],
    )
    bare: Counter[str] = Counter()
    for word, count in words.items():
        bare[word.removeprefix(" ") if word[-1].isalpha() else word] += count
    # Less than the counts: syllables of many rare words weigh beside a few frequent words.
    rows = ([word] * math.ceil(count**0.7) for word, count in sorted(bare.items()) if word not in names)
    parts.train_from_iterator(itertools.chain.from_iterable(rows), trainer)
    model = json.loads(parts.to_str())["model"]
    ids, merges = (
        model["vocab"],
        [tuple(one.split(" ")) if isinstance(one, str) else tuple(one) for one in model["merges"]],
    )
    common = (word[1:] for word, _ in words.most_common() if re.fullmatch(" (?:[a-z]{2,}|[aAI])", word))
    for word in itertools.islice((one for one in common if one in ids and one not in names), n_spaced):
        merges.append((_SPACE, word))
        ids[_SPACE + word] = len(ids)
    return _empty(models.BPE(ids, merges))


def _empty(model: models.BPE) -> Tokenizer:
    tokenizer = Tokenizer(model)
    cut = pre_tokenizers.Split(Regex(_CUT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


class Vocabulary:
    """Tokens, merges, and the way from pieces to ids."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        found = json.loads(tokenizer.to_str())["model"]
        self.tokens = [*sorted(found["vocab"], key=found["vocab"].__getitem__), *SPECIALS]
        self.merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in found["merges"]]
        self.ids = {text: len(found["vocab"]) + at for at, text in enumerate(SPECIALS)}

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """What `save` wrote."""
        return cls(Tokenizer.from_file(str(path)))

    def save(self, path: Path) -> None:
        """Write the tokenizer as JSON."""
        self._tokenizer.save(str(path))

    def encode(self, conversations: Sequence[Sequence[Piece]]) -> Iterator[Encoded]:
        """Ids of every conversation, and which of them are learnt.

        Text between two control tokens is cut as a whole, whatever pieces it came in, as lmhub does it.
        """
        runs = [_runs(pieces) for pieces in conversations]
        texts = [run.text for one in runs for run in one if run.text]
        cut = iter(self._tokenizer.encode_batch(texts))
        for one in runs:
            ids: list[int] = []
            learnt: list[bool] = []
            for run in one:
                if run.text:
                    encoding = next(cut)
                    ids += encoding.ids
                    learnt += run.learnt_tokens([start for start, _ in encoding.offsets])
                if run.special:
                    ids.append(self.ids[run.special])
                    learnt.append(run.special_learnt)
            yield np.array(ids, np.uint16), np.array(learnt, np.bool_)


class _Run:
    """Text up to a control token, and from which characters on it is learnt."""

    def __init__(self) -> None:
        self.text = ""
        self.special = ""
        self.special_learnt = False
        self.parts: list[tuple[int, bool, bool]] = []  # start, learnt, headless

    def learnt_tokens(self, starts: Sequence[int]) -> list[bool]:
        """For tokens that begin at these characters."""
        if len(self.parts) == 1 and not self.parts[0][2]:
            return [self.parts[0][1]] * len(starts)
        out, part = [], -1
        for start in starts:
            entered = False
            while part + 1 < len(self.parts) and self.parts[part + 1][0] <= start:
                part, entered = part + 1, True
            _, learnt, headless = self.parts[part]
            out.append(learnt and not (headless and entered))
        return out


def _runs(pieces: Sequence[Piece]) -> list[_Run]:
    runs = [_Run()]
    for piece in pieces:
        at = 0
        for found in _SPECIAL.finditer(piece.text) if piece.markup else ():
            _extend(runs[-1], piece, piece.text[at : found.start()])
            runs[-1].special, runs[-1].special_learnt = found[0], piece.learnt
            runs.append(_Run())
            at = found.end()
        _extend(runs[-1], piece, piece.text[at:])
    return runs


def _extend(run: _Run, piece: Piece, text: str) -> None:
    if text:
        run.parts.append((len(run.text), piece.learnt, piece.headless))
        run.text += text
