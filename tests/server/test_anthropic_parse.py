"""Request bodies of Messages: what is honoured, what is refused under which name, what is ignored."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from lmhub.errors import RequestError
from lmhub.server.anthropic import messages_dialect
from lmhub.server.anthropic_fields import FIELDS
from lmhub.server.anthropic_parse import Body, Echo
from lmhub.settings import ServerSettings
from lmhub.types import ChatRequest, GrammarSpec, Message, Text, Tool, ToolChoice

DIALECT = messages_dialect(ServerSettings())
USER = {"role": "user", "content": "hi"}
WEATHER = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"b": {}, "a": {}}}}
SCHEMA = {"type": "json_schema", "schema": {"type": "object", "properties": {"b": {}, "a": {}}}}


def body(**fields: Any) -> bytes:
    """A body with these fields and, unless given, what is required."""
    return json.dumps({"model": "m", "max_tokens": 16, "messages": [USER]} | fields).encode()


def parse(**fields: Any) -> ChatRequest:
    """The request of such a body."""
    request = DIALECT.parse(body(**fields))
    assert isinstance(request, ChatRequest)
    return request


def refused(**fields: Any) -> str:
    """The message with which such a body is refused."""
    with pytest.raises(RequestError) as caught:
        parse(**fields)
    assert caught.value.status == 400 and caught.value.param is not None
    return str(caught.value)


def test_a_minimal_body_gives_nothing_but_the_conversation() -> None:
    expected = ChatRequest(
        messages=(Message("user", (Text("hi"),)),),
        model="m",
        max_tokens=16,
        include_usage=True,
        lenient=True,
        echo=Echo(),
    )
    assert parse() == expected


def test_null_is_absence() -> None:
    names = [name for name in Body.__struct_fields__ if name not in ("model", "max_tokens", "messages")]
    assert parse(**dict.fromkeys(names)) == parse()
    nothing = {"type": "enabled", "budget_tokens": None, "display": None}
    assert parse(thinking=nothing) == parse(thinking={"type": "enabled"})
    assert parse(output_config={"format": None, "effort": None}) == parse()


def test_fields_that_are_honoured() -> None:
    request = parse(
        system="be brief",
        stream=True,
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        repeat_penalty=1.1,
        seed=2**64 - 1,
        max_tokens=64.0,
        stop_sequences=["a", "b"],
        chat_template_kwargs={"colour": "red"},
        sse_ping_interval=3,
    )
    assert request.messages[0] == Message("system", (Text("be brief"),))
    assert request.stream and request.max_tokens == 64 and request.stop == ("a", "b") and request.ping_s == 3
    assert request.sampling == {
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "repeat_penalty": 1.1,
        "seed": 2**64 - 1,
    }
    assert request.template_kwargs == {"colour": "red"}
    assert parse(top_k=-1, seed=-1).sampling == {"top_k": 0}
    assert parse(top_p=0).sampling == {"temperature": 0.0}


@pytest.mark.parametrize("name", ["model", "max_tokens", "messages"])
def test_what_is_required(name: str) -> None:
    assert refused(**{name: None}) == f"{name} is required"
    without = json.loads(body())
    del without[name]
    with pytest.raises(RequestError, match=f"^{name} is required$"):
        DIALECT.parse(json.dumps(without).encode())


def test_a_count_needs_no_budget() -> None:
    parse_count = DIALECT.parse_count
    assert parse_count is not None
    request = parse_count(json.dumps({"model": "m", "messages": [USER]}).encode())
    assert isinstance(request, ChatRequest) and request.max_tokens is None
    with pytest.raises(RequestError, match="model is required"):
        parse_count(json.dumps({"messages": [USER]}).encode())


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": "hi"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        ({"system": 3}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"system": [{"text": "x"}]}, "system[0].type"),
        ({"temperature": 1.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": [3]}, "stop_sequences[0]"),
        ({"thinking": {"type": "sometimes"}}, "thinking.type"),
        ({"thinking": {}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"thinking": True}, "thinking"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_format": {"type": "json_schema", "schema": False}}, "output_format.schema"),
        ({"output_format": {"type": "json_schema", "schema": 3}}, "output_format.schema"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tools": [{"type": "computer_20250124", "name": "computer"}]}, "tools[0]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}, "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "nothing"}, "tools": [WEATHER]}, "tool_choice names"),
        ({"tool_choice": {"type": "tool"}, "tools": [WEATHER]}, "tool_choice.name"),
        ({"tool_choice": {"type": "required"}, "tools": [WEATHER]}, "tool_choice.type"),
        ({"tool_choice": "auto", "tools": [WEATHER]}, "tool_choice"),
        ({"regex": "a", "lark": 'start: "a"'}, "regex and lark"),
        ({"regex": "a", "output_format": SCHEMA}, "output_format and regex"),
        ({"seed": 2**64}, "seed"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"min_p": 2}, "min_p"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], named: str) -> None:
    assert refused(**fields).startswith(named)


def test_fields_that_are_ignored() -> None:
    names = [field.name for field in FIELDS if field.kind == "ignored" and field.name.isidentifier()]
    assert {"metadata", "context_management", "mcp_servers", "service_tier", "cache_control"} <= set(names)
    for value in (None, True, "x", [1], {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}):
        assert parse(**dict.fromkeys(names, value), unheard_of=value) == parse()


def test_the_table_names_every_field_of_the_body() -> None:
    honoured = {field.name for field in FIELDS if field.kind == "honoured"}
    assert set(Body.__struct_fields__) == {name for name in honoured if name.isidentifier()}


# --- system ----------------------------------------------------------------------------------------------------------


def test_system_blocks_are_joined_and_the_billing_block_is_left_out() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.332.abc; cc_entrypoint=sdk-cli; cch={};"

    def system(cch: str, **marker: Any) -> tuple[Message, ...]:
        blocks = [{"type": "text", "text": text} for text in (billing.format(cch), "One.", "Two.")]
        blocks[2] |= marker
        return parse(system=blocks).messages

    assert system("1f2e3")[0] == Message("system", (Text("One.\n\nTwo."),))
    assert system("1f2e3") == system("00000", cache_control={"type": "ephemeral"})
    assert parse(system=[{"type": "text", "text": billing}]).messages == parse(system=[]).messages == parse().messages
    mention = f"what does {billing} mean?"
    assert parse(messages=[{"role": "user", "content": mention}]).messages[0].text == mention


# --- thinking and formats --------------------------------------------------------------------------------------------


def test_thinking() -> None:
    assert parse().reasoning is None
    assert parse(thinking={"type": "disabled", "budget_tokens": 5}).reasoning is False
    assert parse(thinking={"type": "disabled", "budget_tokens": 5}).reasoning_budget is None
    for kind in ("adaptive", "between_tools"):
        assert parse(thinking={"type": kind}).reasoning is True
    enabled = parse(thinking={"type": "enabled", "budget_tokens": 100, "display": "omitted"})
    assert enabled.reasoning is True and enabled.reasoning_budget == 100 and enabled.echo == Echo(omit_thinking=True)
    assert parse(thinking={"type": "enabled"}, chat_template_kwargs={"enable_thinking": False}).reasoning is False


def test_effort_goes_to_the_template_if_the_model_thinks() -> None:
    assert parse(output_config={"effort": "high"}).template_kwargs == {}
    thinking = {"type": "adaptive"}
    assert parse(output_config={"effort": "high"}, thinking=thinking).template_kwargs == {"reasoning_effort": "high"}
    own = {"reasoning_effort": "low"}
    request = parse(output_config={"effort": "high"}, thinking=thinking, chat_template_kwargs=own)
    assert request.template_kwargs == own


def test_formats_keep_the_order_of_keys() -> None:
    source = '{"type":"object","properties":{"b":{},"a":{}}}'
    assert parse(output_config={"format": SCHEMA}).grammar == GrammarSpec("json_schema", source, "output_config.format")
    assert parse(output_format=SCHEMA).grammar == GrammarSpec("json_schema", source, "output_format")
    both = parse(output_format=SCHEMA, output_config={"format": SCHEMA}).grammar
    assert both is not None and both.param == "output_config.format"
    assert parse(output_config={"format": {"type": "text"}}).grammar is None
    assert parse(output_format={"type": "json_schema", "schema": True}).grammar is not None
    assert parse(regex="a+").grammar == GrammarSpec("regex", "a+", "regex")
    assert parse(lark="start: A").grammar == GrammarSpec("lark", "start: A", "lark")


# --- tools -----------------------------------------------------------------------------------------------------------


def test_declarations() -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    (tool,) = parse(tools=[WEATHER | {"type": "custom", "cache_control": {"type": "ephemeral"}, "strict": False}]).tools
    assert tool == Tool("weather", "d", schema, strict=True)
    assert tool.parameters is not None and list(tool.parameters["properties"]) == ["b", "a"]
    assert parse(tools=[{"name": "f"}]).tools == (Tool("f", None, {"type": "object"}, strict=True),)
    eager = {"name": "f", "eager_input_streaming": True}
    assert parse(tools=[eager], stream=True).tools[0].eager
    assert not parse(tools=[eager]).tools[0].eager


@pytest.mark.parametrize(
    ("kind", "name", "property"),
    [
        ("bash_20250124", "bash", "command"),
        ("text_editor_20241022", "str_replace_editor", "undo_edit"),
        ("text_editor_20250124", "str_replace_editor", "undo_edit"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "insert_line"),
        ("memory_20250818", "memory", "rename"),
    ],
)
def test_tools_that_the_client_runs_have_their_usual_schemas(kind: str, name: str, property: str) -> None:
    (tool,) = parse(tools=[{"type": kind, "name": name}]).tools
    assert tool.name == name and tool.description and tool.strict
    assert property in json.dumps(tool.parameters)


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_20250305",
        "web_fetch_20250910",
        "code_execution_20250825",
        "tool_search_tool_regex_20251119",
        "advisor_20260301",
        "mcp_toolset",
        "something_new_20280101",
    ],
)
def test_hosted_tools_are_ignored_unless_forced(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    hosted = {"type": kind, "name": "hosted"}
    caplog.set_level("INFO", "lmhub.server")
    assert [tool.name for tool in parse(tools=[hosted, WEATHER]).tools] == ["weather"]
    assert kind in caplog.text
    assert "tool_choice" in refused(tools=[hosted], tool_choice={"type": "any"})
    assert "'hosted'" in refused(tools=[hosted, WEATHER], tool_choice={"type": "tool", "name": "hosted"})


def test_settings_that_refuse_more() -> None:
    strict = messages_dialect(ServerSettings(strict_tools=True, prefill=False))
    with pytest.raises(RequestError, match="hosted service") as caught:
        strict.parse(body(tools=[{"type": "web_search_20250305", "name": "web_search"}]))
    assert caught.value.code == "unsupported_parameter"
    with pytest.raises(RequestError, match="mcp_servers"):
        strict.parse(body(mcp_servers=[{"type": "url"}]))
    with pytest.raises(RequestError, match="wants a user message"):
        strict.parse(body(messages=[USER, {"role": "assistant", "content": "x"}]))


def test_choices() -> None:
    def choice(**fields: Any) -> ChatRequest:
        return parse(tools=[WEATHER], tool_choice=fields)

    assert choice(type="auto").tool_choice == ToolChoice()
    assert choice(type="none").tool_choice == ToolChoice("none")
    assert choice(type="any").tool_choice == ToolChoice("any")
    assert choice(type="tool", name="weather").tool_choice == ToolChoice("any", ("weather",))
    assert parse(tool_choice={"type": "none"}).tool_choice == ToolChoice("none")
    assert choice(type="auto").parallel_tool_calls
    assert not choice(type="auto", disable_parallel_tool_use=True).parallel_tool_calls


def test_a_forced_call_beats_a_format() -> None:
    request = parse(tools=[WEATHER], tool_choice={"type": "any"}, output_format=SCHEMA)
    assert request.grammar is None and request.tool_choice.mode == "any"


# --- hostile ---------------------------------------------------------------------------------------------------------


def test_mutated_bodies_are_parsed_or_refused() -> None:
    rng = random.Random(7)
    whole = {
        "system": [{"type": "text", "text": "s"}],
        "tools": [WEATHER, {"type": "bash_20250124", "name": "bash"}],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 9},
        "output_config": {"format": SCHEMA, "effort": "low"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "i", "name": "weather", "input": {}}]},
            {"role": "system", "content": "note"},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "i", "content": [{"type": "text"}]}]},
        ],
    }
    junk: list[Any] = [None, True, -1, 1e300, "", "x", [], {}, [{}], {"type": "text"}, {"type": 3}, [[]]]
    for _ in range(2000):
        mutant = json.loads(body(**whole))
        place: Any = mutant
        while True:
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
            if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.3:
                place[key] = rng.choice(junk)
                break
            place = place[key]
        try:
            DIALECT.parse(json.dumps(mutant).encode())
        except RequestError as error:
            assert error.status == 400 and len(str(error)) < 600
