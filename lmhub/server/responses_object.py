"""The response object, as it stands at any moment of a reply. Knows neither streams nor the store."""

from __future__ import annotations

from typing import Any

from lmhub.dialect import ReplyHead
from lmhub.errors import LmhubError
from lmhub.server.extension import extension
from lmhub.server.responses_output import Output
from lmhub.server.responses_record import Asked
from lmhub.types import ChatRequest, Finish, Usage


def in_progress(head: ReplyHead) -> dict[str, Any]:
    """Before anything was said."""
    return {
        **_common(head),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
    }


def finished(head: ReplyHead, output: Output, finish: Finish) -> dict[str, Any]:
    """After the last event of a reply that ended as planned."""
    cut = finish.reason == "length"
    timings = finish.timings
    value = {
        **in_progress(head),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output.items(),
        "completed_at": int(head.created + timings.queued_s + timings.prefill_s + timings.decode_s),
        "usage": usage(finish.usage),
        **extension([finish]),
    }
    if head.request.return_token_ids:
        value |= {"prompt_token_ids": list(head.prompts[0]), "token_ids": output.token_ids}
    return value


def failed(head: ReplyHead, output: Output, error: LmhubError) -> dict[str, Any]:
    """After a failure, with what there was of the reply."""
    told = {"code": error.code or "server_error", "message": str(error)}
    return {**in_progress(head), "status": "failed", "error": told, "output": output.items()}


def usage(counts: Usage) -> dict[str, Any]:
    """Token counts; the input's include the cached ones, the output's the reasoning."""
    return {
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning_tokens},
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
    }


def _common(head: ReplyHead) -> dict[str, Any]:
    assert isinstance(head.request, ChatRequest) and isinstance(head.request.echo, Asked)
    sampling = head.generations[0].sampling if head.generations else None
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "completed_at": None,
        "model": head.model,
        "background": False,
        "max_tool_calls": None,
        "service_tier": "default",
        "truncation": "disabled",
        "temperature": sampling.temperature if sampling else None,
        "top_p": sampling.top_p if sampling else None,
        "store": head.request.echo.store,
        **head.request.echo.fields,
    }
