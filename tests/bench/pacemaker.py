"""Under a real Pacemaker, in the lab of tests/lab: what a monitor costs, and how long clients wait for whom.

Three nodes with fencing, the resources of docs/pacemaker.md, Corosync's token of 1000 ms; a producer and a consumer of
ordinary Proton clients on a fourth machine use the virtual address.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from bench.failover_phases import Logs, PhaseMissing, node_lost_after_s, phases
from bench.figures import Measurement
from bench.load_client import BenchError
from bench.scenario import Measure, Scenario
from lab.cluster import Cluster, NotInTime
from lab.generations import record
from lab.load import Load, LoadProblem
from lab.machines import MachineError
from lab.netns.commands import CommandFailed
from lab.netns.control import SwitchError
from lab.netns.namespace_lab import what_is_missing
from lab.plan import VIRTUAL_ADDRESS, Plan
from lab.stage import RESOURCES, Stage
from lab.wheels import NoWheels

_PROBLEMS: Final = (MachineError, SwitchError, CommandFailed, NoWheels, NotInTime, LoadProblem, PhaseMissing)
_CALM_MESSAGES: Final = 50
_WELL_LIMIT_S: Final = 120.0
_MONITOR: Final = """
import json, os, sys, time
meta = {"timeout": "20000", "interval": "10000", "role": sys.argv[2], "on_node": sys.argv[1], "name": "monitor"}
environment = {**os.environ, "OCF_ROOT": "/usr/lib/ocf", "OCF_RA_VERSION_MAJOR": "1", "OCF_RA_VERSION_MINOR": "1",
    "OCF_RESOURCE_INSTANCE": "broker", "OCF_RESOURCE_TYPE": "qpid-ha", "OCF_RESOURCE_PROVIDER": "qpid-ha",
    "OCF_RESKEY_config": "/etc/qpid-ha/qpid-ha.yaml", "OCF_RESKEY_virtual_ip": sys.argv[3]}
environment |= {f"OCF_RESKEY_CRM_meta_{name}": value for name, value in meta.items()}
agent, rows, ticks = "/usr/lib/ocf/resource.d/qpid-ha/qpid-ha", [], os.sysconf("SC_CLK_TCK")
def server_s():
    with open("/run/qpid-ha-agent/broker.server") as pid, open(f"/proc/{pid.read().strip()}/stat") as stat:
        return sum(int(word) for word in stat.read().rpartition(")")[2].split()[11:15]) / ticks
before_s = server_s()
for _ in range(int(sys.argv[4])):
    began = time.monotonic()
    pid = os.posix_spawn(agent, [agent, "monitor"], environment)
    _, status, usage = os.wait4(pid, 0)
    rows.append([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, time.monotonic() - began])
each_s = (server_s() - before_s) / len(rows)
print(json.dumps([[code, own_s + each_s, elapsed_s] for code, own_s, elapsed_s in rows]))
"""
"""Runs on a node: the agent as Pacemaker runs it. The processor time includes the children it has waited for, and an
equal share of what the action server and its children took."""


@contextmanager
def lab_cluster() -> Iterator[Cluster]:
    """A lab of one's own, and its cluster is well. What goes wrong in it is a BenchError."""
    if missing := what_is_missing():
        raise BenchError(missing)
    try:
        stage = Stage.set_up(Plan())
        try:
            yield stage.fresh(*RESOURCES)
        finally:
            stage.lab.down()
    except _PROBLEMS as problem:
        raise BenchError(f"{type(problem).__name__}: {problem}") from problem


def calm(cluster: Cluster, load: Load) -> str:
    """The primary of a cluster that has nothing to do but to serve."""
    cluster.wait_well(_WELL_LIMIT_S)
    cluster.cleanup()
    primary = cluster.primary()
    cluster.lab.output(primary, "crm_resource", "--wait", timeout_s=60)
    load.wait_confirmed(_CALM_MESSAGES)
    return cluster.primary()


# --- what a monitor costs


def measure_monitor(scenario: Scenario) -> Iterator[Measurement]:
    """On the primary's node, while Pacemaker's own monitors go on."""
    with lab_cluster() as cluster:
        node = cluster.primary()
        script = ("/opt/qpid-ha/bin/python", "-c", _MONITOR, node, "Promoted", f"{VIRTUAL_ADDRESS}/24")
        rows = json.loads(cluster.lab.output(node, *script, str(scenario.monitors + 1), timeout_s=300))
        for code, processor_s, elapsed_s in rows[1:]:  # the first one reads the files into the cache
            if code != 8:
                raise BenchError(f"the monitor answered {code}, and 8 means that this is the primary")
            yield Measurement("pacemaker_monitor_cpu", "monitor: CPU, with children", processor_s * 1000, "ms")
            yield Measurement("pacemaker_monitor", "monitor: elapsed", elapsed_s * 1000, "ms")


# --- how long clients wait


