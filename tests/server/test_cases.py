"""The public bug reports of ../shared/cases, through their own runner, against a server with a scripted model.

The model thinks unless it is told not to, and says "Fine."; under a grammar it ends what it has begun as soon as it
can. Run as a script, this file is the runner's `--parse-cmd`: outputs of a model in, calls out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmhub.chat.reply import ChannelParser
from lmhub.family import HERMES
from lmhub.hub import Hub
from lmhub.settings import EngineSettings
from lmhub.testing.fake import CONTROLS, MARKERS, FakeModel, FakeTokenizer
from lmhub.testing.serving import fake_loaded, running
from lmhub.testing.tiny import CHAT_TEMPLATE
from lmhub.types import Content, Tool, ToolCallDelta, ToolCallStart

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "cases"
LMHUB = f"{sys.executable} -m lmhub serve {{model}} --port {{port}} {{flags}}"
NOT_CHECKED = {  # case -> why it, or parts of it, cannot be shown here
    "S22": ("no reasoning_content by default",),  # this server has a model reason only where the request asks for it
    "S23": ("no reasoning_content by default",),
    "S39": ("the answer was complete before it could be cut",),  # a scripted model takes no time
    "S40": ("a listing of the folder does not offer", "a running server that fails to load one"),  # there is no such
}

if not FOLDER.is_dir():
    pytest.skip(f"the cases are not here ({FOLDER} does not exist)", allow_module_level=True)
CASES: list[str] = [case["id"] for case in json.loads((FOLDER / "cases.json").read_text())]


class Willing(FakeModel):
    """Where a grammar has it write something else than its script, it closes what is open."""

    order = b'}]",:0123456789abcdefghijklmnopqrstuvwxyz'

    def row(self, tokens: tuple[int, ...], n_prompt: int) -> NDArray[np.float32]:
        """The script's logits, and behind it what closes, what separates, and what is shortest to write."""
        row = super().row(tokens, n_prompt)
        for place, byte in enumerate(self.order):
            row[byte] = max(row[byte], -100.0 - place)
        return row


def reply(prompt: tuple[int, ...]) -> list[int]:
    """What the model writes behind this prompt."""
    pieces = [bytes((byte,)) for byte in range(256)] + [text.encode() for text in (*CONTROLS, *MARKERS)]
    text = b"".join(pieces[token] for token in prompt).decode("utf-8", "replace")
    thought = "" if text.endswith("</think>\n\n") else "<think>\nThat is easy.\n</think>\n\n"
    return FakeTokenizer().encode(f"{thought}Fine.", special=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Case -> what the runner made of it."""
    hub = Hub(entry_points=False)
    metadata = {"general.name": "A scripted model", "tokenizer.chat_template": CHAT_TEMPLATE}
    model = fake_loaded(Willing(reply), n_ctx=8192, metadata=metadata)
    hub.serve(model, EngineSettings())
    results = tmp_path_factory.mktemp("cases") / "results.json"
    runner = [sys.executable, FOLDER / "run_cases.py", FOLDER / "cases.json", "--json", results]
    commands = ["--serve-cmd", LMHUB, "--parse-cmd", f"{sys.executable} {__file__}"]
    with running(hub) as url:
        done = subprocess.run(
            [*runner, *commands, "--base-url", url], capture_output=True, text=True, check=False, timeout=240
        )
    hub.close()
    assert results.exists(), done.stdout + done.stderr
    return {one["id"]: one for one in json.loads(results.read_text())}


@pytest.mark.parametrize("id", CASES)
def test_case(found: dict[str, Any], id: str) -> None:
    case = found[id]
    assert not case["failures"], case
    assert case["status"] == "pass" or case["not_checked"], case
    for reason in case["not_checked"]:
        assert any(known in reason for known in NOT_CHECKED.get(id, ())), case


def parse(request: dict[str, Any]) -> dict[str, Any]:
    """The calls and the text of an output that comes in pieces."""
    tools = [Tool(tool["function"]["name"], None, tool["function"].get("parameters")) for tool in request["tools"]]
    parser = ChannelParser(lambda text: None, tools=HERMES, offered=tools)
    items = [item for chunk in request["chunks"] for item in parser.feed(0, chunk.encode())]
    content, calls = b"", []
    for item in [*items, *parser.finish()]:
        if isinstance(item, Content):
            content += item.data
        elif isinstance(item, ToolCallStart):
            calls.append({"index": item.index, "id": item.id, "name": item.name, "arguments": ""})
        elif isinstance(item, ToolCallDelta):
            calls[item.index]["arguments"] += item.fragment
    finish = "tool_calls" if calls else "stop"
    return {"content": content.decode(), "tool_calls": calls, "finish_reason": finish}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(parse(json.loads(line))))
