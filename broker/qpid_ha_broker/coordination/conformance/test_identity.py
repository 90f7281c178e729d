"""The coordinator's identity: written once, by whoever comes first, and the same for everybody."""

from __future__ import annotations

from functools import partial

import pytest

from qpid_ha_broker.coordination.conformance.at_once import at_once
from qpid_ha_broker.coordination.conformance.under_test import CLUSTER, NOTES, UnderTest
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.identity import identity_of
from qpid_ha_broker.ha.cluster_record import ClusterRecord

NOTE = NOTES[0]
RACERS = 4
RECORD = ClusterRecord(CLUSTER, 1, "a", 1, ("a",))


def test_whoever_comes_first_writes_it_and_all_others_read_it(coordinator: Coordinator, under_test: UnderTest) -> None:
    identity = identity_of(coordinator, note=NOTE)
    assert len(identity) == 32
    assert under_test.worker().tell("read_note", NOTE) == identity
    assert identity_of(under_test.connect(), note=NOTE) == identity


def test_of_many_who_come_at_once_all_have_the_same_one(under_test: UnderTest) -> None:
    coordinators = [under_test.connect() for _ in range(RACERS)]
    identities = at_once([partial(identity_of, own, note=NOTE) for own in coordinators])
    assert set(identities) == {coordinators[0].read_note(NOTE)}


def test_a_record_that_has_none_gets_one_and_stays_as_it_is(coordinator: Coordinator, other: Coordinator) -> None:
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    identity = identity_of(coordinator, note=NOTE)
    assert other.read() == RECORD
    assert other.compare_and_set(RECORD, RECORD._replace(epoch=2))[0]
    assert identity_of(other, note=NOTE) == identity


def test_what_is_none_is_refused(coordinator: Coordinator) -> None:
    coordinator.replace_note(NOTE, "", "somebody's text")
    with pytest.raises(CoordinatorError, match="is no UUID"):
        identity_of(coordinator, note=NOTE)
