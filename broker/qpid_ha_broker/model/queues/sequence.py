"""Messages of one queue in order of arrival, where one can leave from the middle and come back to its place.

Messages are in blocks, in the order in which they came. One that is taken leaves its slot to itself, one that is
released goes back to its slot, and a block without messages is unlinked. A cursor is a block and an index, so nothing
that happens elsewhere moves it.

A block is cold, closed or open. Closed, it is columns: ids, headers and bodies, of messages that are all here and that
nobody ever had, which is what a message at rest is. Open, it is entries, one for each message; it is opened as soon as
anybody asks for one of them, and closed again once others were opened, if all are as they came and nobody refers to
one. Cold, it is closed and packed: of messages that are on disk alone, as a snapshot has them. The promise: which of
these a block is, nobody sees, and an `Entry` is the only one of its message, as long as somebody has it:

1. A plain message comes: it goes into the columns of the last block, if that is closed.
2. A message comes that may expire or has a key: somebody will keep its entry, and the last block is opened.
3. A consumer, or whoever looks for a message, gets to a block: it is opened.
4. It has gone on, or looked elsewhere: the block is closed if it may be.
5. Only ids are asked for: closed blocks know them.
6. A broker starts: what its snapshot's index tells of comes as cold blocks, for which no record is read.
7. A cold block is opened, as in 3.: its bodies are paged out, and come as any others do, or all at once. Closed as in
   4., it is cold again if no body came, or is in another file since.
8. A newer snapshot replaces the file in which a cold block's messages are: it stays cold, and points to the new one.
9. A block is full and two others came behind it, or it is closed again: its bodies, if they are small and nobody else
   has one, are joined to one, because each of them takes 44 bytes besides what is in it.

| from | by | to |
| --- | --- | --- |
| | 1. | closed |
| | 6. | cold |
| closed, cold | 2., 3. | open |
| cold | its bodies come | closed |
| open | 4. | closed |
| open | 7. | cold |
| cold | other ids (`renumber`) | closed |

Append, take and remove cost the same at any depth; a queue of a million needs no rebalancing and no lookup by key. What
is released at the front makes the next cursor step over everything that consumers hold: that costs by their number.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, repeat
from operator import attrgetter
from typing import Final, NamedTuple, cast

from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.model.errors import fresh
from qpid_ha_broker.model.queues.cold import ColdMessages
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import Body, BodyDamaged, BodyRef, read_bodies
from qpid_ha_broker.model.work import Task

NO_LIMIT = 1 << 64
"""Above all ids."""
BLOCK_LENGTH = 512
THIN_LENGTH = 16
"""A full block with so few left lets go of its tombstones: one message that nobody wants must not keep 511 others."""
SEAL_LENGTH = 64
"""An emptied last block of at least this many is closed, so that an idle queue keeps no tombstones."""

OPENED_LENGTH: Final = 4
"""So many blocks that were opened stay so, at least: whoever looks goes from one to the next and back."""

JOINED_BYTES: Final = 256
"""Bodies of a block at rest are joined if they are this small on average: to join larger ones gains little."""

_JOINED_SAMPLE: Final = 64
"""One of so many says how large they are: to look at each of those that are large is all that this would cost them."""

JOINED_BEHIND: Final = 2
"""A full block is looked at for that when so many full ones are behind it."""

_entry_id = attrgetter("id")
_first_id = attrgetter("first_id")
_header, _body = attrgetter("header"), attrgetter("body")
_history = attrgetter("holder", "delivery_count", "acquired_before")
_NO_HISTORY: Final = (None, 0, False)


class SessionOwner(NamedTuple):
    """A link of a client's session."""

    id: int
    name: str
    """The session's UUID."""
    link: str


class Holder:
    """Whoever has a message: a consumer, a transaction that accepted it, or one of the marks below."""

    __slots__ = ()

    session_owner: SessionOwner | None = None
    """For whom the log holds what it has; None: it goes back when the holder does."""


