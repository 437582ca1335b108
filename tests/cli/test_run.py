"""`lmhub run`: one answer from an argument or a pipe, and a conversation on a terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import lmhub as api
from lmhub.cli.answer import Answer, printable, took
from lmhub.cli.wrap import Wrap
from lmhub.testing.tiny import tiny_gguf
from lmhub.types import Event, Finish, ReasoningDelta, TextDelta, Timings, Usage

Run = Callable[..., Any]
FIXED = ("--seed", 7, "--temperature", 0.7)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with room for a reply that lasts, which greedy decoding never ends."""
    path = tmp_path_factory.mktemp("run") / "endless.gguf"
    return tiny_gguf("qwen3", path, qk_norm=True, tied=True, n_ctx=30000)


def test_an_answer_is_what_the_api_gives(tiny: Path, lmhub: Run) -> None:
    done = lmhub("run", tiny, "Hello", "--system", "Be brief.", "--max-tokens", 12, *FIXED)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    with api.open(tiny) as model:
        reply = model.chat(messages, max_tokens=12, seed=7, temperature=0.7)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == reply.text + "\n"


def test_a_pipe_is_a_prompt(tiny: Path, lmhub: Run) -> None:
    piped = lmhub("run", tiny, "--max-tokens", 12, *FIXED, input="Hello\n")
    assert piped.returncode == 0
    assert piped.stdout == lmhub("run", tiny, "Hello", "--max-tokens", 12, *FIXED).stdout


def test_an_empty_pipe_is_a_mistake(tiny: Path, lmhub: Run) -> None:
    done = lmhub("run", tiny, input="")
    assert done.returncode == 2
    assert done.stderr.startswith("lmhub: stdin is empty; give a prompt")


def test_a_prompt_that_does_not_fit(tiny: Path, lmhub: Run) -> None:
    done = lmhub("run", tiny, "x" * 400)
    assert done.returncode == 2
    assert "maximum context length is 256 tokens" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_conversation(tiny: Path, terminal: Run) -> None:
    chat = terminal("run", tiny, "--max-tokens", 6, *FIXED)
    assert "tiny. /help lists" in chat.prompt()
    first = chat.say("Hello")
    assert "6 tokens" in first and "; prompt: " in first and "tokens/s" in first
    assert "of them cached" in chat.say("And then?")
    assert "Forgotten." in chat.say("/clear")
    chat.say("Hello")
    assert "maximum context length" in chat.say("x" * 300).replace("\r\n", " ")
    assert "maximum" not in chat.say("Hello")  # the message that was too long is forgotten
    chat.send("/exit\r")
    assert chat.end()[0] == 0


def test_a_conversation_is_saved(tiny: Path, tmp_path: Path, terminal: Run) -> None:
    chat = terminal("run", tiny, "--max-tokens", 6, "--system", "Old.", *FIXED)
    chat.prompt()
    chat.say("/system Be brief.")
    chat.say("one\ntwo")  # a line feed is Ctrl-J
    chat.say("\x1b[200~pasted\nlines\x1b[201~")
    chat.say("a\x1b\rb")  # Alt+Enter
    for name in ("first.json", "first.md", "first.json"):
        said = chat.say(f"/save {tmp_path / name}")
    assert "File exists; choose another name" in said
    chat.say("/retry")
    chat.say(f"/save {tmp_path / 'second.json'}")
    chat.send("\x04")
    assert chat.end()[0] == 0
    saved = json.loads((tmp_path / "first.json").read_text())
    assert [one["role"] for one in saved] == ["system", *["user", "assistant"] * 3]
    assert [one["content"] for one in saved if one["role"] != "assistant"] == [
        "Be brief.",
        "one\ntwo",
        "pasted\nlines",
        "a\nb",
    ]
    assert json.loads((tmp_path / "second.json").read_text()) == saved  # the seed is fixed
    with api.open(tiny) as model:
        reply = model.chat(saved[:-1], max_tokens=6, seed=7, temperature=0.7)
    assert saved[-1]["content"] == reply.text
    assert (tmp_path / "first.md").read_text().startswith("## You\n\none\ntwo\n\n## Answer\n")


def test_settings_within_a_conversation(tiny: Path, terminal: Run) -> None:
    chat = terminal("run", tiny, "--max-tokens", 6)
    chat.prompt()
    assert "temperature default" in chat.say("/set") and "max_tokens 6" in chat.say("/set")
    assert "temperature must be a number from 0 to 100, not 900.0" in chat.say("/set temperature 900")
    assert "top_k must be a whole number, not 'x'" in chat.say("/set top_k x")
    assert "/set knows temperature" in chat.say("/set colour 1")
    assert "temperature is 0.0." in chat.say("/set temperature 0")
    assert "temperature 0.0" in chat.say("/set")
    assert "temperature is the model's default." in chat.say("/set temperature default")
    assert "temperature default" in chat.say("/set")
    assert "/think takes on or off, not 'maybe'" in chat.say("/think maybe")
    assert "with reasoning." in chat.say("/think on") and "without reasoning." in chat.say("/think off")
    assert "there is nothing to retry" in chat.say("/retry")
    assert "There is no command /nope" in chat.say("/nope")
    assert "6 tokens" in chat.say(" /nope")  # no command: a message
    assert "/save FILE" in chat.say("/help")
    chat.send("/exit\r")
    assert chat.end()[0] == 0


