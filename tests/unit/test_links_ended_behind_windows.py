"""Links that end while messages wait for their client's window: what was never sent takes no room from other links."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient

FRAME_BYTES = 16 * 1024
LARGE = "x" * 100_000
"""Three of them are more than a session may have waiting."""


@pytest.fixture(params=[False, True], ids=["unsettled", "settled"])
def is_settled(request: pytest.FixtureRequest) -> bool:
    """How messages are sent."""
    return bool(request.param)


class SlowClient:
    """Its session takes one frame at a time."""

    def __init__(self, broker: PairedBroker) -> None:
        self._broker = broker
        self._filler = broker.connect()
        self._out = self._filler.sender("q")
        self._client = PairedClient(broker)
        self._client.transport.max_frame_size = FRAME_BYTES
        self._client.session.incoming_capacity = FRAME_BYTES
        self._links = 0

    def fill(self, *bodies: str) -> None:
        """Messages come into the queue."""
        for body in bodies:
            self._filler.send(self._out, proton.Message(body))
        self._broker.settle_down()

    def consume(self, credit: int, *, is_settled: bool) -> Any:
        """A consumer's link."""
        self._links += 1
        link = self._client.session.receiver(f"in-{self._links}")
        link.source.address = "q"
        link.snd_settle_mode = proton.Link.SND_SETTLED if is_settled else proton.Link.SND_UNSETTLED
        link.open()
        link.flow(credit)
        self._broker.settle_down()
        return link

    def end(self, link: Any) -> None:
        """It ends, with a frame that nobody reads any more; the session takes another one instead."""
        link.close()
        self._broker.settle_down()
        self._client.session.incoming_capacity += FRAME_BYTES

    def bodies(self, link: Any) -> list[object]:
        """Of all messages that come, as they are read."""
        found: list[object] = []
        data = b""
        self._broker.settle_down()
        while (delivery := link.current) is not None and delivery.readable:
            data += link.recv(delivery.pending)
            if not delivery.partial:
                message = proton.Message()
                message.decode(data)
                found.append(message.body)
                data = b""
                link.advance()
                delivery.update(proton.Delivery.ACCEPTED)
                delivery.settle()
            self._broker.settle_down()
        return found


def test_what_a_link_that_has_ended_was_to_send_takes_no_room_from_the_next_one(
    broker: PairedBroker, is_settled: bool
) -> None:
    client = SlowClient(broker)
    for _ in range(3):
        client.fill(*[LARGE] * 4)
        client.end(client.consume(4, is_settled=is_settled))
    client.fill("a", "b")
    assert client.bodies(client.consume(20, is_settled=is_settled))[-2:] == ["a", "b"]


def test_what_a_link_that_has_ended_was_to_send_takes_no_room_from_one_that_still_has_to_send(
    broker: PairedBroker, is_settled: bool
) -> None:
    client = SlowClient(broker)
    client.fill(LARGE)
    staying = client.consume(1, is_settled=is_settled)
    client.fill(LARGE * 3)
    client.end(client.consume(1, is_settled=is_settled))
    staying.flow(4)
    client.fill("a", "b")
    found = client.bodies(staying)
    assert [found[0], *found[-2:]] == [LARGE, "a", "b"]
