"""The training set: numbered conversations as ids, in batches of about equal length. The same seed gives the same bits.

Conversations of like length share a batch and are padded at their ends: nothing attends to another conversation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent / "data"))

import words
from mix import conversation
from render import pieces
from vocabulary import SPECIALS, Vocabulary, trained

_CHUNK, _WINDOW, _PAD = 2000, 384, 16
_HEADER = 3  # tokens before a turn's text: <|im_start|>, role, newline
_DRILLS, _DRILL_WEIGHT = 0.08, 0.5  # share of the batches, and weight of what is learnt there
FOR_VOCABULARY = 12_000  # conversations
ASIDE, ASIDE_WEIGHT = 0.25, 0.3  # share and weight of prompt tokens that are learnt as well: prompts teach to copy


@dataclass(frozen=True, slots=True)
class Batch:
    """Ids int64 (rows, time); positions, targets and weights of the loss, of the same shape."""

    ids: NDArray[np.int64]
    positions: NDArray[np.float32]
    targets: NDArray[np.int64]
    weights: NDArray[np.float32]


class Corpus:
    """All conversations, encoded one behind the other."""

    def __init__(self, ids: NDArray[np.uint16], learnt: NDArray[np.bool_], ends: NDArray[np.int64]):
        self.ids, self.learnt, self.ends = ids, learnt, ends
        self._n_ordinary = int(ids.max()) + 1 - len(SPECIALS)

    @property
    def n_tokens(self) -> int:
        """Tokens of all conversations."""
        return len(self.ids)

    @classmethod
    def made(cls, vocabulary: Vocabulary, n_tokens: int, longest: int) -> Corpus:
        """Conversations 0, 1, 2, ... until there are `n_tokens`; those longer than `longest` are left out."""
        ids, learnt, total, seed = [], [], 0, 0
        while total < n_tokens:
            some = [pieces(conversation(seed + at)) for at in range(_CHUNK)]
            seed += _CHUNK
            for one, wanted in vocabulary.encode(some):
                if len(one) <= longest:
                    ids.append(one)
                    learnt.append(wanted)
                    total += len(one)
        ends = np.cumsum([len(one) for one in ids])
        return cls(np.concatenate(ids), np.concatenate(learnt), ends)

    def batches(self, seed: int, size: int) -> Iterator[Batch]:
        """All conversations in batches of at most `size` tokens, again and again, in another order each time."""
        rng = np.random.default_rng(seed)
        lengths = np.diff(self.ends, prepend=0)
        while True:
            for part in np.array_split(rng.permutation(len(lengths)), max(1, len(lengths) // _WINDOW)):
                groups = self._alike(part[np.argsort(lengths[part], kind="stable")], lengths, size)
                for at in rng.permutation(len(groups)):
                    while rng.random() < _DRILLS:
                        yield drill(rng, size, self._n_ordinary)
                    yield self._batch(groups[at], rng)

    @staticmethod
    def _alike(sorted_: NDArray[np.int64], lengths: NDArray[np.int64], size: int) -> list[list[int]]:
        """Conversations of about equal length together."""
        groups: list[list[int]] = [[]]
        for one in sorted_:
            width = -(-int(lengths[one]) // _PAD) * _PAD
            if groups[-1] and width * (len(groups[-1]) + 1) > size:
                groups.append([])
            groups[-1].append(int(one))
        return groups

    def _heads(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where turns begin behind their header, and what comes behind `<think>`.

        Only the newest turn tells whether there is reasoning: the template takes it out of the earlier ones.
        """
        headers = np.flatnonzero(ids == self._n_ordinary + SPECIALS.index("<|im_start|>"))
        thoughts = np.flatnonzero(ids == self._n_ordinary + SPECIALS.index("<think>"))
        heads = np.concatenate([headers + _HEADER, thoughts + 1])
        return heads[heads < len(ids)]

    def _batch(self, rows: list[int], rng: np.random.Generator) -> Batch:
        starts, ends = self.ends[rows] - np.diff(self.ends, prepend=0)[rows], self.ends[rows]
        width = -(-int((ends - starts).max()) // _PAD) * _PAD
        ids = np.zeros((len(rows), width), np.int64)
        targets = np.zeros((len(rows), width), np.int64)
        weights = np.zeros((len(rows), width), np.float32)
        positions = np.tile(np.arange(width, dtype=np.float32), (len(rows), 1))
        for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
            ids[row, : end - start] = self.ids[start:end]
            targets[row, : end - start - 1] = self.ids[start + 1 : end]
            beside = np.where(rng.random(end - start - 1) < ASIDE, ASIDE_WEIGHT, 0)
            beside[self._heads(ids[row, : end - start]) - 1] = 0
            weights[row, : end - start - 1] = np.where(self.learnt[start + 1 : end], 1, beside)
            if rng.random() < 0.3:  # as if there were much more text in between: distances of long prompts are met
                positions[row, int(rng.integers(1, end - start)) :] += rng.integers(1, 2 ** int(rng.integers(4, 15)))
        return Batch(ids, positions, targets, weights)


def drill(rng: np.random.Generator, size: int, n_ordinary: int) -> Batch:
    """Rows of tokens at random, then spans of the same tokens: what comes next can only be known by copying.

    In half of the rows the tokens are few, as syllables and digits are: there one token does not tell the next.
    """
    width = int(rng.integers(3, 13)) * _PAD
    rows = size // width
    ids = rng.integers(0, n_ordinary, (rows, width + 1))
    weights = np.zeros((rows, width + 1), np.float32)
    for row in range(rows):
        if rng.random() < 0.5:
            few = rng.integers(0, n_ordinary, int(rng.integers(12, 64)))
            ids[row] = few[rng.integers(0, len(few), width + 1)]
        n = at = int(rng.integers(width // 4, width // 2 + 1))
        while at < width + 1:
            start, length = int(rng.integers(0, n - 3)), int(rng.integers(3, 16))
            length = min(length, n - start, width + 1 - at)
            ids[row, at : at + length] = ids[row, start : start + length]
            weights[row, at + 1 : at + length] = _DRILL_WEIGHT  # where a span begins nobody can know
            at += length
    positions = np.tile(np.arange(width, dtype=np.float32), (rows, 1))
    return Batch(ids[:, :-1].copy(), positions, ids[:, 1:].copy(), weights[:, 1:].copy())


def vocabulary_of(size: int) -> Vocabulary:
    """A vocabulary of `size` entries for these conversations."""
    texts = (
        text
        for seed in range(FOR_VOCABULARY)
        for piece in pieces(conversation(seed))
        if (text := _plain(piece.text) if piece.markup else piece.text)
    )
    return Vocabulary(trained(texts, size, words.everything()))


def _plain(text: str) -> str:
    for special in SPECIALS:
        text = text.replace(special, "")
    return text
