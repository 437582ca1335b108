"""Speculative decoding: guesses at the tokens that come next, verified in the step that would have made the first one.

`speculator.py` is what a stepper uses. `index.py` and `recycling.py` are where guesses come from, `cascade.py` picks
one, `odds.py` says how likely it is right, `costs.py` what verifying costs, `grants.py` who may, `gate.py` whether at
all.
"""

from lmhub.engine.drafts.index import DraftIndex, Reference
from lmhub.engine.drafts.speculator import Drafting, Seat, Speculator

__all__ = ["DraftIndex", "Drafting", "Reference", "Seat", "Speculator"]
