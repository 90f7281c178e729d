"""The lab does what it says, and its audits see what they shall see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import audits
from lab.cluster import Cluster
from lab.generations import history
from lab.load import Load
from lab.machines import Lab, MachineError
from lab.netns.control import SwitchClient
from lab.netns.namespace_lab import STATE_VARIABLE
from lab.netns.places import Places
from lab.plan import CLIENT, VIRTUAL_ADDRESS
from lab.stage import Stage

TESTS = Path(__file__).resolve().parents[1]
OWNER = """
import sys, time
from pathlib import Path
from typing import Any
from lab.netns.namespace_lab import NamespaceLab
from lab.netns.places import Places
from lab.plan import Plan

lab = NamespaceLab.up(Plan(), Places(Path(sys.argv[1])))
lab.power_on("n1")
lab.power_on("n2")
lab.spawn("n1", "sleep", "1000")
print("up", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def machines(cluster: Cluster) -> Iterator[Lab]:
    """Those of a cluster that is well, on one network in the end."""
    yield cluster.lab
    cluster.lab.heal()


def reaches(lab: Lab, source: str, target: str) -> bool:
    """Does an ARP request go there, and its answer come back?"""
    asked = lab.run(source, "ping", "-c", "1", "-W", "1", lab.plan.address(target), check=False)
    return asked.returncode == 0


def wait_until(holds: Callable[[], bool], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def complaints(cluster: Cluster) -> str:
    return "\n".join(audits.audit(cluster))


# --- the lab


def test_nothing_is_left_of_a_lab_whose_owner_is_killed(stage: Stage, tmp_path: Path) -> None:
    """Nor when one of its machines has died before."""
    state = tmp_path / "lab"
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(state)], stdout=subprocess.PIPE, env=environment)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    client = SwitchClient(Places(state))
    switch, init = client.switch_pid(), client.init_pid("n2")
    os.kill(init, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{init}").exists())

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    wait_until(lambda: not state.exists())
    wait_until(lambda: not Path(f"/proc/{switch}").exists())


def test_two_labs_are_up_at_once_and_by_hand(stage: Stage, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), STATE_VARIABLE: str(tmp_path / "other")}

    def by_hand(*words: str) -> str:
        command = [sys.executable, "-m", "lab", *words]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    stage.lab.power_on(CLIENT)
    by_hand("up", "--machines-only")
    by_hand("power", CLIENT, "on")
    by_hand("exec", CLIENT, "touch", "/etc/of-the-other")

    assert by_hand("exec", CLIENT, "cat", "/etc/hostname") == f"{CLIENT}\n"
    assert stage.lab.run(CLIENT, "test", "-e", "/etc/of-the-other", check=False).returncode == 1
    assert not Path("/etc/of-the-other").exists()
    by_hand("down")
    assert not (tmp_path / "other").exists()
    assert stage.lab.is_on(CLIENT)


def test_who_is_cut_off_one_way_hears_nothing_and_is_heard(machines: Lab) -> None:
    says = "arping -c 1 -U -I eth0 10.77.0.12"  # nobody has to answer
    count = "cat /sys/class/net/eth0/statistics/rx_packets"
    machines.cut("n1", "n2")

    assert not reaches(machines, "n2", "n1")
    before = int(machines.output("n1", "bash", "-c", count))
    machines.shell("n2", says)
    assert int(machines.output("n1", "bash", "-c", count)) > before
    assert reaches(machines, "n2", "n3")

    machines.heal()
    assert reaches(machines, "n2", "n1")


def test_what_is_read_from_outside_is_what_ps_and_ip_show_inside(machines: Lab) -> None:
    """Of a broker that sleeps, too."""
    primary = next(machine for machine in machines.members_on() if VIRTUAL_ADDRESS in machines.addresses(machine))
    machines.output(primary, "pkill", "-STOP", "-x", "qpidd")
    shown = {process for process in Lab.processes(machines, primary) if "qpid" in process.arguments}
    seen = {process for process in machines.processes(primary) if "qpid" in process.arguments}
    machines.output(primary, "pkill", "-CONT", "-x", "qpidd")
    assert [process.state for process in seen if process.name == "qpidd"] == ["T"]
    lasting = {process for process in shown if process.state == "T" or "watching" in process.arguments}
    assert len(lasting) >= 2
    assert lasting <= seen

    assert machines.addresses(primary) == Lab.addresses(machines, primary)
    assert machines.addresses(CLIENT) == Lab.addresses(machines, CLIENT)


