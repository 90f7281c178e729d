"""What a client sees after a failover of what one before it may have had: Proton's engine at both ends."""

from __future__ import annotations

import proton

from paired_engines import PairedClient
from paired_failover import Leading, heir_of


def leading(*bodies: str, **arguments: int) -> Leading:
    """A primary with a queue `q` that holds these."""
    broker = Leading()
    broker.lead([])
    broker.declare("q", **arguments)
    broker.connect().publish("q", *bodies)
    broker.settle_down()
    return broker


def seen_by(client: PairedClient, link: object) -> list[tuple[str, int, bool]]:
    return [(str(message.body), message.delivery_count, message.first_acquirer) for _, message in client.received(link)]


def test_a_client_sees_a_delivery_count_of_what_somebody_had_before_a_failover() -> None:
    broker = leading("a", "b", "c")
    client = broker.connect()
    link = client.receiver("q", credit=2)
    broker.settle_down()
    assert seen_by(client, link) == [("a", 0, True), ("b", 0, True)]
    heir = heir_of(broker)
    client = heir.connect()
    link = client.receiver("q", credit=3)
    heir.settle_down()
    assert seen_by(client, link) == [("a", 1, False), ("b", 1, False), ("c", 1, False)], "c is within the step"


def test_a_client_sees_nothing_of_a_failover_on_what_nobody_had() -> None:
    heir = heir_of(leading("a", "b"))
    client = heir.connect()
    link = client.receiver("q", credit=3)
    heir.settle_down()
    assert seen_by(client, link) == [("a", 0, True), ("b", 0, True)]


def test_what_may_have_been_a_delivery_does_not_count_towards_the_limit() -> None:
    broker = leading("a", delivery_limit=2)
    broker.connect().receiver("q", credit=1)
    broker.settle_down()
    heir = heir_of(broker)
    seen = []
    for _ in range(2):
        client = heir.connect()
        link = client.receiver("q", credit=1)
        heir.settle_down()
        seen += seen_by(client, link)
        client.vanish()
        heir.settle_down()
    assert seen == [("a", 1, False), ("a", 2, False)]
    assert heir.queue("q").messages.count == 0


def test_a_drain_waits_for_messages_that_wait_for_their_mark() -> None:
    broker = leading("a", "b")
    broker.is_cut_off = True
    client = broker.connect()
    link = client.receiver("q")
    link.drain(10)
    broker.settle_down()
    assert (seen_by(client, link), link.credit) == ([], 10), "that it is all that there is would not be true"
    broker.is_cut_off = False
    broker.container.default.touch()
    broker.settle_down()
    assert seen_by(client, link) == [("a", 0, True), ("b", 0, True)]
    assert link.credit == 0
    assert isinstance(link, proton.Receiver)
