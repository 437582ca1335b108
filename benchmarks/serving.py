"""Speed of the server over HTTP: streams at once, shared prefixes, an agent's transcript, speculation; and the peer's.

    python benchmarks/serving.py [MODEL.gguf] [--only streams,prefix,agent,spec,python] [--peer PYTHON] [--json]

Starts its own servers on free ports and stops them. `--peer` names an interpreter that has llama-cpp-python with its
server (`pip install 'llama-cpp-python[server]'`): it gets the same file, the same number of threads and the same
requests in the same run, so that ratios are fair; it works on one request at a time. Without a model, a full-size
random Qwen3 0.6B is written to models/ once. Knows the HTTP interface only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import runpy
import signal
import statistics
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients import Client, Reply, ServerFailed, has_flag, lmhub_server, peer_server
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "qwen3-0.6b-q8_0.gguf"
STREAMS = (1, 2, 4, 8, 16)
# Spelled out, for the servers have different defaults. Random weights with tied embeddings fall into loops at lower
# temperatures, and text that repeats itself would show speculation instead of batching.
SAMPLED = {"temperature": 2.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0}
GREEDY = {"temperature": 0.0}
FREE = {"temperature": 2.0}
SYSTEM_TOKENS = 2000
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how much of it."""

    model: Path
    threads: int
    rounds: int
    reply: int  # tokens of each reply where speed is measured
    turns: int
    transcript: int  # tokens at the end of the agent's transcript
    peer: str | None
    flags: tuple[str, ...]  # more of them for lmhub


def tell(text: str) -> None:
    """How far it is, for whoever watches."""
    print(text, file=sys.stderr, flush=True)


# --- texts -----------------------------------------------------------------------------------------------------------

SENTENCES = re.split(r"(?<=[.!?])\s+", (Path(__file__).parent / "text" / "alice.txt").read_text())


def prose(n_chars: int, seed: int) -> str:
    """Sentences of the book in an order of its own for each seed."""
    rng = random.Random(seed)
    text = ""
    while len(text) < n_chars:
        text += rng.choice(SENTENCES) + "\n"
    return text[:n_chars]


def chars_per_token(client: Client) -> float:
    """Of this model's tokenizer on this book."""
    text = prose(4000, 0)
    return len(text) / client.server.n_tokens(text)


def chat_of(user: str, system: str = "") -> Messages:
    """A conversation of one turn."""
    head = [{"role": "system", "content": system}] if system else []
    return [*head, {"role": "user", "content": user}]


# --- measurements ----------------------------------------------------------------------------------------------------


async def open_all(stack: AsyncExitStack, plan: Plan, ctx: int, *flags: object) -> list[Client]:
    """A warm client of lmhub and, where there is one, of the peer."""
    ours = ("--ctx", ctx, "--threads", plan.threads, *flags, *plan.flags)
    servers = [lmhub_server(plan.model, *ours)]
    if plan.peer is not None:
        servers.append(peer_server(plan.peer, plan.model, ctx, plan.threads))
    clients = [await stack.enter_async_context(Client(stack.enter_context(server))) for server in servers]
    for client in clients:
        await client.chat(chat_of("Warm up."), 8)
    return clients


async def streams(plan: Plan) -> dict[str, Any]:
    """Aggregate speed and time to first token of 1 to 16 replies at once to prompts that share nothing."""
    out: dict[str, Any] = defaultdict(dict)
    async with AsyncExitStack() as stack:
        for client in await open_all(stack, plan, 1024, "--batch", max(STREAMS), "--queue", 64):
            for n in STREAMS:
                chats = [chat_of(f"{seed * 7919} {prose(60, seed)}") for seed in range(n * 100, n * 101)]
                replies = await client.chats(chats, plan.reply, **SAMPLED)
                out[client.server.name][n] = crowd(replies)
                tell(
                    f"streams: {client.server.name}, {n} at once: {out[client.server.name][n]['tokens_s']:.1f} tokens/s"
                )
    return dict(out)


def crowd(replies: Sequence[Reply]) -> dict[str, float | None]:
    """Figures of replies that were asked for together.

    `tokens_s` counts from the first request to the last token; `steady_tokens_s` only while all of them were arriving.
    """
    start, end = min(one.sent for one in replies), max(one.end for one in replies)
    begin, until = max(one.arrivals[0] for one in replies), min(one.end for one in replies)
    inside = [sum(begin < at <= until for at in one.arrivals) * one.n_reply / len(one.arrivals) for one in replies]
    return {
        "tokens_s": sum(one.n_reply for one in replies) / (end - start),
        "steady_tokens_s": sum(inside) / (until - begin) if until > begin else None,
        "first_s": statistics.median(one.first_s for one in replies),
        "first_s_max": max(one.first_s for one in replies),
    }


