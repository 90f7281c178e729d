"""Container ids that one connection of the whole cluster has alone: who has which, without links or a clock.

Where several brokers take clients (`ha.clients: proxy`), a client that asks to be the only one with its container id
may have another connection at another broker. So its broker reserves the id for it at the broker that leads `default`,
and answers its open when it has it. A *reservation* is one broker's link for one connection (`relayed_reservations`).
It is written to no log: whoever leads next is told by the brokers what they have.

The safety property: of two connections that were both told to be the only one of a user and a container id, the older
one had ended, or its broker, before the newer one was told. Three times are all that it rests on, of clocks that need
not show the same time, but go equally fast:

    1. A broker ends its client's connection once it has heard nothing of the broker that leads `default` for `hold_ms`,
       or was refused there since: `relayed_reservations`.
    2. Who leads `default` gives the id of a lost link to another broker `hold_ms` and MARGIN_MS after that at the
       earliest. What it had said before, it had said before the loss.
    3. Who begins to lead gives new ids to nobody for as long: brokers come with what they have had, and what nobody has
       come for by then has ended. Its predecessor, where that still runs, has not proved for long that it leads, and so
       has ended its links: see `ReservationKeeper`.

What is not given: a broker whose process was stopped goes on for some milliseconds before it looks at its clock; and
two brokers that an operator has made lead `default` at once each have a table.

An id, by what is known of it, and what comes of what happens:

| what happens | free | held | left |
| --- | --- | --- | --- |
| its broker asks for it | | granted; the older link is replaced | granted |
| another one that has told its client | granted | refused | refused |
| another one | granted | waits, and the holder is asked | waits |
| its link is closed | | free | |
| its link is lost | | left | |
| its holder lives | | who waits is refused | |
| it was asked ANSWER_MS ago | | its link is replaced: left | |
| its link was lost `hold_ms` and MARGIN_MS ago | | | free |

A broker that asks while an older link of its own waits has that one replaced. Of those who wait for an id that comes to
be free the first gets it, and the others wait for that one. Those who ask for a free one anew wait, too, in the time of
3. While it is not sure that this broker leads, whoever asks waits, to be heard later.

What it is asked: whether its client may be gone, which its broker knows by the time-out of that connection. It closes
the link of one that is, and says so of one that lives. Of one whose successor asks to have it end, it closes it in any
case: AMQP's close-existing. So who waits is answered by the holder's broker, or by time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

MARGIN_MS: Final = 2_500
"""For what is late at both ends: looks at the clock, bytes under way, and a primary that was stopped, goes on, and has
been replaced: it has not ended its links before DOUBT_MS."""
ANSWER_MS: Final = 1_000
"""So long the broker of a holder may take to say whether that lives."""


class HolderQuestion(IntEnum):
    """What the broker of a holder is asked, the stronger the higher: as many messages of credit its link gets."""

    NONE = 0
    LIVES = 1
    """Whether the client may be gone."""
    ENDS = 2
    """The connection is to end in any case."""


@dataclass(frozen=True, eq=False)
class Reservation:
    """What one link of a broker asks for."""

    key: str
    """Of user and container id."""
    broker: str
    """Which serves one connection with that key at a time."""
    hold_ms: int
    """So long it keeps the connection without hearing of who leads `default`."""
    is_held: bool = False
    """Its client was told, by what was said here or at another primary before."""
    closes_existing: bool = False
    """Another broker's connection is to end for this one."""


class ReservationGranted(NamedTuple):
    """It has the id now."""

    reservation: Reservation


class ReservationRefused(NamedTuple):
    """Another broker's connection has the id."""

    reservation: Reservation
    holder: str
    """That broker."""


class Replaced(NamedTuple):
    """Its link ends. Its broker attaches it again where that is the one that it has."""

    reservation: Reservation


class ReservationAsked(NamedTuple):
    """Its broker is to answer."""

    reservation: Reservation
    question: HolderQuestion


Effect = ReservationGranted | ReservationRefused | Replaced | ReservationAsked