def test_a_partition_leaves_the_unnamed_with_the_first_group(machines: Lab) -> None:
    machines.partition(["n2"], ["n1"])
    assert not reaches(machines, "n1", "n2")
    assert not reaches(machines, CLIENT, "n1")
    assert reaches(machines, CLIENT, "n2")
    assert reaches(machines, "n3", "n2")


def test_a_machine_without_power_answers_nobody_and_keeps_its_disk(cluster: Cluster) -> None:
    lab = cluster.lab
    backup = cluster.backups()[0]
    lab.write(backup, "/etc/kept", "as it was")
    lab.power_off(backup)

    assert not reaches(lab, CLIENT, backup)
    with pytest.raises(MachineError, match="is off"):
        lab.output(backup, "true")
    assert lab.log(backup, "/etc/kept") == "as it was"
    cluster.wait(lambda: lab.is_on(backup), "the fence device switches it on again")
    cluster.wait(lambda: lab.read(backup, "/etc/kept") == "as it was", "it has its disk")


def test_a_command_that_hangs_is_ended_inside_its_machine(machines: Lab) -> None:
    with pytest.raises(MachineError, match="no end after"):
        machines.output("n1", "sleep", "4321", timeout_s=0.5)
    assert machines.run("n1", "pgrep", "-f", "^sleep 4321", check=False).returncode == 1


def test_the_admin_tool_in_a_machine_says_what_its_broker_says_from_outside(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> list[object]:
        nodes = cluster.lab.plan.members
        depths = [cluster.queue_depths(node) for node in nodes]
        facts = [[cluster.broker(node)[name] for name in ("name", "state", "last_lsn")] for node in nodes]
        return [cluster.states(), facts, depths, [history(cluster, node) for node in nodes]]

    with Load(cluster.lab) as load:
        load.wait_confirmed(1)
        load.finish()
    wait_until(lambda: not complaints(cluster))
    from_outside = said()
    monkeypatch.setattr(cluster.lab, "control_socket", lambda _machine: None)
    assert said() == from_outside


# --- its audits


@pytest.mark.explains("is in use by another machine")  # where a monitor of the primary comes while it is
def test_the_audits_see_a_second_holder_of_the_address(cluster: Cluster) -> None:
    backup = cluster.backups()[0]
    cluster.lab.output(backup, "ip", "addr", "add", f"{VIRTUAL_ADDRESS}/24", "dev", "eth0")
    assert "is on" in complaints(cluster)
    # The next monitor there takes it away, too.
    cluster.lab.run(backup, "ip", "addr", "del", f"{VIRTUAL_ADDRESS}/24", "dev", "eth0", check=False)


def test_the_audits_see_a_stray_broker(cluster: Cluster) -> None:
    backup = cluster.backups()[0]
    stray = cluster.lab.spawn(
        backup,
        *("qpidd", "--config", "/dev/null", "--name", "stray"),
        *("--control-socket", "/run/stray.sock", "--listen", "amqp://127.0.0.1:6000"),
    )
    cluster.wait(lambda: "should run 1 broker" in complaints(cluster), "the stray broker is seen")
    cluster.lab.output(backup, "pkill", "-f", "^[^ ]*python [^ ]*qpidd --config /dev/null")
    stray.communicate()


@pytest.mark.explains("Simulated failure")
def test_the_audits_see_a_failed_action_that_nobody_explains(cluster: Cluster) -> None:
    cluster.lab.output(
        cluster.backups()[0], "crm_resource", "--fail", "--resource", "broker", "--node", cluster.backups()[0]
    )
    cluster.wait(lambda: "unexplained failed action" in complaints(cluster), "the failure is seen")


def test_the_audits_see_replicas_that_differ(cluster: Cluster) -> None:
    backup = cluster.backups()[0]

    class OneMoreEvent(Cluster):
        def broker(self, machine: str) -> dict[str, Any]:
            facts = super().broker(machine)
            return {**facts, "last_lsn": facts["last_lsn"] + (machine == backup)}

    cluster.wait(lambda: not complaints(cluster), "no action of the agent is on its way any more")
    assert "the replicas differ in last_lsn" in complaints(OneMoreEvent(cluster.lab))
