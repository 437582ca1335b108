"""The request body of the older Completions. Pure: bytes in, CompletionRequest or RequestError out; knows no model.

`FIELDS` says what becomes of every field: the honoured ones are those of `CompletionBody`.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from msgspec import Meta

from lmhub.errors import RequestError
from lmhub.server.denoising_fields import denoising, drafts
from lmhub.server.fields import Field, honoured
from lmhub.server.grammar_fields import GRAMMAR_TABLE, GrammarFields, grammar
from lmhub.server.json_body import convert, decode_object
from lmhub.server.openai_chat_parse import StreamOptions, choices, includes_usage
from lmhub.server.response_format import response_format
from lmhub.server.sampling_fields import SAMPLING_TABLE, logit_bias, sampling, stops
from lmhub.settings import ServerSettings
from lmhub.types import CompletionRequest

Budget = Annotated[int, Meta(ge=-1)]
Prompt = str | tuple[int, ...]


class CompletionBody(GrammarFields, kw_only=True):
    """The fields that mean something. msgspec checks types and ranges; the functions below check the rest."""

    prompt: str | list[Any]
    model: str | None = None
    max_tokens: Budget | None = None
    n_predict: Budget | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    echo: bool | None = None
    logprobs: bool | Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None
    response_format: dict[str, Any] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


FIELDS: tuple[Field, ...] = (
    honoured("prompt", "a text, token ids, texts and ids mixed, or a list of these, at most `--max-prompts`; markers "
             "in a text are parsed, and ids are used as they are"),
    honoured("model", "picks the model where several are served; one answers to every name without `--strict-model`"),
    honoured("max_tokens", "at least 0; 0 needs `echo`; -1 or nothing is the rest of the context"),
    honoured("n_predict", "another name of `max_tokens`, which wins"),
    honoured("n", "1 to `--max-n` replies to each prompt; reply k to prompt p has the index p * n + k"),
    honoured("best_of", "1 or the same as `n`"),
    honoured("echo", "the prompt's text comes first; with `logprobs` its tokens are scored as well"),
    honoured("logprobs", "0 to 20 alternatives for each token; true is 0"),
    honoured("suffix", "the reply goes between prompt and suffix, where the model can fill in the middle"),
    honoured("response_format", "as in Chat Completions"),
    honoured("stream", "server-sent events"),
    honoured("stream_options", "`include_usage` adds a last chunk with the usage; needs `stream: true`"),
    *GRAMMAR_TABLE,
    *SAMPLING_TABLE,
)  # fmt: skip


def parse(body: bytes, settings: ServerSettings) -> CompletionRequest:
    """The prompts that a request body asks to continue. Raises RequestError naming the field."""
    fields = convert(decode_object(body), CompletionBody)
    n = choices(fields.n, settings)
    if fields.best_of not in (None, 1, n):
        raise RequestError(f"best_of must be 1 or the same as n, {n}: replies are not ranked here", "best_of")
    return CompletionRequest(
        prompts=_prompts(fields.prompt, settings.max_prompts),
        model=fields.model,
        suffix=fields.suffix or None,
        echo_prompt=bool(fields.echo),
        sampling=sampling(fields),
        max_tokens=_budget(fields),
        stop=stops(fields),
        grammar=grammar(fields, response_format(fields.response_format)),
        n=n,
        logprobs=_logprobs(fields.logprobs),
        logit_bias=logit_bias(fields.logit_bias),
        ignore_eos=bool(fields.ignore_eos),
        return_token_ids=bool(fields.return_token_ids),
        stream=bool(fields.stream),
        include_usage=includes_usage(fields.stream_options, fields.stream),
        denoising=denoising(fields.denoising),
        drafts=drafts(fields.denoising),
        ping_s=fields.sse_ping_interval,
    )


def _prompts(given: str | list[Any], limit: int) -> tuple[Prompt, ...]:
    """A list that holds an id is one prompt; one of texts or of lists holds many. Raises RequestError."""
    if isinstance(given, str):
        return (given,)
    if not given:
        raise RequestError("prompt is empty; at least one prompt is required", "prompt")
    if any(_is_id(part) for part in given):
        return (_ids(given, "prompt"),)
    if len(given) > limit:
        raise RequestError(f"prompt holds {len(given)} prompts and this server takes at most {limit} at once", "prompt")
    return tuple(_prompt(one, place) for place, one in enumerate(given))


def _prompt(given: Any, place: int) -> Prompt:
    if isinstance(given, str):
        return given
    if isinstance(given, list) and given:
        return _ids(given, f"prompt[{place}]")
    raise RequestError(f"prompt[{place}] must be a text or an array of token ids", "prompt")


def _ids(given: list[Any], path: str) -> tuple[int, ...]:
    """Ids, and texts between them that stay until resolve.py has looked them up."""
    for part in given:
        if not isinstance(part, str) and not (_is_id(part) and part >= 0):
            raise RequestError(f"{path} must hold token ids, which are integers from 0", "prompt")
    return cast(tuple[int, ...], tuple(part if isinstance(part, str) else int(part) for part in given))


def _is_id(value: Any) -> bool:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool)


def _budget(fields: CompletionBody) -> int | None:
    budget = fields.n_predict if fields.max_tokens is None else fields.max_tokens
    if budget == 0 and not fields.echo:
        raise RequestError("max_tokens must be at least 1; 0 only scores a prompt and needs echo: true", "max_tokens")
    return None if budget == -1 else budget


def _logprobs(given: bool | int | None) -> int | None:
    return None if given is None or given is False else int(given) if given is not True else 0
