"""A replica goes only when it is committed that the cluster map names it no more."""

from __future__ import annotations

from qpid_ha_broker.server.sets.removals import Removals


def test_a_replica_goes_at_once_where_all_of_the_map_is_committed() -> None:
    removals = Removals()
    assert removals.may_go("red", 30, 30)
    assert list(removals.waiting) == []


def test_it_waits_until_what_was_written_when_that_was_noticed_is_committed() -> None:
    removals = Removals()
    assert not removals.may_go("red", 30, 29)
    assert list(removals.waiting) == ["red"]
    assert not removals.may_go("red", 31, 29), "more is written"
    assert removals.may_go("red", 31, 30)


def test_it_stays_where_the_removal_is_taken_back() -> None:
    removals = Removals()
    assert not removals.may_go("red", 30, 29)
    removals.forget("red")
    assert list(removals.waiting) == []
    assert not removals.may_go("red", 40, 39), "another removal, which is later"
    assert removals.may_go("red", 40, 40)
