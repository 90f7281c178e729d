"""The scripts of rgmanager/ on machines of their own, driven in the order in which rgmanager drives them.

The model of rgmanager reads the example cluster.conf; no Pacemaker runs. A client on a fourth machine publishes and
consumes through the virtual address. After each story: one primary, which has the address, all others ready, one broker
on each node, and nothing that was confirmed is lost. Single answers of the scripts: tests/integration.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from lab.audits import processes
from lab.blackout import power_off
from lab.cluster import Cluster
from lab.load import Load
from lab.machines import Lab
from lab.rgmanager_model import Rgmanager, State
from lab.rgmanager_site import Site, await_boot, example_conf, furnish
from lab.stage import Stage

PRIMARY = "qpidd-primary"
SCRIPT = "/usr/local/lib/qpid-ha/qpidd"


class World:
    """A cluster at work: the machines, rgmanager on them, and time as it sees it."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.nodes = lab.plan.members
        self.site = Site(lab)
        self.rgmanager = Rgmanager(example_conf(lab), self.site)
        self.cluster = Cluster(lab)
        self._now_s = 0.0

    @property
    def primary(self) -> str:
        """Where rgmanager has the primary."""
        return self.rgmanager.owner(PRIMARY)

    def backups(self) -> list[str]:
        """The other nodes."""
        return [node for node in self.nodes if node != self.primary]

    def begin(self, primary: str) -> None:
        """All nodes are started, and the primary is on this one."""
        self.rgmanager.boot(*self.nodes)
        if self.primary != primary:
            self.rgmanager.relocate(PRIMARY, primary)
        self.audit()
        self.site.taken()

    def let_time_pass(self, seconds: float = 100.0) -> None:
        """Until every status is due; then it is asked for."""
        self._now_s += seconds
        self.rgmanager.poll(self._now_s)

    def power_on(self, node: str) -> None:
        """Without rgmanager yet."""
        self.lab.power_on(node)
        await_boot(self.lab, node)

    def power_off(self, node: str) -> None:
        """And fence it: the others take over."""
        self.lab.power_off(node)
        self.rgmanager.lose(node)

    def is_well(self) -> bool:
        """One primary, where rgmanager has it, with the address; all others ready."""
        wanted = {node: "primary" if node == self.primary else "ready" for node in self.lab.members_on()}
        return self.cluster.states() == wanted and self.cluster.holders() == [self.primary]

    def is_equal(self) -> bool:
        """Every broker holds what every other holds."""
        depths = [self.cluster.queue_depths(node) for node in self.lab.members_on()]
        return all(each == depths[0] for each in depths)

    def settle(self) -> None:
        """It becomes well by itself."""
        self.cluster.wait(self.is_well, f"{self.primary} is primary with its address, all others ready")

    def audit(self) -> None:
        """It is well, at rest, and on each node runs a broker, and nothing else of ours."""
        self.settle()
        self.cluster.wait(self.is_equal, "the replicas are equal")
        for node in self.lab.members_on():
            found = processes(self.cluster, node)
            assert (len(found.brokers), found.watchers, found.others) == (1, [], [])


@pytest.fixture
def world(stage: Stage) -> Iterator[World]:
    """Nothing runs yet."""
    stage.distrust()  # who wants Pacemaker next has to make it anew
    furnish(stage.lab)
    found = World(stage.lab)
    yield found
    print("\n".join(map(str, found.site.told)))  # shown when the test fails


def test_a_first_start_makes_one_primary_and_clients_find_it(world: World) -> None:
    world.rgmanager.boot(*world.nodes)
    steps = world.site.taken()
    for node in world.nodes:  # each service is stopped on each node first
        assert sorted(step for step in steps if step.startswith(node))[:1]
        assert steps.count(f"{node} qpidd stop") == 3
        assert steps.index(f"{node} qpidd start") > steps.index(f"{node} {PRIMARY} stop")
    assert steps.index(f"{world.primary} 10.77.0.50 start") < steps.index(f"{world.primary} {PRIMARY} start")
    with Load(world.lab) as load:
        load.wait_confirmed(100)
        assert load.finish().complaints() == []
    world.audit()


