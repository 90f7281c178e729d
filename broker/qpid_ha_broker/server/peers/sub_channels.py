"""Many peer channels on one connection between two brokers, without a socket: sub-channels, and the bundles they share.

A broker with a thousand resource sets would otherwise need a thousand connections to each other one. What is sent on
sub-channels is collected until the end of the turn, and then goes out together: three hundred sets that write in one
turn cost one message. One heartbeat serves all.

A connection that is lost takes all of its sub-channels with it, and what hundreds of sets do about that would keep
those waiting that have lost their primary. So whose listener is told at once, and whose in pieces:

| the sub-channel | its listener hears of the end | why |
| --- | --- | --- |
| is of a set that waits for something, or is for something else than to follow it | at once | somebody waits |
| is one of the first AT_ONCE | at once | they are few |
| is another one | in a piece, within LATE_S and PIECES * PAUSE_S | its set is at rest |
| the same, and something is sent on it | soon | now somebody waits |
| the same, and a new one for its set is opened | before that | to the listener the old one has ended first |

Only who opened the connection opens sub-channels; their numbers ascend, and none is used twice. One of them that is not
read is stopped by itself: its frames wait at their sender, and the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.ha.bundles import (
    Entry,
    Purpose,
    SubChannelClosed,
    SubChannelFrame,
    SubChannelOpened,
    SubChannelStopped,
    decode_bundle,
    encode_bundle,
)
from qpid_ha_broker.ha.frames import FrameError

FULL_BUNDLE_BYTES: Final = 1024 * 1024
"""Frames beyond that go into the next bundle, so that what comes in is worked on piece by piece."""
_STEP_MAX_S: Final = 0.5
"""A process that was stopped for ten seconds must not hold it against the other broker that it heard nothing."""


@dataclass(frozen=True)
class SharedTimes:
    """Seconds. `silence_s`: the other broker is lost when nothing came for so long."""

    heartbeat_s: float = 1.0
    silence_s: float = 2.0
    unused_s: float = 30.0
    """A connection without sub-channels is kept for so long."""


def _always() -> bool:
    return True


class SubChannel:
    """One end of a sub-channel: see `peer_frames.Channel`. `set` is empty for one that is about several."""

    __slots__ = ("_held", "_held_bytes", "_is_stopped", "_mux", "address", "is_open", "listener", "may_read", "number",
                 "purpose", "set")  # fmt: skip

    def __init__(self, mux: Multiplexer, opened: SubChannelOpened, address: str) -> None:
        self.number, self.set, self.purpose = opened
        self.address = address
        """Where it leads; empty: the other broker has opened it."""
        self.is_open = False
        self.listener: PeerListener | None = None
        self.may_read: Callable[[], bool] = _always
        """Asked after each frame. Until it says yes again, the other broker holds back what it has for this one."""
        self._mux = mux
        self._is_stopped = False
        """The other end does not read for now."""
        self._held: list[bytes] = []
        self._held_bytes = 0

    @property
    def peer(self) -> str:
        """Who is at the other end, for log lines."""
        return self._mux.peer()

    @property
    def was_connected(self) -> bool:
        """Whether the other broker is there, as far as this side knows."""
        return self.is_open

    @property
    def unsent_bytes(self) -> int:
        """What waits on the connection, whosesoever it is, and what is held back for this one."""
        return self._mux.unsent_bytes() + self._held_bytes

    def send(self, data: bytes) -> None:
        """Send a frame after all others; it goes out with the end of the turn. Nothing happens after the end."""
        if not self.is_open:
            if self.listener is not None:
                self._mux.losses.hurry(self)
            return
        if self._is_stopped:
            self._held.append(data)
            self._held_bytes += len(data)
        else:
            self._mux.put(SubChannelFrame(self.number, data))

    def flush(self) -> None:
        """What is sent goes out with that of others."""

    def close(self, reason: str) -> None:
        """End it once all was sent; the listener is not told."""
        if self.listener is not None:
            self.stop(False)
            self.ended()
            self._mux.forget(self)
            self._mux.put(SubChannelClosed(self.number, reason))

    # --- the multiplexer's calls

    def stop(self, stopped: bool) -> None:
        """The other end does not read for now, or reads again."""
        self._is_stopped = stopped
        if not stopped:
            held, self._held, self._held_bytes = self._held, [], 0
            for data in held:
                self._mux.put(SubChannelFrame(self.number, data))

    def ended(self) -> PeerListener | None:
        """Nothing more comes or goes; who is to be told."""
        listener, self.listener, self.is_open = self.listener, None, False
        return listener


AT_ONCE: Final = 32
"""Listeners that are told at once that a connection is lost, though nothing of theirs waits."""
LATE_S: Final = 0.5
"""Until the first piece of the others: by then most sets that have lost their primary with the connection are led."""
PAUSE_S: Final = 0.05
"""Between two pieces."""
PIECES: Final = 20
"""At most. A piece is AT_ONCE sets or more: what they write goes out together, which a few at a time do not share."""


class Losses:
    """The promise: each listener hears once that its sub-channel has ended, by the table above.

    `is_pressing`: whether the set of that name waits for something. `want_piece`: called with the seconds after which
    `tell_piece` is to be called, unless it will be sooner; `want_hurried`: the same of `tell_hurried`, soon.
    """

    def __init__(
        self,
        is_pressing: Callable[[str], bool],
        want_piece: Callable[[float], None],
        want_hurried: Callable[[], None],
    ) -> None:
        self._is_pressing = is_pressing
        self._want_piece, self._want_hurried = want_piece, want_hurried
        self._late: dict[str, dict[SubChannel, str]] = {}
        """By set, in the order in which they will be told: those whose listeners are not told yet, with the reason."""
        self._piece = 0
        """Sets that are told of together."""
        self._hurried: dict[str, None] = {}

    def lost(self, sub_channels: Iterable[SubChannel], reason: str) -> None:
        """A connection is gone with all of these, in the order in which they were opened."""
        calm = 0
        now: list[SubChannel] = []
        for sub_channel in sub_channels:
            may_wait = (
                sub_channel.is_open and sub_channel.purpose == Purpose.FOLLOW and not self._is_pressing(sub_channel.set)
            )
            calm += may_wait
            if may_wait and calm > AT_ONCE:
                sub_channel.is_open = False
                self._late.setdefault(sub_channel.set, {})[sub_channel] = reason
            else:
                now.append(sub_channel)
        if self._late:
            self._piece = max(AT_ONCE, -(-len(self._late) // PIECES))
            self._want_piece(LATE_S)
        for sub_channel in now:
            _tell(sub_channel, reason)

    def hurry(self, sub_channel: SubChannel) -> None:
        """Its set has something to send."""
        if sub_channel.set in self._late:
            self._hurried[sub_channel.set] = None
            self._want_hurried()

    def tell_hurried(self) -> None:
        """Of the sets that have something to send."""
        hurried, self._hurried = self._hurried, {}
        for set_name in hurried:
            self.tell_of(set_name)

    def tell_piece(self) -> None:
        """Of some sets."""
        for set_name in list(self._late)[: self._piece]:
            self.tell_of(set_name)
        if self._late:
            self._want_piece(PAUSE_S)

    def tell_of(self, set_name: str) -> None:
        """Of that set, if there is something to tell: a new sub-channel for it comes."""
        for sub_channel, reason in self._late.pop(set_name, {}).items():
            _tell(sub_channel, reason)

    def forget(self, sub_channel: SubChannel) -> None:
        """Its listener has closed it."""
        self._late.get(sub_channel.set, {}).pop(sub_channel, None)


def _tell(sub_channel: SubChannel, reason: str) -> None:
    listener = sub_channel.ended()
    if listener is not None:
        listener.closed(sub_channel, reason)


Accept = Callable[[SubChannel], PeerListener | str]
"""Who listens to a sub-channel that the other broker has opened, or why nobody does."""


class Multiplexer:
    """The promise: each sub-channel's listener hears `closed`, once and last; of a lost connection see `Losses`.

    `opens`: the connection is ours, and so are its sub-channels; else `accept` says who listens. `put_first` is called
    when there is something to take where there was nothing. `peer` and `unsent_bytes` are of the connection. `losses`:
    who tells listeners of its end.
    """

    def __init__(
        self,
        times: SharedTimes,
        accept: Accept | None,
        put_first: Callable[[], None],
        peer: Callable[[], str],
        unsent_bytes: Callable[[], int],
        losses: Losses,
    ) -> None:
        self.peer = peer
        self.losses = losses
        self._times = times
        self._accept = accept
        self._put_first = put_first
        self._connection_bytes = unsent_bytes
        self._sub_channels: dict[int, SubChannel] = {}
        self._last_number = 0
        self._unannounced: list[SubChannel] = []
        self._pending: list[Entry] = []
        self._pending_bytes = 0
        self._is_heartbeat_due = False
        self._unread: dict[SubChannel, None] = {}
        """Those that the other broker was told to send nothing on."""
        self.bundles_total = self.entries_total = 0
        """Sent."""
        self._has_ended = False
        self._now_s = 0.0
        self._clock_s = self._heard_s = self._sent_s = self._used_s = 0.0
        """By a clock that stands still while this process is stopped."""

    @property
    def count(self) -> int:
        """Sub-channels."""
        return len(self._sub_channels)

    def unsent_bytes(self) -> int:
        """What waits in this process for the other broker, but for what is held back."""
        return self._connection_bytes() + self._pending_bytes

    # --- our end

    def open(self, set_name: str, purpose: int, listener: PeerListener, address: str) -> SubChannel:
        """A sub-channel of ours, on which frames can be sent once `announce` has told `listener` so."""
        self._last_number += 1
        opened = SubChannelOpened(self._last_number, set_name, purpose)
        sub_channel = self._sub_channels[self._last_number] = SubChannel(self, opened, address)
        sub_channel.listener = listener
        self._unannounced.append(sub_channel)
        self.put(opened)
        return sub_channel

    def announce(self) -> None:
        """The connection is there: tell the listeners of new sub-channels. Not while one of them is being made."""
        unannounced, self._unannounced = self._unannounced, []
        for sub_channel in unannounced:
            if sub_channel.listener is not None:
                sub_channel.is_open = True
                sub_channel.listener.opened(sub_channel)

    def put(self, entry: Entry) -> None:
        """For the next bundle."""
        if self._has_ended:
            return
        if not self._pending and not self._is_heartbeat_due:
            self._put_first()
        self._pending.append(entry)
        if isinstance(entry, SubChannelFrame):
            self._pending_bytes += len(entry.frame)

    def forget(self, sub_channel: SubChannel) -> None:
        """It has ended."""
        self._sub_channels.pop(sub_channel.number, None)
        self.losses.forget(sub_channel)
        self._unread.pop(sub_channel, None)
        self._used_s = self._clock_s

    def take_bundles(self) -> list[bytes]:
        """What there is to send, in order: one bundle, unless it is much."""
        entries, self._pending, self._pending_bytes = self._pending, [], 0
        is_heartbeat_due, self._is_heartbeat_due = self._is_heartbeat_due, False
        if not entries and not is_heartbeat_due:
            return []
        self._sent_s = self._clock_s
        bundles, start, size = [], 0, 0
        for at, entry in enumerate(entries):
            if isinstance(entry, SubChannelFrame):
                size += len(entry.frame)
                if size > FULL_BUNDLE_BYTES and at > start:
                    bundles.append(encode_bundle(entries[start:at]))
                    start, size = at, len(entry.frame)
        bundles.append(encode_bundle(entries[start:]))
        self.bundles_total += len(bundles)
        self.entries_total += len(entries)
        return bundles

    # --- the other end

    def received(self, bundle: bytes) -> None:
        """A bundle came. Raises FrameError: nothing more can be believed of this connection."""
        self._heard_s = self._clock_s
        for entry in decode_bundle(bundle):
            if self._has_ended:
                return
            sub_channel = self._sub_channels.get(entry.channel)
            if isinstance(entry, SubChannelOpened):
                self._opened(entry)
            elif sub_channel is None:
                if not 0 < entry.channel <= self._last_number:
                    raise FrameError(f"sub-channel {entry.channel} was never opened")
                # It was closed here, and the other broker did not know yet.
            elif isinstance(entry, SubChannelFrame):
                self._frame_came(sub_channel, entry.frame)
            elif isinstance(entry, SubChannelClosed):
                self.forget(sub_channel)
                listener = sub_channel.ended()
                if listener is not None:
                    listener.closed(sub_channel, entry.reason)
            else:
                sub_channel.stop(entry.stopped)

    def _opened(self, entry: SubChannelOpened) -> None:
        if self._accept is None:
            raise FrameError("a sub-channel was opened by who did not open the connection")
        if entry.channel <= self._last_number:
            raise FrameError(f"sub-channel {entry.channel} was opened after {self._last_number}")
        self._last_number = entry.channel
        sub_channel = SubChannel(self, entry, "")
        listener = self._accept(sub_channel)
        if isinstance(listener, str):
            self.put(SubChannelClosed(entry.channel, listener))
            return
        self._sub_channels[entry.channel] = sub_channel
        sub_channel.listener, sub_channel.is_open = listener, True
        listener.opened(sub_channel)

    def _frame_came(self, sub_channel: SubChannel, frame: bytes) -> None:
        if sub_channel.listener is not None and sub_channel.is_open:
            sub_channel.listener.received(sub_channel, frame)
            if sub_channel.listener is not None and sub_channel not in self._unread and not sub_channel.may_read():
                self._unread[sub_channel] = None
                self.put(SubChannelStopped(sub_channel.number, True))

    # --- time, and the end

    def tick(self, now_s: float) -> str | None:
        """Several times in a heartbeat, by a clock that never goes back: why the connection is lost, if it is."""
        if self._now_s:
            self._clock_s += min(now_s - self._now_s, _STEP_MAX_S)
        self._now_s = now_s
        for sub_channel in list(self._unread):
            if sub_channel.may_read():
                del self._unread[sub_channel]
                self.put(SubChannelStopped(sub_channel.number, False))
        if self._clock_s - self._sent_s >= self._times.heartbeat_s and not self._pending:
            if not self._is_heartbeat_due:
                self._put_first()
            self._is_heartbeat_due = True
        silent_s = self._clock_s - self._heard_s
        return f"nothing came for {silent_s:.1f} s" if silent_s > self._times.silence_s else None

    @property
    def is_unused(self) -> bool:
        """Nobody has needed it for long."""
        return not self._sub_channels and self._clock_s - self._used_s > self._times.unused_s

    def lost(self, reason: str) -> None:
        """The connection is gone, and all sub-channels with it."""
        self._has_ended = True
        peer = self.peer()
        # The connection has this: without a collector neither is freed as long as this has the connection.
        self.peer, self._put_first, self._connection_bytes = lambda: peer, _nothing, int
        sub_channels, self._sub_channels = self._sub_channels, {}
        self._pending, self._pending_bytes = [], 0
        self._unread.clear()
        self.losses.lost(sub_channels.values(), reason)


def _nothing() -> None:
    """There is nobody to tell."""
