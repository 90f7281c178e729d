"""Which way engines in this process take: the compiled kernel's, where it was built, or plain Python's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qpid_ha_broker.amqp.wire.batches import fits, use_kernel
from qpid_ha_kernel import Kernel, NoKernel, load

WAYS = ("kernel", "python")


def use_what_is_built() -> None:
    """As a broker does with `kernel: auto`."""
    kernel = load()
    use_kernel(kernel if isinstance(kernel, Kernel) and fits(kernel) else None)


@contextmanager
def engines_of(way: str) -> Iterator[None]:
    """Engines that are made meanwhile go that way."""
    kernel = load()
    if way == "python":
        use_kernel(None)
    elif isinstance(kernel, NoKernel):
        pytest.skip(f"NOT TESTED: {kernel.reason} (./dev setup, or kernel/qpid_ha_kernel/build.py)")
    else:
        assert fits(kernel)
        use_kernel(kernel)
    yield
    use_what_is_built()
