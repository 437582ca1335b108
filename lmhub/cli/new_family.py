"""`lmhub new-family NAME`: writes the folder of a plugin that works and whose tests pass, to be changed from there on.

The folder is `template/first`, with the names put in: a forward pass in numpy. With `--kernels`, `template/kernels` is
added to a folder that was made so: the same forward pass in C. No file that exists is touched.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from lmhub.errors import LmhubError

TEMPLATE = Path(__file__).with_name("template")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 24  # letters of a name; generated lines stay within 120


def new_family(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="The architecture, as model files call it: small letters and dashes.")],
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="The folder to write. [default: lmhub-NAME]")
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="The second step: add a forward pass in C to the folder.")
    ] = False,
) -> None:
    """Write a plugin for a new model family: a folder that works, with tests that pass."""
    from lmhub.hub import Hub

    check_name(name)
    folder = directory or Path(f"lmhub-{name}")
    if not kernels and name in (claims := Hub(ctx.obj).claims):
        raise LmhubError(
            f"the architecture {name} is served by {claims[name].distribution} already; choose another name."
        )
    if kernels and not (folder / f"lmhub_{name.replace('-', '_')}" / "model.py").is_file():
        raise LmhubError(f"{folder} holds no family called {name}; make it first: lmhub new-family {name}")
    written = write(name, folder, TEMPLATE / ("kernels" if kernels else "first"))
    typer.echo(f"{folder} has {len(written)} new files: {', '.join(written)}")
    typer.echo((_SECOND if kernels else _FIRST).format(folder=folder, name=name, module=name.replace("-", "_")))


_FIRST = """
Next:
  pip install --no-build-isolation -e '{folder}[dev]'
  pytest {folder}
  lmhub serve MODEL.gguf        a file of the architecture {name}

Start reading at {folder}/README.md; docs/tutorial.md of lmhub goes through every file."""

_SECOND = """
In lmhub_{module}/__init__.py, let the record name what was added:
  load="lmhub_{module}.compiled:load",
  plan="lmhub_{module}.compiled:plan",
  kernels="lmhub_{module}._kernels",

Next:
  pip install --no-build-isolation -e {folder}     compiles csrc/{module}.c
  pytest {folder}
  lmhub doctor                                     says whether the kernels fit"""


def check_name(name: str) -> None:
    """Raises LmhubError for what cannot name a distribution, a module and a C function at once."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise LmhubError(
            f"{name[:60]!r} cannot name a family; take at most {_LONGEST} small letters, digits and single dashes, "
            f"a letter first."
        )


def write(name: str, folder: Path, template: Path) -> list[str]:
    """The template's files with that name in `folder`; what was written. Raises LmhubError where one exists already."""
    files = {fill(str(path.relative_to(template)), name): path for path in sorted(template.rglob("*.in"))}
    for relative in files:
        if (folder / relative).exists():
            raise LmhubError(f"{folder / relative} exists already, and nothing is overwritten; choose another --dir.")
    for relative, path in files.items():
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(fill(path.read_text(), name))
    return list(files)


def fill(text: str, name: str) -> str:
    """The template's names replaced: of the architecture, of the module and in C, of classes; and the ending `.in`."""
    words = name.split("-")
    text = text.replace("new-family", name).replace("new_family", "_".join(words))
    return text.replace("NewFamily", "".join(word.capitalize() for word in words)).removesuffix(".in")
