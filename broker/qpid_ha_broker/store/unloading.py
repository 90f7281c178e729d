"""A restart with more messages than fit into memory: once there is enough, payloads are left where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping

from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.paged import Outline, PagedMessage, Shapes

from .blocks import BLOCK_HEADER_BYTES, Block
from .bodies import Bodies, records_in

Messages = Callable[[], Mapping[int, MutableMapping[int, Outline]]]
"""What was loaded so far: messages by LSN, by queue."""


class Unloading:
    """The promise: the payloads that are in memory come from no more than so many bytes of records, and one block."""

    def __init__(self, bodies: Bodies, memory_bytes: int) -> None:
        self._bodies = bodies
        self._left_bytes = memory_bytes
        self._shapes = Shapes()

    def loaded(self, name: str, block: Block, after: int, upto: int, messages: Messages) -> None:
        """The records of `block` of that file with LSNs above `after` and up to `upto` have been loaded."""
        self._left_bytes -= block.length
        if self._left_bytes >= 0:
            return
        source, here = self._bodies.file(name), messages()
        for part in records_in(block.data, block.offset + BLOCK_HEADER_BYTES):
            for queue, records in part.items():
                loaded = here.get(queue, {})
                for lsn, offset in zip(records.lsns, records.offsets, strict=True):
                    event = loaded.get(lsn)
                    if type(event) is Enqueued and after < lsn <= upto:
                        loaded[lsn] = PagedMessage(lsn, self._shapes.of(event), source, offset)
