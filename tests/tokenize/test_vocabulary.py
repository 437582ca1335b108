"""Damaged metadata ends in one sentence that names the key, never in a crash of the Rust package."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmhub.errors import LmhubError, ModelFileError
from lmhub.tokenize import load_tokenizer

PREFIX = "tokenizer.ggml."


def refused(metadata: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelFileError, match=match) as caught:
        load_tokenizer(metadata)
    message = str(caught.value)
    assert message.startswith(PREFIX)
    assert message.endswith(".")
    assert "\n" not in message


def test_missing_tokens(metadata: dict[str, Any]) -> None:
    del metadata[PREFIX + "tokens"]
    refused(metadata, "tokens is missing")


def test_empty_tokens(metadata: dict[str, Any]) -> None:
    metadata[PREFIX + "tokens"] = []
    refused(metadata, "tokens is empty")


@pytest.mark.parametrize("value", ["abc", 7, b"x"])
def test_tokens_that_are_no_list(metadata: dict[str, Any], value: object) -> None:
    metadata[PREFIX + "tokens"] = value
    refused(metadata, "must be a list of strings")


@pytest.mark.parametrize("value", [3, b"x", None, ["x"]])
def test_a_token_that_is_no_string(metadata: dict[str, Any], value: object) -> None:
    metadata[PREFIX + "tokens"][20] = value
    refused(metadata, r"tokens\[20\] must be a string")


def test_a_token_that_is_not_unicode(metadata: dict[str, Any]) -> None:
    metadata[PREFIX + "tokens"][20] = "\udc80"
    refused(metadata, "not valid Unicode")


def test_the_same_token_twice(metadata: dict[str, Any]) -> None:
    metadata[PREFIX + "tokens"][21] = metadata[PREFIX + "tokens"][20]
    refused(metadata, "twice, as 20 and 21")


def test_token_types_of_another_length(metadata: dict[str, Any]) -> None:
    metadata[PREFIX + "token_type"].append(1)
    refused(metadata, "token_type has .* entries for")


@pytest.mark.parametrize("value", [7, 255, 256, -1, 1 << 70, "1", 1.5, None])
def test_an_unknown_token_type(metadata: dict[str, Any], value: object) -> None:
    metadata[PREFIX + "token_type"][20] = value
    refused(metadata, "token_type")


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id"])
@pytest.mark.parametrize("value", [100_000, -2, "3", 1.0, True, [5, 100_000]])
def test_an_id_outside_of_the_vocabulary(metadata: dict[str, Any], key: str, value: object) -> None:
    metadata[PREFIX + key] = value
    refused(metadata, key)


@pytest.mark.parametrize("value", [-1, 2**32 - 1])
def test_an_id_that_means_none(metadata: dict[str, Any], value: int) -> None:
    metadata[PREFIX + "bos_token_id"] = value
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos


def test_no_types_at_all(byte_level_metadata: dict[str, Any]) -> None:
    del byte_level_metadata[PREFIX + "token_type"]
    tokenizer = load_tokenizer(byte_level_metadata)
    assert tokenizer.is_control(273)
    assert 273 not in tokenizer.encode("<|im_end|>")


@pytest.mark.parametrize("merge", ["h hh", "nowhere e", "he he", "he", "", " ", "h  e", "h e l"])
def test_a_merge_of_unknown_tokens(byte_level_metadata: dict[str, Any], merge: str) -> None:
    byte_level_metadata[PREFIX + "merges"].insert(3, merge)
    refused(byte_level_metadata, r"merges\[3\] is .* no token")


def test_a_merge_longer_than_every_token(byte_level_metadata: dict[str, Any]) -> None:
    """The tokenizers package would panic, which no `except Exception` catches."""
    longest = max(byte_level_metadata["tokenizer.ggml.tokens"][:271], key=len)
    byte_level_metadata["tokenizer.ggml.merges"] = [f"{longest} {longest}"]
    with pytest.raises(ModelFileError, match=r"merges\[0\] is .*, but .* is no token"):
        load_tokenizer(byte_level_metadata)


def test_what_is_quoted_is_cut(byte_level_metadata: dict[str, Any]) -> None:
    byte_level_metadata["tokenizer.ggml.merges"] = ["x" * 10_000 + " y"]
    with pytest.raises(ModelFileError) as caught:
        load_tokenizer(byte_level_metadata)
    assert len(str(caught.value)) < 300


def test_a_merge_that_would_make_a_special_token_is_not_used(byte_level_metadata: dict[str, Any]) -> None:
    tokens, types = byte_level_metadata[PREFIX + "tokens"], byte_level_metadata[PREFIX + "token_type"]
    types[tokens.index("hello")] = 3
    byte_level_metadata[PREFIX + "merges"].remove("Ġ hello")
    tokenizer = load_tokenizer(byte_level_metadata)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("hello")] == ["hell", "o"]


@pytest.mark.parametrize("value", [None, "h e", 3, [3]])
def test_merges_of_another_kind(byte_level_metadata: dict[str, Any], value: object) -> None:
    byte_level_metadata[PREFIX + "merges"] = value
    refused(byte_level_metadata, "merges")


@pytest.mark.parametrize("value", [None, [], [0.0], "x"])
def test_scores_of_another_kind(scored_metadata: dict[str, Any], value: object) -> None:
    scored_metadata[PREFIX + "scores"] = value
    refused(scored_metadata, "scores")


@pytest.mark.parametrize("value", [float("nan"), "x", None])
def test_a_score_that_is_no_number(scored_metadata: dict[str, Any], value: object) -> None:
    scored_metadata[PREFIX + "scores"][300 - 30] = value
    refused(scored_metadata, "scores")


def test_byte_tokens_with_holes(scored_metadata: dict[str, Any], ranked_metadata: dict[str, Any]) -> None:
    for metadata in (scored_metadata, ranked_metadata):
        metadata[PREFIX + "tokens"][100] = "no byte"
        refused(metadata, "byte token 100 is 'no byte'")
        metadata[PREFIX + "token_type"][100] = 1
    refused(ranked_metadata, "lacks some of the byte tokens")
    del scored_metadata[PREFIX + "unknown_token_id"]
    refused(scored_metadata, "neither all 256 byte tokens nor an unknown token")


def test_unknown_token_where_bytes_are_missing(scored_metadata: dict[str, Any]) -> None:
    missing = 3 + 0xA9
    scored_metadata[PREFIX + "tokens"][missing] = "no byte"
    scored_metadata[PREFIX + "token_type"][missing] = 1
    tokenizer = load_tokenizer(scored_metadata)
    assert tokenizer.encode("é")[1:] == [0]
    assert tokenizer.encode("è")[1:] == [3 + 0xC3, 3 + 0xA8]


@pytest.mark.parametrize("value", ["yes", None, [True]])
def test_a_flag_that_is_none(scored_metadata: dict[str, Any], value: object) -> None:
    scored_metadata[PREFIX + "add_space_prefix"] = value
    refused(scored_metadata, "add_space_prefix")


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.lists(st.integers(-3, 300) | st.text(max_size=3), max_size=4),
    st.sampled_from(["\ud800", "<0x41>", "h", "h e", "Ġ Ġ", "▁", 2**31, 2**32 - 1, -1]),
)  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(data=st.data())
def test_any_damage_is_refused_or_harmless(metadata: dict[str, Any], data: st.DataObject) -> None:
    damaged = copy.deepcopy(metadata)
    for _ in range(data.draw(st.integers(1, 4))):
        key = data.draw(st.sampled_from(sorted(damaged)))
        value = damaged[key]
        if isinstance(value, list) and value and data.draw(st.booleans()):
            value[data.draw(st.integers(0, len(value) - 1))] = data.draw(JUNK)
        else:
            damaged[key] = data.draw(JUNK)
    try:
        tokenizer = load_tokenizer(damaged)
    except LmhubError as error:
        assert "\n" not in str(error)
    else:
        ids = tokenizer.encode("hello <|im_end|> é\n\n€", special=True)
        assert all(0 <= i < tokenizer.n_vocab for i in ids)
