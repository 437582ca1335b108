"""The tensor types of the ggml format: number, block length and block size of each.

Knows no file and no arithmetic: `reader.py` uses the table to check sizes, `csrc/dequant.c` gives the bytes a meaning.
The numbers are those of ggml; a block is the smallest run of consecutive elements that is stored as a unit.
"""

from __future__ import annotations

from enum import Enum


class GGMLType(Enum):
    """One tensor type. The member's name is ggml's spelling; its value is (id, elements per block, bytes per block)."""

    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q8_1 = (9, 32, 36)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    Q8_K = (15, 256, 292)
    IQ2_XXS = (16, 256, 66)
    IQ2_XS = (17, 256, 74)
    IQ3_XXS = (18, 256, 98)
    IQ1_S = (19, 256, 50)
    IQ4_NL = (20, 32, 18)
    IQ3_S = (21, 256, 110)
    IQ2_S = (22, 256, 82)
    IQ4_XS = (23, 256, 136)
    I8 = (24, 1, 1)
    I16 = (25, 1, 2)
    I32 = (26, 1, 4)
    I64 = (27, 1, 8)
    F64 = (28, 1, 8)
    IQ1_M = (29, 256, 56)
    BF16 = (30, 1, 2)
    TQ1_0 = (34, 256, 54)
    TQ2_0 = (35, 256, 66)
    MXFP4 = (39, 32, 17)
    NVFP4 = (40, 64, 36)
    Q1_0 = (41, 128, 18)
    Q2_0 = (42, 64, 18)
    PQ2_0 = (142, 128, 34)  # a vendor's; its earlier files have it under the number 42: see `parse.py`

    def __init__(self, id: int, block_elements: int, block_bytes: int):
        self.id = id
        self.block_elements = block_elements
        self.block_bytes = block_bytes

    def row_bytes(self, n_elements: int) -> int:
        """Bytes of `n_elements` consecutive elements, which must be a whole number of blocks."""
        n_blocks, rest = divmod(n_elements, self.block_elements)
        if rest:
            raise ValueError(f"{n_elements} elements are not whole {self.name} blocks of {self.block_elements}")
        return n_blocks * self.block_bytes


BY_ID: dict[int, GGMLType] = {kind.id: kind for kind in GGMLType}

REMOVED: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Numbers that ggml used for a while and gave up; files with them must be made again."""
