"""The sizes of a gemma4 or gemma3 model, out of a file's metadata: what each layer is, and whose keys it reads.

The file is untrusted: every number is held to a range before C or an allocation sees it. Knows no weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lmhub.errors import ModelFileError, UnsupportedModel
from lmhub.family import LoadOptions
from lmhub.forward import Geometry
from lmhub.gguf import GGUFFile
from lmhub.hparams import Keys
from lmhub.kv import Layers


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. `source` is the layer whose keys and values it reads: itself, or an earlier one of its kind."""

    is_sliding: bool
    n_head: int
    n_kv: int
    head_dim: int
    n_ff: int
    n_ff_expert: int
    source: int

    @property
    def cache_shape(self) -> tuple[bool, int, int]:
        """Layers with equal ones have their keys and values in one cache."""
        return self.is_sliding, self.n_kv, self.head_dim


@dataclass(frozen=True, slots=True)
class Hparams:
    """Sizes of one model, in elements. 0 stands for what a model has not: experts, own inputs of layers, a softcap."""

    arch: str
    n_embd: int
    head_dims: tuple[int, int]  # of full layers, of sliding ones
    layers: tuple[Layer, ...]
    n_shared: int  # layers at the end that read other layers' keys and values
    window: int
    n_per_layer: int
    n_expert: int
    n_expert_used: int
    n_vocab: int
    n_ctx_train: int
    rms_eps: float
    softcap: float

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> Hparams:
        """Raises ModelFileError for numbers out of range, UnsupportedModel for what the family does not do."""
        keys = Keys(file)
        n_layer = keys.whole("block_count", 1, 1024)
        n_shared = keys.whole("attention.shared_kv_layers", 0, n_layer - 1, 0)
        n_expert = keys.whole("expert_count", 0, 4096, 0)
        if keys.real("expert_weights_scale", 0.0, 1e6, 0.0) not in (0.0, 1.0):
            raise UnsupportedModel(
                f"{file.path.name} scales its experts, which no Gemma does and lmhub-gemma4 does not; use another file."
            )
        return cls(
            arch=keys.arch,
            n_embd=keys.whole("embedding_length", 1, 1 << 17),
            head_dims=head_dims(keys),
            layers=read_layers(keys, n_layer, n_shared),
            n_shared=n_shared,
            window=window(keys),
            n_per_layer=keys.whole("embedding_length_per_layer_input", 0, 1 << 16, 0),
            n_expert=n_expert,
            n_expert_used=keys.whole("expert_used_count", 1, n_expert) if n_expert else 0,
            n_vocab=keys.rows_of("token_embd.weight"),
            n_ctx_train=keys.whole("context_length", 1, 1 << 31),
            rms_eps=keys.real("attention.layer_norm_rms_epsilon", 0.0, 1.0),
            softcap=keys.real("final_logit_softcapping", 0.0, 1e6, 0.0),
        )

    @property
    def is_gemma4(self) -> bool:
        """Whether values are normed, queries taken as they are, and full layers have frequency factors."""
        return self.arch != "gemma3"

    @property
    def attention_scale(self) -> float:
        """What the products of queries and keys are multiplied by. No key says it."""
        if self.is_gemma4:
            return 1.0
        if len(self.layers) == 62:  # of 27B alone, whose heads are smaller than its embedding's share
            return float((self.n_embd / self.layers[0].n_head) ** -0.5)
        return float(self.layers[0].head_dim ** -0.5)

    def cache_shapes(self) -> dict[tuple[bool, int, int], list[int]]:
        """The layers of each cache: those with keys and values of their own, by kind and geometry."""
        found: dict[tuple[bool, int, int], list[int]] = {}
        for il, layer in enumerate(self.layers):
            if layer.source == il:
                found.setdefault(layer.cache_shape, []).append(il)
        return found

    def geometry(self, options: LoadOptions) -> Geometry:
        """The shape of the KV cache: a group of layers for each of `cache_shapes`."""
        groups = (Layers(len(found), n_kv, dim, dim) for (_, n_kv, dim), found in self.cache_shapes().items())
        return Geometry(options.kv_dtype, *groups)


def window(keys: Keys) -> int:
    """Positions that sliding layers see; 0, in gemma3 only: all layers are full."""
    if keys.arch == "gemma3":
        return keys.whole("attention.sliding_window", 0, 1 << 31, 0)
    return keys.whole("attention.sliding_window", 1, 1 << 31)


def sliding(keys: Keys, n_layer: int) -> tuple[bool, ...]:
    """Which layers slide: as listed, or in gemma3 all but the last one of each period."""
    name = "attention.sliding_window_pattern"
    if window(keys) == 0:
        return (False,) * n_layer
    if keys.arch == "gemma3" and not isinstance(keys.file.metadata.get(f"gemma3.{name}"), list | tuple):
        period = keys.whole(name, 1, 1024, 6)
        return tuple(il % period != period - 1 for il in range(n_layer))
    return keys.flags(name, n_layer)


def read_layers(keys: Keys, n_layer: int, n_shared: int) -> tuple[Layer, ...]:
    """All blocks, each with its own sizes."""
    slides = sliding(keys, n_layer)
    n_head = keys.per_layer("attention.head_count", n_layer, 1, 1024)
    n_kv = keys.per_layer("attention.head_count_kv", n_layer, 1, 1024, n_head[0])
    n_ff = keys.per_layer("feed_forward_length", n_layer, 1, 1 << 20)
    n_ff_expert = keys.per_layer("expert_feed_forward_length", n_layer, 0, 1 << 20, 0)
    dims = head_dims(keys)
    sources = list(sources_of(keys, slides, n_layer - n_shared))
    for il in range(n_layer):
        if n_head[il] % n_kv[sources[il]]:
            raise ModelFileError(
                f"{keys.file.path.name}: {n_head[il]} query heads of layer {il} cannot share {n_kv[sources[il]]} key "
                f"heads evenly; convert the model again."
            )
    return tuple(
        Layer(
            is_sliding=slides[il],
            n_head=n_head[il],
            n_kv=n_kv[sources[il]],
            head_dim=dims[slides[il]],
            n_ff=n_ff[il],
            n_ff_expert=n_ff_expert[il],
            source=sources[il],
        )
        for il in range(n_layer)
    )


def head_dims(keys: Keys) -> tuple[int, int]:
    """Dimensions of a head in full layers and in sliding ones. Queries, keys and values have the same."""

    def equal(suffix: str) -> int:
        dim = keys.whole(f"attention.key_length{suffix}", 2, 2048)
        return keys.whole(f"attention.value_length{suffix}", dim, dim, dim)

    return equal(""), equal("" if keys.arch == "gemma3" else "_swa")


def sources_of(keys: Keys, slides: tuple[bool, ...], first_shared: int) -> Iterator[int]:
    """Whose keys and values each layer reads: from `first_shared` on, the last of its kind before that."""
    for il, kind in enumerate(slides):
        if il < first_shared:
            yield il
        elif kind in slides[:first_shared]:
            yield first_shared - 1 - slides[:first_shared][::-1].index(kind)
        else:
            raise ModelFileError(
                f"{keys.file.path.name}: layer {il} shares the keys of an earlier layer of its kind, which does not "
                f"exist; convert the model again."
            )
