"""Machines with several brokers each, as processes: clients at a shared port, who dies, and what is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from admin_tool import qpid_ha
from blocking_client import BlockingClient
from failover_load import FailoverLoad
from limits import LIMIT_S
from polling import wait_until
from qpid_ha_agent.workers import die_with_parent
from qpid_ha_demo.cluster import Facts
from running_machines import RunningMachines

CLIENTS = 24
"""That all of them come to one of two workers by chance happens once in eight million times."""


@pytest.fixture
def two_machines(tmp_path: Path) -> Iterator[RunningMachines]:
    """With two workers each, and two sets, of which each worker of a machine has one."""
    with RunningMachines(tmp_path, 2, 2, {"ha.clients": "proxy"}, stores=True) as cluster:
        controller = cluster.primary()
        for name in ("one", "two"):
            controller.ask("sets", action="create", name=name)
            arguments = {"qpid.resource-set": name}
            controller.ask("queues", action="create", name=f"queue-{name}", arguments=arguments)
        cluster.wait_whole("one", "two")
        yield cluster


def machine_of(worker: str) -> str:
    return worker.partition(".")[0]


def replicas_by_machine(facts: Facts) -> list[str]:
    return sorted(machine_of(name) for name in facts["replicas"])


def test_a_worker_that_is_killed_loses_nothing_and_comes_back_and_the_machine_serves_at_one_port(
    two_machines: RunningMachines,
) -> None:
    cluster = two_machines
    before = cluster.sets()
    assert all(replicas_by_machine(facts) == ["node1", "node2"] for facts in before.values())
    victim = before["one"]["primary"]
    with ExitStack() as stack:
        # All begin at one port: half of their links belong to the other machine, or to another worker of this one.
        loads = [stack.enter_context(FailoverLoad(cluster.urls, f"queue-{name}", rate=200)) for name in before]
        for load in loads:
            load.wait_confirmed(50)
        pid = cluster.workers[victim].pid
        os.kill(pid, signal.SIGKILL)

        def next_primary() -> str:
            return str(cluster.sets().get("one", {}).get("primary", ""))  # nobody is the controller for a moment

        wait_until(lambda: next_primary() not in (victim, ""), lambda: f"{cluster.sets()}", LIMIT_S)
        assert machine_of(next_primary()) != machine_of(victim)
        wait_until(lambda: cluster.workers[victim].pid not in (0, pid), lambda: "it is not started again", LIMIT_S)
        cluster.wait_settled()
        after = cluster.wait_whole("one", "two")
        assert {name: facts["replicas"].keys() for name, facts in after.items()} == {
            name: facts["replicas"].keys() for name, facts in before.items()
        }
        for load in loads:
            audit = load.finish()
            assert load.unconfirmed == 0, load.publisher.problems[-3:]
            assert audit.is_flawless, audit


def test_of_each_machine_one_worker_is_in_sync_with_default_and_clients_come_to_all(
    two_machines: RunningMachines,
) -> None:
    cluster = two_machines

    def is_one_of_each() -> bool:
        return sorted(map(machine_of, cluster.primary().ask("status")["members"])) == ["node1", "node2"]

    wait_until(is_one_of_each, lambda: f"{cluster.states()}", LIMIT_S)
    machine = cluster.machines[0]
    before = [int(worker.ask("query")["connections"]) for worker in machine.workers]
    with ExitStack() as stack:
        for _ in range(CLIENTS):
            stack.enter_context(BlockingClient(machine.url))
        after = [int(worker.ask("query")["connections"]) for worker in machine.workers]
    assert all(more > less for more, less in zip(after, before, strict=True)), (before, after)


def test_a_machine_that_is_stopped_hands_over_and_leaves_no_process(two_machines: RunningMachines) -> None:
    cluster = two_machines
    stopped, other = cluster.machines
    assert stopped.process is not None
    left = psutil.Process(stopped.process.pid).children(recursive=True)

    assert stopped.stop() == 0
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert "SIGKILL" not in stopped.log()
    wait_until(lambda: "primary" in [each.state for each in other.workers], other.log, LIMIT_S)
    with BlockingClient(other.url) as client:
        assert client.send("queue-one", "it goes on")


def test_each_worker_is_restarted_by_itself_under_load_and_its_agent_with_it(two_machines: RunningMachines) -> None:
    cluster = two_machines
    before = {name: worker.pid for name, worker in cluster.workers.items()}
    agents = [child.pid for machine in cluster.machines for child in machine.agents()]
    with FailoverLoad(cluster.urls, "queue-one", rate=200) as load:
        load.wait_confirmed(50)
        done = qpid_ha("restart", "--all", QPID_HA_CONFIG=str(cluster.machines[0].config))
        assert done.exit_code == 0, done.output
        audit = load.finish()
    assert audit.is_flawless, audit
    assert load.unconfirmed == 0
    cluster.wait_settled()
    after = {name: worker.pid for name, worker in cluster.workers.items()}
    assert not set(before.values()) & set(after.values())
    assert [child.pid for machine in cluster.machines for child in machine.agents()] == agents, "each began anew"


def test_a_machine_with_one_broker_gets_a_second_one_without_a_stop_and_keeps_what_it_has(tmp_path: Path) -> None:
    with RunningMachines(tmp_path, 2, 2, {"ha.clients": "proxy"}, stores=True, begin_alone=True) as cluster:
        controller = cluster.primary()
        controller.ask("sets", action="create", name="one")
        controller.ask("queues", action="create", name="queue-one", arguments={"qpid.resource-set": "one"})
        cluster.wait_whole("one")
        with FailoverLoad(cluster.urls, "queue-one", rate=200, durable=True) as load:
            load.wait_confirmed(50)
            for machine in cluster.machines:
                assert machine.stop() == 0
                machine.write(is_alone=False)
                machine.start()
                cluster.wait_settled()
                cluster.wait_whole("one")
                load.wait_confirmed(50)
            audit = load.finish()
        assert audit.is_flawless, audit
        assert sorted(cluster.sets()["one"]["replicas"]) == ["node1", "node2"], "the first worker is who was there"
        controller = cluster.primary()
        controller.ask("sets", action="create", name="two", replicas=["node1.2", "node2.2"])
        cluster.wait_whole("one", "two")


def test_agents_die_with_who_sees_to_them_and_the_next_ones_take_care_of_the_brokers(
    two_machines: RunningMachines,
) -> None:
    cluster = two_machines
    machine = cluster.machines[0]
    assert machine.process is not None
    agents = machine.agents()
    brokers = [worker.pid for worker in machine.workers]

    machine.process.kill()
    machine.process.wait()
    _, alive = psutil.wait_procs(agents, LIMIT_S)
    assert not alive
    machine.start()
    wait_until(lambda: machine.log().count("a broker runs already") == len(brokers), machine.log, LIMIT_S)
    assert [worker.pid for worker in machine.workers] == brokers
    cluster.wait_settled()


def test_an_agent_whose_parent_is_dead_before_it_can_ask_to_die_with_it_ends() -> None:
    child = os.fork()
    if not child:
        die_with_parent(os.getppid() + 1)  # it had another one
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
