"""GGUF model files: reading (`reader.py`), writing (`writer.py`), and expanding their tensors (`quant.py`)."""

from lmhub.gguf.reader import Facts, GGUFFile, Tensor, TypeShare, open_gguf
from lmhub.gguf.types import GGMLType
from lmhub.gguf.writer import GGUFWriter

__all__ = ["Facts", "GGMLType", "GGUFFile", "GGUFWriter", "Tensor", "TypeShare", "open_gguf"]
