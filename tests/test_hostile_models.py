"""Damaged and hostile model files, end to end: each is served, or refused in one sentence that names what is wrong.

`tests/gguf/test_fuzz.py` does this to the reader; here it is done to everything behind it. Sound models are taken
apart, changed in bytes, metadata, vocabulary, template and tensors, written again, shown, loaded, and asked for a chat,
a completion and logits. The mutants run in a child process with a limited address space, so that a crash is seen and
attributed. `LMHUB_FUZZ=600 pytest tests/test_hostile_models.py` goes on for that many seconds from a random seed; a
failure names the mutant and leaves its file where the message says. Run as a script, this file is the child:
`python test_hostile_models.py SCRATCH SEED FIRST N_MUTANTS SECONDS FILE...`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import math
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lmhub.errors import GenerationError, LmhubError, ShuttingDown
from lmhub.gguf import GGMLType, GGUFWriter, open_gguf
from lmhub.testing.tiny import decoder, write

N_MUTANTS = 200
ALLOWANCE = 384 << 20
"""Address space beyond the warm interpreter's: packed weights, caches, what a template may build, thread stacks."""
HANGS_AFTER_S = 300  # only a safety net: a whole batch takes seconds

NUMBERS = (0, -1, 1, 2, 3, 7, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)
REALS = (0.0, -1.0, 0.5, 1e-30, 1e30, math.nan, math.inf, -math.inf)
OTHERS = (True, False, "", "x", "\x1b[31m\n", [], [0], [1, 2], [0.5], ["a"], [[]], [[1], [2]], [-1], ["x"] * 300)
UNUSUAL_KEYS = (
    "{arch}.rope.dimension_count", "{arch}.rope.scaling.type", "{arch}.rope.scaling.factor", "{arch}.rope.freq_base",
    "{arch}.rope.scaling.original_context_length", "{arch}.rope.scaling.attn_factor", "{arch}.expert_count",
    "{arch}.rope.scaling.yarn_beta_fast", "{arch}.attention.sliding_window", "{arch}.expert_used_count",
    "{arch}.nextn_predict_layers", "{arch}.pooling_type", "{arch}.expert_weights_scale", "{arch}.expert_gating_func",
    "{arch}.expert_feed_forward_length", "general.sampling.temp", "general.sampling.top_k", "general.sampling.top_p",
    "general.sampling.min_p", "general.sampling.penalty_repeat", "general.sampling.penalty_last_n", "general.name",
    "general.alignment", "split.count", "tokenizer.ggml.eos_token_ids", "tokenizer.ggml.suppress_tokens",
    "tokenizer.ggml.eot_token_id", "tokenizer.ggml.unknown_token_id", "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.add_bos_token", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
)  # fmt: skip
BOMBS = (
    "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
    "{% set s = namespace(t='x' * 1000) %}{% for i in range(60) %}{% set s.t = s.t + s.t %}{% endfor %}{{ s.t }}",
    "{{ 'x' * 10 ** 12 }}", "{{ 9 ** 9 ** 9 }}", "{{ '%1000000000d' % 1 }}", "{{ range(10 ** 9) | list | length }}",
    "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}", "{{ messages[99].content.x.y }}", "{{ 1 / 0 }}",
    "{{ raise_exception('one\x1b[31m\ntwo') }}", "{% for", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ " + "-" * 20000 + "1 }}", "{% if 1 %}" * 3000, "{{ ''.__class__.__mro__ }}", "x" * 200_000, "a" * 5000,
    "\0", " ", "{{ namespace(**messages[0]) }}", "{{ strftime_now('%') }}",
    "{{ messages | tojson * 10 ** 6 }}", "{{ bos_token * 300 }}",
    "{% set x = [] %}{% for i in range(99) %}{% set _ = x.append(x) %}{% endfor %}{{ x }}", "{% include 'x' %}",
    "{{ messages | map(attribute='content' * 100000) | list }}", "{{ 'é' * 3 }}{{ '\ud7ff\ue000' }}",
)  # fmt: skip


