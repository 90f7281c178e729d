"""A client that costs as little as a client can, so that the figures speak of the broker.

It calls Proton's C engine directly and blocks on one socket; one connection has one session and one link. On one of two
cores it leaves the broker the other; `bench.usage` shows which of the two was the bottleneck.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import proton
from cproton_ffi import ffi, lib

from qpid_ha_config.closing import Closing

BUFFER_BYTES = 256 * 1024
MESSAGE_BYTES_MAX = 64 * 1024
TIMEOUT_S = 60.0
TAGS = 16_384
"""Tags serve again after so many messages: far more than may be unsettled at a time."""
_ENDS = frozenset(
    {lib.PN_CONNECTION_REMOTE_CLOSE, lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH, lib.PN_TRANSPORT_ERROR}
)


class BenchError(Exception):
    """The broker did something that makes the figure worthless: it refused, lost or hung."""


class LoadConnection(Closing):
    """One open AMQP connection with one session, over a blocking socket."""

    def __init__(self, port: int, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._buffer_bytes = buffer_bytes
        self._input = ffi.new("char[]", buffer_bytes)
        self._output = ffi.new("char[]", buffer_bytes)
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport = proton.Transport()
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._connection = proton.Connection()
        self._connection.container = "bench"
        self._connection.hostname = "127.0.0.1"
        self._engine = self._transport._impl
        self.collector = lib.pn_collector()
        lib.pn_connection_collect(self._connection._impl, self.collector)
        self._transport.bind(self._connection)
        self._connection.open()
        self.session = self._connection.session()
        self.session.open()
        self.wait_for(lambda: bool(self.session.state & proton.Endpoint.REMOTE_ACTIVE))

    def fileno(self) -> int:
        """So that `select` takes the connection itself."""
        return self.socket.fileno()

    def flush(self) -> None:
        """Write all that the engine has for the broker."""
        engine, room = self._engine, self._output
        while lib.pn_transport_pending(engine) > 0:
            size = lib.pn_transport_peek(engine, room, self._buffer_bytes)
            lib.pn_transport_pop(engine, self.socket.send(ffi.buffer(room, size)))

    def read(self) -> None:
        """Wait for bytes of the broker and give them to the engine. Raises BenchError at the end of them."""
        engine, start = self._engine, self._input
        try:
            size = self.socket.recv_into(ffi.buffer(start))
        except TimeoutError:
            raise BenchError(f"the broker said nothing for {TIMEOUT_S:g} s") from None
        if not size:
            raise BenchError("the broker closed the socket")
        pushed = 0
        while pushed < size:  # Proton takes a few KiB at a time
            taken = lib.pn_transport_push(engine, start + pushed, size - pushed)
            if taken <= 0:
                raise BenchError(f"Proton takes no more of what the broker says: {self._transport.condition}")
            pushed += taken

    def wait_for(self, is_reached: Callable[[], bool]) -> None:
        """Exchange bytes until `is_reached`. Events of that time are dropped: no messages may be under way."""
        self.drop_events()
        self.flush()
        while not is_reached():
            self.read()
            self.drop_events()
            self.flush()

    def drop_events(self) -> None:
        """Forget what happened, except for failures."""
        while event := lib.pn_collector_peek(self.collector):
            self.check(lib.pn_event_type(event))
            lib.pn_collector_pop(self.collector)

    def check(self, kind: int) -> None:
        """Raises BenchError when an event of this `kind` means that the broker ended something of ours."""
        if kind in _ENDS:
            link = self._connection.link_head(proton.Endpoint.REMOTE_CLOSED)
            reasons = [self._transport.condition, self._connection.remote_condition, link and link.remote_condition]
            raise BenchError(f"the broker ended it: {[reason for reason in reasons if reason]}")

    def close(self) -> None:
        """Drop the socket and what C holds."""
        self.socket.close()
        self._transport.unbind()
        lib.pn_connection_collect(self._connection._impl, ffi.NULL)
        lib.pn_collector_free(self.collector)


class Publisher:
    """Sends unsettled; a message counts only when the broker's `accepted` has come."""

    def __init__(self, connection: LoadConnection, address: str) -> None:
        self.connection = connection
        link = connection.session.sender("publisher")
        link.target.address = address
        link.open()
        self._proton_link = link  # its end would be the end of `_link`
        self._link = link._impl
        self._texts = [ffi.new("char[]", number.to_bytes(4, "big")) for number in range(TAGS)]
        self._tags = [ffi.new("pn_bytes_t *", {"size": 4, "start": text})[0] for text in self._texts]
        self._next_tag = 0
        connection.wait_for(lambda: bool(link.state & proton.Endpoint.REMOTE_ACTIVE) and link.credit > 0)

    @property
    def credit(self) -> int:
        """How many messages the broker takes now."""
        return int(lib.pn_link_credit(self._link))

    def send(self, payload: bytes, count: int = 1) -> Any:
        """Hand `count` messages to the engine; returns the last delivery. The caller flushes."""
        link, size, tags, number = self._link, len(payload), self._tags, self._next_tag
        new, write, advance = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
        delivery = None
        for _ in range(count):
            delivery = new(link, tags[number])
            write(link, payload, size)
            advance(link)
            number = (number + 1) % TAGS
        self._next_tag = number
        return delivery

    def confirmed(self, tell: Callable[[Any], None] | None = None) -> int:
        """How many were accepted since the last call; `tell` gets each delivery. Raises BenchError on a refusal."""
        collector, delivery_type, accepted = self.connection.collector, lib.PN_DELIVERY, lib.PN_ACCEPTED
        peek, pop, type_of, delivery_of = (
            lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type, lib.pn_event_delivery
        )  # fmt: skip
        state_of, settle = lib.pn_delivery_remote_state, lib.pn_delivery_settle
        count = 0
        while event := peek(collector):
            kind = type_of(event)
            if kind == delivery_type:
                delivery = delivery_of(event)
                if (state := state_of(delivery)) != accepted:
                    raise BenchError(f"a message was not accepted: its delivery state is {state:#x}")
                if tell is not None:
                    tell(delivery)
                settle(delivery)
                count += 1
            else:
                self.connection.check(kind)
            pop(collector)
        return count


