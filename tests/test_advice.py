"""The sampling that a model is served with where a request says nothing: its family's advice, and its file's."""

from __future__ import annotations

from typing import Any

import pytest

from lmhub.advice import default_sampling
from lmhub.family import Advice, Family
from lmhub.types import SamplingParams

PLAIN, REASONING = {"temperature": 0.7, "top_k": 20, "top_p": 0.8}, {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
SMALL = {"temperature": 1.0, "presence_penalty": 2.0}
FAMILY = Family(
    "f",
    ("f",),
    "m:load",
    sampling=(
        Advice(SMALL, names=r"\b2b\b", reasons=False),
        Advice(REASONING, reasons=True),
        Advice(PLAIN),
    ),
)


def defaults(given: dict[str, float], family: Family = FAMILY, **names: Any) -> tuple[SamplingParams, SamplingParams]:
    metadata = {f"general.sampling.{key}": value for key, value in given.items()}
    return default_sampling(family, metadata | {f"general.{key}": value for key, value in names.items()})


def test_without_a_word_of_the_file_the_family_advises() -> None:
    assert defaults({}) == (SamplingParams(**PLAIN), SamplingParams(**REASONING))
    assert defaults({}, Family("f", ("f",), "m:load", sampling=PLAIN)) == (SamplingParams(**PLAIN),) * 2
    assert defaults({}, Family("f", ("f",), "m:load")) == (SamplingParams(),) * 2


@pytest.mark.parametrize("names", [{"name": "Some-2B"}, {"size_label": "2B"}, {"basename": "x 2b x", "name": 5}])
def test_the_names_in_the_file_decide(names: dict[str, Any]) -> None:
    assert defaults({}, **names) == (SamplingParams(**SMALL), SamplingParams(**REASONING))
    assert defaults({}, name="Some-32B") == defaults({})


def test_a_file_that_repeats_the_advice_for_the_one_says_nothing_about_the_other() -> None:
    """As a reader finds it: 32-bit numbers, whole ones among them."""
    for given in ({"temp": 0.6000000238418579, "top_p": 0.949999988079071, "top_k": 20}, {"top_k": 20.0}):
        assert defaults(given) == defaults({})


def test_what_a_file_says_otherwise_holds_for_both() -> None:
    plain, reasoning = defaults({"temp": 0.3, "top_k": 20})
    assert (plain, reasoning) == (
        SamplingParams(**{**PLAIN, "temperature": 0.3}),
        SamplingParams(**{**REASONING, "temperature": 0.3}),
    )
    assert defaults({"temp": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.05})[0].temperature == 0.6
    assert isinstance(plain.top_k, int) and isinstance(defaults({"temp": 1})[0].temperature, float)
