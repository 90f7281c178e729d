"""A turn asks who is due, once each and in their order, and nobody else."""

from collections.abc import Callable

from qpid_ha_broker.server.runtime.due_parties import DueParties, TurnPlace


def due_parties(asked: list[TurnPlace]) -> DueParties:
    """With a party at each place that only says that it was asked."""
    due = DueParties()
    for place in TurnPlace:
        due.join(place, noting(asked, place))
    return due


def noting(asked: list[TurnPlace], place: TurnPlace) -> Callable[[], None]:
    return lambda: asked.append(place)


def test_nobody_is_asked_who_has_nothing() -> None:
    asked: list[TurnPlace] = []
    due = due_parties(asked)
    due.ask_writers()
    due.ask()
    assert asked == []
    assert not due.are_due


def test_parties_are_asked_once_in_the_order_of_their_places() -> None:
    asked: list[TurnPlace] = []
    due = due_parties(asked)
    for place in (TurnPlace.NOTICES, TurnPlace.CLUSTER, TurnPlace.SHARED, TurnPlace.CONNECTIONS, TurnPlace.CLUSTER):
        due.put(place)
    assert due.are_due
    due.ask_writers()
    assert asked == [TurnPlace.CLUSTER, TurnPlace.SHARED]
    due.ask()
    due.ask()
    assert asked == [TurnPlace.CLUSTER, TurnPlace.SHARED, TurnPlace.CONNECTIONS, TurnPlace.NOTICES]
    assert not due.are_due


def test_who_comes_while_others_are_asked_is_asked_behind_them_or_in_the_next_turn() -> None:
    asked: list[TurnPlace] = []
    due = due_parties(asked)

    def both() -> None:
        asked.append(TurnPlace.HOSTING)
        for place in (TurnPlace.CLUSTER, TurnPlace.HOSTING, TurnPlace.SHARED):
            due.put(place)

    due.join(TurnPlace.HOSTING, both)
    due.put(TurnPlace.HOSTING)
    due.ask()
    assert asked == [TurnPlace.HOSTING, TurnPlace.SHARED]
    assert due.are_due  # which is a reason for another turn
    due.join(TurnPlace.HOSTING, noting(asked, TurnPlace.HOSTING))
    due.ask()
    assert asked[2:] == [TurnPlace.CLUSTER, TurnPlace.HOSTING]


def test_who_waits_for_more_is_asked_in_each_turn_and_is_no_reason_for_one() -> None:
    asked: list[TurnPlace] = []
    due = due_parties(asked)
    waits = [True, True, False]
    due.join(TurnPlace.WAITERS, lambda: waits.pop(0))
    due.put(TurnPlace.WAITERS)
    for left in (2, 1, 0, 0):
        due.ask_writers()
        due.ask()
        assert len(waits) == left
        assert not due.are_due


def test_who_has_left_is_asked_no_more_whoever_speaks_for_him() -> None:
    asked: list[TurnPlace] = []
    due = due_parties(asked)
    due.put(TurnPlace.METRICS)
    due.leave(TurnPlace.METRICS)
    due.put(TurnPlace.METRICS)
    due.ask()
    assert asked == []
    assert not due.are_due
