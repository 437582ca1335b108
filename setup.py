"""The part of the build that pyproject.toml cannot say: cffi compiles the core extension for the stable ABI."""

from setuptools import setup

setup(
    cffi_modules=["lmhub/_native_build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
