"""Numbers of the protocol that come from outside, at the ends of what their types hold (AMQP 1.0 parts 1 to 3)."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paired_engines import START_MS, PairedBroker, PairedClient
from paired_failover import FailingOver
from paired_proxy import paired_broker
from raw_frames import RawClient
from raw_peer import FLOW, RECEIVER, SENDER, TRANSFER, encoded

UINT_MOST = 2**32 - 1
KINDS = ("direct", "proxied")


def uints(least: int = 0, most: int = UINT_MOST) -> st.SearchStrategy[int]:
    """Numbers, many of them at the ends, and where a signed one has its ends."""
    ends = [least, least + 1, 2**31 - 1, 2**31, 2**31 + 1, most - 1, most]
    return st.one_of(st.sampled_from([end for end in ends if least <= end <= most]), st.integers(least, most))


def stocked(kind: str, count: int) -> Any:
    broker = paired_broker(kind)
    broker.container.default.configuration.declare_queue("q", {})
    client = PairedClient(broker)
    broker.settle_down()
    client.publish("q", *range(count))
    client.vanish()
    return broker


@pytest.mark.parametrize("kind", KINDS)
@given(credit=uints(), settled=st.booleans())
@settings(deadline=None, max_examples=25)
def test_a_consumer_gets_as_many_as_it_gives_credit_for(kind: str, credit: int, settled: bool) -> None:
    client = RawClient(stocked(kind, 3))
    client.attach("in", 0, RECEIVER, "q", settled=settled)
    client.flow(0, credit)
    assert len(client.got(TRANSFER)) == min(credit, 3)


@pytest.mark.parametrize("kind", KINDS)
@given(first=st.integers(0, 3), credit=uints())
@settings(deadline=None, max_examples=25)
def test_credit_that_is_raised_or_lowered_later_counts_from_what_the_consumer_has(
    kind: str, first: int, credit: int
) -> None:
    client = RawClient(stocked(kind, 6))
    client.attach("in", 0, RECEIVER, "q")
    client.flow(0, first)
    assert len(client.got(TRANSFER)) == first
    if first:
        client.accept(0, first - 1)
    client.flow(0, credit, delivery_count=first, next_incoming_id=first)
    assert len(client.got(TRANSFER)) == min(first + credit, 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settled", [False, True])
def test_credit_that_is_taken_back_while_messages_are_on_their_way_is_none(kind: str, settled: bool) -> None:
    broker = stocked(kind, 10)
    client = RawClient(broker)
    client.attach("in", 0, RECEIVER, "q", settled=settled)
    client.flow(0, 5)
    client.flow(0, 0, delivery_count=2, next_incoming_id=2)
    client.flow(0, 1, delivery_count=1, next_incoming_id=1)
    assert len(client.got(TRANSFER)) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_credit_that_was_taken_back_is_none_when_what_was_on_its_way_is_answered_before_it_is_given_again(
    kind: str,
) -> None:
    client = RawClient(stocked(kind, 10))
    client.attach("in", 0, RECEIVER, "q")
    client.flow(0, 5)
    client.flow(0, 0, delivery_count=1, next_incoming_id=1)
    client.accept(0, 4)
    client.flow(0, UINT_MOST - 2, delivery_count=5, next_incoming_id=5)  # 3 are still missing, as Proton writes it
    assert len(client.got(TRANSFER)) == 5
    client.flow(0, 1, delivery_count=5, next_incoming_id=5)
    assert len(client.got(TRANSFER)) == 6
    client.accept(5, 5)
    client.flow(0, UINT_MOST - 2, delivery_count=6, next_incoming_id=6)  # nothing is missing now
    assert len(client.got(TRANSFER)) == 10


@pytest.mark.parametrize("kind", KINDS)
@given(credit=uints(least=3))
@settings(deadline=None, max_examples=20)
def test_a_drain_gives_up_all_of_the_credit(kind: str, credit: int) -> None:
    client = RawClient(stocked(kind, 2))
    client.attach("in", 0, RECEIVER, "q")
    client.flow(0, credit, drain=True)
    assert len(client.got(TRANSFER)) == 2
    flow = next(fields for _, fields in reversed(client.frames) if _ == FLOW and len(fields) > 6)
    assert (flow[5], flow[6]) == (credit, 0), "delivery-count has to come up to what was given"
    client.flow(0, credit, delivery_count=credit, next_incoming_id=2)
    client.other().publish("q", "next")
    client.hear()
    assert len(client.got(TRANSFER)) == 3


@pytest.mark.parametrize("credit", [2**31 - 1, 2**31, UINT_MOST])
def test_credit_that_was_given_to_a_primary_is_there_for_messages_of_the_next_one(credit: int) -> None:
    world = FailingOver()
    world.leader.declare("q")
    client = RawClient(world)
    client.attach("in", 0, RECEIVER, "q")
    client.flow(0, credit)
    world.direct().publish("q", "before")
    client.hear()
    client.accept(0, 0)
    world.fail_over()
    world.direct().publish("q", *range(5))
    client.hear()
    assert len(client.got(TRANSFER)) == 6


@given(window=uints(least=3), next_outgoing_id=uints(), delivery_count=uints())
@settings(deadline=None, max_examples=40)
def test_sessions_and_links_begin_with_any_number_and_go_over_its_end(
    window: int, next_outgoing_id: int, delivery_count: int
) -> None:
    broker = stocked("direct", 0)
    client = RawClient(broker, next_outgoing_id=next_outgoing_id, incoming_window=window, outgoing_window=window)
    client.attach("out", 0, SENDER, "q", initial_delivery_count=delivery_count, max_message_size=2**64 - 1)
    client.attach("in", 1, RECEIVER, "q", timeout=UINT_MOST, max_message_size=2**64 - 1)
    for number in range(3):
        client.transfer(0, next_outgoing_id + number & UINT_MOST, proton.Message(number).encode())
    client.flow(1, 3, incoming_window=window, next_outgoing_id=next_outgoing_id + 3 & UINT_MOST)
    assert len(client.got(TRANSFER)) == 3
    assert not client.peer.has_ended


@given(
    channel_max=st.sampled_from([0, 1, 65535]),
    idle_ms=st.sampled_from([1, 2**31 - 1, 2**31, UINT_MOST]),
    handle_max=uints(),
    max_frame=uints(least=512),
)
@settings(deadline=None, max_examples=25)
def test_an_open_with_any_numbers_is_served(channel_max: int, idle_ms: int, handle_max: int, max_frame: int) -> None:
    client = RawClient(
        stocked("direct", 2), channel_max=channel_max, idle_ms=idle_ms, handle_max=handle_max, max_frame=max_frame
    )
    client.attach("in", 0, RECEIVER, "q")
    client.flow(0, 2)
    for now_ms in (1, 1000, 2**31, 2**33):
        client.peer.heartbeat(now_ms)
    assert len(client.got(TRANSFER)) == 2


TIMESTAMPS = st.sampled_from([-(2**63), -1, 0, 1, 2**31, 2**53, 2**63 - 1])
"""Of the expiry 1 is over: what has such a one is taken, and nobody gets it."""


@given(
    ttl=uints(), priority=st.integers(0, 255), count=uints(), created=TIMESTAMPS, expires=TIMESTAMPS, sequence=uints()
)
@settings(deadline=None, max_examples=40)
def test_a_message_with_any_numbers_goes_through_and_is_selected_by_them(
    ttl: int, priority: int, count: int, created: int, expires: int, sequence: int
) -> None:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {"qpid.priorities": 10})
    client = broker.connect()
    header: list[Any] = [None, proton.ubyte(priority), proton.uint(ttl), None, proton.uint(count)]
    properties: list[Any] = [None] * 8 + [
        proton.timestamp(expires),
        proton.timestamp(created),
        None,
        proton.uint(sequence),
    ]
    sections = [proton.Described(proton.ulong(0x70), header), proton.Described(proton.ulong(0x73), properties)]
    payload = b"".join(encoded(section) for section in sections) + encoded(proton.Described(proton.ulong(0x77), "body"))
    sender = client.sender("q")
    delivery = client.send(sender, payload)
    broker.settle_down()
    assert delivery.remote_state == proton.Delivery.ACCEPTED
    link = client.session.receiver("in")
    link.source.address = "q"
    selector = f"JMSTimestamp = {created} AND JMSXGroupSeq = {sequence} AND JMSPriority >= 0"
    if created == -(2**63):
        selector = "JMSTimestamp < 0"
    described = proton.Described(proton.symbol("apache.org:selector-filter:string"), selector)
    link.source.filter.put_object({proton.symbol("selector"): described})
    client.attach(link, 5)
    if expires == 1:
        assert client.received(link) == []
        return
    ((_, message),) = client.received(link)
    left = min(ttl, expires - START_MS) if ttl and expires > 0 else ttl
    assert (round(message.ttl * 1000), message.delivery_count, message.priority) == (left, count, priority)
    broker.container.now_ms += 1
    broker.container.tick()
