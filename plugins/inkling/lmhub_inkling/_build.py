"""Compiles csrc/inkling.c into `lmhub_inkling._kernels`. Run by setup.py, outside the package."""

from lmhub.build import kernels

ffibuilder = kernels("lmhub_inkling._kernels", "csrc/inkling.c")