GONE = Holder()
"""Holds what has left the queue."""
ELSEWHERE = Holder()
"""Holds what was acquired at another broker, as the log tells."""
DISPLACED = Holder()
"""Holds what has to go so that something newer fits, until it has gone."""
EXPIRED = Holder()
"""Holds what has expired, until it has gone."""
WAITING = Holder()
"""Holds what nobody gets before a time to come: nobody has it, and it can leave its queue as what is available can."""
SUBMITTED = Holder()
"""Holds what is to leave, or to come back, until the group of its set has given that a place."""


class JoinedBodies:
    """Bodies behind each other in one object."""

    __slots__ = ("_data", "_ends")

    def __init__(self, bodies: Collection[bytes]) -> None:
        self._data = b"".join(bodies)
        self._ends = array("I", accumulate(map(len, bodies)))

    def split(self) -> list[bytes]:
        """An object for each again."""
        data, ends = self._data, self._ends
        return [data[start:end] for start, end in zip(chain((0,), ends), ends, strict=False)]


def _size_of_some(bodies: Sequence[bytes]) -> float:
    """Bytes of each, about. Nothing refers to any of them longer than this takes."""
    some = bodies[::_JOINED_SAMPLE]
    return sum(map(len, some)) / len(some)


class SequenceBlock:
    """A run of messages. `live` counts those that are still in the queue.

    Open: `entries` has them, `ids`, `headers` and `bodies` are empty. Closed: the other way round, and `headers` is one
    for all of them, if they are alike; `bodies` is empty once they are `joined`. Cold: it is closed, `cold` has them,
    and all else is empty. What is empty is one list for all blocks: ten thousand queues have a block each.
    """

    __slots__ = (
        "bodies", "cold", "entries", "first_id", "headers", "ids", "is_closed", "joined", "live", "next", "waiting",
        "was_cold",
    )  # fmt: skip

    def __init__(self, first_id: int) -> None:
        self.first_id = first_id
        self.live = 0
        self.waiting = 0
        """Of `live`, those that WAITING holds."""
        self.next: SequenceBlock | None = None
        self.is_closed = True
        self.entries: list[Entry] = _NO_ENTRIES
        self.ids: array[int] = _NO_IDS
        self.headers: list[MessageHeader] = _NO_HEADERS
        self.bodies: list[Body] = _NO_BODIES
        self.joined: JoinedBodies | None = None
        self.cold: ColdMessages | None = None
        self.was_cold: ColdMessages | None = None
        """Of an open block: what it was, and may be again. None once a body of it is elsewhere."""

    def __len__(self) -> int:
        """With those that have left."""
        if self.cold is not None:
            return self.cold.count
        return len(self.ids) if self.is_closed else len(self.entries)

    def empty(self) -> None:
        """Nothing is in it any more, nor was."""
        self.is_closed = True
        self.waiting = 0
        self.cold = self.was_cold = self.joined = None
        self.entries, self.ids, self.headers, self.bodies = _NO_ENTRIES, _NO_IDS, _NO_HEADERS, _NO_BODIES

    def extend_columns(self, ids: Sequence[int], header: MessageHeader, bodies: Sequence[Body]) -> None:
        """More messages, which are plain."""
        if not self.ids:  # which is the one list of all that are empty
            self.ids, self.headers, self.bodies = array("Q"), [], []
        self.ids.extend(ids)
        self.headers += [header] * len(ids)
        self.bodies += bodies

    def opened(self) -> list[Entry]:
        """Its entries, made now if it was closed."""
        if self.is_closed:
            if (cold := self.cold) is not None:
                self.unpack()
                self.was_cold = cold
            headers = self.headers if len(self.headers) == len(self.ids) else repeat(self.headers[0])
            bodies = self.bodies if self.joined is None else self.joined.split()
            self.entries = list(map(Entry, self.ids, headers, bodies, repeat(self)))
            self.ids, self.headers, self.bodies, self.joined = _NO_IDS, _NO_HEADERS, _NO_BODIES, None
            self.is_closed = False
        return self.entries

    def unpack(self) -> None:
        """Be closed instead of cold."""
        if (cold := self.cold) is not None:
            self.ids, self.headers, self.bodies = array("Q", cold.ids()), [cold.header], list(cold.refs())
            self.cold = None

    def close(self) -> None:
        """Have columns again, if nobody would notice."""
        entries, was_cold = self.entries, self.was_cold
        if self.is_closed or self.live < len(entries) or (self.live < BLOCK_LENGTH and was_cold is None):
            return
        if set(map(sys.getrefcount, entries)) != _UNREFERRED or set(map(_history, entries)) != {_NO_HISTORY}:
            return
        if was_cold is not None:
            self.cold, self.was_cold, self.entries, self.is_closed = was_cold, None, _NO_ENTRIES, True
            return
        self.ids = array("Q", map(_entry_id, entries))
        self.headers, self.bodies = list(map(_header, entries)), list(map(_body, entries))
        self.entries = entries = _NO_ENTRIES
        self.is_closed = True
        self.share_header()
        self.join_bodies()

    def join_bodies(self) -> None:
        """Have the bodies as one, if nobody else has any of them: another queue, say, would keep it all the same."""
        bodies = cast("list[bytes]", self.bodies)
        try:
            if not bodies or _size_of_some(bodies) > JOINED_BYTES or set(map(sys.getrefcount, bodies)) != _UNREFERRED:
                return
            self.joined = JoinedBodies(bodies)
        except TypeError:  # a BodyRef is among them
            return
        self.bodies = _NO_BODIES

    def share_header(self) -> None:
        """Have one header for all, if they are alike."""
        headers = self.headers
        if len(headers) > 1 and headers.count(headers[0]) == len(headers):
            self.headers = headers[:1]

    def is_cold_elsewhere(self, files: Container[str]) -> bool:
        """Whether it is cold, in none of `files`."""
        return self.cold is not None and self.cold.source.name not in files

    def place_of(self, message_id: int) -> int:
        """Of the first message with that id or a larger one."""
        if self.cold is not None:
            return bisect_left(self.cold.ids(), message_id)
        if self.is_closed:
            return bisect_left(self.ids, message_id)
        return bisect_left(self.entries, message_id, key=_entry_id)

    def place_behind(self, message_id: int) -> int:
        """Of the first message with a larger id."""
        return self.place_of(message_id + 1)

    def id_at(self, place: int) -> int:
        """Of the message there, or that was."""
        if self.cold is not None:
            return self.cold.ids()[place]
        return self.ids[place] if self.is_closed else self.entries[place].id


