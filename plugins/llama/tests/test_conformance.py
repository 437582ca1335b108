"""The conformance suite on tiny llama models, one for each thing that the family can do."""

from __future__ import annotations

from functools import partial

from lmhub.testing.conformance import FamilyConformance
from lmhub.testing.tiny import Tiny, decoder

dense = partial(decoder, "llama")
mixtral = partial(decoder, "llama", n_expert=4, n_expert_used=2, n_ff=64)


def one_tensor_per_expert() -> Tiny:
    """Mixtral files from before experts were stacked."""
    shapes = {"gate": (64, 64), "up": (64, 64), "down": (64, 64)}
    added = {f"blk.{i}.ffn_{s}.{e}.weight": shape for i in range(2) for s, shape in shapes.items() for e in range(4)}
    return mixtral().with_tensors(added, removed=("_exps.weight",))


def only_the_required_keys() -> Tiny:
    """No kv heads, no head sizes, no rope base: defaults apply."""
    model = dense(n_head=4, n_kv=4, head_dim=16)
    dropped = ("head_count_kv", "key_length", "value_length", "freq_base")
    return Tiny(model.arch, {k: v for k, v in model.hparams.items() if not k.endswith(dropped)}, model.tensors)


class TestLlama(FamilyConformance):
    plugin = "lmhub_llama"
    models = {  # noqa: RUF012
        "untied": dense(),
        "tied": dense(tied=True, n_head=4, n_kv=4),
        "required_keys": only_the_required_keys(),
        "partial_rotation": dense(**{"rope.dimension_count": 16}),
        "rope_factors": dense().with_tensors({"rope_freqs.weight": (16,)}),
        "linear": dense(**{"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}),
        "yarn": dense(
            **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
        ),
        "window": dense(**{"attention.sliding_window": 24}),
        "biases": dense(biases=True),
        "moe": mixtral(),
        "moe_old": one_tensor_per_expert(),
    }
    substitutes = (".0.weight",)
    wide = dense(n_embd=256, n_head=8, n_ff=256)
    damaged = {  # noqa: RUF012
        "untied": [
            ("block_count", 0),
            ("block_count", 3),
            ("embedding_length", 2**40),
            ("attention.head_count", 5),
            ("attention.head_count_kv", 4),
            ("attention.key_length", 0),
            ("attention.value_length", 64),
            ("attention.sliding_window", -1),
            ("rope.dimension_count", 31),
            ("rope.freq_base", 0.0),
            ("feed_forward_length", "96"),
            ("attention.layer_norm_rms_epsilon", float("nan")),
            ("context_length", 0),
            ("expert_count", 10**6),
            ("expert_count", 4),
        ]
    }
