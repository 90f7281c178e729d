"""The time by which a resource set's messages expire, its sessions end and its unused queues go.

The time of day is no measure for that: somebody may set a machine's clock, and the clocks of two brokers differ. So a
broker counts the time that passes, by a clock that nobody can set (its *steady* time), and the primary of a set tells
its backups what it has come to. Who is promoted goes on from there.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from qpid_ha_broker.model.transactions.transaction import Message

READINGS_KEPT: Final = 4
"""Of those that a backup was told last: enough that one is among them that was hardly delayed, few enough that clocks
which do not run equally fast are followed."""
LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999: what claims to be later is no reading."""

_MOST: Final = (1 << 64) - 1
"""That an event can hold."""


class SteadyTime(Protocol):
    """A broker's clocks, in milliseconds since 1970."""

    def now_ms(self) -> int:
        """Of the clock that nobody can set: as of the time of day at which the process began."""

    def wall_ms(self) -> int:
        """The time of day, to be shown and noted. Nothing is decided by it, but that what a client says is by it."""

    def steady_at(self, wall_ms: int) -> int:
        """`now_ms`, when the time of day will be `wall_ms`, and not before, if nobody sets it."""


class MessageClock:
    """The promise: the reading grows by the time that passes where the set is led, and by nothing else.

    A reading is in milliseconds since 1970, as events have it: where a set begins it is the time of day. From then on
    it follows the primaries, whatever becomes of the time of day. `steady_ms`: what this broker's own clock says that
    nobody can set, in milliseconds since 1970 as of the time of day at which its process began.

    A change of primary takes from the reading at most what the last message of the old one took to come here. Where
    there is no such change, because all brokers were started anew, what most of them say counts, so that one whose
    machine's clock was set meanwhile misleads nobody.
    """

    __slots__ = ("_peers", "_told", "is_settled", "offset_ms")

    def __init__(self) -> None:
        self.offset_ms = 0
        """What the reading is ahead of this broker's steady time; of a backup, as far as it can tell."""
        self._told: deque[int] = deque(maxlen=READINGS_KEPT)
        """The same, by each of the last readings that the primary told."""
        self.is_settled = False
        """A primary has told the reading to this process, or it has led the set itself."""
        self._peers: dict[str, int] = {}
        """Before that: what others say, by their names; as `offset_ms`."""

    def now_ms(self, steady_ms: int) -> int:
        """The reading: 1 to LAST_MS, wherever the time of day was when it began."""
        return min(max(steady_ms + self.offset_ms, 1), LAST_MS)

    def steady_ms(self, reading_ms: int) -> int:
        """When it is `reading_ms`, by the broker's own time: which is the time of day, unless that was set."""
        return max(reading_ms - self.offset_ms, 1)

    def go_on(self, reading_ms: int, steady_ms: int) -> None:
        """The clock reads `reading_ms` now: by the store, as long as no primary has said another thing."""
        self.offset_ms = reading_ms - steady_ms

    def follow(self) -> None:
        """What comes next is told by another primary, or on another channel."""
        self._told.clear()

    def told(self, reading_ms: int, steady_ms: int) -> None:
        """The primary's reading came here now. It was taken a while ago: of several the least delayed one counts."""
        self._told.append(reading_ms - steady_ms)
        self.offset_ms = max(self._told)
        self.is_settled = True

    def note_peer(self, name: str, reading_ms: int, steady_ms: int) -> None:
        """Another broker, which has a replica too, says what its reading is."""
        self._peers[name] = reading_ms - steady_ms

    def lead(self) -> int:
        """This broker leads now. How far its reading was put forward: negative, it was ahead of the others'.

        Unless the clock is settled, the median of all that is said counts; of two in the middle the earlier one, by
        which messages live longer.
        """
        before_ms = self.offset_ms
        if not self.is_settled:
            said = sorted((self.offset_ms, *self._peers.values()))
            self.offset_ms = said[(len(said) - 1) // 2]
        self._peers.clear()
        self.is_settled = True
        return self.offset_ms - before_ms

    def converted(self, reading_ms: int, other: MessageClock) -> int:
        """By this clock, what `reading_ms` is by that of another set of this broker; 0, which is never, stays."""
        return min(max(reading_ms + self.offset_ms - other.offset_ms, 1), _MOST) if reading_ms else 0


def by_clock(message: Message, clock: MessageClock, other: MessageClock) -> Message:
    """`message`, whose times are by the clock `other`, with what they are by `clock`."""
    if not (message.expires_at_ms or message.due_at_ms):
        return message
    expires_at_ms, due_at_ms = (
        clock.converted(reading_ms, other) for reading_ms in (message.expires_at_ms, message.due_at_ms)
    )
    return message._replace(expires_at_ms=expires_at_ms, due_at_ms=due_at_ms)
