"""Prompt formats around the template: arrangements, switches, begin-of-sequence, arguments, no template at all."""

from __future__ import annotations

import pytest

from lmhub.chat.messages import arrangements, turns_of
from lmhub.chat.prompt import ChatFormat
from lmhub.errors import RequestError
from lmhub.family import ThinkMarkers
from lmhub.types import Message, Reasoning, Text, Tool, ToolCall, ToolResult


class Letters:
    """A tokenizer whose tokens are the letters, with a few markers."""

    specials = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
    bos_id: int | None = 0
    eos_id: int | None = 1
    add_bos = True

    def token_text(self, id):
        return self.specials[id]

    def token_id(self, text):
        return self.specials.index(text) if text in self.specials else None

    def encode_segments(self, segments):
        return [self.token_id(text) if text in self.specials and markup else 100 for text, markup in segments]

    def with_bos(self, ids):
        return [*([] if ids[:1] == [0] else [0]), *ids]


def say(role, *texts):
    return Message(role, tuple(Text(text) for text in texts))


def format_of(source, **options):
    return ChatFormat.from_metadata({"tokenizer.chat_template": source} if source else {}, Letters(), **options)


ALL = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
STRICT = (
    "{% for m in messages %}"
    "{% if (m.role == 'system' and not loop.first) or (loop.previtem and loop.previtem.role == m.role) %}"
    "{{ raise_exception('bad order') }}{% endif %}{% endfor %}"
)
NO_SYSTEM = STRICT + "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
REMINDER = "<system-reminder>\nlate\n</system-reminder>"


@pytest.mark.parametrize(
    ("source", "messages", "text"),
    [
        (ALL, [say("system", "a"), say("system", "b"), say("user", "c")], "[system:a][system:b][user:c]"),
        (STRICT + ALL, [say("system", "a"), say("system", "b"), say("user", "c")], "[system:a\n\nb][user:c]"),
        (STRICT + ALL, [say("user", "a"), say("system", "late"), say("user", "b")], f"[user:a\n\n{REMINDER}\n\nb]"),
        (
            STRICT + ALL,
            [say("user", "a"), say("assistant", "b"), say("system", "late"), say("user", "c")],
            f"[user:a][assistant:b][user:{REMINDER}\n\nc]",
        ),
        (STRICT + ALL, [say("user", "a"), say("system", REMINDER)], f"[user:a\n\n{REMINDER}]"),
        (STRICT + ALL, [say("user", "a"), say("user", "b", "c")], "[user:a\n\nbc]"),
        (STRICT + ALL, [say("user", "a"), say("assistant", "b"), say("assistant", "c")], "[user:a][assistant:b\n\nc]"),
        (NO_SYSTEM + ALL, [say("system", "a"), say("user", "b")], "[user:a\n\nb]"),
    ],
)
def test_a_template_that_refuses_an_order_is_helped(source, messages, text):
    assert format_of(source).render(messages).text == text


def test_what_cannot_be_helped_is_refused_with_the_first_message():
    user_first = "{% if messages[0].role != 'user' %}{{ raise_exception('bad order') }}{% endif %}"
    with pytest.raises(RequestError, match="bad order"):
        format_of(user_first).render([say("assistant", "a"), say("assistant", "b")])
    with pytest.raises(RequestError, match="no system role"):
        format_of(NO_SYSTEM).render([say("system", "a")])


def test_a_late_system_text_stays_behind_the_tool_results():
    call = Message("assistant", (ToolCall("c", "f", "{}"),))
    turns = turns_of(
        [say("user", "a"), call, Message("tool", (ToolResult("c", "r"),)), say("system", "late")], parsed_arguments=True
    )
    folded = list(arrangements(turns, fold=False))[1]
    assert next(arrangements(turns, fold=True)) == folded
    assert [turn["role"] for turn in folded] == ["user", "assistant", "tool"]
    assert folded[2]["content"] == f"r\n\n{REMINDER}"


def test_a_template_that_speaks_of_parts_has_them_in_their_order():
    said = (Text("a"), Reasoning("r"), Text("b"), ToolCall("c", "f", "{}"), Text("d"))
    shown = "{{ part.text or part.reasoning or part.call.id }}|"
    template = f"{{% for message in messages %}}{{% for part in message.parts %}}{shown}{{% endfor %}}{{% endfor %}}"
    called = [Message("assistant", said), Message("tool", (ToolResult("c", "x"),))]
    assert format_of(template).render(called, add_generation_prompt=False).text.startswith("a|r|b|c|d|")


def test_reasoning_that_a_client_left_in_the_text_is_a_part_of_its_own():
    [turn] = turns_of(
        [Message("assistant", (Text("<think>\nr\n</think>\n\na"), ToolCall("c", "f", "{}")))],
        parsed_arguments=True,
        inline=ThinkMarkers(),
        in_order=True,
    )
    assert [next(iter(part.items())) for part in turn["parts"][:2]] == [("reasoning", "r"), ("text", "a")]
    assert (turn["content"], turn["reasoning_content"], len(turn["parts"])) == ("a", "r", 3)


def test_tool_results_are_sorted_like_their_calls():
    calls = tuple(ToolCall(str(place), "f", "{}") for place in range(3))
    results = [Message("tool", (ToolResult(id, id),)) for id in ("2", "?", "0")]
    turns = turns_of([Message("assistant", calls), *results], parsed_arguments=True)
    assert [turn["content"] for turn in turns if turn["role"] == "tool"] == ["0", "?", "2"]


