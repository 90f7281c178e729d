"""A hundred thousand connections of clients, one after the other, in a broker's memory that stays as it was.

It counts what C has allocated, too: Proton's objects, and Python's larger ones. For the kinds of what clients may leave
behind, a few of each, see tests/unit/test_growth.py.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import pytest

from live_objects import no_collector
from paired_engines import PairedBroker, PairedClient
from paired_proxy import PairedProxy
from session_clients import open_session
from session_support import FIRST

ROUNDS = 100_000
WARM_UP = 5_000
PER_ROUND_BYTES = 8
"""Less than any object takes: a leak of one in each round is more."""


class _Mallinfo2(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated_bytes() -> int:
    """What malloc has given out and not got back."""
    mallinfo2: Any = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo2
    told = mallinfo2()
    return int(told.uordblks + told.hblkhd)


def connects(broker: PairedBroker) -> PairedClient:
    return broker.connect()


def has_a_session_and_links(broker: PairedBroker) -> PairedClient:
    client = open_session(broker, FIRST)
    client.receiver("q", 1)
    client.sender("q")
    return client


@pytest.mark.parametrize("way", ["direct", "proxied"])
@pytest.mark.parametrize(("comes", "rounds"), [(connects, ROUNDS), (has_a_session_and_links, ROUNDS // 20)])
def test_memory_is_flat(comes: Callable[[PairedBroker], PairedClient], rounds: int, way: str) -> None:
    proxy = PairedProxy() if way == "proxied" else None
    primary = PairedBroker() if proxy is None else proxy.primary
    entry = primary if proxy is None else proxy.proxy
    broker = primary if proxy is None else cast(PairedBroker, proxy)
    primary.container.default.configuration.declare_queue("q", {})

    def each() -> None:
        client = comes(broker)
        client.vanish()
        broker.settle_down()
        entry.clients.remove(client)
        client.transport.unbind()
        for paired in (primary, entry):
            paired.batches.clear()
            paired.container.take_notices()

    with no_collector():
        for _ in range(min(WARM_UP, rounds // 4)):
            each()
        before = allocated_bytes()
        for _ in range(rounds):
            each()
        more = allocated_bytes() - before
    assert more < PER_ROUND_BYTES * rounds
