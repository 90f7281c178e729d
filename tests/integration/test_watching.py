"""Stories about the watcher: what it tells of one broker, when, and what it keeps to itself."""

from __future__ import annotations

import os
import pwd
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from child_process import child_process
from qpid_ha_agent import actions
from qpid_ha_agent.broker_process import BrokerProcess
from qpid_ha_agent.ocf import memory as memory_module
from qpid_ha_agent.ocf.agent import OcfAgent
from qpid_ha_agent.ocf.memory import DIRECTORY_VARIABLE, MemoryFile
from qpid_ha_agent.ocf.parameters import read_parameters
from qpid_ha_agent.pacemaker import watching
from qpid_ha_agent.pacemaker.watching import Watch
from qpid_ha_agent.sight import Sight
from running_agent import wait_until
from scripted_broker import ScriptedBroker
from scripted_pacemaker import NODE, ScriptedPacemaker

TIMEOUT_S = 20.0
HANG_S = 2.0
"""More than a broker takes to answer when the machine is busy."""
BACKUP = {"name": NODE, "state": "ready", "lsn": 100, "primary": "n2", "members": [NODE, "n2"]}
PRIMARY = BACKUP | {"state": "primary", "primary": NODE}


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as scripted:
        scripted.says(**BACKUP)
        actions.start(scripted.service, TIMEOUT_S)
        yield scripted


class Watching:
    """A watch of `broker` in a thread."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.is_end_wanted = False
        self.seen: queue.Queue[Sight] = queue.Queue()
        process = BrokerProcess.find(broker.control_socket)
        assert process is not None
        self.watch = Watch(process, broker.control_socket, HANG_S, lambda: self.is_end_wanted, self.seen.put)
        self._said: queue.Queue[str] = queue.Queue()
        self._thread = threading.Thread(target=lambda: self._said.put(self.watch.run()))
        self._thread.start()
        self.seen.get(timeout=TIMEOUT_S)

    def end(self) -> str:
        """What it said in the end."""
        said = self._said.get(timeout=TIMEOUT_S)
        self._thread.join()
        return said


def was_primary(watching_it: Watching) -> bool:
    """Asked anew each time: it changes behind the type checker's back."""
    return watching_it.watch.was_primary


# --- one broker


