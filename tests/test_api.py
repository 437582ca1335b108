"""The Python API: over a scripted model where the reply matters, over a real tiny file where the arithmetic does."""

from __future__ import annotations

import asyncio
import doctest
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lmhub
from lmhub import HERMES, Family, Hub, ThinkMarkers, api, hookimpl
from lmhub.errors import ModelFileError, PromptTooLong, RequestError, ShuttingDown, UnsupportedModel
from lmhub.loaded import LoadedModel
from lmhub.model import MemoryPlan
from lmhub.settings import EngineSettings
from lmhub.testing.fake import FakeModel, FakeTokenizer, Gate, NoiseModel
from lmhub.testing.tiny import CHAT_TEMPLATE, tiny_gguf
from lmhub.types import Finish, GrammarSpec, Message, SamplingParams, Text, TextDelta, ToolCall

ASK = [{"role": "user", "content": "Hi"}]
N_CTX = 512


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf("qwen3", tmp_path_factory.mktemp("api") / "tiny.gguf", qk_norm=True, tied=True)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Iterator[api.Model]:
    with lmhub.open(tiny, ctx=128, batch=2) as opened:
        yield opened


def scripted(reply: bytes | Sequence[int] | FakeModel, *plugins: Any) -> api.Model:
    """A model that answers everything with `reply`, one request at a time."""
    hub = Hub(entry_points=False)
    for at, plugin in enumerate(plugins):
        hub.plugins.register(plugin, f"plugin{at}")
    loaded = LoadedModel(
        id="scripted",
        family=Family("fake", ("fake",), "none:none", think=ThinkMarkers(), tools=HERMES),
        distribution="tests",
        metadata={"tokenizer.chat_template": CHAT_TEMPLATE},
        model=reply if isinstance(reply, FakeModel) else FakeModel(list(reply)),
        tokenizer=FakeTokenizer(),
        n_ctx=N_CTX,
        plan=MemoryPlan(0, 0, 0),
        created=0,
        n_params=0,
        nbytes=0,
        quantization="none",
        sampling=SamplingParams(),
    )
    return api.Model(hub, hub.serve(loaded, EngineSettings(ctx=N_CTX, batch=1)), owns_hub=True)


def script(text: str) -> list[int]:
    return FakeTokenizer().encode(text, special=True)


# --- replies ---------------------------------------------------------------------------------------------------------


def test_chat_returns_the_whole_reply() -> None:
    with scripted(b"Hello, world") as model:
        reply = model.chat(ASK)
    assert (reply.text, reply.reasoning, reply.tool_calls, reply.finish_reason) == ("Hello, world", "", (), "stop")
    assert reply.usage.completion_tokens == len("Hello, world")


def test_stream_is_what_chat_collects() -> None:
    with scripted("Größe".encode()) as model:
        events = list(model.stream(ASK))
        assert (
            "".join(event.text for event in events if isinstance(event, TextDelta)) == model.chat(ASK).text == "Größe"
        )
    assert isinstance(events[-1], Finish)
    assert not any(isinstance(event, Finish) for event in events[:-1])


def test_reasoning_comes_apart() -> None:
    with scripted(script("<think>\nhm\n</think>\n\nYes")) as model:
        reply = model.chat(ASK)
    assert reply.reasoning.strip() == "hm"
    assert reply.text.strip() == "Yes"
    assert reply.usage.reasoning_tokens > 0


def test_tool_calls_are_collected() -> None:
    said = script('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>')
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    with scripted(said) as model:
        reply = model.chat(ASK, tools=[tool])
    [call] = reply.tool_calls
    assert (call.name, reply.finish_reason) == ("add", "tool_calls")
    assert call.arguments.replace(" ", "") == '{"a":1,"b":2}'


