"""The model of rgmanager, with scripts that only write down that they were run: is it what rgmanager would do?

The stories are those that its manual and sources tell; the cluster is the one of rgmanager/cluster.conf.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lab.rgmanager_conf import (
    ClusterConf,
    ConfigurationError,
    Domain,
    Fitness,
    Recovery,
    Resource,
    Service,
    parse_conf,
    read_conf,
)
from lab.rgmanager_model import Outcome, Rgmanager, State, one_by_one

EXAMPLE = Path(__file__).resolve().parents[2] / "rgmanager" / "cluster.conf"
PRIMARY = "qpidd-primary"
NODES = ("node1", "node2", "node3")


class Scripts:
    """Writes down `node resource action`, and fails where it is told to."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.failing: set[str] = set()

    def run(self, node: str, service: Service, resource: Resource, action: str, depth: int) -> int:
        step = f"{node} {resource.name} {action}" + (f" {depth}" if depth else "")
        self.log.append(step)
        return 1 if step in self.failing else 0

    def read(self) -> list[str]:
        """What was run since the last look."""
        log, self.log = self.log, []
        return log


def of_primary(log: list[str]) -> list[str]:
    return [step for step in log if " qpidd " not in step]


@pytest.fixture
def scripts() -> Scripts:
    return Scripts()


@pytest.fixture
def manager(scripts: Scripts) -> Rgmanager:
    return Rgmanager(read_conf(EXAMPLE), scripts, one_by_one)


@pytest.fixture
def running(manager: Rgmanager, scripts: Scripts) -> Rgmanager:
    """All nodes are up, the primary is on node1."""
    manager.boot(*NODES)
    scripts.read()
    assert manager.owner(PRIMARY) == "node1"
    return manager


# --- the file


def test_the_example_has_a_broker_on_each_node_and_one_primary() -> None:
    conf = read_conf(EXAMPLE)
    assert conf.nodes == NODES
    for node in NODES:
        service = conf.service(f"qpidd-{node}")
        assert service.domain is not None
        assert (list(service.domain.priorities), service.domain.restricted) == ([node], True)
        assert service.recovery is Recovery.RESTART
    primary = conf.service(PRIMARY)
    assert primary.domain is not None
    assert set(primary.domain.priorities) == set(NODES)
    assert (primary.recovery, primary.exclusive, primary.autostart) == (Recovery.RELOCATE, False, True)


def test_the_address_comes_up_before_the_promotion_and_goes_after_the_demotion() -> None:
    primary = read_conf(EXAMPLE).service(PRIMARY)
    assert [resource.kind for resource in primary.starting] == ["ip", "script"]
    assert [resource.kind for resource in primary.stopping] == ["script", "ip"]


def test_the_order_in_the_file_does_not_matter() -> None:
    primary = read_conf(EXAMPLE).service(PRIMARY)
    backwards = dataclasses.replace(primary, resources=primary.resources[::-1])
    assert backwards.starting == primary.starting
    assert backwards.stopping == primary.stopping


def test_intervals_are_those_of_the_agents_unless_the_file_says_otherwise() -> None:
    conf = read_conf(EXAMPLE)
    address, script = conf.service(PRIMARY).starting
    assert address.status_intervals_s == {0: 5, 10: 60}
    assert script.status_intervals_s == {0: 2}
    assert conf.poll_interval_s == 2


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('<script ref="qpidd-primary"/>', '<script ref="qpid-primary"/>', "leads to nothing"),
        ('domain="node2-only"', 'domain="node2"', "is not there"),
        ('<failoverdomainnode name="node3"/>', '<failoverdomainnode name="node4"/>', "no such clusternode"),
        ("</rm>", "", "not XML"),
    ],
)
def test_a_name_that_leads_nowhere_is_found(before: str, after: str, complaint: str) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert before in text
    with pytest.raises(ConfigurationError, match=complaint):
        parse_conf(text.replace(before, after))


# --- the start


def test_every_service_is_stopped_on_every_node_before_anything_is_started(
    manager: Rgmanager, scripts: Scripts
) -> None:
    manager.boot(*NODES)
    log = scripts.read()
    first_start = next(at for at, step in enumerate(log) if step.endswith("start"))
    for node in NODES:
        stops = [step for step in log[:first_start] if step.startswith(node)]
        assert stops == [f"{node} qpidd stop"] * 3 + [f"{node} qpidd-primary stop", f"{node} 10.0.0.100 stop"]
    assert [step for step in log[first_start:] if step.endswith("stop")] == []


def test_each_node_gets_its_broker_and_one_the_primary(manager: Rgmanager, scripts: Scripts) -> None:
    manager.boot(*NODES)
    assert sorted(step for step in scripts.read() if step.endswith("start")) == [
        "node1 10.0.0.100 start",
        "node1 qpidd start",
        "node1 qpidd-primary start",
        "node2 qpidd start",
        "node3 qpidd start",
    ]
    assert {manager.state(service.name) for service in manager.conf.services} == {State.STARTED}


