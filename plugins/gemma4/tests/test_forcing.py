"""Forced calls: grammars in the notation of Gemma 4, run by the grammar engine; what they accept is what is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import llguidance
import pytest
from lmhub_gemma4 import CALLS, QUOTE, THINK
from lmhub_gemma4.calls import parse_calls

from lmhub.chat.forcing import Markers, forced_call, opened_call
from lmhub.chat.prompt import ChatFormat
from lmhub.gguf import open_gguf
from lmhub.tokenize import load_tokenizer
from lmhub.types import GrammarSpec, Tool, ToolChoice

OPEN, CLOSE, MARK = 259, 260, 261
MARKERS = Markers(f"<[{OPEN}]>", f"<[{CLOSE}]>", f"quote: <[{MARK}]>\n")
ANY = ToolChoice("any")


class Vocabulary:
    """Bytes, and the tokens of a call, as the grammar engine wants to see them."""

    eos_token_id = 257
    bos_token_id = None
    tokens = [  # noqa: RUF012
        *(bytes((byte,)) for byte in range(256)),
        *(b"<0>", b"<1>", b"<2>", b"<|tool_call>", b"<tool_call|>", QUOTE.encode()),
    ]
    special_token_ids = [256, 257, 258, OPEN, CLOSE, MARK]  # noqa: RUF012

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


@pytest.fixture(scope="module")
def accepts() -> Callable[[GrammarSpec, str], bool]:
    """Whether a call, with `'` for the quotation token and without its markers, is the whole reply."""
    engine = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary()))

    def accepts(spec: GrammarSpec, text: str, opened: bool = False) -> bool:
        matcher = llguidance.LLMatcher(engine, llguidance.LLMatcher.grammar_from_lark(spec.source))
        assert not matcher.is_error(), matcher.get_error()
        ids = [MARK if letter == ord("'") else letter for letter in text.encode()]
        ids = [*([] if opened else [OPEN]), *ids, CLOSE]
        return bool(matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting())

    return accepts


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "d"},
        "n": {"type": "integer", "minimum": 0},
        "unit": {"enum": ["c", "f"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "at": {"$ref": "#/$defs/place"},
        "maybe": {"type": ["boolean", "null"]},
    },
    "required": ["path", "n"],
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}
LOOSE, STRICT = Tool("f", parameters=SCHEMA), Tool("f", parameters=SCHEMA, strict=True)


@pytest.mark.parametrize(
    "text", ["{}", "{a:1}", "{a:'x'}", "{a:'} \"<tool_call>',b:[1,-2.5e3,true,null,{c:'' }]}".replace(" }", "}")]
)
def test_any_arguments(accepts: Any, text: str) -> None:
    spec = forced_call(CALLS, (LOOSE, Tool("g")), ANY, MARKERS)
    assert accepts(spec, f"call:f{text}") and accepts(spec, f"call:g{text}")
    assert not accepts(spec, f"call:h{text}") and not accepts(spec, f"call:f{text}{text}")


@pytest.mark.parametrize("text", ["", "{", "{a}", "{a:}", "{a:x}", "{a:'x}", "{a:1,}", "[1]", '{"a":1}', "{a:01}"])
def test_what_is_no_call(accepts: Any, text: str) -> None:
    assert not accepts(forced_call(CALLS, (LOOSE,), ANY, MARKERS), f"call:f{text}")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("{n:1,path:'a'}", True),
        ("{at:{x:1.5},maybe:null,n:0,path:'',tags:['a','b'],unit:'c'}", True),
        ("{maybe:true,n:7,path:'a\nb',tags:[]}", True),
        ("{n:1}", False),
        ("{path:'a',n:1}", False),
        ("{n:-1,path:'a'}", False),
        ("{n:'1',path:'a'}", False),
        ("{n:1,path:'a',unit:'k'}", False),
        ("{n:1,path:'a',unit:c}", False),
        ("{n:1,path:'a',tags:[1]}", False),
        ("{at:{},n:1,path:'a'}", False),
        ("{n:1,other:1,path:'a'}", False),
        ("{,n:1,path:'a'}", False),
    ],
)
def test_a_schema(accepts: Any, text: str, right: bool) -> None:
    spec = forced_call(CALLS, (STRICT,), ANY, MARKERS)
    assert accepts(spec, "call:f" + text) == right
    lazy = opened_call(CALLS, (STRICT,), OPEN, MARKERS)
    assert lazy is not None and accepts(lazy.grammar, "call:f" + text, opened=True) == right
    if right:
        [(name, arguments)] = parse_calls("call:f" + text.replace("'", QUOTE), (STRICT,)) or ()
        assert name == "f" and json.loads(arguments)["n"] >= 0


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"properties": {"d": {"type": "string", "pattern": "^[0-9]+$"}}, "required": ["d"]},
            '{"d": "5"}',
            '{"d": "x"}',
        ),
        ({"properties": {"d": {"type": "array", "minItems": 1}}, "required": ["d"]}, '{"d": [1]}', '{"d": []}'),
        ({"properties": {"a:b": {"type": "integer"}}, "required": ["a:b"]}, '{"a:b": 1}', '{"a:b": "1"}'),
        ({"anyOf": [{"properties": {"d": {"const": 1}}, "required": ["d"]}]}, '{"d": 1}', '{"d": 2}'),
    ],
)
def test_what_the_notation_cannot_enforce_is_written_as_json(accepts: Any, schema: Any, good: str, bad: str) -> None:
    spec = forced_call(CALLS, (Tool("f", parameters=schema, strict=True),), ANY, MARKERS)
    assert accepts(spec, "call:f" + good) and not accepts(spec, "call:f" + bad)
    assert json.loads((parse_calls("call:f" + good) or [("", "")])[0][1]) == json.loads(good)
    assert opened_call(CALLS, (Tool("f", parameters=schema, strict=True),), OPEN, MARKERS) is not None


def test_objects_of_anything_and_of_nothing(accepts: Any) -> None:
    for schema, something in (({}, True), ({"additionalProperties": False}, False), ({"properties": {}}, True)):
        spec = forced_call(CALLS, (Tool("f", parameters={"type": "object", **schema}, strict=True),), ANY, MARKERS)
        assert accepts(spec, "call:f{}") and accepts(spec, "call:f{a:1}") == something


def test_a_schema_that_holds_itself(accepts: Any) -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#"}, "v": {"type": "integer"}}, "required": ["v"]}
    lazy = opened_call(CALLS, (Tool("f", parameters=tree, strict=True),), OPEN, MARKERS)
    assert lazy is not None and accepts(lazy.grammar, "call:f{left:{v:1},v:2}", opened=True)
    spec = forced_call(CALLS, (Tool("f", parameters=tree, strict=True),), ANY, MARKERS)
    assert accepts(spec, 'call:f{"left": {"v": 1}, "v": 2}')


def test_custom_tools(accepts: Any) -> None:
    free, digits = (Tool("f", custom=True, format=one) for one in (None, GrammarSpec("regex", "[0-9]+", "tools")))
    assert accepts(forced_call(CALLS, (free,), ANY, MARKERS), "call:f{input:'any \n} text'}")
    spec = forced_call(CALLS, (digits,), ANY, MARKERS)
    assert accepts(spec, "call:f{input:'123'}") and not accepts(spec, "call:f{input:'x'}")


def test_the_tokens_of_a_real_vocabulary(shared: Any) -> None:
    metadata = open_gguf(shared / "vocab" / "ggml-vocab-gemma-4.gguf").metadata
    chat = ChatFormat.from_metadata(metadata, load_tokenizer(metadata), think=THINK, tools=CALLS)
    source = chat.forced((STRICT,), ANY).source
    assert "start: <[48]> c0 <[49]>" in source and "quote: <[52]>" in source
    lazy = chat.lazy((STRICT,))
    assert lazy is not None and lazy.opener == 48
