"""`GET /metrics`: counters in Prometheus' text format, fed by what generations and requests report when they end.

Nothing here waits for a generation: the gauges are numbers that the engines keep at hand. Labels are bounded: models,
routes, status codes, kinds of errors; never a path or a text of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Receive, Scope, Send

from lmhub import __version__
from lmhub.engine import EngineStats
from lmhub.engine.disk import DiskStats
from lmhub.hookspecs import hookimpl
from lmhub.hub import Hub
from lmhub.server.wire import send_head
from lmhub.types import GenerationRecord

if TYPE_CHECKING:
    from lmhub.shelf import ShelfNumbers

prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second family for every counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """A plugin that counts generations, and the page that shows the counts. One per application."""

    def __init__(self, hub: Hub) -> None:
        self.registry = registry = prometheus.CollectorRegistry()

        def counter(name: str, doc: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"lmhub_{name}", doc, labels, registry=registry)

        def histogram(name: str, doc: str, buckets: tuple[float, ...] = BUCKETS_S) -> prometheus.Histogram:
            return prometheus.Histogram(f"lmhub_{name}_seconds", doc, ("model",), registry=registry, buckets=buckets)

        self._prompt = counter("prompt_tokens", "Tokens of prompts, cached ones included", "model")
        self._cached = counter("prompt_tokens_cached", "Tokens of prompts that an earlier request had left", "model")
        self._prompt_s = counter("prompt_seconds", "Time spent on prompts", "model")
        self._predicted = counter("tokens_predicted", "Tokens of replies", "model")
        self._predicted_s = counter("tokens_predicted_seconds", "Time spent on replies", "model")
        self._generations = counter("generations", "Generations that ended", "model", "finish")
        self._requests = counter("http_requests", "Answered HTTP requests", "route", "code")
        self._errors = counter("request_errors", "Requests that were answered with an error", "type")
        self._first = histogram("time_to_first_token", "From the request to the first token")
        self._between = histogram("inter_token_latency", "Between two tokens of a reply", TOKEN_BUCKETS_S)
        self._queued = histogram("queue_wait", "From the request to its admission")
        self._whole = histogram("e2e_request_latency", "From the request to the end of the reply")
        prometheus.Gauge("lmhub_build_info", "Always 1", ("version",), registry=registry).labels(__version__).set(1)
        prometheus.Gauge("lmhub_process_start_time_seconds", "Unix time", registry=registry).set_to_current_time()
        self._recent = _Recent(hub)
        registry.register(self._recent)

    @hookimpl
    def lmhub_generation_finished(self, record: GenerationRecord) -> None:
        """Count it. Called on an engine's thread."""
        usage, times, model = record.usage, record.timings, record.model
        self._prompt.labels(model).inc(usage.prompt_tokens)
        self._cached.labels(model).inc(usage.cached_tokens)
        self._prompt_s.labels(model).inc(times.prefill_s)
        self._predicted.labels(model).inc(usage.completion_tokens)
        self._predicted_s.labels(model).inc(times.decode_s)
        self._generations.labels(model, record.finish).inc()
        self._recent.note(record)
        self._queued.labels(model).observe(times.queued_s)
        if usage.completion_tokens > 0:
            self._first.labels(model).observe(times.queued_s + times.prefill_s)
            self._whole.labels(model).observe(times.queued_s + times.prefill_s + times.decode_s)
        if usage.completion_tokens > 1:
            self._between.labels(model).observe(times.decode_s / (usage.completion_tokens - 1))

    def last_rates(self, model: str) -> tuple[float, float]:
        """Prompt and reply tokens per second of the last generation of `model` that wrote any; 0 before it."""
        last = self._recent.last(model)
        return _rates(last, prompt=True).get(model, 0.0), _rates(last, prompt=False).get(model, 0.0)

    def answered(self, route: str, status: int) -> None:
        """Count an answered request."""
        self._requests.labels(route, str(status)).inc()

    def failed(self, kind: str) -> None:
        """Count an error that was told to a client."""
        self._errors.labels(kind).inc()

    async def show(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The page."""
        body = prometheus.generate_latest(self.registry)
        await send_head(send, 200, (("content-type", CONTENT_TYPE), ("content-length", str(len(body)))))
        await send({"type": "http.response.body", "body": body})


class _Recent(Collector):
    """What the engines are doing now, and the rates of the last generation of each model."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._last: dict[str, GenerationRecord] = {}
        self._longest: dict[str, int] = {}

    def note(self, record: GenerationRecord) -> None:
        """Remember the rates of `record`."""
        length = record.usage.prompt_tokens + record.usage.completion_tokens
        self._longest[record.model] = max(self._longest.get(record.model, 0), length)
        if record.usage.completion_tokens > 0:
            self._last[record.model] = record

    def last(self, model: str) -> dict[str, GenerationRecord]:
        """The last generation of `model`, under its id; empty if there was none."""
        return {model: self._last[model]} if model in self._last else {}

    def collect(self) -> Iterable[Metric]:
        """All gauges, read at this moment."""
        stats = {model.id: self._hub.acquire(model.id).engine.stats() for model in self._hub.models}
        last = dict(self._last)
        gauges: dict[str, tuple[str, Mapping[str, float]]] = {
            "requests_processing": ("Generations that run", {id: one.running for id, one in stats.items()}),
            "requests_deferred": ("Generations that wait", {id: one.queued for id, one in stats.items()}),
            "slots": ("Generations that may run at once", {id: one.batch for id, one in stats.items()}),
            "n_busy_slots_per_decode": ("Sequences in a step now", {id: one.running for id, one in stats.items()}),
            "n_tokens_max": ("Longest sequence so far, in tokens", dict(self._longest)),
            "prompt_tokens_seconds": ("Prompt tokens per second, last generation", _rates(last, prompt=True)),
            "predicted_tokens_seconds": ("Reply tokens per second, last generation", _rates(last, prompt=False)),
        }
        for name, (doc, values) in gauges.items():
            yield _family(GaugeMetricFamily(f"lmhub_{name}", doc, labels=("model",)), values)
        yield from _state(stats)
        yield from _totals(stats)
        yield from _experts({model.id: model.shelf.numbers() for model in self._hub.models if model.shelf is not None})
        yield from _disk({id: one.disk for id, one in stats.items() if one.disk is not None})


def _state(stats: Mapping[str, EngineStats]) -> Iterable[Metric]:
    """Where the engines stand."""
    gauges: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
        "healthy": ("1, or 0 while the model fails step after step", lambda one: one.healthy),
        "requests_paused": ("Generations that wait for their reader", lambda one: one.paused),
        "kv_slots": ("Sequences that may be kept in memory", lambda one: one.kv_slots),
        "kv_slots_parked": ("Sequences that are kept for later requests", lambda one: one.parked),
    }
    for name, (doc, read) in gauges.items():
        values = {id: read(one) for id, one in stats.items()}
        yield _family(GaugeMetricFamily(f"lmhub_{name}", doc, labels=("model",)), values)


