"""How many file descriptors this process may have, and which of them clients leave to others."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final, NamedTuple

_RESERVED: Final = 256
"""For files of the store, the control socket, channels to other brokers, the coordinator."""
_ENOUGH: Final = 1 << 20
"""More are not asked for, also where there is no limit."""


class Descriptors(NamedTuple):
    """The system gives out the lowest number that is free: so whoever gets one of `for_clients` or more has to give it
    back, and what is above stays free for those who must not be locked out by clients."""

    limit: int
    for_clients: int

    @classmethod
    def of(cls, limit: int) -> Descriptors:
        """With so many in all."""
        return cls(limit, limit - min(_RESERVED, limit // 4))

    @classmethod
    def current(cls) -> Descriptors:
        """As this process is limited now."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls.of(_ENOUGH if soft == resource.RLIM_INFINITY else soft)


def raise_descriptor_limit() -> None:
    """Allow this process as many as it may allow itself: the soft limit is often 1024, whatever the hard one is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_descriptors() -> int:
    """How many this process has. Reads as many entries: not on the loop.

    Source: proc(5).
    """
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
