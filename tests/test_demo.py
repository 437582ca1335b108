"""How the demo model's training text is made: as lmhub renders it, the same every time, with a part kept back."""

from __future__ import annotations

import hashlib
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from lmhub import HERMES, ThinkMarkers
from lmhub.chat.prompt import ChatFormat
from lmhub.chat.template import ChatTemplate
from lmhub.plain import message_from, tool_from
from lmhub.testing.tiny import vocabulary
from lmhub.tokenize import load_tokenizer

ROOT = Path(__file__).parents[1]
SEEDS = range(60)


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`data(name)`: a module of demo/data, by its name alone, as the scripts import it."""
    monkeypatch.syspath_prepend(ROOT / "demo" / "data")
    return importlib.import_module


def messages_of(talk: Any) -> list[dict[str, Any]]:
    """A conversation as a client would send it."""
    out: list[dict[str, Any]] = [{"role": "system", "content": talk.system}] if talk.system else []
    last = max(at for at, turn in enumerate(talk.turns) if turn.role == "user")
    for at, turn in enumerate(talk.turns):
        message = {"role": turn.role, "content": turn.text}
        if turn.role == "tool":
            message["tool_call_id"] = out[-1]["tool_calls"][0]["id"]
        if turn.calls:
            message["tool_calls"] = [
                {"id": f"c{at}", "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}}
                for name, arguments in turn.calls
            ]
        if at > last and talk.returned:
            message["reasoning_content"] = turn.think
        out.append(message)
    return out


def test_conversations_are_what_the_model_will_see(data: Any) -> None:
    conversation, pieces = data("mix").conversation, data("render").pieces
    metadata = {**vocabulary(300), "tokenizer.chat_template": (ROOT / "demo" / "template.jinja").read_text()}
    tokenizer = load_tokenizer(metadata)
    chat = ChatFormat.from_metadata(metadata, tokenizer, think=ThinkMarkers(), tools=HERMES)
    for seed in SEEDS:
        talk = conversation(seed)
        *before, _ = [message_from(message, "m") for message in messages_of(talk)]
        tools = [tool_from(tool, "t") for tool in talk.declared]
        prompt = chat.render(before, tools, reasoning=talk.thinking)
        cut = [(piece.text, piece.markup) for piece in pieces(talk)]
        whole = tokenizer.encode_segments(cut)
        assert tuple(whole[: len(prompt.ids)]) == prompt.ids
        answer = tokenizer.decode(whole[len(prompt.ids) :], special=True)
        learnt = "".join(piece.text for piece in pieces(talk) if piece.learnt)
        assert learnt.endswith(answer.removesuffix("\n"))


def test_the_same_number_gives_the_same_conversation(data: Any) -> None:
    conversation, pieces = data("mix").conversation, data("render").pieces
    for seed in SEEDS:
        assert pieces(conversation(seed)) == pieces(conversation(seed))


@pytest.mark.parametrize("held_out", [False, True])
def test_every_call_is_what_its_tool_declares(data: Any, held_out: bool) -> None:
    conversation, n_calls = data("mix").conversation, 0
    kinds = {"string": str, "integer": (int, float), "number": (int, float)}  # a calculator's integers may have a point
    for seed in range(300):
        talk = conversation(seed, held_out=held_out, tools=True)
        declared = {tool["function"]["name"]: tool["function"]["parameters"] for tool in talk.declared}
        for name, arguments in (call for turn in talk.turns for call in turn.calls):
            properties = declared[name]["properties"]
            assert set(arguments) == set(declared[name]["required"])
            for key, value in arguments.items():
                assert isinstance(value, kinds[properties[key]["type"]])
                assert value in properties[key].get("enum", [value])
            n_calls += 1
    assert n_calls > 100


def test_a_part_of_every_list_is_kept_back(data: Any) -> None:
    chooser, names = data("choice").Chooser, data("words").NAMES
    trained = {chooser(seed).of(names) for seed in range(3000)}
    kept = {chooser(seed, held_out=True).of(names) for seed in range(3000)}
    assert trained | kept == set(names)
    assert not trained & kept


def test_a_part_of_every_pattern_is_kept_back(data: Any) -> None:
    chooser, kept_back = data("choice").Chooser, data("choice").kept_back
    patterns = ("[read|open|show|view|print|load] {x}[?|]", "[list|show|name|tell me] [all|the] files", "ping")
    plain = lambda text: text.lower().rstrip(" ?.!")  # noqa: E731
    asked = {
        held_out: {plain(chooser(seed, held_out=held_out).asked(patterns, x="X1")) for seed in range(3000)}
        for held_out in (False, True)
    }
    whole = {plain(one.format(x="X1")) for one in kept_back(patterns)}
    assert whole and asked[True] >= whole and "ping" in asked[False]
    assert not asked[False] & whole  # of kept wordings, not even one with a typo that makes it another


def test_no_pattern_has_the_questions_in_other_words(data: Any) -> None:
    choice, unseen, smalltalk, facts = (data(name) for name in ("choice", "unseen", "smalltalk", "facts"))
    patterns = [one for asked, *_ in (*smalltalk.INTENTS.values(), *facts.WRITTEN) for one in asked]
    trained = {choice.plain(one) for pattern in patterns for one in choice.wordings(pattern)}
    assert "which port" in trained
    small_talk = [question for questions in unseen.SMALL_TALK.values() for question in questions]
    for question in (*small_talk, *(question for question, _ in unseen.ABOUT_LMHUB)):
        assert choice.plain(question) not in trained


def test_unknown_names_are_cut_alike_wherever_they_stand(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "demo")
    vocabulary = importlib.import_module("vocabulary")
    text = ["the weather in Kovabrin is the weather in Tolabrin", "say kova brin to the weather"] * 20
    made = vocabulary.Vocabulary(vocabulary.trained(text, 400, {"Oslo"}))
    piece = data("render").Piece

    def cut(text: str) -> list[str]:
        [(ids, _)] = made.encode([[piece(text)]])
        return [made.tokens[at] for at in ids]

    assert cut(" the weather") == ["\u0120the", "\u0120weather"]
    for name in ("Kovatol", "Oslo", "xylo"):
        spaced, quoted = cut(f" {name}"), cut(f'"{name}')
        assert spaced[0] == "\u0120" and quoted[0] == '"'
        assert spaced[1:] == quoted[1:] == cut(name)
    assert len(cut("Oslo")) == 4


def test_every_option_and_hook_is_taught(data: Any) -> None:
    answers = "\n".join(answer for _, (_, answer, _) in data("facts").facts())
    manual = data("manual")
    assert len(manual.options()) > 40
    flags = [flag for option in manual.options() for flag in (option.flag, option.off) if flag]
    assert "--no-ui" in flags and "lmhub-gemma4" in manual.plugins()
    for one in (*flags, *manual.hooks(), *manual.commands(), *manual.plugins()):
        assert one in answers


CALL = {"id": "c1", "function": {"name": "f", "arguments": '{"a": "x"}'}}
ARGUMENTS = '{"a": "x", "n": 1, "b": true, "z": null, "l": [1, "é"]}'
LONG_CALL = {"id": "c1", "function": {"name": "f", "arguments": ARGUMENTS}}
HI = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "42"}


@pytest.mark.parametrize(
    ("messages", "reasoning", "digest"),
    [
        ([HI], True, "b257d9a21897"),
        ([HI], False, "9f81e9d71724"),
        ([HI, {"role": "assistant", "content": "ok", "reasoning_content": "R", "tool_calls": [LONG_CALL]}, RESULT],
         True, "080f838be03e"),
        ([HI, {"role": "assistant", "tool_calls": [CALL]}, RESULT, RESULT], True, "5a0f6cfbfb6c"),
        ([HI, {"role": "assistant", "content": "ok", "reasoning_content": "R", "tool_calls": [CALL]}, RESULT,
          {"role": "assistant", "content": "done", "reasoning_content": "R2"}, {"role": "user", "content": "again"}],
         True, "839b614bbf19"),
        ([HI, {"role": "assistant", "content": "<think>\nR\n</think>\n\ndone"}, {"role": "user", "content": "again"}],
         True, "1a18d9a71807"),
    ],
)  # fmt: skip
def test_the_template_renders_as_the_familys_does(messages: list[dict[str, Any]], reasoning: bool, digest: str) -> None:
    source = (ROOT / "demo" / "template.jinja").read_text()
    tokenizer = load_tokenizer(vocabulary(300))
    chat = ChatFormat(ChatTemplate(source), tokenizer, think=ThinkMarkers(), tools=HERMES)
    text = chat.render([message_from(message, "m") for message in messages], reasoning=reasoning).text
    assert hashlib.sha256(text.encode()).hexdigest().startswith(digest)
