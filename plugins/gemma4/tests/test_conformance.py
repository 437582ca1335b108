"""The conformance suite on tiny Gemma models, one for each thing that the family can do."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

from lmhub.testing.conformance import FamilyConformance

TINY = run_path(str(Path(__file__).with_name("tiny_gemma.py")))


class TestGemma(FamilyConformance):
    plugin = "lmhub_gemma4"
    models = TINY["MODELS"]
    optional = ("output.weight", "output_scale.weight", "ffn_down_exps.scale", "attn_v.weight")
    substitutes = ("gate_up_exps.weight",)
    wide = TINY["WIDE"]
    damaged = {  # noqa: RUF012
        "e2b": [
            ("block_count", 0),
            ("block_count", 9),
            ("embedding_length", 2**40),
            ("attention.head_count", 3),
            ("attention.head_count", [4] * 7),
            ("attention.head_count_kv", 0),
            ("attention.head_count_kv", 3),
            ("attention.key_length", 32),
            ("attention.key_length", 0),
            ("attention.value_length", 32),
            ("attention.key_length_swa", 64),
            ("attention.value_length_swa", 16),
            ("attention.sliding_window", 0),
            ("attention.sliding_window", -1),
            ("attention.sliding_window_pattern", 6),
            ("attention.sliding_window_pattern", [True] * 7),
            ("attention.sliding_window_pattern", [2] * 8),
            ("attention.sliding_window_pattern", [True] * 5 + [False] * 3),
            ("attention.shared_kv_layers", 8),
            ("attention.shared_kv_layers", -1),
            ("embedding_length_per_layer_input", 25),
            ("feed_forward_length", 64),
            ("feed_forward_length", [64] * 7),
            ("rope.dimension_count", 63),
            ("rope.dimension_count_swa", 33),
            ("rope.freq_base_swa", 0.0),
            ("attention.layer_norm_rms_epsilon", float("nan")),
            ("final_logit_softcapping", -1.0),
            ("context_length", 0),
            ("expert_count", 10**6),
        ],
        "moe": [
            *(("expert_count", value) for value in (0, 7)),
            *(("expert_used_count", value) for value in (0, 7)),
            *(("expert_feed_forward_length", value) for value in (0, 33, [32])),
        ],
    }
