"""What a relayed consumer asks for at the other end, and when its client hears that a drain is over."""

from __future__ import annotations

import proton
import pytest

from paired_proxy import PairedProxy
from paired_remote import PairedRemote
from qpid_ha_broker.amqp.connections.relayed_memory import FIRST_MESSAGES, LINK_BYTES
from qpid_ha_broker.amqp.links.consumer_credit import (
    CLIENT_DRAINED,
    NOTHING_TO_DO,
    ConsumerCredit,
    CreditStep,
    Room,
)
from qpid_ha_broker.amqp.nodes.terminus import AFTER

DRAIN = CreditStep(drains=True)


@pytest.mark.parametrize(
    ("wanted", "asked", "room", "client_drains", "step"),
    [
        (10, 0, Room.THERE_IS, False, CreditStep(credit=10)),
        (10, 9, Room.THERE_IS, False, NOTHING_TO_DO),  # not worth a frame
        (10, 10, Room.THERE_IS, False, NOTHING_TO_DO),
        (FIRST_MESSAGES + 1, 0, Room.THERE_IS, False, CreditStep(credit=FIRST_MESSAGES)),
        (2, 10, Room.THERE_IS, False, DRAIN),
        (2, 10, Room.NONE, False, DRAIN),
        (10, 0, Room.NONE, False, NOTHING_TO_DO),
        (10, 0, Room.NONE, True, NOTHING_TO_DO),
        (10, 0, Room.ANSWERS_FIRST, False, NOTHING_TO_DO),
        (10, 0, Room.NO_MEMORY, False, NOTHING_TO_DO),
        (10, 0, Room.NO_MEMORY, True, CLIENT_DRAINED),
        (10, 0, Room.ANSWERS_FIRST, True, CLIENT_DRAINED),
        (10, 4, Room.ANSWERS_FIRST, True, CreditStep(client_drained=True, drains=True)),
        (10, 4, Room.THERE_IS, True, CreditStep(drains=True, credit=6)),
        (0, 0, Room.THERE_IS, True, CLIENT_DRAINED),
        (0, 0, Room.NONE, True, CLIENT_DRAINED),
        (0, 0, Room.THERE_IS, False, NOTHING_TO_DO),
    ],
)
def test_each_case(wanted: int, asked: int, room: Room, client_drains: bool, step: CreditStep) -> None:
    credit = ConsumerCredit()
    credit.client_drains = client_drains
    assert credit.next_step(wanted, asked, room) == step
    assert credit.is_draining is step.drains
    if step.drains:
        assert credit.next_step(wanted, asked, room) == NOTHING_TO_DO


def test_a_drain_that_used_all_credit_may_have_left_messages_and_is_asked_for_again() -> None:
    credit = ConsumerCredit()
    credit.client_drains = True
    most = FIRST_MESSAGES
    assert credit.next_step(most + 5, 0, Room.THERE_IS) == CreditStep(drains=True, credit=most)
    assert credit.far_drained(given_up=0) == NOTHING_TO_DO
    assert credit.next_step(5, 0, Room.THERE_IS) == CreditStep(drains=True, credit=5)
    assert credit.far_drained(given_up=5) == CLIENT_DRAINED
    assert not credit.client_drains


def test_large_messages_are_asked_for_few_at_a_time() -> None:
    credit = ConsumerCredit()
    credit.note_size(LINK_BYTES // 4, LINK_BYTES)
    assert credit.next_step(100, 0, Room.THERE_IS) == CreditStep(credit=4)
    credit.note_size(2 * LINK_BYTES, LINK_BYTES)
    assert credit.next_step(100, 0, Room.THERE_IS) == CreditStep(credit=1)
    credit.note_size(10, LINK_BYTES)
    assert credit.next_step(100, 0, Room.THERE_IS) == CreditStep(credit=100)


@pytest.mark.parametrize("browses", [False, True])
def test_a_drained_consumer_whose_batch_came_with_the_drain_misses_no_message_of_the_primary(browses: bool) -> None:
    proxied = PairedProxy()
    client = proxied.client()
    link = client.sender("q")
    for number in range(5):
        client.send(link, proton.Message(str(number)))
    proxied.settle_down()
    taken = client.session.receiver("taken")
    taken.source.address = "q"
    if browses:  # with ids, and so one by one
        taken.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        after = proton.Described(proton.symbol(AFTER), proton.ulong(0))
        taken.source.filter.put_object({proton.symbol("qpid.after"): after})
    taken.open()
    proxied.settle_down()
    with proxied.held_up():  # the messages and the end of the drain come in one read
        taken.drain(10)
        proxied.settle_down()
    assert [message.body for _, message in client.received(taken)] == list("01234")
    assert taken.credit == 0
    assert proxied.primary.queue("q").messages.acquired == (0 if browses else 5)


def test_a_drained_consumer_whose_batch_came_with_the_drain_misses_no_message_of_others() -> None:
    paired = PairedRemote()
    client = paired.client()
    near = client.receiver("orders")
    far = paired.answer()
    near.drain(10)
    paired.settle_down()
    for number in range(5):
        far.delivery(str(number))
        far.stream(proton.Message(str(number)).encode())
        far.advance()
    far.drained()
    paired.settle_down()
    assert [message.body for _, message in client.received(near)] == list("01234")
    assert near.credit == 0
