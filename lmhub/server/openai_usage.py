"""Token counts and times of a reply, as Chat Completions and Completions tell them."""

from __future__ import annotations

from typing import Any

from lmhub.types import Finish, Usage


def usage(counts: Usage) -> dict[str, Any]:
    """Token counts; the prompt's include the cached ones."""
    return {
        "prompt_tokens": counts.prompt_tokens,
        "completion_tokens": counts.completion_tokens,
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": counts.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": counts.reasoning_tokens,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def timings(finish: Finish) -> dict[str, Any]:
    """llama.cpp's `timings`, which its web page and benchmark scripts read."""
    counts, times = finish.usage, finish.timings
    n_prompt = counts.prompt_tokens - counts.cached_tokens
    return {
        "cache_n": counts.cached_tokens,
        **_rate("prompt", n_prompt, times.prefill_s),
        **_rate("predicted", counts.completion_tokens, times.decode_s),
    }


def _rate(name: str, n_tokens: int, seconds: float) -> dict[str, Any]:
    return {
        f"{name}_n": n_tokens,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / n_tokens if n_tokens else 0.0,
        f"{name}_per_second": n_tokens / seconds if seconds else 0.0,
    }