async def prefix(plan: Plan) -> dict[str, Any]:
    """Time to first token with a long system prompt: of the first conversation, of another, of the first one again.

    And, on lmhub, how much of a common system prompt eight conversations read that begin at the same moment.
    """
    out: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        clients = await open_all(stack, plan, 4096, "--batch", 8)
        size = int(SYSTEM_TOKENS * chars_per_token(clients[0]))
        for client in clients:
            rounds = []
            for number in range(plan.rounds):
                system = f"You are assistant {number}. {prose(size, number)}"
                first = await client.chat(chat_of("Who is the cat?", system), 16, **GREEDY)
                second = await client.chat(chat_of("What is on the table, and why?", system), 16, **GREEDY)
                history = [*chat_of("Who is the cat?", system), {"role": "assistant", "content": first.text}]
                third = await client.chat([*history, {"role": "user", "content": "Go on."}], 16, **GREEDY)
                rounds.append((first, second, third))
                times = ", ".join(f"{one.first_s:.2f}" for one in rounds[-1])
                tell(f"prefix: {client.server.name}, round {number + 1}: first tokens after {times} s")
            out[client.server.name] = {
                name: {"first_s": statistics.median(one[at].first_s for one in rounds), "read": rounds[0][at].n_read}
                for at, name in enumerate(("first", "second", "first_again"))
            }
        system = f"You are one of eight. {prose(size, 99)}"
        replies = await clients[0].chats([chat_of(f"{n}: who are you?", system) for n in range(8)], 16, **GREEDY)
        out["eight_at_once"] = {
            "prompt_tokens": statistics.mean(one.n_prompt or 0 for one in replies),
            "read": sum(one.n_read or 0 for one in replies),
            "first_s_max": max(one.first_s for one in replies),
        }
    return out


async def agent(plan: Plan) -> dict[str, Any]:
    """A transcript that grows turn by turn: what each turn had to read, and how long it took."""
    out: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        clients = await open_all(stack, plan, plan.transcript + 2048, "--batch", 1)
        per_token = chars_per_token(clients[0])
        added = (plan.transcript - SYSTEM_TOKENS) / plan.turns - 32
        for client in clients:
            history: Messages = chat_of("Begin.", prose(int(SYSTEM_TOKENS * per_token), 1))
            turns = []
            for turn in range(plan.turns):
                history[-1]["content"] += " " + prose(int(added * per_token), 1000 + turn)
                reply = await client.chat(history, 32, **GREEDY)
                turns.append({
                    "prompt_tokens": reply.n_prompt, "read": reply.n_read, "first_s": reply.first_s,
                    "total_s": reply.end - reply.sent,
                })  # fmt: skip
                tell(f"agent: {client.server.name}, turn {turn + 1}: first token after {reply.first_s:.2f} s")
                history += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": f"Step {turn}."}]
            out[client.server.name] = {"turns": turns, "total_s": sum(one["total_s"] for one in turns)}
    return out


