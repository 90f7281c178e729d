"""Which resource set a new queue belongs to, and what it is told that contradicts itself."""

from __future__ import annotations

from collections import Counter

import pytest

from model_support import Core, TextReader
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.commands.naming import Naming, NamingRules, NewQueue, choose_set
from qpid_ha_broker.model.errors import InvalidArgument, OtherSet
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate
from qpid_ha_broker.model.sets.resources import Resources

RULES = NamingRules((("orders.*", "orders"), ("orders.new", "small"), ("*.here", "default")), 0, 2)


def a_map() -> ClusterMap:
    """Brokers alpha, beta and gamma; `orders` prefers alpha, `small` has one replica, `big` five by a policy."""
    there = ClusterMap()
    events: list[ev.MapEvent] = [ev.BrokerRegistered(name, "", "", "", "", "") for name in ("alpha", "beta", "gamma")]
    events += [
        ev.ReplicaPoliciesChanged(("big*",), (5,)),
        ev.SetPlaced("orders", ("alpha", "beta"), (), "alpha", 3, 0),
        ev.SetPlaced("small", ("beta",), (), "beta", 1, 0),
        ev.SetPlaced("big", ("alpha", "beta"), (), "", 0, 0),
        ev.QueuePlaced("one", "orders", {}, False),
    ]
    for lsn, event in enumerate(events, start=1):
        there.apply(lsn, event)
    return there


def chosen(
    arguments: dict[str, Scalar], name: str = "q", rules: NamingRules = RULES, level: Replicate = Replicate.MESSAGES
) -> Naming:
    parsed = QueueArguments.parse(arguments)
    return choose_set(NewQueue(name, parsed, parsed.replicate or level), rules, a_map())


@pytest.mark.parametrize(
    ("arguments", "name", "expected"),
    [
        ({}, "q", "default"),
        ({"qpid.resource-set": "small"}, "orders.new", "small"),
        ({"qpid.resource-set": "default"}, "orders.new", "default"),
        ({"qpid.resource-set": "orders", "qpid.cluster.primary": "alpha", "qpid.min-replicas": 3}, "q", "orders"),
        ({"qpid.cluster.primary": "beta"}, "orders.new", "small"),
        ({"qpid.min-replicas": 2}, "orders.new", "default"),
        ({"qpid.min-replicas": 3}, "q", "big"),
        ({"qpid.min-replicas": "5"}, "q", "big"),
        ({}, "orders.new", "orders"),
        ({}, "orders.here", "orders"),
        ({}, "any.here", "default"),
        ({"qpid.replicate": "none"}, "orders.new", "default"),
        ({"qpid.exclusive": True, "qpid.auto_delete": True}, "orders.new", "default"),
    ],
)
def test_a_queue_belongs_to_the_set_that_it_asks_for_or_that_a_rule_says(
    arguments: dict[str, Scalar], name: str, expected: str
) -> None:
    naming = chosen(arguments, name)
    assert (naming.set, naming.missing) == (expected, False)
    assert naming.why


def test_a_set_is_made_for_a_broker_that_is_the_preferred_primary_of_none() -> None:
    naming = chosen({"qpid.cluster.primary": "gamma"})
    assert naming == ("primary-gamma", "gamma is its preferred primary", True, "gamma")
    there = a_map()
    there.apply(20, ev.SetPlaced("primary-gamma", ("alpha",), (), "alpha", 0, 0))
    asked = QueueArguments.parse({"qpid.cluster.primary": "gamma"})
    assert choose_set(NewQueue("q", asked, Replicate.MESSAGES), RULES, there).set == "primary-gamma-2"


def test_a_spread_puts_a_queue_always_into_the_same_of_so_many_sets() -> None:
    rules = RULES._replace(spread=8)
    namings = {name: chosen({}, name, rules) for name in [f"q{number}" for number in range(400)]}
    assert namings["q1"].set == "shard-3"
    assert all(naming.missing and not naming.preferred for naming in namings.values())
    counts = Counter(naming.set for naming in namings.values())
    assert set(counts) == {f"shard-{number}" for number in range(1, 9)}
    assert min(counts.values()) > 25
    assert chosen({}, "orders.new", rules).set == "orders"
    assert chosen({"qpid.alternate_exchange": "x"}, "q1", rules).set == "default"
    assert chosen({}, "q1", rules, Replicate.NONE).set == "default"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"qpid.resource-set": "nowhere"}, "no such resource set.*default, big"),
        ({"qpid.resource-set": "orders", "qpid.cluster.primary": "beta"}, "different sets.*is alpha"),
        ({"qpid.resource-set": "default", "qpid.cluster.primary": "beta"}, "different sets.*nobody in particular"),
        ({"qpid.resource-set": "small", "qpid.min-replicas": 2}, "min-replicas=2.*small has 1"),
        ({"qpid.cluster.primary": "delta"}, "no such broker.*alpha, beta, gamma"),
        ({"qpid.cluster.primary": "gamma", "qpid.min-replicas": 4}, "none of that broker's sets has the 4"),
        ({"qpid.min-replicas": 6}, "no resource set has so many"),
        ({"qpid.min-replicas": -1}, "whole number"),
        ({"qpid.resource-set": "small", "qpid.replicate": "none"}, "its level is none"),
        ({"qpid.cluster.primary": "beta", "qpid.replicate": "configuration"}, "its level is configuration"),
        ({"qpid.resource-set": "small", "qpid.alternate_exchange": "x"}, "dead letters cannot go"),
        ({"qpid.resource_set": "small"}, "did you mean qpid.resource-set"),
    ],
)
def test_what_contradicts_itself_or_the_map_is_refused(arguments: dict[str, Scalar], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        chosen(arguments)


def test_rules_that_contradict_each_other_are_refused_with_both() -> None:
    with pytest.raises(
        InvalidArgument, match=r"orders\.\*=orders of resource-sets.*its level is none.*replication-rul"
    ):
        chosen({}, "orders.new", level=Replicate.NONE)
    with pytest.raises(InvalidArgument, match=r"q\*=nowhere of resource-sets: there is no such"):
        chosen({}, rules=NamingRules((("q*", "nowhere"),)))


def test_a_queue_of_another_set_is_not_declared_in_default() -> None:
    core = Core()
    core.configuration.naming = NamingRules(spread=2)
    before = core.log.last_lsn
    with pytest.raises(OtherSet, match="q belongs to resource set shard-"):
        core.queue("q")
    assert core.log.last_lsn == before
    made_for_a_link = core.configuration.declare_queue("temporary.1", {"qpid.auto_delete": True}, by_rule=False)
    assert made_for_a_link.name in core.catalog.queues
    with pytest.raises(InvalidArgument, match="stays in its resource set"):
        core.configuration.update_queue("temporary.1", {"qpid.min-replicas": 1})


def test_the_queues_of_another_set_are_declared_there_and_replicated_with_their_messages() -> None:
    core = Core(Resources(TextReader(), "orders"))
    arguments: dict[str, Scalar] = {"qpid.exclusive": True, "qpid.auto_delete": True, "qpid.resource-set": "orders"}
    queue = core.configuration.declare_queue("q", arguments)
    assert queue.replication is Replicate.MESSAGES
    with pytest.raises(InvalidArgument, match="replicated with their messages"):
        core.configuration.update_queue("q", {"qpid.replicate": "none"})
    core.check()
