"""The penalty window against counting from scratch."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.engine.penalties import PenaltyWindow, penalises
from lmhub.types import SamplingParams

TOKENS = st.lists(st.integers(0, 5), max_size=30)


@given(st.integers(1, 8) | st.just(-1), TOKENS.filter(bool), TOKENS)
def test_counts_are_those_of_the_window(last_n: int, prompt: list[int], reply: list[int]) -> None:
    window = PenaltyWindow(SamplingParams(repeat_penalty=1.1, repeat_last_n=last_n), tuple(prompt), len(reply))
    for n in range(len(reply) + 1):
        history = prompt + reply[:n]
        ids, counts = window.arrays()
        assert dict(zip(ids.tolist(), counts.tolist(), strict=True)) == Counter(
            history if last_n < 0 else history[-last_n:]
        )
        assert ids.dtype == counts.dtype == "int32"
        if n < len(reply):
            window.push(reply[n])


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), False),
        (SamplingParams(repeat_penalty=1.1), True),
        (SamplingParams(presence_penalty=0.5), True),
        (SamplingParams(frequency_penalty=-0.5), True),
        (SamplingParams(repeat_penalty=1.1, repeat_last_n=0), False),
    ],
)
def test_a_neutral_request_counts_nothing(params: SamplingParams, expected: bool) -> None:
    window = PenaltyWindow(params, (1, 2, 2), 5)
    window.push(3)
    assert penalises(params) is expected
    assert window.arrays()[0].size == (3 if expected else 0)