def test_when_the_primarys_node_is_switched_off_another_one_takes_over_and_it_comes_back_as_a_backup(
    world: World,
) -> None:
    world.begin("n1")
    with Load(world.lab) as load:
        load.wait_confirmed(100)
        world.power_off("n1")
        assert world.primary != "n1"
        load.wait_confirmed(100)
        world.settle()
        assert world.rgmanager.state("qpidd-n1") is State.STOPPED

        taken_over_by = world.primary
        world.power_on("n1")
        world.rgmanager.boot("n1")
        world.settle()
        assert world.primary == taken_over_by
        assert load.finish().complaints() == []
    world.audit()


def test_a_killed_broker_costs_the_role_and_is_restarted(world: World) -> None:
    world.begin("n1")
    with Load(world.lab) as load:
        load.wait_confirmed(100)
        killed_s = time.monotonic()
        world.site.signal("n1", "KILL")
        world.let_time_pass()
        assert world.primary != "n1"
        load.recovered_after(killed_s)
        assert load.finish().complaints() == []
    world.audit()
    steps = world.site.taken("start", "stop")
    assert steps.index(f"n1 {PRIMARY} stop") < steps.index("n1 10.77.0.50 stop") < steps.index("n3 10.77.0.50 start")
    assert "n1 qpidd start" in steps


def test_a_broker_that_is_catching_up_refuses_and_the_next_one_is_chosen(world: World) -> None:
    """A second failure before the first is mended: rgmanager asks the node that is not ready first."""
    world.begin("n1")
    with Load(world.lab, rate=2000, size=2000, consume=False) as load:
        world.power_off("n3")
        load.wait_confirmed(5000)
        load.pause()
        world.power_on("n3")
        world.site.slow_down("n3", 300_000)
        world.rgmanager.boot("n3")
        world.cluster.wait(lambda: world.cluster.state("n3") == "catchup", "n3 is catching up")
        world.site.taken()

        world.site.signal("n1", "KILL")
        world.let_time_pass()
        refused, accepted = [step for step in world.site.steps if step.resource == PRIMARY and step.action == "start"]
        assert (refused.node, refused.code) == ("n3", 1)
        assert "promote one" in refused.said  # of those who hold everything
        assert (accepted.node, accepted.code) == ("n2", 0)
        steps = world.site.taken("start", "stop")
        at = steps.index(f"n3 {PRIMARY} start")
        assert [step for step in steps[at:] if "qpidd start" not in step and "qpidd stop" not in step] == [
            f"n3 {PRIMARY} start",
            f"n3 {PRIMARY} stop",
            "n3 10.77.0.50 stop",
            "n2 10.77.0.50 start",
            f"n2 {PRIMARY} start",
        ]
        assert world.primary == "n2"

        world.site.speed_up("n3")
        world.settle()
        load.resume()
        load.wait_confirmed(100)
        assert load.finish().complaints() == []
    world.audit()


def test_after_a_loss_of_all_power_the_primary_starts_by_itself_with_all_that_was_confirmed(world: World) -> None:
    world.begin("n1")
    with Load(world.lab, rate=100, consume=False) as load:
        load.wait_confirmed(200)
        power_off(world.cluster, world.nodes)
        world.rgmanager = Rgmanager(example_conf(world.lab), world.site)  # it forgets, too
        on_s = time.monotonic()
        for node in world.nodes:
            world.power_on(node)
        world.rgmanager.boot(*world.nodes)
        print(f"all nodes are on: the first confirmation after {load.recovered_after(on_s):.1f} s")
        load.wait_confirmed(100)
        account = load.finish()
    assert account.complaints() == [], str(account)
    assert account.facts["received"] >= 300
    world.audit()


