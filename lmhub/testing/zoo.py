"""`FamilyZoo`: a family against stored logits of other implementations, on golden models beside the repository.

    class TestQwen3Zoo(FamilyZoo):
        plugin = "lmhub_qwen3"
        float32 = ("qwen3", "qwen3-yarn")
        quantised = (("qwen3", "q8_0"), ("qwen3", "q4_k_m"))
        invariant = (("qwen3", "f32"),)

A folder of the zoo holds `model-KIND.gguf` files and one `golden.npz` (see `golden`). Where there is no zoo, all is
skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import lmhub
from lmhub.testing import drive
from lmhub.testing.cases import Cases, Named
from lmhub.testing.golden import Golden


class FamilyZoo(Cases):
    """Subclass with `plugin` and the attributes below."""

    float32: ClassVar[Sequence[str]]
    """Folders whose `model-f32.gguf` must agree at every position, and continue greedily as stored."""
    quantised: ClassVar[Sequence[tuple[str, str]]]
    """(folder, kind) of files that may be as far off as an engine with 8-bit activations is."""
    copies: ClassVar[Sequence[tuple[str, str]]] = ()
    """(folder, kind) of files that hold the same values as the F32 one."""
    invariant: ClassVar[Sequence[tuple[str, str]]]
    """(folder, kind) of files with which cuts and neighbours are tried."""
    prompts: ClassVar[Sequence[str]] = ("rand5", "text", "rand130")
    """Those of the archives that `invariant` takes; the second one is cut."""
    n_ctx: ClassVar[int] = 700

    @classmethod
    def cases(cls) -> dict[str, Named]:
        files = {"quantised_file": cls.quantised, "copy": cls.copies, "invariant_file": cls.invariant}
        return {
            "folder": [(folder, folder) for folder in cls.float32],
            **{argument: [("-".join(file), file) for file in found] for argument, found in files.items()},
        }

    def load(self, zoo: Path, folder: str, kind: str) -> Any:
        """The model in a file of the zoo."""
        return drive.load(self.plugin, zoo / folder / f"model-{kind}.gguf", self.n_ctx)

    def test_every_position_of_float32_files(self, zoo: Path, folder: str) -> None:
        Golden(zoo / folder / "golden.npz").check_exact(self.load(zoo, folder, "f32"))

    def test_greedy_continuations(self, zoo: Path, folder: str) -> None:
        Golden(zoo / folder / "golden.npz").check_greedy(self.load(zoo, folder, "f32"))

    def test_files_are_served(self, zoo: Path, folder: str) -> None:
        """Found by their architecture, with their own tokenizer: what the tests above go around."""
        with lmhub.open(str(zoo / folder / "model-f32.gguf"), ctx=64) as model:
            assert model.complete("One, two,", max_tokens=3, temperature=0).usage.completion_tokens > 0

    def test_other_forms_of_the_same_weights(self, zoo: Path, copy: tuple[str, str]) -> None:
        Golden(zoo / copy[0] / "golden.npz").check_exact(self.load(zoo, *copy))

    def test_quantised_files_are_as_close_as_an_8_bit_engine(self, zoo: Path, quantised_file: tuple[str, str]) -> None:
        folder, kind = quantised_file
        Golden(zoo / folder / "golden.npz").check_quantised(self.load(zoo, folder, kind), kind)

    def test_cuts_and_neighbours_do_not_matter(self, zoo: Path, invariant_file: tuple[str, str]) -> None:
        golden = Golden(zoo / invariant_file[0] / "golden.npz")
        golden.check_cuts_and_neighbours(self.load(zoo, *invariant_file), self.prompts, self.n_ctx)
