"""A coordinator that was asked to name this broker primary, and of which nobody knows whether it did.

If it did, nobody else may lead and this broker must not follow an older primary, which would take away what it holds.
If it did not, all is as before. So no older generation is followed until the record has been read again.
"""

from __future__ import annotations

from qpid_ha_broker.ha.claims import Claims
from qpid_ha_broker.ha.effects import ReadRecord, Record
from qpid_ha_broker.ha.surroundings import Surroundings

_PAUSE_S = 0.5


class UncertainWrite:
    """The promise: once `begin` was called, no new channel to an older primary is followed before the record was seen.

    One that was open already goes on.
    """

    def __init__(self, around: Surroundings, claims: Claims) -> None:
        self._around = around
        self._claims = claims
        self._generation = 0
        self._number = 0
        self._not_before_s = 0.0

    def begin(self, generation: int) -> None:
        """The record may say by now that this broker leads `generation`."""
        self._generation, self._number, self._not_before_s = generation, 0, self._around.now_s
        self._claims.bind(generation)

    def end(self) -> None:
        """This broker leads, or follows somebody who is newer in any case."""
        self._generation = 0

    def tick(self) -> None:
        """Ask again, unless an answer is on its way."""
        if self._generation and not self._number and self._around.now_s >= self._not_before_s:
            self._number = self._around.number()
            self._around.effects.append(ReadRecord(self._number))

    def record_read(self, number: int, record: Record | None) -> None:
        """What it holds; None: it still cannot be reached."""
        if number != self._number or not self._generation:
            return
        self._number, self._not_before_s = 0, self._around.now_s + _PAUSE_S
        if record is None:
            return
        if record.generation < self._generation:
            self._claims.release()
        self._generation = 0