def test_a_planned_move_loses_nothing(world: World) -> None:
    world.begin("n1")
    with Load(world.lab) as load:
        load.wait_confirmed(100)
        world.rgmanager.relocate(PRIMARY, "n2")
        assert world.primary == "n2"
        load.wait_confirmed(100)
        assert load.finish().complaints() == []
    world.audit()


def test_a_hanging_primary_is_killed_before_another_one_is_promoted(world: World) -> None:
    world.begin("n1")
    hung = world.site.pid("n1")
    with Load(world.lab) as load:
        load.wait_confirmed(100)
        hung_s = time.monotonic()
        world.site.signal("n1", "STOP")
        world.let_time_pass()
        assert world.primary != "n1"
        load.recovered_after(hung_s)
        assert load.finish().complaints() == []
    world.audit()
    assert world.site.pid("n1") not in (0, hung)


def test_what_was_left_running_is_stopped_when_rgmanager_starts(world: World) -> None:
    """And a stop on a node where nothing runs is a success."""
    for node in world.nodes:
        world.site.script(node, SCRIPT, "start", "")
    world.site.script("n2", f"{SCRIPT}-primary", "start", "")
    before = {node: world.site.pid(node) for node in world.nodes}
    world.rgmanager.boot(*world.nodes)
    stops = [step for step in world.site.steps if step.action == "stop"]
    # The primary's may be stopped once more: where it is refused, because another store goes further.
    stopped = Counter((step.node, step.resource) for step in stops)
    assert all(stopped[node, "qpidd"] == 3 and stopped[node, PRIMARY] >= 1 for node in world.nodes)
    assert {step.code for step in stops} == {0}
    world.audit()
    assert all(world.site.pid(node) != before[node] for node in world.nodes)


def test_status_is_0_only_for_what_is_so(world: World) -> None:
    world.begin("n1")

    def codes(node: str) -> list[int]:
        return [world.site.script(node, SCRIPT + kind, "status", "").returncode for kind in ("", "-primary")]

    assert {node: codes(node) for node in world.nodes} == {"n1": [0, 0], "n2": [0, 3], "n3": [0, 3]}
    world.site.signal("n2", "KILL")
    world.site.script("n3", SCRIPT, "stop", "")
    assert [codes("n2"), codes("n3")] == [[1, 3], [3, 3]]
    assert world.site.script("n3", SCRIPT, "stop", "").returncode == 0


def test_a_stolen_address_moves_the_primary(world: World) -> None:
    world.begin("n1")
    world.lab.output("n1", "ip", "addr", "del", "10.77.0.50/24", "dev", "eth0")
    with Load(world.lab) as load:
        world.let_time_pass()
        assert world.primary != "n1"
        load.wait_confirmed(100)
        assert load.finish().complaints() == []
    world.audit()


def test_stopping_rgmanager_on_the_primarys_node_moves_what_may_move(world: World) -> None:
    world.begin("n1")
    with Load(world.lab) as load:
        load.wait_confirmed(100)
        world.rgmanager.leave("n1")
        assert world.site.pid("n1") == 0
        assert world.primary in ("n2", "n3")
        load.wait_confirmed(100)
        world.rgmanager.boot("n1")
        assert load.finish().complaints() == []
    world.audit()


def test_a_node_that_is_added_to_the_configuration_disturbs_nobody(world: World) -> None:
    whole = world.rgmanager.conf
    world.rgmanager = Rgmanager(whole.without("qpidd-n3"), world.site)
    world.site.script("n3", SCRIPT, "start", "")  # for the first start all are asked
    world.rgmanager.boot("n1", "n2")
    with Load(world.lab) as load:
        load.wait_confirmed(100)
        world.rgmanager.boot("n3")
        before = {node: world.site.pid(node) for node in ("n1", "n2")}
        world.rgmanager.update(whole)
        assert {node: world.site.pid(node) for node in ("n1", "n2")} == before
        assert load.finish().complaints() == []
    world.audit()
