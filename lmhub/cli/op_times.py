"""Where the time of a figure goes: what the kernels counted, op by op, against what each op needs at least.

An op with a weight is named after the tensors of that type and shape. Ops without one move activations, which some
cache holds: they have a speed and no floor. Knows no kernel.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from lmhub.cli.floors import Machine, Work, attention_unit, unit_of
from lmhub.gguf.types import BY_ID

if TYPE_CHECKING:
    from lmhub.cli.rates import Figure
    from lmhub.gguf import GGUFFile
    from lmhub.native import OpTime


def op_rows(figure: Figure, machine: Machine, file: GGUFFile) -> list[dict[str, Any]]:
    """One entry for each op, type and shape, the longest first, and one for the time between the ops ("rest")."""
    names = stems(file)
    rows = [_row(op, names, figure.ops_s, machine) for op in figure.ops]
    rows.sort(key=lambda row: -row["seconds"])
    rest = figure.ops_s - sum(row["seconds"] for row in rows)
    return [*rows, {"op": "rest", "of": "", "calls": 0, "seconds": rest, "share_percent": 100 * rest / figure.ops_s}]


def stems(file: GGUFFile) -> dict[tuple[int, ...], str]:
    """(type, experts, rows, cols) -> the tensors of that kind, without their layers and endings."""
    found: dict[tuple[int, ...], dict[str, None]] = {}
    for name, tensor in file.tensors.items():
        if len(tensor.shape) >= 2:
            key = (tensor.type.id, tensor.shape[0] if len(tensor.shape) > 2 else 1, *tensor.shape[-2:])
            found.setdefault(key, {})[re.sub(r"^blk\.\d+\.|\.weight$", "", name)] = None
    return {key: ", ".join(sorted(which)) for key, which in found.items()}


def _row(op: OpTime, names: dict[tuple[int, ...], str], total_s: float, machine: Machine) -> dict[str, Any]:
    kind = BY_ID.get(op.type)
    has_weight = op.rows > 0
    of = names.get((op.type, op.n_expert, op.rows, op.cols), f"{op.rows} x {op.cols}") if has_weight else ""
    row = {
        "op": op.op,
        "of": " ".join(filter(None, (of, kind.name if kind else ""))),
        "calls": op.calls,
        "seconds": op.seconds,
        "share_percent": 100 * op.seconds / total_s,
        "bytes_per_s": op.bytes / op.seconds,
        "operations_per_s": op.operations / op.seconds,
    }
    if kind is None:
        return row
    unit = unit_of(kind) if has_weight else attention_unit(kind)
    least, bound = Work(op.bytes, {unit: op.operations}).floor(machine)
    return row | {"percent": 100 * least / op.seconds, "bound": bound}
