"""The store of finished responses: its three bounds, its owners; and the pages that show it."""

from __future__ import annotations

import contextvars
import json
from typing import Any

import pytest

from lmhub.errors import LmhubError
from lmhub.server.owner import OWNER
from lmhub.server.responses_pages import pages
from lmhub.server.responses_store import Item, Kept, ResponseStore


def kept(name: str, n_items: int = 1) -> Kept:
    """A response with so many input items of ten bytes each and one of its own."""
    given = tuple(Item(f"in_{name}{place}", b'{"n": %3d}' % place) for place in range(n_items))
    return Kept(f"resp_{name}", b'{"id":"%s"}' % name.encode(), given, (Item(f"msg_{name}", b'{"type":1}'),))


def page(store: ResponseStore, method: str, suffix: str, id: str, **query: str) -> Any:
    """What a page answers."""
    path = "/responses/{id}" + suffix
    (found,) = [one for one in pages(store) if (one.method, one.path) == (method, path)]
    return json.loads(found.answer({"id": id}, query))


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(2)
    store.put(kept("a"))
    store.put(kept("b"))
    assert store.find("resp_a") is not None
    store.put(kept("c"))
    assert store.find("resp_b") is None
    assert store.item("msg_a") is not None
    store.put(kept("d"))
    assert store.find("resp_c") is None


def test_bytes_are_bounded() -> None:
    store = ResponseStore(100, max_bytes=1000)
    for name in "abc":
        store.put(kept(name, n_items=40))
    assert store.find("resp_a") is None and store.find("resp_c") is not None
    store.put(kept("d", n_items=200))
    assert store.find("resp_d") is None and store.find("resp_c") is not None, "what cannot fit pushes nothing out"
    for name in "efg":
        store.put(kept(name, n_items=40))
    assert store.find("resp_f") is not None, "what went out no longer counts"


def test_age_counts_from_the_last_use() -> None:
    now = 0.0
    store = ResponseStore(10, ttl_s=60, clock=lambda: now)
    store.put(kept("a"))
    store.put(kept("b"))
    now = 50.0
    assert store.find("resp_a") is not None
    now = 100.0
    assert store.find("resp_b") is None and store.item("msg_b") is None
    assert store.find("resp_a") is not None


def test_clients_see_their_own_only() -> None:
    store = ResponseStore(10)

    def as_other(work: Any, *args: Any) -> Any:
        def run() -> Any:
            OWNER.set("other")
            return work(*args)

        return contextvars.copy_context().run(run)

    store.put(kept("a"))
    as_other(lambda: store.put(kept("b")))
    assert as_other(store.find, "resp_a") is None and as_other(store.item, "msg_a") is None
    assert not as_other(store.delete, "resp_a")
    assert store.find("resp_b") is None and as_other(store.find, "resp_b") is not None


def test_nothing_is_kept_without_room() -> None:
    store = ResponseStore(0)
    store.put(kept("a"))
    assert store.find("resp_a") is None
    assert [one.path for one in pages(store)] == ["/responses/compact"]


def test_get_and_delete() -> None:
    store = ResponseStore(2)
    store.put(kept("a"))
    assert page(store, "GET", "", "resp_a") == {"id": "a"}
    with pytest.raises(LmhubError) as raised:
        page(store, "GET", "", "resp_a", stream="true")
    assert raised.value.status == 400
    assert page(store, "DELETE", "", "resp_a") == {"id": "resp_a", "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        with pytest.raises(LmhubError, match="'resp_a' not found") as raised:
            page(store, method, "", "resp_a")
        assert (raised.value.status, raised.value.kind) == (404, "invalid_request_error")


def test_input_items() -> None:
    store = ResponseStore(2)
    store.put(kept("a", n_items=30))
    listed = page(store, "GET", "/input_items", "resp_a")
    assert [item["n"] for item in listed["data"]] == list(range(29, 9, -1))
    assert (listed["object"], listed["has_more"]) == ("list", True)
    assert (listed["first_id"], listed["last_id"]) == ("in_a29", "in_a10")
    more = page(store, "GET", "/input_items", "resp_a", after="in_a10", limit="50")
    assert [item["n"] for item in more["data"]] == list(range(9, -1, -1)) and not more["has_more"]
    assert page(store, "GET", "/input_items", "resp_a", order="asc", limit="1")["data"] == [{"n": 0}]
    for wrong in ({"limit": "0"}, {"limit": "x"}, {"limit": "101"}, {"order": "up"}, {"after": "in_b0"}):
        with pytest.raises(LmhubError) as raised:
            page(store, "GET", "/input_items", "resp_a", **wrong)
        assert raised.value.status == 400
    empty = page(store, "GET", "/input_items", "resp_a", after="in_a0")
    assert (empty["data"], empty["first_id"], empty["has_more"]) == ([], None, False)


def test_cancel_and_compact_are_refused() -> None:
    store = ResponseStore(2)
    store.put(kept("a"))
    with pytest.raises(LmhubError, match="only background responses") as raised:
        page(store, "POST", "/cancel", "resp_a")
    assert raised.value.status == 400
    with pytest.raises(LmhubError) as raised:
        pages(store)[0].answer({}, {})
    assert raised.value.status == 501