def _failovers(
    key: str, label: str, kind: str, count: int, strike: Callable[[Cluster, str], float]
) -> Iterator[Measurement]:
    """`strike` hits the primary's node, and says when. A row for the whole, and one for each phase."""
    with lab_cluster() as cluster, Load(cluster.lab) as load:
        for _ in range(count):
            old = calm(cluster, load)
            wall_ahead_s = time.time() - time.monotonic()
            struck_s = strike(cluster, old)
            elapsed_s = load.recovered_after(struck_s)
            began_s = struck_s + wall_ahead_s
            new = cluster.wait_promoted(*(node for node in cluster.lab.plan.members if node != old))
            parts = phases(kind, old, new, _logs(cluster, new), began_s, began_s + elapsed_s)
            yield Measurement(f"pacemaker_{key}", f"{label} to first confirmed publish", elapsed_s, "s")
            for name, seconds in parts._asdict().items():
                yield Measurement(f"pacemaker_{key}_{name}", f"    {name}", seconds, "s")
        _settle(load)


def _logs(cluster: Cluster, new: str) -> Logs:
    lab = cluster.lab
    pacemaker = {node: lab.log(node, "/var/log/pacemaker/pacemaker.log") for node in lab.members_on()}
    return Logs(pacemaker, lab.log(new, f"/var/log/qpid-ha/{new}.log"))


def _settle(load: Load) -> None:
    """A figure for a cluster that loses messages would be worth nothing."""
    complaints = load.finish().complaints()
    if complaints:
        raise BenchError("; ".join(complaints))


def _power_off(cluster: Cluster, node: str) -> float:
    struck_s = time.monotonic()
    cluster.lab.power_off(node)
    return struck_s


def measure_kill(scenario: Scenario) -> Iterator[Measurement]:
    """kill -9 of the primary's broker."""
    yield from _failovers("kill", "kill -9 of the broker", "process", scenario.cluster_kills, Cluster.kill_broker)


def measure_pause(scenario: Scenario) -> Iterator[Measurement]:
    """SIGSTOP of the primary's broker."""
    yield from _failovers("pause", "SIGSTOP of the broker", "process", scenario.cluster_pauses, Cluster.freeze_broker)


def measure_power_off(scenario: Scenario) -> Iterator[Measurement]:
    """The primary's node loses its power."""
    yield from _failovers("power_off", "node power-off", "node", scenario.power_offs, _power_off)


def measure_backup_power_off(scenario: Scenario) -> Iterator[Measurement]:
    """A backup's node loses its power: the primary goes on without it once the record in the CIB says so, and nobody
    can change that before Corosync has given the node up."""
    with lab_cluster() as cluster, Load(cluster.lab) as load:
        for _ in range(scenario.power_offs):
            yield from _power_off_a_backup(cluster, load)
        _settle(load)


def _power_off_a_backup(cluster: Cluster, load: Load) -> Iterator[Measurement]:
    primary = calm(cluster, load)
    lost = cluster.backups()[0]
    wall_ahead_s = time.time() - time.monotonic()
    struck_s = _power_off(cluster, lost)
    cluster.wait(lambda: lost not in record(cluster, primary).members, f"the record lets {lost} go")
    load.wait_confirmed(_CALM_MESSAGES)
    given_up_s = node_lost_after_s(lost, _logs(cluster, primary), struck_s + wall_ahead_s)
    outage_s = load.outage(struck_s)
    note = f"Corosync gave the node up after {given_up_s:.2f} s"
    label = "power-off of a backup's node: longest gap of clients"
    yield Measurement("pacemaker_backup_power_off", label, outage_s, "s", note)


def measure_move(scenario: Scenario) -> Iterator[Measurement]:
    """The primary is moved by an administrator: `outage` is the longest time without a confirmation."""
    with lab_cluster() as cluster, Load(cluster.lab) as load:
        for _ in range(scenario.moves):
            old = calm(cluster, load)
            target = cluster.backups()[0]
            told_before = _told(load)
            wall_ahead_s = time.time() - time.monotonic()
            ordered_s = time.monotonic()
            cluster.move(target)
            elapsed_s = load.recovered_after(ordered_s)
            cluster.wait_promoted(target)
            load.wait_confirmed(_CALM_MESSAGES)
            began_s = ordered_s + wall_ahead_s
            parts = phases("order", old, target, _logs(cluster, target), began_s, began_s + elapsed_s)
            errors = len(_told(load)) - len(told_before)
            yield Measurement("pacemaker_move", "planned move: longest gap of clients", load.outage(ordered_s), "s")
            yield Measurement("pacemaker_move_errors", "    client errors beyond a reconnect", errors, "")
            yield Measurement("pacemaker_move_whole", "    from the command to first confirmed publish", elapsed_s, "s")
            for name, seconds in parts._asdict().items():
                yield Measurement(f"pacemaker_move_{name}", f"        {name}", seconds, "s")
            cluster.unmove()
        _settle(load)


def _told(load: Load) -> list[Any]:
    """What brokers told clients as an error: "connect again" is none, Proton does not pass it on."""
    return list(load.ask("report")["problems"])


LAB_MEASURES: Final[dict[str, Measure]] = {
    "pacemaker-monitor": measure_monitor,
    "pacemaker-kill": measure_kill,
    "pacemaker-power-off": measure_power_off,
    "pacemaker-backup-power-off": measure_backup_power_off,
    "pacemaker-pause": measure_pause,
    "pacemaker-move": measure_move,
}
