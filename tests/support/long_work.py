"""Commands of one client that mean work on very many objects: each makes them first, and then gives the command."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

from attackers import HOST, attached
from blocking_client import BlockingClient, Management
from raw_peer import FLOW, message, transfer

MANY: Final = 200_000
_ROUND: Final = 500
"""Messages after which a new link's credit of 1000 is given back."""
_NUMBER: Final = 0x01020304
_NUMBER_BYTES: Final = struct.pack(">I", _NUMBER)


def fill(port: int, address: str, count: int = MANY) -> None:
    """Publish so many small messages."""
    one = transfer(0, _NUMBER, message(b"x"), settled=True)
    with attached(port, address) as peer:
        for start in range(0, count, _ROUND):
            numbers = range(start, min(start + _ROUND, count))
            peer.send(b"".join(one.replace(_NUMBER_BYTES, struct.pack(">I", number)) for number in numbers))
            if len(numbers) == _ROUND:
                peer.expect(FLOW)


def purge(port: int) -> None:
    """Of a long queue."""
    with BlockingClient(f"amqp://{HOST}:{port}") as client:
        management = Management(client)
        management.create_queue("long")
        fill(port, "long")
        purged = management.ask("PURGE", type="queue", name="long").body["purged"]
        if purged != MANY:
            raise AssertionError(f"{purged} of {MANY} messages were purged")


LONG_WORK: Final[Mapping[str, Callable[[int], None]]] = {each.__name__: each for each in (purge,)}