async def spec(plan: Plan) -> dict[str, Any]:
    """Decoding with speculation against decoding without: replies that repeat themselves, and replies that do not."""
    if not has_flag("--spec"):
        return {"missing": "this server has no --spec"}
    passage = prose(600, 5)
    text = json.dumps(prose(plan.reply * 2, 6))
    schema = {"name": "copy", "schema": {"const": json.loads(text)}}
    repeating = chat_of(f"Repeat this three times.\n{passage}\n{passage}\n{passage}")
    kinds: dict[str, tuple[list[Messages], dict[str, Any]]] = {
        "repetitive": ([repeating], GREEDY),
        "given by a grammar": (
            [chat_of("Write it down.")],
            {**GREEDY, "ignore_eos": False, "response_format": {"type": "json_schema", "json_schema": schema}},
        ),
        "free": ([chat_of("Tell me a story.")], FREE),
        "free, 4 at once": ([chat_of(f"{n} stories, please.") for n in range(4)], FREE),
    }
    out: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        flags = ("--ctx", 4096, "--threads", plan.threads, "--batch", 4, *plan.flags)
        on, off = [
            await stack.enter_async_context(
                Client(stack.enter_context(lmhub_server(plan.model, *flags, flag, name=flag)))
            )
            for flag in ("--spec", "--no-spec")
        ]
        for name, (chats, fields) in kinds.items():
            pairs = []
            for seed in range(plan.rounds):  # alternating, so that both see the same moods of the machine
                rates = []
                for client in (on, off):
                    replies = await client.chats(chats, plan.reply, **{"seed": seed, **fields})
                    rates.append(sum(one.rate for one in replies))
                pairs.append((*rates, repeats(chats[0][-1]["content"], replies[0].text)))
            tell(f"spec: {name}: " + ", ".join(f"{one / other:.2f}" for one, other, _ in pairs))
            out[name] = {
                "on_tokens_s": statistics.median(pair[0] for pair in pairs),
                "off_tokens_s": statistics.median(pair[1] for pair in pairs),
                "ratio": statistics.median(pair[0] / pair[1] for pair in pairs),
                "repeats": statistics.mean(pair[2] for pair in pairs),
            }
        counts = on.server.metrics()
        out["drafted"] = counts.get("lmhub_tokens_drafted_total")
        out["accepted"] = counts.get("lmhub_tokens_accepted_total")
    return out


def repeats(prompt: str, reply: str, n: int = 8) -> float:
    """Share of the reply's characters that followed the same `n` before: near 0 in free text, 1 in a copy or a loop."""
    text = prompt + reply
    follows: dict[str, str] = {}
    hits = 0
    for at in range(n, len(text)):
        hits += at >= len(prompt) and follows.get(text[at - n : at]) == text[at]
        follows[text[at - n : at]] = text[at]
    return hits / max(len(reply), 1)


async def python(plan: Plan) -> dict[str, Any]:
    """What the worker thread spends on a step outside the model's forward pass while eight replies are decoded.

    Sampling is part of it: greedy is nearly Python alone, sampled has the native sampler's time in it.
    """
    out: dict[str, Any] = {}
    async with AsyncExitStack() as stack:
        server = stack.enter_context(
            lmhub_server(plan.model, "--ctx", 1024, "--threads", plan.threads, "--batch", 8, *plan.flags)
        )
        client = await stack.enter_async_context(Client(server))
        for name, fields in {"greedy": GREEDY, "sampled": SAMPLED}.items():
            before = server.metrics()
            await client.chats([chat_of(f"{n} {prose(40, n)}") for n in range(8)], plan.reply, **fields)
            after = server.metrics()
            if "lmhub_step_seconds_total" not in after:
                return {"missing": "this server does not tell lmhub_step_seconds_total and lmhub_forward_seconds_total"}
            steps, step_s, forward_s = (
                after[f"lmhub_{key}_total"] - before[f"lmhub_{key}_total"]
                for key in ("n_decode", "step_seconds", "forward_seconds")
            )
            out[name] = {"steps": steps, "ms": 1e3 * (step_s - forward_s) / steps, "step_ms": 1e3 * step_s / steps}
    return out


# --- tables ----------------------------------------------------------------------------------------------------------