class Entry:
    """A message in one queue. Available while `holder` is None; `body` is None once it is gone.

    `body` is a BodyRef while it is paged out. What somebody holds is in memory.
    `acquired_before`: somebody had it and gave it back, so whoever gets it next may see it for the second time.
    """

    __slots__ = ("acquired_before", "block", "body", "delivery_count", "header", "holder", "id")

    def __init__(self, message_id: int, header: MessageHeader, body: Body, block: SequenceBlock | None = None) -> None:
        self.id = message_id
        self.header = header
        self.body: Body | None = body
        self.holder: Holder | None = None
        self.delivery_count = 0
        self.acquired_before = False
        self.block = block

    @property
    def is_free(self) -> bool:
        """Nobody has it: it may leave its queue without anybody's word."""
        holder = self.holder
        return holder is None or holder is WAITING

    @property
    def size(self) -> int:
        """Bytes of the body, wherever it is. Raises LookupError when it is gone."""
        body = self.body
        return body.size if type(body) is BodyRef else len(self.resident_body())

    def replace_body(self, body: Body) -> None:
        """Have the same body elsewhere: also `MessageSequence.bring_cold` does that."""
        self.body = body
        if self.block is not None:
            self.block.was_cold = None

    def ref(self) -> BodyRef:
        """Where the body is that is paged out. Raises LookupError when it is not, or gone."""
        body = self.body
        if type(body) is not BodyRef:
            raise LookupError(f"message {self.id} {self._place()}")
        return body

    def resident_body(self) -> bytes:
        """The body that is in memory. Raises LookupError when it is not, or gone: `load_bodies` is for those."""
        body = self.body
        if body is None or type(body) is BodyRef:
            raise LookupError(f"message {self.id} {self._place()}")
        return body

    def _place(self) -> str:
        if self.body is None:
            return "has left its queue"
        return "is paged out" if type(self.body) is BodyRef else "is in memory"

    def enqueued(self, body: bytes) -> Enqueued:
        """The event that brought the message, whose body is `body`."""
        queues, durable, priority, expires_at_ms, key, due_at_ms = self.header
        return Enqueued(queues, body, durable, priority, expires_at_ms, key, due_at_ms)


