"""The shapes of what real clients send, recorded by tests/clients and cut down to what is particular about them."""

from __future__ import annotations

import json
from typing import Any

from lmhub.chat.prompt import ChatFormat
from lmhub.family import HERMES, ThinkMarkers
from lmhub.server.anthropic import messages_dialect
from lmhub.server.openai_chat import chat_dialect
from lmhub.server.responses import responses_dialect
from lmhub.settings import ServerSettings
from lmhub.testing.fake import FakeTokenizer
from lmhub.types import ChatRequest, Message, Reasoning, Text, ToolCall, ToolChoice, ToolResult

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
STRICT = {"$schema": "http://json-schema.org/draft-07/schema#", **SCHEMA, "additionalProperties": False}
EPHEMERAL = {"cache_control": {"type": "ephemeral"}}


def anthropic(**body: Any) -> ChatRequest:
    """What a body of Messages asks for."""
    return _parsed(messages_dialect(ServerSettings()), body)


def chat(**body: Any) -> ChatRequest:
    """What a body of Chat Completions asks for."""
    return _parsed(chat_dialect(ServerSettings()), body)


def responses(**body: Any) -> ChatRequest:
    """What a body of Responses asks for."""
    return _parsed(responses_dialect(8), body)


def _parsed(dialect: Any, body: dict[str, Any]) -> ChatRequest:
    request = dialect.parse(json.dumps({"model": "local", **body}).encode())
    assert isinstance(request, ChatRequest)
    return request


# --- agents ----------------------------------------------------------------------------------------------------------

CLAUDE_CODE: dict[str, Any] = {
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>\nIt is Monday.\n</system-reminder>\n\n"},
                {"type": "text", "text": "read both"},
            ],
        },
        {"role": "system", "content": "There are agents."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "two files", "signature": "c2lnbmVk"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"name": "a"}},
                {"type": "tool_use", "id": "toolu_2", "name": "Read", "input": {"name": "b"}},
            ],
        },
        {
            "role": "user",
            "content": [  # in the order in which the files were read
                {"tool_use_id": "toolu_2", "type": "tool_result", "content": "in b"},
                {"tool_use_id": "toolu_1", "type": "tool_result", "content": "in a", **EPHEMERAL},
            ],
        },
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.197.c7a; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are an agent.", **EPHEMERAL},
        {"type": "text", "text": "\nBe careful.", **EPHEMERAL},
    ],
    "tools": [{"name": "Read", "description": "Reads.", "input_schema": STRICT}],
    "metadata": {"user_id": '{"device_id":"0a","account_uuid":"","session_id":"bb"}'},
    "max_tokens": 8192,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}


def test_claude_code() -> None:
    request = anthropic(**CLAUDE_CODE)
    assert request.reasoning is True and request.max_tokens == 8192 and request.stream
    assert "x-anthropic-billing-header" not in str(request.messages)
    assert request.messages[0].role == "system" and "You are an agent." in request.messages[0].text
    (assistant,) = [message for message in request.messages if message.role == "assistant"]
    assert [type(part) for part in assistant.parts] == [Reasoning, Text, ToolCall, ToolCall]
    assert request.tools[0].parameters == STRICT


def test_claude_code_gets_the_same_prompt_whatever_its_bookkeeping_says() -> None:
    other = json.loads(json.dumps(CLAUDE_CODE))
    other["system"][0]["text"] = "x-anthropic-billing-header: cc_version=2.1.197.db9; cc_entrypoint=sdk-cli; cch=1f2e3;"
    other["metadata"]["user_id"] = "another"
    del other["messages"][3]["content"][1]["cache_control"]
    assert anthropic(**other).messages == anthropic(**CLAUDE_CODE).messages


def test_results_that_claude_code_sends_as_they_come_in_are_shown_in_the_order_of_the_calls() -> None:
    request = anthropic(**CLAUDE_CODE)
    chatml = ChatFormat.from_metadata({}, FakeTokenizer(), think=ThinkMarkers(), tools=HERMES)
    prompt = chatml.render(request.messages, request.tools).text
    shown = ["You are an agent.", "Be careful.", '"Read"', "read both", "Let me look.", "in a", "in b"]
    places = [prompt.index(text) for text in shown]
    assert places == sorted(places) and prompt.endswith("<|im_start|>assistant\n")


def test_codex() -> None:
    request = responses(
        stream=True,
        input=[
            {
                "type": "message",
                "id": "msg_1",
                "role": "developer",
                "content": [{"type": "input_text", "text": "You."}],
            },
            {
                "type": "message",
                "id": "msg_2",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Skills."}, {"type": "input_text", "text": "Permissions."}],
            },
            {"type": "message", "id": "msg_3", "role": "user", "content": [{"type": "input_text", "text": "Here."}]},
            {"type": "message", "id": "msg_4", "role": "user", "content": [{"type": "input_text", "text": "read"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "a file"}],
                "encrypted_content": "lmhub1.of-another-process",
            },
            {
                "type": "message",
                "status": "completed",
                "id": "msg_5",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}],
            },
            {
                "type": "function_call",
                "status": "completed",
                "id": "fc_1",
                "name": "read_note",
                "namespace": "mcp__notes",
                "arguments": '{"name": "a"}',
                "call_id": "call_1",
            },
            {
                "type": "function_call_output",
                "id": "fco_1",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "Output:"}, {"type": "input_text", "text": "in a"}],
            },
        ],
        tools=[
            {"type": "function", "name": "exec_command", "description": "d", "strict": False, "parameters": SCHEMA},
            {
                "type": "namespace",
                "name": "mcp__notes",
                "description": "Tools of a server.",
                "tools": [{"type": "function", "name": "read_note", "strict": False, "parameters": SCHEMA}],
            },
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="01a2",
        client_metadata={"turn_id": "01a2", "x-codex-window-id": "01a2:0"},
        text={"format": {"type": "json_schema", "strict": True, "schema": STRICT, "name": "codex_output_schema"}},
    )
    names = [tool.name for tool in request.tools]
    assert names == ["exec_command", "mcp__notes__read_note"]
    *_, assistant, result = request.messages
    assert [type(part) for part in assistant.parts] == [Text, ToolCall]  # the reasoning is not of this process
    assert assistant.parts[-1] == ToolCall("call_1", names[1], '{"name": "a"}')
    assert isinstance(result.parts[0], ToolResult) and "in a" in result.parts[0].content
    assert request.grammar is not None and request.stream


