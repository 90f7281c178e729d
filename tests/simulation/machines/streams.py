"""Streams of bytes between clients and brokers, and between brokers: in order, late, cut, or silent.

A stream is two ends, each an asyncio transport. What is on its way is lost with a cut, or still gets there; an end
notices soon, late, or never. A direction that is blocked holds everything back, as a transport does that sends again.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from simulation.virtual_time import Schedule

CONNECT_LIMIT_S = 8.0
TRY_AGAIN_S = 0.2
SPLIT = 0.1
"""How often what is written at once comes in two pieces."""
NEVER_NOTICED = 0.2
"""How often an end of a cut stream is not told: it has to find out by the silence."""
Post = Callable[[Callable[[], None]], None]


class Listener(Protocol):
    """A broker's process that can be connected to."""

    name: str

    @property
    def is_up(self) -> bool:
        """Whether it can be connected to now."""

    def accept(self, end: StreamEnd) -> None:
        """Somebody has connected."""

    def post_here(self) -> Post:
        """Has something done in the process that there is now."""


class Parcel:
    """Bytes, the end of a stream, or (with a reason) its loss."""

    __slots__ = ("data", "reason")

    def __init__(self, data: bytes, reason: str | None = None) -> None:
        self.data = data
        self.reason = reason


class StreamEnd(asyncio.Transport):
    """One end. The promise of asyncio's transports: `connection_lost` is told once, last, and never within a call."""

    def __init__(self, streams: Streams, place: str, post: Post) -> None:
        super().__init__()
        self.place = place
        self.other: StreamEnd
        self.post = post
        """Has something done in the process that this end is of."""
        self._streams = streams
        self._protocol: asyncio.Protocol | None = None
        self._early: list[Callable[[asyncio.Protocol], None]] = []
        """What came before there was anybody to tell."""
        self._is_closing = False
        self._is_over = False
        """Nothing is told any more."""
        self.is_broken = False
        """Nothing that is written from now on gets there."""
        self._is_reading = True
        self._held: deque[Parcel] = deque()
        """Came, and is not read yet."""
        self._has_end = False
        """With it, or before, came the end of the stream."""
        self._blocked: deque[Parcel] = deque()
        """Of what the other end has written."""
        self._due_s = 0.0
        self._unread_bytes = 0
        """Written here, and not read at the other end."""
        self._high = 1 << 60
        self._is_full = False

    # --- who listens

    def have_read_by(self, protocol: asyncio.Protocol) -> None:
        """Tell `protocol` that it is connected, and what comes."""
        self._protocol = protocol
        protocol.connection_made(self)
        early, self._early = self._early, []
        for tell in early:
            tell(protocol)

    def _tell(self, tell: Callable[[asyncio.Protocol], None]) -> None:
        def now() -> None:
            if self._protocol is None:
                self._early.append(tell)
            else:
                tell(self._protocol)

        self.post(now)

    # --- asyncio's calls

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.other.place, 1) if name == "peername" else default

    def is_closing(self) -> bool:
        return self._is_closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = min(high or 1 << 60, self._streams.socket_bytes)

    def get_write_buffer_size(self) -> int:
        return max(self._unread_bytes - self._streams.socket_bytes // 2, 0)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        whole = bytes(data)
        self._unread_bytes += len(whole)
        if self._streams.draw.random() < SPLIT and len(whole) > 1:
            at = self._streams.draw.randrange(1, len(whole))
            self._send(Parcel(whole[:at]))
            self._send(Parcel(whole[at:]))
        else:
            self._send(Parcel(whole))
        if not self._is_full and self._unread_bytes > self._high:
            self._is_full = True
            self._tell(lambda protocol: protocol.pause_writing())

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._is_closing:
            self._send(Parcel(b""))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._send(Parcel(b"", "closed"))
            self._lose(None)

    def abort(self) -> None:
        if not self._is_over:
            self._is_closing = True
            self._send(Parcel(b"", "reset"))
            self._lose(None)

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self.read_on()

    # --- how it gets there

    def _send(self, parcel: Parcel) -> None:
        streams = self._streams
        if self.is_broken:
            return
        self._due_s = max(self._due_s, streams.schedule.now_s + streams.delay())
        streams.schedule.at(self._due_s, partial(self.other._arrive, parcel))

    def _arrive(self, parcel: Parcel) -> None:
        if self.other.is_broken and self._streams.drops_of(self):
            return
        if self._blocked or self._streams.is_blocked(self.other.place, self.place):
            self._blocked.append(parcel)
        else:
            self._hold(parcel)
            self.read_on()

    def _hold(self, parcel: Parcel) -> None:
        self._has_end |= not parcel.data
        self._held.append(parcel)

    def unblocked(self) -> None:
        """What the other end has written gets through."""
        for parcel in self._blocked:
            self._hold(parcel)
        self._blocked.clear()
        self.read_on()

    @property
    def has_hung_up(self) -> bool:
        """As `hang_ups.has_hung_up` of a socket."""
        return self._is_closing or self._has_end

    def read_on(self) -> None:
        """Have read what came, if anybody reads."""
        while self._held and self._is_reading and not self._is_over:
            parcel = self._held.popleft()
            if parcel.reason == "closed":
                self.post(partial(self._lose, None))  # a process that is stopped finds what came before that
            elif parcel.reason is not None:
                self._lose(ConnectionResetError(104, parcel.reason))
            elif parcel.data:
                self.post(partial(self._read, parcel.data))
            else:
                self._tell(self._end_of_stream)

    def _end_of_stream(self, protocol: asyncio.Protocol) -> None:
        if not protocol.eof_received():
            self.close()

    def _read(self, data: bytes) -> None:
        if self._is_over and self._protocol is None:
            return
        self.other._was_read(len(data))

        def tell(protocol: asyncio.Protocol) -> None:
            if not self._is_closing:
                protocol.data_received(data)

        if self._protocol is None:
            self._early.append(tell)
        else:
            tell(self._protocol)

    def _was_read(self, size: int) -> None:
        self._unread_bytes -= size
        if self._is_full and self._unread_bytes <= self._high // 2 and not self._is_over:
            self._is_full = False
            self._tell(lambda protocol: protocol.resume_writing())

    def _lose(self, error: Exception | None) -> None:
        if self._is_over:
            return
        self._is_over = self._is_closing = True
        self._streams.forget(self)
        self._tell(lambda protocol: protocol.connection_lost(error))

    def broken(self) -> None:
        """Its stream is cut, and this end notices."""
        self._lose(ConnectionResetError(104, "connection reset by peer"))

    def died(self) -> None:
        """Its process is dead: nobody is told here."""
        self._is_over = self._is_closing = True
        self._streams.forget(self)


class Streams:
    """All streams, and who can be connected to. `socket_bytes`: so much the system keeps for a reader that is slow."""

    def __init__(self, schedule: Schedule, draw: random.Random, delay_s: float, socket_bytes: int) -> None:
        self.schedule = schedule
        self.draw = draw
        self.socket_bytes = socket_bytes
        self.delay_s = delay_s
        self.listeners: dict[str, Listener] = {}
        self._ends: dict[StreamEnd, None] = {}
        self._blocked: dict[tuple[str, str], int] = {}
        self._drops: dict[StreamEnd, bool] = {}

    def delay(self) -> float:
        """How long the next parcel takes, seconds."""
        draw = self.draw.random()
        if draw > 0.99:
            return self.draw.uniform(0.0, 20 * self.delay_s)
        return self.delay_s * (0.5 + draw)

    def connect(self, place: str, post: Post, to: str, opened: Callable[[StreamEnd | None, str], None]) -> None:
        """Connect from `place` to the broker `to`; `opened` is told in the process of who connects."""
        deadline_s = self.schedule.now_s + CONNECT_LIMIT_S
        self.schedule.after(self.delay(), partial(self._try_connect, place, post, to, opened, deadline_s))

    def _try_connect(
        self, place: str, post: Post, to: str, opened: Callable[[StreamEnd | None, str], None], deadline_s: float
    ) -> None:
        listener = self.listeners[to]
        if self.is_blocked(place, to) or self.is_blocked(to, place):
            if self.schedule.now_s < deadline_s:
                again = partial(self._try_connect, place, post, to, opened, deadline_s)
                self.schedule.after(TRY_AGAIN_S, again)
            else:
                post(lambda: opened(None, "timed out"))
        elif not listener.is_up:
            post(lambda: opened(None, "connection refused"))
        else:
            ours, theirs = StreamEnd(self, place, post), StreamEnd(self, to, listener.post_here())
            ours.other, theirs.other = theirs, ours
            self._ends[ours] = self._ends[theirs] = None
            listener.accept(theirs)
            post(lambda: opened(ours, ""))

    def forget(self, end: StreamEnd) -> None:
        """It is over."""
        self._ends.pop(end, None)

    # --- what goes wrong

    def is_blocked(self, sender: str, receiver: str) -> bool:
        """Whether nothing goes from one to the other now."""
        return (sender, receiver) in self._blocked

    def block(self, sender: str, receiver: str) -> None:
        """Nothing goes from `sender` to `receiver` until as many `unblock`s."""
        self._blocked[sender, receiver] = self._blocked.get((sender, receiver), 0) + 1

    def unblock(self, sender: str, receiver: str) -> None:
        self._blocked[sender, receiver] -= 1
        if self._blocked[sender, receiver] <= 0:
            del self._blocked[sender, receiver]
            for end in list(self._ends):
                if (end.other.place, end.place) == (sender, receiver):
                    end.unblocked()

    def cut_between(self, one: str, other: str) -> int:
        """All streams between two places; how many there were."""
        found = [end for end in self._ends if (end.place, end.other.place) == (one, other)]
        for end in found:
            self.cut(end)
        return len(found)

    def cut(self, end: StreamEnd) -> None:
        """That stream. What is on its way is lost, or comes, in each direction; each end notices, sometime or never."""
        for side in (end, end.other):
            if not side.is_broken:
                side.is_broken = True
                self._drops[side.other] = self.draw.random() < 0.5
            if self.draw.random() >= NEVER_NOTICED:
                self.schedule.after(self.draw.uniform(0.001, 1.0), side.broken)

    def drops_of(self, end: StreamEnd) -> bool:
        """Whether what was under way to `end` is lost."""
        return self._drops.get(end, False)

    def died(self, place: str, is_silent: bool) -> None:
        """A process is dead; `is_silent`: with its machine, so that the other ends hear nothing more."""
        for end in [each for each in self._ends if each.place == place]:
            if not is_silent:
                end._send(Parcel(b"", "reset"))
            end.is_broken = True
            self._drops[end.other] = False
            end.died()

    @property
    def count(self) -> int:
        """Ends that are open."""
        return len(self._ends)