_BYTES: Final = {bytes}
_NO_ENTRIES: Final[list[Entry]] = []
_NO_IDS: Final[array[int]] = array("Q")
_NO_HEADERS: Final[list[MessageHeader]] = []
_NO_BODIES: Final[list[Body]] = []
_UNREFERRED: Final = set(map(sys.getrefcount, [Entry(0, MessageHeader((), False, 0, 0, ""), b"")]))
"""What `map` counts of an entry that is in its block alone."""


def resident_bodies(entries: Sequence[Entry]) -> list[bytes]:
    """The bodies of `entries`, which are in memory. Raises LookupError as `Entry.resident_body`."""
    bodies = list(map(_body, entries))
    return bodies if set(map(type, bodies)) <= _BYTES else [entry.resident_body() for entry in entries]


def load_bodies(entries: Sequence[Entry]) -> list[bytes]:
    """The bodies of `entries`. Those that are paged out are read now, neighbours with one read; they stay paged out.

    It waits for the disk, so it is not for the message path, whose bodies the pager brings back ahead of the consumers.
    Raises BodyDamaged, or LookupError for what is gone.
    """
    refs = [entry.body for entry in entries if type(entry.body) is BodyRef]
    if not refs:
        return resident_bodies(entries)
    read = iter(read_bodies(refs))
    bodies: list[bytes] = []
    for entry in entries:
        body = next(read) if type(entry.body) is BodyRef else entry.resident_body()
        if isinstance(body, BodyDamaged):
            raise fresh(body)
        bodies.append(body)
    return bodies


