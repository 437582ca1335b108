"""The sizes and constants of a nanochat model, out of the metadata that a GGUF file or a folder's reader gives.

The file is untrusted: every number is held to a range before C or an allocation sees it. Knows no weights, and no
generations: what differs between them stands in the metadata as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmhub.errors import ModelFileError
from lmhub.family import LoadOptions
from lmhub.forward import Geometry
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.kv import Layers
from lmhub_nanochat.state import TokenGeometry

SMEAR = "smear_gate.weight"


@dataclass(frozen=True, slots=True)
class Hparams:
    """Sizes of one model, in elements; `windows` are the positions that each layer sees, 0: all."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_kv: int
    head_dim: int
    windows: tuple[int, ...]
    n_vocab: int
    n_ctx_train: int
    rms_eps: float
    rope_base: float
    softcap: float
    qk_scale: float
    value_gate_scale: float
    n_gate: int  # channels of a layer's input that its gate of values reads
    n_smear: int  # channels of an embedding that decide how it is smeared
    has_smear: bool

    @classmethod
    def from_file(cls, file: GGUFFile) -> Hparams:
        """Raises ModelFileError for numbers out of range."""
        keys = Keys(file)
        n_layer = keys.whole("block_count", 1, 1024)
        n_embd = keys.whole("embedding_length", 2, 1 << 17)
        n_head = keys.whole("attention.head_count", 1, 1024)
        n_kv = keys.whole("attention.head_count_kv", 1, 1024, n_head)
        head_dim = keys.whole("attention.key_length", 2, 2048, n_embd // n_head)
        if n_head % n_kv or head_dim % 2:
            raise ModelFileError(
                f"{file.path.name}: {n_head} query heads cannot share {n_kv} key heads evenly, or their {head_dim} "
                f"dimensions are no pairs; convert the model again."
            )
        return cls(
            n_layer=n_layer,
            n_embd=n_embd,
            n_ff=keys.whole("feed_forward_length", 1, 1 << 20),
            n_head=n_head,
            n_kv=n_kv,
            head_dim=head_dim,
            windows=keys.per_layer("attention.sliding_window", n_layer, 0, 1 << 31, 0),
            n_vocab=file.tensor("token_embd.weight").shape[0],
            n_ctx_train=keys.whole("context_length", 1, 1 << 31),
            rms_eps=keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0),
            rope_base=keys.real("rope.freq_base", 1.001, 1e12),
            softcap=keys.real("final_logit_softcapping", 1e-3, 1e6),
            qk_scale=keys.real("attention.qk_scale", 1e-3, 1e3, 1.0),
            value_gate_scale=keys.real("attention.value_gate_scale", 0.0, 1e3, 0.0),
            n_gate=keys.whole("attention.value_gate_length", 1, n_embd, 1),
            n_smear=keys.whole("smear_length", 1, n_embd, 1),
            has_smear=SMEAR in file.tensors or "smear_lambda" in file.tensors,
        )

    def geometry(self, options: LoadOptions) -> Geometry:
        """The shape of a sequence's memory."""
        layers = Layers(self.n_layer, self.n_kv, self.head_dim, self.head_dim)
        return TokenGeometry(options.kv_dtype, layers) if self.has_smear else Geometry(options.kv_dtype, layers)
