"""GGUF model files: reading (`reader.py`), writing (`writer.py`), and expanding their tensors (`quant.py`)."""

from lmhub.gguf.reader import Copied, Facts, GGUFFile, Part, Tensor, TypeShare, open_gguf, tensors_of
from lmhub.gguf.types import GGMLType
from lmhub.gguf.writer import GGUFWriter

__all__ = [
    "Copied", "Facts", "GGMLType", "GGUFFile", "GGUFWriter", "Part", "Tensor", "TypeShare", "open_gguf", "tensors_of",
]  # fmt: skip