class OpenedBlocks:
    """The blocks of a sequence that were opened last. One that was opened a while ago is closed for the next one, if
    nobody has anything of it."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: tuple[SequenceBlock, ...] = ()

    def open(self, block: SequenceBlock) -> list[Entry]:
        """Its entries."""
        if len(block.ids) >= BLOCK_LENGTH or block.cold is not None:
            self.note(block)
        return block.opened()

    def note(self, block: SequenceBlock) -> None:
        """It is full, or was cold, and is open."""
        self._blocks = (*self._blocks, block)
        if len(self._blocks) > OPENED_LENGTH:
            oldest, *rest = self._blocks
            self._blocks = tuple(rest)
            oldest.close()


class MessageSequence:
    """Messages by ascending id. Invariant: the blocks' `live` counts add up to `len(self)`."""

    __slots__ = ("_blocks", "_dead", "_last", "length", "opened")

    def __init__(self) -> None:
        self._last = SequenceBlock(0)
        self._blocks = [self._last]
        self._dead = 0
        self.length = 0
        """`len()` without a call: whoever chooses between levels asks for each message."""
        self.opened = OpenedBlocks()

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Entry]:
        """Every entry that is still here, acquired or not."""
        for block in tuple(self._blocks):
            yield from [entry for entry in self.opened.open(block) if entry.body is not None]

    def walk(self, most: int = NO_LIMIT) -> Iterator[list[Entry]]:
        """Every entry that is still here, some at a time; between two steps the sequence may change in any way.

        What is behind the block in which the id `most` would be is left out.
        """
        block: SequenceBlock | None = self._blocks[0]
        while block is not None and block.first_id <= most:
            yield [entry for entry in self.opened.open(block) if entry.body is not None]
            block = block.next

    def append(self, entry: Entry) -> Entry | None:
        """Add the newest entry; its id is above all others. It takes nobody's place: None."""
        block = self._last
        if len(block) >= BLOCK_LENGTH:
            block = self._add_block(entry.id)
        self.opened.open(block).append(entry)
        block.live += 1
        entry.block = block
        self.length += 1
        return None

    def append_run(self, ids: Sequence[int], header: MessageHeader, bodies: Sequence[Body]) -> None:
        """`append` for messages without times and key, one for each of `bodies`: nobody will want their entries before
        their turn."""
        at, count, block = 0, len(bodies), self._last
        if 0 < len(block.ids) <= BLOCK_LENGTH - count:  # nearly always
            block.ids.extend(ids)
            block.headers += [header] * count
            block.bodies += bodies
            block.live += count
            self.length += count
            return
        while at < count:
            block = self._last
            present = len(block)
            if present >= BLOCK_LENGTH or block.cold is not None:
                block, present = self._add_block(ids[at]), 0
            end = min(count, at + BLOCK_LENGTH - present)
            if block.is_closed:
                block.extend_columns(ids[at:end], header, bodies[at:end])
            else:
                block.entries += map(Entry, ids[at:end], repeat(header), bodies[at:end], repeat(block))
            block.live += end - at
            self.length += end - at
            at = end

    def remove(self, entries: Iterable[Entry]) -> None:
        """Take `entries` out for good and let go of their bodies."""
        for entry in entries:
            block = entry.block
            if block is None:
                raise LookupError(f"message {entry.id} has left its queue")
            entry.body = entry.block = None
            entry.holder = GONE
            self.length -= 1
            block.live = live = block.live - 1
            if live <= THIN_LENGTH:
                self._tidy(block, live)

    def find(self, message_id: int) -> Entry | None:
        """The entry with that id, or None when it is not, or no longer, here."""
        at = bisect_right(self._blocks, message_id, key=_first_id) - 1
        block = self._blocks[max(at, 0)]
        index = block.place_of(message_id)
        if index == len(block) or block.id_at(index) != message_id:
            return None
        entry = self.opened.open(block)[index]
        return None if entry.body is None else entry

    def find_all(self, ids: Sequence[int], outdated: Container[str] | None = None) -> list[Entry]:
        """Those of `ids` that are here. Ids that follow each other as in the log cost next to nothing each.

        `outdated`: without those among what is cold, unless that is in one of these files.
        """
        present: list[Entry] = []
        entries: list[Entry] = []
        at = first_id = end_id = 0
        for message_id in ids:
            at += 1
            if at >= len(entries) or entries[at].id != message_id or entries[at].body is None:
                if not first_id <= message_id < end_id:
                    block = self._blocks[max(bisect_right(self._blocks, message_id, key=_first_id) - 1, 0)]
                    is_left_out = outdated is not None and block.is_cold_elsewhere(outdated)
                    entries, first_id = [] if is_left_out else self.opened.open(block), block.first_id
                    # Not the last of its own: ids of messages that have left may have come again in the next block.
                    end_id = NO_LIMIT if block.next is None else block.next.first_id
                at = bisect_left(entries, message_id, key=_entry_id)
            if at < len(entries) and entries[at].id == message_id and entries[at].body is not None:
                present.append(entries[at])
        return present

    def newest_before(self, bound: int, limit: int) -> list[Entry]:
        """Up to `limit` entries with the largest ids below `bound`, ascending; costs no more for a longer queue."""
        pieces: list[list[Entry]] = []
        missing = limit
        at = bisect_left(self._blocks, bound, key=_first_id) - 1
        while at >= 0 and missing > 0:
            if self._blocks[at].live:
                entries = self.opened.open(self._blocks[at])
                stop = bisect_left(entries, bound, key=_entry_id)
                pieces.append([entry for entry in entries[:stop] if entry.body is not None][-missing:])
                missing -= len(pieces[-1])
            at -= 1
        return [entry for piece in reversed(pieces) for entry in piece]

    def prepend(self, entries: Sequence[Entry]) -> None:
        """Add entries by ascending id, all below what is here. Cursors do not see them before they are restarted."""
        if entries:
            blocks = [_filled(entries[at : at + BLOCK_LENGTH]) for at in range(0, len(entries), BLOCK_LENGTH)]
            self._prepend_blocks(blocks, entries[-1].id + 1)

    def prepend_cold(self, stretches: Sequence[ColdMessages]) -> None:
        """`prepend` for messages that are on disk alone."""
        if stretches:
            self._prepend_blocks(list(map(_cold, stretches)), stretches[-1].last_id + 1)

    def _prepend_blocks(self, blocks: list[SequenceBlock], above: int) -> None:
        """All their ids are below `above`."""
        count = next((at for at, block in enumerate(self._blocks) if block.live), len(self._blocks) - 1)
        self._forget_first_blocks(count)
        first = self._blocks[0]
        # Its tombstones may be older than what comes: nobody looks for them, and places in the block stay.
        first.first_id = max(first.first_id, above)
        for block, following in zip(blocks, [*blocks[1:], first], strict=True):
            block.next = following
        self._blocks[:0] = blocks
        self.length += sum([block.live for block in blocks])

    def cold_within(self, first_id: int, last_id: int) -> list[ColdMessages]:
        """What is cold of the messages from one id to another, none of it with messages outside of that."""
        colds: list[ColdMessages] = []
        for at in range(bisect_left(self._blocks, first_id, key=_first_id), len(self._blocks)):
            block = self._blocks[at]
            if block.first_id > last_id:
                break
            if block.cold is not None and block.cold.last_id <= last_id:
                colds.append(block.cold)
        return colds

    def replace_cold(self, old: ColdMessages, new: ColdMessages) -> bool:
        """The messages of `old` are in another file now. Whether they are still cold: else nothing is done."""
        block = self._blocks[max(bisect_right(self._blocks, old.first_id, key=_first_id) - 1, 0)]
        if block.cold is not old:
            return False
        block.cold = new
        return True

    def bring_cold(self, cold: ColdMessages, bodies: Sequence[bytes] | None) -> int:
        """The bodies of messages that are cold, or were when their block was opened; returns how many bytes came.

        None, if a body of them came, or is in another file since. `bodies` None: they are not to be read together.
        """
        block = self._blocks[max(bisect_right(self._blocks, cold.first_id, key=_first_id) - 1, 0)]
        if block.cold is cold:
            block.unpack()
            if bodies is None:
                return 0
            block.bodies = list(bodies)
            return cold.body_bytes
        if block.was_cold is not cold:
            return 0
        block.was_cold = None
        size = 0
        for entry, body in zip(block.entries, bodies, strict=True) if bodies is not None else ():
            if entry.body is not None:
                entry.body = body
                size += len(body)
        return size

    def take_all(self) -> list[Entry]:
        """Empty the sequence; the entries keep their bodies. Cursors go on with what comes later."""
        taken = list(self)
        last = SequenceBlock(0)
        for block in self._blocks:
            block.empty()
            block.live, block.next = 0, last
        for entry in taken:
            entry.block = None
        self._blocks, self._last, self.opened = [last], last, OpenedBlocks()
        self._dead = self.length = 0
        return taken

    def dismantle(self) -> Task:
        """Let go of all entries, a block at each step. Nothing is appended or looked for any more.

        Entries and blocks refer to each other: without this they would stay until the collector of cycles finds them.
        """
        self.opened = OpenedBlocks()
        for block in self._blocks:
            block.empty()
            yield

    def renumber(self, new_ids: Mapping[int, int]) -> None:
        """Give every entry the id that `new_ids` has for its old one; the order must stay. Restart cursors after it."""
        self._forget_dead_blocks()
        previous = 0
        for block in self._blocks:
            block.first_id = previous + 1 if block is not self._blocks[0] else 0
            block.unpack()
            block.was_cold = None
            if block.is_closed:
                block.ids = array("Q", [new_ids[message_id] for message_id in block.ids])
                previous = block.ids[-1] if block.ids else previous
            for entry in block.entries:
                if entry.body is not None:
                    previous = new_ids[entry.id]
                # A tombstone joins its neighbour before it: `find` takes the first of equals, which is that one.
                entry.id = previous

    def go_back(self, most: int) -> None:
        """Ids above `most`, of which none is here any more, come again: no place is left where one of them would not be
        found. Restart cursors after it."""
        if self._last.first_id <= most and (not len(self._last) or self._last.id_at(-1) <= most):
            return
        kept = [block for block in self._blocks if block.first_id <= most]
        following = SequenceBlock(most + 1)
        for block in self._blocks[len(kept) :]:
            block.empty()
            block.first_id, block.next = most, following
        if kept:
            kept[-1].next = following
        self._blocks, self._last = [*kept, following], following
        self._dead = sum(not len(block) for block in kept)

    def _forget_first_blocks(self, count: int) -> None:
        """The first `count` blocks hold nothing: whoever stands in one of them goes on behind them."""
        for block in self._blocks[:count]:
            self._dead -= not len(block)
            block.next = self._blocks[count]
        del self._blocks[:count]

    def newest_id(self, most: int) -> int:
        """The largest id that is still here and not above `most`; 0: there is none."""
        for at in range(bisect_right(self._blocks, most, key=_first_id) - 1, -1, -1):
            block = self._blocks[at]
            if block.live:
                stop = block.place_behind(most)
                if block.is_closed and stop:
                    return block.id_at(stop - 1)
                for index in range(stop - 1, -1, -1):
                    if block.entries[index].body is not None:
                        return block.entries[index].id
        return 0

    def id_ahead(self, message_id: int, count: int) -> int:
        """The id of the message that is `count` places above `message_id`, or was; 0: there are not so many."""
        block: SequenceBlock | None
        block, index = self.after(message_id)
        while block is not None:
            at = index + count - 1
            if at < len(block):
                return block.id_at(at)
            count -= len(block) - index
            block, index = block.next, 0
        return 0

    def start(self) -> tuple[SequenceBlock, int]:
        """The position before the first entry."""
        return self._blocks[0], 0

    def after(self, message_id: int) -> tuple[SequenceBlock, int]:
        """The position before the first entry with a larger id; found without a walk, however long the sequence is."""
        block = self._blocks[max(bisect_right(self._blocks, message_id, key=_first_id) - 1, 0)]
        return block, block.place_behind(message_id)

    def _add_block(self, first_id: int) -> SequenceBlock:
        if self._last.is_closed:
            self._last.share_header()
            if len(self._blocks) > JOINED_BEHIND:  # what came last, its publisher's turn still has
                self._blocks[-JOINED_BEHIND - 1].join_bodies()
        elif self._last.live >= BLOCK_LENGTH:
            self.opened.note(self._last)
        block = SequenceBlock(first_id)
        self._last.next = block
        self._last = block
        self._blocks.append(block)
        return block

    def _tidy(self, block: SequenceBlock, live: int) -> None:
        if live:
            if live == THIN_LENGTH and block is not self._last:
                _thin(block)
            return
        if block is self._last:
            if len(block.entries) < SEAL_LENGTH:
                return
            self._add_block(block.id_at(-1) + 1)
        block.empty()
        self._dead += 1
        if self._dead > 32 and self._dead * 2 > len(self._blocks):
            self._forget_dead_blocks()

    def _forget_dead_blocks(self) -> None:
        """Cursors in a dead block still find their way: its `next` leads on to a living one."""
        following: SequenceBlock | None = None
        for block in reversed(self._blocks):
            block.next = following
            if block.live or block is self._last:
                following = block
        self._blocks = [block for block in self._blocks if block.live or block is self._last]
        self._dead = 0


