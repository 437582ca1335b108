"""Bodies of Responses to requests: every field's fate, input items to turns, tools, what the response repeats."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmhub.errors import RequestError
from lmhub.server.fields import markdown
from lmhub.server.responses import responses_dialect
from lmhub.server.responses_fields import FIELDS
from lmhub.server.responses_parse import Body
from lmhub.server.responses_seal import Seal
from lmhub.types import ChatRequest, GrammarSpec, Message, Reasoning, Text, Tool, ToolCall, ToolChoice, ToolResult

FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}
PATCH = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "s: A"}}
HOSTED = ({"type": "web_search"}, {"type": "image_generation"}, {"type": "mcp", "server_label": "x"}, {"type": "new"})
ANY_OBJECT = GrammarSpec("json_schema", '{"type":"object"}', "text.format")
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}


def parsed(*, size: int = 8, strict_tools: bool = False, **body: Any) -> ChatRequest:
    """What a body with the input "hi" and these fields asks for."""
    request = responses_dialect(size, strict_tools=strict_tools).parse(json.dumps({"input": "hi", **body}).encode())
    assert isinstance(request, ChatRequest)
    return request


def turns(*items: Mapping[str, Any]) -> tuple[Message, ...]:
    """The conversation that items tell."""
    return parsed(input=list(items)).messages


def refusal(**body: Any) -> RequestError:
    """Why a body is refused."""
    with pytest.raises(RequestError) as raised:
        parsed(**body)
    assert raised.value.status == 400
    return raised.value


# --- fields ---


def test_the_table_and_the_record_name_the_same_fields() -> None:
    known = {field.name for field in msgspec.structs.fields(Body)}
    told = {
        field.name for field in FIELDS if field.kind == "honoured" and "." not in field.name and "[" not in field.name
    }
    assert told == known
    assert len({field.name for field in FIELDS}) == len(FIELDS)


def test_the_documentation_holds_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "dialects.md"
    assert markdown(FIELDS) in page.read_text()


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"temperature": 0, "top_p": 0.5, "seed": 7}, "sampling", {"temperature": 0, "top_p": 0.5, "seed": 7}),
        ({"top_k": 5, "repetition_penalty": 2}, "sampling", {"top_k": 5, "repeat_penalty": 2}),
        ({"max_output_tokens": 1}, "max_tokens", 1),
        ({"max_output_tokens": 64.0}, "max_tokens", 64),
        ({"max_output_tokens": -1}, "max_tokens", None),
        ({"stop": "x"}, "stop", ("x",)),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, "stream", True),
        ({"reasoning": {"effort": "high"}}, "reasoning", True),
        ({"reasoning": {"effort": "high"}}, "template_kwargs", {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "minimal"}}, "reasoning", False),
        ({"reasoning": {"effort": "high"}, "chat_template_kwargs": {"enable_thinking": False}}, "reasoning", False),
        ({"thinking_budget_tokens": 9}, "reasoning_budget", 9),
        ({"parallel_tool_calls": False}, "parallel_tool_calls", False),
        ({"include": ["message.output_text.logprobs"]}, "logprobs", 0),
        ({"top_logprobs": 3}, "logprobs", 3),
        ({"top_logprobs": 0}, "logprobs", None),
        ({"logit_bias": {"5": -100}}, "logit_bias", {5: -100.0}),
        ({"ignore_eos": True}, "ignore_eos", True),
        ({"return_token_ids": True}, "return_token_ids", True),
        ({"sse_ping_interval": 2}, "ping_s", 2),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, "grammar", None),
        ({"text": {"format": {"type": "json_object"}}}, "grammar", ANY_OBJECT),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"z": 1, "a": 2}, "strict": False}}},
            "grammar",
            GrammarSpec("json_schema", '{"z":1,"a":2}', "text.format"),
        ),
        ({"regex": "a+"}, "grammar", GrammarSpec("regex", "a+", "regex")),
        ({"lark": "start: A"}, "grammar", GrammarSpec("lark", "start: A", "lark")),
    ],
)  # fmt: skip
def test_honoured(given: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(parsed(**given), name) == value


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"input": None}, "input", None),
        ({"input": []}, "input", None),
        ({"input": 5}, "input", None),
        ({"input": ["x"]}, "input", None),
        ({"instructions": 5}, "instructions", None),
        ({"instructions": [{"type": "function_call"}]}, "instructions", None),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"temperature": 3}, "temperature", None),
        ({"temperature": True}, "temperature", None),
        ({"seed": 2**64}, "seed", None),
        ({"stream_options": {}}, "stream_options", None),
        ({"text": 1}, "text", None),
        ({"text": {"format": {"type": "xml"}}}, "text.format", None),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format", None),
        ({"text": {"format": {"type": "json_schema", "schema": 5}}}, "text.format", None),
        ({"text": {"format": {"type": "json_object"}}, "regex": "a"}, "regex", None),
        ({"reasoning": "high"}, "reasoning", None),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", None),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary", None),
        ({"include": "reasoning.encrypted_content"}, "include", None),
        ({"top_logprobs": 21}, "top_logprobs", None),
        ({"truncation": "auto"}, "truncation", "unsupported_parameter"),
        ({"truncation": "middle"}, "truncation", None),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
        ({"previous_response_id": 5}, "previous_response_id", None),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input", "item_not_found"),
        ({"input": [{"id": "msg_x"}]}, "input", "item_not_found"),
        ({"tools": ["x"]}, "tools", None),
        ({"tools": [{}]}, "tools", None),
        ({"tools": [{"type": "function"}]}, "tools", None),
        ({"tools": [{"type": "function", "name": "f", "parameters": "x"}]}, "tools", None),
        ({"tools": [{"type": "custom", "name": "f", "format": {"type": "bnf"}}]}, "tools", None),
        ({"tools": [{"type": "namespace", "tools": []}]}, "tools", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice", None),
        ({"tool_choice": "often", "tools": [FUNCTION]}, "tool_choice", None),
        ({"tool_choice": {"type": "function", "name": "g"}, "tools": [FUNCTION]}, "tool_choice", None),
        ({"tool_choice": {"type": "web_search"}, "tools": [FUNCTION]}, "tool_choice", "unsupported_parameter"),
        ({"tool_choice": {}, "tools": [FUNCTION]}, "tool_choice", None),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": [FUNCTION]},
            "tool_choice",
            None,
        ),
    ],
)
def test_refused(given: dict[str, Any], param: str, code: str | None) -> None:
    error = refusal(**given)
    assert (error.param, error.code) == (param, code), str(error)


def test_without_a_store_references_are_not_supported() -> None:
    for given, param in (
        ({"previous_response_id": "resp_x"}, "previous_response_id"),
        ({"input": [{"type": "item_reference", "id": "msg_x"}]}, "input"),
    ):
        error = refusal(size=0, **given)
        assert (error.param, error.code) == (param, "unsupported_parameter")
    assert parsed(size=0, previous_response_id="").messages


@pytest.mark.parametrize(
    "given",
    [
        {"max_tool_calls": 3, "service_tier": "auto", "client_metadata": {"a": 1}, "context_management": [{}]},
        dict.fromkeys(
            ("reasoning", "text", "tools", "metadata", "include", "truncation", "background", "prompt", "stop")
        ),
        {"reasoning": {"effort": None, "summary": None}, "text": {"format": None}, "include": []},
        {"background": False, "truncation": "disabled", "unheard_of": {"x": 1}},
    ],
)
def test_ignored(given: dict[str, Any]) -> None:
    assert parsed(**given).messages == (Message("user", (Text("hi"),)),)


# --- input ---


def test_instructions_come_first() -> None:
    system = Message("system", (Text("Be brief."),))
    assert parsed(instructions="Be brief.").messages[0] == system
    as_items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]}]
    assert parsed(instructions=as_items).messages[0] == system


def test_messages_with_and_without_a_type() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": [], "logprobs": []},
        {"type": "text", "text": "c"},
        {"type": "refusal", "refusal": "no"},
    ]
    assert turns(
        {"role": "developer", "content": "D"},
        {"type": "message", "role": "user", "content": parts, "id": "msg_1", "status": "completed", "phase": "x"},
    ) == (Message("system", (Text("D"),)), Message("user", (Text("abc"),)))


def test_items_of_one_side_are_one_turn_in_their_order() -> None:
    assert turns(
        {"role": "user", "content": "go"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "Checking."},
        CALL,
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": 'say "x"'},
        {"role": "assistant", "content": "Wait."},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
        {"role": "assistant", "content": "Done."},
    ) == (
        Message("user", (Text("go"),)),
        Message(
            "assistant",
            (
                Reasoning("hm"),
                Text("Checking."),
                ToolCall("c1", "f", '{"a": 1}'),
                ToolCall("c2", "apply_patch", r'{"input": "say \"x\""}'),
                Text("Wait."),
            ),
        ),
        Message("tool", (ToolResult("c1", "one"), ToolResult("c2", "two"))),
        Message("assistant", (Text("Done."),)),
    )


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
        ([], ""),
        ([{"type": "input_image", "image_url": "data:,"}], "[input_image left out: this model reads text only]"),
        ({"ok": True}, '{"ok": true}'),
        (None, ""),
    ],
)
def test_outputs(output: Any, text: str) -> None:
    item = {"type": "function_call_output", "call_id": "orphan", "output": output}
    assert turns({"role": "user", "content": "x"}, item)[-1] == Message("tool", (ToolResult("orphan", text),))


def test_arguments_as_an_object_and_as_broken_text() -> None:
    assert turns({**CALL, "arguments": {"a": "ü"}})[0].parts == (ToolCall("c1", "f", '{"a": "ü"}'),)
    assert turns({**CALL, "arguments": '{"a"'})[0].parts == (ToolCall("c1", "f", '{"a"'),)
    assert turns({**CALL, "arguments": ""})[0].parts == (ToolCall("c1", "f", "{}"),)


@pytest.mark.parametrize(
    "more", [{}, {"summary": None}, {"summary": [], "content": None}, {"encrypted_content": "gAAA"}]
)
def test_reasoning_of_others_is_accepted_and_dropped(more: dict[str, Any]) -> None:
    history = ({"role": "user", "content": "x"}, {"type": "reasoning", "id": "rs_1", **more})
    assert turns(*history, {"role": "user", "content": "y"}) == (
        Message("user", (Text("x"),)),
        Message("user", (Text("y"),)),
    )


def test_what_hosted_tools_left_behind_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lmhub.server"):
        told = turns(
            {"role": "user", "content": "x"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "mcp_list_tools", "tools": []},
            {"type": "local_shell_call_output", "call_id": "gone", "output": "text"},
            CALL,
            {"type": "shell_call_output", "call_id": "c1", "output": "kept"},
        )
    assert told[-1] == Message("tool", (ToolResult("c1", "kept"),))
    assert len(told) == 3
    assert "local_shell_call_output, mcp_list_tools, web_search_call" in caplog.text


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"type": "teleport"}, "input[0] is of an unsupported item type 'teleport'"),
        ({"content": "x"}, "input[0].type is missing"),
        ({"role": "wizard", "content": "x"}, "input[0].role is unknown: 'wizard'"),
        ({"role": "user"}, "input[0].content is missing"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]},
            "this server reads text only",
        ),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "this server reads text only"),
        ({"role": "user", "content": [{"text": "x"}]}, "input[0].content[0] is of an unknown type"),
        ({"type": "function_call", "call_id": "c", "arguments": "{}"}, "input[0].name is missing"),
        ({"type": "function_call", "call_id": "c", "name": "f"}, "input[0].arguments is missing"),
        ({"type": "web_search_call"}, "input holds nothing that a model can read"),
    ],
)
def test_items_that_are_refused(item: dict[str, Any], told: str) -> None:
    error = refusal(input=[item])
    assert error.param == "input" and told in str(error)


# --- tools ---


def test_functions_and_custom_tools() -> None:
    nested = {"type": "function", "function": {"name": "g"}}  # as in Chat Completions
    assert parsed(tools=[FUNCTION, PATCH, {"name": "bare"}, nested]).tools == (
        Tool("f", "d", {"type": "object"}, strict=True),
        Tool("apply_patch", custom=True, format=GrammarSpec("lark", "s: A", "tools")),
        Tool("bare"),
        Tool("g"),
    )


def test_hosted_tools_are_left_out_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "lmhub.server"):
        request = parsed(tools=[*HOSTED, FUNCTION])
    assert [tool.name for tool in request.tools] == ["f"]
    assert "image_generation, mcp, new, web_search" in caplog.text
    with pytest.raises(RequestError) as raised:
        parsed(strict_tools=True, tools=[*HOSTED, FUNCTION])
    assert (raised.value.param, raised.value.code) == ("tools", "unsupported_parameter")


def test_namespaces_are_flattened() -> None:
    space = {"type": "namespace", "name": "mcp__x", "tools": [FUNCTION, PATCH, {"type": "web_search"}]}
    request = parsed(tools=[space])
    assert [tool.name for tool in request.tools] == ["mcp__x__f", "mcp__x__apply_patch"]
    assert request.echo.namespaces == {"mcp__x__f": ("mcp__x", "f"), "mcp__x__apply_patch": ("mcp__x", "apply_patch")}
    for name in ({"name": "f", "namespace": "mcp__x"}, {"name": "mcp__x__f"}, {"name": "f"}):
        chosen = parsed(tools=[space], tool_choice={"type": "function", **name})
        assert chosen.tool_choice == ToolChoice("any", ("mcp__x__f",))
    assert turns({**CALL, "namespace": "mcp__x"})[0].parts == (ToolCall("c1", "mcp__x__f", '{"a": 1}'),)


def test_tools_that_items_bring() -> None:
    items = [{"type": "additional_tools", "tools": [FUNCTION]}, {"role": "user", "content": "x"}]
    assert [tool.name for tool in parsed(input=items).tools] == ["f"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice()),
        ("auto", ToolChoice()),
        ("required", ToolChoice("any")),
        ({"type": "function", "name": "f"}, ToolChoice("any", ("f",))),
        ({"type": "custom", "name": "apply_patch"}, ToolChoice("any", ("apply_patch",))),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}, HOSTED[0]]},
            ToolChoice("any", ("f",)),
        ),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "f"}]}, ToolChoice("auto", ("f",))),
    ],
)  # fmt: skip
def test_choices(choice: Any, expected: ToolChoice) -> None:
    assert parsed(tools=[FUNCTION, PATCH], tool_choice=choice).tool_choice == expected


def test_no_tools_for_the_choice_none() -> None:
    assert parsed(tools=[FUNCTION], tool_choice="none").tools == ()


def test_a_forced_call_wins_over_a_format() -> None:
    form = {"format": {"type": "json_object"}}
    assert parsed(tools=[FUNCTION], text=form).grammar is not None
    assert parsed(tools=[FUNCTION], text=form, tool_choice="required").grammar is None


# --- what the response repeats ---


def test_the_echo() -> None:
    tools = [FUNCTION, HOSTED[0], {"name": "bare"}]
    given: dict[str, Any] = {
        "instructions": "I",
        "tools": tools,
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "metadata": {"k": "v"},
        "user": "u",
        "max_output_tokens": 5,
        "parallel_tool_calls": False,
        "top_logprobs": 2,
    }
    echo = parsed(**given).echo
    assert {name: echo.fields[name] for name in given} == {
        **given,
        "tools": [*tools[:2], {"type": "function", "name": "bare"}],
    }
    assert echo.summarise and not echo.encrypt and echo.store


def test_store_false_is_not_kept() -> None:
    dialect = responses_dialect(8)
    assert dialect.parse(b'{"input": "x"}').echo.store
    assert not dialect.parse(b'{"input": "x", "store": false}').echo.store
    assert not responses_dialect(0).parse(b'{"input": "x", "store": true}').echo.store


def test_seals_open_what_they_closed_only() -> None:
    seal = Seal()
    blob = seal.close("Grübel 🙂")
    assert seal.open(blob) == "Grübel 🙂"
    assert Seal().open(blob) is None
    for broken in (blob[:-4], blob[:-1] + "é", blob.replace("lmhub1", "lmhub2"), "", None, 5, "lmhub1.", "lmhub1.A"):
        assert seal.open(broken) is None
    for place in range(7, len(blob) - 4, 5):  # the last characters may hold bits that mean nothing
        flipped = blob[:place] + ("A" if blob[place] != "A" else "B") + blob[place + 1 :]
        assert seal.open(flipped) is None
