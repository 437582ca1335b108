"""Speculation as a stepper sees it: a draft for each stream before a step, and what really came of it afterwards.

    index -> speculator.open() -> Drafting.prompted() ... [speculator.plan() -> step -> Drafting.committed()] ...

A draft is a guess; the stepper samples every row as it would without it and keeps what is equal, so nothing here can
change a reply. Knows no model, no clock and no sampling. One thread, the engine's, uses all of it.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from lmhub.engine.drafts.cascade import Cascade, Guess
from lmhub.engine.drafts.costs import CostCurve
from lmhub.engine.drafts.gate import DEFAULT, Gate, GateOptions
from lmhub.engine.drafts.grants import Bid, grant, share_of_cost
from lmhub.engine.drafts.index import DraftIndex, Reference
from lmhub.engine.drafts.odds import Odds
from lmhub.engine.drafts.recycling import Recycling
from lmhub.types import Constraint

LONG_MATCH = 12  # tokens; a copy of that length is tried although the gate is off
MAX_FORCED = 32  # tokens in one step of what a grammar forces; each has a row of logits, which takes memory
CERTAIN = 0.99  # no guess is better than that
NO_LIMIT = 1 << 30
Draft = tuple[int, ...]


class _Region:
    """What is known about guessing inside, or outside, of a stream's reasoning."""

    def __init__(self, options: GateOptions, prior: Odds):
        self.gate, self.odds = Gate(options), Odds(prior)


class Drafting:
    """One running stream. `n_drafted` tokens were guessed, `n_accepted` of them rightly; forced ones are in neither."""

    def __init__(self, index: DraftIndex, cascade: Cascade, regions: tuple[_Region, _Region]):
        self.index = index
        self.n_drafted = self.n_accepted = 0
        self._cascade = cascade
        self._regions = regions  # outside, inside of the reasoning
        self._region = regions[0]
        self._draft: Draft = ()  # of the step that is running
        self._cost = 1.0  # what it pays for it, in plain steps

    def prompted(self, tokens: Sequence[int]) -> None:
        """`tokens` of the prompt are being read; to be called for all of them behind those that `open` was given."""
        self._cascade.prompted(tokens)

    def committed(self, tokens: Sequence[int], n_offered: int) -> None:
        """A step made `tokens` final, after `n_offered` tokens of the planned draft had gone along.

        Tokens that a stop string or a budget cut off are not committed.
        """
        n_drafted = len(self._draft[:n_offered])
        self._draft = ()
        self._cascade.truncate_pending(n_drafted)
        settled = self._cascade.observe(tokens)
        if settled is not None:
            self._settle(*settled, n_committed=len(tokens))

    def _settle(self, guess: Guess, accepted: int, n_committed: int) -> None:
        n_drafted = len(guess.tokens)
        failed = accepted < min(n_drafted, n_committed)  # behind what was committed nothing has been found wrong
        self._region.odds.settle(guess.kind, accepted, failed)
        self._region.gate.record(n_committed, accepted, n_drafted, self._cost)
        self.n_drafted += n_drafted
        self.n_accepted += accepted

    # --- for the Speculator ------------------------------------------------------------------------------------------

    def begin(self, in_reasoning: bool) -> None:
        """A step is being planned; nothing is guessed yet."""
        self._region = self._regions[in_reasoning]
        self._cascade.truncate_pending(0)
        self._draft = ()

    def guess(self, seat: Seat) -> Guess | None:
        """A draft that is worth bidding for."""
        gate = self._region.gate
        if gate.state == "off" and self._cascade.match >= LONG_MATCH:
            gate.wake()
        guess = self._cascade.suggest(min(gate.budget(), seat.room), seat.in_reasoning)
        if guess is None:
            return None
        n = next((at for at, token in enumerate(guess.tokens) if token in seat.eog), len(guess.tokens))
        if n and seat.constraint is not None:
            n = seat.constraint.accepts(guess.tokens[:n])
        return self._cascade.truncate_pending(n)

    def bid(self, guess: Guess) -> Bid:
        """What is offered to the step. A kind that nobody has tried for long gets one token in."""
        odds = self._region.odds
        return Bid(1, CERTAIN) if odds.is_due(guess.kind) else Bid(len(guess.tokens), min(odds[guess.kind], CERTAIN))

    def take(self, guess: Guess, n: int, cost: float) -> Draft:
        """The first `n` tokens of `guess` go along in this step, for `cost` plain steps; 0: it was not worth it."""
        if not n:
            self._region.odds.deny(guess.kind)
        self._cascade.truncate_pending(n)
        self._draft, self._cost = guess.tokens[:n], cost
        return self._draft

    def force(self, tokens: Draft) -> Draft:
        """`tokens` go along because nothing else may follow. No account is kept of them."""
        self._draft = tokens
        return tokens


