"""Finding plugins, and calling them one by one so that a broken one is named and the rest still work."""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pluggy

from lmhub import hookspecs
from lmhub.errors import LmhubError, PluginError, quoted
from lmhub.family import PluginOption

log = logging.getLogger("lmhub")

GROUP = "lmhub"


@dataclass(slots=True)
class PluginInfo:
    """One entry point of the group `lmhub`, and what became of it."""

    name: str
    distribution: str
    version: str
    state: Literal["ok", "blocked", "broken"] = "ok"
    problem: str = ""

    @property
    def title(self) -> str:
        """Distribution and version, as error messages name a plugin."""
        return f"{self.distribution} {self.version}".strip()


class Plugins:
    """The plugins of one hub: a pluggy manager of its own, and a report on everything that was found.

    `blocked` names entry points that are not to be loaded. With `strict`, the first problem raises PluginError.
    """

    def __init__(self, *, blocked: Iterable[str] = (), strict: bool = False) -> None:
        self.manager = pluggy.PluginManager("lmhub")
        self.manager.add_hookspecs(hookspecs)
        self.infos: dict[str, PluginInfo] = {}
        self._options: dict[str, Any] | None = None
        self._blocked = frozenset(blocked)
        self._strict = strict

    def load_entry_points(self) -> None:
        """Import and register every installed plugin, in the order of their names."""
        found = importlib.metadata.entry_points(group=GROUP)
        for entry in sorted(found, key=lambda entry: entry.name, reverse=True):
            # pluggy calls the last registered plugin first: registering in reverse makes the order that of the names.
            distribution = entry.dist.name if entry.dist else entry.value
            info = PluginInfo(entry.name, distribution, entry.dist.version if entry.dist else "")
            if entry.name in self.infos:
                self._broken(
                    info, f"the name {entry.name} is taken by {self.infos[entry.name].title}; uninstall one of them"
                )
                continue
            self.infos[entry.name] = info
            if entry.name in self._blocked:
                info.state = "blocked"
                continue
            try:
                self._register(entry.load(), entry.name)
            except Exception as error:
                self._broken(info, f"{type(error).__name__}: {error}")
        self.infos = dict(sorted(self.infos.items()))

    def register(self, plugin: Any, name: str) -> None:
        """Register a plugin object under `name` (the core's own, tests'). Raises PluginError for a misspelt hook."""
        self.infos.setdefault(name, PluginInfo(name, name, ""))
        self._register(plugin, name)

    def _register(self, plugin: ModuleType | Any, name: str) -> None:
        self.manager.register(plugin, name=name)
        try:
            self.manager.check_pending()
        except pluggy.PluginValidationError as error:
            self.manager.unregister(plugin)
            raise PluginError(f"plugin {name} implements a hook that does not exist: {error}") from error

    def call_each(self, hook: str, **arguments: Any) -> list[tuple[str, Any]]:
        """Call a collecting hook plugin by plugin: (plugin name, result) pairs in the order of the names.

        A LmhubError passes through (that is how `lmhub_validate` refuses); any other exception marks its plugin as
        broken.
        """
        results: list[tuple[str, Any]] = []
        for name, plugin in sorted(self.manager.list_name_plugin()):
            if plugin is None or not self._implements(plugin, hook):
                continue
            others = [other for other in self.manager.get_plugins() if other is not plugin]
            try:
                answer = self.manager.subset_hook_caller(hook, others)(**arguments)
            except LmhubError:
                raise
            except Exception as error:
                self._broken(self.infos[name], f"{hook} raised {type(error).__name__}: {error}")
                continue
            results.extend((name, result) for result in answer)
        return results

    def call_first(self, hook: str, **arguments: Any) -> Any:
        """Call a `firstresult` hook: the first answer that is not None."""
        return getattr(self.manager.hook, hook)(**arguments)

    @property
    def options(self) -> dict[str, Any]:
        """The value of every plugin's option by name: from the environment, until somebody sets another.

        Raises LmhubError for a variable whose value is of another kind.
        """
        if self._options is None:
            self._options = {option.name: environment(option) for option in self.declared_options()}
        return self._options

    def declared_options(self) -> list[PluginOption]:
        """What plugins add to the command line. Raises PluginError when two have one name."""
        found: dict[str, tuple[str, PluginOption]] = {}
        for plugin, options in self.call_each("lmhub_options"):
            for option in options:
                if option.name in found:
                    raise PluginError(
                        f"{found[option.name][0]} and {self.infos[plugin].distribution} both have the option "
                        f"--{option.name}; uninstall one, or leave one out with --block {plugin}"
                    )
                found[option.name] = self.infos[plugin].distribution, option
        return [option for _, option in found.values()]

    def models(self) -> dict[str, Path]:
        """The model files that plugins bring, by name. Raises PluginError when two bring one name."""
        models: dict[str, Path] = {}
        owners: dict[str, PluginInfo] = {}
        for plugin, brought in self.call_each("lmhub_models"):
            info = self.infos[plugin]
            for name, path in brought.items():
                if name in owners:
                    raise PluginError(
                        f"{owners[name].distribution} and {info.distribution} both bring a model called {name}; "
                        f"uninstall one, or leave one out with --block {plugin}"
                    )
                models[name], owners[name] = Path(path), info
        return models

    def _implements(self, plugin: Any, hook: str) -> bool:
        return any(caller.name == hook for caller in self.manager.get_hookcallers(plugin) or ())

    def _broken(self, info: PluginInfo, problem: str) -> None:
        info.state, info.problem = "broken", problem
        if self.infos.get(info.name) is not info:  # the second of one name goes by its distribution
            self.infos.setdefault(info.distribution, info)
        message = f"plugin {info.name} ({info.title}) is broken and was skipped: {problem}"
        if self._strict:
            raise PluginError(message)
        log.warning(message)


def variable(option: PluginOption) -> str:
    """The environment variable of a plugin's option."""
    return f"LMHUB_{option.name.upper().replace('-', '_')}"


def environment(option: PluginOption) -> Any:
    """What that variable says; where it is not set, the option's default. Raises LmhubError."""
    text = os.environ.get(variable(option), "")
    if option.kind == "switch":
        if text.lower() not in ("", "0", "1", "false", "true", "no", "yes", "off", "on"):
            raise LmhubError(f"{variable(option)} is {quoted(text)}, but must be 1 or 0")
        return text.lower() in ("1", "true", "yes", "on")
    if not text or option.kind == "model":
        return None
    try:
        return int(text) if option.kind == "whole" else float(text) if option.kind == "real" else text
    except ValueError:
        raise LmhubError(f"{variable(option)} is {quoted(text)}, but must be a number") from None
