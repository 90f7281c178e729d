"""The virtual IP of `qpid-ha-agent run`: agents of two machines with a cable between them, over scripted brokers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from network_namespaces import Machine, why_not_here
from qpid_ha_agent.control import ControlClient
from running_agent import RunningAgent, wait_until

WHY_NOT_HERE = why_not_here()
pytestmark = pytest.mark.skipif(bool(WHY_NOT_HERE), reason=WHY_NOT_HERE)

ADDRESS = "10.9.0.100/24"


class Site:
    """One machine with its agent and its broker."""

    def __init__(self, machine: Machine, agent: RunningAgent) -> None:
        self.machine = machine
        self.agent = agent

    def has_address(self) -> bool:
        return f"inet {ADDRESS}" in self.machine.ip("-4", "addr", "show", "eth0")

    def wait_for_address(self, *, is_here: bool = True) -> float:
        return wait_until(lambda: self.has_address() == is_here, self.agent.log)


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with Machine() as one, Machine() as two:
        one.plug("eth0", two, "eth0")
        for host, machine in enumerate((one, two), start=1):
            machine.ip("addr", "add", f"10.9.0.{host}/24", "dev", "eth0")
            machine.wait_for_carrier("eth0")
        yield one, two


@pytest.fixture
def sites(machines: tuple[Machine, Machine], tmp_path: Path) -> Iterator[tuple[Site, Site]]:
    """The first has the primary."""
    with ExitStack() as stack:
        found: list[Site] = []
        for name, machine in zip("ab", machines, strict=True):
            settings = {"ha.virtual-ip": f"{ADDRESS}@eth0"}
            agent = stack.enter_context(RunningAgent(tmp_path, name, machine.namespace, **settings))
            agent.wait_for_line("the broker is ready" if found else "the broker is primary")
            found.append(Site(machine, agent))
        yield found[0], found[1]


def test_the_address_is_where_the_primary_is(sites: tuple[Site, Site]) -> None:
    first, second = sites
    first.wait_for_address()
    assert not second.has_address()

    os.kill(first.agent.broker_pid, signal.SIGKILL)
    assert second.wait_for_address() < 5.0
    assert not first.has_address()

    first.agent.wait_for("ready")
    assert second.agent.stop() == 0
    first.wait_for_address()
    assert not second.has_address()


def test_it_follows_a_move_by_hand(sites: tuple[Site, Site]) -> None:
    first, second = sites
    first.wait_for_address()
    with ControlClient(second.agent.control_socket) as control:
        control.call("promote")
    second.wait_for_address()
    assert not first.has_address()


def test_one_that_is_lost_is_put_right_and_one_that_was_left_behind_is_taken_down(sites: tuple[Site, Site]) -> None:
    first, second = sites
    first.wait_for_address()
    first.machine.ip("addr", "del", ADDRESS, "dev", "eth0")
    first.agent.wait_for_line("it is put right")
    first.wait_for_address()

    first.agent.process.kill()  # nobody is there to take it down
    first.agent.process.wait()
    os.kill(first.agent.broker_pid, signal.SIGKILL)
    second.agent.wait_for("primary")
    second.agent.wait_for_line(f"the virtual IP {ADDRESS} is in use by another machine")
    first.agent.restart()
    second.wait_for_address()
    assert not first.has_address()


def test_it_does_not_come_up_while_another_machine_has_it(machines: tuple[Machine, Machine], tmp_path: Path) -> None:
    here, neighbour = machines
    neighbour.ip("addr", "add", ADDRESS, "dev", "eth0")
    with RunningAgent(tmp_path, "a", here.namespace, **{"ha.virtual-ip": ADDRESS}) as agent:
        agent.wait_for_line(f"the virtual IP {ADDRESS} is in use by another machine")
        site = Site(here, agent)
        assert agent.status()["state"] == "primary"
        assert not site.has_address()
        neighbour.ip("addr", "del", ADDRESS, "dev", "eth0")
        site.wait_for_address()
