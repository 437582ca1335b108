"""From a request to what the engine runs: one `GenerationRequest` for each choice.

Renders and tokenizes, settles budget, seeds, grammar and reasoning, and refuses, before anything is queued, what the
model cannot do. Whatever a dialect understood is honoured here or refused by name. Knows no HTTP and no engine.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lmhub.errors import NotSupported, PromptTooLong, RequestError
from lmhub.guide import Thinking
from lmhub.model import BlockLM
from lmhub.types import (
    ChatRequest,
    CompletionRequest,
    Constraint,
    Denoising,
    GenerationRequest,
    GrammarSpec,
    Message,
    Request,
    SamplingParams,
    Text,
    Tool,
    ToolCall,
    ToolResult,
)

if TYPE_CHECKING:
    from lmhub.chat.forcing import LazyTools
    from lmhub.chat.prompt import ChatFormat, Prompt
    from lmhub.loaded import LoadedModel

log = logging.getLogger("lmhub")

CONSTRAINED_TOKENS = 1024  # default budget under a grammar, which a confused model might never complete
_FIM = {  # where a text goes in, by the names of the metadata keys and of the tokens
    "prefix": ("fim_pre", "<|fim_prefix|>", "<fim_prefix>", "<|fim_begin|>"),
    "suffix": ("fim_suf", "<|fim_suffix|>", "<fim_suffix>", "<|fim_hole|>"),
    "middle": ("fim_mid", "<|fim_middle|>", "<fim_middle>", "<|fim_end|>"),
}


def prepared(model: LoadedModel, request: Request, id: str) -> tuple[GenerationRequest, ...]:
    """See `LoadedModel.prepare`."""
    _check_mode(model, request)
    if isinstance(request, CompletionRequest):
        return _completions(model, request, id)
    return _chat(model, request, id)


def counted(model: LoadedModel, request: Request) -> int:
    """See `LoadedModel.count`."""
    if isinstance(request, CompletionRequest):
        return sum(len(_ids(model, prompt, request.suffix)) for prompt in request.prompts)
    return len(_rendered(model, request, _tools(model, request))[1].ids)


def next_turn(model: LoadedModel, request: ChatRequest, reply: Message) -> tuple[int, ...]:
    """See `LoadedModel.next_turn`."""
    calls = [part for part in reply.parts if isinstance(part, ToolCall)]
    ids = []
    for text in ("a", "b"):  # what both have in common does not depend on what comes next
        answers = tuple(Message("tool", (ToolResult(call.id, text),)) for call in calls)
        messages = (*request.messages, reply, *(answers or (Message("user", (Text(text),)),)))
        ids.append(_rendered(model, replace(request, messages=messages), _tools(model, request))[1].ids)
    n = next((i for i, (one, other) in enumerate(zip(*ids, strict=False)) if one != other), min(map(len, ids)))
    return ids[0][:n]


def _check_mode(model: LoadedModel, request: Request) -> None:
    """Refuse what only one kind of model can do: to predict the next token, or to denoise blocks."""
    if not isinstance(model.model, BlockLM):
        if request.denoising or request.drafts:
            raise RequestError(
                f"model {model.id} predicts one token after the other; send the request without `denoising`",
                "denoising",
                "unsupported_parameter",
            )
        return
    forced = isinstance(request, ChatRequest) and request.tool_choice.mode == "any"
    scored = isinstance(request, CompletionRequest) and request.echo_prompt and request.max_tokens == 0
    for given, param in (
        (forced, "tool_choice"),
        (request.grammar is not None, request.grammar.param if request.grammar else ""),
        (request.logprobs is not None or scored, "logprobs"),
    ):
        if given:
            raise RequestError(
                f"model {model.id} denoises whole blocks, and {param} needs tokens one after the other; "
                f"send the request without it",
                param,
                "unsupported_parameter",
            )


# --- chat ------------------------------------------------------------------------------------------------------------


def _chat(model: LoadedModel, request: ChatRequest, id: str) -> tuple[GenerationRequest, ...]:
    tools = _tools(model, request)
    chat, prompt = _rendered(model, request, tools)
    forced = request.tool_choice.mode == "any"
    if forced and not model.grammar.is_available():
        raise NotSupported(
            "a forced tool call needs the grammar engine, which is not installed here; `pip install llguidance`",
            "tool_choice",
        )
    grammar = chat.forced(tools, request.tool_choice) if forced else request.grammar
    lazy = _lazy(model, chat, request, tools)
    thinking = _thinking(model, chat, request, prompt, grammar)
    reasons = prompt.opens_reasoning or (_wants_reasoning(model, request) and chat.can_switch_reasoning)
    sampling = (model.reasoning_sampling if reasons else None) or model.sampling
    made = _Common(model, request, id, prompt.ids, "messages", sampling, bool(grammar))
    inner = None if grammar or lazy else model.inner  # a grammar leaves it no room
    ends_at_call = bool(tools) and (forced or not request.parallel_tool_calls)
    return tuple(
        made.choice(
            number,
            seed=number,
            parser=chat.parser(prompt, tools) if inner is None else inner.parser(chat.parser(prompt, tools)),
            constraint=_constraint(model, grammar, thinking, lazy) or (inner.constraint() if inner else None),
            reasoning_budget=request.reasoning_budget if chat.close_ids else None,
            close_reasoning=chat.close_ids,
            max_calls=1 if ends_at_call else None,
            n_stable=prompt.n_stable,
        )
        for number in range(request.n)
    )


def _tools(model: LoadedModel, request: ChatRequest) -> tuple[Tool, ...]:
    """The tools that the prompt declares."""
    choice, names = request.tool_choice, {tool.name for tool in request.tools}
    if choice.mode == "none" or not request.tools:
        if choice.mode == "any":
            raise RequestError(
                "tool_choice forces a call, but there are no tools; declare some or send auto", "tool_choice"
            )
        return ()
    for name in choice.names:
        if name not in names:
            raise RequestError(
                f"tool_choice names {name[:100]!r}, which is not among the tools; declare it or choose another",
                "tool_choice",
            )
    if model.tools is None and not (request.lenient and choice.mode == "auto"):
        raise RequestError(
            f"model {model.id} has no way to call tools; send the request without `tools`",
            param="tools",
            code="unsupported_parameter",
        )
    return () if model.tools is None else request.tools


def _rendered(model: LoadedModel, request: ChatRequest, tools: Sequence[Tool]) -> tuple[ChatFormat, Prompt]:
    """The prompt. A grammar turns reasoning off unless it was asked for, a forced call does so in any case."""
    if request.reasoning and model.think is None and not request.lenient:
        raise RequestError(
            f"model {model.id} has no reasoning channel; send the request without a reasoning effort",
            param="reasoning_effort",
            code="unsupported_parameter",
        )
    assert model.chat is not None
    prompt = model.chat.render(
        request.messages,
        tools,
        reasoning=_wants_reasoning(model, request) or None,  # a template that cannot turn it off is left alone
        template_kwargs=request.template_kwargs,
        continue_final=request.continue_final,
    )
    return model.chat, prompt


def _wants_reasoning(model: LoadedModel, request: ChatRequest) -> bool:
    is_free = request.tool_choice.mode != "any" and request.reasoning_budget != 0
    return bool(request.reasoning) and is_free and model.think is not None


def _lazy(model: LoadedModel, chat: ChatFormat, request: ChatRequest, tools: Sequence[Tool]) -> LazyTools | None:
    """What holds a call to its tools once the model has opened one; None where nothing does, which is no error."""
    if not tools or request.tool_choice.mode != "auto" or not model.lazy_tools or not model.grammar.is_available():
        return None
    if isinstance(model.model, BlockLM):
        return None
    names = request.tool_choice.names
    lazy = chat.lazy([tool for tool in tools if not names or tool.name in names])
    if lazy is None:
        return None
    try:
        model.grammar.constraint(None, calls=lazy.grammar, openers=frozenset((lazy.opener,)))
    except RequestError as error:
        log.warning("tool calls are not held to their schemas: %s", error)
        return None
    return lazy


def _thinking(
    model: LoadedModel, chat: ChatFormat, request: ChatRequest, prompt: Prompt, grammar: GrammarSpec | None
) -> Thinking | None:
    """How a reply that a grammar governs reasons first: if that was asked for, or if the template makes it."""
    if grammar is None or model.think is None or not (_wants_reasoning(model, request) or prompt.opens_reasoning):
        return None
    if chat.close_id is None:
        if not prompt.opens_reasoning:
            return None
        raise RequestError(
            f"model {model.id} reasons before it answers, and the end of that is no single token; send the request "
            f"without {grammar.param}",
            grammar.param,
            "unsupported_parameter",
        )
    return Thinking(model.tokenizer.token_id(model.think.open), chat.close_id, prompt.opens_reasoning)


def _constraint(
    model: LoadedModel, grammar: GrammarSpec | None, thinking: Thinking | None, lazy: LazyTools | None
) -> Constraint | None:
    if grammar is None and lazy is None:
        return None
    calls = None if lazy is None else lazy.grammar
    openers = frozenset(() if lazy is None else (lazy.opener,))
    return model.grammar.constraint(grammar, thinking=thinking, calls=calls, openers=openers)


# --- completions -----------------------------------------------------------------------------------------------------


def _completions(model: LoadedModel, request: CompletionRequest, id: str) -> tuple[GenerationRequest, ...]:
    if request.max_tokens == 0 and not request.echo_prompt:
        raise RequestError("max_tokens is 0, which makes sense with echo only; ask for at least 1", "max_tokens")
    made: list[GenerationRequest] = []
    for prompt in request.prompts:
        ids = _ids(model, prompt, request.suffix)
        common = _Common(model, request, id, ids, "prompt", model.sampling, request.grammar is not None)
        for number in range(request.n):
            one = common.choice(
                len(made),
                seed=number,
                constraint=_constraint(model, request.grammar, None, None),
                score_prompt=request.echo_prompt and (request.logprobs is not None or request.max_tokens == 0),
            )
            made.append(one)
    return tuple(made)


def _ids(model: LoadedModel, prompt: str | Sequence[int], suffix: str | None) -> tuple[int, ...]:
    """A raw prompt as ids. Ids are taken as they are; text may spell special tokens, for nobody else wrote it."""
    tokenizer = model.tokenizer
    if not isinstance(prompt, str):
        n_vocab = min(tokenizer.n_vocab, model.model.n_vocab)
        if bad := [token for token in prompt if not 0 <= token < n_vocab]:
            raise RequestError(f"{bad[0]} is not a token id of {model.id}; they go from 0 to {n_vocab - 1}", "prompt")
        ids = list(prompt)
    else:
        ids = tokenizer.encode(prompt, special=True)
    if suffix:
        before, between, behind = _fim_ids(model)
        ids = [before, *ids, between, *tokenizer.encode(suffix), behind]
    if isinstance(prompt, str):
        ids = tokenizer.with_bos(ids)
        if not ids and tokenizer.bos_id is not None:
            ids = [tokenizer.bos_id]
    if not ids:
        raise RequestError("the prompt is empty; give at least one token", "prompt")
    return tuple(ids)


def _fim_ids(model: LoadedModel) -> tuple[int, ...]:
    """The tokens before the prefix, before the suffix and before what is to be filled in."""
    found = []
    for key, *texts in _FIM.values():
        named = model.metadata.get(f"tokenizer.ggml.{key}_token_id")
        ids = [named, *map(model.tokenizer.token_id, texts)]
        found += [one for one in ids if isinstance(one, int) and 0 <= one < model.tokenizer.n_vocab][:1]
    if len(found) < len(_FIM):
        raise RequestError(
            f"model {model.id} was not trained to fill a gap; send the prompt without `suffix`",
            param="suffix",
            code="unsupported_parameter",
        )
    return tuple(found)


# --- both ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Common:
    """What the choices of one prompt share. `param` is the field that the prompt came from, `sampling` the defaults."""

    model: LoadedModel
    request: Request
    id: str
    prompt: tuple[int, ...]
    param: str
    sampling: SamplingParams
    is_constrained: bool

    def choice(self, number: int, seed: int, **rest: Any) -> GenerationRequest:
        """Choice `number`; with a given seed it draws with that plus `seed`. Raises RequestError or PromptTooLong."""
        model, request = self.model, self.request
        if request.ignore_eos and self.is_constrained:
            raise RequestError("ignore_eos cannot be combined with a grammar, which ends the reply", "ignore_eos")
        # Without an end, tokens that end a reply are like any other, except that no text must come of them.
        eog = model.tokenizer.eog
        silent = [token for token in eog if model.tokenizer.piece(token)] if request.ignore_eos else ()
        return GenerationRequest(
            id=self.id,
            prompt=self.prompt,
            sampling=replace(self.sampling, **_seeded(request.sampling, seed)),
            max_tokens=self._budget(),
            eog=frozenset() if request.ignore_eos else eog,
            stop=request.stop,
            suppressed=model.suppressed.union(silent),
            logit_bias=_checked_bias(request.logit_bias, model.model.n_vocab),
            logprobs=request.logprobs,
            return_token_ids=request.return_token_ids,
            denoising=_denoising(model, request.denoising),
            drafts=request.drafts,
            choice=number,
            **rest,
        )

    def _budget(self) -> int:
        """What was asked for or the default, as far as the context has room."""
        wanted = self.request.max_tokens
        size = self.model.model.block_size
        room = (self.model.n_ctx - len(self.prompt)) // size * size
        if room < (wanted != 0):
            raise PromptTooLong(
                f"this model's maximum context length is {self.model.n_ctx} tokens. However, your {self.param} "
                f"resulted in {len(self.prompt)} tokens; shorten it or serve the model with a larger --ctx",
                param=self.param,
                n_prompt=len(self.prompt),
                n_ctx=self.model.n_ctx,
            )
        if wanted is None:
            wanted = CONSTRAINED_TOKENS if self.is_constrained else room
        return min(wanted, room)


def _denoising(model: LoadedModel, given: Mapping[str, float | int]) -> Denoising | None:
    """How blocks are denoised: as the file recommends, but for what was given. Raises RequestError."""
    if not isinstance(model.model, BlockLM):
        return None
    made = replace(model.model.denoising, **given)  # type: ignore[arg-type]
    if made.t_min > made.t_max:
        raise RequestError(
            f"denoising.t_min is {made.t_min:g} and denoising.t_max {made.t_max:g}; temperatures fall from t_max",
            "denoising",
        )
    return made


def _seeded(sampling: Mapping[str, Any], number: int) -> dict[str, Any]:
    given = dict(sampling)
    seed = given.get("seed")
    given["seed"] = secrets.randbits(64) if seed is None else (seed + number) % 2**64
    return given


def _checked_bias(bias: Mapping[int, float], n_vocab: int) -> Mapping[int, float]:
    if bad := [token for token in bias if not 0 <= token < n_vocab]:
        raise RequestError(f"logit_bias names the token {bad[0]}; ids go from 0 to {n_vocab - 1}", "logit_bias")
    return bias