def _filled(entries: Sequence[Entry]) -> SequenceBlock:
    block = SequenceBlock(entries[0].id)
    block.opened().extend(entries)
    block.live = len(entries)
    for entry in entries:
        entry.block = block
    return block


def _cold(stretch: ColdMessages) -> SequenceBlock:
    block = SequenceBlock(stretch.first_id)
    block.cold, block.live = stretch, stretch.count
    return block


def _thin(block: SequenceBlock) -> None:
    """One tombstone stands for all in a row: places and the order of ids stay, so cursors and `find` notice nothing."""
    entries = block.entries
    start = 0
    for at in [at for at, entry in enumerate(entries) if entry.body is not None]:
        entries[start:at] = entries[start : start + 1] * (at - start)
        start = at + 1
    entries[start:] = entries[start : start + 1] * (len(entries) - start)


class Cursor:
    """A place in a sequence. What lies behind it was seen; `rewind` makes it see an entry again.

    It stands before `block.entries[index]`, if there is one. Whoever has cursors in several sequences may look there,
    and pass it, without a call: what nobody has is what any kind of cursor gives.
    """

    __slots__ = ("_sequence", "block", "index")

    def __init__(self, sequence: MessageSequence) -> None:
        self._sequence = sequence
        self.block, self.index = sequence.start()

    def peek(self) -> Entry | None:
        """The next available entry, or None; the cursor stops before it."""
        block, index = self.block, self.index
        while True:
            entries = block.entries
            for at in range(index, len(entries)):
                if entries[at].holder is None:
                    self.block, self.index = block, at
                    return entries[at]
            if block.ids or block.cold is not None:
                self._sequence.opened.open(block)
                continue
            index = len(entries)
            following = self._following(block)
            if following is None:
                self.block, self.index = block, index
                return None
            block, index = following, 0

    def _following(self, block: SequenceBlock) -> SequenceBlock | None:
        """The next block in which something may be available, or the last one: a million messages that wait must not be
        looked at for one that comes."""
        following = block.next
        while following is not None and 0 < following.waiting == following.live and following.next is not None:
            following = following.next
        return following

    def skip(self) -> None:
        """Pass the entry that `peek` gave."""
        self.index += 1

    def run(self, most: int) -> Sequence[Entry]:
        """Up to `most` entries: what `peek` gave, and what follows it, whoever has that."""
        return self.block.entries[self.index : self.index + most]

    def pass_run(self, count: int) -> None:
        """Pass the first so many of `run`."""
        self.index += count

    def ahead(self) -> Iterator[Entry]:
        """The available entries from here on; the cursor stays. The sequence must not change meanwhile."""
        block: SequenceBlock | None = self.block
        index = self.index
        while block is not None:
            for entry in self._sequence.opened.open(block)[index:]:
                if entry.holder is None:
                    yield entry
            block, index = block.next, 0

    def has_passed(self, entry: Entry) -> bool:
        """Whether `entry` lies behind, or nowhere any more."""
        block = entry.block
        if block is None:
            return True
        index = block.place_of(entry.id)
        return (block.first_id, index) < (self.block.first_id, self.index)

    def rewind(self, entry: Entry) -> None:
        """Go back so far that `peek` sees `entry`; nothing happens when it lies ahead."""
        block = entry.block
        if block is None:
            return
        index = block.place_of(entry.id)
        if (block.first_id, index) < (self.block.first_id, self.index):
            self.block, self.index = block, index

    def restart(self) -> None:
        """Go back to the start."""
        self.block, self.index = self._sequence.start()


