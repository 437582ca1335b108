"""The conversation of `lmhub run`: messages, commands, and what Ctrl-C and Ctrl-D mean. Knows no key and no colour.

Ctrl-C stops a reply and keeps what came of it; at the prompt it drops the line, and twice at an empty one it leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmhub.cli.answer import Answer, took
from lmhub.errors import LmhubError, RequestError
from lmhub.types import Event, Message, Reasoning, Text

if TYPE_CHECKING:
    from rich.console import Console

    from lmhub.api import Model

_WHOLE = ("top_k", "seed", "max_tokens", "repeat_last_n")
_NAMES = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
          "repeat_last_n", "seed", "max_tokens")  # fmt: skip


class Leave(Exception):
    """The conversation is over."""


class Chat:
    """One conversation with `model`. `options` are those of `Model.stream`; `think` is None for the model's default."""

    def __init__(
        self,
        model: Model,
        out: Console,
        *,
        system: str | None = None,
        think: bool | None = None,
        options: dict[str, float | int] | None = None,
    ) -> None:
        self._model, self._out = model, out
        self._system, self._think = system or "", think
        self._options = dict(options or {})
        self._messages: list[Message] = []

    # --- messages ----------------------------------------------------------------------------------------------------

    def add(self, text: str) -> None:
        """Append what the user says."""
        self._messages.append(Message("user", (Text(text),)))

    def reply(self) -> Generator[Event, None, None]:
        """The reply to the conversation so far. Raises LmhubError."""
        start = [Message("system", (Text(self._system),))] if self._system else []
        return self._model.stream([*start, *self._messages], reasoning=self._think, **self._options)  # type: ignore[arg-type]

    def answer(self) -> None:
        """Show the reply and remember it. Ctrl-C stops it; a failure takes the user's message back."""
        from lmhub.cli.prompt import no_echo

        answer, finish = Answer(self._out), None
        try:
            events = self.reply()
            with no_echo():
                try:
                    finish = answer.show(events)
                except KeyboardInterrupt:
                    events.close()
                    answer.end()
                    self._note("[stopped]")
        except LmhubError as error:
            self._messages.pop()
            self._out.print(f"{error}", style="red")
            return
        parts = (Reasoning(answer.reasoning), Text(answer.text)) if answer.reasoning else (Text(answer.text),)
        self._messages.append(Message("assistant", parts))
        if finish is not None:
            self._note(took(finish))

    # --- the loop ----------------------------------------------------------------------------------------------------

    def converse(self) -> None:
        """Read, answer, repeat, until the user leaves."""
        from lmhub.cli.prompt import reader

        read = reader([f"/{name}" for name in COMMANDS])
        self._note(f"{self._model.id}. /help lists the commands, Ctrl-D or /exit leaves.")
        n_interrupts = 0
        while True:
            try:
                typed = read()
                n_interrupts = 0
                if typed.startswith("/"):
                    self._command(typed.strip())
                elif typed.strip():
                    self.add(typed.strip())
                    self.answer()
            except (EOFError, Leave):
                return
            except KeyboardInterrupt as interrupt:  # its argument is the line that was dropped, if any
                n_interrupts = 0 if any(interrupt.args) else n_interrupts + 1
                if n_interrupts == 2:
                    return
                if n_interrupts:
                    self._note("Ctrl-C again, or Ctrl-D, leaves.")

    def _command(self, said: str) -> None:
        name, _, rest = said[1:].partition(" ")
        if name not in COMMANDS:
            self._note(f"There is no command /{name}; /help lists them. A message may begin with a blank and then /.")
            return
        try:
            COMMANDS[name][1](self, rest.strip())
        except LmhubError as error:
            self._out.print(f"{error}", style="red")

    def _note(self, text: str) -> None:
        if self._out.is_terminal:
            self._out.print(text, style="dim")

    # --- commands ----------------------------------------------------------------------------------------------------

    def _help(self, rest: str) -> None:
        width = max(len(usage) for usage, _, _ in COMMANDS.values())
        for usage, _, doc in COMMANDS.values():
            self._note(f"{usage:<{width}}  {doc}")
        self._note("Enter sends, Alt+Enter or Ctrl-J begins a new line, up and down go through what you said before.")
        self._note("Ctrl-C stops an answer; twice at the empty prompt, or Ctrl-D, leaves.")

    def _clear(self, rest: str) -> None:
        self._messages.clear()
        self._note("Forgotten.")

    def _set_system(self, rest: str) -> None:
        self._system = rest
        self._note("The system message is set." if rest else "There is no system message any more.")

    def _set_think(self, rest: str) -> None:
        if rest not in ("on", "off"):
            raise RequestError(f"/think takes on or off, not {rest!r}" if rest else "/think takes on or off")
        self._think = rest == "on"
        self._note("Answers begin with reasoning." if self._think else "Answers come without reasoning.")

    def _set(self, rest: str) -> None:
        from lmhub.plain import budget_from, sampling_from

        name, _, value = rest.partition(" ")
        if not name:
            told = [f"{name} {self._options.get(name, 'default')}" for name in _NAMES]
            self._note(", ".join(told))
            return
        if name not in _NAMES:
            raise RequestError(f"/set knows {', '.join(_NAMES)}, not {name!r}")
        if value.strip() in ("", "default"):
            self._options.pop(name, None)
            self._note(f"{name} is the model's default.")
            return
        number = _number(name, value.strip())
        if name == "max_tokens":
            budget_from(number)  # type: ignore[arg-type]
        else:
            sampling_from({name: number})
        self._options[name] = number
        self._note(f"{name} is {number}.")

    def _retry(self, rest: str) -> None:
        while self._messages and self._messages[-1].role == "assistant":
            self._messages.pop()
        if not self._messages:
            raise RequestError("there is nothing to retry; say something first")
        self.answer()

    def _save(self, rest: str) -> None:
        if not rest:
            raise RequestError("/save needs the name of a file; .json saves messages, anything else Markdown")
        path = Path(rest).expanduser()
        text = _as_json(self._messages, self._system) if path.suffix == ".json" else _as_markdown(self._messages)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise RequestError(f"cannot save to {rest}: {error.strerror}; choose another name") from None
        self._note(f"Saved to {rest}.")

    def _leave(self, rest: str) -> None:
        raise Leave


