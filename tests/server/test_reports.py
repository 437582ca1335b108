"""What a server tells of itself (/health, /slots, /metrics), and what its own limits do to requests."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lmhub.errors import KernelError
from lmhub.hub import Hub
from lmhub.server.app import create_app
from lmhub.server.generate import with_defaults
from lmhub.server.run import LAST, HubServer
from lmhub.settings import EngineSettings, ServerSettings
from lmhub.testing.fake import FakeModel
from lmhub.testing.tiny import tiny_gguf
from lmhub.types import ChatRequest

Make = Callable[..., Any]
MESSAGES = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def numbers(made: Any) -> dict[str, float]:
    """Every sample of /metrics that has no bucket, under its name and its labels but the model's."""
    found = {}
    for family in text_string_to_metric_families(made.get("/metrics").text):
        assert family.name.startswith("lmhub_") and family.documentation
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name not in ("model", "le")]
            found[" ".join([sample.name.removeprefix("lmhub_"), *labels])] = sample.value
    return found


# --- health ----------------------------------------------------------------------------------------------------------


def test_health_counts(api: Make) -> None:
    said = api(engine={"batch": 3, "kv_slots": 5}).get("/health").json()
    assert said["slots"] == {"total": 5, "busy": 0}
    assert (said["streams"], said["queue_depth"], said["slots_total"]) == (0, 0, 3)
    assert said["uptime_s"] >= 0 and "plans" not in said


def test_a_model_that_keeps_failing_is_degraded_until_it_works_again(api: Make) -> None:
    broken = True

    def fail(chunks: object) -> None:
        if broken:
            raise KernelError("the memory is gone")

    made = api(FakeModel(b"Hello", before_step=fail))
    while made.get("/health").status_code == 200:
        assert made.chat().status_code == 500
    health = made.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "degraded")
    assert numbers(made)["healthy"] == 0
    broken = False
    assert made.reply()["message"]["content"] == "Hello"
    assert made.get("/health").json()["status"] == "ok"


def test_health_tells_the_memory_plan_on_request(api: Make, tmp_path: Path) -> None:
    assert api().get("/health?verbose=1").json()["plans"] == {"fake": None}  # of no file
    hub = Hub()
    try:
        hub.load(tiny_gguf("qwen3", tmp_path / "tiny.gguf", qk_norm=True), EngineSettings(ctx=64, batch=2))
        made = api()
        made.app = create_app(hub, ServerSettings())
        [(name, plan)] = made.get("/health?verbose=1").json()["plans"].items()
        assert (name, plan["slots"], plan["fits"]) == ("tiny", 4, True)
        assert {item["name"] for item in plan["items"]} >= {"KV cache", "weights, mapped"}
    finally:
        hub.close()


# --- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_of_the_engine(api: Make) -> None:
    made = api("Hello", engine={"batch": 2, "kv_slots": 3})
    first = made.chat().json()["usage"]
    second = made.chat().json()["usage"]
    cached = second["prompt_tokens_details"]["cached_tokens"]
    assert cached == first["prompt_tokens"] - 1
    found = numbers(made)
    assert found["kv_hits_total none"] == found["kv_hits_total slot"] == 1
    assert found["kv_cached_tokens_total slot"] == cached == found["prompt_tokens_cached_total"]
    assert found["prefill_tokens_total"] == first["prompt_tokens"] + 1
    assert found["decode_tokens_total"] >= 10
    assert found["kv_slots"] == 3 and found["kv_slots_parked"] == 1
    assert found["step_seconds_total"] >= found["forward_seconds_total"] > 0
    assert found["time_to_first_token_seconds_count"] == found["queue_wait_seconds_count"] == 2
    for name in ("requests_processing", "requests_deferred", "requests_paused", "kv_evictions_total"):
        assert found[name] == 0
    assert found["healthy"] == 1 and found["tokens_drafted_total"] >= found["tokens_accepted_total"]
    assert not [name for name in found if name.startswith("kv_disk")]


