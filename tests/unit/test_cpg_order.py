"""Views by names and whole batches, out of what a process group delivers."""

from __future__ import annotations

import pytest

from qpid_ha_broker.server.peers.cpg_order import CpgOrder, OrderedBatch, OrderedView, hello, pieces_of
from qpid_ha_broker.server.peers.libcpg import (
    CpgAddress,
    CpgConfiguration,
    CpgMessage,
    CpgReason,
)

A, B, C = CpgAddress(1, 100), CpgAddress(2, 200), CpgAddress(3, 300)


def of(sender: CpgAddress, number: int, data: bytes, most: int = 1000) -> list[CpgMessage]:
    return [CpgMessage(sender, piece) for piece in pieces_of(number, data, most)]


def greeting(sender: CpgAddress, name: str) -> CpgMessage:
    return CpgMessage(sender, hello(name))


def both() -> CpgOrder:
    order = CpgOrder(A, "a")
    order.came([CpgConfiguration((A, B), (), (A,)), greeting(B, "b")])
    return order


def test_the_first_view_waits_until_all_have_said_who_they_are() -> None:
    order = CpgOrder(A, "a")

    assert order.came([CpgConfiguration((A, B), (), (A,)), *of(A, 1, b"x")]) == []
    assert order.waits_for() == (B,)

    assert order.came([greeting(B, "b")]) == [
        OrderedView(("a", "b"), ("a", "b"), (), ()),
        OrderedBatch("a", 1, b"x"),
    ]


def test_who_is_known_need_not_be_waited_for() -> None:
    assert both().came([CpgConfiguration((A,), ((B, CpgReason.PROCDOWN),), ())]) == [
        OrderedView(("a",), (), ("b",), ("b",))
    ]


def test_a_node_that_is_gone_may_live() -> None:
    assert both().came([CpgConfiguration((A,), ((B, CpgReason.NODEDOWN),), ())]) == [
        OrderedView(("a",), (), ("b",), ())
    ]


def test_what_comes_behind_a_view_waits_with_it() -> None:
    order = both()
    third = CpgConfiguration((A, B, C), (), (C,))

    assert order.came([*of(B, 1, b"before"), third, *of(B, 2, b"behind")]) == [OrderedBatch("b", 1, b"before")]

    assert order.came([greeting(C, "c")]) == [
        OrderedView(("a", "b", "c"), ("c",), (), ()),
        OrderedBatch("b", 2, b"behind"),
    ]


def test_a_large_batch_comes_whole_and_in_the_place_of_its_last_piece() -> None:
    first, second, third = of(B, 1, b"0123456789", most=22)

    assert both().came([first, second, *of(A, 1, b"x"), third]) == [
        OrderedBatch("a", 1, b"x"),
        OrderedBatch("b", 1, b"0123456789"),
    ]


def test_a_view_between_its_pieces_makes_a_batch_void_until_it_is_sent_again() -> None:
    order, pieces = both(), of(B, 1, b"0123456789", most=22)
    view = CpgConfiguration((A, B, C), (), (C,))

    events = order.came([*pieces[:2], view, greeting(C, "c"), pieces[2], *pieces])

    assert events[1:] == [OrderedBatch("b", 1, b"0123456789")]


def test_a_batch_that_was_sent_again_for_nothing_comes_once() -> None:
    pieces = of(B, 1, b"0123456789", most=22)

    assert both().came([*pieces, *pieces, *of(B, 2, b"x")]) == [
        OrderedBatch("b", 1, b"0123456789"),
        OrderedBatch("b", 2, b"x"),
    ]


def test_who_comes_back_may_send_again_what_it_does_not_know_to_have_been_delivered() -> None:
    order = both()
    order.came(of(B, 1, b"x"))
    away, back = CpgConfiguration((A,), ((B, CpgReason.LEAVE),), ()), CpgConfiguration((A, B), (), (B,))

    events = order.came([away, back, greeting(B, "b"), *of(B, 1, b"x")])

    assert events[-1] == OrderedBatch("b", 1, b"x")


def test_another_version_is_of_no_view_and_is_named() -> None:
    order = CpgOrder(A, "a")

    events = order.came([CpgConfiguration((A, B), (), (A,)), CpgMessage(B, b"\x01\x07whatever")])

    assert events == [OrderedView(("a",), ("a",), (), ())]
    assert order.refused == {B: "speaks version 7, and this broker version 1"}
    assert order.came([CpgMessage(B, b"\x02\x07x")]) == []


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x01\x09ab", b"\x02\x01\x00"])
def test_what_is_no_message_is_of_nobody(data: bytes) -> None:
    order = both()

    assert order.came([CpgMessage(B, data)]) == []
    assert "no message of a group's member" in order.refused[B]


def test_who_has_the_name_of_this_broker_is_refused() -> None:
    order = CpgOrder(A, "a")

    order.came([CpgConfiguration((A, B), (), (A,)), greeting(B, "a")])

    assert order.refused == {B: "has the name of this broker, a"}


def test_a_message_without_room_for_a_piece_is_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        pieces_of(1, b"x", 10)
