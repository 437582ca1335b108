"""Compiles grammars for one model's vocabulary (with llguidance) and makes the constraints that hold replies to them.

Compiling happens where a request is prepared, never on the engine's thread; what was compiled, or refused, is
remembered. Knows nothing of chats: what a tool call looks like comes in as a grammar.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np

from lmhub.chat.schemas import located, too_large
from lmhub.chat.tidy import tidied
from lmhub.errors import GenerationError, NotSupported, QueueFull, RequestError
from lmhub.guide import Alphabet, Bits, Guide, Thinking
from lmhub.tokenize import Tokenizer
from lmhub.types import Constraint, GrammarSpec

MAX_SOURCE = 1 << 18  # bytes of UTF-8
MAX_GRAMMAR = 20_000  # llguidance's measure of size; larger ones take seconds to compile
MAX_ROW = 8_000  # ways to go on at one place: 1000 optional properties have 4000
CACHED = 64  # grammars per model
COMPILING = 2  # at once; a further one waits
WAIT_S = 5.0

# Between JSON tokens. llguidance's own default is unbounded, and small models loop in blanks.
WHITESPACE = r"[ \x0A\x0D\x09]{1,16}"
_LETTERS = "[a-zA-Z ]{1,20}"  # a set of tokens whose masks are worth preparing beside the usual ones


class GrammarEngine:
    """The grammars of one model. May be used from several threads; the first constraint takes half a second or so."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int, eog: frozenset[int]):
        """`n_vocab` is the model's, with rows for padding; `eog` are the ids that may end a complete text."""
        self._tokenizer, self._n_vocab, self._eog = tokenizer, n_vocab, eog
        self._lock = threading.Lock()  # guards the two below, and the base matchers while they are copied
        self._compiled: OrderedDict[GrammarSpec, Future[Any]] = OrderedDict()
        self._building = threading.Lock()
        self._busy = threading.BoundedSemaphore(COMPILING)

    @staticmethod
    def is_available() -> bool:
        """Whether grammars can be compiled here at all."""
        return find_spec("llguidance") is not None

    def constraint(
        self,
        spec: GrammarSpec | None,
        *,
        thinking: Thinking | None = None,
        calls: GrammarSpec | None = None,
        openers: frozenset[int] = frozenset(),
    ) -> Constraint:
        """A new constraint for one reply, which holds it to `spec` and each call that an opener begins to `calls`.

        Blocks while a grammar is compiled for the first time. Raises RequestError for a grammar that is invalid, too
        large or not supported, naming the field that it came from; NotSupported without llguidance.
        """
        if not self.is_available():
            param = (spec or calls or GrammarSpec("lark", "", "grammar")).param
            raise NotSupported(
                f"{param} needs the grammar engine, which is not installed here; `pip install llguidance`", param
            )
        of_calls = None if calls is None else self._base(calls)  # kept: nothing is compiled while the reply runs
        return Guide(
            self._alphabet,
            None if spec is None else self._copy(self._base(spec)),
            calls=None if of_calls is None else lambda: self._copy(of_calls),
            openers=openers,
            thinking=thinking,
        )

    # --- vocabulary --------------------------------------------------------------------------------------------------

    @cached_property
    def _pieces(self) -> list[bytes]:
        """What each id adds to a text; nothing for padding, which no grammar then allows."""
        known = [self._tokenizer.piece(id) for id in range(self._tokenizer.n_vocab)]
        return known + [b""] * (self._n_vocab - len(known))

    @cached_property
    def _alphabet(self) -> Alphabet:
        return Alphabet(self._pieces, self._eog)

    def _vocabulary(self) -> Any:
        """llguidance's tokenizer, built once. Its construction holds the interpreter lock."""
        with self._building:
            return self._ll_tokenizer

    @cached_property
    def _ll_tokenizer(self) -> Any:
        from llguidance import LLTokenizer, TokenizerWrapper

        slices = LLTokenizer.general_slices()
        slices.insert(1, _LETTERS)
        eos = sorted(self._eog) or [0]
        return LLTokenizer(
            TokenizerWrapper(_Tokens(self._tokenizer, self._pieces, eos[0])), eos_token=eos, slices=slices
        )

    # --- grammars ----------------------------------------------------------------------------------------------------

    def _copy(self, base: Any) -> _Matcher:
        with self._lock:
            return _Matcher(base.deep_copy(), self._n_vocab)

    def _base(self, spec: GrammarSpec) -> Any:
        """The matcher of `spec` that is never advanced. Whoever asks for a grammar first compiles it, others wait."""
        with self._lock:
            found = self._compiled.get(spec)
            mine = found is None
            future: Future[Any] = found or Future()
            self._compiled[spec] = future
            self._compiled.move_to_end(spec)
            while len(self._compiled) > CACHED:
                self._compiled.popitem(last=False)
        if mine:
            try:
                future.set_result(self._compile(spec))
            except BaseException as error:
                future.set_exception(error)
                if not isinstance(error, RequestError):  # the next one may be luckier
                    with self._lock:
                        self._compiled.pop(spec, None)
        return future.result()

    def _compile(self, spec: GrammarSpec) -> Any:
        from llguidance import LLMatcher, LLParserLimits

        if len(spec.source.encode("utf-8", "replace")) > MAX_SOURCE:
            raise _refused(spec, f"it is longer than {MAX_SOURCE >> 10} KiB")
        if not self._busy.acquire(timeout=WAIT_S):
            raise QueueFull("other grammars are being compiled; please try again in 5s.", 5)
        try:
            grammar, schema = _grammar(spec)
            matcher = LLMatcher(
                self._vocabulary(),
                grammar,
                log_level=0,
                limits=LLParserLimits(max_grammar_size=MAX_GRAMMAR, max_items_in_row=MAX_ROW),
            )
            if matcher.is_error():
                said = told(matcher.get_error())
                raise _refused(spec, said if schema is None else located(schema, said))
            try:
                self._copy(matcher).mask()  # a schema that only refers to itself compiles, and has no beginning
            except GenerationError:
                raise _refused(spec, "no reply can match it") from None
            return matcher
        finally:
            self._busy.release()


