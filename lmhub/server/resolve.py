"""What of a request only the model's tokenizer can say: texts among token ids, in prompts and in `logit_bias`."""

from __future__ import annotations

from dataclasses import replace

from lmhub.loaded import LoadedModel
from lmhub.types import CompletionRequest, Request


def resolved(request: Request, model: LoadedModel) -> Request:
    """`request` with token ids only. Blocks as long as the tokenizer takes."""
    if any(isinstance(key, str) for key in request.logit_bias):
        request = replace(request, logit_bias=_biases(request, model))
    if isinstance(request, CompletionRequest) and any(_is_mixed(prompt) for prompt in request.prompts):
        prompts = tuple(_ids(one, model) if _is_mixed(one) else one for one in request.prompts)
        request = replace(request, prompts=prompts)
    return request


def _biases(request: Request, model: LoadedModel) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in request.logit_bias.items():
        for token in model.tokenizer.encode(key, special=True) if isinstance(key, str) else (key,):
            biases[token] = bias
    return biases


def _is_mixed(prompt: str | tuple[int | str, ...]) -> bool:
    return not isinstance(prompt, str) and any(isinstance(part, str) for part in prompt)


def _ids(prompt: str | tuple[int | str, ...], model: LoadedModel) -> tuple[int, ...]:
    """Texts and ids one after the other. Only a text at the very beginning gets the tokenizer's BOS."""
    ids: list[int] = []
    for place, part in enumerate(prompt):
        if isinstance(part, int):
            ids.append(part)
        else:
            encoded = model.tokenizer.encode(part, special=True)
            ids += encoded if place else model.tokenizer.with_bos(encoded)
    return tuple(ids)