COMMANDS: dict[str, tuple[str, Callable[[Chat, str], None], str]] = {
    "help": ("/help", Chat._help, "show this list"),
    "clear": ("/clear", Chat._clear, "forget the conversation"),
    "system": ("/system TEXT", Chat._set_system, "set the system message; nothing removes it"),
    "think": ("/think on|off", Chat._set_think, "reason before answering, or not"),
    "set": ("/set NAME VALUE", Chat._set, "temperature, top_p, seed, max_tokens, ...; default resets; alone shows all"),
    "retry": ("/retry", Chat._retry, "answer the last message again"),
    "save": ("/save FILE", Chat._save, "write the conversation, as Markdown or (.json) as messages"),
    "exit": ("/exit", Chat._leave, "leave"),
}


def _number(name: str, value: str) -> float | int:
    try:
        return int(value) if name in _WHOLE else float(value)
    except ValueError:
        kind = "a whole number" if name in _WHOLE else "a number"
        raise RequestError(f"{name} must be {kind}, not {value!r}") from None


def _as_markdown(messages: list[Message]) -> str:
    titles = {"user": "You", "assistant": "Answer"}
    return "\n".join(f"## {titles[message.role]}\n\n{message.text.strip()}\n" for message in messages)


def _as_json(messages: list[Message], system: str) -> str:
    said: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    said += [{"role": message.role, "content": message.text} for message in messages]
    return json.dumps(said, ensure_ascii=False, indent=2) + "\n"
