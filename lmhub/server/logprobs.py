"""Log probabilities (natural logarithms) in the words of Chat Completions and Responses, and of Completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lmhub.types import TokenLogprob

LOWEST = -9999.0  # stands for minus infinity, which JSON cannot say


def entries(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """The `content` of a chat choice's logprobs. `bytes` are exact; `token` has U+FFFD for half characters."""
    return [
        {
            **_entry(one.piece, one.logprob),
            "top_logprobs": [_entry(piece, logprob) for _, piece, logprob in one.top],
        }
        for one in logprobs
    ]


def legacy(logprobs: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """The logprobs of a Completions choice whose text has `offset` characters before these tokens."""
    tokens = [_name(one.piece) for one in logprobs]
    offsets, data = [], b""
    for one in logprobs:
        offsets.append(offset + len(data.decode(errors="ignore")))
        data += one.piece
    return {
        "tokens": tokens,
        "token_logprobs": [None if one.logprob is None else max(one.logprob, LOWEST) for one in logprobs],
        "top_logprobs": [_top(one) for one in logprobs],
        "text_offset": offsets,
    }


def _entry(piece: bytes, logprob: float | None) -> dict[str, Any]:
    value = LOWEST if logprob is None else max(logprob, LOWEST)
    return {"token": piece.decode(errors="replace"), "logprob": value, "bytes": list(piece)}


def _top(one: TokenLogprob) -> dict[str, float] | None:
    """None for the first token of a prompt, which nothing predicted. Of two tokens with one text the likelier wins."""
    if one.logprob is None:
        return None
    return {_name(piece): max(logprob, LOWEST) for _, piece, logprob in reversed(one.top)}


def _name(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
