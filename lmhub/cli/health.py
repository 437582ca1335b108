"""Looks at every plugin: what became of it, what it serves, and whether its kernels fit. For `plugins` and `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lmhub.errors import LmhubError
from lmhub.family import Family
from lmhub.plugins import PluginInfo

if TYPE_CHECKING:
    from rich.table import Table

    from lmhub.hub import Hub


@dataclass(frozen=True, slots=True)
class Health:
    """One plugin. `kernel_api` is "1.0", or "none" where none of its families has kernels; `state` as in PluginInfo."""

    plugin: str
    distribution: str
    version: str
    architectures: tuple[str, ...]
    kernel_api: str
    state: str
    problem: str

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def examine(hub: Hub) -> list[Health]:
    """Every plugin but the core itself, in the order of their names."""
    families: dict[str, list[Family]] = {}
    for plugin, answer in hub.plugins.call_each("lmhub_families"):
        families.setdefault(plugin, []).extend(answer)
    conflict = _conflict(hub)
    infos = [(name, info) for name, info in hub.plugins.infos.items() if info.distribution != "core"]
    return [_examine(info, families.get(name, []), conflict) for name, info in infos]


def as_table(healths: Sequence[Health]) -> Table:
    """The same for people."""
    from lmhub.cli.text import clean, table

    rows = [
        (
            clean(one.plugin),
            f"{one.distribution} {one.version}".strip(),
            ", ".join(map(clean, one.architectures)) or "none",
            one.kernel_api,
            one.state + (f": {clean(one.problem, 1000)}" if one.problem else ""),
        )
        for one in healths
    ]
    return table(("plugin", "version", "architectures", "kernel API", "state"), rows)


def _examine(info: PluginInfo, families: Sequence[Family], conflict: str) -> Health:
    archs = tuple(arch for family in families for arch in family.archs)
    state, problem, api = str(info.state), info.problem, "none"
    if state == "ok":
        try:
            api = _kernel_api(info, families)
        except LmhubError as error:
            state, problem = "broken", str(error)
    if state == "ok" and conflict and info.distribution in conflict:
        state, problem = "broken", conflict
    return Health(info.name, info.distribution, info.version, archs, api, state, problem)


def _kernel_api(info: PluginInfo, families: Sequence[Family]) -> str:
    """The kernel API that the plugin's extension was built for, once it is bound to this core's. Raises PluginError."""
    from lmhub import native
    from lmhub.errors import PluginError

    versions = []
    for module in dict.fromkeys(family.kernels for family in families if family.kernels):
        try:
            lib = import_module(module).lib
            version = f"{lib.LMK_ABI_MAJOR}.{lib.LMK_ABI_MINOR}"
        except LmhubError:
            raise
        except Exception as error:
            raise PluginError(
                f"the kernels {module} cannot be loaded ({type(error).__name__}: {error}); "
                f"reinstall {info.distribution}"
            ) from error
        native.bind(lib, info.distribution)
        versions.append(version)
    return ", ".join(dict.fromkeys(versions)) or "none"


def _conflict(hub: Hub) -> str:
    """The sentence about two plugins that claim one architecture, or nothing."""
    try:
        hub.claims  # noqa: B018 - computing it is the check
    except LmhubError as error:
        return str(error)
    return ""
