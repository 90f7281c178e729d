"""Two engines joined in memory, and random traffic between them: what both are told, in words that can be compared."""

from __future__ import annotations

import random
from typing import Any

import proton
from cproton_ffi import ffi, lib

from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.batches import EVENTS_LENGTH, RECEIVE_BUFFER
from qpid_ha_broker.amqp.wire.engine import Delivery, Disposition, Engine, Sender, Transfer

SIZES = (0, 1, 5, 100, 100, 100, 1024, 3000, RECEIVE_BUFFER - 1, RECEIVE_BUFFER, RECEIVE_BUFFER + 1, 200_000)


class TracedEnd:
    """One end: what its engine tells, in words that do not depend on where Proton keeps things."""

    def __init__(self, connection: proton.Connection, transport: proton.Transport) -> None:
        self.engine = Engine(transport, connection)
        self.told: list[tuple[object, ...]] = []
        self.open: list[Delivery] = []
        """Came and are not settled by us."""
        self.link: Any = None
        self.came = 0
        self.ends_at = -1
        """The link is given up when so many messages have come."""
        self.has_ended = self.consumes = False

    def __getattr__(self, name: str) -> Any:  # what a handler is told beside messages matters nothing here
        return lambda *arguments: self.told.append((name,))

    def session_opened(self, session: proton.Session) -> None:
        session.open()

    def link_attached(self, link: proton.Link) -> None:
        self.link = link

    def _name(self, delivery: Delivery) -> str:
        tag = lib.pn_delivery_tag(delivery)
        return bytes(ffi.unpack(tag.start, tag.size)).decode()

    def transfers(self, batch: list[Transfer]) -> None:
        assert 0 < len(batch) <= EVENTS_LENGTH
        for delivery, payload, settled, state in batch:
            assert (type(payload), type(settled)) == (bytes, bool)
            if self.has_ended:  # within the batch: as `Engine.detach` has it of what comes behind
                if settled:
                    engine.forget(delivery)
                elif not self.consumes:
                    engine.settle(delivery, engine.RELEASED)
                continue
            self.told.append(("transfer", self._name(delivery), payload, settled, state))
            self.came += 1
            if settled:
                engine.forget(delivery)
            else:
                self.open.append(delivery)
            if self.came == self.ends_at:
                self.has_ended = True
                self.engine.detach(self.link)
                self.open.clear()  # the engine settles them from now on

    def partial(self, delivery: Delivery, data: bytes) -> None:
        self.told.append(("partial", self._name(delivery), data))

    def aborted(self, delivery: Delivery) -> None:
        self.told.append(("aborted",))

    def settlements(self, batch: list[Disposition]) -> None:
        self.told += [("settlement", state, settled) for _, state, settled in batch]
        gone = {delivery for delivery, _, _ in batch}
        engine.forget_all([delivery for delivery in self.open if delivery in gone])
        self.open = [delivery for delivery in self.open if delivery not in gone]

    def drained(self) -> None:
        self.told.append(("drained",))

    def dispositions(self, batch: list[Disposition]) -> None:
        for delivery, state, settled in batch:
            assert type(settled) is bool
            self.told.append(("disposition", self._name(delivery), state, settled))

    def flow(self) -> None:
        self.told.append(("flow",))


class Pair:
    """A sender and a receiver, joined in memory; the sender's frames are small, so that messages come in parts."""

    def __init__(self, frame_bytes: int, *, consumes: bool, ends_at: int) -> None:
        ends = proton.Transport(), proton.Transport(proton.Transport.SERVER)
        for transport in ends:
            transport.max_frame_size = frame_bytes
        self.near, self.far = TracedEnd(proton.Connection(), ends[0]), TracedEnd(proton.Connection(), ends[1])
        self.near.engine.connection.open()
        session = self.near.engine.connection.session()
        session.open()
        self.link: Any = session.sender("link")
        self.link.open()
        self.far.engine.connection.open()
        self.carry()
        self.far.link.open()
        self.carry()
        self.sender = Sender(self.link, self.near.engine.formats)
        self.near.engine.attach_sending(self.link, self.near)
        attach = self.far.engine.attach_consuming if consumes else self.far.engine.attach_receiving
        attach(self.far.link, self.far)
        self.far.ends_at, self.far.consumes = ends_at, consumes

    def carry(self, cut: int = 1 << 30) -> None:
        """What both have to say, `cut` bytes at a time; the far end is told in between."""
        for source, target in (self.near, self.far), (self.far, self.near):
            output = source.engine.take_output()
            for start in range(0, len(output), cut):
                target.engine.push(output[start : start + cut])
                target.engine.process(target)

    def close(self) -> None:
        for end in (self.near, self.far):
            end.engine.close()


