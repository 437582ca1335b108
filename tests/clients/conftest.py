"""Real clients against a real server on a real port, with a scripted model behind it.

The model answers the first request that declares tools with a call, and the next one with what the tool returned. So
a client prints the words that only a file or a tool of its own holds, or the exchange has failed somewhere. `make
clients` installs the clients; each one runs as a process of its own, with a home of its own, and reaches nothing but
this server.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lmhub.hub import Hub
from lmhub.model import Chunk
from lmhub.server.run import HubServer
from lmhub.settings import EngineSettings, ServerSettings
from lmhub.testing.fake import CONTROLS, MARKERS, PATIENCE_S, FakeModel, FakeTokenizer
from lmhub.testing.serving import fake_loaded

N_CTX = 400_000  # a token is a byte here, and coding agents send 100 KB
LIMIT_S = 180.0  # a client that has not ended by then is stopped, and its test fails
NOTES = {"note.txt": "parcel-2268", "other.txt": "parcel-7431"}  # the words are in these files and nowhere else
SCRIPTS = Path(__file__).parent / "scripts"
PAGE = Path(__file__).parents[2] / "docs" / "clients.md"
FOLDER = Path(__file__).parents[2] / ".cache" / "clients"

_PIECES = [bytes((byte,)) for byte in range(256)] + [text.encode() for text in (*CONTROLS, *MARKERS)]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request that a client made, and the status of the answer."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    status: int
    answer: bytes


class Recorder:
    """An ASGI application in front of the server's, which keeps every exchange and changes nothing."""

    def __init__(self, app: Any, exchanges: list[Exchange]):
        self._app, self._exchanges = app, exchanges

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass one request on."""
        read, sent, status = bytearray(), bytearray(), [0]

        async def reading() -> Any:
            message = await receive()
            read.extend(message.get("body", b""))
            return message

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
            sent.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, reading, sending)
        finally:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            path = scope["path"] + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
            self._exchanges.append(Exchange(scope["method"], path, headers, bytes(read), status[0], bytes(sent)))


Call = tuple[str, dict[str, Any]]  # a tool's name and arguments


class ToolUser:
    """The script of a model that makes some calls and then says which words their results hold.

    A `talkative` one thinks first, and says what it is about to do. Requests without tools (titles, summaries) get the
    `plain` text. `{word}` in it, in the calls and in what it `says` in the end stands for the words in its prompt.
    """

    def __init__(self, calls: Sequence[Call], *, talkative: bool, plain: str, says: str):
        made = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
        self._calls = "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in made)
        self._thought = "<think>\nThe tools can tell.\n</think>\n\n" if talkative else ""
        self._words = "Let me look.\n\n" if talkative else ""
        self._plain = plain
        self._says = says
        self._tokenizer = FakeTokenizer()
        self._last: tuple[tuple[int, ...], Sequence[int]] = ((), ())
        self.prompts: list[str] = []

    def __call__(self, prompt: tuple[int, ...]) -> Sequence[int]:
        """The tokens of the reply to this prompt; asked again at every step."""
        if self._last[0] != prompt:
            text = b"".join(_PIECES[token] for token in prompt).decode()
            self.prompts.append(text)
            self._last = (prompt, self._tokenizer.encode(self.reply(text), special=True))
        return self._last[1]

    def reply(self, prompt: str) -> str:
        """What the model writes."""
        words = " and ".join(sorted(set(re.findall(r"parcel-\d+", prompt))))
        if "<tools>" not in prompt:
            return self._plain.replace("{word}", words)
        if "<tool_response>" not in prompt and (not words or "{word}" in self._calls):
            return self._thought + self._words + self._calls.replace("{word}", words)
        result = prompt.rpartition("<tool_response>")[2].strip()
        return self._thought + (self._says.replace("{word}", words) if words else f"The tool failed: {result[:500]}")


@dataclass
class Site:
    """A server, the folders of one client, and what the two said to each other."""

    url: str
    folder: Path
    script: ToolUser
    expected: tuple[str, ...]  # words that the client must print
    exchanges: list[Exchange] = field(default_factory=list)

    @property
    def project(self) -> Path:
        """The client's working directory, with NOTES in it."""
        return self.folder / "project"

    def settings(self, title: str) -> str:
        """The first block under this title of docs/clients.md, for this server."""
        section = PAGE.read_text().partition(f"\n## {title}\n")[2]
        block = re.search(r"^```\w+\n(.*?)^```$", section, re.M | re.S)
        assert block and "http://localhost:8080" in block[1]
        return block[1].replace("http://localhost:8080", self.url)

    def exported(self, title: str) -> dict[str, str]:
        """The variables that such a block exports."""
        return dict(line.removeprefix("export ").split("=", 1) for line in self.settings(title).splitlines())

    def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        """What the client printed. Fails unless it said the words, with exit status 0, and was refused nothing."""
        status, out, err = self.outcome(*command, env=env)
        assert status == 0, self._told(out, err)
        assert all(word in out for word in self.expected), self._told(out, err)
        assert all(one.status == 200 for one in self.exchanges), self._told(out, err)
        return out

    def outcome(self, *command: str | Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Exit status, output and error output of a client. Fails unless it ends by itself."""
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=self.project,
            env={**self._environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            _end(process)
            out, err = process.communicate()
            pytest.fail(f"{command[0]} did not end\n{self._told(out, err)}")
        finally:
            _end(process)
        return process.returncode, out, err

    def python(self, script: str, *arguments: str, venv: str = "py", env: dict[str, str] | None = None) -> str:
        """Run one of the Python scripts with the interpreter of an environment that has its packages."""
        return self.run(installed(f"{venv}/bin/python"), SCRIPTS / script, self.url, *arguments, env=env)

    def node(self, script: str, *arguments: str) -> str:
        """Run one of the JavaScript modules where it finds the packages."""
        (self.project / "node_modules").symlink_to(installed("node/node_modules"))
        shutil.copy(SCRIPTS / script, self.project / script)
        return self.run("node", self.project / script, self.url, *arguments)

    def keep(self) -> None:
        """Leave the requests in the folder, for whoever looks into what a client sends."""
        for number, one in enumerate(self.exchanges):
            head = {"method": one.method, "path": one.path, "status": one.status, "headers": one.headers}
            body, answer = one.body.decode(errors="replace"), one.answer.decode(errors="replace")
            kept = json.dumps({**head, "body": body, "answer": answer}, indent=1)
            (self.folder / f"exchange{number}.json").write_text(kept)

    def _environment(self) -> dict[str, str]:
        home = str(self.folder / "home")
        bins = f"{FOLDER / 'node/node_modules/.bin'}:{FOLDER / 'py/bin'}"
        return {
            "PATH": f"{bins}:{os.environ['PATH']}",
            "HOME": home,
            "XDG_CONFIG_HOME": home + "/config",
            "XDG_DATA_HOME": home + "/data",
            "XDG_CACHE_HOME": home + "/cache",
            "XDG_STATE_HOME": home + "/state",
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "DO_NOT_TRACK": "1",
            # Whatever else a client wants to reach is refused at once, wherever the tests run.
            "HTTP_PROXY": "http://127.0.0.1:9",
            "HTTPS_PROXY": "http://127.0.0.1:9",
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def _told(self, out: str, err: str) -> str:
        asked = "\n".join(f"{one.method} {one.path} {one.status}: {one.answer[-400:]!r}" for one in self.exchanges)
        return f"--- stdout\n{out[-4000:]}\n--- stderr\n{err[-4000:]}\n--- requests\n{asked}"


def installed(path: str) -> Path:
    """A file of the installed clients; the test is skipped where there are none at all."""
    if not FOLDER.is_dir():
        pytest.skip("the clients are not installed; run `make clients`")
    found = FOLDER / path
    if not found.exists():
        pytest.fail(f"{found} does not exist; run `make clients`, which installs the clients")
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of a client: the processes of the session that was started for it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """`site((tool, arguments), ..., talkative=)`: a served model that makes these calls; see ToolUser.

    `{project}` in the arguments is the client's working directory.
    """
    started: list[tuple[Site, Callable[[], None]]] = []

    def start(
        *calls: Call,
        talkative: bool = False,
        plain: str = "Reading notes",
        says: str = "It says {word}.",
        n_ctx: int = N_CTX,
    ) -> Site:
        for name in ("project", "home", "tmp"):
            (tmp_path / name).mkdir()
        for name, word in NOTES.items():
            (tmp_path / "project" / name).write_text(f"The word is {word}.\n")
        spelled = json.dumps(calls)
        filled = json.loads(spelled.replace("{project}", str(tmp_path / "project")))
        expected = tuple(word for name, word in NOTES.items() if name in spelled) or (NOTES["note.txt"],)
        script = ToolUser(filled, talkative=talkative, plain=plain, says=says)
        made = Site("", tmp_path, script, expected)
        made.url, stop = _serve(script, n_ctx, made.exchanges)
        started.append((made, stop))
        return made

    yield start
    for made, stop in started:
        stop()
        made.keep()


def _begin_prompts(chunks: Sequence[Chunk]) -> None:
    """Have the model look for the end of its prompt again, also where a prompt goes on behind the last reply."""
    for chunk in chunks:
        if len(chunk.tokens) > 1 and chunk.want != "all":  # all rows: the reply goes on with guesses
            chunk.state.n_prompt = None  # type: ignore[attr-defined]


def _serve(script: ToolUser, n_ctx: int, exchanges: list[Exchange]) -> tuple[str, Callable[[], None]]:
    hub = Hub(entry_points=False)
    model = FakeModel(script, before_step=_begin_prompts, n_ctx_train=n_ctx)
    hub.serve(fake_loaded(model, "local", n_ctx=n_ctx), EngineSettings())
    ready: queue.SimpleQueue[str] = queue.SimpleQueue()
    server = HubServer(hub, ServerSettings(port=0, api_keys=("anything",)), lambda: None, ready.put)
    server.config.app = Recorder(server.config.app, exchanges)
    thread = threading.Thread(target=server.serve_until_stopped)
    thread.start()

    def stop() -> None:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not stop"

    return ready.get(timeout=PATIENCE_S), stop
