"""The sizes of a checkpoint: from nanochat's meta JSON, from transformers' config.json, or from the tensors alone.

Every number is held to a range. What no configuration says is taken as the code of the time had it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lmhub.errors import ModelFileError, UnsupportedModel, quoted
from lmhub.gguf import Tensor
from lmhub_nanochat.generations import GATE

log = logging.getLogger("lmhub")

EPSILON = 2.0**-23  # of torch's rms_norm in float32, whatever the weights are
SOFTCAP = 15.0
MAX_LENGTH = 1 << 24


@dataclass(frozen=True, slots=True)
class Config:
    """Sizes of one model. `window_pattern` is None where none is given; `rope_base` None: as the generation has it."""

    sequence_len: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    head_dim: int
    window_pattern: str | None = None
    rms_eps: float = EPSILON
    softcap: float = SOFTCAP
    rope_base: float | None = None
    is_tied: bool = False


class _Reader:
    """Numbers of a JSON object, each within bounds; the first of several spellings that is there counts."""

    def __init__(self, name: str, values: Mapping[str, Any]):
        self._name, self._values = name, values

    def get(self, *keys: str) -> Any:
        return next((self._values[key] for key in keys if self._values.get(key) is not None), None)

    def whole(self, low: int, high: int, default: int | None, *keys: str) -> int:
        value = self.get(*keys)
        value = default if value is None else value
        if type(value) is not int or not low <= value <= high:
            raise self._refused(keys[0], value, f"a whole number from {low} to {high}")
        return value

    def real(self, low: float, high: float, default: float, *keys: str) -> float:
        value = self.get(*keys)
        value = default if value is None else value
        if type(value) not in (int, float) or not low <= value <= high:
            raise self._refused(keys[0], value, f"a number from {low:g} to {high:g}")
        return float(value)

    def _refused(self, key: str, value: Any, wanted: str) -> ModelFileError:
        shown = quoted(value) if isinstance(value, int | float | str) else "missing" if value is None else "no number"
        return ModelFileError(f"{self._name}: {key} is {shown}, but must be {wanted}; copy the file again.")


def from_meta(name: str, meta: Mapping[str, Any]) -> Config:
    """The `model_config` of a meta JSON, or of a file that is one. Raises ModelFileError."""
    found = meta.get("model_config", meta)
    if not isinstance(found, dict):
        raise ModelFileError(f"{name} has no model_config; copy it from the training machine again.")
    read = _Reader(name, found)
    n_head, n_embd = read.whole(1, 1024, None, "n_head"), read.whole(2, 1 << 17, None, "n_embd")
    return Config(
        sequence_len=read.whole(1, MAX_LENGTH, 2048, "sequence_len"),
        vocab_size=read.whole(1, 1 << 24, None, "vocab_size"),
        n_layer=read.whole(1, 1024, None, "n_layer"),
        n_head=n_head,
        n_kv_head=read.whole(1, 1024, n_head, "n_kv_head"),
        n_embd=n_embd,
        head_dim=max(n_embd // n_head, 1),
        window_pattern=checked_pattern(name, read.get("window_pattern")),
        # Nothing but our own exports says these, and only where they are unusual.
        rms_eps=read.real(0.0, 1.0, EPSILON, "rms_norm_eps"),
        softcap=read.real(1e-3, 1e6, SOFTCAP, "final_logit_softcapping"),
        rope_base=read.real(1.001, 1e12, 1e4, "rope_theta") if read.get("rope_theta") is not None else None,
    )


def checked_pattern(name: str, value: Any) -> str | None:
    """A window pattern, or None where there is none. Raises ModelFileError, which begins with `name`."""
    if value is None or (isinstance(value, str) and re.fullmatch(r"[SLsl]{1,256}", value)):
        return value
    raise ModelFileError(f"{name}: the window pattern must be 1 to 256 letters S and L; correct it.")


def from_hugging_face(name: str, config: Mapping[str, Any]) -> Config:
    """The sizes in transformers' config.json. Raises ModelFileError, UnsupportedModel for what its class cannot do."""
    read = _Reader(f"{name}/config.json", config)
    rope = read.get("rope_parameters", "rope_scaling") or {}
    rope = rope if isinstance(rope, dict) else {}
    if read.get("hidden_act") not in (None, "relu2") or read.get("attention_bias", "qkv_bias"):
        raise UnsupportedModel(f"{name} has another activation than relu2, or biases, which no nanochat model has.")
    if rope.get("rope_type", rope.get("type", "default")) not in (None, "default"):
        raise UnsupportedModel(f"{name} scales its positions, which no nanochat model does.")
    base = _Reader(f"{name}/config.json", {**config, **rope})
    n_head, n_embd = read.whole(1, 1024, None, "num_attention_heads"), read.whole(2, 1 << 17, None, "hidden_size")
    return Config(
        sequence_len=read.whole(1, MAX_LENGTH, 2048, "max_position_embeddings"),
        vocab_size=read.whole(1, 1 << 24, None, "vocab_size"),
        n_layer=read.whole(1, 1024, None, "num_hidden_layers"),
        n_head=n_head,
        n_kv_head=read.whole(1, 1024, n_head, "num_key_value_heads"),
        n_embd=n_embd,
        head_dim=read.whole(1, 2048, max(n_embd // n_head, 1), "head_dim"),
        rms_eps=read.real(0.0, 1.0, 1e-6, "rms_norm_eps"),
        softcap=read.real(1e-3, 1e6, SOFTCAP, "final_logit_softcapping", "logits_soft_cap"),
        rope_base=base.real(1.001, 1e12, 1e4, "rope_theta"),
        is_tied=bool(read.get("tie_word_embeddings")),
    )


def from_tensors(name: str, tensors: Mapping[str, Tensor], n_vocab: int, head_dim: int | None) -> Config:
    """What the shapes of an export without any configuration tell, and guesses for the rest, with a warning."""
    layers = {int(match[1]) for one in tensors if (match := re.match(r"transformer\.h\.(\d{1,4})\.", one))}
    embedding, keys, queries = (
        tensors.get(one)
        for one in ("transformer.wte.weight", "transformer.h.0.attn.c_k.weight", "transformer.h.0.attn.c_q.weight")
    )
    gate = next((tensor for one, tensor in tensors.items() if one.endswith(GATE)), None)
    if embedding is None or keys is None or queries is None or not layers or len(embedding.shape) != 2:
        raise ModelFileError(f"{name}/model.safetensors lacks the tensors of a nanochat model; export it again.")
    n_embd = embedding.shape[1]
    if gate is not None and len(gate.shape) == 2 and keys.shape[0] % gate.shape[0] == 0:
        head_dim = head_dim or keys.shape[0] // gate.shape[0]
    head_dim = head_dim or (128 if n_embd % 128 == 0 else 64)
    if keys.shape[0] % head_dim or queries.shape[0] % head_dim:
        raise ModelFileError(
            f"{name}: its heads do not have {head_dim} dimensions; say how many (--nanochat-head-dim)."
        )
    log.warning(
        "%s has no configuration: heads of %d dimensions, 2048 positions and full attention are assumed "
        "(--nanochat-head-dim, --nanochat-sequence-len and --nanochat-window-pattern say otherwise)", name, head_dim,
    )  # fmt: skip
    return Config(
        sequence_len=2048,
        vocab_size=n_vocab,
        n_layer=len(layers),
        n_head=queries.shape[0] // head_dim,
        n_kv_head=keys.shape[0] // head_dim,
        n_embd=n_embd,
        head_dim=head_dim,
    )
