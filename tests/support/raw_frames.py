"""A client of a broker in memory that speaks AMQP frames by hand: what Proton's engine would never say."""

from __future__ import annotations

import struct
from typing import Any

import proton

from paired_engines import PairedClient
from raw_peer import (
    ACCEPTED,
    ATTACH,
    BEGIN,
    DISPOSITION,
    FLOW,
    OPEN,
    RECEIVER,
    SENDER,
    SOURCE,
    TARGET,
    TRANSFER,
    described,
    frame,
)

WIDE = 2**31 - 1
_HEADER = b"AMQP\x00\x01\x00\x00"


class RawClient:
    """Its connection and one session are open. `frames` are those of the broker, without their payload, in order."""

    def __init__(
        self,
        broker: Any,
        *,
        max_frame: int | None = None,
        channel_max: int = 65535,
        idle_ms: int | None = None,
        handle_max: int | None = None,
        next_outgoing_id: int = 0,
        incoming_window: int = WIDE,
        outgoing_window: int = WIDE,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        self.broker = broker
        self.peer = broker.accept()
        self.frames: list[tuple[int, list[Any]]] = []
        self.sizes: list[int] = []
        """Of all of its frames, in bytes."""
        self._heard = b""
        self._next_outgoing_id = next_outgoing_id
        limit = None if max_frame is None else proton.uint(max_frame)
        idle = None if idle_ms is None else proton.uint(idle_ms)
        fields = ["raw", "localhost", limit, proton.ushort(channel_max), idle, None, None, None, None, properties]
        windows = proton.uint(next_outgoing_id), proton.uint(incoming_window), proton.uint(outgoing_window)
        most = None if handle_max is None else proton.uint(handle_max)
        self.say(_HEADER, frame(OPEN, fields), frame(BEGIN, [None, *windows, most]))

    def say(self, *parts: bytes) -> None:
        """All of that at once, and hear what comes of it."""
        self.peer.receive(b"".join(parts))
        self.hear()

    def hear(self) -> None:
        """What the broker says."""
        for _ in range(3):
            self.broker.settle_down()
            self._heard += self.peer.take_output()
        while len(self._heard) >= 8:
            if self._heard.startswith(b"AMQP"):
                self._heard = self._heard[8:]
                continue
            size, offset, _, _ = struct.unpack(">IBBH", self._heard[:8])
            body, self._heard = self._heard[4 * offset : size], self._heard[size:]
            self.sizes.append(size)
            if body:
                data = proton.Data()
                data.decode(body)
                data.rewind()
                data.next()
                performative: Any = data.get_object()
                self.frames.append((int(performative.descriptor), performative.value))

    def got(self, code: int) -> list[list[Any]]:
        """The fields of all frames of that kind."""
        return [fields for each, fields in self.frames if each == code]

    def other(self) -> PairedClient:
        """Another client of the same broker."""
        client = PairedClient(self.broker)
        self.broker.settle_down()
        return client

    def attach(
        self,
        name: str,
        handle: int,
        role: bool,
        address: str,
        *,
        settled: bool = False,
        timeout: int = 0,
        initial_delivery_count: int = 0,
        max_message_size: int | None = None,
        source: Any = None,
    ) -> None:
        """A link from or to `address`; `role` is ours."""
        ends = [
            source or described(SOURCE, [address, None, None, proton.uint(timeout)]),
            described(TARGET, [address, None, None, proton.uint(timeout)]),
        ]
        fields = [
            name,
            proton.uint(handle),
            role,
            proton.ubyte(1 if settled else 0),
            proton.ubyte(0),
            *ends,
            None,
            None,
        ]
        fields.append(proton.uint(initial_delivery_count) if role is SENDER else None)
        fields.append(None if max_message_size is None else proton.ulong(max_message_size))
        self.say(frame(ATTACH, fields))

    def flow(
        self,
        handle: int,
        credit: int,
        *,
        delivery_count: int = 0,
        next_incoming_id: int = 0,
        incoming_window: int = WIDE,
        next_outgoing_id: int | None = None,
        drain: bool = False,
    ) -> None:
        """Credit for a link on which messages come."""
        begun = self._next_outgoing_id if next_outgoing_id is None else next_outgoing_id
        session = [next_incoming_id, incoming_window, begun, WIDE]
        link = [handle, delivery_count & 0xFFFFFFFF, credit]
        self.say(frame(FLOW, [*map(proton.uint, session), *map(proton.uint, link), None, drain, False]))

    def transfer(self, handle: int, number: int, payload: bytes) -> None:
        """A whole message."""
        tag = number.to_bytes(4, "big")
        self.say(
            frame(TRANSFER, [proton.uint(handle), proton.uint(number), tag, proton.uint(0), False, False], payload)
        )

    def accept(self, first: int, last: int) -> None:
        """Accept and settle deliveries that came."""
        fields = [RECEIVER, proton.uint(first), proton.uint(last), True, described(ACCEPTED, [])]
        self.say(frame(DISPOSITION, fields))
