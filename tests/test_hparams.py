"""Numbers from a file are held to their ranges, and refusals name the key, the value and the range."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.gguf import open_gguf
from lmhub.gguf.writer import GGUFWriter
from lmhub.hparams import Keys


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[Any], Keys]:
    def make(value: Any) -> Keys:
        with GGUFWriter(tmp_path / "keys.gguf", "a") as out:
            if value is not None:
                out.add("a.n", value)
        return Keys(open_gguf(tmp_path / "keys.gguf"))

    return make


def test_values_in_range(keys: Callable[[Any], Keys]) -> None:
    assert keys(7).whole("n", 1, 7) == 7
    assert keys(None).whole("n", 1, 7, 3) == 3
    assert keys(2).real("n", 0.0, 2.0) == 2.0
    assert keys([1, 2, 3]).per_layer("n", 2, 1, 3) == (1, 2)
    assert keys(5).per_layer("n", 2, 1, 5) == (5, 5)
    assert keys([4, 4]).uniform("n", 2, 1, 5) == 4
    assert keys("yarn").text("n", "none") == "yarn" and keys(None).text("n", "none") == "none"
    assert "n" in keys(1) and "n" not in keys(None)


@pytest.mark.parametrize("value", [None, 0, 8, 3.0, "3", True, [3], 2**63])
def test_whole_refuses(keys: Callable[[Any], Keys], value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"a\.n"):
        keys(value).whole("n", 1, 7)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), -0.1, 1.5, "1", True])
def test_real_refuses(keys: Callable[[Any], Keys], value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"a\.n"):
        keys(value).real("n", 0.0, 1.0)


@pytest.mark.parametrize("value", [None, [1], [1, 9], [1.0, 2.0], "ab", [[1], [2]]])
def test_per_layer_refuses(keys: Callable[[Any], Keys], value: Any) -> None:
    with pytest.raises(ModelFileError, match=r"a\.n"):
        keys(value).per_layer("n", 2, 1, 5)


def test_layers_that_differ_are_unsupported(keys: Callable[[Any], Keys]) -> None:
    with pytest.raises(UnsupportedModel, match=r"a\.n differs between layers"):
        keys([1, 2]).uniform("n", 2, 1, 5)


def test_the_sentence_names_range_and_value_and_stays_short(keys: Callable[[Any], Keys]) -> None:
    with pytest.raises(ModelFileError, match="is 9, but must be a whole number from 1 to 7"):
        keys(9).whole("n", 1, 7)
    with pytest.raises(ModelFileError) as refusal:
        keys("x" * 5000).whole("n", 1, 7)
    assert len(str(refusal.value)) < 300
