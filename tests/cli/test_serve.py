"""`lmhub serve`: the summary says what is so, its examples work as they stand, and signals end it cleanly."""

from __future__ import annotations

import io
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import httpx
import pytest

from lmhub import native
from lmhub.cli.serve import read_keys
from lmhub.cli.summary import exposure
from lmhub.cli.text import clean, count, size
from lmhub.errors import LmhubError
from lmhub.gguf import GGMLType
from lmhub.settings import ServerSettings
from lmhub.testing.tiny import tiny_gguf

Run = Callable[..., Any]


def test_one_model(tiny: Path, serve: Run) -> None:
    server = serve(tiny, "--ctx", 128, "--batch", 3)
    lines = [line.split(maxsplit=1) for line in server.said.splitlines() if line[:1].isalpha()]
    facts = {words[0]: words[1] for words in lines if len(words) > 1}
    assert facts["model"] == "tiny"
    assert facts["family"].startswith("qwen3, lmhub-qwen3 ")
    assert facts["architecture"] == "qwen3"
    assert "F32 100 %" in facts["parameters"]
    assert facts["context"] == "128 of 256 positions, 3 sequences at once"
    assert re.search(r"for 6 × .* of f16 cache of 128 positions; ", facts["memory"])
    assert facts["kernels"].startswith(native.isa())
    assert facts["address"] == server.url
    page = server.url.removesuffix("/v1")
    assert server.said.splitlines()[1] == f"Ready: open {page} in a browser to chat."
    assert "<title>lmhub</title>" in httpx.get(page).text
    [listed] = httpx.get(f"{server.url}/models").json()["data"]
    assert listed["id"] == "tiny"
    [claude] = [line for line in server.said.splitlines() if line.endswith(" claude")]
    assert dict(word.split("=") for word in claude.split()[:-1]) == {
        "ANTHROPIC_BASE_URL": page, "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": "tiny",
    }  # fmt: skip
    status, _, err = server.stop(signal.SIGTERM)
    assert (status, err) == (0, "")


def test_without_the_page_nothing_points_to_it(tiny: Path, serve: Run) -> None:
    server = serve(tiny, "--no-ui")
    assert "browser" not in server.said
    assert httpx.get(server.url.removesuffix("/v1")).json()["name"] == "lmhub"
    assert server.stop()[0] == 0


def test_the_examples_of_the_summary_work(tiny: Path, serve: Run) -> None:
    server = serve(tiny, "--ctx", 32)
    python = [line.strip() for line in server.said.splitlines() if re.match(r"\s*(from|client|print)", line)]
    assert len(python) == 3
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec("\n".join(python), {})
    assert printed.getvalue()
    [curl] = [line.strip() for line in server.said.splitlines() if line.strip().startswith("curl ")]
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, check=True)
    assert '"object":"chat.completion"' in done.stdout.replace(" ", "")
    assert server.stop()[0] == 0


def test_several_models_are_one_row_each(tiny: Path, tmp_path: Path, serve: Run) -> None:
    other = tiny_gguf("llama", tmp_path / "other.gguf", kind=GGMLType.Q8_0)
    server = serve(tiny, other, "--ctx", 64)
    rows = [line.split() for line in server.said.splitlines()]
    assert [row[0] for row in rows if "lmhub-qwen3" in row or "lmhub-llama" in row] == ["tiny", "other"]
    ids = [model["id"] for model in httpx.get(f"{server.url}/models").json()["data"]]
    assert ids == ["tiny", "other"]
    body = {"model": "other", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    assert httpx.post(f"{server.url}/chat/completions", json=body).json()["model"] == "other"
    assert server.stop()[0] == 0


def test_a_key_is_asked_for_and_not_shown(tiny: Path, serve: Run) -> None:
    server = serve(tiny, LMHUB_API_KEY="s3cret")
    assert httpx.get(f"{server.url}/models").status_code == 401
    assert httpx.get(f"{server.url}/models", headers={"authorization": "Bearer s3cret"}).status_code == 200
    assert "Bearer KEY" in server.said
    assert 'api_key="KEY"' in server.said
    _, out, err = server.stop()
    assert "s3cret" not in server.said + out + err


def test_the_world_can_reach_it(tiny: Path, serve: Run) -> None:
    server = serve(tiny, "--host", "0.0.0.0")
    _, rest, _ = server.stop()
    assert "Warning: 0.0.0.0 can be reached from other machines, and there is no key" in rest


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "localhost", "::1"])
def test_loopback_needs_no_warning(host: str) -> None:
    assert exposure(ServerSettings(host=host)) == ""


def test_a_key_silences_the_warning() -> None:
    assert exposure(ServerSettings(host="0.0.0.0", api_keys=("k",))) == ""
    assert "192.168.1.2" in exposure(ServerSettings(host="192.168.1.2"))


