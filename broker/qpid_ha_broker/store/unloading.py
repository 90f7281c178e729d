"""What a restart leaves on disk: payloads for which there is no room, and messages that a snapshot's index tells of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Final

from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import Body, BodyRef

from .blocks import FileHeader
from .bodies import Bodies, records_in
from .errors import BlockError
from .files import Disk, bytes_of
from .layout import snapshot_index_path, snapshot_path
from .reader import Part
from .snapshot_index import SnapshotIndex, read_index

COLD_FROM_BYTES: Final = 32 * 1024 * 1024
"""Of a snapshot: less than that is read in half a second."""

Messages = Callable[[], Mapping[int, MutableMapping[int, tuple[MessageHeader, Body]]]]
"""What was loaded so far: headers and bodies by LSN, by queue."""
_GONE: Final = MessageHeader((), False, 0, 0, ""), None


class Unloading:
    """The promise: the payloads that are in memory come from no more than so many bytes of records, and one block."""

    def __init__(self, bodies: Bodies, memory_bytes: int, cold_from_bytes: int = COLD_FROM_BYTES) -> None:
        """`cold_from_bytes`: a snapshot that is smaller is read as a whole, so that its messages are in memory."""
        self._bodies = bodies
        self._left_bytes = memory_bytes
        self._cold_from_bytes = cold_from_bytes
        self.note = ""
        """Why an index that is there was of no use, for an operator; empty: nothing is to be said."""

    def index_of(self, disk: Disk, snapshot: FileHeader) -> SnapshotIndex | None:
        """The index of a snapshot, if it saves reading much. Raises OSError."""
        path = snapshot_path(snapshot.number)
        if bytes_of(disk, path) < self._cold_from_bytes:
            return None
        try:
            index = read_index(disk, snapshot, self._bodies.file(path))
        except BlockError as error:
            self.note = f"{snapshot_index_path(snapshot.number)} is of no use, so all of {path} was read: {error}"
            return None
        if index is not None:
            self._bodies.unchecked.append(path)
        return index

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
