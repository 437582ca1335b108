"""`lmhub nanochat export MODEL TARGET`: the command around `export.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def group() -> typer.Typer:
    """The commands under `lmhub nanochat`."""
    made = typer.Typer(no_args_is_help=True, help="Checkpoints of nanochat.")

    @made.callback()
    def nanochat() -> None:
        """Checkpoints of nanochat."""

    @made.command()
    def export(
        model: Annotated[Path, typer.Argument(metavar="MODEL", help="A checkpoint folder, a .pt, or a GGUF file.")],
        target: Annotated[Path, typer.Argument(metavar="TARGET", help="NAME.gguf, or a folder that does not exist.")],
        kind: Annotated[
            Literal["f32", "f16", "bf16", "q8_0"] | None,
            typer.Option("--type", help="Type of the matrices; else as they are.", show_default=False),
        ] = None,
        layout: Annotated[
            Literal["safetensors", "hf"],
            typer.Option(help="Of a folder: nanochat's names and tokenizer.bin, or transformers' (first generation)."),
        ] = "safetensors",
    ) -> None:
        """Write a checkpoint as a GGUF file, as safetensors, or for transformers."""
        from lmhub.gguf import open_gguf
        from lmhub_nanochat.export import export as write
        from lmhub_nanochat.folder import Options, open_folder

        with open_folder(model, Options()) or open_gguf(model) as file:
            write(file, target, kind, layout)
        typer.echo(f"wrote {target}")

    return made