def test_a_death_is_told_by_the_kernel_and_not_by_the_next_look(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_EVERY_S", 10 * TIMEOUT_S)
    watching_it, pid = Watching(broker), broker.pid
    broker.send(signal.SIGKILL)

    assert f"process {pid}" in watching_it.end()


def test_a_process_that_dies_slowly_has_died_and_does_not_hang(tmp_path: Path) -> None:
    """Its sockets are closed before the kernel says that it is dead."""
    with child_process(["sleep", "60"]) as dying:
        watch = Watch(
            BrokerProcess(dying.pid, os.pidfd_open(dying.pid), None), tmp_path / "closed.sock", HANG_S,
            lambda: False, lambda _sight: None,
        )  # fmt: skip
        threading.Timer(0.3, dying.kill).start()

        assert f"process {dying.pid}" in watch.run()


def test_a_death_that_was_asked_for_is_no_news(broker: ScriptedBroker) -> None:
    watching_it = Watching(broker)
    watching_it.is_end_wanted = True
    broker.send(signal.SIGTERM)
    assert watching_it.end() == ""


def test_a_frozen_broker_is_told_after_hang_timeout(broker: ScriptedBroker) -> None:
    watching_it = Watching(broker)
    broker.send(signal.SIGSTOP)
    stopped_s = time.monotonic()

    assert f"no answer for {HANG_S:g} s" in watching_it.end()
    assert time.monotonic() - stopped_s >= HANG_S


def test_each_new_status_is_heard_and_the_last_one_says_whether_it_was_primary(broker: ScriptedBroker) -> None:
    watching_it = Watching(broker)
    assert not was_primary(watching_it)
    broker.says(**PRIMARY)
    assert watching_it.seen.get(timeout=TIMEOUT_S).is_primary

    broker.send(signal.SIGKILL)
    watching_it.end()
    assert was_primary(watching_it)
    assert watching_it.seen.empty()


def test_a_change_that_the_broker_tells_is_looked_at_at_once(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_EVERY_S", 10 * TIMEOUT_S)
    watching_it = Watching(broker)
    wait_until(lambda: watching_it.watch._news.fileno() >= 0, lambda: "it does not listen")
    broker.says(**PRIMARY)
    actions.demote(broker.service, "a test", TIMEOUT_S)  # the scripted one tells of it, and remains what it says
    assert watching_it.seen.get(timeout=TIMEOUT_S).is_primary
    watching_it.is_end_wanted = True
    broker.send(signal.SIGKILL)
    watching_it.end()


WAITING = BACKUP | {"state": "connecting", "primary": None, "restored": "dirty"}


@pytest.mark.parametrize(
    ("refused_among", "status", "tries"),
    [
        pytest.param([NODE, "n2"], WAITING, 1, id="the one that was missing after a loss of all power"),
        pytest.param([NODE, "n2", "n3"], WAITING, 0, id="who was asked then was restarted since, by its own refusal"),
        pytest.param(None, WAITING, 0, id="nothing was refused"),
        pytest.param([NODE, "n2"], BACKUP, 0, id="there is a primary"),
    ],
)
def test_a_refused_promotion_is_tried_again_when_somebody_answers_who_did_not_then(
    broker: ScriptedBroker, refused_among: list[str] | None, status: dict[str, object], tries: int
) -> None:
    """Nobody waits for the next monitor."""
    tried: list[Sight] = []
    found = BrokerProcess.find(broker.control_socket)
    assert found is not None
    watching_it = Watch(
        found, broker.control_socket, HANG_S, lambda: True, lambda _sight: None, lambda: refused_among, tried.append
    )
    broker.says(**status | {"others": {"n2": 0, "n3": 2}})
    watching_it._look()
    assert tried == []
    watching_it._look()
    assert len(tried) == tries


def test_a_broker_that_closes_the_connection_is_asked_again(broker: ScriptedBroker) -> None:
    """One that ended our connection for a reason of its own still answers."""
    watching_it = Watching(broker)
    watching_it.watch._client.close()
    broker.says(**BACKUP | {"lsn": 101})
    assert watching_it.seen.get(timeout=TIMEOUT_S).number("lsn") == 101
    watching_it.is_end_wanted = True
    broker.send(signal.SIGKILL)
    watching_it.end()


# --- the process, and what Pacemaker hears


class Told:
    """The watcher's program in a thread, with Pacemaker's tools as scripts."""

    def __init__(self, broker: ScriptedBroker, pacemaker: ScriptedPacemaker) -> None:
        self.broker = broker
        self.pacemaker = pacemaker
        self.memory = MemoryFile("broker", broker.directory / "state")
        with self.memory.changed() as memory:
            memory.control_socket, memory.score = str(broker.control_socket), "500"
        self._thread = threading.Thread(target=self._run)
        self.has_looked = threading.Event()

    def _run(self) -> None:
        watching.main(["broker", str(self.broker.control_socket), str(HANG_S)])

    def watch(self) -> None:
        """Until it has looked once, and told what it found."""
        self._thread.start()
        assert self.has_looked.wait(TIMEOUT_S)

    def end(self) -> list[str]:
        """Failures that were reported."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        return self.pacemaker.calls("crm_resource")


@pytest.fixture
def told(broker: ScriptedBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    pacemaker = ScriptedPacemaker(tmp_path, "broker")
    monkeypatch.setenv("PATH", pacemaker.path)
    environment = {
        "OCF_RESOURCE_INSTANCE": "broker",
        "OCF_RESKEY_CRM_meta_on_node": NODE,
        "OCF_RESKEY_config": str(broker.config),
        "OCF_RESKEY_log_file": str(broker.log_file),
        "OCF_RESKEY_user": pwd.getpwuid(os.geteuid()).pw_name,
        DIRECTORY_VARIABLE: str(broker.directory / "state"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(watching, "FAILOVER_FIRST_S", 1.5)
    monkeypatch.setattr(watching, "TELL_AGAIN_AFTER_S", 0.01)
    told, look = Told(broker, pacemaker), Watch._look

    def observed_look(watch: Watch) -> None:
        look(watch)
        told.has_looked.set()

    monkeypatch.setattr(Watch, "_look", observed_look)
    return told


def test_a_backup_that_loses_its_primary_is_published_before_pacemaker_asks(told: Told) -> None:
    told.watch()
    told.broker.says(**BACKUP | {"state": "connecting", "primary": "", "generation": 3, "epoch": 7})
    wait_until(lambda: bool(told.pacemaker.position()), lambda: "nothing is published")
    assert told.pacemaker.position() == "3:7:100:connecting:in-sync "
    told.broker.send(signal.SIGKILL)
    told.end()


def test_the_death_of_a_primary_takes_its_position_back(told: Told) -> None:
    told.pacemaker.publish(NODE, "3:7:100:connecting:in-sync ")
    told.broker.says(**PRIMARY)
    told.watch()
    told.broker.send(signal.SIGKILL)
    told.end()
    assert told.pacemaker.position() == ""


def test_the_death_of_a_backup_is_reported_once(told: Told) -> None:
    told.watch()
    told.broker.send(signal.SIGKILL)
    assert told.end() == [f"crm_resource --fail --resource broker --node {NODE}"]
    assert told.pacemaker.calls("crm_attribute") == []


def test_why_a_broker_failed_stands_beside_its_score_because_the_report_cannot_say_it(told: Told) -> None:
    told.watch()
    with told.broker.log_file.open("a", encoding="utf-8") as log:
        log.write("qpidd: the store in /d cannot be loaded: it is damaged\n")
    told.broker.send(signal.SIGKILL)
    told.end()
    assert re.fullmatch(r"[0-9:]{8}Z its process [0-9]+ ended: the store in /d .* damaged", told.pacemaker.failure())
    assert "cannot be loaded" in told.memory.read().failure
    agent = OcfAgent(read_parameters())
    agent._forget_failure()
    assert told.pacemaker.failure() == ""


def test_a_state_that_lasts_is_told_once_so_that_a_score_may_fall(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LASTS_AFTER_S", 0.0)
    lasting: list[Sight] = []
    found = BrokerProcess.find(broker.control_socket)
    assert found is not None
    watch = Watch(found, broker.control_socket, HANG_S, lambda: True, lambda _sight: None, lasts=lasting.append)
    for lsn in (100, 101):
        broker.says(**BACKUP | {"lsn": lsn})
        watch._look()
    broker.says(**WAITING)
    watch._look()
    monkeypatch.setattr(watching, "LASTS_AFTER_S", 100.0)
    broker.says(**BACKUP)
    watch._look()
    assert [sight.text("state") for sight in lasting] == ["ready", "connecting"]


def test_a_dead_primary_is_ruled_out_first_and_reported_later(told: Told) -> None:
    """Pacemaker recovers a failed member before it promotes another one; it shall be the other way round."""
    told.broker.says(**PRIMARY)
    told.watch()
    killed_s = time.monotonic()
    told.broker.send(signal.SIGKILL)
    while told.pacemaker.score() != "-INFINITY":
        assert time.monotonic() - killed_s < TIMEOUT_S
        assert told.pacemaker.calls("crm_resource") == []
    assert len(told.end()) == 1
    assert time.monotonic() - killed_s >= watching.FAILOVER_FIRST_S


def kill_primary(told: Told) -> None:
    """Until it is ruled out; it is reported later."""
    told.broker.says(**PRIMARY)
    told.watch()
    told.broker.send(signal.SIGKILL)
    while told.pacemaker.score() != "-INFINITY":
        time.sleep(0.01)


def test_who_was_recovered_meanwhile_is_not_reported(told: Told) -> None:
    kill_primary(told)
    with told.memory.changed() as memory:
        memory.stops += 1  # as the stop of a recovery does
    assert told.end() == []


def test_a_broker_that_was_started_meanwhile_without_a_stop_is_not_taken_for_the_dead_one(told: Told) -> None:
    kill_primary(told)
    command = [sys.executable, "-c", "input()", "--control-socket", os.fspath(told.broker.control_socket)]
    with child_process(command, stdin=subprocess.PIPE) as successor:
        assert told.end() == []
        successor.communicate(b"\n")


def test_a_stop_that_was_asked_for_is_not_reported(told: Told) -> None:
    told.watch()
    with told.memory.changed() as memory:
        memory.stops += 1
    told.broker.send(signal.SIGTERM)
    assert told.end() == []


def test_a_cluster_that_cannot_be_told_is_told_again_for_a_while(told: Told) -> None:
    told.watch()
    told.pacemaker.fail()
    told.broker.send(signal.SIGKILL)
    assert len(told.end()) == watching.TELL_ATTEMPTS


def test_a_second_watcher_leaves_the_broker_to_the_first(told: Told) -> None:
    told.watch()
    assert watching.main(["broker", str(told.broker.control_socket), str(HANG_S)]) == 0
    told.broker.send(signal.SIGKILL)
    assert len(told.end()) == 1


def test_after_a_refusal_the_score_rises_as_soon_as_the_missing_one_is_there(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_module, "HELD_BACK_S", 10 * TIMEOUT_S)
    with told.memory.changed() as memory:
        memory.score, memory.is_refused, memory.refused_among = "-INFINITY", True, [NODE]
        memory.refused_at_s = time.monotonic()
    told.broker.says(**WAITING | {"others": {"n2": 2}})
    told.watch()
    wait_until(lambda: told.pacemaker.score() == "100", lambda: f"the score is {told.pacemaker.score()!r}")
    told.broker.send(signal.SIGKILL)
    told.end()


def test_what_refused_to_be_promoted_is_not_raised_before_the_next_monitor(told: Told) -> None:
    with told.memory.changed() as memory:
        memory.score, memory.is_refused = "-INFINITY", True
    told.watch()
    assert told.pacemaker.calls("crm_attribute") == []
    told.broker.send(signal.SIGKILL)
    told.end()