def story(seed: int) -> list[list[tuple[object, ...]]]:
    """What both ends are told of random traffic; the same for the same seed."""
    chance = random.Random(seed)
    ends_at = chance.randrange(1, 200) if chance.random() < 0.2 else -1
    pair = Pair(chance.choice((512, 4096, 1 << 16)), consumes=chance.random() < 0.5, ends_at=ends_at)
    sender, tags, number = pair.sender, dict[Delivery, Any](), 0
    aborting: list[Delivery] = []
    for _ in range(12):
        engine.give_credit(pair.far.link, chance.choice((1, 10, 100, 200)))
        pair.carry()
        room = max(pair.sender.credit, 0)
        payloads = [
            bytes((chance.randrange(1, 255),)) * chance.choice(SIZES[: chance.choice((6, 8, 12))])
            for _ in range(min(chance.choice((1, 3, 4, 5, 63, 64, 65, 130)), room))
        ]
        step = chance.randrange(6)
        if step == 0:
            for payload in payloads:
                sender.send_settled(payload)
        elif step == 1 and payloads:
            deliveries = sender.send_numbered(payloads, number)
            number += len(payloads)
            tags |= dict.fromkeys(deliveries)
            if chance.random() < 0.3:
                engine.forget_all(deliveries)
                tags = {delivery: tag for delivery, tag in tags.items() if delivery not in set(deliveries)}
        elif step == 2 and payloads:
            aborting = [_begin(pair.link, b"part" * chance.randrange(1, 2000), f"a{number}")]
            number += 1
            pair.carry(chance.choice((100, 1 << 30)))
            for delivery in aborting:
                lib.pn_delivery_abort(delivery)
        else:
            tags |= dict(sender.send_all(payloads))
        pair.carry(chance.choice((401, 4096, 1 << 30)))
        answered = pair.far.open[: chance.randrange(len(pair.far.open) + 1)]
        del pair.far.open[: len(answered)]
        kind = chance.randrange(4)
        if kind == 0:
            engine.say_accepted(answered)
            pair.carry()
            engine.forget_all(answered)
        elif kind == 1:
            for delivery in answered:
                engine.settle(delivery, chance.choice((engine.RELEASED, engine.REJECTED, engine.MODIFIED)))
        else:
            engine.accept_all(answered)
        pair.carry()
        if chance.random() < 0.3:  # the sender forgets what nobody has answered
            gone = list(tags)[: chance.randrange(20)]
            engine.forget_all(gone)
            sender.free_all([tags.pop(delivery) for delivery in gone])
            pair.carry()
        settled = [delivery for delivery in tags if lib.pn_delivery_settled(delivery)]
        engine.forget_all(settled)
        sender.free_all([tags.pop(delivery) for delivery in settled])
    told = [pair.near.told, pair.far.told]
    pair.close()
    return told


def _begin(link: Any, data: bytes, tag: str) -> Delivery:
    """The first part of a message of which no more will come."""
    delivery = link.delivery(tag)
    link.stream(data)
    return delivery._impl


def random_frame(chance: random.Random) -> bytes:
    """A frame of any kind, mostly a transfer, often with something unusual, sometimes senseless."""
    code = chance.choice((0x14, 0x14, 0x14, 0x12, 0x13, 0x15, 0x18))
    uints = (b"\x43", b"\x52\x07", b"\x70\0\0\1\0", b"\x40", b"\x52\x00", b"\x70\0\0\0\0")
    tag = chance.choice((b"\x40", b"\xa0" + bytes((length := chance.randrange(40),)) + b"t" * length, b"\xb0\0\0\0\1t"))
    fields = chance.choice(uints) + chance.choice(uints) + tag + chance.choice((*uints[3:], b"\x43", b"\x52\x01"))
    count = chance.choice((1, 3, 4, 5, 11))
    head = bytes((0xC0, len(fields) + 1, count)) if chance.random() < 0.8 else b"\xd0" + bytes(7) + bytes((count,))
    body = b"\x00S" + bytes((code,)) + head + fields + b"\x00Su" * chance.randrange(3)
    size = 8 + len(body) if chance.random() < 0.97 else chance.choice((0, 4, 7, 9, 1 << 20))
    frame = bytearray(size.to_bytes(4, "big") + bytes((2, chance.choice((0, 0, 0, 0, 1)), 0, 0)) + body)
    if chance.random() < 0.1:
        frame[chance.randrange(len(frame))] = chance.randrange(256)
    return bytes(frame)