def test_tool_results_know_the_name_of_their_call():
    calls = (ToolCall("1", "f", "{}"), ToolCall("2", "g", ""))
    results = (ToolResult("2", "x"), ToolResult("?", "y"), ToolResult("?", "z"))
    turns = turns_of([Message("assistant", calls), Message("user", (*results, Text("t")))], parsed_arguments=True)
    assert [(turn["role"], turn.get("name")) for turn in turns] == [
        ("assistant", None),
        ("tool", "g"),
        ("tool", "g"),
        ("tool", "unknown"),
        ("user", None),
    ]
    assert turns[0]["tool_calls"][1]["function"]["arguments"] == {}


CALLS = (
    "{% for m in messages %}{{ m.content if m.role == 'tool' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}("
)
ENDS = "){% endfor %}{% endfor %}"
EITHER = (
    CALLS + "{{ c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}" + ENDS
)
MAPPING = CALLS + "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}" + ENDS


@pytest.mark.parametrize(
    ("source", "arguments", "text"),
    [
        (EITHER, '{"a":1.50}', '{"a":1.50}'),  # as it was written: earlier turns keep their tokens
        (EITHER, "not json", "not json"),
        (EITHER, "", "{}"),
        (MAPPING, '{"b": 1, "a": "x"}', "b=1;a=x;"),
        (MAPPING, "not json", "arguments=not json;"),
        (MAPPING, "[1]", "arguments=[1];"),
        (MAPPING, "", ""),
    ],
)
def test_call_arguments(source, arguments, text):
    messages = [say("user", "a"), Message("assistant", (ToolCall("c", "f", arguments),))]
    assert format_of(source).render(messages).text == f"f({text})"


def test_begin_of_sequence_is_written_once():
    assert format_of("{{ bos_token }}{{ messages[0].content }}").render([say("user", "<s>")]).ids == (0, 100)
    assert format_of("{{ messages[0].content }}").render([say("user", "<s>")]).ids == (0, 100)


def test_reasoning_switch_and_where_the_reply_starts():
    source = (
        "a{% if enable_thinking %}{{ '<think>\\n' }}"
        "{% elif enable_thinking is defined %}{{ '<think></think>' }}{% endif %}"
    )
    chat = format_of(source, think=ThinkMarkers())
    messages = [say("user", "x")]
    assert chat.can_switch_reasoning
    assert chat.render(messages) == chat.render(messages, reasoning=False)  # off unless it is asked for
    assert chat.render(messages, reasoning=True).opens_reasoning
    off = chat.render(messages, reasoning=False)
    assert off.text == "a<think></think>" and not off.opens_reasoning
    assert chat.render(messages, reasoning=False, template_kwargs={"enable_thinking": True}).opens_reasoning
    assert not format_of(ALL, think=ThinkMarkers()).render([say("user", "<think>")]).opens_reasoning


@pytest.mark.parametrize(
    "name", ["messages", "tools", "bos_token", "raise_exception", "range", "add_generation_prompt"]
)
def test_reserved_names_are_refused(name):
    with pytest.raises(RequestError, match=f"cannot set '{name}'") as caught:
        format_of(ALL).render([say("user", "a")], template_kwargs={name: 1})
    assert caught.value.param == "chat_template_kwargs"


def test_without_a_template():
    chatml = format_of(None).render([say("user", "a")])
    assert chatml.text == "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    plain = Letters()
    plain.specials = ("<s>", "</s>")
    with pytest.raises(RequestError, match="no chat template"):
        ChatFormat.from_metadata({}, plain).render([say("user", "a")])


def test_a_template_that_does_not_compile_refuses_chat_only():
    chat = format_of("{% if %}")
    with pytest.raises(RequestError, match="cannot chat: the chat template does not compile"):
        chat.render([say("user", "a")])


def test_tools_are_declared_in_the_usual_order():
    tools = (Tool("f", "d", {"z": 1, "a": 2}), Tool("g"))
    text = format_of("{{ tools | tojson }}").render([say("user", "a")], tools).text
    assert text == (
        '[{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"z": 1, "a": 2}}}, '
        '{"type": "function", "function": {"name": "g"}}]'
    )
    assert format_of("{{ tools is none }}").render([say("user", "a")]).text == "True"


def test_a_control_token_may_be_built_around_the_role():
    source = "{% for m in messages %}{{ '<|' + m['role'] + '|>' ~ m.content }}{% endfor %}"
    assert format_of(source).render([say("user", "<|user|>")]).segments == (("<|user|>", True), ("<|user|>", False))


# --- efforts ---------------------------------------------------------------------------------------------------------


def picky(*known):
    """A template that knows these degrees of effort only, and shows which one it got."""
    return (
        f"{{% if reasoning_effort is defined and reasoning_effort not in {list(known)} %}}"
        "{{ raise_exception('what effort?') }}{% endif %}{{ reasoning_effort }}"
    )


@pytest.mark.parametrize(
    ("known", "asked", "used"),
    [
        (("low", "medium", "xhigh"), "high", "xhigh"),
        (("low", "medium", "xhigh"), "max", "xhigh"),
        (("low", "medium", "xhigh"), "low", "low"),
        (("low", "high", "max"), "medium", "high"),
        (("low", "medium", "high"), "max", "high"),
        (("low",), "max", "low"),
    ],
)
def test_an_effort_that_the_template_refuses_is_the_nearest_that_it_knows(known, asked, used):
    assert format_of(picky(*known)).render([say("user", "a")], template_kwargs={"reasoning_effort": asked}).text == used


def test_an_effort_that_nobody_knows_is_the_template_s_to_refuse():
    for effort in ("extreme", 3, ["low"]):
        with pytest.raises(RequestError, match="what effort"):
            format_of(picky("low")).render([say("user", "a")], template_kwargs={"reasoning_effort": effort})
    assert format_of("{{ messages[0].content }}").render([say("user", "a")]).text == "a"
