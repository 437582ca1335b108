"""What `lmhub serve` says once it can answer: where it is, the models, their cost, and three ways to talk to them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lmhub.cli.describe import mix
from lmhub.cli.show import memory_line
from lmhub.cli.text import clean, count, facts, size, table

if TYPE_CHECKING:
    from rich.console import Console

    from lmhub.settings import ServerSettings

Descriptions = Sequence[tuple[str, dict[str, Any]]]  # (model id, what `describe` says)


def print_summary(out: Console, models: Descriptions, address: str, server: ServerSettings) -> None:
    """One block of facts for one model, one row each for several. `address` is a URL without a path."""
    from lmhub import native

    where = f"{address}/v1"
    plural = "s" if native.threads() > 1 else ""
    common = [("kernels", f"{native.isa()} on {native.threads()} thread{plural}"), ("address", where)]
    out.print()
    if server.ui:
        out.print(f"Ready: open {address} in a browser to chat.", style="bold")
        out.print()
    if len(models) == 1:
        out.print(facts([*_one(*models[0]), *common]))
    else:
        titles = ("model", "family", "architecture", "parameters", "types", "context", "memory")
        out.print(table(titles, [_row(*model) for model in models], right=("parameters", "context", "memory")))
        out.print()
        out.print(facts([("memory", _total(models)), *common]))
    out.print()
    _print_examples(out, address, models[0][0], bool(server.api_keys))
    if warning := exposure(server):
        out.print()
        out.print(warning, style="yellow")
    out.print()


def exposure(server: ServerSettings) -> str:
    """A warning where other machines can reach a server that asks for no key, or nothing."""
    if server.api_keys or server.host.startswith("127.") or server.host in ("localhost", "::1"):
        return ""
    return f"Warning: {server.host} can be reached from other machines, and there is no key; add --api-key KEY."


def _one(id: str, about: dict[str, Any]) -> list[tuple[str, str]]:
    plan = about["memory"]
    trained = f" of {about['context']}" if about["context"] else ""
    return [
        ("model", clean(id)),
        ("family", _family(about)),
        ("architecture", clean(about["architecture"])),
        ("parameters", f"{count(about['parameters'])}; {mix(about)}"),
        ("context", f"{plan['ctx']}{trained} positions, {plan['batch']} sequences at once"),
        ("memory", memory_line(plan)),
    ]


def _row(id: str, about: dict[str, Any]) -> tuple[str, ...]:
    plan = about["memory"]
    return (
        clean(id),
        _family(about),
        clean(about["architecture"]),
        count(about["parameters"]),
        mix(about),
        str(plan["ctx"]),
        size(plan["totals"]["worst"]),
    )


def _family(about: dict[str, Any]) -> str:
    served = about["served_by"]
    return f"{served['family']}, {served['distribution']} {served['version']}"


def _total(models: Descriptions) -> str:
    """All models together, and what was left when the last one was planned."""
    plans = [about["memory"] for _, about in models]
    needed = sum(plan["totals"]["worst"] for plan in plans)
    left, machine = plans[-1]["available"], plans[-1]["machine"]
    return f"{size(needed)} at most, and the mapped files; {size(left)} of {size(machine)} were left for the last one"


def _print_examples(out: Console, address: str, model: str, locked: bool) -> None:
    """How to ask, with curl, with the openai package, and with Claude Code; each can be pasted as it is."""
    key = "KEY" if locked else "none"
    header = " -H 'authorization: Bearer KEY'" if locked else ""
    messages = [{"role": "user", "content": "Hello"}]
    body = shlex.quote(json.dumps({"model": model, "messages": messages}))
    ask = f"client.chat.completions.create(model={json.dumps(model)}, messages={json.dumps(messages)})"
    examples = {
        "curl": [f"curl {address}/v1/chat/completions{header} -H 'content-type: application/json' -d {body}"],
        "Python": [
            "from openai import OpenAI",
            f'client = OpenAI(base_url="{address}/v1", api_key="{key}")',
            f"print({ask}.choices[0].message.content)",
        ],
        "Claude Code": [
            f"ANTHROPIC_BASE_URL={address} ANTHROPIC_AUTH_TOKEN={key} ANTHROPIC_MODEL={shlex.quote(model)} claude"
        ],
    }
    for title, lines in examples.items():
        out.print(title, style="dim")
        for line in lines:
            out.print(f"  {line}")
