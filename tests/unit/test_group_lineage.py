"""What members in step have committed: narrowed, widened, given up."""

from __future__ import annotations

from qpid_ha_broker.group.frames import AdmissionAsked, EpochBegun
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.ha.cluster_record import ClusterRecord


def record(epoch: int, *members: str, claimed: bool = False) -> ClusterRecord:
    return ClusterRecord("uuid", epoch, members[0], epoch, members, claimed)


def three() -> Lineage:
    lineage = Lineage(record(4, "a", "b", "c"), ("a", "b", "c"), 10)
    for member in ("a", "b", "c"):
        lineage.acknowledge(member, 10, 0)
    return lineage


def test_an_event_is_committed_when_all_whom_the_record_names_have_it() -> None:
    lineage = three()
    lineage.acknowledge("a", 12, 0)
    lineage.acknowledge("b", 12, 0)
    assert lineage.committed_lsn == 10

    lineage.acknowledge("c", 11, 0)

    assert lineage.committed_lsn == 11


def test_who_leaves_the_view_is_waited_for_until_that_is_recorded() -> None:
    lineage = three()
    lineage.leave_view({"c"})
    lineage.acknowledge("a", 12, 0)
    lineage.acknowledge("b", 12, 0)
    lineage.acknowledge("c", 12, 0)  # of another part by now: it says nothing
    assert lineage.committed_lsn == 10
    assert not lineage.is_complete

    assert lineage.begin(EpochBegun(record(5, "a", "b"), False, ())) == {"c"}

    assert lineage.committed_lsn == 12
    assert lineage.is_complete


def let_in(lineage: Lineage, member: str = "d") -> None:
    lineage.joining[member] = AdmissionAsked(3, "a")
    lineage.admit(member, AdmissionAsked(3, "a"), 12)


def test_who_is_to_be_named_is_waited_for_before_and_has_to_come_as_far_as_the_log_was() -> None:
    lineage = three()
    let_in(lineage)
    for member in ("a", "b", "c"):
        lineage.acknowledge(member, 12, 0)
    lineage.acknowledge("d", 11, 0)
    assert lineage.committed_lsn == 11
    assert not lineage.is_admissible("d")

    lineage.acknowledge("d", 12, 0)

    assert lineage.is_admissible("d")
    lineage.begin(EpochBegun(record(5, "a", "b", "c", "d"), False, ()))
    assert lineage.in_step == {"a", "b", "c", "d"}
    assert lineage.is_complete


def test_who_has_come_level_with_another_lineage_is_not_admitted() -> None:
    lineage = three()
    lineage.joining["d"] = AdmissionAsked(3, "a")

    lineage.admit("d", AdmissionAsked(3, "x"), 12)

    assert lineage.admitting == {}


def test_who_left_while_it_was_to_be_named_is_waited_for_until_the_next_record() -> None:
    lineage = three()
    let_in(lineage)
    lineage.leave_view({"d"})
    for member in ("a", "b", "c"):
        lineage.acknowledge(member, 12, 0)
    assert not lineage.is_admissible("d")
    assert lineage.committed_lsn == 10, "a record that names it may be on its way"

    lineage.begin(EpochBegun(record(5, "a", "b", "c"), False, ()))

    assert lineage.committed_lsn == 12
    assert lineage.admitting == {}


def test_whom_a_newer_record_names_is_waited_for_although_it_was_not_delivered() -> None:
    lineage = three()
    lineage.newer_record = record(5, "a", "b", "c", "d")
    for member in ("a", "b", "c"):
        lineage.acknowledge(member, 12, 0)
    assert lineage.committed_lsn == 10

    lineage.begin(EpochBegun(record(6, "a", "b", "c"), False, ()))

    assert lineage.committed_lsn == 12


def test_nothing_is_committed_of_a_first_claim_that_was_not_confirmed() -> None:
    lineage = Lineage(record(0, "a", claimed=True), ("a",), 0)
    lineage.begin(EpochBegun(record(1, "a", claimed=True), True, ()))
    lineage.acknowledge("a", 3, 0)
    assert lineage.committed_lsn == 0
    assert not lineage.is_complete

    lineage.begin(EpochBegun(record(1, "a"), False, ()))

    assert lineage.committed_lsn == 3


def test_an_owner_counts_when_all_have_come_to_where_it_became_so() -> None:
    lineage = three()
    lineage.position = 2
    lineage.acknowledge("a", 10, 2)
    lineage.acknowledge("b", 10, 2)
    assert lineage.stable_position == 0

    lineage.acknowledge("c", 10, 1)

    assert lineage.stable_position == 1


def test_who_is_shown_a_lineage_goes_on_as_it_does() -> None:
    lineage = three()
    lineage.ownership.want(5, "a", 1)
    let_in(lineage)

    other = Lineage.from_shown(lineage.shown("e", "e-1", 9))
    for copy in (lineage, other):
        copy.leave_view({"d"})
        copy.acknowledge("a", 13, 1)
        copy.begin(EpochBegun(record(5, "a", "b"), False, ()))

    assert other.shown("e", "e-1", 9) == lineage.shown("e", "e-1", 9)
    other.check_invariants()


def test_nothing_is_committed_while_fewer_are_in_sync_than_have_to_be() -> None:
    lineage = three()
    lineage.min_in_sync = 3
    lineage.leave_view({"c"})
    lineage.acknowledge("a", 12, 0)
    lineage.acknowledge("b", 12, 0)
    lineage.begin(EpochBegun(record(5, "a", "b"), False, ()))
    assert (lineage.committed_lsn, lineage.is_large_enough) == (10, False)

    let_in(lineage)
    lineage.acknowledge("d", 12, 0)
    assert lineage.committed_lsn == 10, "no record names it yet"

    lineage.begin(EpochBegun(record(6, "a", "b", "d"), False, ()))
    assert lineage.committed_lsn == 12
