"""Who has to have a message when its publisher hears that it was accepted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from simulation.brokers.custody import ConfirmationsWatch, Letter, payloads_in
from simulation.brokers.ledger import Sent
from simulation.custody import Custody
from simulation.violations import Violation

SENT = Sent("p1-1", 7, "plain")
SENT_S = 5.0


@dataclass
class Register:
    record: ClusterRecord


class World:
    """`n0` has the message on its disk, and leads; `record` says who may be promoted."""

    def __init__(self) -> None:
        self.register = Register(ClusterRecord(cluster="c", generation=1, primary="n0", members=("n0",)))
        self.custody = Custody(("n0", "n1"), True, lambda: SENT_S, payloads_in)
        self.watch = ConfirmationsWatch(self.custody, 1, self.register)
        self.custody.synced("n0", Letter(SENT, True).payload())

    def record(self, at_s: float, *members: str) -> None:
        self.register.record = self.register.record._replace(members=members)
        self.watch.look(at_s)


def test_whoever_could_be_promoted_all_the_time_has_it() -> None:
    world = World()
    world.record(1.0, "n0", "n1")

    with pytest.raises(Violation, match="n1 may be promoted, and should have it"):
        world.watch.confirmed(SENT, True, SENT_S)
    world.custody.synced("n1", Letter(SENT, True).payload())
    world.watch.confirmed(SENT, True, SENT_S)


def test_who_has_joined_since_it_was_sent_may_have_yet_to_write_it() -> None:
    world = World()
    world.record(1.0, "n0")
    world.record(SENT_S + 0.1, "n0", "n1")

    world.watch.confirmed(SENT, True, SENT_S)
    with pytest.raises(Violation, match="n1 may be promoted"):
        world.watch.confirmed(SENT, True, SENT_S + 0.2)


def test_who_has_left_by_now_need_not_have_it() -> None:
    world = World()
    world.record(1.0, "n0", "n1")
    world.record(SENT_S + 0.1, "n0")

    world.watch.confirmed(SENT, True, SENT_S)


def test_as_many_have_it_as_have_to_be_in_sync() -> None:
    world = World()
    watch = ConfirmationsWatch(world.custody, 2, world.register)

    with pytest.raises(Violation, match="2 brokers should have it"):
        watch.confirmed(SENT, True, SENT_S)


def test_what_is_in_memory_alone_is_held_by_nobody_if_it_is_durable() -> None:
    world = World()
    other = SENT._replace(number=8)
    world.custody.received(("n0", 1), Letter(other, True).payload())

    with pytest.raises(Violation, match="held by nobody"):
        world.watch.confirmed(other, True, SENT_S)
    world.watch.confirmed(other, False, SENT_S)
