"""Loads a qwen35 or qwen35moe file."""

from __future__ import annotations

from lmhub.errors import UnsupportedModel
from lmhub.family import LoadOptions
from lmhub.gguf import GGUFFile
from lmhub.model import CausalLM, MemoryPlan


def load(file: GGUFFile, options: LoadOptions) -> CausalLM:
    """Raises UnsupportedModel: the forward pass is not there yet."""
    raise UnsupportedModel(f"{file.path.name}: the forward pass of qwen35 is not there yet; use another model.")


def plan(file: GGUFFile, options: LoadOptions) -> MemoryPlan:
    """What loading would take, from the tensor directory."""
    return MemoryPlan(sum(tensor.nbytes for tensor in file.tensors.values()), 0, 0)
