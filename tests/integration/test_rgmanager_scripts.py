"""The scripts of rgmanager/ against real brokers on loopback: each answer, and the stories that need no real network.

With addresses, nodes that are switched off and clients, the same scripts are driven in tests/lab.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from failover_load import FailoverLoad
from lab.rgmanager_conf import read_conf
from lab.rgmanager_model import Rgmanager, State
from loopback_nodes import SCRIPTS, LoopbackNodes, loopback_nodes
from running_agent import wait_until

PRIMARY = "qpidd-primary"
NODES = ("node1", "node2", "node3")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[LoopbackNodes]:
    with loopback_nodes(tmp_path) as found:
        yield found


@pytest.fixture
def manager(nodes: LoopbackNodes) -> Rgmanager:
    """No broker runs yet."""
    return Rgmanager(read_conf(SCRIPTS / "cluster.conf"), nodes)


@pytest.fixture
def running(manager: Rgmanager, nodes: LoopbackNodes) -> Rgmanager:
    """One primary, and all others ready."""
    manager.boot(*NODES)
    nodes.cluster.wait_whole()
    return manager


# --- one script, asked once


def test_a_broker_that_was_never_started_is_stopped_and_is_no_primary(nodes: LoopbackNodes) -> None:
    assert nodes.script("node1", "qpidd", "stop").returncode == 0
    assert nodes.script("node1", "qpidd-primary", "stop").returncode == 0
    assert nodes.script("node1", "qpidd", "status").returncode == 3
    assert nodes.script("node1", "qpidd-primary", "status").returncode == 3


def test_the_life_of_a_broker_in_exit_codes(nodes: LoopbackNodes) -> None:
    for _ in range(2):  # each is the same the second time
        assert nodes.script("node1", "qpidd", "start").returncode == 0
    assert nodes.script("node1", "qpidd", "status").returncode == 0
    assert nodes.script("node1", "qpidd-primary", "status").returncode == 3

    nodes.kill("node1")
    assert nodes.script("node1", "qpidd", "status").returncode == 1  # it died
    assert nodes.script("node1", "qpidd-primary", "status").returncode == 3
    assert nodes.script("node1", "qpidd", "try-restart").returncode == 0
    assert nodes.pid("node1") == 0

    assert nodes.script("node1", "qpidd", "restart").returncode == 0
    old = nodes.pid("node1")
    assert nodes.script("node1", "qpidd", "try-restart").returncode == 0
    assert nodes.pid("node1") not in (0, old)
    for _ in range(2):
        assert nodes.script("node1", "qpidd", "stop").returncode == 0
        assert nodes.script("node1", "qpidd", "status").returncode == 3


def test_the_life_of_a_primary_in_exit_codes(nodes: LoopbackNodes) -> None:
    for node in NODES:
        nodes.script(node, "qpidd", "start")
    for _ in range(2):
        assert nodes.script("node1", "qpidd-primary", "start").returncode == 0
        assert nodes.script("node1", "qpidd-primary", "status").returncode == 0
    for _ in range(2):
        assert nodes.script("node1", "qpidd-primary", "stop").returncode == 0
        assert nodes.script("node1", "qpidd-primary", "status").returncode == 3
    assert nodes.script("node1", "qpidd", "status").returncode == 0


def test_a_promotion_without_a_broker_waits_a_moment_and_says_so(nodes: LoopbackNodes) -> None:
    done = nodes.script("node1", "qpidd-primary", "start", QPID_HA_FIRST_START_TIMEOUT="200ms")
    assert done.returncode == 7
    assert done.stderr.startswith("qpidd-primary: there is no broker to promote: ")


def test_a_broker_that_lost_its_memory_is_refused_with_its_own_sentence(nodes: LoopbackNodes) -> None:
    for node in NODES:
        nodes.script(node, "qpidd", "start")
    nodes.script("node1", "qpidd-primary", "start")
    nodes.cluster.wait_whole()
    nodes.kill("node1", signal.SIGSTOP)
    nodes.kill("node3")
    nodes.script("node3", "qpidd", "start")

    began_s = time.monotonic()
    done = nodes.script("node3", "qpidd-primary", "start")
    assert done.returncode == 1
    assert done.stderr == "qpidd-primary: this broker holds no data, and broker2 does: promote that one\n"
    assert time.monotonic() - began_s < 15  # there is nothing to wait for


def test_a_silent_broker_is_unknown_and_is_killed_when_it_may_be_primary(nodes: LoopbackNodes) -> None:
    for node in NODES:
        nodes.script(node, "qpidd", "start")
    nodes.script("node1", "qpidd-primary", "start")
    nodes.kill("node1", signal.SIGSTOP)
    began_s = time.monotonic()
    assert nodes.script("node1", "qpidd", "status", QPID_HA_HANG_TIMEOUT="1s").returncode == 4
    assert nodes.script("node1", "qpidd-primary", "status", QPID_HA_HANG_TIMEOUT="1s").returncode == 4
    assert time.monotonic() - began_s < 15  # and not as long as a start may take
    assert nodes.script("node1", "qpidd-primary", "stop").returncode == 0
    assert nodes.pid("node1") == 0


@pytest.mark.parametrize("script", ["qpidd", "qpidd-primary"])
@pytest.mark.parametrize("arguments", [(), ("start", "now")])
def test_no_argument_or_more_than_one_is_a_usage_error(
    nodes: LoopbackNodes, script: str, arguments: tuple[str, ...]
) -> None:
    done = nodes.script("node1", script, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"usage: {script} {{start|stop|status|") or f"{script}: usage: " in done.stderr


@pytest.mark.parametrize("script", ["qpidd", "qpidd-primary"])
@pytest.mark.parametrize("action", ["reload", "jump"])
def test_an_action_that_there_is_not_has_a_code_of_its_own(nodes: LoopbackNodes, script: str, action: str) -> None:
    assert nodes.script("node1", script, action).returncode == 3


def test_a_node_without_the_agent_lets_the_service_go_elsewhere(nodes: LoopbackNodes, tmp_path: Path) -> None:
    """A start that fails is followed by a stop; were that to fail too, the service would be `failed` for good."""
    bare = str(tmp_path)
    assert [
        nodes.script("node1", "qpidd-primary", action, PATH=bare).returncode for action in ("start", "stop", "status")
    ] == [5, 0, 4]


def test_a_node_without_a_configuration_lets_the_service_go_elsewhere(nodes: LoopbackNodes) -> None:
    nowhere = "/nonexistent/qpid-ha.yaml"
    for script in ("qpidd", "qpidd-primary"):
        codes = [
            nodes.script("node1", script, each, QPID_HA_CONFIG=nowhere).returncode
            for each in ("start", "stop", "status")
        ]
        assert codes == [6, 0, 4]


def test_a_running_broker_is_stopped_also_when_its_configuration_is_broken(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start")
    nodes.broker("node1").config.write_text("name: [", encoding="utf-8")
    assert nodes.script("node1", "qpidd", "status").returncode == 0
    assert nodes.script("node1", "qpidd", "stop").returncode == 0
    assert nodes.pid("node1") == 0
    assert nodes.script("node1", "qpidd", "start").returncode == 6


def test_nonsense_in_the_settings_is_named(nodes: LoopbackNodes) -> None:
    done = nodes.script("node1", "qpidd", "start", QPID_HA_START_TIMEOUT="soon")
    assert done.returncode == 6
    assert "QPID_HA_START_TIMEOUT=soon" in done.stderr


def test_a_broker_that_cannot_start_says_why(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start")
    config = nodes.broker("node2").config
    config.write_text(config.read_text(encoding="utf-8") + "lisen: []\n", encoding="utf-8")
    done = nodes.script("node2", "qpidd", "start")
    assert done.returncode == 6
    assert "lisen" in done.stderr


@pytest.mark.parametrize("action", ["restart", "try-restart"])
@pytest.mark.parametrize("mistake", ["lisen: []\n", "name: ["], ids=["unknown key", "no YAML"])
def test_a_restart_with_a_broken_configuration_leaves_the_good_broker_running(
    nodes: LoopbackNodes, action: str, mistake: str
) -> None:
    nodes.script("node1", "qpidd", "start")
    pid = nodes.pid("node1")
    config = nodes.broker("node1").config
    sound = config.read_text(encoding="utf-8")
    config.write_text(sound + mistake, encoding="utf-8")
    done = nodes.script("node1", "qpidd", action)
    assert done.returncode == 6
    assert str(config) in done.stderr
    assert (nodes.pid("node1"), nodes.state("node1")) == (pid, "connecting")
    config.write_text(sound, encoding="utf-8")
    assert nodes.script("node1", "qpidd", action).returncode == 0
    assert nodes.pid("node1") not in (0, pid)


def test_a_restart_that_could_not_start_the_broker_again_does_not_stop_it(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start")
    pid = nodes.pid("node1")
    assert nodes.script("node1", "qpidd", "restart", QPID_HA_USER="no-such-user").returncode == 6
    assert nodes.pid("node1") == pid


def test_a_try_restart_replaces_a_broker_that_hangs(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start")
    pid = nodes.pid("node1")
    nodes.kill("node1", signal.SIGSTOP)
    assert nodes.script("node1", "qpidd", "try-restart", QPID_HA_HANG_TIMEOUT="1s").returncode == 0
    assert nodes.pid("node1") not in (0, pid)


# --- whose broker it is


def test_the_stop_of_another_nodes_service_leaves_the_broker_alone(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start", service="qpidd-node1")
    done = nodes.script("node1", "qpidd", "stop", service="qpidd-node2")
    assert done.returncode == 0
    assert "belongs to qpidd-node1" in done.stdout
    assert nodes.state("node1") == "connecting"
    assert nodes.script("node1", "qpidd", "stop", service="qpidd-node1").returncode == 0
    assert nodes.pid("node1") == 0


def test_an_operator_may_stop_any_broker(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start", service="qpidd-node1")
    assert nodes.script("node1", "qpidd", "stop").returncode == 0
    assert nodes.pid("node1") == 0


def test_a_broker_that_was_started_by_hand_belongs_to_the_service_that_starts_it_next(nodes: LoopbackNodes) -> None:
    nodes.script("node1", "qpidd", "start")
    pid = nodes.pid("node1")
    nodes.script("node1", "qpidd", "start", service="qpidd-node1")
    nodes.script("node1", "qpidd", "stop", service="qpidd-node2")
    assert nodes.pid("node1") == pid


def test_three_stops_at_once_stop_one_broker_once(nodes: LoopbackNodes) -> None:
    """As when rgmanager starts on a node where somebody left a broker running."""
    nodes.script("node1", "qpidd", "start")
    with ThreadPoolExecutor() as pool:
        stops = [pool.submit(nodes.script, "node1", "qpidd", "stop", service=f"qpidd-{node}") for node in NODES]
        stops.append(pool.submit(nodes.script, "node1", "qpidd-primary", "stop", service=PRIMARY))
        assert [stop.result().returncode for stop in stops] == [0, 0, 0, 0]
    assert nodes.pid("node1") == 0


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


def test_the_promotion_of_an_empty_cluster_waits_for_the_last_broker(nodes: LoopbackNodes) -> None:
    for node in ("node1", "node2"):
        nodes.script(node, "qpidd", "start")
    with ThreadPoolExecutor() as pool:
        promotion = pool.submit(nodes.script, "node1", "qpidd-primary", "start")
        nodes.script("node3", "qpidd", "start")
        assert promotion.result().returncode == 0
    assert nodes.state("node1") == "primary"


# --- as rgmanager drives them


def test_a_first_start_of_all_nodes_at_once_makes_one_primary(running: Rgmanager, nodes: LoopbackNodes) -> None:
    owner = running.owner(PRIMARY)
    assert nodes.state(owner) == "primary"
    assert nodes.holders == {owner}
    assert {running.state(service.name) for service in running.conf.services} == {State.STARTED}


def test_a_cluster_whose_nodes_come_one_by_one_has_a_primary_when_all_are_there(
    manager: Rgmanager, nodes: LoopbackNodes
) -> None:
    """An empty broker is not promoted before the others can be asked whether they hold anything."""
    nodes.variables["QPID_HA_FIRST_START_TIMEOUT"] = "300ms"
    manager.boot("node1", "node2")
    assert manager.state(PRIMARY) is State.STOPPED
    assert nodes.holders == set()
    del nodes.variables["QPID_HA_FIRST_START_TIMEOUT"]
    manager.boot("node3")
    assert nodes.state(manager.owner(PRIMARY)) == "primary"


def test_a_killed_primary_is_replaced_and_its_broker_comes_back_as_a_backup(
    running: Rgmanager, nodes: LoopbackNodes
) -> None:
    old = running.owner(PRIMARY)
    with FailoverLoad(nodes.cluster.urls, rate=200) as load:
        load.wait_confirmed(50)
        nodes.kill(old)
        running.poll(100)
        load.wait_confirmed(50)
        audit = load.finish()
    new = running.owner(PRIMARY)
    assert new != old
    assert (nodes.state(new), nodes.holders) == ("primary", {new})
    nodes.cluster.wait_whole()
    assert audit.is_flawless, audit


def test_a_hanging_primary_is_killed_before_another_one_is_promoted(running: Rgmanager, nodes: LoopbackNodes) -> None:
    old = running.owner(PRIMARY)
    hung = nodes.pid(old)
    nodes.kill(old, signal.SIGSTOP)
    running.poll(100)
    assert running.owner(PRIMARY) not in ("", old)
    nodes.cluster.wait_whole()
    assert nodes.pid(old) not in (0, hung)


def test_a_relocation_moves_the_primary_and_loses_nothing(running: Rgmanager, nodes: LoopbackNodes) -> None:
    old = running.owner(PRIMARY)
    target = next(node for node in NODES if node != old)
    with FailoverLoad(nodes.cluster.urls, rate=200) as load:
        load.wait_confirmed(50)
        running.relocate(PRIMARY, target)
        load.wait_confirmed(50)
        audit = load.finish()
    assert running.owner(PRIMARY) == target
    nodes.cluster.wait_whole()
    assert audit.is_flawless, audit


def test_a_new_node_in_the_configuration_stops_no_broker_that_serves(nodes: LoopbackNodes) -> None:
    whole = read_conf(SCRIPTS / "cluster.conf")
    manager = Rgmanager(whole.without("qpidd-node3"), nodes)
    nodes.script("node3", "qpidd", "start")  # so that the others can ask it
    manager.boot("node1", "node2")
    owner = manager.owner(PRIMARY)
    pids = [nodes.pid(node) for node in ("node1", "node2")]
    manager.boot("node3")
    assert nodes.state("node3") == "down"

    manager.update(whole)
    assert [nodes.pid(node) for node in ("node1", "node2")] == pids
    assert (manager.owner(PRIMARY), nodes.state(owner)) == (owner, "primary")
    nodes.cluster.wait_whole()


def test_stopping_rgmanager_on_the_primarys_node_moves_the_primary(running: Rgmanager, nodes: LoopbackNodes) -> None:
    old = running.owner(PRIMARY)
    running.leave(old)
    assert nodes.pid(old) == 0
    new = running.owner(PRIMARY)
    assert new not in ("", old)
    assert nodes.state(new) == "primary"
    running.boot(old)
    nodes.cluster.wait_whole()
    assert running.owner(PRIMARY) == new


def test_what_an_earlier_rgmanager_left_is_stopped_before_the_start(manager: Rgmanager, nodes: LoopbackNodes) -> None:
    for node in NODES:
        nodes.script(node, "qpidd", "start", service=f"qpidd-{node}")
    nodes.script("node2", "qpidd-primary", "start", service=PRIMARY)
    pids = [nodes.pid(node) for node in NODES]
    manager.boot(*NODES)
    assert not set(pids) & {nodes.pid(node) for node in NODES}
    wait_until(lambda: sorted(nodes.states()) == ["primary", "ready", "ready"], lambda: str(nodes.states()))