def bar(value: float, most: float, width: int = 20) -> str:
    """A bar of eighths of a character."""
    eighths = round(8 * width * value / most) if most > 0 else 0
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def grid(console: Console, title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table; numbers to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in head:
        table.add_column(name, justify="left" if name in ("", "server", "reply") else "right")
    for row in rows:
        table.add_row(*(f"{one:.3g}" if isinstance(one, float) else "-" if one is None else str(one) for one in row))
    console.print(table)


def show_streams(console: Console, found: Mapping[str, Any]) -> None:
    """Tokens per second by number of streams."""
    most = max(row["tokens_s"] for rows in found.values() for row in rows.values())
    rows = [
        (name, n, row["tokens_s"], row["tokens_s"] / rows[1]["tokens_s"], row["steady_tokens_s"], row["first_s"],
         row["first_s_max"], bar(row["tokens_s"], most))
        for name, rows in found.items() for n, row in rows.items()
    ]  # fmt: skip
    head = ("server", "streams", "tokens/s", "times one", "steady tokens/s", "first token s", "slowest", "")
    grid(console, "Replies at once", head, rows)
    versus(console, found, lambda rows: rows[8]["tokens_s"], "8 streams, tokens/s")


def show_prefix(console: Console, found: Mapping[str, Any]) -> None:
    """First tokens behind a long system prompt."""
    rows = [
        (name, which.replace("_", " "), one["first_s"], one["read"], one["first_s"] / by["first"]["first_s"])
        for name, by in found.items() if name != "eight_at_once" for which, one in by.items()
    ]  # fmt: skip
    head = ("server", "conversation", "first token s", "tokens read", "of the first")
    grid(console, f"A system prompt of {SYSTEM_TOKENS} tokens", head, rows)
    eight = found["eight_at_once"]
    console.print(
        f"lmhub, 8 conversations at once: {eight['read']} tokens read, {eight['read'] / eight['prompt_tokens']:.2f} "
        f"prompts' worth; the slowest first token after {eight['first_s_max']:.2f} s"
    )


def show_agent(console: Console, found: Mapping[str, Any]) -> None:
    """One line per turn."""
    for name, one in found.items():
        rows = [(n, *turn.values()) for n, turn in enumerate(one["turns"], 1)]
        title = f"An agent's transcript, {name}: {one['total_s']:.1f} s"
        grid(console, title, ("turn", "prompt tokens", "tokens read", "first token s", "whole turn s"), rows)
    versus(console, found, lambda one: 1 / one["total_s"], "turns per second")


def show_spec(console: Console, found: Mapping[str, Any]) -> None:
    """On against off."""
    rows = [
        (name, one["on_tokens_s"], one["off_tokens_s"], one["ratio"], one["repeats"])
        for name, one in found.items() if isinstance(one, dict)
    ]  # fmt: skip
    grid(console, "Speculation", ("reply", "on tokens/s", "off tokens/s", "on / off", "repeats"), rows)
    console.print(f"{found['drafted']:.0f} tokens guessed, {found['accepted']:.0f} rightly")


def show_python(console: Console, found: Mapping[str, Any]) -> None:
    """Milliseconds per step."""
    rows = [(name, one["steps"], one["step_ms"], one["ms"]) for name, one in found.items()]
    grid(console, "A step with 8 replies", ("reply", "steps", "step ms", "outside the model ms"), rows)


def versus(console: Console, found: Mapping[str, Any], figure: Callable[[Any], float], what: str) -> None:
    """Ours over the peer's, where there is one."""
    if len(found) == 2:
        ours, theirs = (figure(one) for one in found.values())
        console.print(f"{what}: lmhub / {list(found)[1]} = {ours / theirs:.2f}")


PARTS: dict[str, tuple[Callable[[Plan], Awaitable[dict[str, Any]]], Callable[[Console, Mapping[str, Any]], None]]] = {
    "streams": (streams, show_streams),
    "prefix": (prefix, show_prefix),
    "agent": (agent, show_agent),
    "spec": (spec, show_spec),
    "python": (python, show_python),
}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", default=MODEL, metavar="MODEL.gguf")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3, help="of prefix and spec; medians count (default: 3)")
    parser.add_argument("--reply", type=int, default=128, help="tokens of a reply (default: 128)")
    parser.add_argument("--turns", type=int, default=10, help="of the agent (default: 10)")
    parser.add_argument("--transcript", type=int, default=20_000, help="its tokens at the end (default: 20000)")
    parser.add_argument("--peer", metavar="PYTHON", help="an interpreter that has llama-cpp-python and its server")
    parser.add_argument("--flags", default="", help="more flags for `lmhub serve`, in one word")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if options.model == MODEL and not MODEL.exists():
        MODEL.parent.mkdir(exist_ok=True)
        models = runpy.run_path(str(Path(__file__).parent / "models.py"))
        models["write_model"](MODEL, models["GEOMETRIES"]["qwen3-0.6b"], models["TYPES"]["q8_0"])
    plan = Plan(
        options.model, options.threads, options.rounds, options.reply, options.turns, options.transcript,
        options.peer, tuple(options.flags.split()),
    )  # fmt: skip
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that servers are stopped
    console = Console(stderr=options.json, width=None if sys.stdout.isatty() else 120)
    found: dict[str, Any] = {"model": plan.model.name, "threads": plan.threads}
    console.print(f"{plan.model.name} on {plan.threads} threads")
    try:
        for name in wanted:
            measure, show = PARTS[name]
            found[name] = asyncio.run(measure(plan))
            console.print(found[name]["missing"]) if "missing" in found[name] else show(console, found[name])
    except ServerFailed as error:
        sys.exit(str(error))
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
