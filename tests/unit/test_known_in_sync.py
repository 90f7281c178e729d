"""Which brokers are known to be in sync: a broker's own last word is not enough while nobody leads."""

from __future__ import annotations

from typing import Any

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.ha.known_in_sync import InSyncWord, KnownInSync, known_in_sync

ALL = ("a", "b", "c")


def broker(name: str, members: tuple[str, ...] = ALL, **changed: Any) -> Answer:
    answer = Answer(1, name, f"{name}-1", "uuid", "connecting", 3, 7, members, members, 100, True, 0, "", True, "", 1)
    return answer._replace(**changed)


def record(*members: str, **changed: Any) -> ClusterRecord:
    return ClusterRecord("uuid", 3, "a", 7, members)._replace(**changed)


def words(known: KnownInSync) -> dict[str, InSyncWord]:
    return {name: known.of(name) for name in ALL}


def test_the_set_of_a_primary_that_answers_is_what_counts() -> None:
    leads = broker("a", ("a", "b"), epoch=8, state="primary")
    known = known_in_sync([broker("c"), broker("b"), leads], None, has_coordinator=True)
    assert words(known) == {"a": "yes", "b": "yes", "c": "no"}
    assert known.source == "a says, which is primary"


def test_who_was_dropped_before_the_primary_died_is_not_in_sync_whatever_its_own_log_says() -> None:
    dropped, backup = broker("c"), broker("b", ("a", "b"), epoch=8)
    known = known_in_sync([dropped, backup], record("a", "b", epoch=8), has_coordinator=True)
    assert words(known) == {"a": "unknown", "b": "yes", "c": "no"}
    alone = known_in_sync([dropped], record("a", "b", epoch=8), has_coordinator=True)
    assert words(alone) == {"a": "unknown", "b": "unknown", "c": "no"}
    assert "the record says (generation 3, epoch 8)" in alone.source


def test_who_is_recorded_and_has_lost_its_memory_or_was_put_back_is_not_known_to_be_in_sync() -> None:
    emptied = broker("b", (), generation=0, epoch=0, lsn=0)
    put_back = broker("a", generation=2, epoch=5)
    known = known_in_sync([emptied, put_back, broker("c")], record(*ALL), has_coordinator=True)
    assert words(known) == {"a": "unknown", "b": "unknown", "c": "yes"}


def test_of_a_change_that_was_not_recorded_nobody_knows_whether_it_counted() -> None:
    newer = known_in_sync([broker("b", ("b", "c"), epoch=8)], record("a", "b"), has_coordinator=True)
    assert words(newer) == {"a": "unknown", "b": "unknown", "c": "unknown"}
    wanted = record("b", generation=4, epoch=8, claimed=True)
    claimed = known_in_sync([broker("b", ("a", "b"))], wanted, has_coordinator=True)
    assert words(claimed) == {"a": "unknown", "b": "unknown", "c": "no"}


def test_without_the_record_a_log_tells_only_who_is_not_in_sync() -> None:
    here = [broker("b", ("a", "b"), epoch=8), broker("c")]
    for told in (None, ClusterRecord()):
        known = known_in_sync(here, told, has_coordinator=True)
        assert words(known) == {"a": "unknown", "b": "unknown", "c": "no"}


def test_without_a_coordinator_all_of_the_newest_set_have_to_answer() -> None:
    a, b, c = broker("a", ("a", "b"), epoch=8), broker("b", ("a", "b"), epoch=8), broker("c")
    assert words(known_in_sync([a, b, c], None, has_coordinator=False)) == {"a": "yes", "b": "yes", "c": "no"}
    assert words(known_in_sync([b, c], None, has_coordinator=False)) == {"a": "unknown", "b": "unknown", "c": "no"}
    emptied = a._replace(generation=0, epoch=0, members=(), newest_members=())
    known = known_in_sync([emptied, b, c], None, has_coordinator=False)
    assert words(known) == {"a": "unknown", "b": "unknown", "c": "no"}


def test_a_standalone_broker_is_in_sync_with_itself() -> None:
    known = known_in_sync([broker("a", (), state="standalone")], None, has_coordinator=False)
    assert known.of("a") is InSyncWord.YES


def test_of_a_cluster_that_has_nothing_yet_nobody_is_in_sync() -> None:
    empty = broker("a", (), generation=0, epoch=0, lsn=0)
    assert known_in_sync([empty], ClusterRecord(), has_coordinator=True).of("a") is InSyncWord.NO
    assert known_in_sync([empty], None, has_coordinator=False).of("a") is InSyncWord.NO
