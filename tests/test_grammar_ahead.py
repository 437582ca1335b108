"""What a constraint knows ahead: forced tokens are what masks leave, and accepted ones are what masks allow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmhub.errors import GenerationError
from lmhub.gguf import open_gguf
from lmhub.grammar import GrammarEngine
from lmhub.guide import GAP, Thinking
from lmhub.testing.fake import END_THINK, END_TOOL_CALL, IM_END, THINK, TOOL_CALL, FakeTokenizer
from lmhub.testing.tiny import tiny_gguf
from lmhub.tokenize import Tokenizer, load_tokenizer
from lmhub.types import Constraint, GrammarSpec

FAKE = FakeTokenizer()
OPENERS = frozenset((TOOL_CALL,))
Make = Callable[[], Constraint]


def schema(value: Any) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(value), "p")


PERSON = schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 4},
            "kind": {"enum": ["the other one", "the others", "none"]},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            "age": {"type": "integer"},
        },
        "required": ["name", "kind", "tags", "age"],
        "additionalProperties": False,
    }
)
SPECS = [
    PERSON,
    GrammarSpec("regex", r"(there|the rest)+ in (a|b){2}", "p"),
    GrammarSpec("choice", '["in the other", "in the rest", "on"]', "p"),
    GrammarSpec("lark", 'start: "on the " /[0-9]+/ " hereafter" | "y"', "p"),
    schema({}),
]
CALL = GrammarSpec("lark", f'start: "\\n{{\\"name\\": \\"" ("x" | "yes") "\\"}}\\n" <[{END_TOOL_CALL}]>', "tools")


@pytest.fixture(scope="module", params=["bytes", "merges"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    if request.param == "bytes":
        return FAKE
    path: Path = tiny_gguf("llama", tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_vocab=300)
    with open_gguf(path) as file:
        return load_tokenizer(file.metadata)


@pytest.fixture(scope="module")
def engine() -> GrammarEngine:
    return GrammarEngine(FAKE, 300, FAKE.eog)


def allowed(constraint: Constraint, n_vocab: int = 300) -> set[int]:
    mask = constraint.mask()
    if mask is None:
        return set(range(n_vocab))
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def walked(constraint: Constraint, tokens: Sequence[int]) -> int:
    """How many of `tokens` the masks let through, one after the other."""
    for place, token in enumerate(tokens):
        if token not in allowed(constraint):
            return place
        constraint.commit(token)
    return len(tokens)


def replayed(make: Make, done: Sequence[int]) -> Constraint:
    constraint = make()
    for token in done:
        constraint.commit(token)
    return constraint


def check_at(make: Make, done: Sequence[int], drafts: Sequence[Sequence[int]], exact: bool) -> Constraint:
    """At one place of a reply: what is forced and accepted agrees with the masks there, and nothing has moved."""
    constraint = replayed(make, done)
    before = allowed(constraint)
    forced = tuple(constraint.forced())
    twin = replayed(make, done)
    for token in forced:
        assert allowed(twin) == {token}
        twin.commit(token)
    for draft in [*drafts, forced]:
        n = constraint.accepts(draft)
        real = walked(replayed(make, done), draft)
        assert n == real if exact else n <= real, (done, draft)
    assert constraint.accepts(forced) == len(forced)
    assert allowed(constraint) == before
    return constraint


def drafts_of(draw: np.random.Generator, make: Make, done: Sequence[int], eog: frozenset[int]) -> list[list[int]]:
    """A run that masks allow, the same with one token changed, and noise."""
    twin, run = replayed(make, done), []
    for _ in range(6):
        ids = sorted(allowed(twin) - eog)
        if not ids:
            break
        run.append(int(draw.choice(ids)))
        twin.commit(run[-1])
    changed = list(run)
    if changed:
        changed[int(draw.integers(len(changed)))] = int(draw.integers(300))
    return [run, changed, draw.integers(0, 300, 4).tolist(), []]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
def test_grammars_know_ahead(tokenizer: Tokenizer, spec: GrammarSpec) -> None:
    grammars = GrammarEngine(tokenizer, 300, tokenizer.eog)
    n_forced = 0
    for seed in range(3):
        draw = np.random.default_rng(seed)
        done: list[int] = []
        for _ in range(40):
            make = lambda: grammars.constraint(spec)  # noqa: E731
            constraint = check_at(make, done, drafts_of(draw, make, done, tokenizer.eog), exact=True)
            n_forced += len(constraint.forced())
            token = int(draw.choice(sorted(allowed(constraint))))
            if token in tokenizer.eog:
                break
            done.append(token)
    assert n_forced or spec.source == "{}"


def test_forced_text_is_spelled_with_the_tokens_of_a_model(tmp_path: Path) -> None:
    with open_gguf(tiny_gguf("llama", tmp_path / "tiny.gguf", n_vocab=300)) as file:
        tokenizer = load_tokenizer(file.metadata)
    grammars = GrammarEngine(tokenizer, 300, tokenizer.eog)
    constraint = grammars.constraint(GrammarSpec("regex", "x the on(a|b)", "p"))
    forced = list(constraint.forced())
    assert forced and len(forced) < len("x the on")
    assert "x the on".startswith(tokenizer.decode(forced))


def test_the_end_is_not_forced_and_may_come(engine: GrammarEngine) -> None:
    constraint = engine.constraint(GrammarSpec("regex", "ab", "p"))
    assert tuple(constraint.forced()) == tuple(b"ab")
    assert constraint.accepts([*b"ab", ord("c")]) == 2
    for token in b"ab":
        constraint.commit(token)
    assert not constraint.forced()
    assert constraint.accepts([ord("c")]) == 0
    constraint.commit(IM_END)
    assert not constraint.forced()
    assert constraint.accepts(list(b"ab")) == 0


@pytest.mark.parametrize("strange", [300, 1 << 20, -1])
def test_tokens_that_do_not_exist_do_no_harm(engine: GrammarEngine, strange: int) -> None:
    constraint = engine.constraint(GrammarSpec("regex", "abc", "p"))
    assert constraint.accepts([ord("a"), strange, ord("b")]) == 1
    for token in b"abc":
        constraint.commit(token)


def test_a_failed_grammar_knows_nothing_ahead(engine: GrammarEngine) -> None:
    constraint = engine.constraint(GrammarSpec("regex", "abc", "p"))
    with pytest.raises(GenerationError):
        constraint.commit(ord("x"))
    assert not constraint.forced()
    assert constraint.accepts(list(b"abc")) == 0


DELIMITED, OPENED = Thinking(THINK, END_THINK, False), Thinking(THINK, END_THINK, True)
GUIDES: dict[str, dict[str, Any]] = {
    "free with calls": {"spec": None, "calls": CALL, "openers": OPENERS},
    "grammar or calls": {"spec": PERSON, "calls": CALL, "openers": OPENERS},
    "reasoning, then a grammar": {"spec": PERSON, "thinking": DELIMITED},
    "open reasoning, then either": {"spec": PERSON, "thinking": OPENED, "calls": CALL, "openers": OPENERS},
}


@pytest.mark.parametrize("name", GUIDES)
def test_guides_never_accept_what_masks_forbid(engine: GrammarEngine, name: str) -> None:
    """Random walks through all phases, with the tokens that change phases made likely."""
    marks = [THINK, END_THINK, TOOL_CALL, END_TOOL_CALL, ord("\n"), IM_END, ord("{")]
    seen = 0
    for seed in range(12):
        draw = np.random.default_rng(seed)
        done: list[int] = []
        for _ in range(25):
            make = lambda: engine.constraint(**GUIDES[name])  # noqa: E731
            drafts = drafts_of(draw, make, done, FAKE.eog)
            drafts += [[int(draw.choice(marks)), *draft] for draft in drafts]
            drafts += [[ord("\n")] * n + list(b'{"name"') for n in range(GAP + 2)]
            drafts += [[int(token) for token in draw.choice(marks, 5)] for _ in range(3)]
            constraint = check_at(make, done, drafts, exact=False)
            ids = sorted(allowed(constraint, 263) - FAKE.eog)
            if not ids:
                break
            favoured = [token for token in marks if token in ids]
            token = int(draw.choice(favoured if favoured and draw.random() < 0.5 else ids))
            seen += len(constraint.forced())
            done.append(token)
    assert seen


@pytest.mark.parametrize(
    ("guide", "done", "draft", "n"),
    [
        ("free with calls", "", "any text", 8),
        ("free with calls", "", 'a<tool_call>\n{"name', 2),
        ("free with calls", "<tool_call>", '\n{"name": "x"}\n</tool_call>more', 16),
        ("grammar or calls", "", '{"name": "', 10),
        ("grammar or calls", "", "\n{", 0),
        ("reasoning, then a grammar", "", "<think>", 1),
        ("reasoning, then a grammar", "", '{"name"', 7),
        ("reasoning, then a grammar", "<think>", "so {</think>\n", 5),
        ("reasoning, then a grammar", "<think>", "so<|im_end|>", 2),
        ("reasoning, then a grammar", "<think></think>", '\n\n{"name', 8),
        ("reasoning, then a grammar", "<think></think>", "\n\n\n{", 2),
        ("reasoning, then a grammar", "<think></think>", "<think>", 0),
        ("open reasoning, then either", "", "a<tool_call>", 2),
        ("open reasoning, then either", '</think>\n<tool_call>\n{"name": "x"}\n</tool_call>', "\n<tool_call>\n", 2),
        ("open reasoning, then either", '</think>\n<tool_call>\n{"name": "x"}\n</tool_call>', "{", 0),
        ("open reasoning, then either", '</think>\n<tool_call>\n{"name": "x"}\n</tool_call>', "<|im_end|>", 1),
    ],
)
def test_how_far_guides_look(engine: GrammarEngine, guide: str, done: str, draft: str, n: int) -> None:
    make = lambda: engine.constraint(**GUIDES[guide])  # noqa: E731
    constraint = replayed(make, FAKE.encode(done, special=True))
    assert constraint.accepts(FAKE.encode(draft, special=True)) == n


def test_a_call_is_forced_from_its_opener_on(engine: GrammarEngine) -> None:
    constraint = engine.constraint(None, calls=CALL, openers=OPENERS)
    assert not constraint.forced()
    constraint.commit(TOOL_CALL)
    assert bytes(constraint.forced()) == b'\n{"name": "'
    for token in b'\n{"name": "x':
        constraint.commit(token)
    assert tuple(constraint.forced()) == (*b'"}\n', END_TOOL_CALL)
