"""Python clients: what the notes say goes through a tool of theirs to the model and back to the user."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.clients

ONE = [("read_note", {"name": "note.txt"})]
TWO = [*ONE, ("read_note", {"name": "other.txt"})]
LITELLM = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}

kinds = pytest.mark.parametrize("talkative", [False, True], ids=["one call", "reasoning, words and two calls"])


def calls(talkative: bool) -> list[tuple[str, dict[str, Any]]]:
    """What the model does."""
    return TWO if talkative else ONE


@kinds
@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("venv", ["py", "old"])
def test_sdk(site: Any, venv: str, dialect: str, talkative: bool) -> None:
    site(*calls(talkative), talkative=talkative).python("sdk.py", dialect, venv=venv)


@kinds
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_openai_agents(site: Any, dialect: str, talkative: bool) -> None:
    environment = {"OPENAI_AGENTS_DISABLE_TRACING": "1"}
    site(*calls(talkative), talkative=talkative).python("openai_agent.py", dialect, env=environment)


@kinds
@pytest.mark.parametrize(("prefix", "path"), [("openai", "/v1"), ("hosted_vllm", "/v1"), ("anthropic", "")])
def test_litellm(site: Any, prefix: str, path: str, talkative: bool) -> None:
    site(*calls(talkative), talkative=talkative).python("litellm_chat.py", prefix, path, env=LITELLM)


@kinds
def test_llm(site: Any, talkative: bool) -> None:
    here = site(*calls(talkative), talkative=talkative)
    folder = here.folder / "llm"
    folder.mkdir()
    keyed = here.settings("llm") + "  api_key_name: lmhub\n"  # since this server wants a key
    (folder / "extra-openai-models.yaml").write_text(keyed)
    code = "def read_note(name: str) -> str:\n    'Reads a note.'\n    return open(name).read()\n"
    command = ("llm", "-m", "local", "--key", "anything", "What do the notes say?", "--functions", code)
    here.run(*command, env={"LLM_USER_PATH": str(folder)})


@kinds
@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_langchain(site: Any, dialect: str, talkative: bool) -> None:
    site(*calls(talkative), talkative=talkative).python("langchain_tools.py", dialect)


@kinds
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_pydantic_ai(site: Any, dialect: str, talkative: bool) -> None:
    site(*calls(talkative), talkative=talkative).python("pydantic_agent.py", dialect)


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON", "JSON_SCHEMA", "RESPONSES_TOOLS", "anthropic"])
def test_instructor(site: Any, mode: str) -> None:
    site(("Note", {"word": "{word}"}), plain='{"word": "{word}"}').python("instructor_extract.py", mode)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("dialect", ["chat", "responses", "anthropic"])
def test_langchain_object(site: Any, dialect: str, method: str) -> None:
    here = site(("Note", {"word": "{word}"}), plain='{"word": "{word}"}')
    here.python("structured.py", "langchain", dialect, method)


@pytest.mark.parametrize("method", ["native", "tool"])
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_pydantic_ai_object(site: Any, dialect: str, method: str) -> None:
    here = site(("final_result", {"word": "{word}"}), plain='{"word": "{word}"}')
    here.python("structured.py", "pydantic_ai", dialect, method)
