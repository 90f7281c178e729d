"""What a broker tells the controller of its replicas: what is new at once, what goes on all the time now and then."""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random

import pytest

from model_support import TextReader, message
from qpid_ha_broker.cluster.messages import FAILED, BrokerIdentity, BrokerReport
from qpid_ha_broker.ha.effects import Started, StoreWritable
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import UNWRITABLE_S
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.peers.replica_reports import (
    LOOK_S,
    HostedReplica,
    QueueReport,
    ReplicaReports,
    replica_report,
)

BEGAN_S = 100.0
SOON_S = BEGAN_S + LOOK_S / 2
LATER_S = BEGAN_S + LOOK_S


class Replicas:
    """Of members that are alone in the world; counts who is looked at."""

    def __init__(self, *names: str) -> None:
        self.there: dict[str, HostedReplica] = {}
        self.members: dict[str, Member] = {}
        self.resources: dict[str, Resources] = {}
        self.active: set[str] = set()
        self.looks: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        for name in names:
            resources = self.resources[name] = Resources(TextReader(), name)
            settings = MemberSettings(name="a", instance="i", addresses=())
            member = Member(settings, resources.replicated, Random(1).random, lambda: 0, None)
            member.handle(Started(), 0.0)
            self.members[name] = member
            self.there[name] = HostedReplica(partial(replica_report, member), resources.catalog)

    def replica(self, set_name: str) -> HostedReplica | None:
        self.looks[set_name] += 1
        return self.there.get(set_name)

    def names(self) -> set[str]:
        return set(self.there)

    def take_active(self) -> set[str]:
        active, self.active = self.active, set()
        return active


@pytest.fixture
def replicas() -> Replicas:
    return Replicas("default", "orders", "bills")


@pytest.fixture
def reports(replicas: Replicas) -> ReplicaReports:
    identity = BrokerIdentity("a", "uuid", "i", "amqp://a:1", "", "", "1")
    made = ReplicaReports(lambda: identity, replicas, lambda _: QueueReport(), lambda: 0)
    made.report(BEGAN_S, full=True)
    replicas.looks.clear()
    return made


def sets_of(report: BrokerReport) -> list[str]:
    return [replica.set for replica in report.replicas]


def publish(replicas: Replicas, name: str) -> None:
    resources = replicas.resources[name]
    resources.publish(Configuration(resources).declare_queue("q", {}), message("one"), 0)


def test_the_first_report_has_all_replicas(replicas: Replicas) -> None:
    identity = BrokerIdentity("a", "uuid", "i", "amqp://a:1", "", "", "1")
    report = ReplicaReports(lambda: identity, replicas, lambda _: QueueReport(), lambda: 7).report(BEGAN_S, full=True)
    assert (report.full, sets_of(report), report.room_bytes) == (True, ["bills", "default", "orders"], 7)


def test_a_replica_to_which_nothing_happened_is_not_even_looked_at(replicas: Replicas, reports: ReplicaReports) -> None:
    assert sets_of(reports.report(LATER_S, full=False)) == []
    assert not replicas.looks


def test_what_is_new_is_told_at_once(replicas: Replicas, reports: ReplicaReports) -> None:
    publish(replicas, "orders")
    reports.changed("orders")
    assert sets_of(reports.report(SOON_S, full=False)) == ["orders"]
    assert set(replicas.looks) == {"orders"}


def test_what_is_no_news_after_all_is_not_told(reports: ReplicaReports) -> None:
    reports.changed("orders")
    assert sets_of(reports.report(SOON_S, full=False)) == []


def test_where_something_goes_on_is_told_after_a_while(replicas: Replicas, reports: ReplicaReports) -> None:
    publish(replicas, "orders")
    replicas.active.add("orders")
    assert sets_of(reports.report(SOON_S, full=False)) == []
    [told] = reports.report(LATER_S, full=False).replicas
    assert (told.set, told.load.messages) == ("orders", 1)


def test_the_rate_of_a_set_that_has_come_to_rest_is_told_until_it_is_0(
    replicas: Replicas, reports: ReplicaReports
) -> None:
    publish(replicas, "orders")
    replicas.active.add("orders")
    [told] = reports.report(LATER_S, full=False).replicas
    assert told.load.rate > 0
    [told] = reports.report(LATER_S + LOOK_S, full=False).replicas
    assert told.load.rate == 0
    assert sets_of(reports.report(LATER_S + 2 * LOOK_S, full=False)) == []


def test_a_replica_that_is_gone_is_dropped_once(replicas: Replicas, reports: ReplicaReports) -> None:
    del replicas.there["orders"]
    reports.changed("orders")
    assert reports.report(SOON_S, full=False).dropped == ("orders",)
    reports.changed("orders")
    assert reports.report(SOON_S, full=False).dropped == ()


def test_a_full_report_has_what_was_told_before(replicas: Replicas, reports: ReplicaReports) -> None:
    del replicas.there["orders"]
    report = reports.report(SOON_S, full=True)
    assert (sets_of(report), report.dropped) == (["bills", "default"], ())


def test_a_replica_that_cannot_be_is_told_with_the_reason_until_there_is_none_to_be(
    replicas: Replicas, reports: ReplicaReports
) -> None:
    del replicas.there["orders"]
    replicas.problems["orders"] = "its disk is broken"
    [told] = reports.report(SOON_S, full=False).replicas
    assert (told.set, told.state, told.problem) == ("orders", FAILED, "its disk is broken")
    assert sets_of(reports.report(SOON_S, full=False)) == []
    del replicas.problems["orders"]
    assert reports.report(SOON_S, full=False).dropped == ("orders",)


def test_a_problem_of_a_store_is_told_until_it_is_over_also_when_nothing_else_happens(
    replicas: Replicas, reports: ReplicaReports
) -> None:
    member = replicas.members["orders"]
    member.handle(StoreWritable("No space left on device"), SOON_S)
    reports.changed("orders")
    [told] = reports.report(SOON_S, full=False).replicas
    assert told.problem == "its store cannot be written: No space left on device"
    assert not told.unwritable, "perhaps it has a moment"
    [told] = reports.report(SOON_S + UNWRITABLE_S, full=False).replicas
    assert told.unwritable
    member.handle(StoreWritable(""), SOON_S + UNWRITABLE_S)
    [told] = reports.report(SOON_S + UNWRITABLE_S, full=False).replicas
    assert (told.problem, told.unwritable) == ("", False)


def test_a_primary_that_commits_nothing_says_why(reports: ReplicaReports, replicas: Replicas) -> None:
    reports.report(BEGAN_S, full=True)
    member = replicas.members["orders"]
    assert member.primary is not None
    member.primary.commits.look(0.0, member.position.lsn + 1, member.position.lsn)
    replicas.active = {"orders"}
    told = reports.report(LATER_S, full=False)
    (orders,) = [each for each in told.replicas if each.set == "orders"]
    assert orders.problem.startswith("nothing is committed: ")
