"""Old segments of the journal into one snapshot, without making a message of any record.

A first pass over all segments notes what was removed, a second one copies what is left. What becomes of a record:

1. A durable message of one queue, outside of a transaction, that is still there: it is copied, undecoded, in one run of
   bytes with its neighbours.
2. One of several queues, with a key or of a transaction: it is decoded; it is written anew where some of the queues do
   not have it any more, or it was part of a unit.
3. A message that was removed, whose queue was deleted, that was there before its queue was emptied, or that is not
   durable: it is left out.
4. A removal: it is left out. One without a message to it was of one that is not durable, and is subtracted from their
   number; unless nobody can judge that (`Loader.is_doubtful`), because the snapshot was made beside the broker.
5. Failed deliveries: one record for many messages, behind all of them, and only of those that are still there. What
   consumers have said of messages: what counts in the end, one record for each.
6. Queues, exchanges, bindings, generations and producers: as the state has them in the end, before all messages.

The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode, encode
from qpid_ha_broker.events.layout import (
    ENQUEUED,
    HEADER_WORDS,
    ONE_QUEUE,
    PART,
    PLAIN,
    SEAL,
    WORDS,
    RecordKind,
    is_local_lsn,
    word_of,
)
from qpid_ha_broker.model.sets.resource_set import ResourceSets

from .blocks import Block, BlockKind, FileHeader
from .errors import StoreError
from .files import Disk
from .journal import Identity
from .layout import segment_path, snapshot_path
from .loader import Contents, Loader
from .reader import JournalReader
from .reading import header_of
from .snapshot import SnapshotEnd, SnapshotWriter, configuration_events
from .survey import Survey, survey

_ENQUEUED: Final = word_of(RecordKind.ENQUEUED)
"""No part of a unit. The next likewise."""
_DEQUEUED: Final = word_of(RecordKind.DEQUEUED)
_OTHER_MESSAGES: Final = frozenset(
    (word_of(RecordKind.ENQUEUED, PART), word_of(RecordKind.SCHEDULED), word_of(RecordKind.SCHEDULED, PART))
)
"""A message of a unit, or one that is due later."""
_SEALED: Final = SEAL.end
_DURABLE_AT: Final = ENQUEUED.offsets["durable"]
_IDS_PER_EVENT: Final = 65_536


class FoldError(StoreError):
    """These segments cannot be folded now; nothing is wrong with them."""


class Folded(NamedTuple):
    """What came of it."""

    path: str
    messages: int
    bytes_read: int
    bytes_written: int
    last_lsn: int
    local_lsn: int


def fold(disk: Disk, upto: int, identity: Identity) -> Folded:
    """Make snapshot `upto` of the newest snapshot before it and the closed segments in between.

    The caller has seen to it that all of these are committed, and that no later segment takes anything of them back.
    Changes nothing else. Raises FoldError, StoreDamaged, NewerFormat, OSError.
    """
    if disk.exists(snapshot_path(upto)):
        raise FoldError(f"{snapshot_path(upto)} is there already")
    if not disk.exists(segment_path(upto)):
        raise FoldError(f"{segment_path(upto)} is not there: only what comes before a segment can be folded")
    surveyed = survey(disk, upto)
    if surveyed.dropped or not surveyed.segments:
        raise FoldError(f"there is nothing to fold before {segment_path(upto)}")
    gathered = Gatherer(ResourceSets())
    base, bytes_read = gather(disk, surveyed, gathered)
    last = surveyed.segments[-1]
    last_lsn, local_lsn = last.last_lsn or base.last_lsn, last.local_lsn
    if base.counts_lsn > last_lsn or base.local_counts_lsn > local_lsn:
        raise FoldError(f"{last.path} ends before all that went into the snapshot is in the journal: fold more")
    writer = SnapshotWriter(disk, _header(disk, surveyed, upto, identity, last_lsn, local_lsn))
    try:
        for lsn, event in configuration_events(gathered.sets, last_lsn, local_lsn):
            writer.add(encode(lsn, event))
        sieve = Sieve(gathered)
        for part in JournalReader(disk, surveyed).blocks():
            if part.block.kind is BlockKind.EVENTS:
                for piece in part.feed(sieve.sift):
                    writer.add(piece)
        for records in sieve.failures(last_lsn, local_lsn):
            writer.add(records)
        for record in sieve.annotations(last_lsn, local_lsn):
            writer.add(record)
        transient = base.transient + surveyed.left_out + gathered.transient - sieve.unmatched
        writer.finish(SnapshotEnd(last_lsn, local_lsn, last_lsn, local_lsn, sieve.messages, max(transient, 0)))
    except BaseException:
        writer.abandon()
        raise
    return Folded(snapshot_path(upto), sieve.messages, bytes_read, writer.size, last_lsn, local_lsn)


def gather(disk: Disk, surveyed: Survey, gatherer: Gatherer) -> tuple[SnapshotEnd, int]:
    """Let `gatherer` note what is gone; how the snapshot ended on which the journal goes on, and how much was read.

    Raises StoreDamaged, OSError.
    """
    reader = JournalReader(disk, surveyed)
    if surveyed.snapshot is not None:
        gatherer.begin_snapshot()
    for part in reader.blocks():
        if part.block.kind is BlockKind.END:
            gatherer.end_snapshot(reader.base)
        else:
            part.feed(gatherer.load)
            gatherer.block_loaded(part.block)
    return reader.base, reader.bytes_read


def _header(disk: Disk, surveyed: Survey, upto: int, identity: Identity, last_lsn: int, local_lsn: int) -> FileHeader:
    """Its time is that of the segment which follows: a clock would make each run another one."""
    following = header_of(disk, segment_path(upto))
    generation = surveyed.segments[-1].header.generation
    return FileHeader(
        "snapshot", *identity, upto, generation, last_lsn + 1, local_lsn + 1,
        following.created_ms, 0, False, following.store, status_revision=following.status_revision,
    )  # fmt: skip


class Gatherer(Loader):
    """A loader that loads no messages, but notes which of them are gone."""

    def __init__(self, sets: ResourceSets) -> None:
        super().__init__(sets)
        self.sets = sets
        self.removed: dict[int, set[int]] = {queue_id: set() for queue_id in sets.catalog.queues_by_id}
        self.doubtful: dict[int, set[int]] = {}
        """Those of them that may have been gone before anybody counted, unless a record tells of them."""
        self._doubtful_upto = 0
        self.is_fuzzy = False
        """The snapshot was made while the broker went on."""
        self.emptied: dict[int, tuple[int, int]] = {}
        """Queues that were emptied: in which block, and with which LSN."""
        self._block = 0

    def failures_of(self, queue_id: int) -> dict[int, int]:
        """Failed deliveries, of messages that may be gone."""
        return self._contents[queue_id].failures

    def annotations_of(self, queue_id: int) -> dict[int, bytes]:
        """What consumers have said of messages that may be gone."""
        return self._contents[queue_id].annotations

    def load(self, data: bytes) -> None:
        """As `Loader.load`."""
        unpack = HEADER_WORDS.unpack_from
        offset, end = 0, len(data)
        least, last, durable_at, sealed_at = PLAIN.size, end - PLAIN.size, _DURABLE_AT, _SEALED
        self._block += 1
        while offset < end:
            if offset <= last:
                size, checksum, lsn, word = unpack(data, offset)
                stop = offset + size
                if word == _ENQUEUED and data[offset + durable_at]:
                    if size >= least and stop <= end and crc32(data[offset + sealed_at : stop]) == checksum:
                        offset = stop
                        continue
                elif word == _DEQUEUED and stop <= end and self._load_dequeued(lsn, data, offset, size, checksum):
                    offset = stop
                    continue
            offset = self._load_others(data, offset)

    def block_loaded(self, block: Block) -> None:
        """All records of a block were given to `load`: for who notes more."""

    def _enqueued(self, lsn: int, event: ev.Enqueued) -> None:
        if not event.durable:
            self.transient += len(event.queues)

    def _dequeued(self, lsn: int, contents: Contents, ids: tuple[int, ...]) -> None:
        queue_id = contents.ids[0]
        self.removed[queue_id].update(ids)
        if lsn <= self._doubtful_upto or is_local_lsn(lsn) or contents.was_emptied:
            doubtful = [message_id for message_id in ids if self.is_doubtful(lsn, contents, message_id)]
            self.doubtful.setdefault(queue_id, set()).update(doubtful)

    def end_snapshot(self, end: SnapshotEnd) -> None:
        """As `Loader.end_snapshot`."""
        super().end_snapshot(end)
        self._doubtful_upto = end.counts_lsn
        self.is_fuzzy = end.counts_lsn > end.last_lsn or end.local_counts_lsn > end.local_lsn

    def _configured(self, lsn: int, event: ev.Event) -> None:
        super()._configured(lsn, event)
        if isinstance(event, ev.QueueDeclared):
            self.removed[lsn] = set()
        elif isinstance(event, ev.ReplicationChanged):
            self.emptied[event.queue] = self._block, lsn
        for queue_id in [queue for queue in self.removed if queue not in self._contents]:
            del self.removed[queue_id]
            self.doubtful.pop(queue_id, None)


class Sieve:
    """Lets through the records of messages that are still there."""

    def __init__(self, gathered: Gatherer) -> None:
        self._gathered = gathered
        self._removed = gathered.removed
        self._doubtful = gathered.doubtful
        self._shared: set[tuple[int, int]] = set()
        """Queue and LSN of what was removed, and of which a snapshot made beside the broker may tell once more."""
        self._noted: dict[int, dict[int, int]] = {}
        """Messages that failed, or of which something was said: 1 once it is known that they are there."""
        self._block = 0
        self._matched = 0
        self.messages = 0
        for queue_id in sorted(self._removed):
            if noted := {**gathered.failures_of(queue_id), **gathered.annotations_of(queue_id)}:
                self._noted[queue_id] = dict.fromkeys(noted, 0)

    @property
    def unmatched(self) -> int:
        """Removals of messages that no record tells of: they were not durable."""
        certain = sum(map(len, self._removed.values())) - sum(map(len, self._doubtful.values()))
        return certain - self._matched

    def sift(self, data: bytes) -> list[bytes]:
        """What stays of the records of a block, whose checksums were looked at before."""
        unpack, view, end, shared = WORDS.unpack_from, memoryview(data), len(data), self._shared
        pieces: list[bytes] = []
        last, one_queue = end - PLAIN.size, ONE_QUEUE
        offset, start = 0, -1
        self._block += 1
        current, gone, noted, special, doubtful = -1, None, None, False, None
        passed = 0
        while offset < end:
            lengths = durable = queue = 0
            if offset <= last:
                size, _, lsn, word, durable, _, _, lengths, queue = unpack(data, offset)
            else:
                size, _, lsn, word = HEADER_WORDS.unpack_from(data, offset)
            if word == _ENQUEUED and lengths == one_queue:
                if queue != current:
                    current, gone, noted = queue, self._removed.get(queue), self._noted.get(queue)
                    special, doubtful = queue in self._gathered.emptied, self._doubtful.get(queue)
                if gone is not None and lsn in gone:
                    if doubtful or shared:
                        self._match(queue, lsn)
                    else:
                        self._matched += 1
                elif gone is not None and durable and not (special and self._is_emptied(queue, lsn)):
                    passed += 1
                    if noted is not None and lsn in noted:
                        noted[lsn] = 1
                    if start < 0:
                        start = offset
                    offset += size
                    continue
            if start >= 0:
                pieces.append(bytes(view[start:offset]))
                start = -1
            if word in _OTHER_MESSAGES or (word == _ENQUEUED and lengths != one_queue):
                pieces += self._other(bytes(view[offset : offset + size]))
            offset += size
        if start >= 0:
            pieces.append(bytes(view[start:]))
        self.messages += passed
        return pieces

    def _other(self, record: bytes) -> list[bytes]:
        """A message of several queues, with a key, of a transaction, or that is due later."""
        (lsn, event, part), *_ = decode(record).records
        if not isinstance(event, ev.Enqueued) or not event.durable:
            return []
        queues = tuple([queue_id for queue_id in event.queues if self._is_there(queue_id, lsn)])
        if not queues:
            return []
        self.messages += 1
        if queues == event.queues and not part:
            return [record]
        return [encode(lsn, event._replace(queues=queues))]

    def _is_there(self, queue_id: int, lsn: int) -> bool:
        gone = self._removed.get(queue_id)
        if gone is None:
            return False
        if lsn in gone:
            self._match(queue_id, lsn)
            if self._gathered.is_fuzzy:
                self._shared.add((queue_id, lsn))
            return False
        if self._is_emptied(queue_id, lsn):
            return False
        noted = self._noted.get(queue_id)
        if noted is not None and lsn in noted:
            noted[lsn] = 1
        return True

    def _match(self, queue_id: int, lsn: int) -> None:
        """A record tells of what was removed from that queue."""
        if (queue_id, lsn) not in self._shared:
            self._matched += 1
            self._doubtful.get(queue_id, set()).discard(lsn)

    def _is_emptied(self, queue_id: int, lsn: int) -> bool:
        """Whether its queue was emptied after that. Each log has its own blocks."""
        emptied = self._gathered.emptied.get(queue_id)
        if emptied is None:
            return False
        return self._block < emptied[0] if is_local_lsn(lsn) else lsn < emptied[1]

    def failures(self, last_lsn: int, local_lsn: int) -> Iterator[bytes]:
        """Records that tell how often messages which are still there were delivered in vain."""
        for queue_id, noted in self._noted.items():
            counts = self._gathered.failures_of(queue_id)
            ids = sorted(message_id for message_id, is_there in noted.items() if is_there and message_id in counts)
            for count in range(1, max((counts[message_id] for message_id in ids), default=0) + 1):
                often = [message_id for message_id in ids if counts[message_id] >= count]
                now = local_lsn if is_local_lsn(often[0]) else last_lsn
                for at in range(0, len(often), _IDS_PER_EVENT):
                    yield encode(now, ev.Released(queue_id, tuple(often[at : at + _IDS_PER_EVENT]), True))

    def annotations(self, last_lsn: int, local_lsn: int) -> Iterator[bytes]:
        """Records that tell what consumers have said of messages which are still there."""
        for queue_id, noted in self._noted.items():
            said = self._gathered.annotations_of(queue_id)
            for message_id in sorted(message_id for message_id, is_there in noted.items() if is_there):
                if message_id in said:
                    now = local_lsn if is_local_lsn(message_id) else last_lsn
                    yield encode(now, ev.Annotated(queue_id, (message_id,), said[message_id]))
