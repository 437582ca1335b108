"""What a request gives the model to read: its own items, those that it refers to, those of the response before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lmhub.errors import RequestError
from lmhub.server.fields import unsupported
from lmhub.server.responses_input import kind_of
from lmhub.server.responses_record import Given
from lmhub.server.responses_store import Item, ResponseStore


def effective(
    items: str | Sequence[Mapping[str, Any]] | None, previous: str | None, store: ResponseStore
) -> list[tuple[Given, str]]:
    """`(item, path)` pairs, the oldest first; no item is a reference. Raises RequestError."""
    before = _previous(previous, store) if previous else []
    if items is None and not previous:
        raise RequestError("input is missing", "input")
    if isinstance(items, str):
        items = [{"role": "user", "content": [{"type": "input_text", "text": items}]}]
    pairs = before + [_one(item, f"input[{place}]", store) for place, item in enumerate(items or ())]
    if not pairs:
        raise RequestError("input is empty; at least one message is required", "input")
    return pairs


def additional_tools(pairs: Iterable[tuple[Given, str]]) -> list[Mapping[str, Any]]:
    """The tools that items bring along, as one client's do in the middle of a conversation."""
    found: list[Mapping[str, Any]] = []
    for given, _ in pairs:
        tools = given.value.get("tools") if given.value["type"] == "additional_tools" else None
        found += [tool for tool in tools if isinstance(tool, Mapping)] if isinstance(tools, list) else []
    return found


def _previous(id: str, store: ResponseStore) -> list[tuple[Given, str]]:
    if not store.size:
        raise unsupported(
            "previous_response_id",
            "previous_response_id is not supported: this server keeps no responses; send the whole input",
        )
    kept = store.find(id)
    if kept is None:
        raise RequestError(
            f"Previous response with id {id[:100]!r} not found: it was never kept here, or no longer is; "
            "send the whole input",
            "previous_response_id",
            "previous_response_not_found",
        )
    return [(_known(item), "input") for item in (*kept.input, *kept.output)]


def _one(item: Mapping[str, Any], path: str, store: ResponseStore) -> tuple[Given, str]:
    kind = kind_of(item, path)
    if kind != "item_reference":
        return Given({**item, "type": kind}), path
    if not store.size:
        raise unsupported("input", f"{path} is an item_reference, and this server keeps no items; send the item itself")
    id = item.get("id")
    found = store.item(id) if isinstance(id, str) else None
    if found is None:
        raise RequestError(
            f"Item with id {str(id)[:100]!r} not found: it was never kept here, or no longer is; send the item itself",
            "input",
            "item_not_found",
        )
    return _known(found), path


def _known(item: Item) -> Given:
    return Given(msgspec.json.decode(item.data), item)
