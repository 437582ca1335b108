"""Whatever clients replay, on every template that real models come with: nothing is lost, nothing is refused."""

from __future__ import annotations

import pytest

from lmhub.chat.prompt import ChatFormat
from lmhub.errors import RequestError
from lmhub.family import HERMES, XML, ThinkMarkers, style_for
from lmhub.gguf import open_gguf
from lmhub.tokenize import load_tokenizer
from lmhub.types import Message, Reasoning, Text, Tool, ToolCall, ToolResult

MODELS = [
    ("qwen3", None),
    ("qwen3moe", "chat_template-coder.jinja"),
    ("qwen35", None),
    ("llama", None),
    ("gemma3", None),
    ("gemma4-e2b", None),
    ("gemma4-31b", "chat_template-interleaved.jinja"),
    ("kimi-linear", None),
    ("kimi-k3", None),
]


@pytest.fixture(scope="session")
def model(shared):
    """`model(folder, template)`: the file's metadata with that template, and its tokenizer."""
    loaded = {}

    def load(folder, template=None):
        if folder not in loaded:
            metadata = open_gguf(sorted((shared / "zoo" / folder).glob("model-*.gguf"))[0]).metadata
            loaded[folder] = metadata, load_tokenizer(metadata)
        metadata, tokenizer = loaded[folder]
        if template is not None:
            metadata = {**metadata, "tokenizer.chat_template": (shared / "zoo" / folder / template).read_text()}
        return metadata, tokenizer

    return load


@pytest.fixture(scope="session")  # some templates take 50 ms to compile
def chat(model, request):
    metadata, tokenizer = model(*request.param)
    think = ThinkMarkers() if tokenizer.token_id("<think>") is not None else None
    return ChatFormat.from_metadata(metadata, tokenizer, think=think, tools=HERMES)


every = pytest.mark.parametrize("chat", MODELS, indirect=True, ids=lambda model: model[0])


def user(text):
    return Message("user", (Text(text),))


