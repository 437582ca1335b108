"""The sizes of a qwen35 or qwen35moe model, out of a file's metadata and the names of its tensors.

The file is untrusted: every number is held to a range before C or an allocation sees it. Knows no weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from lmhub.errors import ModelFileError, UnsupportedModel, quoted
from lmhub.family import LoadOptions
from lmhub.forward import Geometry
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys, refuse_other_kinds
from lmhub.kv import Layers

SECTIONS = ("rope.dimension_sections", "rope.mrope_section", "rope.mrope_sections")
LANES = 16  # what rows of recurrent memory are multiples of


@dataclass(frozen=True, slots=True)
class Delta:
    """Sizes of the delta-net layers. `grouped`: value heads of one key head stand together, not a stride apart."""

    taps: int
    n_k: int
    n_v: int
    head_dim: int
    grouped: bool

    @property
    def qk_dim(self) -> int:
        """Of all queries and keys of a row."""
        return 2 * self.n_k * self.head_dim

    @property
    def value_dim(self) -> int:
        """Of all values of a row."""
        return self.n_v * self.head_dim

    @property
    def n_conv(self) -> int:
        """Floats that a layer's convolution remembers."""
        return (self.taps - 1) * (self.qk_dim + self.value_dim)

    @property
    def n_floats(self) -> int:
        """Floats that a layer remembers: of its convolution, then of its heads."""
        return self.n_conv + self.value_dim * self.head_dim


@dataclass(frozen=True, slots=True)
class Hparams:
    """Sizes of one model, in elements. `n_expert` is 0 for a dense model."""

    is_recurrent: tuple[bool, ...]  # of each layer: delta net or attention
    n_block: int  # with those behind the layers, which predict further tokens
    n_embd: int
    n_head: int
    n_kv: int
    head_dim: int
    attention_scale: float
    delta: Delta
    n_ff: tuple[int, ...]  # of each layer, or of each of its experts
    n_ff_shared: int
    n_expert: int
    n_expert_used: int
    n_vocab: int
    n_ctx_train: int
    rms_eps: float

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Hparams:
        """Raises ModelFileError for numbers out of range, UnsupportedModel for what the family does not do."""
        keys = Keys(file)
        n_block = keys.whole("block_count", 1, 1024)
        n_layer = n_block - keys.whole("nextn_predict_layers", 0, n_block - 1, 0)
        refuse_other_kinds(keys, "lmhub-qwen35")
        refuse_other_layouts(file)
        is_recurrent = read_kinds(keys, n_layer)
        n_head = max(keys.per_layer("attention.head_count", n_layer, 0, 1024))
        # Some converters write 0 for layers without attention.
        n_kv = max(keys.per_layer("attention.head_count_kv", n_layer, 0, n_head, n_head))
        if not n_kv or n_head % n_kv:
            raise ModelFileError(
                f"{file.path.name}: {n_head} query heads cannot share {n_kv} key heads evenly; convert the model again."
            )
        norm = f"blk.{is_recurrent.index(False)}.attn_k_norm.weight"
        head_dim = keys.whole("attention.key_length", 2, 2048, keys.rows_of(norm))
        check_sections(keys, head_dim)
        moe = keys.arch == "qwen35moe"
        n_expert = keys.whole("expert_count", 1, 4096) if moe else 0
        return cls(
            is_recurrent=is_recurrent,
            n_block=n_block,
            n_embd=keys.whole("embedding_length", 1, 1 << 17),
            n_head=n_head,
            n_kv=n_kv,
            head_dim=keys.whole("attention.value_length", head_dim, head_dim, head_dim),
            attention_scale=keys.real("attention.scale", 0.0, 1e3, 0.0) or head_dim**-0.5,
            delta=read_delta(keys),
            n_ff=hidden_sizes(keys, "expert_feed_forward_length" if moe else "feed_forward_length", "exps", n_layer),
            n_ff_shared=hidden_sizes(keys, "expert_shared_feed_forward_length", "shexp", 1)[0] if moe else 0,
            n_expert=n_expert,
            n_expert_used=keys.whole("expert_used_count", 1, n_expert) if moe else 0,
            n_vocab=keys.rows_of("token_embd.weight"),
            n_ctx_train=keys.whole("context_length", 1, 1 << 31),
            rms_eps=keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        )

    @property
    def n_layer(self) -> int:
        """Layers that run."""
        return len(self.is_recurrent)

    def geometry(self, options: LoadOptions) -> Geometry:
        """The shape of a state: a cache for the attention layers, memory for the others."""
        n_recurrent = sum(self.is_recurrent)
        caches = Layers(self.n_layer - n_recurrent, self.n_kv, self.head_dim, self.head_dim)
        return Geometry(options.kv_dtype, caches, n_floats=n_recurrent * self.delta.n_floats)


