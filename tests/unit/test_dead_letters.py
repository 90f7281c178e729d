"""What becomes of a dead letter: it outlives the time that it had, and says where, why and when it died."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from model_support import NOW_MS, Core, bodies, message
from paired_engines import START_MS, PairedBroker
from qpid_ha_broker.amqp.wire.dead_letters import MAX_COUNT, dead_letter
from qpid_ha_broker.amqp.wire.sections import MAX_NUMBERED_PAIRS, MAX_PAIRS, PRODUCER, SEQUENCE, MessageSections
from qpid_ha_broker.model.message_reader import Death, DeathReason
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry

SECOND = 1000
DEATH = Death("orders", DeathReason.REJECTED, 7000)


def rejected(core: Core, queue: Queue, held: list[Entry]) -> None:
    core.resources.reject(queue, held)


def delivered_too_often(core: Core, queue: Queue, held: list[Entry]) -> None:
    core.configuration.update_queue(queue.name, {"qpid.delivery_limit": 1})
    core.resources.release(queue, held, failed=True)


def deleted(core: Core, queue: Queue, held: list[Entry]) -> None:
    core.configuration.delete_queue(queue.name)


Ending = Callable[[Core, Queue, list[Entry]], None]


@pytest.mark.parametrize(
    ("end", "reason"),
    [(rejected, "rejected"), (delivered_too_often, "delivery-limit"), (deleted, "queue-deleted")],
)
@pytest.mark.parametrize("arguments", [{}, {"message_ttl_ms": SECOND}])
def test_a_dead_letter_does_not_die_of_the_time_to_live_that_it_had(
    end: Ending, reason: str, arguments: dict[str, int]
) -> None:
    core = Core()
    dead = core.dead_letter_queue()
    queue = core.queue("q", alternate_exchange="dlx", **arguments)
    core.publish(queue, message("a", ttl_ms=0 if arguments else SECOND))
    held = core.take(queue, core.consumer(queue))
    core.tick(after_ms=2 * SECOND)
    end(core, queue, held)
    core.tick(after_ms=3600 * SECOND)
    (entry,) = dead.messages
    assert (bodies([entry]), entry.header.expires_at_ms) == (["a"], 0)
    assert f"death=q/{reason}/{2 * SECOND}".encode() in entry.resident_body()
    core.check()


def test_the_time_to_live_of_the_queue_of_dead_letters_counts_from_the_death() -> None:
    core = Core()
    dead = core.dead_letter_queue(message_ttl_ms=10 * SECOND)
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, message("a", ttl_ms=20 * SECOND))
    held = core.take(queue, core.consumer(queue))
    core.tick(after_ms=19 * SECOND)
    core.resources.reject(queue, held)
    assert [entry.header.expires_at_ms for entry in dead.messages] == [NOW_MS + 29 * SECOND]


def test_a_consumer_is_told_of_the_death_and_of_no_time_to_live() -> None:
    broker = PairedBroker()
    for name, arguments in (("dead", {}), ("q", {"qpid.alternate_exchange": "amq.fanout"})):
        broker.container.default.configuration.declare_queue(name, arguments)
    broker.container.default.configuration.bind("amq.fanout", "dead", "", {})
    client = broker.connect()
    sent: Any = proton.Message("a", ttl=2, expiry_time=3600, annotations={"mine": 1}, properties={"p": 1}, subject="s")
    client.publish("q", sent)
    ((delivery, _),) = client.received(client.receiver("q", 1))
    delivery.update(proton.Delivery.REJECTED)
    delivery.settle()
    broker.settle_down()
    broker.container.now_ms += 3600 * SECOND
    broker.settle_down()
    ((_, got),) = client.received(client.receiver("dead", 1))
    assert (got.body, got.ttl, got.expiry_time, got.properties, got.subject) == ("a", 0, 0, {"p": 1}, "s")
    assert got.annotations == {
        "mine": 1,
        "x-opt-first-death-queue": "q",
        "x-opt-first-death-reason": "rejected",
        "x-opt-first-death-time": START_MS,
        "x-opt-last-death-queue": "q",
        "x-opt-last-death-reason": "rejected",
        "x-opt-last-death-time": START_MS,
        "x-opt-death-count": 1,
    }


def test_a_dead_letter_has_not_the_number_that_its_publisher_gave_it_however_many_annotations_it_has() -> None:
    own = {f"a{number}": 1 for number in range(MAX_NUMBERED_PAIRS - 2)}
    annotations: Any = {**own, PRODUCER: "mine", SEQUENCE: proton.ulong(1)}
    sections, payload = MessageSections(), bytes(proton.Message("a", annotations=annotations).encode())
    got = told(sections.fresh(dead_letter(sections, payload, DEATH))).annotations
    assert (len(got), PRODUCER in got, SEQUENCE in got) == (len(own) + 7, False, False)


def told(payload: bytes) -> Any:
    decoded: Any = proton.Message()
    decoded.decode(payload)
    return decoded


def test_who_dies_again_keeps_the_first_death_and_counts() -> None:
    sections, payload = MessageSections(), proton.Message("a").encode()
    for number in range(5):
        payload = dead_letter(sections, payload, Death(f"q{number}", DeathReason.DELIVERY_LIMIT, number))
    again = told(payload).annotations
    assert len(again) == 7
    assert (again["x-opt-first-death-queue"], again["x-opt-first-death-time"]) == ("q0", 0)
    assert (again["x-opt-last-death-queue"], again["x-opt-last-death-time"]) == ("q4", 4)
    assert (again["x-opt-death-count"], again["x-opt-last-death-reason"]) == (5, "delivery-limit")
    assert len(dead_letter(sections, payload, Death("q5", DeathReason.DELIVERY_LIMIT, 5))) == len(payload)


@pytest.mark.parametrize(
    ("annotations", "count"),
    [
        ({"x-opt-death-count": MAX_COUNT, "x-opt-first-death-queue": "q"}, MAX_COUNT),
        ({"x-opt-death-count": -3, "x-opt-first-death-queue": "q"}, 1),
        ({"x-opt-death-count": "many", "x-opt-first-death-queue": "q"}, 1),
        ({"x-opt-death-count": 3, "x-opt-first-death-queue": "q" * 2000}, 1),
        ({"x-opt-death-count": 3, "x-opt-first-death-queue": ["q"]}, 1),
        ({"x-opt-death-count": 3}, 1),
        ({"x-opt-death-count": 3, "x-opt-first-death-queue": "q", "x-opt-first-death-time": -1}, 4),
    ],
)
def test_what_a_publisher_has_written_there_is_kept_only_where_it_makes_sense(
    annotations: dict[str, object], count: int
) -> None:
    payload = dead_letter(MessageSections(), proton.Message("a", annotations=annotations).encode(), DEATH)
    assert told(payload).annotations["x-opt-death-count"] == count
    assert told(payload).body == "a"


@pytest.mark.parametrize(
    "payload",
    [
        b"\x00\x53\x77\xa1\x01a",
        b"\x00\x53\x70\x45\x00\x53\x77\xa1\x01a",
        b"\x00\x53\x70\xc0\x06\x03\x41\x50\x07\x52\x09\x00\x53\x77\xa1\x01a",
        b"\x00\x53\x70\xd0\x00\x00\x00\x0c\x00\x00\x00\x03\x41\x50\x07\x70\x00\x00\x00\x09\x00\x53\x77\xa1\x01a",
        b"\x00\x53\x70\xc0\x04\x02\x41\x50\x07\x00\x53\x73\x45\x00\x53\x77\xa1\x01a",
    ],
)
def test_a_header_in_whichever_form_loses_its_time_to_live_only(payload: bytes) -> None:
    before, after = told(payload), told(dead_letter(MessageSections(), payload, DEATH))
    assert (after.body, after.durable, after.priority, after.ttl) == ("a", before.durable, before.priority, 0)


@pytest.mark.parametrize(
    "annotations",
    [b"\x00\x53\x72\xc1\x03\x03\xa3\x01", proton.Message(annotations={str(n): n for n in range(MAX_PAIRS)}).encode()],
)
def test_a_message_that_cannot_be_told_of_its_death_goes_on_as_it_is(annotations: bytes) -> None:
    payload = annotations + b"\x00\x53\x77\xa1\x01a"
    assert dead_letter(MessageSections(), payload, DEATH) == payload
