"""Compiles csrc/nanochat.c into `lmhub_nanochat._kernels`. Run by setup.py, outside the package."""

from lmhub.build import kernels

ffibuilder = kernels("lmhub_nanochat._kernels", "csrc/nanochat.c")