def _totals(stats: Mapping[str, EngineStats]) -> Iterable[Metric]:
    """What the engines count since they started; rates and shares are for whoever asks twice."""
    counters: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
        "n_decode": ("Steps, each a forward pass", lambda one: one.steps),
        "prefill_tokens": ("Tokens of prompts that were forwarded", lambda one: one.prefill_tokens),
        "decode_tokens": ("Tokens of replies that were sampled", lambda one: one.decode_tokens),
        "step_seconds": ("Time spent in steps", lambda one: one.step_s),
        "forward_seconds": ("Time that the model took in steps", lambda one: one.forward_s),
        "kv_evictions": ("Sequences that were given up for others", lambda one: one.evicted),
        "tokens_drafted": ("Tokens that were guessed ahead", lambda one: one.drafted),
        "tokens_accepted": ("Guessed tokens that were right", lambda one: one.accepted),
    }
    for name, (doc, read) in counters.items():
        values = {id: read(one) for id, one in stats.items()}
        yield _family(CounterMetricFamily(f"lmhub_{name}", doc, labels=("model",)), values)
    by_source: dict[str, tuple[str, Callable[[EngineStats], Mapping[str, int]]]] = {
        "kv_hits": ("Generations by where the cached part of their prompt came from", lambda one: one.hits),
        "kv_cached_tokens": ("Cached tokens of prompts by where they came from", lambda one: one.reused),
    }
    for name, (doc, split) in by_source.items():
        family = CounterMetricFamily(f"lmhub_{name}", doc, labels=("model", "source"))
        for id, one in stats.items():
            for source, value in split(one).items():
                family.add_metric((id, source), value)
        yield family


