"""The least time that a step of a model can take on a machine: what it must read, and what it must multiply.

    floor = max(bytes / measured bandwidth, sum over units of operations / measured peak)

Bytes are those of the file: every matrix that the step uses once (of routed experts those that are expected to be hit),
one row of an embedding that is not also the output, and the cache of the positions before the step. Operations are two
for each weight and row, and two for each element of a key or value and each pair of a query head and a position that
it sees. The output matrix works on the rows whose logits are wanted. Sliding windows are not looked at: a model that
has them may beat its floor far behind them.

Attention over an F16 or Q8_0 cache is computed with integers of 14 bits, three int8 products each, so that its peak is
a third of that of int8, or that of float32 where this is faster; over an F32 cache it is computed in float32. BF16
weights meet activations in two BF16 parts: half the peak of bf16, or of float32.

Knows metadata and tensor directories, and runs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from lmhub.gguf import GGMLType

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile

HEADS = ("output.weight", "token_embd.weight")  # the output matrix: the first of them that the file has
TABLES = ("token_embd.weight", "per_layer_token_embd.weight")  # of which a token has a row
_FLOATS = {GGMLType.F32: "f32", GGMLType.F16: "f32", GGMLType.BF16: "bf16"}


def attention_unit(kv: GGMLType) -> str:
    """The unit of attention over a cache of that type."""
    return "f32" if kv is GGMLType.F32 else "int14"


def unit_of(kind: GGMLType) -> str:
    """The arithmetic unit that a product with weights of that type can run on: integers where they are integers."""
    return _FLOATS.get(kind, "int8")


class Span(NamedTuple):
    """One sequence's share of a step: positions before it, rows, and how many of these want logits."""

    past: int
    rows: int
    wanted: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured: memory in bytes/s, and operations/s of each unit ("f32" always, "int8", "bf16")."""

    bandwidth: float
    peaks: Mapping[str, float]

    def peak(self, unit: str) -> float:
        """Operations/s of a unit; a machine without it computes in float32."""
        if unit == "int14":
            return max(self.peaks["f32"], self.peaks.get("int8", 0.0) / 3)
        if unit == "bf16":
            return max(self.peaks["f32"], self.peaks.get("bf16", 0.0)) / 2
        return self.peaks.get(unit, self.peaks["f32"])


@dataclass(frozen=True, slots=True)
class Work:
    """What has to be done: bytes read, and operations by unit."""

    nbytes: float
    operations: Mapping[str, float]

    def floor(self, machine: Machine) -> tuple[float, str]:
        """Seconds, and what they are bound by: "memory" or "arithmetic"."""
        memory = self.nbytes / machine.bandwidth
        arithmetic = sum(count / machine.peak(unit) for unit, count in self.operations.items())
        return (memory, "memory") if memory >= arithmetic else (arithmetic, "arithmetic")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of `n_expert` matrices, `n_used` of which each row meets; `is_head`: only wanted rows do."""

    nbytes: int
    elements: int
    unit: str
    n_expert: int = 1
    n_used: int = 1
    is_head: bool = False

    def touched(self, rows: int) -> float:
        """The share that so many rows have to read, if each expert is as likely as the others."""
        return 1 - (1 - self.n_used / self.n_expert) ** rows

    def operations(self, rows: int) -> float:
        """Those of so many rows."""
        return 2.0 * self.elements * rows * self.n_used / self.n_expert


@dataclass(frozen=True, slots=True)
class Costs:
    """What the steps of one file cost. `attention`: operations, on `attention_unit`, for each row and position seen."""

    matrices: tuple[Matrix, ...]
    vectors: int  # bytes of everything with one dimension
    embedding_row: float  # bytes of a row that is only looked up; 0 where the head is the embedding
    attention: int
    kv_row: int  # bytes of one position in the cache
    attention_unit: str = "int14"

    def step(self, spans: Sequence[Span]) -> Work:
        """The work of one step over these sequences."""
        rows, wanted = sum(span.rows for span in spans), sum(span.wanted for span in spans)
        nbytes = self.vectors + rows * self.embedding_row + self.kv_row * sum(span.past for span in spans)
        pairs = sum(span.rows * span.past + span.rows * (span.rows + 1) // 2 for span in spans)
        operations = {self.attention_unit: float(self.attention * pairs)}
        for matrix in self.matrices:
            n = wanted if matrix.is_head else rows
            if n:
                nbytes += matrix.nbytes * matrix.touched(n)
                operations[matrix.unit] = operations.get(matrix.unit, 0.0) + matrix.operations(n)
        return Work(nbytes, operations)

    @property
    def routed(self) -> Matrix | None:
        """A weight that has experts, if there is one; the others have as many."""
        return next((matrix for matrix in self.matrices if matrix.n_expert > 1), None)

    def prefill(self, tokens: int, chunk: int) -> list[Work]:
        """The steps that read a prompt, `chunk` tokens in each; the last row's logits are wanted."""
        starts = range(0, tokens, chunk)
        rows = [min(chunk, tokens - start) for start in starts]
        return [self.step([Span(at, n, int(at + n == tokens))]) for at, n in zip(starts, rows, strict=True)]

    def decode(self, depth: int, rows: int = 1) -> Work:
        """A step that appends one token to each of `rows` sequences of `depth` positions."""
        return self.step([Span(depth, 1, 1)] * rows)


def costs(file: GGUFFile, kv_row: int, kv: GGMLType = GGMLType.F16) -> Costs:
    """What the steps of that file cost, with a cache of `kv_row` bytes of type `kv` for each position."""
    arch = file.architecture
    n_expert, n_used = _whole(file, f"{arch}.expert_count"), _whole(file, f"{arch}.expert_used_count")
    head = next((name for name in HEADS if name in file.tensors), "")
    matrices, vectors, embedding_row = [], 0, 0.0
    for name, tensor in file.tensors.items():
        if len(tensor.shape) < 2:
            vectors += tensor.nbytes
        elif name in TABLES and name != head:
            embedding_row += tensor.nbytes / tensor.shape[0]
        else:
            routed = re.search(r"_exps\.|\.ffn_(gate|up|down)\.\d+\.", name) and n_expert and n_used
            of, used = ((tensor.shape[0] if len(tensor.shape) > 2 else n_expert), n_used) if routed else (1, 1)
            matrices.append(
                Matrix(tensor.nbytes, tensor.n_elements, unit_of(tensor.type), of, min(used, of), name == head)
            )
    return Costs(tuple(matrices), vectors, embedding_row, _attention(file), kv_row, attention_unit(kv))


def decode_bytes(file: GGUFFile) -> int:
    """Bytes of weights that decoding one token reads."""
    return round(costs(file, 0).decode(0).nbytes)


def _attention(file: GGUFFile) -> int:
    """2 * (key_length + value_length) for each query head of each layer; 0 where the metadata does not tell."""
    arch = file.architecture
    n_layer, heads = _whole(file, f"{arch}.block_count"), file.get(f"{arch}.attention.head_count", 0)
    per_layer = heads if isinstance(heads, list) else [heads] * n_layer
    n_head = sum(one for one in per_layer if isinstance(one, int))
    widest = max((one for one in per_layer if isinstance(one, int)), default=0)
    default = _whole(file, f"{arch}.embedding_length") // widest if widest else 0
    key = _whole(file, f"{arch}.attention.key_length", default)
    return 2 * n_head * (key + _whole(file, f"{arch}.attention.value_length", key))


def _whole(file: GGUFFile, key: str, default: int = 0) -> int:
    value: Any = file.get(key, default)
    return value if isinstance(value, int) else default