class Subscriber:
    """Receives, accepts and settles each message; what one read brought is answered together."""

    def __init__(self, connection: LoadConnection, address: str, credit: int) -> None:
        self.connection = connection
        self._buffer = ffi.new("char[]", MESSAGE_BYTES_MAX)
        self._credit = credit
        self._used = 0
        link = connection.session.receiver("subscriber")
        link.source.address = address
        link.open()
        self._proton_link = link  # its end would be the end of `_link`
        self._link = link._impl
        connection.wait_for(lambda: bool(link.state & proton.Endpoint.REMOTE_ACTIVE))

    def start(self) -> None:
        """Give the first credit: from now on messages come."""
        lib.pn_link_flow(self._link, self._credit)
        self.connection.flush()

    def take(self, tell: Callable[[bytes], None] | None = None) -> int:
        """How many came since the last call; `tell` gets each message's bytes. The caller flushes the answers."""
        collector, delivery_type, accepted = self.connection.collector, lib.PN_DELIVERY, lib.PN_ACCEPTED
        peek, pop, type_of, delivery_of = (
            lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type, lib.pn_event_delivery
        )  # fmt: skip
        is_partial, receive, advance = lib.pn_delivery_partial, lib.pn_link_recv, lib.pn_link_advance
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        link, buffer, count = self._link, self._buffer, 0
        while event := peek(collector):
            kind = type_of(event)
            if kind == delivery_type:
                delivery = delivery_of(event)
                if not is_partial(delivery):
                    size = receive(link, buffer, MESSAGE_BYTES_MAX)
                    if tell is not None:
                        tell(ffi.unpack(buffer, size))
                    advance(link)
                    update(delivery, accepted)
                    settle(delivery)
                    count += 1
            else:
                self.connection.check(kind)
            pop(collector)
        self._replenish(count)
        return count

    def _replenish(self, count: int) -> None:
        self._used += count
        if self._used * 4 >= self._credit:
            lib.pn_link_flow(self._link, self._used)
            self._used = 0

    def finish(self) -> None:
        """Detach, and wait for the broker's answer: then it has carried out all that was accepted before."""
        link = self._proton_link
        link.close()
        self.connection.flush()
        while not link.state & proton.Endpoint.REMOTE_CLOSED:
            self.connection.read()