class Draft:
    """A model file taken apart: `metadata`, and `tensors` as name -> (bytes, type, shape), slowest dimension first."""

    def __init__(self, path: Path):
        with open_gguf(path) as file:
            self.metadata: dict[str, Any] = dict(file.metadata)
            self.tensors = {name: (t.data.copy(), t.type, t.shape) for name, t in file.tensors.items()}
        self.arch = str(self.metadata["general.architecture"])

    def copy(self) -> Draft:
        """The same, to be changed; lists and arrays are replaced by the mutations, never written into."""
        twin = object.__new__(Draft)
        twin.metadata, twin.tensors, twin.arch = dict(self.metadata), dict(self.tensors), self.arch
        return twin

    def write(self, path: Path) -> None:
        """The file. A value that the format cannot hold (a list of unlike things) is left out."""
        out = GGUFWriter(path, None)
        for key, value in self.metadata.items():
            with contextlib.suppress(Exception):
                out.add(key, value)
        for name, (data, kind, shape) in self.tensors.items():
            out.add_tensor(name, data, kind, shape)
        out.write()


def change_value(draft: Draft, rng: random.Random) -> str:
    """Any key gets any value, or none."""
    keys = [key for key in draft.metadata if key != "general.architecture"]
    key = rng.choice(keys) if rng.random() < 0.7 else rng.choice(UNUSUAL_KEYS).format(arch=draft.arch)
    if rng.random() < 0.15:
        draft.metadata.pop(key, None)
        return f"{key} absent"
    value = rng.choice((rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(REALS), rng.choice(OTHERS)))
    if rng.random() < 0.05:
        value = "yarn"
    draft.metadata[key] = value
    return f"{key} = {str(value)[:40]!r}"


def change_vocabulary(draft: Draft, rng: random.Random) -> str:
    """The lists of the tokenizer get other lengths and elements."""
    keys = [key for key, value in draft.metadata.items() if key.startswith("tokenizer.") and isinstance(value, list)]
    key = rng.choice(keys)
    values = list(draft.metadata[key])
    at = rng.randrange(len(values)) if values else 0
    what = rng.randrange(9)
    if not values:
        what = 1
    match what:
        case 0:
            values = values[:at]
        case 1:
            values = values + [values[at] if values else "x"] * rng.choice((1, 1000))
        case 2:
            values[at] = values[rng.randrange(len(values))]
        case 3 | 4:
            odd = ("", "x y z", " ", "\0", "\U0010ffff", "<0x0G>", "<|im_end|>", "<think>", "x" * 100_000, "a b")
            values[at] = rng.choice(odd if isinstance(values[at], str) else (0, 6, 255, *NUMBERS, *REALS))
        case 5:
            values.reverse()
        case 6:
            rng.shuffle(values)
        case 7:
            values = [values[at]] * len(values)
        case _:
            del values[at]
    draft.metadata[key] = values
    return f"{key}: {what} at {at}"


def change_template(draft: Draft, rng: random.Random) -> str:
    """Another template, most of them bombs."""
    template = rng.choice(BOMBS)
    draft.metadata["tokenizer.chat_template"] = template
    return f"template {template[:40]!r}"