def says(*parts):
    return Message("assistant", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def result(text, id="c1"):
    return Message("tool", (ToolResult(id, text),))


def late(text):
    return Message("system", (Text(text),))


CALL = ToolCall("c1", "look_up", '{"city": "Paris-arg"}')
SECOND = ToolCall("c2", "look_up", '{"city": "Rome-arg"}')
SHOWN = ("look_up", "Paris-arg", "res-1")
HISTORIES = {
    "call and result": ([user("u1"), says(CALL), result("res-1")], SHOWN),
    "text, call, result, answer": (
        [user("u1"), says("a1", CALL), result("res-1"), says("a2"), user("u2")],
        ("a1", *SHOWN, "a2", "u2"),
    ),
    "two calls, answered the other way round": (
        [user("u1"), says(CALL, SECOND), result("res-2", "c2"), result("res-1")],
        (*SHOWN, "Rome-arg", "res-2"),
    ),
    "results in one message with text": (
        [user("u1"), says(CALL), Message("user", (ToolResult("c1", "res-1"), Text("u2")))],
        (*SHOWN, "u2"),
    ),
    "orphan result": ([user("u1"), result("res-1", "gone")], ("u1", "res-1")),
    "orphan result after an answer": ([user("u1"), says("a1"), result("res-1", "gone")], ("a1", "res-1")),
    "unknown call id": ([user("u1"), says(CALL), result("res-1", "other")], SHOWN),
    "call without result": ([user("u1"), says(CALL), user("u2")], ("look_up", "Paris-arg", "u2")),
    "more results than calls": ([user("u1"), says(CALL), result("res-1"), result("res-2", "x")], (*SHOWN, "res-2")),
    "empty arguments": ([user("u1"), says(ToolCall("c1", "look_up", "")), result("res-1")], ("look_up", "res-1")),
    "arguments that are no JSON": (
        [user("u1"), says(ToolCall("c1", "look_up", "{Paris-arg")), result("res-1")], SHOWN),
    "arguments that are a list": (
        [user("u1"), says(ToolCall("c1", "look_up", '["Paris-arg"]')), result("res-1")], SHOWN),
    "empty result": ([user("u1"), says(CALL), result("")], ("look_up", "Paris-arg")),
    "no content at all": ([user("u1"), Message("assistant", ()), user("u2")], ("u1", "u2")),
    "parts": ([Message("user", (Text("u1"), Text("u2")))], ("u1u2",)),
    "reasoning": ([user("u1"), says(Reasoning("r1"), "a1"), user("u2")], ("a1", "u2")),
    "reasoning and call": ([user("u1"), says(Reasoning("r1"), CALL), result("res-1")], SHOWN),
    "late system": ([late("s1"), user("u1"), says("a1"), late("s2"), user("u2")], ("s1", "a1", "s2", "u2")),
    "late system at the end": ([user("u1"), says("a1"), user("u2"), late("s2")], ("u2", "s2")),
    "late system behind results": ([user("u1"), says(CALL), result("res-1"), late("s2")], (*SHOWN, "s2")),
    "late system between call and result": ([user("u1"), says(CALL), late("s2"), result("res-1")], (*SHOWN, "s2")),
    "two users": ([user("u1"), user("u2"), says("a1"), user("u3"), user("u4")], ("u1", "u2", "u3", "u4")),
    "two assistants": ([user("u1"), says("a1"), says("a2"), user("u2")], ("a1", "a2")),
}  # fmt: skip


@every
@pytest.mark.parametrize("name", HISTORIES)
def test_everything_that_was_said_is_shown(chat, name):
    messages, shown = HISTORIES[name]
    text = chat.render(messages).text
    assert all(part in text for part in shown), text
    places = [text.index(part) for part in shown if not part.startswith(("u1", "s1"))]
    assert all(text.index("u1") < place for place in places)


@every
def test_results_follow_their_calls(chat):
    messages, _ = HISTORIES["late system between call and result"]
    text = chat.render(messages).text
    assert text.index("Paris-arg") < text.index("res-1") < text.index("s2")


@every
def test_results_come_in_the_order_of_their_calls(chat):
    messages, _ = HISTORIES["two calls, answered the other way round"]
    text = chat.render(messages).text
    assert text.index("res-1") < text.index("res-2")


@every
def test_what_came_before_a_late_system_message_does_not_change(chat):
    messages, _ = HISTORIES["late system"]
    before = chat.render(messages[:2], add_generation_prompt=False).text
    after = chat.render(messages, add_generation_prompt=False).text
    assert after.startswith(before)


@every
@pytest.mark.parametrize("prefix", ["Well, ", "", "  two\n", "a </think> b"])
def test_the_last_message_can_be_continued(chat, prefix):
    prompt = chat.render([user("u1"), says(prefix)], continue_final=True)
    assert prompt.text.rstrip(" ").endswith(prefix.strip(" ")) if "</think>" not in prefix else "b" in prompt.text
    assert "\ue000" not in prompt.text and not prompt.opens_reasoning
    if prefix == "Well, ":
        assert prompt.text.endswith("Well, ")


@every
def test_what_cannot_be_continued_is_refused(chat):
    for messages in ([user("u1")], [user("u1"), says("a", CALL)], []):
        with pytest.raises(RequestError, match="can be continued"):
            chat.render(messages, continue_final=True)


def test_a_template_that_drops_the_end_is_refused():
    class Letters:
        specials, bos_id, eos_id = (), None, None
        with_bos = staticmethod(list)
        encode_segments = staticmethod(lambda segments: [0])

    chat = ChatFormat.from_metadata({"tokenizer.chat_template": "{{ messages[-1].content[:2] }}"}, Letters())
    with pytest.raises(RequestError, match="cannot leave the last message open"):
        chat.render([user("u"), says("abc")], continue_final=True)


# --- reasoning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "template", "off", "on"),
    [
        ("qwen3", None, "<think>\n\n</think>\n\n", "assistant\n"),
        ("qwen35", None, "<think>\n\n</think>\n\n", "<think>\n"),
        ("qwen3moe", "chat_template-coder.jinja", "assistant\n", "assistant\n"),
    ],
)
def test_reasoning_is_off_unless_asked_for(model, folder, template, off, on):
    metadata, tokenizer = model(folder, template)
    chat = ChatFormat.from_metadata(metadata, tokenizer, think=ThinkMarkers())
    assert chat.render([user("u")]).text.endswith(off) and not chat.render([user("u")]).opens_reasoning
    asked = chat.render([user("u")], reasoning=True)
    assert asked.text.endswith(on) and asked.opens_reasoning == (folder == "qwen35")
    assert chat.render([user("u")], template_kwargs={"enable_thinking": True}) == asked
    assert chat.can_switch_reasoning == (folder != "qwen3moe")
    assert tokenizer.decode(chat.close_ids) == "\n</think>\n\n" and chat.close_id in chat.close_ids


