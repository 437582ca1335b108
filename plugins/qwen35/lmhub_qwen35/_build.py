"""Compiles csrc/qwen35.c into `lmhub_qwen35._kernels`. Run by setup.py, outside the package."""

from lmhub.build import kernels

ffibuilder = kernels("lmhub_qwen35._kernels", "csrc/qwen35.c")