def change_tensor(draft: Draft, rng: random.Random) -> str:
    """A tensor goes, gets another name, shape or type, or numbers that are none."""
    name = rng.choice(list(draft.tensors))
    data, kind, shape = draft.tensors[name]
    n = math.prod(shape)
    what = rng.randrange(8)
    match what:
        case 0:
            del draft.tensors[name]
        case 1:
            names = (name + "x", name.replace("weight", "scale"), "rope_freqs.weight", name.replace(".0.", ".9."))
            new = rng.choice(names)
            draft.tensors[new] = draft.tensors.pop(name)
        case 2:
            shapes = [shape[::-1], (n,), (1, n), (n // 2,), (*shape, 1), (1, *shape), (), (1,), (0,), (*shape[:-1], 0)]
            shape = rng.choice([one for one in shapes if len(one) <= 4])
            draft.tensors[name] = _fitting(data, kind, shape)
        case 3:
            draft.tensors[name] = _fitting(data, rng.choice(list(GGMLType)), shape)
        case 4 | 5 if kind is GGMLType.F32:
            values = data.view(np.float32).copy()
            bad = np.float32(rng.choice((math.nan, math.inf, -math.inf, 3e38, 1e-45)))
            values[rng.choice((slice(None), slice(n // 2, n // 2 + 1), slice(0, 1)))] = bad
            draft.tensors[name] = (values.view(np.uint8), kind, shape)
        case 6:
            draft.tensors[name] = (np.zeros_like(data), kind, shape)
        case _:  # every scale is any float16, most of them absurd
            noise = np.frombuffer(rng.randbytes(len(data)), np.uint8)
            draft.tensors[name] = (rng.choice((noise, np.full_like(data, 0xFF), np.full_like(data, 0x7C))), kind, shape)
    return f"{name} {kind.name} {shape}: {what}"


def _fitting(data: np.ndarray, kind: GGMLType, shape: tuple[int, ...]) -> tuple[np.ndarray, GGMLType, tuple[int, ...]]:
    """As many of the bytes, over and over, as that type and shape take; F32 where the rows are no whole blocks."""
    if (shape[-1] if shape else 1) % kind.block_elements:
        kind = GGMLType.F32
    return np.resize(data, kind.row_bytes(math.prod(shape))), kind, shape


def change_bytes(path: Path, rng: random.Random) -> str:
    """Some bytes of the written file, most of them in its header."""
    data = bytearray(path.read_bytes())
    at = rng.randrange(min(len(data), 20_000) if rng.random() < 0.8 else len(data))
    what = rng.randrange(4)
    match what:
        case 0:
            data[at] = rng.randrange(256)
        case 1:
            data[at : at + 8] = rng.choice(NUMBERS[5:]).to_bytes(8, "little")
        case 2:
            data[at : at + 4] = rng.choice((0, 1, 2, 4, 6, 8, 12, 30)).to_bytes(4, "little")
        case _:
            del data[at + rng.randrange(len(data) - at) :]
    path.write_bytes(data)
    return f"bytes {what} at {at}"


Change = Callable[[Draft, random.Random], str]
CHANGES: tuple[Change, ...] = (*[change_value] * 2, change_vocabulary, change_template, *[change_tensor] * 2)


def mutate(draft: Draft, path: Path, rng: random.Random) -> str:
    """Write a changed copy of `draft` and say what was changed."""
    draft = draft.copy()
    told = [rng.choice(CHANGES)(draft, rng) for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3)))]
    draft.write(path)
    if not told:
        told = [change_bytes(path, rng)]
    return "; ".join(told)


# --- the child -------------------------------------------------------------------------------------------------------


def sound(error: LmhubError) -> None:
    """An error that a user can be shown: one line, of bounded length, and not the wrapping of a defect."""
    message = str(error)
    assert message.isprintable(), repr(message)
    assert 20 < len(message) < 1300, message
    assert " failed with " not in message, message


def asked(ask: Callable[[], object], outcomes: Counter[str], name: str) -> LmhubError | None:
    """Count how a request ended; the error, if it was one that may happen."""
    try:
        ask()
    except ShuttingDown:
        raise  # the engine has died
    except LmhubError as error:
        sound(error)
        outcomes[f"{name} refused"] += 1
        return error
    outcomes[f"{name} answered"] += 1
    return None


def exercise(hub: Any, show: Callable[[str], object], path: Path, outcomes: Counter[str]) -> None:
    """Show, load and use one file."""
    from lmhub.api import Model
    from lmhub.settings import EngineSettings

    asked(lambda: show(str(path)), outcomes, "show")
    try:
        served = hub.load(path, EngineSettings(ctx=128, batch=1))
    except LmhubError as error:
        sound(error)
        assert path.name in str(error), str(error)
        outcomes["load refused"] += 1
        return
    outcomes["load answered"] += 1
    try:
        with Model(hub, served) as model:
            use(model, outcomes)
    finally:
        hub.close()


def use(model: Any, outcomes: Counter[str]) -> None:
    """One chat, logits, and two completions, of which the second shows that the engine survived the first."""
    ids = [1 % model.n_vocab, model.n_vocab - 1, 0]
    messages = [{"role": "system", "content": "Be  brief."}, {"role": "user", "content": "Hé <|im_end|>\n 1"}]
    asked(lambda: model.chat(messages, max_tokens=3, seed=1), outcomes, "chat")
    rows: list[np.ndarray] = []
    refused = asked(lambda: rows.append(model.logits(ids)), outcomes, "logits")
    failed = asked(lambda: model.complete(ids, max_tokens=2, temperature=0), outcomes, "complete")
    if rows and not (rows[0][-1] < math.inf).all():
        assert isinstance(failed, GenerationError), failed
    # One failed generation is not the engine's end.
    again = asked(lambda: model.complete(ids, max_tokens=2, temperature=0), outcomes, "again")
    assert type(again) is type(failed), (refused, failed, again)


def address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def child(scratch: str, seed: str, first: str, n_mutants: str, seconds: str, *names: str) -> None:
    from lmhub.cli.show import show as show_command
    from lmhub.hub import Hub
    from lmhub.plugins import Plugins

    faulthandler.enable()
    hub, plugins = Hub(), Plugins()
    plugins.load_entry_points()

    def show(path: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            show_command(SimpleNamespace(obj=plugins), Path(path), metadata=True, context=128, batch=1, tensors=True)
        assert out.getvalue().replace("\n", "").isprintable()

    path, outcomes = Path(scratch), Counter[str]()
    drafts = [Draft(Path(name)) for name in names]
    for draft in drafts:
        draft.write(path)
        exercise(hub, show, path, outcomes)
    assert outcomes["load answered"] == outcomes["again answered"] == len(drafts), outcomes
    outcomes.clear()
    limit = address_space() + ALLOWANCE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    deadline = time.monotonic() + float(seconds)
    at = int(first)
    while at < int(first) + int(n_mutants) or time.monotonic() < deadline:
        rng = random.Random(f"{seed}/{at}")
        told = mutate(drafts[at % len(drafts)], path, rng)
        print(f"mutant {at} of {names[at % len(names)]}: {told}", file=sys.stderr, flush=True)
        exercise(hub, show, path, outcomes)
        at += 1
    outcomes["mutants"] = at - int(first)
    print(json.dumps(outcomes))


# --- the tests -------------------------------------------------------------------------------------------------------


def score_vocabulary() -> dict[str, Any]:
    """The metadata of a small SentencePiece vocabulary, with ChatML for want of a template of its own."""
    letters = [*"\u2581helowrdabc<>|_is", "he", "ll", "\u2581h", "\u2581he", "\u2581\u2581"]
    groups = [(2, ["<unk>"]), (3, ["<s>", "</s>"]), (6, [f"<0x{byte:02X}>" for byte in range(256)]), (1, letters)]
    groups.append((3, ["<|im_start|>", "<|im_end|>"]))
    tokens = [text for _, texts in groups for text in texts]
    keys = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [kind for kind, texts in groups for _ in texts],
        "scores": [-float(i % 7) for i in range(len(tokens))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


SLIDING = {"attention.sliding_window": 20, "attention.sliding_window_pattern": 2}
BEHIND = {f"blk.{i}.{norm}.weight": (64,) for i in range(2) for norm in ("post_attention_norm", "post_ffw_norm")}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound models of every kind that is served."""
    folder = tmp_path_factory.mktemp("sound")
    spoken = score_vocabulary()
    rows = {"token_embd.weight": (len(spoken["tokenizer.ggml.tokens"]), 64)}
    models = {
        "qwen3": (decoder("qwen3", qk_norm=True, biases=True), GGMLType.Q8_0),
        "qwen3moe": (decoder("qwen3moe", qk_norm=True, n_expert=4, n_ff=64, tied=True), GGMLType.Q8_0),
        "llama": (decoder("llama", **{"rope.dimension_count": 32}), GGMLType.F32),
        "mixtral": (decoder("llama", n_expert=4, n_ff=64, tied=True), GGMLType.F32),
        "gemma3": (decoder("gemma3", qk_norm=True, tied=True, **SLIDING).with_tensors(BEHIND), GGMLType.Q8_0),
        "scored": (replace(decoder("llama", tied=True).with_tensors(rows), metadata=spoken), GGMLType.F16),
    }
    return {name: write(folder / f"{name}.gguf", tiny, kind) for name, (tiny, kind) in models.items()}


def run_child(scratch: Path, sources: Iterable[Path]) -> Counter[str]:
    """Run a batch of mutants; how often what was answered or refused."""
    seconds = os.environ.get("LMHUB_FUZZ", "0")
    seed = str(random.SystemRandom().randrange(1 << 30)) if float(seconds) else "1"
    words = [sys.executable, __file__, str(scratch), seed, "0", str(N_MUTANTS), seconds, *map(str, sources)]
    limit = HANGS_AFTER_S + float(seconds)
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, timeout=limit)
    told = f"seed {seed}, kept in {scratch}: ...{done.stderr[-4000:]}"
    assert done.returncode == 0, told
    outcomes = Counter[str](json.loads(done.stdout))
    print(seed, outcomes)
    return outcomes


def test_mutants_of_tiny_models(sources: dict[str, Path], tmp_path: Path) -> None:
    outcomes = run_child(tmp_path / "mutant.gguf", sources.values())
    # A fuzzer whose mutants all load, or all fail at once, tests nothing.
    for name in ("load", "chat", "complete", "show"):
        assert outcomes[f"{name} answered"] > N_MUTANTS // 20, outcomes
        assert outcomes[f"{name} refused"] > N_MUTANTS // 100, outcomes


def test_mutants_of_golden_models(shared: Path, tmp_path: Path) -> None:
    folders = (
        "qwen3",
        "qwen3moe",
        "qwen3-k256",
        "llama",
        "llama-spm",
        "llama3-rope",
        "gemma3",
        "gemma4-e2b",
        "gemma4-moe",
        "qwen35",
        "qwen35moe",
    )
    paths = [sorted((shared / "zoo" / name).glob("model-q*.gguf"))[0] for name in folders]
    outcomes = run_child(tmp_path / "mutant.gguf", paths)
    assert outcomes["load answered"] > N_MUTANTS // 20 < outcomes["load refused"], outcomes


def lmhub(*words: object) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LMHUB_")}
    command = [sys.executable, "-m", "lmhub", *map(str, words)]
    return subprocess.run(command, input="", env=clean, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda d: d.metadata.pop("qwen3.block_count"), "qwen3.block_count"),
        (lambda d: d.metadata.update({"qwen3.attention.head_count": 1 << 31}), "qwen3.attention.head_count"),
        (lambda d: d.tensors.pop("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight"),
        (lambda d: d.metadata.update({"tokenizer.ggml.merges": ["x y"]}), "tokenizer.ggml.merges[0]"),
        (lambda d: d.metadata.update({"tokenizer.ggml.tokens": ["\x1b[31m" * 999] * 288}), "tokenizer.ggml.tokens"),
    ],
)
def test_the_command_line_refuses_in_one_line(
    damage: Callable[[Draft], object], named: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    draft = Draft(sources["qwen3"])
    damage(draft)
    draft.write(tmp_path / "damaged.gguf")
    for words in (("serve", "--port", 0), ("run",)):
        done = lmhub(words[0], tmp_path / "damaged.gguf", *words[1:], *["hello"] * (words[0] == "run"))
        assert done.returncode == 2, done.stderr
        assert done.stdout == ""
        [line] = done.stderr.splitlines()
        assert line.startswith("lmhub: ")
        assert "damaged.gguf: " in line
        assert named in line
        assert line.isprintable()


def test_numbers_that_are_none_end_the_reply_and_not_the_command(sources: dict[str, Path], tmp_path: Path) -> None:
    draft = Draft(sources["llama"])
    data, kind, shape = draft.tensors["blk.1.attn_v.weight"]
    draft.tensors["blk.1.attn_v.weight"] = (np.full_like(data, 0xFF), kind, shape)
    draft.write(tmp_path / "nan.gguf")
    done = lmhub("run", tmp_path / "nan.gguf", "hello")
    assert done.returncode == 2, done.stderr
    [line] = done.stderr.splitlines()
    assert "numerical failure" in line


if __name__ == "__main__":
    child(*sys.argv[1:])