def test_qwen_code_and_opencode() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"name":"a"}'}}
    for content, reasoning in ((None, {}), ("", {}), ("Let me look.", {"reasoning_content": "a file"})):
        request = chat(
            messages=[
                {"role": "system", "content": "You are an agent."},
                {"role": "user", "content": [{"type": "text", "text": "It is Monday."}]},
                {"role": "assistant", "content": "Got it."},
                {"role": "user", "content": [{"type": "text", "text": "read"}]},
                {"role": "assistant", "content": content, **reasoning, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "in a"}]},
            ],
            stream=True,
            stream_options={"include_usage": True},
            tools=[{"type": "function", "function": {"name": "read", "description": "d", "parameters": STRICT}}],
            tool_choice="auto",
            max_tokens=8000,
        )
        *_, assistant, result = request.messages
        assert assistant.text == (content or "")
        assert [part for part in assistant.parts if not isinstance(part, Text)] == [
            *([Reasoning("a file")] if reasoning else []),
            ToolCall("call_1", "read", '{"name":"a"}'),
        ]
        assert result.parts == (ToolResult("call_1", "in a"),)
        assert request.include_usage


# --- libraries -------------------------------------------------------------------------------------------------------


def test_litellm_leaves_the_content_of_a_call_out_and_calls_tools_custom() -> None:
    call = {"function": {"arguments": '{"name": "a"}', "name": "read"}, "id": "call_1", "type": "function"}
    turns = [{"role": "user", "content": "read"}, {"role": "assistant", "tool_calls": [call]}]
    assert chat(messages=turns, max_tokens=5).messages[1] == Message(
        "assistant", (ToolCall("call_1", "read", '{"name": "a"}'),)
    )
    tool = {"name": "read", "input_schema": SCHEMA, "type": "custom", "description": "d"}
    request = anthropic(messages=turns[:1], max_tokens=5, tools=[tool])
    assert request.tools[0].parameters == SCHEMA and not request.tools[0].custom


def test_the_ai_sdk_asks_for_arguments_as_they_come() -> None:
    tool = {"name": "read", "description": "d", "input_schema": STRICT, "eager_input_streaming": True}
    turns = [{"role": "user", "content": [{"type": "text", "text": "read"}]}]
    request = anthropic(messages=turns, max_tokens=5, tools=[tool], tool_choice={"type": "auto"}, stream=True)
    assert request.tools[0].eager


def test_the_ai_sdk_forces_a_call_for_an_object() -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    tools = [{"name": "json", "description": "d", "input_schema": STRICT}]
    request = anthropic(messages=[{"role": "user", "content": "a"}], max_tokens=5, tools=tools, tool_choice=choice)
    assert request.tool_choice.mode == "any" and not request.parallel_tool_calls


def test_langchain_replays_reasoning_that_it_never_saw_the_end_of() -> None:
    request = responses(
        input=[
            {"content": "read", "role": "user", "type": "message"},
            {"id": "rs_1", "summary": [], "type": "reasoning", "content": [], "status": "in_progress"},
            {
                "type": "message",
                "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
                "role": "assistant",
                "id": "msg_1",
            },
            {"type": "function_call", "name": "read", "arguments": "{}", "call_id": "call_1", "id": "fc_1"},
            {"type": "function_call_output", "output": "in a", "call_id": "call_1"},
        ],
        stream=False,
    )
    assert request.messages[1] == Message("assistant", (Text("Let me look."), ToolCall("call_1", "read", "{}")))


def test_pydantic_ai_replays_raw_reasoning_and_items_without_ids() -> None:
    request = responses(
        input=[
            {"role": "user", "content": "read"},
            {
                "id": "rs_1",
                "summary": [],
                "encrypted_content": None,
                "type": "reasoning",
                "content": [{"text": "a file", "type": "reasoning_text"}],
            },
            {"role": "assistant", "content": "Let me look."},
            {"name": "read", "arguments": "{}", "call_id": "call_1", "type": "function_call"},
            {"type": "function_call_output", "call_id": "call_1", "output": "in a"},
        ],
        stream=False,
        tool_choice="required",
        tools=[{"name": "read", "parameters": STRICT, "type": "function", "description": "d", "strict": True}],
    )
    parts = (Reasoning("a file"), Text("Let me look."), ToolCall("call_1", "read", "{}"))
    assert request.messages[1] == Message("assistant", parts)
    assert request.tool_choice.mode == "any" and request.tools[0].strict


def test_instructor_sends_a_forced_call_and_a_format() -> None:
    request = responses(
        input=[{"role": "user", "content": "a"}],
        max_output_tokens=1000,
        text={"format": {"type": "json_schema", "name": "Note", "schema": STRICT, "strict": True}},
        tool_choice={"type": "function", "name": "Note"},
        tools=[{"type": "function", "name": "Note", "parameters": STRICT}],
    )
    assert request.tool_choice == ToolChoice("any", ("Note",)) and request.grammar is None
