"""Content blocks of Messages requests, as clients send and replay them: text, thinking, calls, results, documents.

Blocks come as plain dictionaries, because clients attach new keys (`cache_control`, `caller`, `citations`) with every
release; only what is used here is looked at. Knows nothing of turns and their order.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from lmhub.errors import RequestError
from lmhub.server.anthropic_thinking import unsealed
from lmhub.server.fields import unsupported
from lmhub.server.json_body import param
from lmhub.types import Reasoning, Text, ToolCall, ToolResult

log = logging.getLogger("lmhub.server")

Block = Mapping[str, Any]

_HOSTED = ("server_tool_use", "container_upload", "mcp_tool_use", "compaction", "fallback")  # and *_tool_result
_UNSEEN = {"type": "text", "text": "[image left out: this model reads text only]"}
_PLACES = {  # of the block types that belong to one side
    "thinking": "assistant",
    "redacted_thinking": "assistant",
    "tool_use": "assistant",
    "tool_result": "user",
    "image": "user",
}


def parts_of(blocks: Sequence[Block], role: str, path: str) -> list[Text | Reasoning | ToolCall | ToolResult]:
    """The parts of one message in their order. Raises RequestError that names the block's path.

    What hosted tools left in a history is dropped with a log line: no template has a place for it.
    """
    parts: list[Text | Reasoning | ToolCall | ToolResult] = []
    for place, block in enumerate(blocks):
        where = f"{path}[{place}]"
        kind = _kind(block, where)
        if _PLACES.get(kind, role) != role:
            _refuse(where, f"is of type {kind}, which belongs to the {_PLACES[kind]}'s messages")
        if kind == "thinking":
            parts += _thinking(block, where)
        elif kind == "tool_use":
            parts.append(_call(block, where))
        elif kind == "tool_result":
            parts.append(_result(block, where))
        elif kind in _HOSTED or kind.endswith("_tool_result"):
            log.info("%s: a block of type %s was dropped; it belongs to a hosted tool", where, kind)
        elif kind != "redacted_thinking":
            parts.append(Text(_text_of(block, kind, where)))
    return parts


def plain_text(blocks: Sequence[Block], path: str) -> list[str]:
    """The texts of blocks that must all be text. Raises RequestError."""
    texts = []
    for place, block in enumerate(blocks):
        where = f"{path}[{place}]"
        kind = _kind(block, where)
        if kind != "text":
            _refuse(where, f"is of type {kind[:100]}, and only text is allowed here")
        texts.append(_string(block, "text", where))
    return texts


def _kind(block: Block, path: str) -> str:
    kind = block.get("type")
    if kind is None:
        _refuse(f"{path}.type", "is missing")
    if not isinstance(kind, str):
        _refuse(f"{path}.type", "must be a string")
    return kind


def _text_of(block: Block, kind: str, path: str) -> str:
    """The text that a block of a kind other than calls, results and thinking stands for."""
    if kind == "text":
        return _string(block, "text", path)
    if kind == "document":
        return _document(block, path)
    if kind == "search_result":
        lines = [_string(block, key, path, "") for key in ("title", "source")]
        return "\n".join([*filter(None, lines), _content(block.get("content"), f"{path}.content")]) + "\n"
    if kind == "tool_reference":
        return _string(block, "tool_name", path, "") + "\n"
    if kind == "image":
        _refuse_image(block, path)
    _refuse(path, f"is of an unknown type {kind[:100]!r}; send text")


def _content(content: Any, path: str) -> str:
    """The text of a `content` that is a string, a list of blocks, or absent."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        _refuse(path, "must be a string or an array of content blocks")
    places = [f"{path}[{place}]" for place in range(len(content))]
    return "".join(_text_of(one, _kind(one, where), where) for one, where in zip(content, places, strict=True))


def _thinking(block: Block, path: str) -> list[Reasoning]:
    """The thinking of an earlier turn, from its signature where the client was not shown it."""
    text = _string(block, "thinking", path, "") or unsealed(_string(block, "signature", path, ""))
    return [Reasoning(text)] if text else []


def _call(block: Block, path: str) -> ToolCall:
    given = block.get("input")
    if not isinstance(given, dict):
        _refuse(f"{path}.input", "must be an object")
    # With the blanks that the templates' own `tojson` writes.
    return ToolCall(_string(block, "id", path, ""), _string(block, "name", path), json.dumps(given, ensure_ascii=False))


def _result(block: Block, path: str) -> ToolResult:
    """What a tool answered.

    The model is told of an image that it cannot see: refused, it would end the session for good, being history.
    """
    content = block.get("content")
    if isinstance(content, list):
        content = [_UNSEEN if isinstance(one, dict) and one.get("type") == "image" else one for one in content]
    text = _content(content, f"{path}.content")
    if block.get("is_error") is True and not text.lower().startswith("error"):
        text = f"Error: {text}"
    return ToolResult(_string(block, "tool_use_id", path, ""), text)


def _document(block: Block, path: str) -> str:
    """A document that is text, below its title and context; a file or an address of one is refused."""
    source = block.get("source")
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or kind not in ("text", "content"):
        _unsupported(
            f"{path}.source", f"is of type {str(kind)[:100]}, and this server reads documents as text only; send text"
        )
    if kind == "text":
        text = _string(source, "data", f"{path}.source")
    else:
        text = _content(source.get("content"), f"{path}.source.content")
    heads = [_string(block, key, path, "") for key in ("title", "context")]
    return "\n".join([*filter(None, heads), text]) + "\n"


def _refuse_image(block: Block, path: str) -> NoReturn:
    source = block.get("source")
    if isinstance(source, dict) and source.get("type") in ("url", "file"):
        _unsupported(f"{path}.source", f"is of type {source['type']}, and this server fetches nothing; leave it out")
    _unsupported(path, "is an image, and this server reads text only; leave it out")


def _string(block: Block, key: str, path: str, default: str | None = None) -> str:
    """A string field; absent and null give `default`, or are refused where there is none."""
    value = block.get(key)
    if value is None:
        if default is None:
            _refuse(f"{path}.{key}", "is missing")
        return default
    if not isinstance(value, str):
        _refuse(f"{path}.{key}", "must be a string")
    return value


def _refuse(path: str, problem: str) -> NoReturn:
    raise RequestError(f"{path} {problem}", param(path))


def _unsupported(path: str, problem: str) -> NoReturn:
    raise unsupported(param(path), f"{path} {problem}")
