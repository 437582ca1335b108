"""Compiles csrc/qwen3.c into `lmhub_qwen3._kernels`. Run by setup.py, outside the package."""

from lmhub.build import kernels

ffibuilder = kernels("lmhub_qwen3._kernels", "csrc/qwen3.c")