@dataclass(frozen=True, slots=True)
class Seat:
    """A stream in a step that is being planned; None as `drafting`: it takes no drafts.

    `room` is how many tokens may be drafted: positions of its state and tokens of its budget, both less the one that a
    step brings in any case. A draft stops before a token of `eog`, and where `constraint` does not let it go on.
    """

    drafting: Drafting | None
    room: int
    in_reasoning: bool = False
    constraint: Constraint | None = None
    eog: Set[int] = frozenset()


class Speculator:
    """What the streams of one engine share: recycled successors, the odds of guesses, and what steps cost."""

    def __init__(self, n_vocab: int, options: GateOptions = DEFAULT):
        self.curve = CostCurve()
        self._n_vocab, self._options = n_vocab, options
        self._recycling = Recycling(n_vocab)
        self._odds = tuple(Odds(keep=0.98, weight=4.0) for _ in range(2))  # outside, inside of reasoning

    @property
    def nbytes(self) -> int:
        """Memory of what is shared."""
        return self._recycling.nbytes

    def new_index(self) -> DraftIndex:
        """An index for a place where conversations will run."""
        return DraftIndex(self._n_vocab)

    def open(
        self,
        index: DraftIndex,
        kept: Sequence[int] = (),
        n_known: int | None = None,
        references: Sequence[Reference] = (),
    ) -> Drafting:
        """A new stream on the place of `index`, which begins with the tokens `kept` that need not be read again.

        The first `n_known` of them (None: all) have been fed to this index before, by whoever ran there.
        """
        index.resync(kept, n_known)
        cascade = Cascade(index, self._recycling, references)
        outside, inside = (_Region(self._options, odds) for odds in self._odds)
        return Drafting(index, cascade, (outside, inside))

    def plan(
        self,
        seats: Sequence[Seat],
        n_other_rows: int = 0,
        row_limit: int = NO_LIMIT,
        within_s: float = float("inf"),
    ) -> list[Draft]:
        """The draft of every decoding stream for the next step; () for a plain one.

        The step has a row for each seat and `n_other_rows`, of prompts for instance; it may grow to `row_limit` rows
        and to `within_s` seconds.
        """
        drafts: list[Draft] = [()] * len(seats)
        n_rows = len(seats) + n_other_rows
        bids: list[tuple[int, Drafting, Guess]] = []
        for place, seat in enumerate(seats):
            drafting = seat.drafting
            if drafting is None:
                continue
            drafting.begin(seat.in_reasoning)
            if seat.room < 1:
                continue
            forced = self._forced(seat, row_limit - n_rows)
            if forced:
                drafts[place] = drafting.force(forced)
                n_rows += len(forced)
            elif n_rows < row_limit and (guess := drafting.guess(seat)) is not None:
                bids.append((place, drafting, guess))
        if bids:
            self._deal(bids, drafts, len(seats), n_rows, row_limit, within_s)
        return drafts

    @staticmethod
    def _forced(seat: Seat, n: int) -> Draft:
        if seat.constraint is None or n < 1:
            return ()
        forced = tuple(seat.constraint.forced()[: min(seat.room, n, MAX_FORCED)])
        return forced[: next((at for at, token in enumerate(forced) if token in seat.eog), len(forced))]

    def _deal(
        self,
        bids: Sequence[tuple[int, Drafting, Guess]],
        drafts: list[Draft],
        n_streams: int,
        n_rows: int,
        row_limit: int,
        within_s: float,
    ) -> None:
        offers = [drafting.bid(guess) for _, drafting, guess in bids]
        granted = grant(offers, self.curve, n_streams, n_rows, row_limit, within_s)
        n_after = n_rows + sum(granted)
        for (place, drafting, guess), n in zip(bids, granted, strict=True):
            cost = share_of_cost(self.curve, n_rows, n_after, n_streams, n)
            drafts[place] = drafting.take(guess, n, cost)

    def stepped(self, n_rows: int, seconds: float) -> None:
        """A step with `n_rows` rows of replies and none of prompts took `seconds`, sampling included."""
        self.curve.observe(n_rows, seconds)
