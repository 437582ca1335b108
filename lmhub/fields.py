"""Fills a plugin's C structs from a file's tensors: a field has the name of its tensor.

Holds what the `load` of every family would say alike: both ends of a decoder, projections with a bias that may be
absent, feed-forwards, and experts in either of their layouts. Knows no architecture; a family fills the rest itself.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lmhub.rope import Rope
from lmhub.weights import Matrix, Weights


class Fields:
    """The fields of one C struct, made by the plugin's `ffi`; they are filled from tensors that begin with `prefix`.

    The field `attn_q` holds the tensor `{prefix}attn_q.weight`, the field `attn_q_bias` holds `{prefix}attn_q.bias`.
    All methods raise ModelFileError for a tensor that is missing or has another shape.
    """

    def __init__(self, ffi: Any, struct: Any, weights: Weights, prefix: str = ""):
        self._ffi, self._struct, self._weights, self._prefix = ffi, struct, weights, prefix

    def put(self, field: str, weight: Matrix | NDArray[Any] | None) -> None:
        """Store a weight, an array, or nothing: the field is then zero."""
        self._weights.bind(self._ffi, self._struct, field, weight)

    def has(self, stem: str) -> bool:
        """Whether the file has the tensor `{prefix}{stem}.weight`."""
        return self._weights.has(f"{self._prefix}{stem}.weight")

    def vector(self, stem: str, n: int) -> None:
        """The weight `(n,)` of a norm, as a pointer to float32."""
        self.put(stem, self._weights.vector(f"{self._prefix}{stem}.weight", n))

    def matrix(self, stem: str, rows: int, cols: int, n_expert: int = 1) -> None:
        """The weight `(rows, cols)`, or `(n_expert, rows, cols)`."""
        self.put(stem, self._weights.matrix(f"{self._prefix}{stem}.weight", rows, cols, n_expert))

    def projection(self, stem: str, rows: int, cols: int) -> None:
        """The weight `(rows, cols)`, and into the field `{stem}_bias` its bias `(rows,)`, where the file has one."""
        self.matrix(stem, rows, cols)
        self.put(f"{stem}_bias", self._weights.optional_vector(f"{self._prefix}{stem}.bias", rows))

    def experts(self, stem: str, rows: int, cols: int, n_expert: int) -> None:
        """The weight `(n_expert, rows, cols)`: `{stem}_exps`, or in older files a tensor per expert, `{stem}.0` on."""
        name = f"{self._prefix}{stem}"
        if self.has(f"{stem}.0"):
            weight = self._weights.stack([f"{name}.{e}.weight" for e in range(n_expert)], rows, cols)
        else:
            weight = self._weights.matrix(f"{name}_exps.weight", rows, cols, n_expert)
        self.put(stem, weight)

    def feed_forward(self, n_embd: int, n_ff: int) -> None:
        """`ffn_gate` and `ffn_up` `(n_ff, n_embd)`, `ffn_down` `(n_embd, n_ff)`."""
        self.matrix("ffn_gate", n_ff, n_embd)
        self.matrix("ffn_up", n_ff, n_embd)
        self.matrix("ffn_down", n_embd, n_ff)

    def routed_feed_forward(self, n_embd: int, n_ff: int, n_expert: int) -> None:
        """The router `ffn_gate_inp` `(n_expert, n_embd)`, and the same three weights of every expert."""
        self.matrix("ffn_gate_inp", n_expert, n_embd)
        self.experts("ffn_gate", n_ff, n_embd, n_expert)
        self.experts("ffn_up", n_ff, n_embd, n_expert)
        self.experts("ffn_down", n_embd, n_ff, n_expert)

    def ends(self, n_vocab: int, n_embd: int) -> None:
        """`token_embd` and `output` `(n_vocab, n_embd)`, the same one where they are tied; `output_norm`.

        A tied model may still carry its head, quantised differently: it is then meant to be used.
        """
        self.put("token_embd", self._weights.table(f"{self._prefix}token_embd.weight", n_vocab, n_embd))
        head = "output" if self.has("output") else "token_embd"
        self.put("output", self._weights.matrix(f"{self._prefix}{head}.weight", n_vocab, n_embd))
        self.vector("output_norm", n_embd)

    def rope(self, rope: Rope) -> None:
        """`n_pairs`, `rope_magnitude` and `inv_freq`."""
        self._struct.n_pairs, self._struct.rope_magnitude = len(rope.inv_freq), rope.magnitude
        self.put("inv_freq", rope.inv_freq)
