"""One engine with one model, for `peer.py`: reads tasks from stdin, one a line, and answers with seconds.

    python benchmarks/peer_worker.py lmhub|llama.cpp MODEL.gguf --threads 2 --ctx 4224

`prefill N` times a prompt of N tokens into an empty cache; `decode DEPTH N` times N further tokens, one by one, behind
DEPTH positions, which are only read anew when they are not there yet. Both engines get the same ids, and both compute
the logits of the last token and nothing else. Runs under the engine's own interpreter, so neither is imported unless
it is asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any, Protocol

WARM_UP = 4  # tokens


class Engine(Protocol):
    """What both engines can do. `n_vocab`: ids go up to it; `about`: a line for people."""

    n_vocab: int
    about: str

    def forget(self, n_tokens: int) -> None:
        """Keep that many positions."""

    def read(self, tokens: list[int]) -> None:
        """Append tokens; the logits of the last one are there when this returns."""


class Lmhub:
    """This project, without server and scheduler, in steps of the size that its engine takes."""

    def __init__(self, options: argparse.Namespace) -> None:
        from lmhub import __version__, native
        from lmhub.hub import Hub
        from lmhub.model import Chunk
        from lmhub.settings import EngineSettings

        settings = EngineSettings(ctx=options.ctx, threads=options.threads, batch=1, kv_slots=1, spec=False)
        self.hub = Hub()
        served = self.hub.load(options.model, settings)
        self.engine, self.model, self.step, self.chunk_of = (
            served.engine,
            served.model.model,
            settings.prefill_chunk,
            Chunk,
        )
        self.n_vocab = self.model.n_vocab
        self.state = self.model.new_state(options.ctx)
        self.about = f"lmhub {__version__}: {native.isa()}"

    def forget(self, n_tokens: int) -> None:
        self.state.truncate(n_tokens)

    def read(self, tokens: list[int]) -> None:
        self.engine.call(lambda: self._read(tokens)).result()

    def _read(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), self.step):
            want = "last" if start + self.step >= len(tokens) else "none"
            self.model.forward([self.chunk_of(self.state, tokens[start : start + self.step], want)])


class LlamaCpp:
    """llama.cpp through the low level of llama-cpp-python: batches of at most 2048, computed 512 rows at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        import ctypes

        import llama_cpp as api

        self.api, self.ctypes = api, ctypes
        self.silent = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self.silent, None)
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.n_gpu_layers = 0
        if options.plain:
            model_params.use_extra_bufts = False
        self.model = api.llama_model_load_from_file(str(options.model).encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = options.ctx, 2048, 512
        params.n_threads = params.n_threads_batch = options.threads
        self.context = api.llama_init_from_model(self.model, params) if self.model else None
        if not self.context:
            sys.exit(f"llama.cpp cannot load {options.model}")
        self.memory = api.llama_get_memory(self.context)
        self.n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
        used = [
            word.strip() for word in api.llama_print_system_info().decode().split("|") if word.strip().endswith("= 1")
        ]
        features = ", ".join(word.removesuffix("= 1").replace("CPU :", "").strip() for word in used)
        self.about = f"llama-cpp-python {api.__version__}: {features}"

    def forget(self, n_tokens: int) -> None:
        self.api.llama_memory_seq_rm(self.memory, 0, n_tokens, -1)

    def read(self, tokens: list[int]) -> None:
        for start in range(0, len(tokens), 2048):
            part = tokens[start : start + 2048]
            array = (self.api.llama_token * len(part))(*part)
            if self.api.llama_decode(self.context, self.api.llama_batch_get_one(array, len(part))):
                sys.exit("llama.cpp could not run a step")
        self.api.llama_get_logits_ith(self.context, -1)  # waits until they are there


ENGINES: dict[str, Any] = {"lmhub": Lmhub, "llama.cpp": LlamaCpp}


class Worker:
    """Does the tasks. `depth`: positions of the usual prompt that are in the cache."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.depth = 0

    def ids(self, start: int, n: int) -> list[int]:
        """Ids of a text that goes on from position `start`; those of a prompt, as good as any."""
        return [(at * 7919 + 13) % self.engine.n_vocab for at in range(start, start + n)]

    def prefill(self, n: int) -> float:
        """Seconds for a prompt of `n` tokens."""
        self.engine.forget(0)
        seconds = timed(lambda: self.engine.read(self.ids(0, n)))
        self.depth = n
        return seconds

    def decode(self, depth: int, n: int) -> float:
        """Seconds for `n` tokens behind `depth` positions."""
        if self.depth < depth:
            self.prefill(depth)
        self.engine.forget(depth)
        self.depth = depth
        for at in range(WARM_UP):
            self.engine.read(self.ids(depth + at, 1))

        def run() -> None:
            for at in range(n):
                self.engine.read(self.ids(depth + WARM_UP + at, 1))

        return timed(run)


def timed(task: Any) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    task()
    return time.perf_counter() - begun


def main() -> None:
    """Load, say so, and work until stdin ends."""
    parser = argparse.ArgumentParser(description="One engine with one model, driven by peer.py.")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--ctx", type=int, required=True)
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    loaded: list[Engine] = []
    load_s = timed(lambda: loaded.append(ENGINES[options.engine](options)))
    worker = Worker(loaded[0])
    worker.decode(32, WARM_UP)
    print(json.dumps({"about": worker.engine.about, "load_s": load_s}), flush=True)
    for line in sys.stdin:
        name, *numbers = line.split()
        seconds = getattr(worker, name)(*map(int, numbers))
        print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
