"""Compiles csrc/llama.c into `lmhub_llama._kernels`. Run by setup.py, outside the package."""

from lmhub.build import kernels

ffibuilder = kernels("lmhub_llama._kernels", "csrc/llama.c")
