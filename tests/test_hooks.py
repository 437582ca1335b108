"""Every hook: documented with its exact signature, and called when and as its specification says."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmhub import Caps, Family, ThinkMarkers, ToolStyle, hookimpl, hookspecs
from lmhub.errors import LmhubError, ModelFileError, PluginError, RequestError
from lmhub.family import InnerTool, PluginOption
from lmhub.gguf import open_gguf
from lmhub.hub import Hub
from lmhub.testing.fake import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL
from lmhub.testing.serving import serve_fake
from lmhub.testing.tiny import tiny_gguf
from lmhub.types import ChatRequest, Finish, Message, Text, TextDelta, TokenIds, Usage

ROOT = Path(__file__).parents[1]
HOOKS = sorted(name for name in vars(hookspecs) if name.startswith("lmhub_"))


class Plugin:
    """A plugin object from keyword arguments."""

    def __init__(self, **hooks: Any) -> None:
        for name, function in hooks.items():
            setattr(self, name, hookimpl(function))


def hub_with(*plugins: Plugin) -> Hub:
    hub = Hub(entry_points=False)
    for index, one in enumerate(plugins):
        hub.plugins.register(one, f"plugin{index}")
    return hub


def ask(text: str = "hi", **fields: Any) -> ChatRequest:
    return ChatRequest(messages=(Message("user", (Text(text),)),), **fields)


async def reply(hub: Hub, request: ChatRequest) -> list[Any]:
    served = hub.acquire(None)
    [generation] = hub.prepare(served, request, "r1")
    return [event async for event in hub.generate(served, generation)]


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_documented(name: str) -> None:
    arguments = ", ".join(inspect.signature(getattr(hookspecs, name)).parameters)
    assert f"## `{name}({arguments})`" in (ROOT / "docs" / "hooks.md").read_text()
    assert inspect.getdoc(getattr(hookspecs, name)), name


@pytest.mark.parametrize("name", HOOKS)
def test_hook_is_tested(name: str) -> None:
    assert f"def test_{name.removeprefix('lmhub_')}" in Path(__file__).read_text()


def test_families_claim_architectures() -> None:
    hub = hub_with(Plugin(lmhub_families=lambda: [Family("a", ("arch-a",), "m:load", caps=Caps())]))
    assert hub.claims["arch-a"].plugin == "plugin0"


def test_families_conflict_names_both() -> None:
    one = Plugin(lmhub_families=lambda: [Family("a", ("arch-a",), "m:load")])
    two = Plugin(lmhub_families=lambda: [Family("b", ("arch-a",), "m:load")])
    with pytest.raises(PluginError, match="plugin0 and plugin1 both serve the architecture arch-a"):
        hub_with(one, two).claims  # noqa: B018


def test_families_failure_is_isolated(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise RuntimeError("boom")

    with caplog.at_level(logging.WARNING, "lmhub"):
        hub = hub_with(
            Plugin(lmhub_families=broken), Plugin(lmhub_families=lambda: [Family("b", ("arch-b",), "m:load")])
        )
        assert set(hub.claims) == {"arch-b"}
    assert hub.plugins.infos["plugin0"].state == "broken"
    assert "plugin0" in caplog.text
    assert "boom" in caplog.text


def test_models_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brought, own = tiny_gguf("qwen3", tmp_path / "brought.gguf"), tiny_gguf("llama", tmp_path / "own.gguf")
    monkeypatch.chdir(tmp_path)
    hub = hub_with(Plugin(lmhub_models=lambda: {"parrot": brought}))
    (tmp_path / "parrot").mkdir()  # a folder is no model
    with hub.open("parrot") as file:
        assert file.path == brought
    (tmp_path / "parrot").rmdir()
    own.rename("parrot")
    for near in ("parrot", Path("parrot"), tmp_path / "parrot"):
        with hub.open(near) as file:
            assert file.architecture == "llama"


def test_models_that_nobody_brings() -> None:
    with pytest.raises(ModelFileError, match=r"'parot' is neither a file nor a model .* \(parrot\); name a GGUF file"):
        hub_with(Plugin(lmhub_models=lambda: {"parrot": Path("p.gguf")})).open("parot")
    with pytest.raises(ModelFileError, match=r"\(none does\)"):
        hub_with().open("parrot")
    with pytest.raises(ModelFileError, match=r"parrot\.gguf.* cannot be opened"):
        hub_with(Plugin(lmhub_models=lambda: {"parrot": Path("p.gguf")})).open("parrot.gguf")


def test_models_conflict_names_both() -> None:
    one, two = (Plugin(lmhub_models=lambda: {"parrot": Path("p.gguf")}) for _ in range(2))
    with pytest.raises(PluginError, match="plugin0 and plugin1 both bring a model called parrot"):
        hub_with(one, two).open("parrot")


def test_open_reads_folders_of_whoever_knows_them(tmp_path: Path) -> None:
    inside = tiny_gguf("llama", tmp_path / "weights.gguf")

    def opened(path: Path, options: Any) -> Any:
        return open_gguf(path / "weights.gguf") if path.is_dir() else None

    hub = hub_with(Plugin(lmhub_open=lambda path, options: None), Plugin(lmhub_open=opened))
    for path in (tmp_path, inside):
        with hub.open(path) as file:
            assert file.path == inside
    with pytest.raises(ModelFileError, match="is a folder, and no installed plugin knows what is in it; name a GGUF"):
        hub_with(Plugin(lmhub_open=lambda path, options: None)).open(tmp_path)


def test_options_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    options = [
        PluginOption("parrot-loud", ""),
        PluginOption("parrot-size", "", "whole"),
        PluginOption("parrot-of", "", "text"),
    ]
    assert hub_with(Plugin(lmhub_options=lambda: options)).plugins.options == {
        "parrot-loud": False, "parrot-size": None, "parrot-of": None
    }  # fmt: skip
    monkeypatch.setenv("LMHUB_PARROT_LOUD", "1")
    monkeypatch.setenv("LMHUB_PARROT_SIZE", "3")
    assert hub_with(Plugin(lmhub_options=lambda: options)).plugins.options == {
        "parrot-loud": True, "parrot-size": 3, "parrot-of": None
    }  # fmt: skip
    monkeypatch.setenv("LMHUB_PARROT_SIZE", "three")
    with pytest.raises(LmhubError, match="LMHUB_PARROT_SIZE is 'three', but must be a number"):
        hub_with(Plugin(lmhub_options=lambda: options)).plugins.options  # noqa: B018


def test_options_conflict_names_both() -> None:
    one, two = (Plugin(lmhub_options=lambda: [PluginOption("loud", "")]) for _ in range(2))
    with pytest.raises(PluginError, match="plugin0 and plugin1 both have the option --loud"):
        hub_with(one, two).plugins.options  # noqa: B018


def test_options_reach_models_and_whoever_opens_them(tmp_path: Path) -> None:
    seen: list[Any] = []

    def opened(path: Path, options: Any) -> None:
        seen.append(dict(options))

    hub = hub_with(Plugin(lmhub_options=lambda: [PluginOption("loud", "")], lmhub_open=opened))
    hub.plugins.options["loud"] = True
    hub.open(tiny_gguf("llama", tmp_path / "tiny.gguf")).close()
    assert seen == [{"loud": True}]


def test_inner_tool_answers_amid_a_reply() -> None:
    """The model asks for `<`, and goes on behind six tokens that it did not choose."""
    tool = InnerTool("escape", "<tool_call>", "</tool_call>", "<think>", "</think>", run="html:escape")
    for shown, text in ((False, "so: well"), (True, "so: `<` = `&lt;` well")):
        hub = hub_with(Plugin(lmhub_inner_tool=lambda model, shown=shown: replace(tool, is_shown=shown)))
        with serve_fake(hub, "so: <tool_call><</tool_call>......well"):
            events = asyncio.run(reply(hub, ask(return_token_ids=True)))
        assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text
        ids = [token for event in events if isinstance(event, TokenIds) for token in event.tokens]
        assert ids[4:13] == [TOOL_CALL, ord("<"), END_TOOL_CALL, THINK, *b"&lt;", END_THINK]


def test_tokenizer_first_answer_wins() -> None:
    mine = object()
    file = SimpleNamespace(metadata={})
    hub = hub_with(Plugin(lmhub_tokenizer=lambda model_file: None), Plugin(lmhub_tokenizer=lambda model_file: mine))
    assert hub.plugins.call_first("lmhub_tokenizer", model_file=file) is mine


def test_validate_refuses_before_the_queue() -> None:
    def refuse(model: Any, request: ChatRequest) -> None:
        raise RequestError("no questions today", param="messages")

    hub = hub_with(Plugin(lmhub_validate=refuse))
    with serve_fake(hub, "hello"), pytest.raises(RequestError, match="no questions today"):
        asyncio.run(reply(hub, ask()))


def test_generate_can_be_replaced() -> None:
    async def canned() -> Any:
        yield TextDelta("from the cache")
        yield Finish("stop", Usage(1, 1))

    hub = hub_with(Plugin(lmhub_generate=lambda model, request: canned()))
    with serve_fake(hub, "hello"):
        events = asyncio.run(reply(hub, ask()))
    assert events[0] == TextDelta("from the cache")


def test_generate_core_answers_last() -> None:
    hub = hub_with(Plugin(lmhub_generate=lambda model, request: None))
    with serve_fake(hub, "hello"):
        events = asyncio.run(reply(hub, ask()))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "hello"
    assert isinstance(events[-1], Finish)


def test_tool_style_overrides_the_family() -> None:
    style = ToolStyle("mine", "<call>", "</call>", "m:parse")
    hub = hub_with(Plugin(lmhub_tool_style=lambda model: style))
    with serve_fake(hub, "hello") as served:
        assert served.model.tools is style


def test_think_markers_override_the_family() -> None:
    markers = ThinkMarkers("<reason>", "</reason>")
    hub = hub_with(Plugin(lmhub_think_markers=lambda model: markers))
    with serve_fake(hub, "hello") as served:
        assert served.model.think is markers


def test_dialects_are_collected() -> None:
    hub = hub_with(Plugin(lmhub_dialects=lambda: ["mine"]))
    assert [d for name, dialects in hub.plugins.call_each("lmhub_dialects") if name == "plugin0" for d in dialects] == [
        "mine"
    ]


def test_commands_reach_the_cli() -> None:
    from typer.testing import CliRunner

    from lmhub.cli import create_cli

    def add(cli: Any) -> None:
        cli.command("greet")(lambda: print("hello from a plugin"))

    result = CliRunner().invoke(create_cli(hub_with(Plugin(lmhub_commands=add)).plugins), ["greet"])
    assert result.exit_code == 0, result.output
    assert "hello from a plugin" in result.output


def test_logits_processors_steer_the_reply() -> None:
    def processors(model: Any, request: Any) -> list[Any]:
        def only_z(logits: Any, history: Any) -> None:
            logits[:] = -1e9
            logits[ord("z")] = 0.0

        return [only_z]

    hub = hub_with(Plugin(lmhub_logits_processors=processors))
    with serve_fake(hub, "hello"):
        events = asyncio.run(reply(hub, ask(max_tokens=3)))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "zzz"


def test_startup_and_shutdown_surround_a_server() -> None:
    from starlette.testclient import TestClient

    from lmhub.server import create_app
    from lmhub.settings import ServerSettings

    seen: list[str] = []
    hub = hub_with(
        Plugin(lmhub_startup=lambda hub: seen.append("startup"), lmhub_shutdown=lambda hub: seen.append("shutdown"))
    )
    with serve_fake(hub, "hello"), TestClient(create_app(hub, ServerSettings())):
        assert seen == ["startup"]
    assert seen == ["startup", "shutdown"]


def test_startup_alone_is_enough() -> None:
    assert hub_with(Plugin(lmhub_startup=lambda hub: None)).plugins.infos["plugin0"].state == "ok"


def test_shutdown_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def broken(hub: Any) -> None:
        raise RuntimeError("no")

    hub = hub_with(Plugin(lmhub_shutdown=broken))
    with caplog.at_level(logging.WARNING, "lmhub"):
        hub.plugins.call_each("lmhub_shutdown", hub=hub)
    assert "lmhub_shutdown raised RuntimeError: no" in caplog.text


def test_generation_finished_gets_the_record() -> None:
    records: list[Any] = []

    def keep(record: Any) -> None:
        records.append(record)

    hub = hub_with(Plugin(lmhub_generation_finished=keep))
    with serve_fake(hub, "hello"):
        asyncio.run(reply(hub, ask()))
        hub.close()
    assert [record.finish for record in records] == ["stop"]
    assert records[0].usage.completion_tokens > 0


def test_misspelt_hook_is_an_error() -> None:
    with pytest.raises(PluginError, match="does not exist"):
        hub_with(Plugin(lmhub_familys=lambda: []))


def test_plugins_answer_in_the_order_of_their_names() -> None:
    hub = Hub(entry_points=False)
    for name in ("beta", "alpha"):
        hub.plugins.register(Plugin(lmhub_dialects=lambda name=name: [name]), name)
    names = [name for name, _ in hub.plugins.call_each("lmhub_dialects") if name != "core"]
    assert names == ["alpha", "beta"]
