"""Imports go downward only: six bands, native at the bottom, HTTP and terminal at the top (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BANDS = [
    {"_native", "native"},
    {"types", "errors", "settings", "machine", "gguf", "safetensors", "tokenize"},
    {
        "advice",
        "model",
        "family",
        "dialect",
        "loaded",
        "chat",
        "grammar",
        "guide",
        "prepare",
        "sampling",
        "weights",
        "kv",
        "fields",
        "forward",
        "hparams",
        "rope",
        "recurrent",
        "shelf",
        "rowwise",
    },
    {"engine"},
    {"hub", "memory", "plugins", "hookspecs", "remote"},
    {"server", "cli", "__main__", "api", "plain"},
]
BUILD = {"build", "_native_build"}  # run before anything is installed: cffi and the package's own header only
ANYWHERE = {"errors", "types"}  # standard library only, so the native band may raise typed errors
PLUGIN_MAY = BANDS[0] | BANDS[1] | BANDS[2] | {"build"}


def band(module: str) -> int:
    """The band of `lmhub.<module>...`, from 0."""
    for index, names in enumerate(BANDS):
        if module in names:
            return index
    raise AssertionError(f"lmhub.{module} belongs to no band: give it one in {Path(__file__).name}")


def imports(path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, dotted name, only for type checking) of every import of lmhub in a file, wherever it stands."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "lmhub":
                yield node.lineno, name, id(node) in typing_only


CORE = sorted(
    p
    for p in (ROOT / "lmhub").rglob("*.py")
    if ("testing" not in p.parts and p.name != "__init__.py") or (p.parent.name != "lmhub" and "testing" not in p.parts)
)


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_core_imports_go_down(path: Path) -> None:
    own = path.relative_to(ROOT / "lmhub").parts[0].removesuffix(".py")
    if own in BUILD:
        assert not [name for _, name, _ in imports(path) if name not in ("lmhub", "lmhub.get_include")]
        return
    for line, name, typing_only in imports(path):
        parts = name.split(".")
        target = parts[1] if len(parts) > 1 else ""
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        assert target != "testing", f"{where}: only tests import lmhub.testing"
        if typing_only or target in ANYWHERE or target in ("", "__version__", "get_include"):
            continue
        if target not in {name for names in BANDS for name in names}:
            target = "hookspecs" if parts == ["lmhub", "hookspecs"] else target
        assert band(target) <= band(own), f"{where}: band {band(target) + 1} from band {band(own) + 1}"


def test_engine_and_server_keep_their_distance() -> None:
    forbidden = {
        "engine": {"server", "cli", "plugins", "hookspecs", "hub"},
        "server": {"gguf", "model", "native", "weights", "kv"},
    }
    for folder, names in forbidden.items():
        for path in (ROOT / "lmhub" / folder).rglob("*.py"):
            assert "pluggy" not in path.read_text() or folder != "engine", f"{path} knows pluggy"
            bad = [
                n
                for _, n, typing_only in imports(path)
                if not typing_only and n.split(".")[1:2] and n.split(".")[1] in names
            ]
            assert not bad, f"{path.relative_to(ROOT)} imports {bad}"


BUILT_ON = {"diffusion_gemma": ("gemma4",)}  # distributions that a plugin depends on
PLUGINS = sorted((ROOT / "plugins").glob("*/lmhub_*/*.py"))


@pytest.mark.parametrize("path", PLUGINS, ids=lambda p: str(p.relative_to(ROOT)))
def test_plugins_use_the_public_bands(path: Path) -> None:
    import lmhub

    for line, name, _ in imports(path):
        parts = name.split(".")
        target = parts[1] if len(parts) > 1 else ""
        allowed = target in PLUGIN_MAY - {"_native"} or target in lmhub.__all__ or target == ""
        assert allowed, f"{path.relative_to(ROOT)}:{line} imports {name}, which is not public"


def test_no_family_is_known_outside_its_plugin() -> None:
    families = [p.name for p in (ROOT / "plugins").iterdir() if (p / "pyproject.toml").exists()]
    assert len(families) >= 2
    for path in [*(ROOT / "lmhub").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                package = name.split(".")[0]
                if package.startswith("lmhub_"):
                    folder, own = path.relative_to(ROOT).parts[:2]
                    known = (own, *BUILT_ON.get(own, ()))
                    assert folder == "plugins" and package.removeprefix("lmhub_") in known, f"{path} imports {package}"
