"""Coding agents, headless: each reads the notes with its own tool because the model asks it to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.clients

ASK = "What are the words in note.txt and other.txt?"
SCRIPTS = Path(__file__).parent / "scripts"
FILES = ("{project}/note.txt", "{project}/other.txt")

kinds = pytest.mark.parametrize("talkative", [False, True], ids=["one call", "reasoning, words and two calls"])


def reads(tool: str, argument: str, files: tuple[str, ...], talkative: bool) -> list[tuple[str, dict[str, str]]]:
    """One call, or two of them."""
    return [(tool, {argument: file}) for file in files[: 2 if talkative else 1]]


def claude_code(here: Any) -> dict[str, str]:
    """The environment of docs/clients.md, and no retries, which would hide errors."""
    return {**here.exported("Claude Code"), "CLAUDE_CODE_MAX_RETRIES": "0"}


@kinds
def test_claude_code(site: Any, talkative: bool) -> None:
    here = site(*reads("Read", "file_path", FILES, talkative), talkative=talkative)
    command = ("claude", "-p", ASK, "--output-format", "json", "--max-turns", "5", "--allowedTools", "Read")
    result = json.loads(here.run(*command, env=claude_code(here)))
    assert result["result"] == f"It says {' and '.join(here.expected)}." and not result["is_error"]
    assert result["usage"]["output_tokens"] > 0 and result["usage"]["cache_read_input_tokens"] > 50_000


def test_claude_code_with_an_mcp_server(site: Any) -> None:
    here = site(("mcp__notes__read_note", {"name": FILES[0]}))
    servers = {"mcpServers": {"notes": {"command": sys.executable, "args": [str(SCRIPTS / "notes_mcp.py")]}}}
    options = ("--mcp-config", json.dumps(servers), "--strict-mcp-config", "--allowedTools", "mcp__notes__read_note")
    here.run("claude", "-p", ASK, *options, env=claude_code(here))


def test_claude_code_understands_that_the_context_is_too_small(site: Any) -> None:
    here = site(n_ctx=50_000)
    status, out, err = here.outcome("claude", "-p", ASK, env=claude_code(here))
    assert status == 1 and "Prompt is too long" in out, (out, err)


def codex(here: Any, more: str = "", tokens: int = 400_000) -> dict[str, str]:
    """The environment of docs/clients.md, and its configuration written to a folder, with other limits."""
    folder = here.folder / "codex"
    folder.mkdir()
    settings = here.settings("Codex CLI").replace("65536", "400000").replace("50000", str(tokens))
    (folder / "config.toml").write_text(settings + more)
    return {"CODEX_HOME": str(folder), "LMHUB_KEY": "anything"}


CODEX = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASK)


@kinds
def test_codex(site: Any, talkative: bool) -> None:
    files = ("cat note.txt", "cat other.txt")
    here = site(*reads("exec_command", "cmd", files, talkative), talkative=talkative)
    here.run(*CODEX, env=codex(here))


def test_codex_with_an_mcp_server(site: Any) -> None:
    here = site(("mcp__notes__read_note", {"name": FILES[0]}))
    server = f'\n[mcp_servers.notes]\ncommand = "{sys.executable}"\nargs = ["{SCRIPTS / "notes_mcp.py"}"]\n'
    here.run(*CODEX, env=codex(here, server))


def test_codex_with_a_hosted_tool(site: Any) -> None:
    here = site(("exec_command", {"cmd": "cat note.txt"}))
    environment = codex(here)
    config = Path(environment["CODEX_HOME"]) / "config.toml"
    config.write_text(config.read_text().replace('web_search = "disabled"\n', ""))
    here.run(*CODEX, env=environment)
    assert b'"type":"web_search"' in here.exchanges[0].body


def test_codex_understands_that_the_context_is_too_small(site: Any) -> None:
    here = site(n_ctx=30_000)
    status, out, err = here.outcome(*CODEX, env=codex(here))
    assert status == 1 and "ran out of room in the model's context window" in out + err, (out, err)


def test_codex_compacts(site: Any) -> None:
    here = site(("exec_command", {"cmd": "cat note.txt"}), plain="So far: {word}.")
    _, _, err = here.outcome(*CODEX, env=codex(here, tokens=30_000))  # less than its first prompt has here
    asked = [one.body for one in here.exchanges]
    assert len(asked) == 3 and b"So far: " in asked[2] and "context compacted" in err


def test_codex_with_a_schema(site: Any) -> None:
    here = site(("exec_command", {"cmd": "cat note.txt"}), says='{"word": "{word}"}')
    properties = {"word": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["word"], "additionalProperties": False}
    (here.project / "schema.json").write_text(json.dumps(schema))
    out = here.run(*CODEX, "--output-schema", "schema.json", env=codex(here))
    assert json.loads(out) == {"word": here.expected[0]}


@kinds
def test_qwen_code(site: Any, talkative: bool) -> None:
    here = site(*reads("read_file", "file_path", FILES, talkative), talkative=talkative)
    environment = {**here.exported("qwen-code"), "HTTP_PROXY": "", "HTTPS_PROXY": ""}
    here.run("qwen", "--auth-type", "openai", "--telemetry=false", "-p", ASK, env=environment)


@kinds
def test_opencode(site: Any, talkative: bool) -> None:
    here = site(*reads("read", "filePath", FILES, talkative), talkative=talkative)
    (here.project / "opencode.json").write_text(here.settings("opencode").replace("65536", "400000"))
    environment = {f"OPENCODE_DISABLE_{name}": "1" for name in ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD")}
    here.run("opencode", "run", "-m", "lmhub/local", ASK, env=environment)
