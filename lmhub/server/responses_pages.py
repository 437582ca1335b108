"""The stored responses as resources: get, delete, list what went in; and what is known here but not offered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lmhub.dialect import Page
from lmhub.errors import LmhubError, RequestError
from lmhub.server.responses_store import Item, Kept, ResponseStore
from lmhub.server.wire import to_json

_LIMIT, _MAX_LIMIT = 20, 100  # items of one page


class UnknownResponse(RequestError):
    """No stored response has this id."""

    status = 404


class NotOffered(LmhubError):
    """A part of the vendor's service that this server does not have."""

    status = 501
    kind = "not_supported_error"


def pages(store: ResponseStore) -> tuple[Page, ...]:
    """The routes beside `POST /responses`; those of the store only where there is one."""
    compact = Page("POST", "/responses/compact", _compact)
    if not store.size:
        return (compact,)
    shelf = _Shelf(store)
    return (
        compact,
        Page("GET", "/responses/{id}", shelf.get),
        Page("DELETE", "/responses/{id}", shelf.delete),
        Page("GET", "/responses/{id}/input_items", shelf.input_items),
        Page("POST", "/responses/{id}/cancel", shelf.cancel),
    )


class _Shelf:
    def __init__(self, store: ResponseStore):
        self._store = store

    def get(self, parameters: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        """The response object."""
        kept = self._kept(parameters)
        if query.get("stream", "").lower() in ("true", "1"):
            raise RequestError("a stored response cannot be streamed; leave stream out", "stream")
        return kept.body

    def delete(self, parameters: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        """That it is gone. Later responses that went on from it are not affected."""
        id = self._kept(parameters).id
        self._store.delete(id)
        return to_json({"id": id, "object": "response", "deleted": True})

    def input_items(self, parameters: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        """A page of what the model was given, the newest first unless `order` is asc."""
        items = self._kept(parameters).input
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise RequestError("order must be asc or desc", "order")
        items = items if order == "asc" else items[::-1]
        return to_json(_listed(_after(items, query.get("after")), _limit(query.get("limit"))))

    def cancel(self, parameters: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        """A refusal: what is stored has ended."""
        self._kept(parameters)
        raise RequestError("only background responses can be cancelled; close the connection to stop a running one")

    def _kept(self, parameters: Mapping[str, str]) -> Kept:
        id = parameters["id"]
        kept = self._store.find(id)
        if kept is None:
            raise UnknownResponse(
                f"Response with id {id[:100]!r} not found: it was never kept here, or is kept no longer"
            )
        return kept


def _after(items: Sequence[Item], id: str | None) -> Sequence[Item]:
    if not id:
        return items
    place = next((place for place, item in enumerate(items) if item.id == id), None)
    if place is None:
        raise RequestError(f"after names {id[:100]!r}, which is not an item of this response", "after")
    return items[place + 1 :]


def _limit(given: str | None) -> int:
    if given is None:
        return _LIMIT
    if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= _MAX_LIMIT:
        raise RequestError(f"limit must be an integer from 1 to {_MAX_LIMIT}", "limit")
    return int(given)


def _listed(items: Sequence[Item], limit: int) -> dict[str, Any]:
    page = items[:limit]
    return {
        "object": "list",
        "data": [msgspec.Raw(item.data) for item in page],
        "first_id": page[0].id if page else None,
        "last_id": page[-1].id if page else None,
        "has_more": len(items) > limit,
    }


def _compact(parameters: Mapping[str, str], query: Mapping[str, str]) -> bytes:
    raise NotOffered("POST /responses/compact is not offered here; send a shorter input instead")
