"""The scripts of rgmanager/ with real brokers on loopback: what takes processes, and rgmanager's steps when one fails.

rgmanager is not run: its steps are written out, as docs/rgmanager.md tells them. Exit codes: tests/unit/test_lsb.py.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from failover_load import FailoverLoad
from loopback_nodes import LoopbackNodes, loopback_nodes
from running_agent import wait_until

PRIMARY = "qpidd-primary"
NODES = ("node1", "node2", "node3")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[LoopbackNodes]:
    with loopback_nodes(tmp_path) as made:
        yield made


def at_once(nodes: LoopbackNodes, *calls: tuple[str, str, str, str]) -> list[int]:
    """The exit codes of scripts that run side by side, as rgmanager runs its services. A call: node, script, action,
    and the service that it is of."""
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(nodes.script, node, script, action, service=service) for node, script, action, service in calls
        ]
        return [run.result().returncode for run in running]


def start_all(nodes: LoopbackNodes) -> None:
    """A broker on each node, and the primary on node1."""
    starts = [(node, "qpidd", "start", f"qpidd-{node}") for node in NODES]
    assert at_once(nodes, *starts, ("node1", PRIMARY, "start", PRIMARY)) == [0, 0, 0, 0]
    nodes.cluster.wait_whole()
    assert nodes.state("node1") == "primary"


# --- as rgmanager drives them


def test_the_primary_is_failed_over_moved_and_stopped_and_nothing_is_lost(nodes: LoopbackNodes) -> None:
    for node in NODES:  # what an earlier rgmanager left; one was started by hand, and every service's stop may end it
        nodes.script(node, "qpidd", "start", service="" if node == "node3" else f"qpidd-{node}")
    nodes.script("node2", PRIMARY, "start", service=PRIMARY)
    stops = [(node, "qpidd", "stop", f"qpidd-{owner}") for node in NODES for owner in NODES]
    assert set(at_once(nodes, *stops, *((node, PRIMARY, "stop", PRIMARY) for node in NODES))) == {0}
    assert set(nodes.states()) == {"down"}
    start_all(nodes)

    with FailoverLoad(nodes.cluster.urls, rate=200) as load:
        load.wait_confirmed(50)
        nodes.kill("node1")
        assert nodes.script("node1", PRIMARY, "status").returncode == 3
        assert nodes.script("node1", "qpidd", "status").returncode == 1
        assert at_once(nodes, ("node1", PRIMARY, "stop", PRIMARY), ("node1", "qpidd", "stop", "qpidd-node1")) == [0, 0]
        starts = (("node2", PRIMARY, "start", PRIMARY), ("node1", "qpidd", "start", "qpidd-node1"))
        assert at_once(nodes, *starts) == [0, 0]
        load.wait_confirmed(50)
        nodes.cluster.wait_whole()

        assert nodes.script("node2", PRIMARY, "stop", service=PRIMARY).returncode == 0  # clusvcadm -r
        assert nodes.script("node3", PRIMARY, "start", service=PRIMARY).returncode == 0
        load.wait_confirmed(50)
        nodes.cluster.wait_whole()

        # rgmanager is stopped on node3
        assert at_once(nodes, ("node3", "qpidd", "stop", "qpidd-node3"), ("node3", PRIMARY, "stop", PRIMARY)) == [0, 0]
        assert nodes.pid("node3") == 0
        assert nodes.script("node1", PRIMARY, "start", service=PRIMARY).returncode == 0
        assert nodes.script("node3", "qpidd", "start", service="qpidd-node3").returncode == 0
        load.wait_confirmed(50)
        nodes.cluster.wait_whole()
        account = load.finish()
    assert nodes.state("node1") == "primary"
    assert account.is_flawless, account


def test_a_hanging_primary_is_killed_before_another_one_is_promoted(nodes: LoopbackNodes) -> None:
    start_all(nodes)
    hung = nodes.pid("node1")
    nodes.kill("node1", signal.SIGSTOP)
    began_s = time.monotonic()
    for script in ("qpidd", PRIMARY):
        assert nodes.script("node1", script, "status", QPID_HA_HANG_TIMEOUT="1s").returncode == 4
    assert time.monotonic() - began_s < 15  # and not as long as a start may take
    assert nodes.script("node1", PRIMARY, "stop", service=PRIMARY).returncode == 0
    assert nodes.pid("node1") == 0
    assert nodes.script("node2", PRIMARY, "start", service=PRIMARY).returncode == 0
    for action in ("stop", "start"):
        assert nodes.script("node1", "qpidd", action, service="qpidd-node1").returncode == 0
    nodes.cluster.wait_whole()
    assert nodes.state("node2") == "primary"
    assert nodes.pid("node1") not in (0, hung)


# --- one broker


def test_the_life_of_a_broker_in_exit_codes(nodes: LoopbackNodes) -> None:
    for _ in range(2):  # each is the same the second time
        assert nodes.script("node1", "qpidd", "start").returncode == 0
    assert nodes.script("node1", "qpidd", "status").returncode == 0

    nodes.kill("node1")
    assert nodes.script("node1", "qpidd", "status").returncode == 1  # it died
    assert nodes.script("node1", "qpidd", "try-restart").returncode == 0
    assert nodes.pid("node1") == 0

    assert nodes.script("node1", "qpidd", "restart").returncode == 0
    old = nodes.pid("node1")
    assert nodes.script("node1", "qpidd", "try-restart").returncode == 0
    assert nodes.pid("node1") not in (0, old)
    for _ in range(2):
        assert nodes.script("node1", "qpidd", "stop").returncode == 0
        assert nodes.script("node1", "qpidd", "status").returncode == 3


@pytest.mark.parametrize(
    ("mistake", "named"), [("lisen: []\n", "lisen"), ("name: [", "YAML")], ids=["unknown key", "no YAML"]
)
def test_with_a_broken_configuration_a_good_broker_is_neither_restarted_nor_unstoppable(
    nodes: LoopbackNodes, mistake: str, named: str
) -> None:
    nodes.script("node1", "qpidd", "start")
    pid = nodes.pid("node1")
    config = nodes.broker("node1").config
    sound = config.read_text(encoding="utf-8")
    config.write_text(sound + mistake, encoding="utf-8")
    for action in ("restart", "try-restart"):
        done = nodes.script("node1", "qpidd", action)
        assert done.returncode == 6
        assert str(config) in done.stderr
        assert (nodes.pid("node1"), nodes.state("node1")) == (pid, "connecting")
    config.write_text(sound, encoding="utf-8")
    assert nodes.script("node1", "qpidd", "restart", QPID_HA_USER="no-such-user").returncode == 6
    assert nodes.pid("node1") == pid
    assert nodes.script("node1", "qpidd", "restart").returncode == 0
    assert nodes.pid("node1") not in (0, pid)

    config.write_text(sound + mistake, encoding="utf-8")
    assert nodes.script("node1", "qpidd", "status").returncode == 0
    assert nodes.script("node1", "qpidd", "stop").returncode == 0
    assert nodes.pid("node1") == 0
    done = nodes.script("node1", "qpidd", "start")
    assert (done.returncode, str(config) in done.stderr, named in done.stderr) == (6, True, True), done.stderr


def test_a_try_restart_replaces_a_broker_that_hangs(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start")
    pid = nodes.pid("node1")
    nodes.kill("node1", signal.SIGSTOP)
    assert nodes.script("node1", "qpidd", "try-restart", QPID_HA_HANG_TIMEOUT="1s").returncode == 0
    assert nodes.pid("node1") not in (0, pid)


def test_a_broker_that_is_just_starting_is_not_taken_for_one_that_hangs(nodes: LoopbackNodes) -> None:
    """When a broker died, rgmanager restarts it and takes the role away at the same time."""
    with ThreadPoolExecutor() as pool:
        start = pool.submit(nodes.script, "node1", "qpidd", "start")
        wait_until(lambda: nodes.pid("node1") > 0, lambda: "the broker has no process")
        pid = nodes.pid("node1")
        nodes.kill("node1", signal.SIGSTOP)  # a slow start
        stop = pool.submit(nodes.script, "node1", "qpidd-primary", "stop", QPID_HA_HANG_TIMEOUT="200ms")
        time.sleep(2.5)  # long enough for the script to look, to see no more than a process, and to lose its patience
        nodes.kill("node1", signal.SIGCONT)
        assert [start.result().returncode, stop.result().returncode] == [0, 0]
    assert nodes.pid("node1") == pid


# --- the shell scripts alone


@pytest.mark.parametrize("script", ["qpidd", "qpidd-primary"])
@pytest.mark.parametrize("arguments", [(), ("start", "now")])
def test_no_argument_or_more_than_one_is_a_usage_error(
    nodes: LoopbackNodes, script: str, arguments: tuple[str, ...]
) -> None:
    done = nodes.script("node1", script, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: {script} {{start|stop|status|") or f"{script}: usage: " in done.stderr


def test_a_node_without_the_agent_lets_the_service_go_elsewhere(nodes: LoopbackNodes, tmp_path: Path) -> None:
    """A start that fails is followed by a stop; were that to fail too, the service would be `failed` for good."""
    bare = str(tmp_path)
    assert [
        nodes.script("node1", "qpidd-primary", action, PATH=bare).returncode for action in ("start", "stop", "status")
    ] == [5, 0, 4]
