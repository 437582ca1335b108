"""`lmhub plugins`: the installed plugins and what became of them."""

from __future__ import annotations

import typer

from lmhub.cli.options import Json


def plugins(ctx: typer.Context, as_json: Json = False) -> None:
    """List plugins: version, architectures, kernel API, state."""
    import json

    from lmhub.cli.health import as_table, examine
    from lmhub.cli.text import console
    from lmhub.hub import Hub

    healths = examine(Hub(ctx.obj))
    if as_json:
        typer.echo(json.dumps([health.as_dict() for health in healths], indent=2))
    elif healths:
        console().print(as_table(healths))
    else:
        typer.echo("No plugin is installed; install one for each model family, for example: pip install lmhub-qwen3")