def test_metrics_of_the_disk_of_two_models(api: Make, tmp_path: Path) -> None:
    hub = Hub()
    try:
        for arch in ("qwen3", "llama"):
            path = tiny_gguf(arch, tmp_path / f"{arch} 1.gguf", qk_norm=arch == "qwen3")
            hub.load(path, EngineSettings(ctx=64, batch=1, kv_cache_dir=str(tmp_path / "kv")))
        assert sorted(one.name for one in (tmp_path / "kv").iterdir()) == ["model-llama-1", "model-qwen3-1"]
        made = api()
        made.app = create_app(hub, ServerSettings())
        writable = [
            line for line in made.get("/metrics").text.splitlines() if line.startswith("lmhub_kv_disk_writable")
        ]
        assert writable == [
            'lmhub_kv_disk_writable{model="qwen3 1"} 1.0',
            'lmhub_kv_disk_writable{model="llama 1"} 1.0',
        ]
        found = numbers(made)
        assert found["kv_disk_entries"] == found["kv_disk_saved_total"] == 0
    finally:
        hub.close()


def test_a_restart_goes_on_from_what_the_disk_kept(api: Make, tmp_path: Path) -> None:
    path = tiny_gguf("qwen3", tmp_path / "tiny.gguf", qk_norm=True, n_ctx=1024)
    settings = EngineSettings(ctx=1024, batch=1, kv_cache_dir=str(tmp_path / "kv"))
    made = api()
    usages, texts = [], []
    for _ in range(2):
        hub = Hub()
        try:
            hub.load(path, settings)
            made.app = create_app(hub, ServerSettings())
            said = made.chat(messages=[{"role": "user", "content": "word " * 120}], max_tokens=8, temperature=0).json()
            usages.append(said["usage"])
            texts.append(said["choices"][0]["message"]["content"])
            found = numbers(made)
        finally:
            hub.close()
    assert usages[0]["prompt_tokens"] > 256  # shorter ones are not worth a file
    assert usages[1]["prompt_tokens_details"]["cached_tokens"] == usages[0]["prompt_tokens"] - 1
    assert found["kv_hits_total disk"] == found["kv_disk_loaded_total"] == 1
    assert texts[0] == texts[1]


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_request_whose_time_is_up_before_its_reply_begins_gets_504(api: Make, path: str) -> None:
    made = api(engine={"request_timeout_s": 1e-9, "prefill_chunk": 4, "batch": 1})
    body = {"input": "hello there", "max_output_tokens": 9} if path.endswith("responses") else MESSAGES
    for stream in (False, True):
        response = made.post(path, **body, stream=stream)
        assert response.status_code == 504
        error = response.json()["error"]
        assert error["type"] == "timeout_error" and "limit" in error["message"]


def test_a_reply_whose_time_is_up_is_cut_off(api: Make) -> None:
    choice = api("Hello", engine={"request_timeout_s": 1e-9}).reply()
    assert choice["finish_reason"] == "length"
    assert 0 < len(choice["message"]["content"]) < 5


def test_a_pinned_seed_is_for_requests_without_one(api: Make) -> None:
    model = api().rig.hub.models[0]
    settings = ServerSettings(seed=5)
    assert with_defaults(ChatRequest(()), model, settings).sampling == {"seed": 5}
    assert with_defaults(ChatRequest((), sampling={"seed": 0, "top_p": 0.5}), model, settings).sampling["seed"] == 0
    assert "seed" not in with_defaults(ChatRequest(()), model, ServerSettings()).sampling


def test_more_choices_than_run_or_may_wait_are_one_request(api: Make) -> None:
    made = api("Hello", engine={"batch": 1, "queue": 0})
    said = made.chat(n=5, max_tokens=2).json()
    assert [choice["index"] for choice in said["choices"]] == [0, 1, 2, 3, 4]
    assert said["usage"]["completion_tokens"] == 10
    read = said["usage"]["prompt_tokens"]
    assert numbers(made)["prefill_tokens_total"] <= read + 5  # the prompt once, and its last token for each choice


@pytest.mark.parametrize("folder", ["", "kv"])
def test_the_last_timer_leaves_time_to_write_sequences(rig: Make, tmp_path: Path, folder: str) -> None:
    hub = rig(FakeModel(b"Hello"), kv_cache_dir=str(tmp_path / folder) if folder else "", flush_s=300.0).hub
    server = HubServer(hub, ServerSettings(port=0, grace_s=100.0), lambda: None, lambda address: None)
    server.handle_exit(signal.SIGTERM, None)
    assert server._last is not None
    server._last.cancel()
    assert server._last.interval == pytest.approx(100.0 * LAST + (300.0 if folder else 0.0))
