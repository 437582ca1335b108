"""`lmhub run`: one answer from an argument or a pipe, and a conversation on a terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmhub as api
from lmhub.cli.run import printable
from lmhub.testing.tiny import tiny_gguf

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
    assert "tiny. /clear forgets" in chat.until("> ")
    chat.send("Hello\n")
    first = chat.until("> ")
    chat.send("/clear\n")
    chat.until("> ")
    chat.send("Hello\n")
    assert chat.until("> ") == first  # same seed and nothing remembered
    chat.send("x" * 300 + "\n")
    assert "maximum context length" in chat.until("> ").replace("\r\n", " ")
    chat.send("Hello\n")  # the message that was too long is forgotten
    assert "maximum" not in chat.until("> ")
    chat.send("/exit\n")
    assert chat.end()[0] == 0


def test_ctrl_d_ends(tiny: Path, terminal: Run) -> None:
    chat = terminal("run", tiny)
    chat.until("> ")
    chat.send("\x04")
    assert chat.end()[0] == 0


def test_ctrl_c_stops_the_reply_and_not_the_program(endless: Path, terminal: Run) -> None:
    chat = terminal("run", endless, "--temperature", 0, "--ctx", 30000)
    chat.until("> ")
    chat.send("Hello\n")
    chat.until("Hello\r\n")
    chat.read()
    chat.send("\x03")
    chat.until("[stopped]")
    chat.until("> ")
    chat.send("/exit\n")
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


def test_a_model_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2J\x07\x9b\tb\nc") == "a[2J\tb\nc"