def test_a_template_that_cannot_be_switched_off_is_left_alone(model):
    _, tokenizer = model("qwen3")
    source = (
        "{% if enable_thinking is defined and not enable_thinking %}{{ raise_exception('always') }}{% endif %}"
        "{{ messages[0].content }}{{ '<think>\\n' }}"
    )
    chat = ChatFormat.from_metadata({"tokenizer.chat_template": source}, tokenizer, think=ThinkMarkers())
    assert chat.render([user("u")]).opens_reasoning
    with pytest.raises(RequestError, match="always"):
        chat.render([user("u")], reasoning=False)


INLINE = "<think>\nr1\n</think>\n\na1"
ONLY_FIELDS = (  # reads reasoning_content and nothing else, as the newest templates do
    "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' }}"
    "{% if m.role == 'assistant' %}{{ '<think>\\n' ~ (m.reasoning_content or '') ~ '\\n</think>\\n\\n' }}{% endif %}"
    "{{ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
)


def test_reasoning_in_the_text_of_earlier_turns(model):
    history = [user("u1"), says(INLINE), user("u2")]
    for folder, template in MODELS[:3]:
        metadata, tokenizer = model(folder, template)
        chat = ChatFormat.from_metadata(metadata, tokenizer, think=ThinkMarkers())
        text = chat.render(history).text
        assert "r1" not in text and "assistant\na1<" in text
    _, tokenizer = model("qwen3")
    chat = ChatFormat.from_metadata({"tokenizer.chat_template": ONLY_FIELDS}, tokenizer, think=ThinkMarkers())
    for inline in (INLINE, "r1\n</think>\n\na1"):
        text = chat.render([user("u1"), says(inline), user("u2")]).text
        assert "assistant\n<think>\nr1\n</think>\n\na1<" in text
    said = "The tag <think> opens and </think> closes."
    assert said in chat.render([user("u1"), says(said), user("u2")]).text
    said = "No tag."
    assert said in chat.render([user("u1"), says(said), user("u2")]).text


# --- styles ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "template", "name"),
    [
        ("qwen3", None, "hermes"),
        ("qwen3moe", "chat_template-coder.jinja", "xml"),
        ("qwen35", None, "xml"),
        ("llama", None, None),
    ],
)
def test_the_template_tells_the_style(model, folder, template, name):
    metadata, _ = model(folder, template)
    style = style_for((XML, HERMES), metadata["tokenizer.chat_template"])
    assert (style and style.name) == name
    assert style_for(HERMES, "a <tool_call>") is HERMES and style_for(None, "<tool_call>") is None
    assert style_for(HERMES, None) is None


@pytest.mark.parametrize("folder", ["qwen3", "qwen35"])
def test_a_custom_tool_is_declared_as_a_function_of_one_text(model, folder):
    metadata, tokenizer = model(folder)
    chat = ChatFormat.from_metadata(metadata, tokenizer, think=ThinkMarkers(), tools=HERMES)
    tools = (Tool("patch", "d", custom=True),)
    history = [user("u1"), says(ToolCall("c1", "patch", "*** raw")), result("ok"), user("u2")]
    text = chat.render(history, tools).text
    assert '{"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}' in text
    assert "*** raw" in text and "ok" in text


def test_without_a_template_tools_are_hermes(model):
    _, tokenizer = model("qwen3")
    chat = ChatFormat.from_metadata({}, tokenizer, tools=HERMES)
    text = chat.render([late("s1"), user("u1"), says("a", CALL), result("r1")], (Tool("look_up"),)).text
    assert text.startswith("<|im_start|>system\ns1\n\n# Tools")
    assert '<|im_start|>assistant\na\n<tool_call>\n{"name": "look_up", "arguments": {"city": "Paris-arg"}}\n' in text
    assert text.endswith("<tool_response>\nr1\n</tool_response><|im_end|>\n<|im_start|>assistant\n")
    assert text.count("s1") == 1
