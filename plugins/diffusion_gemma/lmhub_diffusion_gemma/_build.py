"""Compiles csrc/canvas.c into `lmhub_diffusion_gemma._kernels`. Run by setup.py, outside the package."""

from lmhub.build import kernels

ffibuilder = kernels("lmhub_diffusion_gemma._kernels", "csrc/canvas.c")