def test_what_was_said_before_is_a_key_away_in_the_next_session(tiny: Path, tmp_path: Path, terminal: Run) -> None:
    for keys in ("Hello there\r", "\x1b[A\x1b[A\r"):  # the last entry is the command
        chat = terminal("run", tiny, "--max-tokens", 2, *FIXED)
        chat.prompt()
        chat.send(keys)
        chat.prompt()
        chat.send(f"/save {tmp_path / f'{len(keys)}.json'}\r")
        chat.prompt()
        chat.send("\x04")
        assert chat.end()[0] == 0
    assert json.loads((tmp_path / "7.json").read_text())[0]["content"] == "Hello there"
    assert (chat.cache / "lmhub" / "run-history").stat().st_mode & 0o777 == 0o600


def test_a_cache_folder_that_cannot_be_written_is_no_obstacle(tiny: Path, terminal: Run) -> None:
    chat = terminal("run", tiny, "--max-tokens", 2, XDG_CACHE_HOME="/dev/null/nowhere")
    chat.prompt()
    assert "2 tokens" in chat.say("Hello")
    chat.send("\x04")
    assert chat.end()[0] == 0


def test_ctrl_c_stops_the_reply_and_not_the_program(endless: Path, terminal: Run) -> None:
    chat = terminal("run", endless, "--temperature", 0, "--ctx", 30000)
    chat.prompt()
    chat.send("Hello\r")
    chat.until("\x1b[?2004l")  # the prompt is over
    chat.text(20)
    chat.send("\x03")
    chat.until("[stopped]")
    chat.prompt()
    chat.send("half a line\x03")  # dropped, as in a shell
    chat.prompt()
    chat.send("\x03")
    assert "Ctrl-C again" in chat.prompt()
    chat.send("\x03")
    assert chat.end()[0] == 0


def test_ctrl_c_ends_a_single_answer(endless: Path, terminal: Run) -> None:
    chat = terminal("run", endless, "Hello", "--temperature", 0, "--ctx", 30000)
    chat.until("\x1b[?25h")  # the cursor is back: the progress bar has gone
    chat.read()
    chat.send("\x03")
    status, rest = chat.end()
    assert status == 130
    assert "Traceback" not in rest


def test_loading_shows_progress(tiny: Path, terminal: Run) -> None:
    chat = terminal("run", tiny, "Hi", "--max-tokens", 1)
    chat.until("Loading tiny.gguf")
    assert chat.end()[0] == 0


def events(*given: Event) -> Generator[Event, None, None]:
    """A reply that consists of these events."""
    yield from given


FINISH = Finish("stop", Usage(120, 42, 96, 9), timings=Timings(0.0, 0.06, 1.1))


@pytest.mark.parametrize("is_terminal", [True, False])
def test_reasoning_is_dimmed_and_off_a_terminal_left_out(is_terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    shown = io.StringIO()
    answer = Answer(Console(file=shown, force_terminal=is_terminal, color_system="standard" if is_terminal else None))
    given = (ReasoningDelta("\nhm"), ReasoningDelta(", yes"), TextDelta("\n\nIt is"), TextDelta(" so."), FINISH)
    assert answer.show(events(*given)) is FINISH
    assert (answer.text, answer.reasoning) == ("It is so.", "hm, yes")
    assert capsys.readouterr().out == "It is so.\n"
    assert shown.getvalue() == ("\x1b[2;3mhm,\x1b[0m\x1b[2;3m yes\x1b[0m\n\n" if is_terminal else "")


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [
        ("one two three four", "one two\nthree four"),
        ("a  b\n  c   d", "a  b\n  c   d"),
        ("exactly 10 x", "exactly 10\nx"),
        ("end \n\nnext ", "end \n\nnext "),
        ("far too long words here", "far too\nlong words\nhere"),
        ("日本語 日本語", "日本語\n日本語"),
        ("x abcdefghijklmno p", "x\nabcdefghijklmno p"),
        ("", ""),
    ],
)
def test_lines_break_at_blanks_however_the_text_comes(text: str, wrapped: str) -> None:
    for cut in range(len(text) + 1):
        wrap = Wrap(10)
        shown = wrap.feed(text[:cut]) + wrap.feed(text[cut:]) + wrap.finish()
        assert shown == wrapped
    wrap = Wrap(10)
    assert wrap.feed("one tw") == "one" and wrap.feed("o ") == " two"


def test_what_a_reply_took() -> None:
    assert took(FINISH) == (
        "42 tokens, 38.2 tokens/s, 9 of them thoughts; prompt: 120 tokens, 96 of them cached, 400 tokens/s"
    )
    assert took(Finish("stop", Usage(5, 0, 5))) == "0 tokens; prompt: 5 tokens, 5 of them cached"


def test_a_model_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2J\x07\x9b\tb\nc") == "a[2J\tb\nc"
