"""Whether what comes of another broker may be passed on: not once it was silent for so long that it may be replaced.

A primary gives its consumers messages as long as it believes that it leads (`ha.leadership_proof`), which says nothing
of when they arrive. Where the network is cut they stay in the connection, and TCP brings them when it heals: their
sender may have a successor by then, who gives them to others. The safety property: nothing is passed on that came
later than `limit_s` after something else came, and `limit_s` is less than what others need to replace a primary.

    1. The primary says something, or at least that it is there, several times in `limit_s`: its messages are passed on.
    2. Nothing came for longer: the connection is given up. Its links are attached again wherever their sets are led,
       and whoever leads gives what was not passed on again, marked.
    3. Something comes after that, before this broker has looked at the time: the same, and what came is dropped. So it
       is where this broker was stopped itself: what it finds in the socket may be as old as its stop.
    4. What came in time, and waits here for a client's credit: it is passed on within `limit_s`, as above.

A broker of any release says that it is there, as AMQP's idle time-out asks it to.
"""

from __future__ import annotations

from qpid_ha_broker.model.budget import Clock


class Silence:
    """Of the other end of one connection. `clock` goes on while this process is stopped."""

    __slots__ = ("_clock", "_heard_s", "_late_s", "limit_s")

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._heard_s = clock()
        self._late_s = 0.0
        self.limit_s = limit_s

    @property
    def unheard_s(self) -> float:
        """For how long nothing was heard in time."""
        return self._clock() - self._heard_s + self._late_s

    @property
    def is_too_long(self) -> bool:
        """Whether nothing was heard for longer than `limit_s`."""
        return self._clock() - self._heard_s > self.limit_s

    def heard(self) -> bool:
        """Something came: whether that was in time."""
        now_s = self._clock()
        since_s, self._heard_s = now_s - self._heard_s, now_s
        is_in_time = since_s <= self.limit_s
        self._late_s = 0.0 if is_in_time else since_s
        return is_in_time
