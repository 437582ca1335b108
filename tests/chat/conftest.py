"""The golden conversations, and the models whose tokenizer and template the tests of this folder use."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from lmhub.chat.prompt import ChatFormat
from lmhub.family import HERMES, ThinkMarkers
from lmhub.gguf import open_gguf
from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.types import Message, Part, Reasoning, Text, Tool, ToolCall, ToolResult


@dataclass(frozen=True)
class Golden:
    """One conversation and what it renders to: `text`, or the `error` that the template raises. `said` is its JSON."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    options: Mapping[str, Any]
    text: str | None
    error: str | None
    said: str


@pytest.fixture(scope="session")
def load_format(shared: Path) -> Callable[..., tuple[ChatFormat, Tokenizer]]:
    """`load_format(folder, template)`: format and tokenizer of a golden model, maybe with another template."""

    @cache
    def read(folder: str) -> tuple[Mapping[str, Any], Tokenizer]:
        metadata = open_gguf(sorted((shared / "zoo" / folder).glob("model-*.gguf"))[0]).metadata
        return metadata, load_tokenizer(metadata)

    @cache  # some templates take 50 ms to compile
    def load(folder: str, template: str | None = None) -> tuple[ChatFormat, Tokenizer]:
        metadata, tokenizer = read(folder)
        if template is not None:
            source = (shared / "zoo" / folder / template).read_text()
            metadata = {**metadata, "tokenizer.chat_template": source}
        think = ThinkMarkers(switch=None) if tokenizer.token_id("<think>") is not None else None
        return ChatFormat.from_metadata(metadata, tokenizer, think=think, tools=HERMES), tokenizer

    return load


@pytest.fixture(scope="session")
def load_goldens(shared: Path) -> Callable[[str, str], dict[str, Golden]]:
    """`load_goldens(folder, file)`: the conversations by name, with messages and tools as our own types."""

    def load(folder: str, file: str) -> dict[str, Golden]:
        rows = json.loads((shared / "zoo" / folder / file).read_text())["rows"]
        return {row["name"]: _golden(row) for row in rows}

    return load


def _golden(row: Mapping[str, Any]) -> Golden:
    kwargs = dict(row["kwargs"])
    return Golden(
        messages=tuple(_message(message) for message in row["messages"]),
        tools=tuple(Tool(**tool["function"]) for tool in row["tools"] or ()),
        options={"add_generation_prompt": kwargs.pop("add_generation_prompt"), "template_kwargs": kwargs},
        text=row.get("text"),
        error=row.get("error"),
        said=json.dumps([row["messages"], row["tools"]], ensure_ascii=False),
    )


def _message(message: Mapping[str, Any]) -> Message:
    content = message["content"] or ""
    if message["role"] == "tool":
        return Message("tool", (ToolResult(message["tool_call_id"], content),))
    parts: list[Part] = []
    if message.get("reasoning_content"):
        parts.append(Reasoning(message["reasoning_content"]))
    parts += [Text(content)] if isinstance(content, str) else [Text(part["text"]) for part in content]
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parts.append(ToolCall(call["id"], function["name"], json.dumps(function["arguments"], ensure_ascii=False)))
    return Message(message["role"], tuple(parts))