@dataclass
class _Id:
    """What is known of an id; one that is free, and that nobody waits for, is forgotten."""

    holder: Reservation | None = None
    left_ms: int | None = None
    """When the id of a lost link is free; None: it is not lost."""
    question: HolderQuestion = HolderQuestion.NONE
    """The strongest that the holder was asked, and has not answered."""
    asked_ms: int = 0
    """When, if it was."""
    waiting: dict[Reservation, None] = field(default_factory=dict)


class ReservationTable:
    """The promise: an id is held by one reservation at a time, and passes to another broker's as the module says.

    What it is told returns effects, in order. `now_ms`: of a clock that never jumps.
    """

    def __init__(self) -> None:
        self.is_sure = True
        """This broker can prove that it leads; set before it is told anything."""
        self._ids: dict[str, _Id] = {}
        self._unheard: dict[Reservation, None] = {}
        """Those who have asked while it was not sure that this broker leads."""
        self._timed: dict[str, None] = {}
        """Keys of ids that were left, or whose holder was asked."""
        self._new_from_ms: int | None = None
        """When those who ask anew may be given ids; None: now."""

    def __len__(self) -> int:
        return len(self._ids) + len(self._unheard)

    def begin(self, now_ms: int, hold_ms: int) -> None:
        """This broker leads `default` after another one, or again. `hold_ms`: the longest of any broker."""
        self._ids, self._timed, self._unheard = {}, {}, {}
        self._new_from_ms = now_ms + hold_ms + MARGIN_MS

    def ask(self, reservation: Reservation, now_ms: int) -> list[Effect]:
        """A broker attaches a link for it."""
        if not self.is_sure:
            self._unheard[reservation] = None
            return []
        entry = self._ids.setdefault(reservation.key, _Id())
        older = [waiting for waiting in entry.waiting if waiting.broker == reservation.broker]
        entry.waiting = {waiting: None for waiting in entry.waiting if waiting not in older}
        effects: list[Effect] = [Replaced(waiting) for waiting in older]
        holder = entry.holder
        if holder is None:
            if reservation.is_held or self._gives(now_ms):
                return effects + self._hold(entry, reservation, now_ms)
        elif holder.broker == reservation.broker:
            if entry.left_ms is None:
                effects.append(Replaced(holder))
            return effects + self._hold(entry, reservation, now_ms)
        elif reservation.is_held:
            return [*effects, ReservationRefused(reservation, holder.broker)]
        entry.waiting[reservation] = None
        return effects + self._question(entry, now_ms)

    def closed(self, reservation: Reservation, now_ms: int) -> list[Effect]:
        """Its client has gone: the id is free, or is not waited for."""
        self._unheard.pop(reservation, None)
        entry = self._ids.get(reservation.key)
        if entry is None:
            return []
        if entry.holder is reservation:
            return self._free(reservation.key, now_ms)
        entry.waiting.pop(reservation, None)
        self._tidy(reservation.key)
        return []

    def lost(self, reservation: Reservation, now_ms: int) -> list[Effect]:
        """Its link has ended, and nobody has said that its client has gone."""
        entry = self._ids.get(reservation.key)
        if entry is None or entry.holder is not reservation:
            return self.closed(reservation, now_ms)
        if entry.left_ms is None:
            self._leave(entry, reservation, now_ms)
        return []

    def lives(self, reservation: Reservation, now_ms: int) -> list[Effect]:
        """Its broker has heard of its client not long ago."""
        entry = self._ids.get(reservation.key)
        if entry is None or entry.holder is not reservation or entry.left_ms is not None:
            return []
        stays = [asking for asking in entry.waiting if asking.closes_existing]
        refused: list[Effect] = [
            ReservationRefused(asking, reservation.broker) for asking in entry.waiting if not asking.closes_existing
        ]
        entry.waiting = dict.fromkeys(stays)
        if entry.question is HolderQuestion.LIVES:
            entry.question = HolderQuestion.NONE
        return refused + self._question(entry, now_ms)

    def look(self, now_ms: int) -> list[Effect]:
        """Time has passed; to be called several times a second."""
        effects: list[Effect] = []
        if self.is_sure:
            unheard, self._unheard = self._unheard, {}
            for reservation in unheard:
                effects += self.ask(reservation, now_ms)
        if self._new_from_ms is not None and self._gives(now_ms):
            self._new_from_ms = None
            for key in [key for key, entry in self._ids.items() if entry.holder is None]:
                effects += self._serve(key, now_ms)
        for key in list(self._timed):
            entry = self._ids.get(key)
            if entry is None or entry.holder is None:
                effects += self._serve(key, now_ms)
            elif entry.left_ms is not None:
                if now_ms >= entry.left_ms:
                    effects += self._free(key, now_ms)
            elif entry.question is HolderQuestion.NONE:
                del self._timed[key]
            elif now_ms - entry.asked_ms >= ANSWER_MS:
                effects.append(Replaced(entry.holder))
                self._leave(entry, entry.holder, now_ms)
        return effects

    def _gives(self, now_ms: int) -> bool:
        """Whether those who ask anew may be given ids."""
        return self._new_from_ms is None or now_ms >= self._new_from_ms

    def _hold(self, entry: _Id, reservation: Reservation, now_ms: int) -> list[Effect]:
        entry.waiting.pop(reservation, None)
        entry.holder, entry.left_ms, entry.question = reservation, None, HolderQuestion.NONE
        return [ReservationGranted(reservation), *self._question(entry, now_ms)]

    def _leave(self, entry: _Id, holder: Reservation, now_ms: int) -> None:
        entry.left_ms, entry.question = now_ms + holder.hold_ms + MARGIN_MS, HolderQuestion.NONE
        self._timed[holder.key] = None

    def _question(self, entry: _Id, now_ms: int) -> list[Effect]:
        """Ask the holder what those who wait want to know, if that was not asked yet."""
        holder = entry.holder
        if holder is None or entry.left_ms is not None or not entry.waiting:
            return []
        ends = any(asking.closes_existing for asking in entry.waiting)
        question = HolderQuestion.ENDS if ends else HolderQuestion.LIVES
        if question <= entry.question:
            return []
        entry.question, entry.asked_ms = question, now_ms
        self._timed[holder.key] = None
        return [ReservationAsked(holder, question)]

    def _free(self, key: str, now_ms: int) -> list[Effect]:
        entry = self._ids[key]
        entry.holder, entry.left_ms, entry.question = None, None, HolderQuestion.NONE
        return self._serve(key, now_ms)

    def _serve(self, key: str, now_ms: int) -> list[Effect]:
        """Nobody has the id: who waits first gets it, and the others wait for that one."""
        entry = self._ids.get(key)
        effects: list[Effect] = []
        if entry is not None and self._gives(now_ms):
            waiting, entry.waiting = entry.waiting, {}
            for reservation in waiting:
                effects += self.ask(reservation, now_ms)
        self._tidy(key)
        return effects

    def _tidy(self, key: str) -> None:
        entry = self._ids.get(key)
        if entry is not None and entry.holder is None:
            if entry.waiting:
                self._timed[key] = None  # until ids are given again
                return
            del self._ids[key]
        if entry is None or entry.holder is None:
            self._timed.pop(key, None)

    def is_holder(self, reservation: Reservation) -> bool:
        """Whether it has its id."""
        entry = self._ids.get(reservation.key)
        return entry is not None and entry.holder is reservation

    def check_invariants(self) -> None:
        """Raises ValueError for a state that must not be."""
        for key, entry in self._ids.items():
            if entry.holder is None and not entry.waiting:
                raise ValueError(f"{key} is free, and was not forgotten")
            if entry.holder in entry.waiting:
                raise ValueError(f"{key} is waited for by its holder")
            is_timed = entry.left_ms is not None or entry.question is not HolderQuestion.NONE
            if is_timed and (entry.holder is None or key not in self._timed):
                raise ValueError(f"{key} was left or asked for, and nobody looks at the time")
            if entry.holder is not None and entry.left_ms is None and entry.waiting and not entry.question:
                raise ValueError(f"{key} is waited for, and its holder is not asked")
