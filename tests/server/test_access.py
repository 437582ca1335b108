"""The access log: one line a request, with what its generations took, and nothing that a client wrote."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from lmhub.server.access import AccessLog, Entry, line
from lmhub.testing.fake import FakeModel, Gate
from lmhub.types import GenerationRecord, Timings, Usage

Make = Callable[..., Any]
CHAT = "/v1/chat/completions"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    """What was logged so far; without this fixture, nobody listens."""
    caplog.set_level(logging.INFO, "lmhub.access")
    yield lambda: [record.getMessage() for record in caplog.records if record.name == "lmhub.access"]


def facts(said: str) -> dict[str, str]:
    """The named words of a line."""
    return dict(word.split("=", 1) for word in said.split() if "=" in word)


def test_a_reply_is_one_line(api: Make, lines: Any) -> None:
    made = api("Hello")
    usage = made.post(CHAT + "?key=s3cret", messages=[{"role": "user", "content": "hi"}], model="nobody").json()[
        "usage"
    ]
    [said] = lines()
    assert said.startswith(f"POST {CHAT} 200 id=req_")
    found = facts(said)
    assert (found["model"], found["finish"], found["source"]) == ("fake", "stop", "none")
    assert int(found["prompt"]) == usage["prompt_tokens"] and int(found["completion"]) == usage["completion_tokens"]
    assert {"queue_ms", "prefill_ms", "decode_ms", "total_ms", "cached"} <= found.keys()
    assert int(found["bytes"]) > 100 and "client" not in found
    assert "s3cret" not in said and "nobody" not in said


def test_whatever_has_an_answer_has_a_line(api: Make, lines: Any) -> None:
    made = api()
    made.get("/health")
    made.get("/v1/no%20pe%1b[31m")
    made.error(temperature=9)
    made.get("/health", host="evil.example")
    assert [said.partition(" id=")[0] for said in lines()] == [
        "GET /health 200",
        "GET /v1/no%20pe%1B%5B31m 404",
        f"POST {CHAT} 400",
        "GET /health 403",
    ]
    assert all("model=" not in said and said.isprintable() for said in lines())


def test_choices_are_summed(api: Make, lines: Any) -> None:
    api("Hello").chat(n=3, max_tokens=2)
    found = facts(lines()[0])
    assert (found["completion"], found["finish"]) == ("6", "length")


def test_a_client_that_goes_away_has_a_line_with_what_it_cost(rig: Make, serving: Any, lines: Any) -> None:
    gate = Gate()
    gate.let(3)
    made = rig(FakeModel(b"x" * 400, gate=gate), batch=1)
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with serving(made.hub) as running:
        with httpx.stream("POST", running.address + CHAT, json=body) as response:
            assert "assistant" in next(response.iter_lines())
        made.observer.closed.get(timeout=30)
        gate.open()
        assert made.observer.records.get(timeout=30).finish == "cancelled"
    [said] = lines()
    found = facts(said)
    assert said.startswith(f"POST {CHAT} 200 ")
    assert (found["client"], found["finish"]) == ("gone", "cancelled")
    assert 0 < int(found["completion"]) < 10 and int(found["prompt"]) > 0


def test_nothing_is_kept_while_nobody_listens(api: Make) -> None:
    made = api()
    made.chat()
    log = made.rig.hub.plugins.manager.get_plugin("access")
    assert isinstance(log, AccessLog) and not log._followed
    assert log.open({"method": "GET", "path": "/"}) is None


def test_nothing_is_kept_behind_a_line(api: Make, lines: Any) -> None:
    made = api()
    made.chat()
    assert len(lines()) == 1 and not made.rig.hub.plugins.manager.get_plugin("access")._followed


def test_a_line_does_not_wait_for_ever_for_a_plugins_generation(monkeypatch: Any, lines: Any) -> None:
    monkeypatch.setattr("lmhub.server.access.LATE_S", 0.0)

    async def main() -> None:
        log = AccessLog()
        scope: dict[str, Any] = {"method": "POST", "path": CHAT}
        entry = log.open(scope)
        log.follow(scope, "m", "r1", 1)
        assert entry is not None
        await log.close(entry)

    asyncio.run(main())
    assert facts(lines()[0])["client"] == "gone"


def test_words_stay_words() -> None:
    usage, times = Usage(10, 2, 4), Timings(0.001, 0.0102, 0.5)
    entry = Entry("POST", CHAT, "req_1", status=200, is_whole=True, model="a model", n_generations=2)
    entry.records = [
        GenerationRecord("r", "m", "f", "stop", usage, times, "slot"),
        GenerationRecord("r", "m", "f", "length", usage, times, "copy"),
    ]
    assert line(entry).startswith(
        f"POST {CHAT} 200 id=req_1 model='a model' prompt=20 cached=8 source=copy,slot completion=4 queue_ms=1 "
        "prefill_ms=10 decode_ms=500 finish=length,stop bytes=0 total_ms="
    )