def test_tool_results_can_be_answered() -> None:
    with scripted(b"3") as model:
        call = {"id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
        history = [
            *ASK,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ]
        assert model.chat(history).text == "3"
        with_records = [
            *ASK,
            {"role": "assistant", "content": "", "tool_calls": [ToolCall("c1", "add", '{"a": 1, "b": 2}')]},
            history[-1],
        ]
        assert model.chat(with_records).usage.prompt_tokens == model.chat(history).usage.prompt_tokens


def test_records_and_dicts_are_the_same() -> None:
    with scripted(b"x") as model:
        by_record = model.chat([Message("user", (Text("Hi"),))])
        by_parts = model.chat([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
        prompts = {reply.usage.prompt_tokens for reply in (by_record, by_parts, model.chat(ASK))}
        assert len(prompts) == 1


def test_budget_and_stop_strings() -> None:
    with scripted(b"one two three") as model:
        cut = model.chat(ASK, max_tokens=5)
        stopped = model.complete("go", stop=[" three"])
    assert (cut.text, cut.finish_reason) == ("one t", "length")
    assert (stopped.text, stopped.finish_reason) == ("one two", "stop_sequence")


def test_leaving_a_stream_cancels_it() -> None:
    gate = Gate()
    fake = FakeModel(b"x" * 100, gate=gate)
    with scripted(fake) as model:
        stream = model.stream(ASK)
        reader = threading.Thread(target=next, args=(stream,))
        reader.start()
        gate.arrive()
        gate.step()  # the prompt and one token
        reader.join()
        stream.close()
        # The cancellation is on its way through the private loop: wait until it has passed, then let the engine run.
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), model._loop).result()
        gate.open()
        assert model.chat(ASK, max_tokens=1).text == "x"
    assert len(fake.steps) < 10


def test_hooks_see_the_requests_of_the_api() -> None:
    class Refuse:
        @hookimpl
        def lmhub_validate(self, model: Any, request: Any) -> None:
            if "secret" in request.messages[-1].text:
                raise RequestError("that is secret; ask something else", "messages")

    class Shout:
        @hookimpl
        def lmhub_generate(self, model: Any, request: Any) -> Any:
            if request.max_tokens != 7:
                return None

            async def events() -> Any:
                yield TextDelta("LOUD")
                yield Finish("stop", api.Usage(1, 1))

            return events()

    with scripted(b"quiet", Refuse(), Shout()) as model:
        with pytest.raises(RequestError, match="that is secret"):
            model.chat([{"role": "user", "content": "the secret"}])
        assert model.chat(ASK, max_tokens=7).text == "LOUD"
        assert model.chat(ASK).text == "quiet"


def test_a_reply_keeps_to_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    with scripted(NoiseModel()) as model:
        for reply in (model.chat(ASK, json_schema=schema, seed=1), model.complete("go", json_schema=schema, seed=1)):
            assert json.loads(reply.text) == {"a": 1}
        assert model.chat(ASK, grammar=GrammarSpec("regex", "yes|no", "grammar")).text in ("yes", "no")


def test_a_call_can_be_forced() -> None:
    tool = {"name": "add", "parameters": {"type": "object"}}
    with scripted(NoiseModel()) as model:
        for choice in ("any", "add"):
            reply = model.chat(ASK, tools=[tool], tool_choice=choice, seed=2, max_tokens=300)
            assert [call.name for call in reply.tool_calls] == ["add"] or reply.finish_reason == "length"
        assert model.chat(ASK, tools=[tool], tool_choice="none", max_tokens=3).tool_calls == ()


def test_log_probabilities_are_of_the_text() -> None:
    with scripted("Größe".encode()) as model:
        reply = model.chat(ASK, logprobs=2)
    assert b"".join(entry.piece for entry in reply.logprobs).decode() == reply.text == "Größe"
    assert all(len(entry.top) == 2 and entry.logprob == entry.top[0][2] <= 0 for entry in reply.logprobs)


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m: m.chat([]), "messages is empty"),
        (lambda m: m.chat([{"role": "wizard", "content": "x"}]), r"messages\[0\] must be a dict with a role out of"),
        (lambda m: m.chat(["Hi"]), r"messages\[0\] must be a dict"),
        (lambda m: m.chat([{"role": "user", "content": 3}]), r"the content of messages\[0\] must be a string"),
        (lambda m: m.chat([{"role": "user", "text": "x"}]), r"messages\[0\] has the unknown key 'text'"),
        (lambda m: m.chat([*ASK, {"role": "tool", "content": "3"}]), "needs its tool_call_id"),
        (lambda m: m.chat(ASK, tools=[{"type": "function"}]), r"tools\[0\] must be a dict with the name"),
        (lambda m: m.chat(ASK, temprature=1), "there is no option temprature; sampling options are temperature, "),
        (lambda m: m.chat(ASK, temperature=-1), "temperature must be a number from 0 to 100, not -1"),
        (lambda m: m.chat(ASK, top_k=1.5), "top_k must be a whole number"),
        (lambda m: m.chat(ASK, max_tokens=0), "max_tokens must be a whole number of at least 1, not 0"),
        (lambda m: m.chat(ASK, stop=[""]), "stop must hold strings that are not empty"),
        (lambda m: m.complete(""), "the prompt is empty"),
        (lambda m: m.complete("x", json_schema=False), "admits no reply"),
        (lambda m: m.complete("x", json_schema={"a": m}), "json_schema must be a schema"),
        (lambda m: m.complete("x", json_schema={}, grammar=GrammarSpec("regex", "a", "g")), "exclude each other"),
        (lambda m: m.chat(ASK, logprobs=21), "logprobs must be a whole number from 0 to 20"),
        (lambda m: m.chat(ASK, tool_choice="add"), "tool_choice forces a call, but there are no tools"),
        (lambda m: m.complete([0, 10**6]), "1000000 is not a token id of scripted"),
        (lambda m: m.logits([]), "the prompt is empty"),
        (lambda m: m.detokenize([-1]), "-1 is not a token id of scripted; they go from 0 to "),
    ],
)
def test_mistakes_are_one_sentence(ask: Callable[[api.Model], Any], said: str) -> None:
    with scripted(b"x") as model, pytest.raises(RequestError, match=said) as raised:
        ask(model)
    assert "\n" not in str(raised.value)


