"""The command line as people meet it: a process of its own, a tiny model, plugins installed beside the real ones."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from lmhub.testing.tiny import tiny_gguf

LMHUB = [sys.executable, "-m", "lmhub"]
# Stdin becomes the controlling terminal, so that Ctrl-C becomes a signal, which a shell's background jobs ignore.
ON_TERMINAL = [
    sys.executable,
    "-c",
    "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); from lmhub.__main__ import main; main()",
]
Run = Callable[..., subprocess.CompletedProcess[str]]
Invoke = Callable[..., Result]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a family that is installed."""
    return tiny_gguf("qwen3", tmp_path_factory.mktemp("cli") / "tiny.gguf", qk_norm=True, tied=True)


@pytest.fixture
def lmhub() -> Run:
    """Run `lmhub` in a process of its own: `lmhub("show", path, input=..., extra_path=...)`."""

    def run(
        *arguments: object, input: str = "", extra_path: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        environment = clean_environment() | env
        if extra_path is not None:
            environment["PYTHONPATH"] = os.pathsep.join(
                filter(None, (str(extra_path), os.environ.get("PYTHONPATH", "")))
            )
        words = [*LMHUB, *map(str, arguments)]
        return subprocess.run(
            words, input=input, env=environment, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Run `lmhub` in this process, for what needs no process: `invoke("show", path)`."""
    for name in [name for name in os.environ if name.startswith("LMHUB_")]:
        monkeypatch.delenv(name)

    def run(*arguments: object, **options: object) -> Result:
        from lmhub.cli import app

        return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)  # type: ignore[arg-type]

    return run


@pytest.fixture
def install(tmp_path: Path) -> Callable[[str, str], Path]:
    """Install a one-module plugin: `install("name", source)` gives the folder that has to be on the path."""

    def make(name: str, source: str, version: str = "1.2") -> Path:
        site = tmp_path / "site"
        info = site / f"lmhub_{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: lmhub-{name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[lmhub]\n{name} = lmhub_{name}\n")
        (site / f"lmhub_{name}.py").write_text(source)
        return site

    return make


def clean_environment() -> dict[str, str]:
    """The environment without anybody's lmhub settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("LMHUB_")}


class Terminal:
    """A command on a pseudo-terminal of 100 columns: `until` waits for text to appear, `send` types."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.cache = Path(environment["XDG_CACHE_HOME"])
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (40, 100))
        self.process = subprocess.Popen(
            words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self._seen = ""

    def until(self, text: str) -> str:
        """Everything up to and including the next `text`."""
        while text not in self._seen:
            self._seen += self.read(f"waiting for {text!r}")
        before, _, self._seen = self._seen.partition(text)
        return before + text

    def prompt(self) -> str:
        """Everything up to where the conversation waits for the next message."""
        return self.until("\x1b[?2004h")  # from here on, pasted text is bracketed

    def say(self, text: str) -> str:
        """Type a message or a command with Enter, and wait for the next prompt; what was shown, without colours."""
        self.send(text + "\r")
        return _plain(self.prompt())

    def text(self, n: int) -> None:
        """Wait until `n` characters have come that are no control sequences."""
        while len(_plain(self._seen).strip()) < n:
            self._seen += self.read(f"waiting for {n} characters")

    def send(self, text: str) -> None:
        """Type `text`; "\\x03" is Ctrl-C, "\\x04" is Ctrl-D."""
        os.write(self._master, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit status, and what was still written."""
        rest = self._seen
        with suppress(OSError):  # what reading from a terminal ends with once its last process is gone
            while True:
                rest += self.read("waiting for the end")
        return self.process.wait(60), rest

    def close(self) -> None:
        """Make sure that nothing is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)

    def read(self, doing: str = "waiting for anything") -> str:
        """Whatever comes next."""
        ready, _, _ = select.select([self._master], [], [], 60)
        assert ready, f"nothing came while {doing}; so far: {self._seen!r}"
        return os.read(self._master, 1 << 16).decode(errors="replace")


def _plain(text: str) -> str:
    """`text` without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Run `lmhub` on a terminal: `terminal("run", path)`, with a cache folder of its own."""
    opened: list[Terminal] = []

    def run(*arguments: object, **env: str) -> Terminal:
        # This terminal does not answer when it is asked where the cursor is.
        known = {
            "TERM": "xterm",
            "COLUMNS": "100",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        environment = clean_environment() | known | env
        opened.append(Terminal([*ON_TERMINAL, *map(str, arguments)], environment))
        return opened[-1]

    yield run
    for one in opened:
        one.close()


class Server:
    """`lmhub serve` on a free port. `said` is what it printed up to the end of its summary."""

    def __init__(self, arguments: tuple[object, ...], environment: dict[str, str]) -> None:
        words = [*LMHUB, "serve", "--port", "0", *map(str, arguments)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
        )
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if "ANTHROPIC_BASE_URL=" in line:  # the last of the examples
                break
        else:
            raise AssertionError(f"the server ended: {self.process.stderr.read() if self.process.stderr else lines}")
        self.said = "".join(lines)
        self.url = re.search(r"http://\S+/v1", self.said)[0]  # type: ignore[index]

    def stop(self, number: int = signal.SIGINT) -> tuple[int, str, str]:
        """Send a signal and wait: exit status, the rest of stdout, stderr."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        out, err = self.process.stdout.read(), self.process.stderr.read()
        return self.process.wait(60), out, err

    def close(self) -> None:
        """Make sure that nothing is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    """Start a server and wait until it is ready: `serve(path, "--batch", 2)`."""
    started: list[Server] = []

    def start(*arguments: object, **env: str) -> Server:
        started.append(Server(arguments, clean_environment() | env))
        return started[-1]

    yield start
    for one in started:
        one.close()
