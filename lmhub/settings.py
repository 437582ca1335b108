"""Every knob of a served model and of the server, with its default. Flags beat environment variables beat these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How a model is loaded and run."""

    ctx: int = 4096  # positions per sequence; capped by what the model was trained for
    threads: int = 0  # compute threads; 0 = one per usable CPU
    batch: int = 4  # sequences that run at once
    queue: int = 16  # requests that may wait
    kv_dtype: str = "f16"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where and for whom the server listens."""

    host: str = "127.0.0.1"
    port: int = 8080
    conns: int = 32  # requests handled at once; further ones get 503
    api_key: str | None = None
    max_body: int = 64 << 20  # bytes
    grace_s: float = 5.0  # how long running replies may go on after SIGINT or SIGTERM
