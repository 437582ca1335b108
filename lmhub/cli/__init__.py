"""The command line: one function per command, `lmhub serve` to `lmhub new-family`, and what plugins add.

Each command lives in a file of its own and imports what it needs inside its body, so that `lmhub --help` stays quick.
A mistake of the user's ends in one sentence on stderr and exit status 2, never in a traceback.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from logging.handlers import MemoryHandler
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lmhub import __version__
from lmhub.cli.bench import bench
from lmhub.cli.doctor import doctor
from lmhub.cli.new_family import new_family
from lmhub.cli.options import Panels
from lmhub.cli.plan import plan
from lmhub.cli.plugin_options import with_options
from lmhub.cli.plugins import plugins as plugins_command
from lmhub.cli.pull import pull
from lmhub.cli.run import run
from lmhub.cli.serve import serve
from lmhub.cli.show import show
from lmhub.errors import LmhubError, PluginError
from lmhub.plugins import Plugins

_REPORTS_ON_PLUGINS = ("plugins", "doctor")  # these print every plugin's problem themselves


class Commands(TyperGroup):
    """The group of all commands, where errors become sentences."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that `ctx` names; a LmhubError is printed and ends with exit status 2."""
        try:
            return super().invoke(ctx)
        except LmhubError as error:
            typer.echo(f"lmhub: {error}", err=True)
            raise typer.Exit(2) from None


def create_cli(plugins: Plugins) -> typer.Typer:
    """The whole command line over `plugins`, which every command finds as `ctx.obj`. Raises PluginError."""
    cli = typer.Typer(
        cls=Commands,
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Serve local language models. Model families are plugins.",
    )

    @cli.callback()
    def options(
        ctx: typer.Context,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
        ] = False,
        block: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave this plugin out.")] = None,
        strict_plugins: Annotated[
            bool, typer.Option("--strict-plugins", help="Stop at the first broken plugin instead of skipping it.")
        ] = False,
    ) -> None:
        # --block and --strict-plugins were read by `main`, before the plugins that define commands were loaded.
        ctx.obj = plugins
        _let_notices_out(quiet=ctx.invoked_subcommand in _REPORTS_ON_PLUGINS)

    cli.command(cls=Panels)(with_options(serve, plugins))
    for command in (plan, with_options(run, plugins), pull, show, plugins_command, doctor, bench, new_family):
        cli.command()(command)
    taken = _names(cli)
    plugins.call_each("lmhub_commands", cli=cli)
    for name in _names(cli)[len(taken) :]:
        if name in taken:
            raise PluginError(
                f"a plugin adds the command {name}, which exists already; find it with `lmhub --block NAME`"
            )
        taken.append(name)
    return cli


def main(arguments: Sequence[str] | None = None) -> None:
    """What `lmhub` runs. Ends the process with 0 done, 1 a check failed, 2 a mistake of the user's."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's own threads, which nothing here has work for
    _hold_notices()
    try:
        blocked, strict = _plugin_options(arguments)
        plugins = Plugins(blocked=blocked, strict=strict)
        plugins.load_entry_points()
        cli = create_cli(plugins)
    except LmhubError as error:
        _let_notices_out(quiet=True)
        typer.echo(f"lmhub: {error}", err=True)
        sys.exit(2)
    try:
        cli(args=arguments, prog_name="lmhub")
    except BrokenPipeError:  # whoever read our output has seen enough; nothing more may be flushed into the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def __getattr__(name: str) -> Any:
    """`app`: the command line over all installed plugins, made when a documentation tool or a test asks for it."""
    if name != "app":
        raise AttributeError(f"module 'lmhub.cli' has no attribute {name!r}")
    plugins = Plugins()
    plugins.load_entry_points()
    return create_cli(plugins)


def _plugin_options(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """(--block names, --strict-plugins), as far as they stand before the command."""
    blocked: list[str] = []
    strict = False
    rest = iter(arguments)
    for argument in rest:
        if argument == "--block":
            blocked += [name] if (name := next(rest, None)) is not None else []
        elif argument.startswith("--block="):
            blocked.append(argument.partition("=")[2])
        elif argument == "--strict-plugins":
            strict = True
        elif not argument.startswith("-"):
            break
    return blocked, strict


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lmhub {__version__}")
        raise typer.Exit


def _names(cli: typer.Typer) -> list[str]:
    commands = [
        info.name or (info.callback.__name__.replace("_", "-") if info.callback else "")
        for info in cli.registered_commands
    ]
    return commands + [str(group.name) for group in cli.registered_groups if isinstance(group.name, str)]


def _hold_notices() -> None:
    """Keep warnings back until it is known which command runs: some report on plugins themselves."""
    target = logging.StreamHandler()
    target.setFormatter(logging.Formatter("lmhub: %(message)s"))
    log = logging.getLogger("lmhub")
    log.handlers = [MemoryHandler(1000, logging.CRITICAL, target, flushOnClose=False)]
    log.propagate = False


def _let_notices_out(*, quiet: bool) -> None:
    log = logging.getLogger("lmhub")
    for held in [handler for handler in log.handlers if isinstance(handler, MemoryHandler)]:
        if quiet:
            held.buffer.clear()
        held.flush()
        log.handlers = [held.target] if held.target is not None and not quiet else [logging.NullHandler()]
