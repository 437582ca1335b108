"""`lmhub bench MODEL`: prefill and decode speed of a model by itself, beside what the memory allows.

Drives the model through chunks on its engine's thread; no HTTP, no sampler, no tokenizer. The memory floor of decoding,
in tokens per second, is

    measured bandwidth / bytes of weights that one token touches

where a token touches every matrix once, of the embedding only one row unless it is the output matrix as well, and of
each routed expert stack n_expert_used of n_expert experts. The cache is left out: a few percent at these lengths.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmhub.cli.options import Json, KVType, ModelFile, Threads

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile
    from lmhub.loaded import LoadedModel
    from lmhub.model import CausalLM

_CHUNK = 256  # rows of a prefill step, as in the engine
_WARM_UP = 8  # tokens prefilled and decoded before the clock starts


def bench(
    ctx: typer.Context,
    model: ModelFile,
    *,
    prefill: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 512,
    decode: Annotated[int, typer.Option(min=1, help="Tokens decoded behind the prompt.")] = 128,
    runs: Annotated[int, typer.Option("--runs", "-n", min=1, help="Measured runs; the median counts.")] = 3,
    threads: Threads = 0,
    kv_dtype: KVType = "f16",
    as_json: Json = False,
) -> None:
    """Measure tokens per second at prefill and decode, and how close decoding comes to the memory floor."""
    import json

    from lmhub.cli.loading import load
    from lmhub.gguf import open_gguf
    from lmhub.hub import Hub
    from lmhub.settings import EngineSettings

    with open_gguf(model) as file:
        touched = decode_bytes(file)
    hub = Hub(ctx.obj)
    n_ctx = max(prefill + decode, 2 * _WARM_UP)
    settings = EngineSettings(ctx=n_ctx, threads=threads, batch=1, kv_slots=1, kv_dtype=kv_dtype, spec=False)
    [served] = load(hub, [model], settings)
    try:
        bandwidth = _bandwidth()
        lm = _checked(served.model, prefill + decode)
        times = served.engine.call(lambda: _measure(lm, prefill, decode, runs)).result()
        bandwidth = max(bandwidth, _bandwidth())
        report = {"model": served.model.id, "runs": runs, **_report(times, prefill, decode, touched, bandwidth)}
    finally:
        hub.close()
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)


def decode_bytes(file: GGUFFile) -> int:
    """Bytes of weights that decoding one token reads, from the tensor directory and the expert counts."""
    arch = file.architecture
    n_expert, n_used = file.get(f"{arch}.expert_count", 0), file.get(f"{arch}.expert_used_count", 0)
    share = n_used / n_expert if n_expert and n_used else 1.0
    total = 0.0
    for name, tensor in file.tensors.items():
        if name == "token_embd.weight" and "output.weight" in file.tensors:
            total += tensor.nbytes / tensor.shape[0]
        else:
            total += tensor.nbytes * (share if "_exps." in name else 1.0)
    return round(total)


def _checked(loaded: LoadedModel, wanted: int) -> CausalLM:
    from lmhub.errors import RequestError, UnsupportedModel
    from lmhub.model import CausalLM

    name, n_ctx = loaded.id, loaded.n_ctx
    if not isinstance(loaded.model, CausalLM):
        raise UnsupportedModel(f"{name} denoises blocks; bench measures models that predict the next token")
    if n_ctx < wanted:
        raise RequestError(f"{name} has a context of {n_ctx}, {wanted} are asked for; lower --prefill or --decode")
    return loaded.model


def _measure(model: CausalLM, prefill: int, decode: int, runs: int) -> list[tuple[float, float]]:
    """(prefill, decode) seconds of every run, after a warm-up that touches all pages."""
    _run(model, _WARM_UP, _WARM_UP)
    return [_run(model, prefill, decode) for _ in range(runs)]


def _run(model: CausalLM, prefill: int, decode: int) -> tuple[float, float]:
    from lmhub.model import Chunk

    # Any ids will do; these differ from one another, as those of a prompt.
    prompt = [(token * 7919 + 13) % model.n_vocab for token in range(prefill)]
    state = model.new_state(prefill + decode)
    begun = time.perf_counter()
    for start in range(0, prefill, _CHUNK):
        chunk = prompt[start : start + _CHUNK]
        logits = model.forward([Chunk(state, chunk, "last" if start + _CHUNK >= prefill else "none")])
    filled = time.perf_counter()
    for _ in range(decode):
        logits = model.forward([Chunk(state, [int(logits[0].argmax())], "last")])
    return filled - begun, time.perf_counter() - filled


def _bandwidth() -> float:
    """Bytes per second that this machine reads right now. Neighbours disturb it: the best of several counts."""
    from lmhub import native

    return native.memory_bandwidth(native.threads()) * 1e9


def _report(
    times: list[tuple[float, float]], prefill: int, decode: int, touched: int, bandwidth: float
) -> dict[str, Any]:
    from lmhub import native

    fill_s, decode_s = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "instruction_set": native.isa(),
        "threads": native.threads(),
        "prefill": {"tokens": prefill, "tokens_per_s": prefill / fill_s, "seconds": [one for one, _ in times]},
        "decode": {"tokens": decode, "tokens_per_s": decode / decode_s, "seconds": [one for _, one in times]},
        "floor": {
            "bandwidth_bytes_per_s": bandwidth,
            "weight_bytes_per_token": touched,
            "tokens_per_s": bandwidth / touched,
            "reached_percent": 100 * (decode / decode_s) / (bandwidth / touched),
        },
    }


def _print(report: dict[str, Any]) -> None:
    from lmhub.cli.text import clean, console, facts, size

    fill, decode, floor = report["prefill"], report["decode"], report["floor"]
    plural = "s" if report["threads"] > 1 else ""
    rows = [
        ("model", f"{clean(report['model'])}, {report['instruction_set']} on {report['threads']} thread{plural}"),
        ("prefill", f"{fill['tokens_per_s']:.1f} tokens/s over {fill['tokens']}"),
        ("decode", f"{decode['tokens_per_s']:.1f} tokens/s over {decode['tokens']}"),
        (
            "memory floor",
            f"{floor['tokens_per_s']:.1f} tokens/s: {size(floor['weight_bytes_per_token'])} of weights per token at "
            f"{size(floor['bandwidth_bytes_per_s'])}/s",
        ),
        ("reached", f"{floor['reached_percent']:.0f} % of the floor (median of {report['runs']})"),
    ]
    console().print(facts(rows))
