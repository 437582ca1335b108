"""Request fields that say how tokens are drawn and when to stop; the OpenAI dialects share them. Knows no dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.denoising_fields import DENOISING_FIELD, DenoisingFields
from lmhub.server.fields import honoured, ignored

Unit = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepeatPenalty = Annotated[float, Meta(gt=0, le=4)]
StopString = Annotated[str, Meta(min_length=1)]

SEEDS = 2**64
MAX_BIAS = 100
NO_TOP_K = 2**31 - 1  # no vocabulary is larger


class SamplingFields(msgspec.Struct, kw_only=True):
    """A part of a request body. msgspec checks types and ranges; the functions below check the rest."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Unit | None = None
    top_k: Annotated[int, Meta(ge=0)] | None = None
    min_p: Unit | None = None
    repeat_penalty: RepeatPenalty | None = None
    repetition_penalty: RepeatPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=4)] | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    denoising: DenoisingFields | None = None
    sse_ping_interval: Annotated[float, Meta(ge=-1)] | None = None


SAMPLING_TABLE = (
    honoured("temperature", "0 to 2; 0 always takes the likeliest token"),
    honoured("top_p", "0 to 1; 0 always takes the likeliest token"),
    honoured("top_k", "at least 0; 0 is no limit"),
    honoured("min_p", "0 to 1"),
    honoured("repeat_penalty", "above 0, up to 4"),
    honoured("repetition_penalty", "another name of `repeat_penalty`, which wins"),
    honoured("presence_penalty", "-2 to 2"),
    honoured("frequency_penalty", "-2 to 2"),
    honoured("seed", "0 to 2^64 - 1; -1 is random"),
    honoured("stop", "one to four strings; the first match ends the reply and is left out of it"),
    honoured(
        "logit_bias",
        "token ids to -100 to 100, added to the raw logits; -100 forbids; also an array of `[id or text, bias or false]"
        "`, where a text means each of its tokens",
    ),
    honoured("ignore_eos", "the reply ends at its budget or at a stop string only"),
    honoured("return_token_ids", "the reply carries `token_ids` and `prompt_token_ids`"),
    DENOISING_FIELD,
    honoured("sse_ping_interval", "seconds of silence after which a stream gets a ping; -1 is never"),
    *ignored(
        "a sampler that this server does not have",
        *("typical_p", "top_n_sigma", "xtc_probability", "xtc_threshold", "dynatemp_range", "dynatemp_exponent"),
        *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        *("mirostat", "mirostat_tau", "mirostat_eta", "samplers", "min_tokens", "stop_token_ids"),
    ),
    *ignored("the server places requests itself; reuse of a prompt never changes a reply", "cache_prompt", "id_slot"),
    *ignored(
        "of llama.cpp or Ollama, without a counterpart here",
        *("return_progress", "n_probs", "lora", "t_max_predict_ms", "keep_alive", "options", "format"),
    ),
    *ignored(
        "bookkeeping of hosted services",
        *("user", "metadata", "store", "safety_identifier", "service_tier", "moderation"),
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
    ),
)


def sampling(fields: SamplingFields) -> dict[str, float | int]:
    """Only what was given: the model's own defaults fill the rest. Raises RequestError."""
    seed = fields.seed
    if seed is not None and seed >= SEEDS:
        raise RequestError(f"seed must be below 2^64, not {str(seed)[:40]}", "seed")
    given = {
        "temperature": fields.temperature,
        "top_k": None if fields.top_k is None else min(fields.top_k, NO_TOP_K),
        "top_p": fields.top_p,
        "min_p": fields.min_p,
        "repeat_penalty": fields.repetition_penalty if fields.repeat_penalty is None else fields.repeat_penalty,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "seed": None if seed == -1 else seed,
    }
    if fields.top_p == 0:  # a nucleus of nothing but the best token
        given |= {"temperature": 0.0, "top_p": None}
    return {name: value for name, value in given.items() if value is not None}


def stops(fields: SamplingFields) -> tuple[str, ...]:
    """The stop strings."""
    return (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())


def logit_bias(given: Mapping[str, Any] | Sequence[Any] | None) -> dict[int, float]:
    """`{"token id": bias}`, or llama.cpp's `[[id or text, bias or false], ...]`, as numbers. Raises RequestError.

    Whether the ids exist is the model's to know. A text stays a key of the result until resolve.py has looked it up.
    """
    if given is None or isinstance(given, Mapping):
        return {_token_id(key): _bias(value) for key, value in (given or {}).items()}
    biases: dict[Any, float] = {}
    for pair in given:
        if not isinstance(pair, list) or len(pair) != 2 or not _is_key(pair[0]):
            raise RequestError("logit_bias as an array must hold pairs of a token id or text and a bias", "logit_bias")
        biases[pair[0]] = _bias(-MAX_BIAS if pair[1] is False else pair[1])
    return biases


def _is_key(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _token_id(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 9:
        raise RequestError(f"logit_bias has the key {key[:40]!r}; keys are token ids", "logit_bias")
    return int(key)


def _bias(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -MAX_BIAS <= value <= MAX_BIAS:
        raise RequestError(f"a logit_bias must be a number from -{MAX_BIAS} to {MAX_BIAS}", "logit_bias")
    return float(value)
