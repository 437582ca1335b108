"""From requests to what the engine runs: choices, budgets, tools, grammars, reasoning, raw prompts, refusals."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lmhub.errors import PromptTooLong, RequestError
from lmhub.hub import Hub, Served
from lmhub.loaded import LoadedModel
from lmhub.prepare import CONSTRAINED_TOKENS
from lmhub.settings import EngineSettings
from lmhub.testing.fake import END_THINK, IM_END, N_VOCAB, THINK, FakeModel, FakeTokenizer, NoiseModel
from lmhub.testing.serving import fake_loaded
from lmhub.testing.tiny import CHAT_TEMPLATE, tiny_gguf
from lmhub.types import (
    ChatRequest,
    CompletionRequest,
    Event,
    Finish,
    GenerationRequest,
    GrammarSpec,
    Message,
    PromptScored,
    ReasoningDelta,
    Request,
    SamplingParams,
    Text,
    TextDelta,
    Tool,
    ToolCallDelta,
    ToolCallStart,
    ToolChoice,
)

TOKENIZER = FakeTokenizer()
N_CTX = 4096
ADD = Tool("add", "adds", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, strict=True)
SUB = Tool("sub")
OBJECT = GrammarSpec("json_schema", '{"type": "object", "properties": {"a": {"type": "integer"}}}', "response_format")
ANY, NONE = ToolChoice("any"), ToolChoice("none")


def serve(model: Any, **fields: Any) -> tuple[Hub, Served]:
    hub = Hub(entry_points=False)
    fields = {"metadata": {"tokenizer.chat_template": CHAT_TEMPLATE}, "n_ctx": N_CTX, **fields}
    return hub, hub.serve(fake_loaded(model, **fields), EngineSettings(batch=2))


@pytest.fixture(scope="module")
def model() -> Iterator[LoadedModel]:
    hub, served = serve(FakeModel(b"ok"))
    yield served.model
    hub.close()


def chat(text: str = "Hi", **fields: Any) -> ChatRequest:
    return ChatRequest((Message("user", (Text(text),)),), **fields)


def one(model: LoadedModel, request: Request) -> GenerationRequest:
    [generation] = model.prepare(request, "r1")
    return generation


def shown(generation: GenerationRequest) -> str:
    return TOKENIZER.decode(generation.prompt, special=True)


def refused(model: LoadedModel, request: Request) -> RequestError:
    with pytest.raises(RequestError) as caught:
        model.prepare(request, "r1")
    return caught.value


# --- choices, seeds, budgets -----------------------------------------------------------------------------------------


def test_every_choice_has_what_it_may_change(model: LoadedModel) -> None:
    choices = model.prepare(chat(n=3, tools=(ADD,), sampling={"seed": 2**64 - 1}), "r1")
    assert [made.choice for made in choices] == [0, 1, 2]
    assert [made.sampling.seed for made in choices] == [2**64 - 1, 0, 1]
    assert len({id(made.parser) for made in choices}) == len({id(made.constraint) for made in choices}) == 3
    assert len({made.prompt for made in choices}) == len({made.id for made in choices}) == 1


def test_without_a_seed_every_choice_draws_its_own(model: LoadedModel) -> None:
    assert len({made.sampling.seed for made in model.prepare(chat(n=8), "r1")}) == 8


def test_choices_of_several_prompts(model: LoadedModel) -> None:
    choices = model.prepare(CompletionRequest(("ab", (1, 2, 3)), n=2, sampling={"seed": 5}), "r1")
    assert [made.choice for made in choices] == [0, 1, 2, 3]
    assert [made.prompt for made in choices] == [tuple(b"ab")] * 2 + [(1, 2, 3)] * 2
    assert [made.sampling.seed for made in choices] == [5, 6, 5, 6]


def test_budgets(model: LoadedModel) -> None:
    room = N_CTX - len(one(model, chat()).prompt)
    assert one(model, chat()).max_tokens == room
    assert one(model, chat(max_tokens=7)).max_tokens == 7
    assert one(model, chat(max_tokens=10**9)).max_tokens == room
    assert one(model, chat(grammar=OBJECT)).max_tokens == CONSTRAINED_TOKENS
    assert one(model, chat(grammar=OBJECT, max_tokens=2000)).max_tokens == 2000
    assert one(model, chat(tools=(ADD,), tool_choice=ANY)).max_tokens == CONSTRAINED_TOKENS
    assert one(model, chat(tools=(ADD,))).max_tokens > CONSTRAINED_TOKENS


@pytest.mark.parametrize("request_", [chat("x" * N_CTX), CompletionRequest(("x" * N_CTX,))], ids=["chat", "raw"])
def test_a_prompt_that_does_not_fit(model: LoadedModel, request_: Request) -> None:
    with pytest.raises(PromptTooLong, match=f"maximum context length is {N_CTX} tokens") as caught:
        model.prepare(request_, "r1")
    assert (caught.value.n_ctx, caught.value.code) == (N_CTX, "context_length_exceeded")
    assert caught.value.param == ("messages" if isinstance(request_, ChatRequest) else "prompt")
    assert caught.value.n_prompt == model.count(request_) >= N_CTX


def test_what_is_passed_on(model: LoadedModel) -> None:
    made = one(
        model,
        chat(stop=("x",), logprobs=3, logit_bias={5: -1.0}, return_token_ids=True, sampling={"temperature": 0.5}),
    )
    assert (made.stop, made.logprobs, made.logit_bias, made.return_token_ids) == (("x",), 3, {5: -1.0}, True)
    assert (made.sampling.temperature, made.eog, made.max_calls) == (0.5, TOKENIZER.eog, None)
    assert refused(model, chat(logit_bias={N_VOCAB: 1.0})).param == "logit_bias"


def test_replies_that_reason_have_defaults_of_their_own() -> None:
    modes = {
        "sampling": SamplingParams(temperature=0.7, top_k=5),
        "reasoning_sampling": SamplingParams(temperature=0.6),
    }
    hub, served = serve(FakeModel(b"ok"), **modes)
    try:
        for reasoning, temperature, top_k in ((None, 0.7, 5), (False, 0.7, 5), (True, 0.6, 0)):
            made = one(served.model, chat(reasoning=reasoning, sampling={"min_p": 0.1})).sampling
            assert (made.temperature, made.top_k, made.min_p) == (temperature, top_k, 0.1)
        assert one(served.model, chat(reasoning=True, tools=(ADD,), tool_choice=ANY)).sampling.temperature == 0.7
        assert one(served.model, CompletionRequest(("a",))).sampling.temperature == 0.7
    finally:
        hub.close()


def test_ignore_eos(model: LoadedModel) -> None:
    assert one(model, chat(ignore_eos=True)).eog == frozenset()
    assert refused(model, chat(ignore_eos=True, grammar=OBJECT)).param == "ignore_eos"


def test_count(model: LoadedModel) -> None:
    for request in (chat(), chat(tools=(ADD, SUB)), chat(tools=(ADD,), tool_choice=ANY), CompletionRequest(("abc",))):
        assert model.count(request) == len(one(model, request).prompt)
    assert model.count(CompletionRequest(("abc", (1, 2)))) == 5


# --- tools -----------------------------------------------------------------------------------------------------------


def test_tools_are_declared_unless_there_is_no_choice(model: LoadedModel) -> None:
    assert '"add"' in shown(one(model, chat(tools=(ADD,))))
    assert '"add"' not in shown(one(model, chat(tools=(ADD,), tool_choice=NONE)))
    assert one(model, chat(tools=(ADD,), tool_choice=NONE)).prompt == one(model, chat()).prompt
    assert one(model, chat(tools=(ADD,), tool_choice=NONE)).constraint is None


def test_one_call_only(model: LoadedModel) -> None:
    assert one(model, chat(tools=(ADD,))).max_calls is None
    assert one(model, chat(tools=(ADD,), parallel_tool_calls=False)).max_calls == 1
    assert one(model, chat(tools=(ADD,), tool_choice=ANY)).max_calls == 1
    assert one(model, chat(parallel_tool_calls=False)).max_calls is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": ANY}, "tool_choice"),
        ({"tools": (ADD,), "tool_choice": ToolChoice("any", ("nope",))}, "tool_choice"),
        ({"tools": (ADD,), "tool_choice": ToolChoice("auto", ("nope",))}, "tool_choice"),
        ({"tools": (Tool("a b"),), "tool_choice": ANY}, "tools"),
        ({"tools": (dataclasses.replace(ADD, parameters={"not": {}}),), "tool_choice": ANY}, "tools"),
    ],
)
def test_tool_choices_that_cannot_be(model: LoadedModel, fields: dict[str, Any], param: str) -> None:
    assert refused(model, chat(**fields)).param == param


def test_without_a_grammar_engine(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    for fields, param in (
        ({"grammar": OBJECT}, "response_format"),
        ({"tools": (ADD,), "tool_choice": ANY}, "tool_choice"),
    ):
        error = refused(model, chat(**fields))
        assert (error.status, error.kind, error.param) == (501, "not_supported_error", param)
    assert one(model, chat(tools=(ADD,))).constraint is None


def test_one_odd_schema_sinks_nothing(model: LoadedModel) -> None:
    odd = Tool("odd", parameters={"type": "object", "properties": {"x": {"not": {}}}}, strict=True)
    assert one(model, chat(tools=(odd, ADD, *(Tool(f"t{n}") for n in range(40))))).constraint is not None


def test_models_without_tools() -> None:
    hub, served = serve(FakeModel(b"ok"), family=dataclasses.replace(fake_loaded(FakeModel()).family, tools=None))
    try:
        error = refused(served.model, chat(tools=(ADD,)))
        assert (error.param, error.code) == ("tools", "unsupported_parameter")
        assert one(served.model, chat(tools=(ADD,), tool_choice=NONE))
        assert one(served.model, chat(tools=(ADD,), lenient=True)).prompt == one(served.model, chat()).prompt
        assert refused(served.model, chat(tools=(ADD,), tool_choice=ANY, lenient=True)).param == "tools"
    finally:
        hub.close()


# --- reasoning -------------------------------------------------------------------------------------------------------

OFF = "<think>\n\n</think>\n\n"


def test_reasoning_is_off_unless_asked_for(model: LoadedModel) -> None:
    assert shown(one(model, chat())).endswith(OFF)
    assert shown(one(model, chat(reasoning=False))).endswith(OFF)
    assert not shown(one(model, chat(reasoning=True))).endswith(OFF)
    assert shown(one(model, chat(reasoning=True, reasoning_budget=0))).endswith(OFF)


def test_a_grammar_keeps_it_off_but_for_an_explicit_wish(model: LoadedModel) -> None:
    assert shown(one(model, chat(grammar=OBJECT))).endswith(OFF)
    assert not shown(one(model, chat(grammar=OBJECT, reasoning=True))).endswith(OFF)
    assert shown(one(model, chat(tools=(ADD,), tool_choice=ANY, reasoning=True))).endswith(OFF)


def test_a_reasoning_budget(model: LoadedModel) -> None:
    made = one(model, chat(reasoning=True, reasoning_budget=5))
    assert made.reasoning_budget == 5
    assert END_THINK in made.close_reasoning


def test_models_without_reasoning() -> None:
    hub, served = serve(FakeModel(b"ok"), family=dataclasses.replace(fake_loaded(FakeModel()).family, think=None))
    try:
        error = refused(served.model, chat(reasoning=True))
        assert (error.param, error.code) == ("reasoning_effort", "unsupported_parameter")
        assert one(served.model, chat(reasoning=True, reasoning_budget=9, lenient=True)).reasoning_budget is None
    finally:
        hub.close()


# --- raw prompts -----------------------------------------------------------------------------------------------------


def test_raw_prompts(model: LoadedModel) -> None:
    assert one(model, CompletionRequest(("a<think>",))).prompt == (ord("a"), THINK)
    assert one(model, CompletionRequest(((IM_END, 0),))).prompt == (IM_END, 0)
    assert one(model, CompletionRequest(("a",))).parser is None
    for bad in ((N_VOCAB,), (-1,), ()):
        assert refused(model, CompletionRequest((bad,))).param == "prompt"
    assert refused(model, CompletionRequest(("",))).param == "prompt"


def test_a_suffix_needs_its_tokens(model: LoadedModel) -> None:
    error = refused(model, CompletionRequest(("a",), suffix="z"))
    assert (error.param, error.code) == ("suffix", "unsupported_parameter")
    ids = {f"tokenizer.ggml.fim_{name}_token_id": 250 + place for place, name in enumerate(("pre", "suf", "mid"))}
    filling = fake_loaded(FakeModel(), metadata=ids)
    assert one(filling, CompletionRequest(("ab",), suffix="z")).prompt == (250, *b"ab", 251, *b"z", 252)
    assert one(filling, CompletionRequest(((1, 2),), suffix="z")).prompt == (250, 1, 2, 251, *b"z", 252)
    assert filling.count(CompletionRequest(("ab",), suffix="z")) == 6


def test_echo_scores_the_prompt_where_that_is_wanted(model: LoadedModel) -> None:
    def scores(**fields: Any) -> bool:
        return one(model, CompletionRequest(("ab",), **fields)).score_prompt

    assert scores(echo_prompt=True, logprobs=0)
    assert scores(echo_prompt=True, max_tokens=0)
    assert not scores(echo_prompt=True)
    assert not scores(logprobs=2)
    assert refused(model, CompletionRequest(("ab",), max_tokens=0)).param == "max_tokens"


# --- through the engine ----------------------------------------------------------------------------------------------


def run(served: Served, request: Request) -> list[Event]:
    generation = one(served.model, request)
    events = list(served.engine.submit(generation).events())
    assert isinstance(events[-1], Finish), events[-1]
    return events


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.fixture(scope="module")
def noise() -> Iterator[Served]:
    """A model that babbles: whatever comes out well comes from the constraints."""
    hub, served = serve(NoiseModel())
    yield served
    hub.close()


def test_json_from_a_babbling_model(noise: Served) -> None:
    spec = GrammarSpec(
        "json_schema",
        json.dumps(
            {
                "type": "object",
                "properties": {"n": {"type": "integer", "maximum": 999}, "w": {"enum": ["x", "yes"]}},
                "required": ["n", "w"],
                "additionalProperties": False,
            }
        ),
        "response_format",
    )
    for seed in range(8):
        events = run(noise, chat(grammar=spec, sampling={"seed": seed, "temperature": 1.5}))
        value = json.loads(text_of(events))
        assert list(value) == ["n", "w"]
        assert isinstance(events[-1], Finish)
        assert events[-1].reason == "stop"


def test_a_grammar_that_is_cut_ends_with_length(noise: Served) -> None:
    events = run(noise, chat(grammar=GrammarSpec("regex", "[ab]{50}", "regex"), max_tokens=10))
    assert len(text_of(events)) == 10
    assert isinstance(events[-1], Finish)
    assert events[-1].reason == "length"


def test_a_forced_call_from_a_babbling_model(noise: Served) -> None:
    strict = dataclasses.replace(ADD, parameters={**(ADD.parameters or {}), "additionalProperties": False})
    for seed in range(4):
        events = run(
            noise,
            chat(
                tools=(strict, SUB), tool_choice=ToolChoice("any", ("add",)), sampling={"seed": seed, "temperature": 2}
            ),
        )
        [start] = [event for event in events if isinstance(event, ToolCallStart)]
        arguments = "".join(event.fragment for event in events if isinstance(event, ToolCallDelta))
        assert (start.name, list(json.loads(arguments))) == ("add", ["a"])
        assert text_of(events) == ""
        assert isinstance(events[-1], Finish)
        assert events[-1].reason == "tool_calls"


def test_a_call_wins_over_a_grammar(noise: Served) -> None:
    events = run(noise, chat(tools=(ADD,), tool_choice=ANY, grammar=OBJECT, sampling={"seed": 1}))
    assert any(isinstance(event, ToolCallStart) for event in events)


def test_an_opened_call_is_completed() -> None:
    hub, served = serve(FakeModel(TOKENIZER.encode("a<tool_call>nonsense and so on", special=True)))
    try:
        closed = dataclasses.replace(ADD, parameters={**(ADD.parameters or {}), "additionalProperties": False})
        events = run(served, chat(tools=(closed,), parallel_tool_calls=False, max_tokens=300))
        [start] = [event for event in events if isinstance(event, ToolCallStart)]
        assert (start.name, text_of(events)) == ("add", "a")
        served.model.lazy_tools = False
        assert "nonsense" in text_of(run(served, chat(tools=(ADD,), max_tokens=30)))
    finally:
        hub.close()


def test_a_grammar_starts_behind_the_reasoning() -> None:
    hub, served = serve(FakeModel(TOKENIZER.encode("<think>hm</think>\n\nwell", special=True)))
    spec = GrammarSpec("regex", "yes|no", "regex")
    try:
        events = run(served, chat(grammar=spec, reasoning=True))
        assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "hm"
        assert text_of(events) in ("yes", "no")
        plain = run(served, chat(grammar=spec))
        assert not any(isinstance(event, ReasoningDelta) for event in plain)
        assert text_of(plain) in ("yes", "no")
    finally:
        hub.close()


def test_continuing_a_reply(noise: Served) -> None:
    request = ChatRequest((Message("user", (Text("Hi"),)), Message("assistant", (Text("Hel"),))), continue_final=True)
    assert shown(one(noise.model, request)).endswith("assistant\nHel")


def test_scoring_a_prompt(noise: Served) -> None:
    events = run(noise, CompletionRequest(("abc",), echo_prompt=True, logprobs=1, max_tokens=0))
    assert isinstance(events[0], PromptScored)
    assert [entry.token for entry in events[0].logprobs] == list(b"abc")
    assert len(events) == 2


def test_a_real_model_keeps_to_a_schema(tmp_path: Path) -> None:
    """Random weights, a real vocabulary with merges and padding."""
    path = tiny_gguf("qwen3", tmp_path / "tiny.gguf", qk_norm=True, tied=True)
    hub = Hub()
    try:
        served = hub.load(path, EngineSettings(ctx=256, batch=1))
        spec = GrammarSpec(
            "json_schema",
            '{"type":"object","properties":{"the":{"maxLength":9,"type":"string"}},"required":["the"],"additionalProperties":false}',
            "p",
        )
        for seed in range(6):
            events = run(served, chat(grammar=spec, sampling={"seed": seed, "temperature": 1.0}, max_tokens=120))
            assert list(json.loads(text_of(events))) == ["the"]
    finally:
        hub.close()
