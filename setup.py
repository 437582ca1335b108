"""The part of the build that pyproject.toml cannot say: the core's extension is made by cffi."""

from setuptools import setup

setup(cffi_modules=["lmhub/_native_build.py:ffibuilder"])