def test_a_prompt_that_does_not_fit() -> None:
    with scripted(b"x") as model:
        with pytest.raises(PromptTooLong, match=f"maximum context length is {N_CTX}"):
            model.complete("x" * (N_CTX + 1))
        with pytest.raises(PromptTooLong, match=f"exceed the context of {N_CTX}"):
            model.logits([1] * (N_CTX + 1))


def test_a_closed_model_says_so() -> None:
    model = scripted(b"x")
    model.close()
    model.close()
    with pytest.raises(ShuttingDown, match="scripted has been closed"):
        model.chat(ASK)
    with pytest.raises(ShuttingDown, match="scripted has been closed"):
        model.logits([1])


def test_closing_ends_a_running_stream() -> None:
    gate = Gate()
    model = scripted(FakeModel(b"x" * 100, gate=gate))
    errors: list[Exception] = []

    def read() -> None:
        try:
            list(model.stream(ASK))
        except ShuttingDown as error:
            errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    gate.arrive()
    model.close()
    reader.join()
    assert len(errors) == 1


def test_open_refuses_bad_settings_and_files(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="ctx and batch must be at least 1"):
        lmhub.open("x.gguf", ctx=0)
    with pytest.raises(RequestError, match="kv_dtype must be 'f16', 'f32' or 'q8_0', not 'q4'"):
        lmhub.open("x.gguf", kv_dtype="q4")
    with pytest.raises(ModelFileError, match="it cannot be opened"):
        lmhub.open(tmp_path / "nowhere.gguf")
    with pytest.raises(UnsupportedModel, match="'martian', which no installed plugin serves"):
        lmhub.open(tiny_gguf("martian", tmp_path / "martian.gguf"))


# --- a real file -----------------------------------------------------------------------------------------------------


def test_logits_of_every_position(model: api.Model) -> None:
    ids = model.tokenize("the rain in the north")
    logits = model.logits(ids)
    assert logits.shape == (len(ids), model.n_vocab)
    assert logits.dtype == np.float32
    assert np.isfinite(logits).all()
    assert np.array_equal(model.logits(ids[:3]), logits[:3])  # causal, and row by row the same bits


def test_greedy_completion_follows_the_logits(model: api.Model) -> None:
    ids = model.tokenize("the rain")
    reply = model.complete(ids, max_tokens=1, temperature=0)
    likeliest = int(model.logits(ids)[-1].argmax())
    assert reply.usage.completion_tokens == 1
    assert reply.text == model.detokenize([likeliest])


def test_a_seed_gives_the_same_reply(model: api.Model) -> None:
    first, again = (model.chat(ASK, max_tokens=12, seed=5, temperature=1.0) for _ in range(2))
    assert first.text == again.text


def test_threads_share_a_model(model: api.Model) -> None:
    alone = model.chat(ASK, max_tokens=20, seed=5, temperature=1.0).text
    texts: list[str] = []

    def ask() -> None:
        texts.append(model.chat(ASK, max_tokens=20, seed=5, temperature=1.0).text)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == [alone, alone]


def test_tokens_and_back(model: api.Model) -> None:
    assert model.detokenize(model.tokenize("Hello, wörld")) == "Hello, wörld"
    [marker] = model.tokenize("<|im_end|>", special=True)
    assert len(model.tokenize("<|im_end|>")) > 1
    assert model.detokenize([marker], special=True) == "<|im_end|>"


def test_facts(model: api.Model) -> None:
    assert (model.id, model.n_ctx) == ("tiny", 128)
    assert model.metadata["general.architecture"] == "qwen3"
    assert "tiny" in repr(model)


def test_progress_counts_up_to_the_total(tiny: Path) -> None:
    seen: list[tuple[int, int]] = []
    lmhub.open(tiny, ctx=32, progress=lambda done, total: seen.append((done, total))).close()
    done = [step for step, _ in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1] > 0


def test_docstring_examples_run(tiny: Path) -> None:
    result = doctest.testmod(api, extraglobs={"PATH": str(tiny), "lmhub": lmhub})
    assert result.attempted > 10
    assert result.failed == 0
