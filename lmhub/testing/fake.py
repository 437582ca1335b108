"""A model and a tokenizer that do what a test tells them, one step at a time and without native code.

    model = FakeModel(b"Hello", gate=gate)    # every prompt is answered with "Hello" and <|im_end|>
    gate.arrive()                             # wait until the model is in its first step
    gate.step()                               # let it go on, and wait until it is in the second

Nothing here sleeps: a test waits until the engine has arrived at a step, looks at it, and lets it go on.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lmhub.errors import GenerationError
from lmhub.model import BlockLM, Canvas, CausalLM, Chunk, State, Want
from lmhub.tokenize import Tokenizer, TokenType, Vocabulary
from lmhub.tokenize.pieces import Pieces
from lmhub.types import Denoising

CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
IM_START, IM_END, END_OF_TEXT, THINK, END_THINK, TOOL_CALL, END_TOOL_CALL = range(256, 263)
N_VOCAB = 263
PATIENCE_S = 30.0  # a test that waits longer than this hangs, and fails

Tokens = tuple[int, ...]


class _Bytes:
    """The encoder of FakeTokenizer: one token per byte of UTF-8."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_id(self, text: str) -> int | None:
        return self._ids.get(text)


class FakeTokenizer(Tokenizer):
    """A real tokenizer over a small vocabulary: 0..255 are bytes, then CONTROLS (no text in replies), MARKERS."""

    def __init__(self) -> None:
        names = tuple(chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in range(256))
        tokens = names + CONTROLS + MARKERS
        kinds = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(CONTROLS) + [TokenType.USER_DEFINED] * len(MARKERS)
        vocabulary = Vocabulary(
            model="fake",
            pre="",
            tokens=tokens,
            types=bytes(kinds),
            ids={text: token for token, text in enumerate(tokens)},
            bos_id=None,
            eos_id=IM_END,
            unknown_id=None,
            eog=frozenset((IM_END, END_OF_TEXT)),
            suppressed=frozenset(),
        )
        pieces = [bytes((byte,)) for byte in range(256)] + [b""] * len(CONTROLS) + [text.encode() for text in MARKERS]
        super().__init__(vocabulary, _Bytes(vocabulary.ids), Pieces.of(pieces), add_bos=False)


class Gate:
    """Holds a FakeModel at the start of each step until the test lets it go on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._n_arrived = 0  # steps that have begun
        self._n_seen = 0  # of these, how many the test has waited for
        self._n_allowed = 0  # steps that may go on
        self._open = False

    def arrive(self) -> None:
        """Wait until the model has begun one more step than at the last call."""
        with self._changed:
            self._n_seen += 1
            if not self._changed.wait_for(lambda: self._n_arrived >= self._n_seen, PATIENCE_S):
                raise AssertionError(f"the model did not begin step {self._n_seen}")

    def let(self, n: int = 1) -> None:
        """Let `n` more steps go on."""
        with self._changed:
            self._n_allowed += n
            self._changed.notify_all()

    def step(self) -> None:
        """Let the step that the model is in go on, and wait until it has begun the next one."""
        self.let()
        self.arrive()

    def open(self) -> None:
        """Let everything through from now on."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def hold(self, aborted: Callable[[], bool]) -> None:
        """The model's side: announce a step, and wait until it may go on or is aborted."""
        with self._changed:
            self._n_arrived += 1
            number = self._n_arrived
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open or self._n_allowed >= number or aborted())

    def wake(self) -> None:
        """Have `hold` look at `aborted` again."""
        with self._changed:
            self._changed.notify_all()


class FakeState(State):
    """Remembers the tokens themselves. `n_prompt` is where logits were first asked for: the end of the prompt."""

    layout = "fake"
    row_nbytes = 4

    def __init__(self, n_ctx: int):
        self.capacity = n_ctx
        self.tokens: list[int] = []
        self.n_prompt: int | None = None
        self.is_replying = False  # one row of logits has been asked for
        self.is_verifying = False  # all rows have been asked for since

    @property
    def n_tokens(self) -> int:  # type: ignore[override]
        """Committed positions."""
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        """Four for each position."""
        return 4 * self.capacity

    def truncate(self, n_tokens: int) -> bool:
        """Always possible; the next prompt ends where logits are asked for next, unless only guesses are forgotten."""
        del self.tokens[n_tokens:]
        if not self.is_verifying:
            self.n_prompt, self.is_replying = None, False
        self.is_verifying = False
        return True

    def copy_prefix(self, other: State, n_tokens: int) -> bool:
        """Always possible."""
        assert isinstance(other, FakeState)
        self.tokens, self.n_prompt, self.is_replying = other.tokens[:n_tokens], None, False
        return True

    def read_rows(self, start: int, stop: int) -> NDArray[np.uint8]:
        """The tokens' bytes."""
        return np.array(self.tokens[start:stop], np.int32).view(np.uint8)

    def write_rows(self, rows: NDArray[np.uint8]) -> None:
        """Take the tokens back."""
        self.tokens += rows.view(np.int32).tolist()


