"""`lmhub show FILE`: what is in a model file, which plugin takes it, and what it will cost. Loads no weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmhub.cli.options import ENGINE, Batch, Ctx, Json, KVType, ModelFile
from lmhub.settings import EngineSettings

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile

_LONG = 8  # elements of a metadata array that are shown


def show(
    ctx: typer.Context,
    model: ModelFile,
    *,
    context: Ctx = ENGINE.ctx,
    batch: Batch = ENGINE.batch,
    kv_dtype: KVType = "f16",
    tensors: Annotated[bool, typer.Option("--tensors", help="List every tensor.")] = False,
    metadata: Annotated[bool, typer.Option("--metadata", help="List all metadata.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a model file holds, which plugin serves it, and how much memory that takes."""
    from lmhub.cli.describe import describe
    from lmhub.hub import Hub

    hub = Hub(ctx.obj)
    with hub.open(model) as file:
        about = describe(file, hub, EngineSettings(ctx=context, batch=batch, kv_dtype=kv_dtype))
        if as_json:
            _print_json(about, file, tensors, metadata)
        else:
            _print(about, file, tensors, metadata)


def _print_json(about: dict[str, Any], file: GGUFFile, tensors: bool, metadata: bool) -> None:
    import json

    if tensors:
        about["tensor_list"] = [
            {"name": t.name, "type": t.type.name, "shape": list(t.shape), "bytes": t.nbytes}
            for t in file.tensors.values()
        ]
    if metadata:
        about["metadata"] = dict(file.metadata)
    typer.echo(json.dumps(about, indent=2))  # ASCII only: no byte of the file reaches a terminal as it is


def _print(about: dict[str, Any], file: GGUFFile, tensors: bool, metadata: bool) -> None:
    from lmhub.cli.text import clean, console, count, facts, size, table

    out = console()
    out.print(facts(_rows(about)))
    out.print()
    kinds = [
        (
            kind["type"],
            str(kind["tensors"]),
            count(kind["parameters"]),
            size(kind["bytes"]),
            f"{kind['bits_per_weight'] or 0:g}",
        )
        for kind in about["quantization"]
    ]
    numbers = ("tensors", "parameters", "size", "bits/weight")
    out.print(table(("type", *numbers), kinds, right=numbers))
    if tensors:
        rows = [
            (clean(t.name), t.type.name, " × ".join(map(str, t.shape)), size(t.nbytes)) for t in file.tensors.values()
        ]
        out.print()
        out.print(table(("tensor", "type", "shape", "size"), rows, right=("size",)))
    if metadata:
        out.print()
        out.print(table(("key", "value"), [(clean(key), _value(value)) for key, value in file.metadata.items()]))


def _rows(about: dict[str, Any]) -> list[tuple[str, str]]:
    from lmhub.cli.text import clean, count, size

    parts = f" in {about['parts']} parts" if about["parts"] > 1 else ""
    kind = f"GGUF {about['gguf_version']}" if about["gguf_version"] else "checkpoint"
    rows = [
        ("file", f"{clean(about['file'], 1000)} ({kind}, {size(about['bytes'])}{parts})"),
        ("architecture", clean(about["architecture"])),
        ("name", clean(about["name"]) if about["name"] else "none"),
        ("parameters", f"{count(about['parameters'])} in {about['tensors']} tensors"),
        ("context", f"{about['context']} positions" if about["context"] else "not stated"),
        ("tokenizer", _tokenizer(about["tokenizer"])),
        ("template", _template(about["template"])),
    ]
    served = about["served_by"]
    if served["plugin"] is None:
        return [*rows, ("served by", f"no plugin: {clean(served['problem'], 1000)}")]
    rows.append(("served by", f"{served['distribution']} {served['version']}, family {served['family']}"))
    rows.append(("memory", memory_line(about["memory"])))
    return rows


def memory_line(plan: dict[str, Any]) -> str:
    """The memory plan in one line, against what this machine has."""
    from lmhub.cli.text import clean, size

    if "problem" in plan:
        return clean(plan["problem"], 1000)
    sums = plan["totals"]
    short = "" if plan["fits"] else ", which is not enough: see `lmhub plan`"
    return (
        f"{size(sums['worst'])} at most, {size(sums['committed'])} at load, for {plan['slots']} × "
        f"{size(plan['per_slot'])} of {plan['kv_dtype']} cache of {plan['ctx']} positions; {size(sums['mapped'])} of "
        f"the file mapped, reclaimable; {size(plan['available'])} of {size(plan['machine'])} available{short}"
    )


def _tokenizer(about: dict[str, Any] | None) -> str:
    from lmhub.cli.text import clean

    if about is None:
        return "none"
    ends = [
        f"{name} {token['id']} {clean(token['text'], 40) if token['text'] is not None else '(outside the vocabulary)'}"
        for name in ("bos", "eos")
        if (token := about[name]) is not None
    ]
    pre = f"/{clean(about['pre'], 40)}" if about["pre"] else ""
    return ", ".join([f"{clean(about['model'], 40)}{pre}", f"{about['tokens']} tokens", *ends])


def _template(about: dict[str, Any] | None) -> str:
    from lmhub.cli.text import clean

    if about is None:
        return "none"
    head = [f"  {clean(line, 100)}" for line in about["first_lines"]]
    return "\n".join([f"{about['characters']} characters, sha256 {about['sha256'][:12]}, begins", *head])


def _value(value: Any) -> str:
    from lmhub.cli.text import clean

    if isinstance(value, list) and len(value) > _LONG:
        return f"{clean(value[:_LONG])[:-1]}, …] ({len(value)} elements)"
    return clean(value)
