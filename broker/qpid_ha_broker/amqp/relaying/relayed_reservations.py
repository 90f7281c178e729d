"""A container id that this broker has reserved for one of its clients: what the primary of `default` says of it.

The reservation is a link (`reservation_request`) from this broker to the one that leads `default`, which may be
itself. When that is lost, or leads no more, the link is attached at whoever leads then, and says that the client has
the id; the client does not notice. `nodes.reservations` has what is promised.

| the primary | a client that waits for its open | one that was told |
| --- | --- | --- |
| grants it | is answered, with the capability | goes on |
| says that another one has it | is refused | ends |
| knows no reservations | is answered, without the capability | ends: it comes again, and is told nothing |
| is not reached | is refused after `hold_ms` and LIMIT_MORE_MS | ends `hold_ms` after the last sign of it |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol
from weakref import ref

import proton

from qpid_ha_broker.amqp.nodes.identity import ClientNames
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.amqp.nodes.reservations import ANSWER_MS, MARGIN_MS, HolderQuestion
from qpid_ha_broker.amqp.nodes.sole_connection import (
    SoleConnection,
    closes_existing,
    may_be_gone,
    newer_takes_its_place,
    second_refused,
    sole_key,
)
from qpid_ha_broker.amqp.relaying.relayer import PrimaryEnd, Relayer, is_elsewhere
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, NOT_IMPLEMENTED, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, Sender, remote_properties_of
from qpid_ha_broker.amqp.wire.relay import RELAY_RESERVATIONS_CAPABILITY, RelayRequest
from qpid_ha_broker.amqp.wire.reservation_request import (
    HOLDER_INFO,
    RESERVATION_NODE,
    ReservationRequest,
    read_reservation,
)

_SPARE_MS: Final = 1_000
LIMIT_MORE_MS: Final = MARGIN_MS + ANSWER_MS + _SPARE_MS
"""Beyond `hold_ms`, how long an open waits: until an id is free whose broker is gone, or another broker leads."""
_LIVES: Final = b"\0Sw\x41"
"""The message that says that a holder lives: nothing but a body that is true."""


class ReservingConnection(SoleConnection, Protocol):
    """The client's connection."""

    def answer_open(self) -> None:
        """Answer the client's open."""

    def touch(self) -> None:
        """There is something to write."""


class Unattached(dict["RelayedReservation", None]):
    """Those whose client waits for an answer, or is to end if there is none: `look` is due several times a second."""

    def __init__(self, clock_ms: Callable[[], int], hold_ms: Callable[[], int]) -> None:
        super().__init__()
        self.clock_ms, self.hold_ms = clock_ms, hold_ms

    def look(self) -> None:
        """End those whose time is over."""
        now_ms = self.clock_ms()
        for reservation in [reservation for reservation in self if now_ms >= reservation.until_ms]:
            reservation.too_late()


class RelayedReservation(PrimaryEnd, EachDisposition):
    """The promise: the client is told that it alone has its id when it has, and its connection ends when it may not.

    For the methods that are called from its far end see `upstream.UpstreamLink` and `relayer.PlacedLink`.
    """

    needed_capability = RELAY_RESERVATIONS_CAPABILITY

    def __init__(
        self, connection: ReservingConnection, names: ClientNames, relayer: Relayer, unattached: Unattached
    ) -> None:
        super().__init__(RelayRequest((relayer.name,), f"{id(connection):x}", names.container, names.user))
        self._connection = ref(connection)
        self._names = names
        self._closes_existing = closes_existing(connection.engine.remote_properties)
        self._relayer = relayer
        self._unattached = unattached
        self._hold_ms = unattached.hold_ms()
        self._sender: Sender | None = None
        self._far: proton.Link | None = None
        self.until_ms = 0
        """While it is among `unattached`: when its client's connection ends."""
        self.wait = NodeWait("the container id is being reserved")
        """What attaches wait for that came with the open."""
        self.is_granted = False
        """The client has been told that it has the id."""
        self._has_left = False
        """The client's connection has ended, or goes on without."""

    def begin(self) -> None:
        """The client has opened."""
        self._await_answer(self._hold_ms + LIMIT_MORE_MS)
        self._relayer.place(self)

    def _await_answer(self, limit_ms: int) -> None:
        if self not in self._unattached:
            self.until_ms = self._unattached.clock_ms() + limit_ms
            self._unattached[self] = None

    # --- the far end

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        key = sole_key(self._names)
        asked = ReservationRequest(key, self._hold_ms, self.is_granted, self._closes_existing)
        far: proton.Link = session.sender(name)
        far.target.address = RESERVATION_NODE
        return self._opened(far, asked.properties())

    def attached(self, upstream: Upstream, far: proton.Link) -> RelayedReservation:
        """The client has the id. Raises AmqpError for an answer that makes no sense."""
        read_reservation(remote_properties_of(far))
        self.upstream, self._far, self._sender = upstream, far, Sender(far)
        self._unattached.pop(self, None)
        if not self.is_granted:
            self.is_granted = True
            self._answer_open()
        return self

    def _answer_open(self) -> None:
        connection = self._connection()
        if connection is not None:
            connection.answer_open()
            connection.touch()
        self.wait.ready()

    def flow(self) -> None:
        """The primary asks: see `HolderQuestion`."""
        connection, far = self._connection(), self._far
        if connection is None or far is None or self._sender is None:
            return
        question = engine.credit(far)
        if question >= HolderQuestion.ENDS or (question and may_be_gone(connection, self._unattached.clock_ms())):
            connection.end(newer_takes_its_place())
        elif question and self.upstream is not None:
            self._sender.send_settled(_LIVES)
            self.upstream.touch()

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """Answers are sent settled: there is nothing to say of them."""

    def detached(self, error: AmqpError) -> None:
        """Somebody else has the id, or leads `default`."""
        self._left_primary()
        if is_elsewhere(error):
            self._relayer.attach_again(self)
            return
        self._relayer.forget(self)
        connection, self._has_left = self._connection(), True
        self._unattached.pop(self, None)
        if connection is None:
            return
        if error.name == RESOURCE_LOCKED and self.is_granted:
            connection.end(newer_takes_its_place())
        elif error.name == RESOURCE_LOCKED:
            connection.end(second_refused(self._names.container, str((error.info or {}).get(HOLDER_INFO, ""))))
        elif error.name == NOT_IMPLEMENTED and not self.is_granted:
            self._answer_open()
        else:
            connection.end(AmqpError(CONNECTION_FORCED, f"nobody keeps the container id: {error.description}"))

    def lost(self, reason: str) -> None:
        """The connection to the broker that leads `default` is gone: it is told again, or another one is."""
        self._left_primary()
        self._relayer.attach_again(self)

    def _left_primary(self) -> None:
        upstream, self.upstream, self._far, self._sender = self.upstream, None, None, None
        if upstream is not None:
            self._await_answer(self._hold_ms - int(upstream.silence.unheard_s * 1000))

    def out_of_reach(self) -> None:
        """How long its client stays is limited by itself."""

    def too_late(self) -> None:
        """Nobody has said for too long whether the client has the id."""
        connection = self._connection()
        if connection is not None:
            text = "the broker that leads the set default, which keeps container ids apart, is not reached"
            connection.end(AmqpError(CONNECTION_FORCED, f"{text} from {self._relayer.name}: try again, or another one"))
        self.left()

    # --- the near end

    def left(self) -> None:
        """The client's connection has ended."""
        self.wait.forget_all()
        self._unattached.pop(self, None)
        if not self._has_left:
            self._has_left = True
            self._relayer.forget(self)
