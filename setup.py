"""What setup.cfg cannot say: the compiled kernel, which is left out where it cannot be built."""

from setuptools import setup

setup(cffi_modules=["kernel/qpid_ha_kernel/build.py:builder"])
