"""Stories about who may be promoted. The sentences are for operators: only their point is checked."""

from __future__ import annotations

from typing import Any

import pytest

from qpid_ha_broker.ha.effects import Record
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import Accept, Known, Refuse, StepDownFirst, Verdict, judge


def broker(name: str, **changed: Any) -> Answer:
    """A backup that was in sync with a and the others when it lost its primary."""
    answer = Answer(1, name, f"{name}-1", "uuid", "connecting", 3, 7, ("a", "b", "c"), 100, True, 0, "", True, "", 1)
    return answer._replace(**changed)


def fresh(name: str) -> Answer:
    """A broker that has just been started, with an empty memory."""
    return broker(name, cluster="", generation=0, epoch=0, members=(), lsn=0)


def verdict(own: Answer, *answers: Answer, **changed: Any) -> Verdict:
    """With `a` gone, and the primary so far, unless told otherwise."""
    given: dict[str, Any] = {
        "own_primary": "a" if own.generation else "", "unreachable": ("a:5672",), "record": None,
        "has_coordinator": False, "min_in_sync": 1,
    }  # fmt: skip
    return judge(Known(own=own, answers=answers, **{**given, **changed}))


def refusal(found: Verdict) -> str:
    assert isinstance(found, Refuse), found
    return found.text


def test_a_member_of_the_newest_in_sync_set_is_promoted_and_the_dead_primary_leaves_the_set() -> None:
    found = verdict(broker("b"), broker("c"))
    assert isinstance(found, Accept)
    assert (found.generation, found.epoch, found.members) == (4, 8, ("b", "c"))


def test_a_primary_that_handed_over_stays_in_the_set() -> None:
    found = verdict(broker("b"), broker("c"), broker("a"), unreachable=(), handed_over_by="a")
    assert isinstance(found, Accept)
    assert found.members == ("a", "b", "c")


def test_a_live_primary_is_asked_to_hand_over_first() -> None:
    found = verdict(broker("b"), broker("a", state="primary"), unreachable=())
    assert found == StepDownFirst("a")


@pytest.mark.parametrize("changed", [{"state": State.CATCHUP}, {"complete": False}])
def test_a_broker_in_catch_up_is_refused(changed: dict[str, Any]) -> None:
    assert "catching up" in refusal(verdict(broker("b", **changed), broker("c")))


def test_a_broker_that_a_peer_knows_to_be_left_out_is_refused_and_told_by_whom() -> None:
    text = refusal(verdict(broker("b"), broker("c", epoch=8, members=("a", "c"))))
    assert "c knows a newer in-sync set" in text
    assert "a, c" in text


def test_a_broker_that_the_coordinator_knows_to_be_left_out_is_refused() -> None:
    record = Record("uuid", 3, "a", 9, ("a",))
    assert "the coordinator knows" in refusal(verdict(broker("b"), record=record, has_coordinator=True))


def test_a_newer_generation_beats_any_epoch_of_an_older_one() -> None:
    text = refusal(verdict(broker("b", epoch=50), broker("c", generation=4, epoch=1, members=("c",))))
    assert "generation 4" in text


def test_without_the_coordinator_s_record_nobody_is_promoted() -> None:
    assert "coordinator" in refusal(verdict(broker("b"), broker("c"), has_coordinator=True))


def test_a_broker_without_data_is_refused_beside_one_that_has_some() -> None:
    assert "c does" in refusal(verdict(fresh("b"), broker("c")))


def test_the_first_start_needs_everybody_unless_a_coordinator_says_that_nothing_ever_was() -> None:
    assert "a:5672" in refusal(verdict(fresh("b"), fresh("c")))
    assert isinstance(verdict(fresh("b"), fresh("c"), unreachable=()), Accept)
    assert isinstance(verdict(fresh("b"), record=Record(), has_coordinator=True), Accept)


def test_who_lost_the_memory_that_a_record_speaks_of_is_refused() -> None:
    record = Record("uuid", 3, "a", 7, ("a", "b", "c"))
    assert "--force" in refusal(verdict(fresh("b"), fresh("c"), record=record, has_coordinator=True))


def test_who_is_named_in_the_set_but_lost_its_memory_is_left_out_of_the_next_one() -> None:
    found = verdict(broker("b"), fresh("c"))
    assert isinstance(found, Accept)
    assert found.members == ("b",)


def test_half_of_the_brokers_are_not_enough_where_a_majority_decides() -> None:
    assert "cannot be asked" in refusal(verdict(broker("b"), min_in_sync=2))


def test_as_many_unreachable_brokers_as_must_be_in_sync_may_have_gone_on_alone() -> None:
    both = ("a:5672", "c:5672")
    assert "cannot be asked" in refusal(verdict(broker("b"), min_in_sync=2, unreachable=both))
    assert isinstance(verdict(broker("b"), broker("c"), min_in_sync=2), Accept)
    record = Record("uuid", 3, "a", 7, ("a", "b", "c"))
    decided = verdict(broker("b"), min_in_sync=2, unreachable=both, record=record, has_coordinator=True)
    assert isinstance(decided, Accept)


def test_the_new_generation_is_above_everything_that_was_promised_or_seen() -> None:
    found = verdict(broker("b", promised=9), broker("c", promised=11))
    assert isinstance(found, Accept)
    assert found.generation == 12


def test_force_overrides_doubt_but_neither_a_second_broker_of_that_name_nor_another_cluster() -> None:
    found = verdict(fresh("b"), broker("c"), force=True)
    assert isinstance(found, Accept)
    assert found.members == ("b",)
    assert "two brokers are called b" in refusal(verdict(broker("b"), broker("b", instance="other"), force=True))
    assert "cluster other" in refusal(verdict(broker("b"), broker("c", cluster="other"), force=True))
    record = Record("other", 3, "a", 7, ("b",))
    assert "cluster other" in refusal(verdict(broker("b"), record=record, has_coordinator=True, force=True))
