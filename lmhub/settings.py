"""Every knob of a served model and of the server, with its default. Flags beat environment variables beat these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a model is loaded and run."""

    ctx: int = 4096  # positions per sequence; capped by what the model was trained for
    threads: int = 0  # compute threads; 0 = one per usable CPU
    pin: bool = False  # each of them on a CPU of its own
    batch: int = 4  # sequences that run at once
    queue: int = 16  # requests that may wait
    borrow: Literal["none", "experts", "all"] = "none"  # weights that are read from the file, and never packed
    expert_cache: int = 0  # bytes of borrowed experts that are kept in memory; 0 = as many as the system likes
    kv_dtype: str = "f16"
    kv_slots: int = 0  # sequences kept in memory, running ones included; 0 = twice the batch, at least 2
    kv_slots_force: bool = False  # keep that many even where memory might not suffice
    kv_ram: int = 0  # bytes of further sequences that are kept in memory beyond the slots
    kv_cache_dir: str = ""  # folder in which sequences survive a restart; "" = none
    kv_disk_max: int = 8 << 30  # bytes of that folder
    kv_disk_slots: int = 64  # files of that folder
    flush_s: float = 10.0  # how long writing sequences to disk may hold up the end
    spec: bool = True  # speculative decoding where it pays
    read_ahead: bool = True  # in idle time, what the next turn of a conversation will begin with
    prefill_chunk: int = 512  # prompt tokens in one step, at most
    latency_s: float = 0.08  # how long a step may take while a reply is being decoded, prompts beside it included
    pipe_max: int = MIB  # bytes of a reply that may wait for their reader before it is paused
    stall_timeout_s: float = 120.0  # a paused reply that nobody reads for so long is cancelled
    request_timeout_s: float = 0.0  # from admission; the reply then ends as cut off; 0 = never
    lazy_tools: bool = True  # a tool call that the model opens by itself is held to the tools and their schemas


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and for whom the server listens, and what it decides where a request leaves it open."""

    host: str = "127.0.0.1"
    port: int = 8080
    conns: int = 32  # requests handled at once; further ones get 503
    api_keys: tuple[str, ...] = ()  # keys that are accepted; none: everybody is
    max_body: int = 64 << 20  # bytes, after decompression
    grace_s: float = 5.0  # how long running replies may go on after SIGINT or SIGTERM
    alias: tuple[str, ...] = ()  # more names of models: NAME for the first one, or NAME=ID
    strict_model: bool = False  # refuse names that no model has, where there is only one model as well
    allow_host: tuple[str, ...] = ()  # Host headers that are accepted beside those of this machine
    cors_origin: tuple[str, ...] = ()  # origins whose web pages may read the answers; "*": all
    ping_s: float = 15.0  # silence in a stream after which a ping is sent, in seconds; 0 = never
    seed: int | None = None  # of requests that send none; None = a new one for each
    default_max_tokens: int = 0  # budget of a reply whose request names none; 0 = what is left of the context
    max_n: int = 8  # choices of one request for one prompt
    max_prompts: int = 64  # prompts of one completion request
    prefill: bool = True  # continue a conversation that ends with the assistant's turn
    lenient_reasoning: bool = True  # ignore a reasoning effort where the model cannot reason, instead of refusing it
    strict_tools: bool = False  # refuse hosted tools instead of leaving them out
    reasoning_field: Literal["reasoning_content", "both"] = "reasoning_content"  # both: also as `reasoning`
    responses_store: int = 256  # replies kept for `previous_response_id`; 0 = none
    ui: bool = True  # the chat page at `/`
    metrics: bool = True
    metrics_open: bool = False  # /metrics needs no key
