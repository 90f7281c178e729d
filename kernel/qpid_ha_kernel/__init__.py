"""The compiled kernel: C for what is done for each of many messages, where it could be built.

It is optional. Whoever uses it has the same in Python beside it, and the same tests run on both
(docs/decisions/0024-a-compiled-kernel.md). Nothing compiled is imported before `load` is called.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any, Final, NamedTuple

WITHOUT: Final = "QPID_HA_WITHOUT_KERNEL"
"""Set in the environment, there is none, whatever was built: tests run with and without it by that."""
VERSION: Final = 1
"""Of what the C sources declare; as KERNEL_VERSION in `version.h`. A module of other sources is not used."""


class Kernel(NamedTuple):
    """The compiled module, as cffi gives it."""

    ffi: Any
    lib: Any


class NoKernel(NamedTuple):
    """There is none here."""

    reason: str
    """In one line, with what to do."""


@cache
def load() -> Kernel | NoKernel:
    """The kernel, or why there is none; asked once."""
    if os.environ.get(WITHOUT):
        return NoKernel(f"the environment has {WITHOUT}; take it out")
    try:
        from qpid_ha_kernel._kernel import ffi, lib
    except ImportError as error:
        why = "it was not built" if isinstance(error, ModuleNotFoundError) else f"it cannot be loaded ({error})"
        return NoKernel(f"{why}; install gcc and the headers of Python, and install qpid-ha again")
    built = getattr(lib, "KERNEL_VERSION", None)
    if built != VERSION:
        return NoKernel(f"it was built from other sources ({built}, not {VERSION}); install qpid-ha again")
    return Kernel(ffi, lib)