class _Matcher:
    """A Matcher over llguidance's."""

    def __init__(self, matcher: Any, n_vocab: int):
        self._matcher, self._n_vocab = matcher, n_vocab
        self._mask: Bits = np.zeros(-(-n_vocab // 32), np.uint32)

    def mask(self) -> Bits:
        """See Matcher."""
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        if self._matcher.is_error():
            raise _failed(self._matcher.get_error())
        return self._mask

    def commit(self, token: int) -> None:
        """See Matcher."""
        if not self._matcher.consume_token(token):
            raise _failed(self._matcher.get_error() or "the reply had ended")

    def forced(self) -> Sequence[int]:
        """See Matcher. Not the end of the reply, which has several ids."""
        forced: Sequence[int] = self._matcher.compute_ff_tokens()
        return forced

    def accepts(self, tokens: Sequence[int]) -> int:
        """See Matcher."""
        known = next((at for at, token in enumerate(tokens) if not 0 <= token < self._n_vocab), len(tokens))
        return int(self._matcher.validate_tokens(list(tokens[:known])))  # an id out of range would break the matcher

    @property
    def is_complete(self) -> bool:
        """See Matcher."""
        return bool(self._matcher.is_stopped())


class _Tokens:
    """A Tokenizer as llguidance wants to see it: special tokens are named, not spelled, and texts have no BOS."""

    def __init__(self, tokenizer: Tokenizer, pieces: list[bytes], eos: int):
        marks = {id for text in tokenizer.specials if (id := tokenizer.token_id(text)) is not None}
        self.eos_token_id = eos
        self.bos_token_id = None
        self.tokens = [tokenizer.token_text(id).encode() if id in marks else piece for id, piece in enumerate(pieces)]
        self.special_token_ids = sorted(marks)
        self._tokenizer, self._pieces = tokenizer, pieces

    def __call__(self, text: bytes | str) -> list[int]:
        """The ids of text that a grammar leaves no choice about; none where normalisation changes the text."""
        read = text.decode() if isinstance(text, bytes) else text
        ids = self._tokenizer.encode_continuation(read)
        return ids if b"".join(self._pieces[id] for id in ids) == read.encode() else []


def _grammar(spec: GrammarSpec) -> tuple[str, Any]:
    """llguidance's form of `spec`, and its JSON schema where it has one. Raises RequestError."""
    from llguidance import LLMatcher, grammar_from

    schema = _schema(spec) if spec.kind == "json_schema" else None
    try:
        if schema is not None:
            text = json.dumps(schema, ensure_ascii=False)
            return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": WHITESPACE}), schema
        if spec.kind == "choice":
            return grammar_from("lark", _choice(spec)), None
        return grammar_from(spec.kind, spec.source), None
    except ValueError as error:  # a number that no float holds; GBNF, which is translated on the way
        raise _refused(spec, told(str(error))) from None


def _schema(spec: GrammarSpec) -> Any:
    try:
        schema = json.loads(spec.source)
    except RecursionError:
        raise _refused(spec, "it is nested too deeply") from None
    except ValueError as error:
        raise _refused(spec, f"it is not JSON ({error})") from None
    if schema is True:
        schema = {}
    if schema is False:
        raise _refused(spec, "the schema `false` admits no reply")
    if not isinstance(schema, dict):
        raise _refused(spec, "a schema is an object or true")
    if (limit := too_large(schema)) is not None:
        raise _refused(spec, limit)
    return tidied(schema)


def _choice(spec: GrammarSpec) -> str:
    try:
        choices = json.loads(spec.source)
    except (ValueError, RecursionError):
        choices = None
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
        raise _refused(spec, "it must be a list of strings that are not empty")
    return "start: " + " | ".join(json.dumps(one, ensure_ascii=False) for one in choices)


def _refused(spec: GrammarSpec, why: str) -> RequestError:
    what = "JSON schema" if spec.kind == "json_schema" else "list of choices" if spec.kind == "choice" else spec.kind
    return RequestError(f"the {what} in {spec.param} cannot be used: {why}", spec.param)


def _failed(message: str) -> GenerationError:
    error = GenerationError(f"the grammar of this reply failed: {told(message)}")
    error.code = "grammar_failed"
    return error


def told(message: str) -> str:
    """What a message of llguidance says, in one line: no excerpts of the grammar, no state of its parser."""
    lines = message.splitlines() or ["it does not compile"]
    first = re.sub(r"^at (\d+)\((\d+)\): ", r"line \1, column \2: ", lines[0])
    reason = next((line.removeprefix("error: ") for line in lines[1:] if line.startswith("error: ")), None)
    return (f"{first} {reason}" if reason else first)[:300]
