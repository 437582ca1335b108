"""What callers rely on, on tiny vocabularies of every kind: round trips, segments, special tokens, pieces."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmhub.errors import ModelFileError, RequestError, UnsupportedModel
from lmhub.tokenize import Tokenizer, load_tokenizer

# Any text at all, and text that is dense in what these vocabularies know; U+2581 is a blank to two of them.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=60) | st.text(
    "helo wrd\n <>|/_12'simé€😊\u0301", max_size=60
)
MARKERS = st.sampled_from(
    ["<|im_end|>", "<|im_start|>", "<think>", "<s>", "</s>", "<tool>", "<|turn>", "<turn|>", "<bos>", "<unk>", "<pad>"]
)


def test_encode_of_known_texts(byte_level: Tokenizer, scored: Tokenizer, ranked: Tokenizer) -> None:
    texts = [byte_level.token_text(i) for i in byte_level.encode("hello hello  12's\n\n")]
    assert texts == ["hello", "Ġhello", "Ġ", "Ġ", "1", "2", "'s", "ĊĊ"]
    assert [scored.token_text(i) for i in scored.encode("hello")] == ["▁hello"]
    assert [ranked.token_text(i) for i in ranked.encode(" hello é")] == ["▁hello", "▁", "<0xC3>", "<0xA9>"]


@given(TEXT)
def test_decode_undoes_encode(tiny: Tokenizer, text: str) -> None:
    decoded = tiny.decode(tiny.encode(text))
    assert unicodedata.normalize("NFC", decoded) == unicodedata.normalize("NFC", text)


@given(TEXT)
def test_decode_undoes_encode_exactly_without_normalization(scored: Tokenizer, ranked: Tokenizer, text: str) -> None:
    assert scored.decode(scored.encode(text)) == text
    assert ranked.decode(ranked.encode(text)) == text


@given(TEXT)
def test_joined_pieces_are_the_text(byte_level: Tokenizer, text: str) -> None:
    pieces = b"".join(byte_level.piece(i) for i in byte_level.encode(text))
    assert pieces.decode() == unicodedata.normalize("NFC", text)


@given(st.lists(st.tuples(TEXT, st.booleans()), max_size=5))
def test_harmless_text_gives_the_same_ids_however_it_is_cut(tiny: Tokenizer, parts: list[tuple[str, bool]]) -> None:
    parts = [(text.replace("<", "("), flag) for text, flag in parts]
    assert tiny.encode_segments(parts) == tiny.encode("".join(text for text, _ in parts))


@given(st.lists(TEXT | MARKERS, max_size=6))
def test_client_text_never_gives_special_tokens(tiny: Tokenizer, parts: list[str]) -> None:
    ids = tiny.encode("".join(parts))
    forbidden = {tiny.token_id(text) for text in tiny.specials} | tiny.suppressed
    assert not forbidden & set(ids)


@given(st.lists(TEXT | MARKERS, max_size=4), st.integers(0, 12))
def test_markup_around_client_text_is_all_the_markup_there_is(tiny: Tokenizer, parts: list[str], cut: int) -> None:
    opening, closing = tiny.specials[0], tiny.specials[-1]
    # The last marker is cut in two: its head ends the client's text, its tail begins the template's.
    content = "".join(parts) + closing[:cut]
    ids = tiny.encode_segments([(opening, True), (content, False), (closing[cut:] + opening, True)])
    special = {tiny.token_id(text) for text in tiny.specials}
    expected = [opening] + ([closing] if not cut else []) + [opening]
    assert [tiny.token_text(i) for i in ids if i in special] == expected


def test_specials_are_parsed_where_asked(byte_level: Tokenizer) -> None:
    text = "<|im_start|>hello<|im_end|>\n<think>"
    ids = byte_level.encode(text, special=True)
    assert [byte_level.token_text(i) for i in ids] == ["<|im_start|>", "hello", "<|im_end|>", "Ċ", "<think>"]
    assert byte_level.decode(ids) == "hello\n<think>"
    assert byte_level.decode(ids, special=True) == text


def test_the_longest_special_wins(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("<|im_end|>xy", special=True)
    assert [byte_level.token_text(i) for i in ids] == ["<|im_end|>x", "y"]


def test_markup_segments_are_joined_and_client_text_breaks_them(byte_level: Tokenizer) -> None:
    end = byte_level.token_id("<|im_end|>")
    assert byte_level.encode_segments([("<|im_", True), ("end|>", True)]) == [end]
    assert end not in byte_level.encode_segments([("<|im_", True), ("end|>", False)])
    assert end not in byte_level.encode_segments([("<|im_", False), ("end|>", True)])


def test_fillers_are_suppressed_and_never_matched(byte_level: Tokenizer) -> None:
    assert byte_level.suppressed == {277, 278}
    assert 277 not in byte_level.encode("[PAD277]", special=True)
    assert byte_level.piece(277) == b""
    assert "[PAD277]" not in byte_level.specials
    assert byte_level.token_id("[PAD277]") is None


def test_fillers_that_call_themselves_user_defined(byte_level_metadata: dict[str, Any]) -> None:
    types = byte_level_metadata["tokenizer.ggml.token_type"]
    types[277] = 4
    byte_level_metadata["tokenizer.ggml.tokens"][278] = "[PAD5]"  # not its own number: somebody's real token
    types[278] = 4
    tokenizer = load_tokenizer(byte_level_metadata)
    assert tokenizer.suppressed == {277}
    assert tokenizer.encode("[PAD5]", special=True) == [278]


def test_suppress_tokens_key(ranked_metadata: dict[str, Any]) -> None:
    ranked_metadata["tokenizer.ggml.suppress_tokens"] = [3, 4]
    assert load_tokenizer(ranked_metadata).suppressed == {3, 4}


def test_shorthand_for_ordinary_text_is_recognised_in_client_text(scored: Tokenizer) -> None:
    assert scored.token_id("<code>") in scored.encode("<code>")
    assert [scored.token_text(i) for i in scored.encode("    ")] == ["     "]  # the prefix makes it five
    assert [scored.token_text(i) for i in scored.encode(" " * 6)] == ["▁▁▁▁▁▁▁"]
    assert scored.decode(scored.encode(" " * 6)) == " " * 6
    assert scored.token_id("<tool>") not in scored.encode("<tool>")
    assert "<tool>" in scored.specials
    assert "<code>" not in scored.specials


def test_end_of_generation(byte_level: Tokenizer, scored: Tokenizer, ranked: Tokenizer) -> None:
    assert {byte_level.token_text(i) for i in byte_level.eog} == {"<|endoftext|>", "<|im_end|>"}
    assert {scored.token_text(i) for i in scored.eog} == {"</s>"}
    assert {ranked.token_text(i) for i in ranked.eog} == {"<eos>", "<turn|>", "<|tool_response>"}


def test_end_of_generation_from_lists_and_eot(byte_level_metadata: dict[str, Any]) -> None:
    byte_level_metadata["tokenizer.ggml.eos_token_ids"] = [272]
    byte_level_metadata["tokenizer.ggml.eot_token_id"] = 274
    tokenizer = load_tokenizer(byte_level_metadata)
    assert tokenizer.eos_id == 273
    assert tokenizer.eog == {271, 272, 273, 274}


def test_a_name_alone_does_not_end_generation(byte_level_metadata: dict[str, Any]) -> None:
    byte_level_metadata["tokenizer.ggml.token_type"][271] = 1  # <|endoftext|> as ordinary text
    byte_level_metadata["tokenizer.ggml.bos_token_id"] = 272
    assert load_tokenizer(byte_level_metadata).eog == {273}


def test_bos_is_added_once_and_only_where_wanted(byte_level: Tokenizer, scored: Tokenizer, ranked: Tokenizer) -> None:
    assert not byte_level.add_bos
    assert byte_level.with_bos([7]) == [7]
    assert scored.with_bos([7]) == [1, 7]
    assert ranked.with_bos([2, 7]) == [2, 7]
    assert ranked.with_bos([]) == [2]


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", True), ("smollm", False), ("qwen2", False)])
def test_bos_default_follows_the_pre_tokenizer(byte_level_metadata: dict[str, Any], pre: str, expected: bool) -> None:
    byte_level_metadata["tokenizer.ggml.pre"] = pre
    assert load_tokenizer(byte_level_metadata).add_bos is expected
    byte_level_metadata["tokenizer.ggml.add_bos_token"] = not expected
    assert load_tokenizer(byte_level_metadata).add_bos is not expected


def test_ranked_files_cannot_refuse_bos(ranked_metadata: dict[str, Any]) -> None:
    ranked_metadata["tokenizer.ggml.add_bos_token"] = False
    assert load_tokenizer(ranked_metadata).add_bos


def test_scored_text_without_space_prefix(scored_metadata: dict[str, Any]) -> None:
    scored_metadata["tokenizer.ggml.add_space_prefix"] = False
    tokenizer = load_tokenizer(scored_metadata)
    assert [tokenizer.token_text(i) for i in tokenizer.encode("hello")] == ["hello"]
    assert tokenizer.decode(tokenizer.encode(" hello")) == " hello"


def test_pieces(tiny: Tokenizer) -> None:
    for token in range(tiny.n_vocab):
        assert not (tiny.is_control(token) and tiny.piece(token))
    with pytest.raises(IndexError):
        tiny.piece(tiny.n_vocab)


def test_byte_tokens_are_bytes(scored: Tokenizer) -> None:
    assert scored.piece(3) == b"\x00"
    assert scored.piece(258) == b"\xff"


def test_byte_tokens_spelled_out_stay_text(scored: Tokenizer, ranked: Tokenizer) -> None:
    for tokenizer in (scored, ranked):
        assert tokenizer.token_id("<0x41>") not in tokenizer.encode("<0x41>")
        assert tokenizer.token_id("<0x41>") not in tokenizer.encode("<0x41>", special=True)


def test_normalization_can_be_left_out(byte_level_metadata: dict[str, Any]) -> None:
    composed = load_tokenizer(byte_level_metadata)
    as_it_is = load_tokenizer(byte_level_metadata, normalize=False)
    assert composed.encode("e\u0301") == composed.encode("é") == as_it_is.encode("é")
    assert as_it_is.decode(as_it_is.encode("e\u0301")) == "e\u0301"


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "😊\ud83d"])
def test_half_a_surrogate_pair_is_refused(tiny: Tokenizer, text: str) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        tiny.encode(text)
    with pytest.raises(RequestError, match="surrogate"):
        tiny.encode_segments([("hello", True), (text, False)])


def test_nul_is_a_character_like_any_other(tiny: Tokenizer) -> None:
    assert tiny.decode(tiny.encode("a\0b")) == "a\0b"


def test_nothing_gives_nothing(tiny: Tokenizer) -> None:
    assert tiny.encode("") == tiny.encode("", special=True) == tiny.encode_segments([]) == []
    assert tiny.decode([]) == ""


def test_unknown_tokenizer_model(byte_level_metadata: dict[str, Any]) -> None:
    byte_level_metadata["tokenizer.ggml.model"] = "rwkv"
    with pytest.raises(UnsupportedModel, match=r"'rwkv'.*gpt2, llama, gemma4"):
        load_tokenizer(byte_level_metadata)


def test_missing_tokenizer() -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.model is missing"):
        load_tokenizer({})


def test_gemma4_under_the_name_of_sentencepiece(ranked: Tokenizer, ranked_metadata: dict[str, Any]) -> None:
    ranked_metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "gemma4"}
    assert load_tokenizer(ranked_metadata).encode(" hello hell") == ranked.encode(" hello hell")


def test_gemma4_markers_with_wrong_types(ranked_metadata: dict[str, Any]) -> None:
    types = ranked_metadata["tokenizer.ggml.token_type"]
    types[1], types[5] = 1, 3
    tokenizer = load_tokenizer(ranked_metadata)
    assert tokenizer.is_control(1)
    assert tokenizer.piece(5) == b"<|tool_call>"