class FreeCursor(Cursor):
    """Finds what nobody has, also what waits for its time: for who decides what leaves the queue."""

    __slots__ = ()

    def peek(self) -> Entry | None:
        """The next entry that is free, or None; the cursor stops before it."""
        block, index = self.block, self.index
        while True:
            entries = block.entries
            for at in range(index, len(entries)):
                if entries[at].is_free:
                    self.block, self.index = block, at
                    return entries[at]
            if block.ids or block.cold is not None:
                self._sequence.opened.open(block)
                continue
            following = block.next
            if following is None:
                self.block, self.index = block, len(entries)
                return None
            block, index = following, 0


class HistoryCursor(Cursor):
    """Reads what is here, by ascending id from a given one on: also what somebody holds, who may yet give it back.

    So a reader that notes the last id and comes back after it has missed nothing.
    """

    __slots__ = ()

    def __init__(self, sequence: MessageSequence, after: int) -> None:
        super().__init__(sequence)
        self.block, self.index = sequence.after(after)

    def peek(self) -> Entry | None:
        """The next entry that has not left, or None."""
        block, index = self.block, self.index
        while True:
            entries = block.entries
            for at in range(index, len(entries)):
                if entries[at].body is not None:
                    self.block, self.index = block, at
                    return entries[at]
            if block.ids or block.cold is not None:
                self._sequence.opened.open(block)
                continue
            following = block.next
            if following is None:
                self.block, self.index = block, len(entries)
                return None
            block, index = following, 0

    def ahead(self) -> Iterator[Entry]:
        """The entries that have not left, from here on; the cursor stays. The sequence must not change meanwhile."""
        block: SequenceBlock | None = self.block
        index = self.index
        while block is not None:
            yield from [entry for entry in self._sequence.opened.open(block)[index:] if entry.body is not None]
            block, index = block.next, 0
