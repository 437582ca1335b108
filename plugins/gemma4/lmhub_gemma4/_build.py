"""Compiles csrc/gemma.c into `lmhub_gemma4._kernels`. Run by setup.py, outside the package."""

from lmhub.build import kernels

ffibuilder = kernels("lmhub_gemma4._kernels", "csrc/gemma.c")
