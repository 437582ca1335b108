"""Where a template opens the reply: what lies before it is the conversation, which the next turn repeats."""

from __future__ import annotations

import pytest

from lmhub.chat.prompt import ChatFormat
from lmhub.errors import RequestError
from lmhub.family import ThinkMarkers
from lmhub.testing.fake import FakeTokenizer
from lmhub.testing.tiny import CHAT_TEMPLATE
from lmhub.types import Message, Text

HI = (Message("user", (Text("hi"),)),)
SAID = Message("assistant", (Text("well"),))
FOLDERS = ("qwen3", "qwen3-realvocab", "qwen35", "llama", "gemma3", "gemma4-31b", "kimi-linear", "kimi-k3")


def format_of(template: str, *, think: bool = True) -> tuple[ChatFormat, FakeTokenizer]:
    """The prompt format of that template over the bytes of the fake vocabulary."""
    tokenizer = FakeTokenizer()
    metadata = {"tokenizer.chat_template": template}
    return ChatFormat.from_metadata(metadata, tokenizer, think=ThinkMarkers() if think else None), tokenizer


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_stable_is_the_conversation_without_the_opener(load_format, load_goldens, folder):
    chat, _ = load_format(folder)
    n_found = 0
    for row in load_goldens(folder, "chat.json").values():
        try:
            prompt = chat.render(row.messages, row.tools, **row.options)
        except RequestError:
            continue
        if not row.options["add_generation_prompt"]:
            assert prompt.n_stable is None
        elif prompt.n_stable is not None:
            n_found += 1
            bare = chat.render(row.messages, row.tools, **{**row.options, "add_generation_prompt": False})
            assert prompt.ids[: prompt.n_stable] == bare.ids
            assert len(prompt.ids) > len(bare.ids)
    assert n_found >= 15


@pytest.mark.parametrize(
    ("reasoning", "opener"),
    [
        (True, "<|im_start|>assistant\n"),
        (False, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        (None, "<|im_start|>assistant\n<think>\n\n</think>\n\n"),
    ],
)
def test_the_primer_of_switched_off_reasoning_belongs_to_the_opener(reasoning, opener):
    chat, tokenizer = format_of(CHAT_TEMPLATE)
    prompt = chat.render(HI, reasoning=reasoning)
    assert tokenizer.decode(prompt.ids[prompt.n_stable :], special=True) == opener
    follow_up = chat.render((*HI, SAID, *HI), reasoning=reasoning)
    assert follow_up.ids[: prompt.n_stable] == prompt.ids[: prompt.n_stable]


def test_a_switch_of_the_request_finds_its_opener_as_well():
    chat, _ = format_of(CHAT_TEMPLATE)
    off, on = (chat.render(HI, template_kwargs={"enable_thinking": value}) for value in (False, True))
    assert off.n_stable == on.n_stable is not None
    assert len(off.ids) > len(on.ids)


def test_a_continued_reply_has_no_opener():
    chat, _ = format_of(CHAT_TEMPLATE)
    assert chat.render((*HI, SAID), continue_final=True).n_stable is None
    assert chat.render((*HI, Message("assistant", (Text(""),))), continue_final=True).n_stable is None
    assert chat.render(HI, add_generation_prompt=False).n_stable is None


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",  # opens nothing
        "{% if add_generation_prompt %}now: {% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",  # not last
        "{{ messages[0].content if add_generation_prompt else raise_exception('no') }}",
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{{ messages | length }}"
        "{{ messages[-1].content }}{% endif %}",  # another one for each conversation
    ],
)
def test_without_an_opener_that_is_always_the_same_nothing_is_claimed(template):
    chat, _ = format_of(template, think=False)
    assert chat.render(HI).n_stable is None


def test_a_client_that_spells_the_opener_moves_nothing():
    chat, _ = format_of(CHAT_TEMPLATE)
    spelled = (Message("user", (Text("<|im_start|>assistant\n<think>\n\n</think>\n\n"),)),)
    prompt = chat.render(spelled, reasoning=True)
    assert len(prompt.ids) - prompt.n_stable == len("assistant\n") + 1
