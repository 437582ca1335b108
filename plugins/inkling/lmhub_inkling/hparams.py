"""The sizes of an inkling model, out of a file's metadata.

The file is untrusted: every number is held to a range before C or an allocation sees it. Knows no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.family import LoadOptions
from lmhub.forward import Geometry
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.kv import Layers

SIGMOID = 2
"""The only `expert_gating_func` that there is."""


@dataclass(frozen=True, slots=True)
class Hparams:
    """Sizes of one model, in elements."""

    n_embd: int
    n_head: int
    head_dim: int
    slides: tuple[bool, ...]  # per layer: whether it sees a window, or all
    n_kv: tuple[int, ...]  # per layer
    window: int
    d_rel: int
    extents: tuple[int, int]  # distances that have a bias: in full layers, in sliding ones
    n_taps: int
    n_ff: int
    n_dense: int  # layers without experts, the first ones
    n_expert: int
    n_expert_used: int
    n_shared: int
    n_ff_expert: int
    route_scale: float
    denominator: float
    cool_from: float
    cool_by: float
    rms_eps: float
    n_rows: int  # of the embedding and the head; those from n_vocab on are padding
    n_vocab: int
    n_ctx_train: int

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Hparams:
        """Raises ModelFileError for numbers out of range, UnsupportedModel for what the family does not do."""
        keys = Keys(file)
        n_layer = keys.whole("block_count", 1, 1024) - keys.whole("nextn_predict_layers", 0, 1023, 0)
        if n_layer < 1:
            raise ModelFileError(f"{file.path.name} has no layers before those that draft; convert the model again.")
        if keys.whole("expert_gating_func", 0, 1 << 16, SIGMOID) != SIGMOID:
            raise UnsupportedModel(
                f"{file.path.name} chooses its experts by another function than the sigmoid "
                f"(inkling.expert_gating_func), which lmhub-inkling does not; use another file."
            )
        n_head = keys.whole("attention.head_count", 1, 1024)
        n_kv = keys.per_layer("attention.head_count_kv", n_layer, 1, 1024)
        for il, heads in enumerate(n_kv):
            if n_head % heads:
                raise ModelFileError(
                    f"{file.path.name}: {n_head} query heads of layer {il} cannot share {heads} key heads evenly; "
                    f"convert the model again."
                )
        head_dim = keys.whole("attention.key_length", 1, 2048)
        keys.whole("attention.value_length", head_dim, head_dim, head_dim)
        n_embd = keys.whole("embedding_length", 1, 1 << 17)
        if head_dim % 16 or n_embd % 16:
            raise UnsupportedModel(
                f"{file.path.name}: heads of {head_dim} and an embedding of {n_embd} are not multiples of 16, as "
                f"the kernels want them; use another file."
            )
        n_expert = keys.whole("expert_count", 1, 4096)
        n_dense = keys.whole("dense_block_count", 0, n_layer, 0)
        n_rows = file.tensor("token_embd.weight").shape[0]
        return cls(
            n_embd=n_embd,
            n_head=n_head,
            head_dim=head_dim,
            slides=slides(keys, n_layer),
            n_kv=n_kv,
            window=keys.whole("attention.sliding_window", 1, 1 << 31, 512),
            d_rel=keys.whole("d_rel", 1, 1024),
            extents=(keys.whole("rel_extent", 1, 1 << 16), keys.whole("rel_extent_swa", 1, 1 << 16)),
            n_taps=keys.whole("shortconv_kernel", 2, 16),
            n_ff=keys.whole("feed_forward_length", 1, 1 << 20) if n_dense else 0,
            n_dense=n_dense,
            n_expert=n_expert,
            n_expert_used=keys.whole("expert_used_count", 1, min(n_expert, 256)),
            n_shared=keys.whole("expert_shared_count", 1, 64),
            n_ff_expert=keys.whole("expert_feed_forward_length", 1, 1 << 20),
            route_scale=keys.real("expert_weights_scale", 0.0, 1e6, 1.0),
            denominator=keys.real("logit_scale_denom", 1e-6, 1e9),
            cool_from=float(keys.whole("log_scaling_n_floor", 0, 1 << 40, 0)),
            cool_by=keys.real("log_scaling_alpha", 0.0, 1e3, 0.0),
            rms_eps=keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0, 1e-6),
            n_rows=n_rows,
            n_vocab=keys.whole("unpadded_vocab_size", 0, n_rows, 0) or n_rows,
            n_ctx_train=keys.whole("context_length", 1, 1 << 31, 1 << 20),
        )

    @property
    def n_layer(self) -> int:
        """Blocks that are run."""
        return len(self.slides)

    def groups(self) -> dict[int, list[int]]:
        """The layers of each cache, by their number of key heads."""
        found: dict[int, list[int]] = {}
        for il, heads in enumerate(self.n_kv):
            found.setdefault(heads, []).append(il)
        return found

    def memory(self, il: int) -> int:
        """Floats that layer `il` remembers: the last inputs of its convolutions over keys, values and both halves."""
        return (self.n_taps - 1) * 2 * (self.n_kv[il] * self.head_dim + self.n_embd)

    def geometry(self, options: LoadOptions) -> Geometry:
        """The shape of a sequence's state."""
        caches = (Layers(len(found), heads, self.head_dim, self.head_dim) for heads, found in self.groups().items())
        return Geometry(options.kv_dtype, *caches, n_floats=sum(map(self.memory, range(self.n_layer))))


def slides(keys: Keys, n_layer: int) -> tuple[bool, ...]:
    """Which layers see a window: as listed, or all but each sixth."""
    name = "attention.sliding_window_pattern"
    if name not in keys:
        return tuple(il % 6 != 5 for il in range(n_layer))
    return keys.flags(name, n_layer)
