"""Hyper-parameters of a model file: `Keys` reads an architecture's numbers and holds each to a range.

The file is untrusted: a number that reaches C or an allocation has passed through here. Knows no architecture's keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from lmhub.errors import ModelFileError, UnsupportedModel, quoted

if TYPE_CHECKING:
    from lmhub.gguf import GGUFFile


class Keys:
    """The metadata of a file under the prefix of its architecture: `keys.whole("block_count", 1, 1024)`."""

    def __init__(self, file: GGUFFile):
        self.file = file
        self.arch = file.architecture

    def __contains__(self, name: str) -> bool:
        return f"{self.arch}.{name}" in self.file.metadata

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        """An integer in [low, high]; `default` where the key is absent. Raises ModelFileError."""
        value = self._value(name, default)
        if type(value) is not int or not low <= value <= high:
            self._refuse(name, value, f"a whole number from {low} to {high}")
        return value

    def real(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in [low, high]; `default` where the key is absent. Raises ModelFileError."""
        value = self._value(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        self._refuse(name, value, f"a number from {low:g} to {high:g}")

    def per_layer(self, name: str, n_layer: int, low: int, high: int, default: int | None = None) -> tuple[int, ...]:
        """One integer for each layer, from an array of at least `n_layer` or a single value. Raises ModelFileError."""
        value = self._value(name, default)
        values: list[Any] = list(value[:n_layer]) if isinstance(value, list | tuple) else [value] * n_layer
        if len(values) < n_layer or any(type(one) is not int or not low <= one <= high for one in values):
            self._refuse(name, value, f"one or {n_layer} whole numbers from {low} to {high}")
        return tuple(values)

    def flags(self, name: str, n_layer: int) -> tuple[bool, ...]:
        """One truth value for each layer, from an array of booleans, or of zeros and ones. Raises ModelFileError."""
        value = self._value(name, None)
        if not isinstance(value, list | tuple) or len(value) < n_layer or any(one not in (0, 1) for one in value):
            self._refuse(name, value, f"an array of {n_layer} truth values")
        return tuple(bool(one) for one in value[:n_layer])

    def uniform(self, name: str, n_layer: int, low: int, high: int, default: int | None = None) -> int:
        """Like `per_layer`, for a model with the same value in every layer. Raises UnsupportedModel if it has not."""
        values = self.per_layer(name, n_layer, low, high, default)
        if len(set(values)) != 1:
            raise UnsupportedModel(
                f"{self.file.path.name}: {self.arch}.{name} differs between layers, which this family does not serve; "
                f"use a file with one value for all layers."
            )
        return values[0]

    def heads(self, n_layer: int) -> tuple[int, int]:
        """Query heads and key heads, which a model has in every layer alike. Raises ModelFileError, UnsupportedModel.

        Consecutive query heads share a key head; without a number of their own there are as many.
        """
        n_head = self.uniform("attention.head_count", n_layer, 1, 1024)
        n_kv = self.uniform("attention.head_count_kv", n_layer, 1, n_head, n_head)
        if n_head % n_kv:
            raise ModelFileError(
                f"{self.file.path.name}: {n_head} query heads cannot share {n_kv} key heads evenly; "
                f"convert the model again."
            )
        return n_head, n_kv

    def rows_of(self, name: str) -> int:
        """The slowest dimension of a tensor, for sizes that no key tells. Raises ModelFileError when it is missing."""
        shape = self.file.tensor(name).shape
        return shape[0] if shape else 1

    def text(self, name: str, default: str) -> str:
        """A string; `default` where the key is absent. Raises ModelFileError."""
        return self.file.optional(f"{self.arch}.{name}", str, default)

    def _value(self, name: str, default: object) -> object:
        value = self.file.metadata.get(f"{self.arch}.{name}", default)
        if value is None:
            raise ModelFileError(
                f"{self.file.path.name}: the metadata key {self.arch}.{name} is missing; convert the model again."
            )
        return value

    def _refuse(self, name: str, value: object, wanted: str) -> NoReturn:
        key = f"{self.arch}.{name}"
        raise ModelFileError(
            f"{self.file.path.name}: {key} is {quoted(value)}, but must be {wanted}; convert the model again."
        )


def refuse_other_kinds(keys: Keys, distribution: str) -> None:
    """Raises UnsupportedModel for a file that is no causal language model, or whose experts are scaled or routed oddly.

    `distribution` is who refuses: "lmhub-qwen3".
    """
    file, kind = keys.file, ""
    classifies = "classifier.output_labels" in keys or "cls.output.weight" in file.tensors
    if classifies or file.get(f"{keys.arch}.pooling_type", 0):
        kind = "is an embedding or reranking model"
    elif not file.get(f"{keys.arch}.attention.causal", True):
        kind = "is not causal"
    elif not any(name.startswith("blk.0.") for name in file.tensors):
        kind = "has no first layer, as a draft model has none"
    elif keys.real("expert_weights_scale", 0.0, 1e6, 0.0) not in (0.0, 1.0):
        kind = "scales its experts"
    elif keys.whole("expert_gating_func", 0, 64, 1) > 1:
        kind = "routes by something else than a softmax"
    if kind:
        raise UnsupportedModel(
            f"{file.path.name} {kind}, which {distribution} does not serve; use a chat model of the family."
        )
