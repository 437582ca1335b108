"""The chat page at `/` without a browser: its files, their headers, `--no-ui`, and the status that its panel reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmhub.server.app import create_app
from lmhub.server.page import POLICY, page_routes
from lmhub.server.state import ServerState
from lmhub.settings import ServerSettings
from lmhub.testing.fake import FakeModel, Gate

Make = Callable[..., Any]
PATHS = sorted(page_routes())
# Namespaces and what the renderer recognizes as a link; nothing that a browser would fetch.
HARMLESS = ("http://www.w3.org/2000/svg",)


def text(path: str) -> str:
    """A file of the page as it is shipped."""
    name = "index.html" if path == "/" else path.removeprefix("/ui/")
    return files("lmhub.server").joinpath("ui", name).read_text()


def test_there_is_a_page() -> None:
    assert {"/", "/ui/style.css", "/ui/app.js", "/ui/icon.svg"} <= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
def test_every_file_is_served_with_its_type_and_the_policy(api: Make, path: str) -> None:
    made = api()
    answer = made.get(path)
    assert (answer.status_code, answer.text) == (200, text(path))
    kind = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    assert answer.headers["content-type"].startswith(kind[path.rpartition(".")[2] if path != "/" else "html"])
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    assert made.request("HEAD", path).headers["etag"] == answer.headers["etag"]


def test_a_file_that_the_browser_has_is_not_sent_again(api: Make) -> None:
    made = api()
    tag = made.get("/ui/app.js").headers["etag"]
    for known in (tag, f'"other", W/{tag}'):
        again = made.get("/ui/app.js", if_none_match=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert made.get("/ui/app.js", if_none_match='"other"').status_code == 200
    assert made.get("/ui/style.css", if_none_match=tag).status_code == 200


def test_the_policy_admits_this_server_only() -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert rules["frame-ancestors"] == rules["form-action"] == rules["base-uri"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"


@pytest.mark.parametrize("path", PATHS)
def test_no_file_names_another_host_or_breaks_the_policy(path: str) -> None:
    source = text(path)
    for harmless in HARMLESS:
        source = source.replace(harmless, "")
    assert re.findall(r"""["'(]\s*(?:https?:)?//[^"')\s]+""", source) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source)
    if path == "/":
        assert not re.search(r"\son\w+=|\sstyle=|<style|<script>|javascript:", source)


def test_whatever_the_page_refers_to_is_served() -> None:
    served = {path.removeprefix("/") for path in PATHS}
    assert set(re.findall(r'(?:src|href)="(ui/[^"#]+)', text("/"))) <= served
    for path in PATHS:
        if path.endswith(".js"):
            assert {f"ui/{name}" for name in re.findall(r'(?:from|import) "\./([^"]+)"', text(path))} <= served
    ids = re.findall(r'\sid="([^"]+)"', text("/"))
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|\bfor="|aria-(?:controls|labelledby|describedby)=")([^"]+)', text("/"))) <= set(
        ids
    )


def test_the_page_needs_no_key_and_no_loaded_model(api: Make) -> None:
    locked = api(api_keys=("secret",))
    assert {locked.get(path).status_code for path in PATHS} == {200}
    assert locked.get("/v1/models").status_code == locked.get("/v1/lmhub/status").status_code == 401
    made = api()
    made.app = create_app(made.rig.hub, ServerSettings(), ServerState(phase="loading"))
    assert made.get("/").status_code == 200
    assert made.get("/v1/models").status_code == 503
    assert made.get("/v1/lmhub/status").json()["phase"] == "loading"


def test_no_ui_leaves_the_root_to_probes(api: Make) -> None:
    made = api(ui=False)
    assert made.get("/").json()["name"] == "lmhub"
    assert made.get("/ui/app.js").status_code == 404
    assert made.get("/v1/lmhub/status").status_code == 200


@pytest.mark.parametrize("path", ["/ui/", "/ui/nothing.js", "/ui/app.py", "/ui/..%2fpage.py", "/ui/%2e%2e/page.py"])
def test_nothing_else_is_served(api: Make, path: str) -> None:
    assert api().get(path).status_code in (400, 404)


# --- status ----------------------------------------------------------------------------------------------------------


def test_the_status_is_what_the_metrics_say(api: Make) -> None:
    made = api("Hello", engine={"batch": 2, "kv_slots": 3})
    before = made.get("/v1/lmhub/status", authorization="Bearer k").json()
    made.chat()
    used = made.chat().json()["usage"]
    answer = made.get("/lmhub/status")
    assert answer.headers["cache-control"] == "no-store"
    said = answer.json()
    [model] = said["models"]
    metrics = {
        sample.name.removeprefix("lmhub_"): sample.value
        for family in text_string_to_metric_families(made.get("/metrics").text)
        for sample in family.samples
    }
    assert model["prefill_tokens"] == metrics["prefill_tokens_total"] == used["prompt_tokens"] + 1
    assert model["decode_tokens"] == metrics["decode_tokens_total"] > 0
    assert model["cached_tokens"] == metrics["prompt_tokens_cached_total"] == used["prompt_tokens"] - 1
    assert model["prompt_tokens"] == metrics["prompt_tokens_total"]
    assert model["last_decode_per_s"] == pytest.approx(metrics["predicted_tokens_seconds"]) and model["healthy"]
    assert model["last_prefill_per_s"] == pytest.approx(metrics["prompt_tokens_seconds"])
    assert (model["running"], model["queued"], model["batch"], model["kv_slots"]) == (0, 0, 2, 3)
    assert (model["n_ctx"], model["finished"]) == (2048, 2)
    assert (said["phase"], said["requests"]) == ("ready", 0)
    assert said["clock_s"] > before["clock_s"] and said["uptime_s"] > 0
    assert before["models"][0]["last_decode_per_s"] == 0


def test_the_status_shows_memory_and_how_full_a_slot_is(rig: Make, serving: Make) -> None:
    gate = Gate()
    gate.let(3)
    hub = rig(FakeModel(b"Hello", gate=gate), batch=2, spec=False).hub
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
    with serving(hub) as live, httpx.Client(base_url=live.address) as http:
        with http.stream("POST", "/v1/chat/completions", json=body):  # its head comes with the first token
            for _ in range(4):
                gate.arrive()
            said = http.get("/v1/lmhub/status").json()
            gate.open()
        idle = http.get("/v1/lmhub/status").json()
        while idle["models"][0]["slots"]:  # the engine clears up behind the last event
            idle = http.get("/v1/lmhub/status").json()
    [model] = said["models"]
    [slot] = model["slots"]
    assert (model["running"], said["requests"], slot["n_decoded"]) == (1, 1, 3)
    assert slot["n_past"] == slot["n_prompt"] + 2  # the last token has not been forwarded yet
    assert 0 < said["memory"]["process"] < said["memory"]["total"]
    assert 0 < said["memory"]["available"] <= said["memory"]["total"]
    assert idle["models"][0]["memory"] is None  # of no file
