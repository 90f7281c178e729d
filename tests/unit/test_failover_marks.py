"""What a client sees after a failover of what one before it may have had: Proton's engine at both ends."""

from __future__ import annotations

import proton

from paired_engines import PairedBroker, PairedClient
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.model.queues.queue import Queue

WITNESS = "witness"


class Leading(PairedBroker):
    """A primary whose log `heir` follows; all that it writes is committed at the end of a turn, unless `is_cut_off`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut_off = False
        self._records: list[LogRecord] = []
        self.container.default.resources.replicated.log.add_witness(WITNESS)

    def lead(self, records: list[LogRecord]) -> None:
        """Go on where these end."""
        default = self.container.default.resources.replicated
        for record in records:
            default.follow(record)
        self._records = list(records)
        default.state.marks.inherit(is_next=True)
        default.take_over(self.container.now_ms, 0)
        default.begin_marks()
        self.settle_down()

    def turn(self) -> None:
        super().turn()
        log = self.container.default.resources.replicated.log
        if not self.is_cut_off and log.committed_lsn < log.last_lsn and not log.pending:
            log.acknowledge(WITNESS, log.last_lsn)
            self.container.default.touch()

    def records(self) -> list[LogRecord]:
        """All that it has told."""
        found = [record for batch in self.batches for record in decode(batch.data).records]
        return [*self._records, *found]

    def declare(self, name: str, **arguments: int) -> Queue:
        configuration = self.container.default.configuration
        return configuration.declare_queue(name, {f"qpid.{key}": value for key, value in arguments.items()})


def heir_of(broker: Leading) -> Leading:
    """Who leads after `broker`."""
    heir = Leading()
    heir.lead(broker.records())
    return heir


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
