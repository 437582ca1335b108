"""Every knob of a served model and of the server, with its default. Flags beat environment variables beat these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a model is loaded and run."""

    ctx: int = 4096  # positions per sequence; capped by what the model was trained for
    threads: int = 0  # compute threads; 0 = one per usable CPU
    batch: int = 4  # sequences that run at once
    queue: int = 16  # requests that may wait
    kv_dtype: str = "f16"
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
    default_max_tokens: int = 0  # budget of a reply whose request names none; 0 = what is left of the context
    max_n: int = 8  # choices of one request for one prompt
    max_prompts: int = 64  # prompts of one completion request
    prefill: bool = True  # continue a conversation that ends with the assistant's turn
    lenient_reasoning: bool = True  # ignore a reasoning effort where the model cannot reason, instead of refusing it
    strict_tools: bool = False  # refuse hosted tools instead of leaving them out
    reasoning_field: Literal["reasoning_content", "both"] = "reasoning_content"  # both: also as `reasoning`
    responses_store: int = 256  # replies kept for `previous_response_id`; 0 = none
    metrics: bool = True
    metrics_open: bool = False  # /metrics needs no key