@dataclass(frozen=True, slots=True)
class Row:
    """What one chunk of a step looked like: how many tokens its state held, what came on top, what was wanted."""

    n_before: int
    tokens: Tokens
    want: Want


class _Gated:
    """A model whose steps wait at a gate and can be aborted."""

    def __init__(self, gate: Gate | None) -> None:
        self.closed = False
        self._gate, self._aborted = gate, False

    def abort(self) -> None:
        """Make the running step, or else the next one, return early."""
        self._aborted = True
        if self._gate is not None:
            self._gate.wake()

    def close(self) -> None:
        """Only recorded."""
        self.closed = True

    def _begin(self) -> None:
        if self._gate is not None:
            self._gate.hold(lambda: self._aborted)
        if self._aborted:
            self._aborted = False
            raise GenerationError("the step was aborted")


class FakeModel(_Gated, CausalLM):
    """Answers with scripted tokens: its logits leave no doubt, whatever the sampling parameters.

    `reply` is one script for all prompts, or a function of the prompt; behind its end comes `end`. `before_step` sees
    the chunks of every step and may raise to make it fail. `steps` records what ran, `states` every state that was
    made.
    """

    def __init__(
        self,
        reply: Sequence[int] | Callable[[Tokens], Sequence[int]] = (),
        *,
        gate: Gate | None = None,
        before_step: Callable[[Sequence[Chunk]], None] | None = None,
        n_vocab: int = N_VOCAB,
        n_ctx_train: int = 4096,
        end: int = IM_END,
    ):
        self.n_vocab = n_vocab
        self.n_ctx_train = n_ctx_train
        self.steps: list[tuple[Row, ...]] = []
        self.states: list[FakeState] = []
        _Gated.__init__(self, gate)
        self._reply, self._before_step, self._end = reply, before_step, end

    def new_state(self, n_ctx: int) -> FakeState:
        """An empty state, also kept in `states`."""
        self.states.append(FakeState(n_ctx))
        return self.states[-1]

    def forward(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """See CausalLM. Waits at the gate first."""
        self._begin()
        if self._before_step is not None:
            self._before_step(chunks)
        self.steps.append(tuple(Row(chunk.state.n_tokens, tuple(chunk.tokens), chunk.want) for chunk in chunks))
        rows = [row for chunk in chunks for row in self._advance(chunk)]
        return np.array(rows, np.float32).reshape(-1, self.n_vocab)

    def _advance(self, chunk: Chunk) -> list[NDArray[np.float32]]:
        state = chunk.state
        assert isinstance(state, FakeState)
        assert state.n_tokens + len(chunk.tokens) <= state.capacity, "the sequence does not fit its state"
        if IM_START in chunk.tokens:  # of a prompt that goes on from an earlier reply, not one more token of that reply
            state.n_prompt, state.is_replying = None, False
        state.is_verifying = chunk.want == "all" and state.is_replying
        state.is_replying = state.is_replying or chunk.want == "last"
        rows = []
        for place, token in enumerate(chunk.tokens):
            state.tokens.append(token)
            if chunk.want == "all" or (chunk.want == "last" and place == len(chunk.tokens) - 1):
                if chunk.want == "all" and not state.is_verifying:
                    # a prompt that is scored: its end is where the next wish is another one
                    state.n_prompt = state.n_tokens
                state.n_prompt = state.n_prompt or state.n_tokens
                rows.append(self.row(tuple(state.tokens), state.n_prompt))
        return rows

    def row(self, tokens: Tokens, n_prompt: int) -> NDArray[np.float32]:
        """The logits behind `tokens`, float32 (n_vocab,). A subclass may answer differently."""
        script = self._reply(tokens[:n_prompt]) if callable(self._reply) else self._reply
        index = len(tokens) - n_prompt
        row = np.full(self.n_vocab, -1e9, np.float32)
        row[script[index] if index < len(script) else self._end] = 10.0
        return row


class NoiseModel(FakeModel):
    """Logits are noise that depends on the sequence and on nothing else, as row invariance demands."""

    def row(self, tokens: Tokens, n_prompt: int) -> NDArray[np.float32]:
        """Normally distributed, seeded by the tokens."""
        seed = zlib.crc32(np.asarray(tokens, np.int32).tobytes())
        return np.random.default_rng(seed).normal(0.0, 3.0, self.n_vocab).astype(np.float32)


class FakeCanvas(Canvas):
    """Settles after `wish.steps` passes. Remembers what it was made of."""

    def __init__(self, wish: Denoising, number: int, bias: Mapping[int, float], size: int):
        self.wish, self.number, self.bias = wish, number, dict(bias)
        self.draft = np.full(size, ord("?"), np.int32)


class FakeBlocks(_Gated, BlockLM):
    """A diffusion model that answers with scripted tokens, a block at a time, and `end` behind them.

    After the k-th of n passes the first k/n of a block are right and the rest are question marks. `reply` is one script
    for all prompts, or a function of the prompt, which ends where a canvas is first denoised. `encoded` and `passes`
    record what ran: (n_before, tokens) of every chunk, and the states' lengths. `before_pass` may raise.
    """

    def __init__(
        self,
        reply: Sequence[int] | Callable[[Tokens], Sequence[int]] = (),
        *,
        size: int = 8,
        steps: int = 3,
        gate: Gate | None = None,
        before_pass: Callable[[Sequence[State]], None] | None = None,
        end: int = IM_END,
    ):
        self.n_vocab, self.n_ctx_train, self.block_size = N_VOCAB, 4096, size
        self.denoising = Denoising(steps=steps)
        self.encoded: list[list[tuple[int, Tokens]]] = []
        self.passes: list[list[int]] = []
        self.canvases: list[FakeCanvas] = []
        _Gated.__init__(self, gate)
        self._reply, self._before_pass, self._end = reply, before_pass, end
        self._prompts: dict[int, int] = {}  # the prompt's length, by state

    def new_state(self, n_ctx: int) -> FakeState:
        """An empty state."""
        return FakeState(n_ctx)

    def encode(self, chunks: Sequence[Chunk]) -> None:
        """See BlockLM."""
        self._begin()
        self.encoded.append([(chunk.state.n_tokens, tuple(chunk.tokens)) for chunk in chunks])
        for chunk in chunks:
            assert isinstance(chunk.state, FakeState)
            assert chunk.state.n_tokens + len(chunk.tokens) <= chunk.state.capacity
            chunk.state.tokens += chunk.tokens

    def canvas(self, wish: Denoising, number: int, bias: Mapping[int, float]) -> FakeCanvas:
        """See BlockLM; kept in `canvases`."""
        self.canvases.append(FakeCanvas(wish, number, bias, self.block_size))
        return self.canvases[-1]

    def denoise(self, work: Sequence[tuple[State, Canvas]]) -> None:
        """See BlockLM. Waits at the gate first."""
        self._begin()
        if self._before_pass is not None:
            self._before_pass([state for state, _ in work])
        self.passes.append([state.n_tokens for state, _ in work])
        for state, canvas in work:
            assert isinstance(state, FakeState) and isinstance(canvas, FakeCanvas)
            assert not canvas.is_settled and state.n_tokens + self.block_size <= state.capacity
            if canvas.number == 0:
                self._prompts[id(state)] = state.n_tokens
            canvas.n_passes += 1
            right = self._block(state, canvas.number)
            n_right = len(right) * canvas.n_passes // canvas.wish.steps
            canvas.draft = np.array([*right[:n_right], *[ord("?")] * (len(right) - n_right)], np.int32)
            canvas.is_settled = canvas.n_passes == canvas.wish.steps

    def _block(self, state: FakeState, number: int) -> list[int]:
        n_prompt = self._prompts[id(state)]
        script = self._reply(tuple(state.tokens[:n_prompt])) if callable(self._reply) else self._reply
        at = number * self.block_size
        return [*script, *[self._end] * (at + self.block_size)][at : at + self.block_size]