def read_kinds(keys: Keys, n_layer: int) -> tuple[bool, ...]:
    """Which layers are recurrent: as flagged, else by the interval, else where there are no kv heads.

    The flags rule: converters write a wrong interval beside them. Raises ModelFileError where the tensors disagree.
    """
    name = "attention.recurrent_layers"
    kv_heads = keys.file.metadata.get(f"{keys.arch}.attention.head_count_kv")
    if name in keys:
        kinds = keys.flags(name, n_layer)
    elif "full_attention_interval" not in keys and isinstance(kv_heads, list | tuple) and 0 in kv_heads[:n_layer]:
        name = "attention.head_count_kv"
        kinds = tuple(n == 0 for n in keys.per_layer(name, n_layer, 0, 1024))
    else:
        name = "full_attention_interval"
        interval = keys.whole(name, 1, 1024, 4)
        kinds = tuple((il + 1) % interval != 0 for il in range(n_layer))
    for il, is_recurrent in enumerate(kinds):
        if is_recurrent != (f"blk.{il}.ssm_a" in keys.file.tensors):
            has, says = ("no", "a recurrent") if is_recurrent else ("a", "an attention")
            raise ModelFileError(
                f"{keys.file.path.name}: {keys.arch}.{name} makes layer {il} {says} layer, but there is {has} tensor "
                f"blk.{il}.ssm_a; convert the model again."
            )
    if all(kinds):
        raise UnsupportedModel(
            f"{keys.file.path.name}: by {keys.arch}.{name} no layer has attention, which lmhub-qwen35 does not serve; "
            f"use a model of the family."
        )
    return kinds


def read_delta(keys: Keys) -> Delta:
    """The sizes of the delta-net layers."""
    dim = keys.whole("ssm.state_size", LANES, 1024)
    n_v = keys.whole("ssm.time_step_rank", 1, 1024)
    n_k = keys.whole("ssm.group_count", 1, n_v)
    keys.whole("ssm.inner_size", n_v * dim, n_v * dim)
    if n_v % n_k:
        raise ModelFileError(
            f"{keys.file.path.name}: {n_v} value heads ({keys.arch}.ssm.time_step_rank) cannot share {n_k} key heads "
            f"({keys.arch}.ssm.group_count) evenly; convert the model again."
        )
    if dim % LANES:
        raise UnsupportedModel(
            f"{keys.file.path.name}: {keys.arch}.ssm.state_size is {dim}, but lmhub-qwen35 takes multiples of {LANES}; "
            f"use a model of the family."
        )
    tiled = keys.file.metadata.get(f"{keys.arch}.ssm.v_head_reordered", True)
    return Delta(keys.whole("ssm.conv_kernel", 1, 16), n_k, n_v, dim, grouped=not tiled)


def check_sections(keys: Keys, head_dim: int) -> None:
    """Text has one position for all sections, so that any that cover the rotated pairs are as good as none.

    Raises ModelFileError where they do not.
    """
    name = next((name for name in SECTIONS if name in keys), SECTIONS[0])
    n_pairs = keys.whole("rope.dimension_count", 2, head_dim, head_dim) // 2
    sections = keys.file.metadata.get(f"{keys.arch}.{name}")
    whole = isinstance(sections, list | tuple) and all(type(one) is int and one >= 0 for one in sections)
    if not whole or len(sections) not in (3, 4) or sum(sections) != n_pairs:
        raise ModelFileError(
            f"{keys.file.path.name}: {keys.arch}.{name} is {quoted(sections)}, but must be three or four numbers that "
            f"add up to the {n_pairs} rotated pairs; convert the model again."
        )


def hidden_sizes(keys: Keys, name: str, kind: str, n_layer: int) -> tuple[int, ...]:
    """Hidden size of every layer's feed-forward, or of its experts: the key, or what the first layer's tensor says."""
    if kind in ("exps", "shexp") and name.startswith("expert") and name not in keys:
        return (keys.file.tensor(f"blk.0.ffn_down_{kind}.weight").shape[-1],) * n_layer
    return keys.per_layer(name, n_layer, 1, 1 << 20)


def refuse_other_layouts(file: GGUFFile) -> None:
    """Raises UnsupportedModel for weights that mean something else than their names say here."""
    kind = ""
    rotated = next((key for key in file.metadata if key.startswith("prism.")), "")
    if rotated:
        kind = f"has rotated weights (the metadata key {rotated})"
    elif "blk.0.ssm_in.weight" in file.tensors or "blk.0.ssm_ba.weight" in file.tensors:
        kind = "has the fused tensors of qwen3next (ssm_in, ssm_ba)"
    if kind:
        raise UnsupportedModel(
            f"{file.path.name} {kind}, which lmhub-qwen35 does not read; use another file of the model."
        )
