"""Node.js: the official SDKs, and the Vercel AI SDK over each of its providers that speak a dialect of this server."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("provider", ["compatible", "chat", "responses", "anthropic"])
def test_ai_sdk(site: Any, provider: str) -> None:
    site(("read_note", {"name": "note.txt"})).node("ai_sdk.mjs", provider)


@pytest.mark.parametrize("provider", ["compatible", "chat", "responses", "anthropic"])
def test_ai_sdk_with_reasoning_words_and_two_calls(site: Any, provider: str) -> None:
    calls = [("read_note", {"name": name}) for name in ("note.txt", "other.txt")]
    out = site(*calls, talkative=True).node("ai_sdk.mjs", provider)
    if provider in ("compatible", "anthropic"):  # the others show no raw reasoning
        assert "The tools can tell." in out


@pytest.mark.parametrize("provider", ["compatible", "chat", "responses", "anthropic"])
def test_ai_sdk_object(site: Any, provider: str) -> None:
    site(("json", {"word": "{word}"}), plain='{"word": "{word}"}').node("ai_sdk_object.mjs", provider)


@pytest.mark.parametrize("which", ["chat", "responses", "messages"])
@pytest.mark.parametrize("talkative", [False, True])
def test_official_sdks(site: Any, which: str, talkative: bool) -> None:
    calls = [("read_note", {"name": name}) for name in ("note.txt", "other.txt")]
    site(*calls[: 1 + talkative], talkative=talkative).node("js_sdk.mjs", which)
