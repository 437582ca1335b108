"""Reads what the user types: line editing, several lines, history across sessions. Knows no command and no model.

prompt_toolkit does it where both ends are a terminal; elsewhere lines are read as they come.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

PROMPT = "> "


def reader(commands: Sequence[str]) -> Callable[[], str]:
    """What reads the next message. Raises EOFError at the end, KeyboardInterrupt (with the dropped line) at Ctrl-C.

    `commands` are completed with Tab.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return input
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion

    class Commands(Completer):
        """Completes the first word of a message, if it begins with a slash."""

        def get_completions(self, document: Any, event: Any) -> Iterator[Completion]:
            """The commands that go on from what stands before the cursor."""
            typed = document.text_before_cursor
            yield from (Completion(one, -len(typed)) for one in commands if typed[:1] == "/" and one.startswith(typed))

    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation="  ",
        key_bindings=_keys(),
        history=_history(),
        completer=Commands(),
        complete_while_typing=False,
        enable_suspend=True,
        reserve_space_for_menu=0,
    )
    return session.prompt


def _keys() -> KeyBindings:
    """Enter sends; Alt+Enter and Ctrl-J begin a new line. Pasted text keeps its lines without any key."""
    from prompt_toolkit.filters import completion_is_selected
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~completion_is_selected)
    def send(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def begin_line(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def drop(event: Any) -> None:
        event.app.exit(exception=KeyboardInterrupt(event.current_buffer.text), style="class:aborting")

    return keys


def _history() -> History:
    """What was said in earlier sessions, in a file of the user's own; in memory where there can be no file."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = cache_folder() / "run-history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def cache_folder() -> Path:
    """Where this user's lmhub keeps what it can do without."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmhub"


@contextmanager
def no_echo() -> Iterator[None]:
    """Keep what is typed meanwhile, Ctrl-C among it, off the screen."""
    try:
        import termios
    except ImportError:  # no terminal of that kind here
        yield
        return
    before = None
    with suppress(termios.error, ValueError, OSError):
        before = termios.tcgetattr(sys.stdin)
        silent = [*before]
        silent[3] &= ~termios.ECHO
        termios.tcsetattr(sys.stdin, termios.TCSANOW, silent)
    try:
        yield
    finally:
        if before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
