"""The flags that plugins add to `lmhub serve` and `lmhub run` (the hook `lmhub_options`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lmhub.errors import LmhubError
from lmhub.family import PluginOption
from lmhub.plugins import Plugins, variable

_PANEL = "Of plugins"
_TYPES: dict[str, Any] = {
    "switch": bool,
    "whole": int | None,
    "real": float | None,
    "text": str | None,
    "model": list[Path],
}


def with_options(command: Callable[..., None], plugins: Plugins) -> Callable[..., None]:
    """`command` with the flags of all plugins; what they say is in `plugins.options` when it runs.

    A flag that names a model is one for commands that take several. Raises PluginError.
    """
    signature = inspect.signature(command, eval_str=True)
    several = "models" in signature.parameters
    options = [option for option in plugins.declared_options() if several or option.kind != "model"]
    if not options:
        return command
    parameters = dict(signature.parameters)
    models = [option for option in options if option.kind == "model"]
    if models:
        parameters["models"] = parameters["models"].replace(default=[])
    added = {f"plugin_option_{place}": option for place, option in enumerate(options)}

    def run(**values: Any) -> None:
        for name, option in added.items():
            value = values.pop(name)
            if option.kind == "model":
                values["models"] = [*values["models"], *value]
            else:
                plugins.options[option.name] = value
        if models and not values["models"]:
            flags = ", ".join(f"--{option.name}" for option in models)
            raise LmhubError(f"no model is named; give a file, a plugin's model by name, or {flags}")
        command(**values)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    made = [*parameters.values(), *(_parameter(name, option) for name, option in added.items())]
    run.__signature__ = signature.replace(parameters=made)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in made}
    return run


def _parameter(name: str, option: PluginOption) -> inspect.Parameter:
    envvar = None if option.kind == "model" else variable(option)
    metavar = "PATH" if option.kind == "model" else None
    shown = typer.Option(
        f"--{option.name}",
        help=option.help,
        envvar=envvar,
        metavar=metavar,
        show_default=False,
        rich_help_panel=_PANEL,
    )
    default: Any = {"switch": False, "model": []}.get(option.kind)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[_TYPES[option.kind], shown]
    )
