"""Stories about browsers that read by message id: what they see, and what they must not be told yet."""

from __future__ import annotations

import time
from typing import Any

import proton
import pytest

from model_support import WITNESS, Core, bodies, message, transaction_of
from paired_engines import PairedBroker, PairedClient
from qpid_ha_broker.amqp.nodes.terminus import AFTER
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.model.queues.queue import Queue


def read(core: Core, queue: Queue, after: int, credit: int = 1000) -> list[tuple[int, str]]:
    """What a browser sees that begins behind `after`: ids and bodies."""
    browser = core.consumer(queue, browsing=True, after=after)
    entries = core.take(queue, browser, credit)
    core.leave(queue, browser)
    return list(zip([entry.id for entry in entries], bodies(entries), strict=True))


@pytest.mark.parametrize("arguments", [{}, {"priorities": 10}, {"last_value_queue_key": "k"}])
def test_messages_come_by_ascending_id_from_any_id_on_whatever_the_order_of_the_queue(
    arguments: dict[str, int | str],
) -> None:
    core = Core()
    queue = core.queue("q", **arguments)
    for number in range(1500):
        core.publish(queue, message(str(number), priority=number % 10, k=str(number)))
    everything = read(core, queue, 0, 2000)
    assert [text for _, text in everything] == [str(number) for number in range(1500)]
    for after in (0, 1, 511, 512, 513, 1000, 1499, 1500, 9999):
        last = everything[after - 1][0] if 0 < after <= 1500 else after and everything[-1][0]
        assert read(core, queue, last, 2000) == everything[after:]


def test_what_somebody_holds_is_seen_too_because_it_may_come_back() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abcd")
    consumer = core.consumer(queue)
    held = core.take(queue, consumer, 2)
    assert [text for _, text in read(core, queue, 0)] == ["a", "b", "c", "d"]
    core.resources.accept(queue, held[:1])
    assert [text for _, text in read(core, queue, 0)] == ["b", "c", "d"]
    core.resources.release(queue, held[1:], failed=False)
    core.check()


def test_what_is_not_committed_is_shown_to_no_browser() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a", "b")
    browser = core.consumer(queue, browsing=True, after=0)
    core.give_credit(queue, browser)

    def seen() -> list[str]:
        while core.resources.has_work:
            for handout in core.resources.hand_out(core.now_ms, 100):
                core._inboxes[handout.consumer] += handout.entries
        return bodies(core.inbox(browser))

    assert seen() == []
    core.log.acknowledge(WITNESS, core.log.last_lsn - 1)
    assert seen() == ["a"]
    core.resources.commit(transaction_of((queue, "c"), (queue, "d")), core.now_ms)
    core.log.acknowledge(WITNESS, core.log.last_lsn - 1)
    assert seen() == ["b"], "the witness has both messages of the transaction, but not its end"
    core.log.acknowledge(WITNESS, core.log.last_lsn)
    assert seen() == ["c", "d"]


def test_the_newest_message_is_one_that_is_committed() -> None:
    core = Core()
    queue = core.queue("q")
    assert core.catalog.queues["q"].messages.newest_id(core.log.whole_lsn()) == 0
    first = core.publish(queue, "a")
    core.log.acknowledge(WITNESS, first)
    core.publish(queue, "b")
    assert queue.messages.newest_id(core.log.whole_lsn()) == first
    core.log.acknowledge(WITNESS, core.log.last_lsn)
    assert queue.messages.newest_id(core.log.whole_lsn()) == first + 1
    core.consume(queue)
    assert queue.messages.newest_id(core.log.whole_lsn()) == 0


def test_where_to_begin_in_a_deep_queue_is_found_without_a_walk() -> None:
    core = Core(witness=False)
    queue = core.queue("q")
    for _ in range(100_000):
        core.publish(queue, "x")
    began = time.process_time()
    for _ in range(100):
        assert len(read(core, queue, 90_000, 1)) == 1
    assert time.process_time() - began < 1.0, "walking takes some seconds"


def test_an_expired_message_that_somebody_holds_stays_theirs() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, message("a", ttl_ms=10), message("b"))
    consumer = core.consumer(queue)
    (held,) = core.take(queue, consumer, 1)
    core.now_ms += 100
    assert [text for _, text in read(core, queue, 0)] == ["b"]
    core.resources.accept(queue, [held])
    core.check()


# --- on the wire


def attach(client: PairedClient, value: Any, *, copy: bool = True) -> Any:
    """A receiver with the filter."""
    link = client.session.receiver(f"browser-{value}")
    link.source.address = "q"
    if copy:
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    link.source.filter.put_object({proton.symbol("qpid.after"): proton.Described(proton.symbol(AFTER), value)})
    link.open()
    client.broker.settle_down()
    return link


def test_the_tag_of_each_delivery_is_the_id_of_its_message() -> None:
    broker = PairedBroker()
    client = broker.connect()
    sender = client.sender("q")
    for number in range(5):
        client.send(sender, proton.Message(body=number))
    broker.settle_down()
    ids = [entry.id for entry in broker.queue("q").messages]
    link = attach(client, proton.ulong(ids[1]))
    link.flow(10)
    broker.settle_down()
    tags = []
    while (delivery := link.current) is not None and delivery.readable:
        tags.append(delivery.tag)
        link.advance()
    assert tags == [f"{message_id:016x}" for message_id in ids[2:]]
    link.remote_source.filter.rewind()
    link.remote_source.filter.next()
    assert link.remote_source.filter.get_object() == {
        proton.symbol("qpid.after"): proton.Described(proton.symbol(AFTER), ids[1])
    }


@pytest.mark.parametrize("value", ["17", -1, True, 1.5])
def test_a_position_that_is_none_is_refused(value: object) -> None:
    client = PairedBroker().connect()
    link = attach(client, value)
    assert link.remote_condition.name == "amqp:invalid-field"


def test_only_a_browser_may_ask_for_a_position() -> None:
    client = PairedBroker().connect()
    link = attach(client, proton.ulong(0), copy=False)
    assert "copy" in link.remote_condition.description


@pytest.mark.parametrize("tag", [(1 << 63).to_bytes(8, "big"), b"8000000000000000"])
def test_the_tags_of_brokers_that_wrote_eight_bytes_are_still_read(tag: bytes) -> None:
    assert engine.number_of_tag(tag) == 1 << 63
