"""`lmhub run MODEL [PROMPT]`: a conversation in the terminal, or one answer. Uses the Python API; knows no HTTP.

In a conversation Ctrl-C stops the reply and keeps what came of it, Ctrl-D or /exit ends, /clear forgets.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmhub.cli.options import ENGINE, Ctx, KVCacheDir, KVType, ModelFile, Spec, Threads
from lmhub.settings import EngineSettings

if TYPE_CHECKING:
    from rich.console import Console

    from lmhub.api import Model
    from lmhub.types import Message


def run(
    ctx: typer.Context,
    model: ModelFile,
    prompt: Annotated[str | None, typer.Argument(help="Answer this and exit; else stdin, or a conversation.")] = None,
    *,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 = always the likeliest token.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same seed gives the same reply.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest reply, in tokens.")] = None,
    think: Annotated[bool | None, typer.Option("--think/--no-think", help="Reason before answering, or not.")] = None,
    context: Ctx = ENGINE.ctx,
    threads: Threads = ENGINE.threads,
    kv_dtype: KVType = "f16",
    kv_cache_dir: KVCacheDir = ENGINE.kv_cache_dir,
    spec: Spec = ENGINE.spec,
) -> None:
    """Chat with a model in the terminal, or answer one prompt."""
    from lmhub.api import Model
    from lmhub.cli.loading import load
    from lmhub.cli.text import console
    from lmhub.errors import RequestError
    from lmhub.hub import Hub

    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise RequestError("stdin is empty; give a prompt as an argument, through a pipe, or in a terminal")
    hub = Hub(ctx.obj)
    settings = EngineSettings(
        ctx=context, threads=threads, batch=1, kv_dtype=kv_dtype, kv_cache_dir=kv_cache_dir, spec=spec
    )
    [served] = load(hub, [model], settings)
    options = {"temperature": temperature, "seed": seed, "max_tokens": max_tokens, "reasoning": think}
    with Model(hub, served, owns_hub=True) as loaded:
        chat = Chat(loaded, console(), system, options)
        if prompt is None:
            chat.converse()
        else:
            chat.answer(prompt)


class Chat:
    """The conversation so far, and the terminal in which it is held."""

    def __init__(self, model: Model, out: Console, system: str | None, options: dict[str, Any]) -> None:
        from lmhub.types import Message, Text

        self._model, self._out, self._options = model, out, options
        self._start: list[Message] = [Message("system", (Text(system),))] if system else []
        self._messages = list(self._start)

    def converse(self) -> None:
        """Read, answer, repeat, until the input ends."""
        from contextlib import suppress

        from lmhub.errors import LmhubError

        with suppress(ImportError):  # where there is one, it gives input() line editing and history
            import readline  # noqa: F401
        self._out.print(f"{self._model.id}. /clear forgets the conversation, /exit or Ctrl-D ends.", style="dim")
        while True:
            try:
                said = input("> ").strip()
            except EOFError:
                self._out.print()
                return
            except KeyboardInterrupt:  # an unfinished line is dropped, as in a shell
                self._out.print()
                continue
            if said == "/exit":
                return
            if said == "/clear":
                self._messages = list(self._start)
                continue
            if not said:
                continue
            try:
                self.answer(said, interruptible=True)
            except LmhubError as error:
                self._messages.pop()
                self._out.print(f"{error}", style="red")

    def answer(self, prompt: str, *, interruptible: bool = False) -> None:
        """Append `prompt`, print the reply as it comes, and remember it. Raises LmhubError."""
        from lmhub.types import Message, Text

        self._messages.append(Message("user", (Text(prompt),)))
        said: list[str] = []
        events = self._model.stream(self._messages, **self._options)
        try:
            self._print(events, said)
        except KeyboardInterrupt:
            if not interruptible:
                raise
            events.close()
            self._out.print(" [stopped]", style="dim")
        self._messages.append(Message("assistant", (Text("".join(said)),)))

    def _print(self, events: Any, said: list[str]) -> None:
        """Print every event; the text goes to `said` as well. Reasoning is dimmed, and left out off a terminal."""
        from lmhub.types import Finish, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart

        thinking = False
        for event in events:
            match event:
                case ReasoningDelta(text):
                    thinking = True
                    if self._out.is_terminal:
                        self._out.print(printable(text), style="dim italic", end="")
                case TextDelta(text):
                    if thinking and self._out.is_terminal:
                        self._out.print()
                    thinking = False
                    said.append(text)
                    self._write(text)
                case ToolCallStart(_, _, name):
                    self._write(f"\n[calls {name} ")
                case ToolCallDelta(_, fragment):
                    self._write(fragment)
                case Finish(reason):
                    self._write("\n")
                    if reason == "length" and self._out.is_terminal:
                        self._out.print("[cut: the context or --max-tokens is used up]", style="dim")

    def _write(self, text: str) -> None:
        sys.stdout.write(printable(text) if self._out.is_terminal else text)
        sys.stdout.flush()


def printable(text: str) -> str:
    """`text` without control characters but newline and tab: a model must not be able to drive the terminal."""
    return "".join(char for char in text if char in "\n\t" or char.isprintable())
