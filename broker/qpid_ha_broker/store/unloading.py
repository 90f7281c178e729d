"""A restart with more messages than fit into memory: once there is enough, payloads are left where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import Body, BodyRef

from .bodies import Bodies, records_in
from .reader import Part

Messages = Callable[[], Mapping[int, MutableMapping[int, tuple[MessageHeader, Body]]]]
"""What was loaded so far: headers and bodies by LSN, by queue."""
_GONE: Final = MessageHeader((), False, 0, 0, ""), None


class Unloading:
    """The promise: the payloads that are in memory come from no more than so many bytes of records, and one block."""

    def __init__(self, bodies: Bodies, memory_bytes: int) -> None:
        self._bodies = bodies
        self._left_bytes = memory_bytes

    def loaded(self, part: Part, messages: Messages) -> None:
        """What counts of it has been loaded."""
        self._left_bytes -= part.block.length
        if self._left_bytes >= 0:
            return
        source, here = self._bodies.file(part.path), messages()
        for by_queue in records_in(part.block.data, part.block.data_at):
            for queue, records in by_queue.items():
                loaded = here.get(queue, {})
                for lsn, offset in zip(records.lsns, records.offsets, strict=True):
                    header, body = loaded.get(lsn, _GONE)
                    if type(body) is bytes and part.after < lsn <= part.limit:
                        loaded[lsn] = header, BodyRef(lsn, source, offset, len(body))