def _experts(shelves: Mapping[str, ShelfNumbers]) -> Iterable[Metric]:
    """Experts that stay in the file, of the models whose experts do."""
    if not shelves:
        return
    held = {id: one.held for id, one in shelves.items()}
    yield _family(GaugeMetricFamily("lmhub_experts_bytes", "Bytes that are kept in memory", labels=("model",)), held)
    counters: dict[str, tuple[str, Callable[[ShelfNumbers], float]]] = {
        "experts_used": ("Experts that steps have used, weight by weight", lambda one: one.used),
        "experts_hits": ("Those of them that were in memory already", lambda one: one.hits),
        "experts_read_bytes": ("Bytes that were asked for", lambda one: one.read),
    }
    for name, (doc, read) in counters.items():
        values = {id: read(one) for id, one in shelves.items()}
        yield _family(CounterMetricFamily(f"lmhub_{name}", doc, labels=("model",)), values)


def _disk(stats: Mapping[str, DiskStats]) -> Iterable[Metric]:
    """Sequences in files, of the models that keep some."""
    gauges: dict[str, tuple[str, Callable[[DiskStats], float]]] = {
        "kv_disk_entries": ("Sequences in files that the model can use", lambda one: one.entries),
        "kv_disk_bytes": ("Bytes of all files in the folder", lambda one: one.nbytes),
        "kv_disk_pending": ("Sequences that wait to be written", lambda one: one.pending),
        "kv_disk_writable": ("1 where this process may write to the folder", lambda one: one.writable),
    }
    counters: dict[str, tuple[str, Callable[[DiskStats], float]]] = {
        "kv_disk_saved": ("Sequences written", lambda one: one.saved),
        "kv_disk_loaded": ("Sequences read", lambda one: one.loaded),
        "kv_disk_failed": ("Files that could not be read or written", lambda one: one.failed),
        "kv_disk_evicted": ("Files that were removed to make room", lambda one: one.evicted),
        "kv_disk_read_bytes": ("Bytes read", lambda one: one.read_bytes),
        "kv_disk_written_bytes": ("Bytes written", lambda one: one.written_bytes),
    }
    if not stats:
        return
    for name, (doc, read) in gauges.items():
        values = {id: read(one) for id, one in stats.items()}
        yield _family(GaugeMetricFamily(f"lmhub_{name}", doc, labels=("model",)), values)
    for name, (doc, read) in counters.items():
        values = {id: read(one) for id, one in stats.items()}
        yield _family(CounterMetricFamily(f"lmhub_{name}", doc, labels=("model",)), values)


def _family(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    for model, value in values.items():
        family.add_metric((model,), value)
    return family


def _rates(records: dict[str, GenerationRecord], *, prompt: bool) -> dict[str, float]:
    rates = {}
    for model, record in records.items():
        usage, times = record.usage, record.timings
        n = usage.prompt_tokens - usage.cached_tokens if prompt else usage.completion_tokens
        seconds = times.prefill_s if prompt else times.decode_s
        rates[model] = n / seconds if seconds > 0 else 0.0
    return rates