def test_a_taken_port_is_one_sentence(tiny: Path, lmhub: Run) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = lmhub("serve", tiny, "--port", port)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_second_files_mistake_comes_before_the_first_is_loaded(tiny: Path, tmp_path: Path, invoke: Run) -> None:
    said = invoke("serve", tiny, tiny_gguf("martian", tmp_path / "m.gguf"))
    assert said.exit_code == 2
    assert "martian" in said.stderr
    assert "Loading" not in said.output


def test_numbers_are_readable() -> None:
    assert [size(n) for n in (0, 999, 1000, 9_940, 12_345_678, 999_600_000, 1.5e13)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "9.9 kB",
        "12 MB",
        "1.0 GB",
        "15.0 TB",
    ]
    assert [count(n) for n in (0, 999, 1000, 5760, 595_776_512, 8.19e9, 2.4e12)] == [
        "0",
        "999",
        "1 k",
        "5.76 k",
        "596 M",
        "8.19 B",
        "2400 B",
    ]
    assert clean("a\x1bb" + "x" * 300, 5) == "a\\x1bbx…"


def test_keys_come_from_a_file_that_may_hold_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nfirst\n\n  second  # of the laptop\n")
    assert read_keys(file) == ("first", "second")


@pytest.mark.parametrize("text", [None, "", "# nothing\n"])
def test_a_file_without_keys_does_not_open_the_server(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(LmhubError, match="keys"):
        read_keys(file)


def test_the_access_log_is_for_those_who_ask(tiny: Path, serve: Run) -> None:
    server = serve(tiny, "--ctx", 64, "--access-log", "--seed", 5)
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
    first, second = (httpx.post(f"{server.url}/chat/completions?key=s3cret", json=body).json() for _ in range(2))
    assert first["choices"] == second["choices"]  # --seed
    plans = httpx.get(f"{server.url}/health?verbose=1").json()["plans"]
    assert plans["tiny"]["fits"] is True
    _, _, err = server.stop()
    lines = [line.split() for line in err.splitlines()]
    assert [line[2:5] for line in lines] == [
        ["POST", "/v1/chat/completions", "200"],
        ["POST", "/v1/chat/completions", "200"],
        ["GET", "/v1/health", "200"],
    ]
    facts = dict(word.split("=", 1) for word in lines[1][5:])
    assert (facts["model"], facts["completion"], facts["finish"]) == ("tiny", "3", "length")
    assert int(facts["cached"]) > 0
    assert "s3cret" not in err


def test_every_setting_of_the_engine_has_its_flag(tiny: Path, invoke: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from lmhub.hub import Hub
    from lmhub.settings import MIB, EngineSettings

    def seen(self: Hub, file: object, settings: EngineSettings, taken: int = 0) -> None:
        raise LmhubError(repr(settings))

    monkeypatch.setattr(Hub, "plan", seen)
    flags = {
        "--ctx": 5, "--threads": 1, "--batch": 2, "--queue": 3, "--kv-dtype": "q8_0", "--kv-slots": 4, "--kv-ram": 6,
        "--kv-cache-dir": "d", "--kv-disk-max": 7, "--kv-disk-slots": 8, "--pipe-max": 9, "--stall-timeout": 10,
        "--request-timeout": 11, "--experts": "stream", "--expert-cache": 12,
    }  # fmt: skip
    words = [word for flag in flags.items() for word in flag]
    said = invoke("serve", tiny, *words, "--kv-slots-force", "--no-spec", "--no-lazy-tools")
    expected = EngineSettings(
        ctx=5, threads=1, batch=2, queue=3, borrow="experts", expert_cache=12 * MIB, kv_dtype="q8_0", kv_slots=4,
        kv_slots_force=True, kv_ram=6 * MIB, kv_cache_dir="d", kv_disk_max=7 * MIB, kv_disk_slots=8, spec=False,
        pipe_max=9, stall_timeout_s=10.0, request_timeout_s=11.0, lazy_tools=False,
    )  # fmt: skip
    assert said.stderr == f"lmhub: {expected!r}\n"
    assert said.exit_code == 2
    environment = {"LMHUB_KV_SLOTS": "4", "LMHUB_SPEC": "0", "LMHUB_KV_DTYPE": "f32"}
    assert invoke("serve", tiny, env=environment).stderr == (
        f"lmhub: {EngineSettings(kv_slots=4, spec=False, kv_dtype='f32')!r}\n"
    )


def test_options_are_listed_under_headings(invoke: Run) -> None:
    said = invoke("serve", "--help").output
    headings = [line for line in said.splitlines() if re.fullmatch(r"[A-Z][a-z ]+:", line)]
    assert len(headings) > 5 and headings[0] == "Arguments:"
    for flag in ("--kv-slots ", "--grace ", "--seed ", "--plan ", "--stall-timeout "):
        assert said.count(f"  {flag}") == 1
