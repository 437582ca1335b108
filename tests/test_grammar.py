"""Grammars: what compiles, what is refused and how, and that a reply cannot leave its grammar."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lmhub.chat.tidy import FORMATS, tidied
from lmhub.errors import GenerationError, NotSupported, RequestError
from lmhub.grammar import CACHED, MAX_SOURCE, GrammarEngine
from lmhub.guide import GAP, Thinking
from lmhub.testing.fake import END_OF_TEXT, END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL, FakeTokenizer
from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.types import Constraint, GrammarSpec

N_VOCAB = 300  # more than the tokenizer knows: the rest is padding
TOKENIZER = FakeTokenizer()


@pytest.fixture(scope="module")
def engine() -> GrammarEngine:
    return GrammarEngine(TOKENIZER, N_VOCAB, TOKENIZER.eog)


def schema(value: Any, param: str = "response_format") -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(value), param)


def allowed(constraint: Constraint) -> set[int]:
    mask = constraint.mask()
    assert mask is not None
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def follow(constraint: Constraint, text: str | Sequence[int]) -> str:
    """What of `text`, and of the end behind it, the constraint lets through."""
    ids = TOKENIZER.encode(text, special=True) if isinstance(text, str) else list(text)
    done: list[int] = []
    for token in [*ids, IM_END]:
        if constraint.mask() is not None and token not in allowed(constraint):
            break
        constraint.commit(token)
        done.append(token)
    return TOKENIZER.decode(done, special=True)


def accepts(constraint: Constraint, text: str) -> bool:
    return follow(constraint, text) == text + "<|im_end|>"


# --- kinds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("regex", r"\d{3}-[ab]+", ["123-a", "000-abba"], ["12-a", "123-", "x123-a"]),
        ("regex", "^a+$", ["a", "aaa"], ["", "^a"]),
        ("regex", "a/b|é", ["a/b", "é"], ["ab"]),
        ("lark", 'start: "x" /[0-9]+/ | "y"', ["x1", "y"], ["x", "yy"]),
        ("gbnf", 'root ::= "a" | "b" [0-9]+', ["a", "b12"], ["b", "c"]),
        ("choice", '["yes", "no", "say \\"maybe\\""]', ["yes", "no", 'say "maybe"'], ["ye", "nope"]),
    ],
)
def test_text_grammars(engine: GrammarEngine, kind: Any, source: str, good: list[str], bad: list[str]) -> None:
    spec = GrammarSpec(kind, source, "p")
    assert all(accepts(engine.constraint(spec), text) for text in good)
    assert not any(accepts(engine.constraint(spec), text) for text in bad)


PERSON = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Person",
    "description": "somebody",
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "title": "Name", "default": "x"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
        "home": {"$ref": "#/$defs/Place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "home", "note"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}}},
}
ADA = {"name": "Ada", "age": 36, "tags": ["a"], "home": {"zip": "12345"}, "note": None}


@pytest.mark.parametrize("indent", [None, 2])
def test_json_schemas(engine: GrammarEngine, indent: int | None) -> None:
    spec = schema(PERSON)
    assert accepts(engine.constraint(spec), json.dumps(ADA, indent=indent))
    for wrong in (
        {**ADA, "age": 151},
        {**ADA, "age": "36"},
        {**ADA, "tags": []},
        {**ADA, "tags": ["c"]},
        {**ADA, "home": {"zip": "1234"}},
        {**ADA, "extra": 1},
        {key: ADA[key] for key in ("name", "age")},
    ):
        assert not accepts(engine.constraint(spec), json.dumps(wrong)), wrong


def test_the_order_of_properties_is_the_schemas(engine: GrammarEngine) -> None:
    spec = schema({"type": "object", "properties": {"b": {}, "a": {}}, "required": ["a", "b"]})
    assert accepts(engine.constraint(spec), '{"b": 1, "a": 2}')
    assert not accepts(engine.constraint(spec), '{"a": 2, "b": 1}')


def test_true_and_the_empty_schema_are_any_json(engine: GrammarEngine) -> None:
    for value in (True, {}):
        assert all(accepts(engine.constraint(schema(value)), text) for text in ("[1, null]", '"x"', "{}", "-1.5e3"))
        assert not accepts(engine.constraint(schema(value)), "nothing")


def test_blanks_are_bounded(engine: GrammarEngine) -> None:
    spec = schema({"type": "object"})
    assert accepts(engine.constraint(spec), '{"a":' + " " * 16 + "1}")
    assert not accepts(engine.constraint(spec), '{"a":' + " " * 17 + "1}")
    lax = schema({"type": "object", "x-guidance": {"whitespace_pattern": "[ ]*", "lenient": True}})
    assert not accepts(engine.constraint(lax), '{"a":' + " " * 17 + "1}")


def test_markers_are_no_text(engine: GrammarEngine) -> None:
    """A JSON string may spell a special token, byte by byte, but not be one."""
    constraint = engine.constraint(schema({"type": "object"}))
    assert follow(constraint, '{"a": "<think>') == '{"a": "'
    spelled = engine.constraint(schema({"type": "object"}))
    assert follow(spelled, list(b'{"a": "<tool_call><|im_end|>"}')).endswith("}<|im_end|>")


def test_padding_is_never_allowed_and_every_end_is(engine: GrammarEngine) -> None:
    constraint = engine.constraint(GrammarSpec("regex", "(.|\n)*", "regex"))
    ids = allowed(constraint)
    assert {IM_END, END_OF_TEXT, ord("a")} <= ids
    assert not any(token in ids for token in (*range(TOKENIZER.n_vocab, N_VOCAB), THINK, TOOL_CALL))
    for end in (IM_END, END_OF_TEXT):
        complete = engine.constraint(GrammarSpec("regex", "ab", "regex"))
        for token in b"ab":
            complete.commit(token)
        assert allowed(complete) == {IM_END, END_OF_TEXT}
        complete.commit(end)


@pytest.mark.parametrize("wrong", [ord("x"), IM_END, TOOL_CALL])
def test_a_token_out_of_place_is_an_error(engine: GrammarEngine, wrong: int) -> None:
    constraint = engine.constraint(GrammarSpec("regex", "ab", "regex"))
    constraint.commit(ord("a"))
    with pytest.raises(GenerationError, match="grammar of this reply failed") as caught:
        constraint.commit(wrong)
    assert caught.value.code == "grammar_failed"
    assert "\n" not in str(caught.value)


def test_replies_do_not_share_their_progress(engine: GrammarEngine) -> None:
    spec = GrammarSpec("regex", "ab", "regex")
    one, two = engine.constraint(spec), engine.constraint(spec)
    one.commit(ord("a"))
    assert (allowed(one), allowed(two)) == ({ord("b")}, {ord("a")})


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (schema(False), "the schema `false` admits no reply"),
        (schema([1]), "a schema is an object or true"),
        (schema({"type": "object", "properties": {"a": {"not": {}}}}), "the keyword 'not' at #/properties/a/not"),
        (schema({"type": "array", "uniqueItems": True}), "the keyword 'uniqueItems' at #/uniqueItems"),
        (schema({"type": "banana"}), "Invalid type: banana"),
        (schema({"type": "integer", "minimum": 3, "maximum": 2}), "Unsatisfiable"),
        (schema({"type": "string", "pattern": "(?=a)"}), "look-around"),
        (schema({"$ref": "#/$defs/nowhere"}), "/$defs/nowhere"),
        (schema({"type": "integer", "maximum": 10**400}), "number out of range"),
        (GrammarSpec("json_schema", "{nope", "response_format"), "it is not JSON"),
        (GrammarSpec("json_schema", "[" * 10**5, "response_format"), "nested too deeply"),
        (GrammarSpec("regex", "(?=a)b", "response_format"), "look-around"),
        (GrammarSpec("regex", "(", "response_format"), "invalid regex"),
        (GrammarSpec("lark", "start: nowhere", "response_format"), 'line 1, column 8: unknown name: "nowhere"'),
        (GrammarSpec("gbnf", "root ::= nowhere", "response_format"), "nowhere"),
        (GrammarSpec("choice", "[]", "response_format"), "a list of strings that are not empty"),
        (GrammarSpec("choice", "[1]", "response_format"), "a list of strings that are not empty"),
        (GrammarSpec("regex", "a" * (MAX_SOURCE + 1), "response_format"), "longer than 256 KiB"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(engine: GrammarEngine, spec: GrammarSpec, said: str) -> None:
    for _ in range(2):  # the second time out of the cache
        with pytest.raises(RequestError) as caught:
            engine.constraint(spec)
        assert (caught.value.status, caught.value.param) == (400, "response_format")
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500


def nested(depth: int) -> Any:
    value: Any = {"type": "string"}
    for _ in range(depth):
        value = {"type": "array", "items": value}
    return value


@pytest.mark.parametrize(
    "hostile",
    [
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(3000)}},
        {"enum": [f"v{n}" for n in range(5000)]},
        nested(200),
        {"type": "object", "properties": {f"p{n}": {"$ref": "#"} for n in range(1001)}},
    ],
    ids=["properties", "values", "depth", "recursion"],
)
def test_schemas_that_take_too_long_are_refused(engine: GrammarEngine, hostile: Any) -> None:
    with pytest.raises(RequestError, match=r"limit|deeper|large|levels"):
        engine.constraint(schema(hostile))


def test_a_large_schema_within_the_limits_compiles(engine: GrammarEngine) -> None:
    wide = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(1000)}}
    assert accepts(engine.constraint(schema(wide)), '{"p999": "x"}')


def test_a_grammar_that_turns_out_too_complex_fails_its_reply(engine: GrammarEngine) -> None:
    constraint = engine.constraint(GrammarSpec("regex", "(a{1000}){1000}", "regex"))
    with pytest.raises(GenerationError, match="too many expressions"):
        follow(constraint, "aaa")


def test_without_the_engine_it_is_not_supported(engine: GrammarEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    assert not engine.is_available()
    with pytest.raises(NotSupported, match="response_format needs the grammar engine") as caught:
        engine.constraint(schema({}))
    assert (caught.value.status, caught.value.kind, caught.value.param) == (
        501,
        "not_supported_error",
        "response_format",
    )


# --- schemas ---------------------------------------------------------------------------------------------------------


def test_what_asserts_nothing_does_not_matter(engine: GrammarEngine) -> None:
    noisy = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "https://example.com/x",
        "$comment": "c",
        "title": "t",
        "type": "object",
        "properties": {
            "format": {"type": "string", "format": "path", "examples": ["x"], "deprecated": True},
            "list": {"type": "array", "items": {"type": "integer", "format": "int32"}, "uniqueItems": False},
            "mail": {"type": "string", "format": "email"},
        },
        "propertyNames": {"type": "string"},
        "x-order": 1,
        "strict": True,
    }
    assert accepts(engine.constraint(schema(noisy)), '{"format": "anything", "list": [1, 1], "mail": "a@b.de"}')
    assert not accepts(engine.constraint(schema(noisy)), '{"mail": "no address"}')


def test_known_formats_are_those_of_the_engine(engine: GrammarEngine) -> None:
    for name in FORMATS:
        engine.constraint(schema({"type": "string", "format": name}))


def test_tidying_keeps_order_and_values() -> None:
    kept = {"b": {"format": "path"}, "a": 1}
    value = {"const": {"format": "path", "x-guidance": 1}, "default": {"uniqueItems": False}, "properties": kept}
    assert tidied(value) == {**value, "properties": {"b": {}, "a": 1}}
    assert list(tidied(value)["properties"]) == ["b", "a"]
    assert tidied({"properties": {"format": {"type": "string"}}}) == {"properties": {"format": {"type": "string"}}}


# --- cache -----------------------------------------------------------------------------------------------------------


def test_compiled_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = GrammarEngine(TOKENIZER, N_VOCAB, TOKENIZER.eog)
    compile_ = engine._compile
    compiled: list[str] = []

    def counting(spec: GrammarSpec) -> Any:
        compiled.append(spec.source)
        return compile_(spec)

    monkeypatch.setattr(engine, "_compile", counting)
    specs = [GrammarSpec("regex", f"a{{{n}}}", "regex") for n in range(1, 4)]
    together = threading.Barrier(6)

    def work(spec: GrammarSpec) -> None:
        together.wait()
        assert allowed(engine.constraint(spec)) == {ord("a")}

    threads = [threading.Thread(target=work, args=(spec,)) for spec in specs * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(compiled) == sorted(spec.source for spec in specs)
    for n in range(CACHED):
        engine.constraint(GrammarSpec("regex", f"b{{{n + 1}}}", "regex"))
    engine.constraint(specs[0])
    assert compiled.count(specs[0].source) == 2


# --- where a grammar holds -------------------------------------------------------------------------------------------

OBJECT = schema({"type": "object"})
CALL = GrammarSpec("lark", f'start: ("x" | "y") <[{END_TOOL_CALL}]>', "tools")
OPENERS = frozenset((TOOL_CALL,))
DELIMITED = Thinking(THINK, END_THINK, False)
OPENED = Thinking(THINK, END_THINK, True)


@pytest.mark.parametrize(
    ("thinking", "text", "good"),
    [
        (DELIMITED, '<think>hm {</think>\n\n{"a": 1}', True),
        (DELIMITED, '<think></think>{"a": 1}', True),
        (DELIMITED, '{"a": 1}', True),
        (DELIMITED, '\n{"a": 1}', False),
        (DELIMITED, "<think>hm", False),
        (DELIMITED, "<think>hm</think>\n\nhm", False),
        (DELIMITED, "<think>a</think><think>b</think>{}", False),
        (DELIMITED, "hm", False),
        (OPENED, "hm</think>\n\n{}", True),
        (OPENED, "hm", False),
        (OPENED, "hm</think>" + "\n" * GAP + "{}", True),
        (OPENED, "hm</think>" + "\n" * (GAP + 1) + "{}", False),
        (OPENED, "hm</think>\n", False),
        (OPENED, "hm</think> {}", False),
    ],
)
def test_a_grammar_behind_the_reasoning(engine: GrammarEngine, thinking: Thinking, text: str, good: bool) -> None:
    assert accepts(engine.constraint(OBJECT, thinking=thinking), text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("free text, {", True),
        ("a <tool_call>x</tool_call> b <tool_call>y</tool_call>", True),
        ("a <tool_call>z", False),
        ("a <tool_call>x", False),
        ("a <tool_call>x</tool_call> <tool_call>z</tool_call>", False),
        ("<think>a <tool_call>x</tool_call> b", True),
    ],
)
def test_calls_are_held_to_their_grammar_once_opened(engine: GrammarEngine, text: str, good: bool) -> None:
    assert accepts(engine.constraint(None, calls=CALL, openers=OPENERS), text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("{}", True),
        ("<tool_call>x</tool_call>", True),
        ("<tool_call>x</tool_call>\n<tool_call>y</tool_call>", True),
        ("<tool_call>x</tool_call>{}", False),
        ("{}<tool_call>x</tool_call>", False),
        ("text", False),
        ("<tool_call>z", False),
    ],
)
def test_a_reply_is_what_was_asked_for_or_calls(engine: GrammarEngine, text: str, good: bool) -> None:
    assert accepts(engine.constraint(OBJECT, calls=CALL, openers=OPENERS), text) is good
    thinking = engine.constraint(OBJECT, calls=CALL, openers=OPENERS, thinking=DELIMITED)
    assert accepts(thinking, "<think>hm</think>\n\n" + text) is good


def test_a_broken_grammar_for_calls_is_told_in_time(engine: GrammarEngine) -> None:
    with pytest.raises(RequestError, match="lark in tools"):
        engine.constraint(None, calls=GrammarSpec("lark", "start: nowhere", "tools"), openers=OPENERS)


# --- vocabularies that put a blank before a text ---------------------------------------------------------------------


def spaced_tokenizer() -> Tokenizer:
    """A SentencePiece vocabulary: bytes, letters, and words that hold the blank before them."""
    control, byte, normal = 3, 6, 1
    words = ["▁", "a", "b", "c", "ab", "▁a", "▁ab", "▁c", "{", '"', "}", ":", "▁{", '{"', "1", "2", "▁▁", "▁▁▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256)), *words]
    return load_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [0.0] * 259 + [-float(place) for place in range(len(words))],
            "tokenizer.ggml.token_type": [2, control, control, *[byte] * 256, *[normal] * len(words)],
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.add_space_prefix": True,
        }
    )


@pytest.mark.parametrize(
    ("spec", "whole"),
    [
        (GrammarSpec("regex", "(ab c|b a){3}", "regex"), r"(ab c|b a){3}"),
        (schema({"type": "object", "properties": {"ab": {"enum": [1, 2]}}, "required": ["ab"]}), r"\{\s*\"ab\".*"),
    ],
)
def test_forced_text_has_no_blank_before_it(spec: GrammarSpec, whole: str) -> None:
    tokenizer = spaced_tokenizer()
    grammars = GrammarEngine(tokenizer, tokenizer.n_vocab, tokenizer.eog)
    for seed in range(5):
        constraint, draw, reply = grammars.constraint(spec), np.random.default_rng(seed), b""
        for _ in range(200):
            token = int(draw.choice(sorted(allowed(constraint))))
            constraint.commit(token)
            if token in tokenizer.eog:
                break
            reply += tokenizer.piece(token)
        assert re.match(whole, reply.decode()), reply
