"""Messages as publishers sent them: what stands in them, and where they are found again."""

from __future__ import annotations

import re
from typing import NamedTuple

from qpid_ha_broker.model.sets.catalog import Catalog

UNIT_SIZES = 4
_PAYLOAD = re.compile(rb"<[^<>]{7,60}>")


class Copy(NamedTuple):
    """A message as it was sent once; sent again after a failure it is another copy of the same message.

    `unit` says of which transaction it is part: the number of the first, times `UNIT_SIZES`, plus how many; 0: of none.
    """

    publisher: str
    number: int
    attempt: int
    queue: str
    unit: int
    durable: bool = True

    def payload(self) -> bytes:
        """Its bytes; they are part of no other payload, so they can be searched for in frames and files."""
        suffix = "" if self.durable else " transient"
        return f"<{self.publisher} {self.number} {self.attempt} {self.queue} {self.unit}{suffix}>".encode()

    @staticmethod
    def read(payload: bytes) -> Copy:
        publisher, number, attempt, queue, unit, *suffix = payload[1:-1].decode().split()
        return Copy(publisher, int(number), int(attempt), queue, int(unit), not suffix)

    def again(self) -> Copy:
        return self._replace(attempt=self.attempt + 1)


def payloads_in(data: bytes | bytearray | memoryview) -> list[bytes]:
    """The payloads of copies in the bytes of a frame or a file."""
    return _PAYLOAD.findall(data)


def queued_copies(catalog: Catalog) -> dict[str, list[Copy]]:
    """The copies in each queue, in its order."""
    return {
        queue.name: [
            Copy.read(payload) for entry in queue.messages if (payload := entry.resident_body()).startswith(b"<")
        ]
        for queue in catalog.queues.values()
    }


def copies_in(catalog: Catalog) -> set[Copy]:
    """All copies, wherever they are."""
    return {copy for copies in queued_copies(catalog).values() for copy in copies}
