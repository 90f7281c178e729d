"""Who may lead by the coordinator's and every store's sequence, and what may be set by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from qpid_ha_broker.coordination.changes import LONGEST_BYTES, MOST_CHANGES, RecordChange, read_changes, with_change
from qpid_ha_broker.coordination.coordinator import LONGEST_NOTE_BYTES
from qpid_ha_broker.diagnosis.activation import (
    ActivationFacts,
    Assessment,
    RunningBroker,
    assess,
    objections,
    record_of,
    with_record,
)
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import GenerationEntry, StoreOrigin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.store.facts import Integrity, StoreFacts

ALL = ("a", "b", "c")
RECORDED = ClusterRecord("ours", 3, "a", 7, ALL)


def store(name: str, generation: int = 3, epoch: int = 7, lsn: int = 100, **changed: Any) -> StoreFacts:
    """A store that was not closed; `a` led generation 3, and whoever is asked for later ones."""
    history = (GenerationEntry(1, "a", 1), GenerationEntry(3, "a", 50), GenerationEntry(generation, "c", 90))
    given: dict[str, Any] = {
        "where": f"/data/{name}/default", "broker": name, "cluster": "ours", "set": "default", "members": ALL,
        "history": history if generation > 3 else history[:2], "epoch": epoch, "last_lsn": lsn, "epoch_lsn": 60,
        "committed_lsn": 80,
    }  # fmt: skip
    return StoreFacts(**{**given, **changed})


def found(*stores: StoreFacts, record: ClusterRecord | None = RECORDED, **changed: Any) -> ActivationFacts:
    return ActivationFacts(stores, record=record, **changed)


def why(assessment: Assessment, name: str) -> str:
    return next(each.why for each in assessment.standpoints if each.name == name)


def running(name: str, state: State, generation: int = 3, epoch: int = 7, **changed: Any) -> RunningBroker:
    return RunningBroker(name, state, generation, epoch, 100, ALL, StoreOrigin.MEMORY)._replace(**changed)


# --- who may lead


def test_of_three_stores_of_the_recorded_set_the_furthest_may_lead() -> None:
    assessment = assess(found(store("a", lsn=90), store("b", lsn=110), store("c")))

    assert assessment.leaders == ("b",)
    assert "the store of b goes further" in why(assessment, "a")
    away = assess(found(store("a"), record=RECORDED._replace(epoch=8, members=("c",))))
    assert "qpid-ha activation list" not in why(away, "a"), "it is what is being read"
    assert all(each.is_recorded for each in assessment.standpoints)
    assert assessment.next_step is None


def test_nobody_may_lead_while_the_only_one_of_the_recorded_set_is_away() -> None:
    record = RECORDED._replace(epoch=9, members=("c",), primary="a")
    facts = found(store("a"), store("b"), record=record)
    assessment = assess(facts)

    assert assessment.leaders == ()
    assert assessment.missing == ("c",)
    assert "the coordinator knows a newer in-sync set without this broker" in why(assessment, "a")
    assert assessment.next_step is not None
    assert assessment.next_step.commands == ("systemctl start qpid-ha   # on c",)
    set_it, promote = assessment.next_step.instead
    assert set_it.startswith("qpid-ha activation set --from-store /data/a/default --force /data/b")
    assert promote.startswith("qpid-ha promote -b ")


def test_a_store_that_is_on_another_machine_is_promoted_there() -> None:
    record = RECORDED._replace(epoch=9, members=("c",))
    step = assess(found(store("a").seen_from("host1"), record=record)).next_step

    assert step is not None
    assert step.instead == (
        "qpid-ha activation set --from-store host1:/data/a/default --force",
        "qpid-ha promote -b amqp://host1:5672",
    )


def test_who_claimed_a_generation_that_never_began_stops_nobody_while_its_store_is_here() -> None:
    record = ClusterRecord("ours", 4, "b", 8, ("b", "c"), claimed=True)
    stores = store("a"), store("b", promised=4, promised_to="b", claims=(4,)), store("c")

    assert assess(found(*stores, record=record)).leaders == ("b", "c")
    away = assess(found(stores[0], stores[2], record=record))
    assert (away.leaders, away.missing) == ((), ("b",))
    assert "b of the last in-sync set cannot be asked" in why(away, "c")
    assert away.next_step is not None
    assert "--from-store /data/c/default --force" in away.next_step.instead[0], "it is in the recorded set"
    assert assess(found(*stores, record=record._replace(claimed=False))).leaders == ()


def test_a_record_that_was_emptied_is_set_from_the_stores_if_they_show_who_was_in_sync() -> None:
    facts = found(store("a"), store("b"), store("c"), record=ClusterRecord())
    assessment = assess(facts)

    assert assessment.leaders == ()
    assert "the coordinator's record is empty" in why(assessment, "a")
    assert assessment.next_step is not None
    assert "--force" not in assessment.next_step.commands[0]
    wanted = record_of(facts.stores[0])
    assert objections(wanted, facts) == []
    assert assess(with_record(facts, wanted)).leaders == ALL


def test_without_a_store_that_may_know_more_that_takes_force() -> None:
    facts = found(store("a"), store("b"), record=ClusterRecord())
    (objection,) = objections(record_of(facts.stores[0]), facts)

    assert "these stores alone do not show who was in sync last" in objection
    alone = with_record(facts, record_of(facts.stores[0], is_alone=True))
    assert assess(alone).leaders == ("a",)


def test_a_coordinator_that_cannot_be_read_lets_nobody_lead() -> None:
    assessment = assess(found(store("a"), store("b"), store("c"), record=None, problem="/shared is not there"))

    assert assessment.leaders == ()
    assert "/shared is not there" in why(assessment, "a")
    assert assessment.next_step is not None
    assert assessment.next_step.commands == ("qpid-ha coordinator check",)


def test_without_a_coordinator_the_stores_are_all_there_is() -> None:
    facts = found(store("a"), store("b"), store("c"), record=None, has_coordinator=False)

    assert assess(facts).leaders == ALL
    assert assess(replace(facts, stores=facts.stores[:2])).leaders == ()


def test_brokers_that_answer_count_as_what_they_say() -> None:
    leading = assess(found(store("b"), brokers=(running("a", State.PRIMARY), running("b", State.READY))))

    assert leading.leaders == ("a", "b")
    assert (why(leading, "a"), why(leading, "b")) == ("leads", "in sync, and a leads")
    catching_up = assess(found(brokers=(running("a", State.PRIMARY), running("b", State.CATCHUP))))
    assert catching_up.leaders == ("a",)


def test_what_a_broker_refused_before_is_said_beside_what_is_known_now() -> None:
    """It may know more; or the record was set since."""
    own = running("a", State.CONNECTING, problem="z cannot be asked", store=StoreOrigin.DIRTY)
    whole = assess(found(store("a"), store("b"), store("c"), brokers=(own,)))
    assert "a" in whole.leaders
    assert "when it was asked last it said: z cannot be asked" in why(whole, "a")
    alone = assess(found(store("a"), brokers=(own,)))
    assert "b, c of the last in-sync set cannot be asked" in why(alone, "a")


def test_a_damaged_store_and_one_of_another_cluster_lead_nothing() -> None:
    broken = store("c", integrity=Integrity.DAMAGED, detail="journal/1.log, offset 4: bad")
    stranger = store("z", cluster="theirs", where="/elsewhere")
    assessment = assess(found(store("a"), store("b"), broken, stranger))

    assert "offset 4: bad" in why(assessment, "c")
    assert "is of the cluster theirs" in why(assessment, "z")
    assert assessment.missing == ("c",)


def test_nothing_at_all_is_said_with_what_to_do() -> None:
    step = assess(found(StoreFacts("/data/a/default"), record=ClusterRecord("ours", 3, "a", 7, ()))).next_step
    assert step is not None
    assert step.commands == ("qpid-ha promote --force",)


@pytest.mark.parametrize("row", [{}, {"name": None, "state": "unreachable"}, {"name": "a", "state": "standalone"}])
def test_who_does_not_answer_is_in_no_state(row: dict[str, Any]) -> None:
    assert RunningBroker.from_row(row) is None


# --- what may be set


@pytest.mark.parametrize(
    ("wanted", "record", "brokers", "text"),
    [
        (RECORDED, RECORDED._replace(generation=4), (), "what was confirmed since generation 3, epoch 7 is given up"),
        (RECORDED._replace(claimed=True), RECORDED, (), "is given up"),
        (RECORDED._replace(epoch=6), ClusterRecord(), (), "the store of a knows generation 3, epoch 7"),
        (RECORDED._replace(cluster="theirs"), RECORDED, (), "the record is of the cluster ours"),
        (RECORDED._replace(members=("a", "z")), ClusterRecord(), (), "z is not in the last in-sync set"),
        (RECORDED, ClusterRecord(), (running("a", State.PRIMARY),), "a leads generation 3"),
        (RECORDED, ClusterRecord(), (running("b", State.READY, epoch=8),), "b answers that it knows generation 3"),
    ],
)
def test_what_could_lose_something_confirmed_is_objected_to(
    wanted: ClusterRecord, record: ClusterRecord, brokers: tuple[RunningBroker, ...], text: str
) -> None:
    facts = found(store("a"), store("b"), store("c"), record=record, brokers=brokers)
    assert objections(RECORDED, replace(facts, record=RECORDED, brokers=())) == []
    assert any(text in each for each in objections(wanted, facts)), objections(wanted, facts)


def test_a_store_that_a_silent_broker_works_on_is_no_proof() -> None:
    facts = found(store("a", is_running=True), store("b"), store("c"), record=ClusterRecord())
    assert "a broker works on /data/a/default and does not answer" in objections(RECORDED, facts)[0]


# --- the history of it


def change(number: int) -> RecordChange:
    return RecordChange(number, "ann on node1", RECORDED, RECORDED._replace(epoch=number), True, "it was lost\n\"'")


def test_changes_come_back_oldest_first_and_only_the_last_are_kept() -> None:
    note = ""
    for number in range(MOST_CHANGES + 7):
        note = with_change(note, change(number))

    changes = read_changes(note)
    assert changes == [change(number) for number in range(7, MOST_CHANGES + 7)]
    assert len(note.encode()) < LONGEST_NOTE_BYTES


def test_long_reasons_and_names_do_not_make_the_note_too_long() -> None:
    note = ""
    for number in range(MOST_CHANGES):
        long = change(number)._replace(reason="ü" * 5000, after=RECORDED._replace(members=("x" * 900,)))
        note = with_change(note, long)

    assert len(note.encode()) <= LONGEST_BYTES
    assert read_changes(note)[-1].at_ms == MOST_CHANGES - 1


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"at_ms": 1, "operator": "a", "reason": "", "from": 1, "to": 2}'])
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 of the coordinator's note history"):
        read_changes(f"{with_change('', change(1))}{line}\n")
