"""Names of models in repositories: `ORG/REPO[:QUANT]`, and which of a repository's files that means. Pure text.

A model is one GGUF file or all parts of a split one (`-00001-of-00003.gguf`). Its label is the quantisation in its
name, or in the name of its folder, as publishers write it: `Q4_K_M`, `UD-Q4_K_XL`, `BF16`, `MXFP4_MOE`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from lmhub.errors import LmhubError

_REFERENCE = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([\w./-]+))?")
_PART = re.compile(r"-(\d{5})-of-(\d{5})$")
_QUANT = re.compile(
    r"(?:^|[-._])((?:UD-)?(?:I?Q[1-8]|TQ[12]|P?T?Q[12]|BF16|F16|F32|MXFP4|NVFP4)(?:_\w+)?)$", re.IGNORECASE
)
_NO_MODELS = ("mmproj", "imatrix")  # what lies beside models and is none


@dataclass(frozen=True, slots=True)
class Reference:
    """What a user asks for. `quant` is None where the name leaves it open."""

    repo: str
    quant: str | None = None

    def __str__(self) -> str:
        """As the user writes it."""
        return self.repo if self.quant is None else f"{self.repo}:{self.quant}"


@dataclass(frozen=True, slots=True)
class Choice:
    """One model of a repository: its files, part by part, and their bytes."""

    label: str
    files: tuple[str, ...]
    nbytes: int


class Ambiguous(LmhubError):
    """A name means several models of its repository, or none; the message lists what there is."""


def reference(text: str) -> Reference | None:
    """`text` as a name in a repository; None if it cannot be one."""
    found = _REFERENCE.fullmatch(text)
    if found is None or text.lower().endswith(".gguf"):
        return None
    return Reference(found[1], found[2])


def choices(files: Mapping[str, int]) -> list[Choice]:
    """The models among a repository's files, given with their bytes, the smallest first. Incomplete ones are none."""
    parts: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    for file in files:
        path = PurePosixPath(file)
        if path.suffix.lower() != ".gguf" or path.name.lower().startswith(_NO_MODELS):
            continue
        stem = file[: -len(path.suffix)]
        part = _PART.search(stem)
        stem = stem[: part.start()] if part else stem
        counts[stem] = int(part[2]) if part else 1
        parts.setdefault(stem, {})[int(part[1]) if part else 1] = file
    whole = {stem: of for stem, of in parts.items() if sorted(of) == [*range(1, counts[stem] + 1)]}
    labels = [_label(stem) for stem in whole]
    made = []
    for (stem, of), label in zip(whole.items(), labels, strict=True):
        names = tuple(of[number] for number in sorted(of))
        unique = label if labels.count(label) == 1 else stem
        made.append(Choice(unique, names, sum(files[name] for name in names)))
    return sorted(made, key=lambda one: (one.nbytes, one.label))


def choose(asked: Reference, offered: Sequence[Choice]) -> Choice:
    """The one of `offered` that is meant: by its label or file name in full, or else by their end. Raises Ambiguous."""
    if not offered:
        raise Ambiguous(f"{asked.repo} holds no GGUF model; choose a repository that does, often named ...-GGUF")
    if asked.quant is None:
        found = list(offered)
    else:
        wanted = asked.quant.lower().removesuffix(".gguf")
        found = [one for one in offered if wanted in (one.label.lower(), _stem(one).lower())]
        found = found or [one for one in offered if one.label.lower().endswith((f"-{wanted}", f"_{wanted}"))]
    if len(found) == 1:
        return found[0]
    if found:
        said = f"{asked} may be any of these; say which one, like {asked.repo}:{_clean(found[0].label)}"
    else:
        said = f"{asked.repo} has no {asked.quant}; it has these, named like {asked.repo}:{_clean(offered[0].label)}"
    raise Ambiguous("\n".join((said, *_listed(found or offered))))


def _label(stem: str) -> str:
    path = PurePosixPath(stem)
    for name in (path.name, path.parent.name):
        if found := _QUANT.search(name):
            return found[1]
    return path.name


def _stem(choice: Choice) -> str:
    return _PART.sub("", PurePosixPath(choice.files[0]).stem)


def _listed(offered: Sequence[Choice]) -> list[str]:
    width = max(len(one.label) for one in offered)
    return [
        f"  {_clean(one.label):<{width}}  {one.nbytes / 1e9:7.2f} GB"
        + (f"  in {n} parts" if (n := len(one.files)) > 1 else "")
        for one in offered
    ]


def _clean(label: str) -> str:
    """What a terminal may be shown of a name that somebody gave a file."""
    return "".join(char if char.isprintable() else "?" for char in label)
