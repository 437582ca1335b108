"""Diffusion models in the engine: prompts are read, canvases denoised together, blocks committed, until it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lmhub.errors import PromptTooLong, RequestError
from lmhub.model import State
from lmhub.testing.fake import IM_END, FakeBlocks
from lmhub.testing.turns import Turns
from lmhub.types import Denoising, Draft, Finish, GenerationRequest, SamplingParams, TextDelta

SAYS = b"The quick brown fox."  # 20 tokens: two blocks of 8, and 4 of a third


def asked(id: str = "a", prompt: bytes = b"Hello", max_tokens: int = 1000, **fields: Any) -> GenerationRequest:
    return GenerationRequest(id, tuple(prompt), SamplingParams(seed=7), max_tokens, frozenset((IM_END,)), **fields)


def test_a_reply_comes_in_blocks() -> None:
    model = FakeBlocks(SAYS)
    done = Turns(model).run(asked(return_token_ids=True))
    assert done.text == SAYS.decode() and done.reason == "stop"
    assert [event.text for event in done.events if isinstance(event, TextDelta)] == ["The quic", "k brown ", "fox."]
    assert done.tokens == (*SAYS, IM_END) and done.record.usage.completion_tokens == 20
    assert model.encoded == [[(0, tuple(b"Hello"))], [(5, tuple(SAYS[:8]))], [(13, tuple(SAYS[8:16]))]]
    assert model.passes == [[5]] * 3 + [[13]] * 3 + [[21]] * 3  # the last block is never encoded
    assert [canvas.number for canvas in model.canvases] == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "text", "reason", "n_tokens"),
    [
        ({"max_tokens": 8}, "The quic", "length", 8),
        ({"max_tokens": 11}, "The quick b", "length", 11),
        ({"max_tokens": 1}, "T", "length", 1),
        ({"stop": ("brown",)}, "The quick ", "stop_sequence", 15),
        ({"stop": ("k b",)}, "The quic", "stop_sequence", 11),
    ],
)
def test_what_ends_a_reply_may_be_anywhere_in_a_block(
    fields: dict[str, Any], text: str, reason: str, n_tokens: int
) -> None:
    done = Turns(FakeBlocks(SAYS)).run(asked(**fields))
    assert (done.text, done.reason) == (text, reason)
    assert done.record.usage.completion_tokens == n_tokens


def test_the_context_ends_a_reply_where_no_block_fits() -> None:
    done = Turns(FakeBlocks(SAYS), n_ctx=5 + 17).run(asked())
    assert done.text == SAYS[:16].decode() and done.reason == "length"


def test_replies_share_passes_whatever_their_stage() -> None:
    model = FakeBlocks(lambda prompt: SAYS if prompt[0] == ord("H") else b"Well, no.")
    turns = Turns(model, batch=3)
    first = turns.submit(asked("a"))
    turns.turn(3)
    second = turns.submit(asked("b", b"Bye"))
    done = turns.end(first, second)
    assert [one.text for one in done] == [SAYS.decode(), "Well, no."]
    assert any(len(one) == 2 for one in model.passes)


def test_a_prefix_is_found_again() -> None:
    model = FakeBlocks(SAYS)
    turns = Turns(model, kv_slots=4)
    turns.run(asked("a", b"A system prompt of some length. Hello"))
    done = turns.run(asked("b", b"A system prompt of some length. Hello" + SAYS + b" And?"))
    assert done.cached == 37 + 16 and done.source == "slot"  # the last block was not encoded
    assert model.encoded[-1][0] == (37 + 16 + 4 + 5, tuple(SAYS[:8])) or done.text == SAYS.decode()


def test_wishes_seeds_and_biases_reach_the_canvas() -> None:
    model = FakeBlocks(SAYS)
    wish = Denoising(steps=5, t_min=0.1)
    request = asked(denoising=wish, logit_bias={3: 1.5}, suppressed=frozenset((4,)))
    Turns(model).run(request)
    [first, *_] = model.canvases
    assert first.wish == Denoising(steps=5, t_min=0.1, greedy=True, seed=7)
    assert first.bias == {3: 1.5, 4: -float("inf")}


def test_drafts_are_shown_where_they_are_wanted() -> None:
    done = Turns(FakeBlocks(b"abcdefgh", steps=4)).run(asked(drafts=True, max_tokens=8))
    assert [event.text for event in done.events if isinstance(event, Draft)] == ["ab??????", "abcd????", "abcdef??"]
    assert done.text == "abcdefgh"
    assert not any(isinstance(event, Draft) for event in Turns(FakeBlocks(SAYS)).run(asked()).events)


def test_a_reply_is_called_off_between_two_passes() -> None:
    model = FakeBlocks(SAYS)
    turns = Turns(model)
    generation = turns.submit(asked())
    turns.turn(3)  # the prompt and two passes
    generation.cancel()
    [done] = turns.end(generation)
    assert done.reason == "cancelled" and len(model.passes) == 2
    assert turns.held() == [tuple(b"Hello")]


def test_only_the_guilty_request_ends() -> None:
    def refuse(states: Sequence[State]) -> None:
        if any(state.n_tokens == 3 for state in states):
            raise ValueError("not this one")

    turns = Turns(FakeBlocks(SAYS, before_pass=refuse), batch=4)
    done = turns.end(turns.submit(asked("a")), turns.submit(asked("b", b"Bye")), turns.submit(asked("c", b"Again")))
    assert [one.reason for one in done] == ["stop", "GenerationError", "stop"]
    assert turns.held()  # what was read of the failed one is sound


def test_reasoning_that_has_used_up_its_budget_is_closed_within_a_block() -> None:
    from lmhub.chat.reply import ChannelParser
    from lmhub.family import ThinkMarkers
    from lmhub.testing.fake import END_THINK, FakeTokenizer

    model = FakeBlocks(lambda prompt: b"thinking on and on")
    parser = ChannelParser(FakeTokenizer().token_id, think=ThinkMarkers(), opens_reasoning=True)
    request = asked(
        max_tokens=12, parser=parser, reasoning_budget=3, close_reasoning=(END_THINK,), return_token_ids=True
    )
    done = Turns(model).run(request)
    assert done.tokens[:4] == (*b"thi", END_THINK)
    assert model.encoded[1] == [(5, (*b"thi", END_THINK))]  # the rest of the block is no part of the reply


def test_what_needs_one_token_after_the_other_is_refused() -> None:
    from lmhub.engine import Engine
    from lmhub.testing.fake import FakeTokenizer

    engine = Engine(FakeBlocks(SAYS), tokenizer=FakeTokenizer(), n_ctx=64)
    try:
        for fields in ({"logprobs": 0}, {"processors": (print,)}):
            with pytest.raises(RequestError, match="denoises whole blocks"):
                engine.submit(asked(**fields))
        with pytest.raises(PromptTooLong, match="8 of them for the reply"):
            engine.submit(asked(prompt=b"x" * 57))
        last = list(engine.submit(asked(prompt=b"x" * 56)).events())[-1]
        assert isinstance(last, Finish) and last.usage.completion_tokens == 8
    finally:
        engine.stop()