def test_a_stop_that_fails_at_the_start_changes_nothing(manager: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {"node1 qpidd-primary stop"}
    manager.boot("node1")
    assert manager.state(PRIMARY) is State.STARTED


def test_a_start_that_is_refused_is_stopped_and_tried_on_the_next_node(manager: Rgmanager, scripts: Scripts) -> None:
    manager.boot("node1", "node2", "node3")
    manager.disable(PRIMARY)
    scripts.failing = {"node1 qpidd-primary start", "node3 qpidd-primary start"}
    scripts.read()
    assert manager.enable(PRIMARY, "node1") is Outcome.DONE
    assert scripts.read() == [
        "node1 10.0.0.100 start",
        "node1 qpidd-primary start",
        "node1 qpidd-primary stop",
        "node1 10.0.0.100 stop",
        "node3 10.0.0.100 start",
        "node3 qpidd-primary start",
        "node3 qpidd-primary stop",
        "node3 10.0.0.100 stop",
        "node2 10.0.0.100 start",
        "node2 qpidd-primary start",
    ]
    assert manager.owner(PRIMARY) == "node2"


def test_a_service_that_starts_nowhere_stays_stopped_until_a_node_comes(manager: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {f"{node} qpidd-primary start" for node in NODES}
    manager.boot("node1", "node2")
    assert (manager.state(PRIMARY), manager.owner(PRIMARY)) == (State.STOPPED, "")
    scripts.failing = set()
    manager.poll(1000)
    assert manager.state(PRIMARY) is State.STOPPED
    manager.boot("node3")
    assert manager.state(PRIMARY) is State.STARTED


def test_a_stop_that_fails_after_a_refusal_leaves_the_service_failed(manager: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {"node1 qpidd-primary start", "node1 qpidd-primary stop"}
    manager.boot(*NODES)
    assert (manager.state(PRIMARY), manager.owner(PRIMARY)) == (State.FAILED, "")
    assert not any(
        step.startswith(("node2 qpidd-primary start", "node3 qpidd-primary start")) for step in scripts.read()
    )


# --- failover


def test_when_a_node_is_lost_another_one_takes_the_primary(running: Rgmanager, scripts: Scripts) -> None:
    running.lose("node1")
    assert scripts.read() == ["node2 10.0.0.100 start", "node2 qpidd-primary start"]
    assert running.owner(PRIMARY) == "node2"
    assert running.state("qpidd-node1") is State.STOPPED


def test_a_node_that_comes_back_gets_its_broker_and_no_primary(running: Rgmanager, scripts: Scripts) -> None:
    running.lose("node1")
    scripts.read()
    running.boot("node1")
    assert [step for step in scripts.read() if not step.endswith("stop")] == ["node1 qpidd start"]
    assert running.owner(PRIMARY) == "node2"


def test_a_node_without_brokers_in_the_domain_gets_nothing(scripts: Scripts) -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    conf = parse_conf(
        text.replace("  </clusternodes>", '    <clusternode name="node4" nodeid="4"/>\n  </clusternodes>')
    )
    manager = Rgmanager(conf, scripts, one_by_one)
    manager.boot("node4")
    assert not any(step.endswith("start") for step in scripts.read())


def test_a_primary_that_ceased_to_be_one_is_relocated(running: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {"node1 qpidd-primary status"}
    running.poll(2)
    assert of_primary(scripts.read()) == [
        "node1 qpidd-primary status",
        "node1 qpidd-primary stop",
        "node1 10.0.0.100 stop",
        "node3 10.0.0.100 start",
        "node3 qpidd-primary start",
    ]
    assert running.owner(PRIMARY) == "node3"


def test_a_broker_that_died_is_restarted_where_it_was(running: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {"node2 qpidd status"}
    running.poll(5)
    steps = [step for step in scripts.read() if step.startswith("node2")]
    assert steps == ["node2 qpidd status", "node2 qpidd stop", "node2 qpidd start"]
    assert running.owner("qpidd-node2") == "node2"


def test_a_failed_stop_ends_the_recovery(running: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {"node1 qpidd-primary status", "node1 qpidd-primary stop"}
    running.poll(2)
    assert running.state(PRIMARY) is State.FAILED
    assert "node1 10.0.0.100 stop" in scripts.read()  # the rest is stopped all the same

    running.boot("node3")
    assert running.state(PRIMARY) is State.FAILED
    scripts.failing = set()
    running.disable(PRIMARY)
    assert running.enable(PRIMARY, "node2") is Outcome.DONE


def test_status_is_asked_of_the_owner_alone_and_when_it_is_due(running: Rgmanager, scripts: Scripts) -> None:
    for now_s in (1, 2, 3, 4, 5):
        running.poll(now_s)
    assert sorted(scripts.read()) == sorted(
        ["node1 qpidd-primary status"] * 2 + ["node1 10.0.0.100 status"] + [f"{node} qpidd status" for node in NODES]
    )


def test_a_deeper_check_takes_the_place_of_a_shallow_one(running: Rgmanager, scripts: Scripts) -> None:
    running.poll(60)
    assert "node1 10.0.0.100 status 10" in scripts.read()


def test_a_status_that_is_not_due_yet_counts_as_it_was(running: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {"node1 10.0.0.100 status", "node3 10.0.0.100 start", "node2 10.0.0.100 start"}
    running.poll(5)
    assert running.state(PRIMARY) is State.STOPPED
    assert (
        "node1 qpidd-primary status" not in scripts.read()
    )  # the address is looked at first, and that is the end of it


# --- what an operator does


def test_a_relocation_goes_where_it_is_told_to(running: Rgmanager, scripts: Scripts) -> None:
    assert running.relocate(PRIMARY, "node2") is Outcome.DONE
    assert scripts.read() == [
        "node1 qpidd-primary stop",
        "node1 10.0.0.100 stop",
        "node2 10.0.0.100 start",
        "node2 qpidd-primary start",
    ]


def test_a_relocation_that_everybody_refuses_ends_where_it_began(running: Rgmanager, scripts: Scripts) -> None:
    scripts.failing = {"node2 qpidd-primary start", "node3 qpidd-primary start"}
    assert running.relocate(PRIMARY, "node2") is Outcome.BACK
    assert (running.state(PRIMARY), running.owner(PRIMARY)) == (State.STARTED, "node1")


def test_a_disabled_service_stays_where_it_is(running: Rgmanager, scripts: Scripts) -> None:
    running.disable(PRIMARY)
    scripts.read()
    running.lose("node2")
    running.boot("node2")
    assert running.state(PRIMARY) is State.DISABLED
    assert not any(step.endswith("qpidd-primary start") for step in scripts.read())


def test_stopping_rgmanager_stops_what_the_node_has_and_moves_what_may_move(
    running: Rgmanager, scripts: Scripts
) -> None:
    running.leave("node1")
    log = scripts.read()
    assert log[0] == "node1 qpidd stop"
    assert of_primary(log) == [
        "node1 qpidd-primary stop",
        "node1 10.0.0.100 stop",
        "node2 10.0.0.100 start",
        "node2 qpidd-primary start",
    ]


def test_a_new_service_in_the_file_is_stopped_on_every_node_first(scripts: Scripts) -> None:
    """The reason why a stop must look whose broker it is: this one runs on nodes whose brokers serve."""
    whole = read_conf(EXAMPLE)
    manager = Rgmanager(whole.without("qpidd-node3"), scripts, one_by_one)
    manager.boot(*NODES)
    scripts.read()
    manager.update(whole)
    assert scripts.read() == [*(f"{node} qpidd stop" for node in NODES), "node3 qpidd start"]
    assert manager.owner("qpidd-node3") == "node3"


# --- failover domains


ORDERED = Domain("d", {"node1": 1, "node2": 2}, ordered=True)


@pytest.mark.parametrize(
    ("domain", "node", "runs_on", "fitness"),
    [
        (ORDERED, "node1", "", Fitness.BEST),
        (ORDERED, "node2", "", Fitness.BETTER),
        (ORDERED, "node3", "", Fitness.GOOD),
        (dataclasses.replace(ORDERED, restricted=True), "node3", "", Fitness.ILLEGAL),
        (dataclasses.replace(ORDERED, ordered=False), "node2", "", Fitness.BEST),
        (dataclasses.replace(ORDERED, nofailback=True), "node1", "node2", Fitness.BETTER),
        (dataclasses.replace(ORDERED, nofailback=True), "node2", "node2", Fitness.BEST),
        (Domain("d", {"node4": 1}), "node1", "", Fitness.BEST),
        (Domain("d", {"node4": 1}, restricted=True), "node1", "", Fitness.ILLEGAL),
    ],
)
def test_how_well_a_domain_likes_a_node(domain: Domain, node: str, runs_on: str, fitness: Fitness) -> None:
    assert domain.fitness(node, NODES, runs_on) is fitness


def prefer(conf: ClusterConf, domain: Domain, **more: object) -> ClusterConf:
    """The cluster, but with this domain for the primary."""
    primary = dataclasses.replace(conf.service(PRIMARY), domain=domain, **more)  # type: ignore[arg-type]
    others = tuple(service for service in conf.services if service.name != PRIMARY)
    return dataclasses.replace(conf, services=(*others, primary))


def test_with_an_ordered_domain_the_primary_goes_back_to_the_preferred_node(scripts: Scripts) -> None:
    domain = Domain("d", {"node1": 1, "node2": 2, "node3": 2}, ordered=True, restricted=True)
    manager = Rgmanager(prefer(read_conf(EXAMPLE), domain), scripts, one_by_one)
    manager.boot(*NODES)
    manager.lose("node1")
    assert manager.owner(PRIMARY) == "node2"
    manager.boot("node1")
    assert manager.owner(PRIMARY) == "node1"


def test_an_exclusive_primary_would_find_no_node_without_a_broker(scripts: Scripts) -> None:
    """The example says exclusive=0 for this reason."""
    conf = read_conf(EXAMPLE)
    domain = conf.service(PRIMARY).domain
    assert domain is not None
    manager = Rgmanager(prefer(conf, domain, exclusive=True), scripts, one_by_one)
    manager.boot(*NODES)
    assert manager.state(PRIMARY) is State.STOPPED
