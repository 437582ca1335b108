"""Tiny models: random weights, two layers, a byte-level vocabulary with ChatML markers, written in milliseconds.

`decoder(arch, ...)` describes an ordinary pre-norm decoder under GGUF's usual names; `with_tensors` turns it into what
a family needs beyond that. `write` makes the file, in any tensor type. `tiny_gguf` is both in one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmhub.gguf.types import GGMLType
from lmhub.gguf.writer import GGUFWriter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Paths = Callable[["Tiny"], Path]
"""What the fixture `paths` is: the file of a tiny model, written once."""

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_MERGES = (
    "Ġ t", "Ġ a", "h e", "i n", "r e", "o n", "Ġt he", "e r", "Ġ s", "a t", "e n", "o r", "Ġ w", "o u", "i t", "in g",
)  # fmt: skip
_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if not (tools and loop.first and message.role == 'system') -%}
<|im_start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""


@dataclass(frozen=True, slots=True)
class Tiny:
    """A model to be written. `hparams` go under `{arch}.`, `metadata` as it is; shapes: slowest dimension first."""

    arch: str
    hparams: Mapping[str, Any]
    tensors: Mapping[str, tuple[int, ...]]
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def with_tensors(self, added: Mapping[str, tuple[int, ...]], removed: tuple[str, ...] = ()) -> Tiny:
        """The same model with other tensors; those whose name ends with one of `removed` are left out."""
        kept = {name: shape for name, shape in self.tensors.items() if not name.endswith(removed or ("\0",))}
        return replace(self, tensors={**kept, **added})


def byte_letters() -> list[str]:
    """The 256 letters that byte-level BPE writes bytes as (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(256 + others.index(byte)) for byte in range(256)]


def vocabulary(n_vocab: int) -> dict[str, Any]:
    """Tokenizer metadata: bytes, a few merges, ChatML and tool markers, unused fillers up to `n_vocab` (>= 281)."""
    words = byte_letters() + [merge.replace(" ", "") for merge in _MERGES]
    n_filler = n_vocab - len(words) - len(SPECIALS) - len(MARKERS)
    if n_filler < 0:
        raise ValueError(f"a tiny vocabulary needs at least {n_vocab - n_filler} tokens, not {n_vocab}")
    tokens = [*words, *SPECIALS, *MARKERS, *(f"[PAD{i}]" for i in range(n_filler))]
    types = [_NORMAL] * len(words) + [_CONTROL] * len(SPECIALS) + [_USER_DEFINED] * len(MARKERS) + [_UNUSED] * n_filler
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": list(_MERGES),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def decoder(
    arch: str,
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_head: int = 6,
    n_kv: int = 2,
    head_dim: int = 32,
    n_ff: int = 96,
    n_vocab: int = 288,
    n_ctx: int = 256,
    n_expert: int = 0,
    n_expert_used: int = 2,
    tied: bool = False,
    qk_norm: bool = False,
    biases: bool = False,
    **hparams: Any,
) -> Tiny:
    """An ordinary decoder: grouped-query attention, SwiGLU (routed where `n_expert` > 0), RMS norms.

    By default n_head * head_dim differs from n_embd and three query heads share a kv head. `hparams` adds or replaces
    keys.
    """
    keys: dict[str, Any] = {
        "block_count": n_layer,
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_kv,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 20000.0,
    }
    if n_expert:
        keys |= {"expert_count": n_expert, "expert_used_count": n_expert_used, "expert_feed_forward_length": n_ff}
    block = {
        "attn_norm.weight": (n_embd,),
        "attn_q.weight": (n_head * head_dim, n_embd),
        "attn_k.weight": (n_kv * head_dim, n_embd),
        "attn_v.weight": (n_kv * head_dim, n_embd),
        "attn_output.weight": (n_embd, n_head * head_dim),
        "ffn_norm.weight": (n_embd,),
    }
    if qk_norm:
        block |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
    if biases:
        block |= {f"attn_{s}.bias": block[f"attn_{s}.weight"][:1] for s in ("q", "k", "v", "output")}
    per_expert, suffix = ((n_expert,), "_exps") if n_expert else ((), "")
    if n_expert:
        block["ffn_gate_inp.weight"] = (n_expert, n_embd)
    block |= {f"ffn_{s}{suffix}.weight": (*per_expert, n_ff, n_embd) for s in ("gate", "up")}
    block[f"ffn_down{suffix}.weight"] = (*per_expert, n_embd, n_ff)
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_vocab, n_embd)}
    for i in range(n_layer):
        tensors |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    tensors["output_norm.weight"] = (n_embd,)
    if not tied:
        tensors["output.weight"] = (n_vocab, n_embd)
    return Tiny(arch, {**keys, **hparams}, tensors)


def write(path: str | os.PathLike[str], tiny: Tiny, kind: GGMLType = GGMLType.F32, seed: int = 0) -> Path:
    """Write the model with seeded random weights: matrices as `kind`, vectors, routers and convolutions as F32,
    as well as what has no whole blocks of that kind.

    Norm weights are uniform in 0.7..1.3 and matrices keep their input's size, so that attention is far from uniform and
    no tensor is neutral: whatever a forward pass gets wrong shows in the logits.
    """
    import numpy as np

    from lmhub.testing.blocks import random_blocks

    rng = np.random.default_rng(seed)
    with GGUFWriter(path, tiny.arch) as out:
        for key, value in {
            **{f"{tiny.arch}.{name}": value for name, value in tiny.hparams.items()},
            **vocabulary(tiny.tensors["token_embd.weight"][0]),
            **tiny.metadata,
        }.items():
            out.add(key, value)
        for name, shape in tiny.tensors.items():
            exact = len(shape) == 1 or "ffn_gate_inp" in name or "conv" in name or shape[-1] % kind.block_elements
            if kind is GGMLType.F32 or exact:
                out.add_tensor(name, _values(name, shape, rng))
            elif kind in (GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0):
                out.add_tensor(name, _values(name, shape, rng), kind)
            else:
                out.add_tensor(name, random_blocks(kind, shape, _std(name, shape), rng), kind, shape=shape)
    return Path(path)


def tiny_gguf(arch: str, path: str | os.PathLike[str], **hparams: Any) -> Path:
    """Write a tiny ordinary decoder of that architecture; `hparams` as in `decoder`, `kind` and `seed` as in `write`.

    tiny_gguf("qwen3", tmp_path / "tiny.gguf", qk_norm=True, tied=True)
    """
    kind, seed = hparams.pop("kind", GGMLType.F32), hparams.pop("seed", 0)
    return write(path, decoder(arch, **hparams), kind, seed)


def _std(name: str, shape: tuple[int, ...]) -> float:
    return 1.0 if name == "token_embd.weight" else 1.4 / float(shape[-1]) ** 0.5


def _values(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    import numpy as np

    if name.endswith(("norm.weight", "_scale.weight")):
        return rng.uniform(0.7, 1.3, shape).astype(np.float32)
    if name.endswith(".ssm_a"):
        return -np.exp(rng.uniform(-1.0, 1.5, shape)).astype(np.float32)
    if name == "rope_freqs.weight":
        return rng.uniform(1.0, 8.0, shape).astype(np.float32)
    if len(shape) == 1:
        return rng.normal(0.0, 0.5, shape).astype(np.float32)
    return rng.normal(0.0, _std(name, shape), shape).astype(np.float32)
