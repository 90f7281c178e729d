"""Container ids that brokers have reserved for their clients, at the broker that leads `default`: links and time.

What is decided, `nodes.reservations` decides. This broker gives ids while it leads, and can prove that it does; who
cannot for DOUBT_MS may have a successor soon, and ends the links of those who have ids: their brokers count from then
on, look for that one, or come back and wait here until it is sure again.
"""

from __future__ import annotations

from typing import Final, Protocol

from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere, SetDirectory
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.reservations import (
    Effect,
    HolderQuestion,
    Replaced,
    Reservation,
    ReservationAsked,
    ReservationGranted,
    ReservationRefused,
    ReservationTable,
)
from qpid_ha_broker.amqp.relaying.relayed_reservations import Unattached
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.amqp.wire.reservation_request import HOLDER_INFO
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.lead_proof import LeadProof

DOUBT_MS: Final = 500
"""A disk or a backup may be slow for so long."""


class ReservationLimits(Protocol):
    """What of the container's settings is about reservations."""

    @property
    def reservation_hold_ms(self) -> int:
        """How long a broker keeps connections that alone have their id without hearing of the primary of `default`."""


class ReservationContainer(Protocol):
    """What is needed of the container."""

    now_ms: int
    default: HostedSet
    directory: SetDirectory

    @property
    def settings(self) -> ReservationLimits:
        """Those in force."""


class ReservationLink(Protocol):
    """What another broker has attached."""

    def grant(self) -> None:
        """Answer its attach."""

    def ask(self, question: HolderQuestion) -> None:
        """Have its broker answer."""

    def end(self, error: AmqpError) -> None:
        """Detach it."""


class ReservationKeeper:
    """The promise: what the table decides is said on the links, and nothing is given by who may lead no more."""

    def __init__(self, container: ReservationContainer) -> None:
        self._container = container
        self.table = ReservationTable()
        self.unattached = Unattached(lambda: container.now_ms, lambda: container.settings.reservation_hold_ms)
        """Of clients of this broker."""
        self._links: dict[Reservation, ReservationLink] = {}
        self._doubted_ms: int | None = None
        """Since when it is not sure that this broker leads; None: it is."""

    def begin(self) -> None:
        """This broker leads `default`, after another one or again: who has an id says so, of links from before, too."""
        self.table.begin(self._container.now_ms, self._container.settings.reservation_hold_ms)
        self._end_links(list(self._links))

    def ask(self, reservation: Reservation, link: ReservationLink) -> AmqpError | None:
        """A broker attaches `link` for it, which is granted now or later; or why not."""
        self._look_at_lead()
        if self._container.default.read_only:
            return self._elsewhere()
        self._links[reservation] = link
        effects = self.table.ask(reservation, self._container.now_ms)
        refusals = [
            effect for effect in effects if isinstance(effect, ReservationRefused) and effect.reservation is reservation
        ]
        self._carry_out([effect for effect in effects if effect not in refusals])
        for refused in refusals:
            del self._links[reservation]
            return _in_use(refused)
        return None

    def left(self, reservation: Reservation, *, is_over: bool) -> None:
        """Its link has ended; `is_over`: because its client has gone."""
        if self._links.pop(reservation, None) is not None:
            self._look_at_lead()
            tell = self.table.closed if is_over else self.table.lost
            self._carry_out(tell(reservation, self._container.now_ms))

    def lives(self, reservation: Reservation) -> None:
        """Its broker says that its client lives."""
        self._look_at_lead()
        self._carry_out(self.table.lives(reservation, self._container.now_ms))

    def tick(self) -> None:
        """Several times a second."""
        if self.unattached:
            self.unattached.look()
        if self._container.default.read_only or not len(self.table):
            return
        if self._look_at_lead():
            self._carry_out(self.table.look(self._container.now_ms))
        elif self._doubted_ms is not None and self._container.now_ms - self._doubted_ms >= DOUBT_MS:
            self._end_links([reservation for reservation in self._links if self.table.is_holder(reservation)])

    def _end_links(self, reservations: list[Reservation]) -> None:
        """Their brokers attach them at whoever leads, which may be this one."""
        for reservation in reservations:
            link = self._links.get(reservation)
            if link is not None:
                link.end(self._elsewhere())

    def _look_at_lead(self) -> bool:
        """Whether this broker leads, as it can prove."""
        default = self._container.default
        is_sure = not default.read_only and default.prove_lead() is not LeadProof.MISSING
        self.table.is_sure = is_sure
        if is_sure:
            self._doubted_ms = None
        elif self._doubted_ms is None:
            self._doubted_ms = self._container.now_ms
        return is_sure

    def _elsewhere(self) -> AmqpError:
        return ServedElsewhere(self._container.directory, DEFAULT_SET)

    def _carry_out(self, effects: list[Effect]) -> None:
        """Who is told may have left meanwhile."""
        for effect in effects:
            link = self._links.get(effect.reservation)
            if link is None:
                continue
            match effect:
                case ReservationGranted():
                    link.grant()
                case ReservationAsked(_, question):
                    link.ask(question)
                case ReservationRefused():
                    link.end(_in_use(effect))
                case Replaced():
                    link.end(AmqpError(CONNECTION_FORCED, "its broker has asked anew, or does not answer"))


def _in_use(refused: ReservationRefused) -> AmqpError:
    text = f"the container id is in use by a connection to broker {refused.holder}"
    return AmqpError(RESOURCE_LOCKED, text, {HOLDER_INFO: refused.holder})
