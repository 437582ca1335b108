"""Only what pyproject.toml cannot say: the C module, built for the limited API where the interpreter has one."""

import sysconfig

from setuptools import setup

limited = not sysconfig.get_config_var("Py_GIL_DISABLED")
setup(
    cffi_modules=["lmhub_diffusion_gemma/_build.py:ffibuilder"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if limited else {},
)
