"""Agents as processes over brokers as processes: who leads when one dies, hangs, stops, or loses its lock.

The brokers here are scripted ones, so that each test shows the agent; with real brokers the same is tested elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from limits import LIMIT_S
from qpid_ha_agent.planned_restart import RESTART_NOTE, RestartRequest, Stage, decode_request, encode_request
from qpid_ha_agent.runner import OUTDATED_S
from qpid_ha_broker import __version__
from qpid_ha_broker.coordination.file import PRIMARY_LOCK_FILE, FileCoordinator, holder_of
from qpid_ha_broker.coordination.pause import PAUSE_NOTE, Pause, encode_pause
from running_agent import RunningAgent, wait_until


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[RunningAgent]]:
    """Two, the first of which has a primary."""
    with ExitStack() as stack:
        first = stack.enter_context(RunningAgent(tmp_path, "a"))
        first.wait_for("primary")
        second = stack.enter_context(RunningAgent(tmp_path, "b"))
        second.wait_for_line("wait for the lock")
        yield [first, second]


def test_when_the_primary_is_killed_another_one_takes_over_at_once(agents: list[RunningAgent], tmp_path: Path) -> None:
    first, second = agents
    assert [agent.status()["state"] for agent in agents] == ["primary", "ready"]
    assert holder_of(tmp_path / PRIMARY_LOCK_FILE).startswith(f"a (pid {first.process.pid}")
    os.kill(first.broker_pid, signal.SIGKILL)

    assert second.wait_for("primary") < 3.0  # no lease runs out, no poll is waited for
    first.wait_for("ready")
    log = first.log()
    assert "killed by SIGKILL" in log
    assert log.index("release the lock: the broker is dead") < log.index("start the broker: it died")


def test_a_primary_that_hangs_is_killed_and_another_one_takes_over(agents: list[RunningAgent]) -> None:
    first, second = agents
    os.kill(first.broker_pid, signal.SIGSTOP)

    assert second.wait_for("primary") < 6.0
    assert "kill the broker: silent for" in first.log()


def test_a_primary_whose_control_socket_was_removed_and_that_serves_its_clients_is_left_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as port:
        # The port of the broker's clients: the fake has none, so this test ends each connection there for it.
        threading.Thread(target=_end_connections, args=(port,), daemon=True).start()
        with RunningAgent(tmp_path, "a", listen=f"amqp://127.0.0.1:{port.getsockname()[1]}") as agent:
            agent.wait_for("primary")
            pid = agent.broker_pid
            agent.control_socket.unlink()
            agent.wait_for_line("the broker runs, and cannot be asked how it is")
            assert (agent.broker_pid, "kill the broker" in agent.log()) == (pid, False)


def _end_connections(port: socket.socket) -> None:
    with suppress(OSError):  # until the test is over
        while True:
            port.accept()[0].close()


def test_stopping_the_agent_of_a_primary_hands_over(agents: list[RunningAgent]) -> None:
    first, second = agents
    assert first.stop() == 0

    second.wait_for("primary")
    second.wait_for_line("agent b: we have the lock")
    log = first.log()
    assert log.index("hand over:") < log.index("release the lock:") < log.index("stop the broker:")
    assert first.status() == {}
    assert "promote:" not in second.log()  # the hand-over did it


def asked_of(directory: Path, name: str, method: str) -> list[dict[str, object]]:
    lines = (directory / f"{name}.asked").read_text(encoding="utf-8").splitlines()
    return [request["params"] for request in map(json.loads, lines) if request["method"] == method]


def test_a_hand_over_has_the_reason_for_which_it_is_done_and_is_wanted_no_longer_than_that(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    with RunningAgent(tmp_path, "a", ha={"cluster": True, "coordinator": f"file:{shared}"}) as agent:
        agent.wait_for("primary")
        shared.rename(tmp_path / "away")
        agent.wait_for_line("hand over: the record cannot be read here")
        agent.wait_for_line("switchover failed: there is no backup")
        (tmp_path / "away").rename(shared)
        agent.stop()
    away, stopping = asked_of(tmp_path, "a", "switchover")
    assert (str(away["cause"])[:48], away["within_s"]) == ("the agent of a: the record cannot be read here: ", 0.5)
    assert stopping == {"cause": "the agent of a: this agent stops, and its broker is primary"}


def test_a_new_agent_takes_care_of_the_broker_that_the_old_one_left(tmp_path: Path) -> None:
    with RunningAgent(tmp_path, "a") as agent:
        agent.wait_for("primary")
        pid = agent.broker_pid
        agent.process.kill()
        agent.process.wait()
        assert agent.status()["state"] == "primary"

        agent.restart()
        agent.wait_for_line(f"a broker runs already (pid {pid})")
        wait_until(lambda: agent.log().count("agent a: we have the lock") == 2, agent.log)
        assert agent.broker_pid == pid

        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: agent.status().get("state") == "primary", agent.log)
        assert agent.broker_pid != pid


def test_a_broker_that_is_refused_lets_another_one_try(tmp_path: Path) -> None:
    with RunningAgent(tmp_path, "a", refuse="c has what this broker lacks") as refused:
        refused.wait_for_line("release the lock: promotion refused, let others try: c has what this broker lacks")
        with RunningAgent(tmp_path, "b") as other:
            other.wait_for("primary")


def test_an_agent_that_slept_when_all_were_paused_promotes_nobody(agents: list[RunningAgent], tmp_path: Path) -> None:
    """The lock comes to it at the moment in which it wakes up."""
    first, second = agents
    first.process.send_signal(signal.SIGSTOP)
    os.kill(first.broker_pid, signal.SIGKILL)
    second.wait_for_line("the broker is connecting")
    second.process.send_signal(signal.SIGSTOP)
    coordinator = FileCoordinator(tmp_path)
    pause = encode_pause(Pause("the test", datetime(2026, 1, 1, tzinfo=UTC)))
    assert coordinator.replace_note(PAUSE_NOTE, "", pause)
    first.process.kill()
    first.process.wait()
    time.sleep(OUTDATED_S + 0.5)
    second.process.send_signal(signal.SIGCONT)

    second.wait_for_line("paused by the test")
    second.wait_for_line(", and paused by the test since")
    assert "promote:" not in second.log()
    assert coordinator.replace_note(PAUSE_NOTE, pause, "")
    second.wait_for("primary")


# --- a restart that an operator wants


def ask_for_restart(directory: Path, name: str, **changes: object) -> FileCoordinator:
    coordinator = FileCoordinator(directory)
    asked = RestartRequest("1", name, "the test", datetime.now(UTC) + timedelta(seconds=LIMIT_S))
    note = encode_request(asked._replace(**changes))  # type: ignore[arg-type]
    assert coordinator.replace_note(RESTART_NOTE, coordinator.read_note(RESTART_NOTE), note)
    return coordinator


def answer_to(coordinator: FileCoordinator, *stages: Stage) -> str:
    """The text with which it came to one of these stages."""

    def request() -> RestartRequest | None:
        return decode_request(coordinator.read_note(RESTART_NOTE))

    wait_until(lambda: (now := request()) is not None and now.stage in stages, lambda: f"it is {request()}", LIMIT_S)
    last = request()
    return "" if last is None else last.text


def test_an_agent_that_is_asked_hands_over_and_begins_anew_as_the_same_process_with_another_broker(
    agents: list[RunningAgent], tmp_path: Path
) -> None:
    first, second = agents
    pid, broker_pid = first.process.pid, first.broker_pid
    coordinator = ask_for_restart(tmp_path, "a")
    assert answer_to(coordinator, Stage.BACK) == __version__
    second.wait_for("primary")
    log = first.log()
    assert log.index("hand over:") < log.index("stop this agent:") < log.index("stop the broker:") < log.index("exit:")
    assert (first.process.poll(), first.process.pid) == (None, pid)
    assert first.broker_pid != broker_pid
    assert asked_of(tmp_path, "a", "switchover") == [
        {"cause": "the agent of a: a restart by the test, and the broker is primary"}
    ]
    assert "promote:" not in second.log()

    coordinator = ask_for_restart(tmp_path, "a", identity="2")  # and again, as a backup
    answer_to(coordinator, Stage.BACK)
    assert first.log().count("exit:") == 2
    assert first.stop() == 0


def test_a_primary_without_a_backup_and_a_broker_that_would_not_start_are_not_restarted(tmp_path: Path) -> None:
    with RunningAgent(tmp_path, "a") as agent:
        agent.wait_for("primary")
        pid = agent.broker_pid
        assert "there is no backup" in answer_to(ask_for_restart(tmp_path, "a"), Stage.REFUSED)
        config = tmp_path / "a.yaml"
        config.write_text(config.read_text(encoding="utf-8") + "broken: true\n", encoding="utf-8")
        text = answer_to(ask_for_restart(tmp_path, "a", identity="2"), Stage.REFUSED)
        assert text == "its broker would not start again: broken: there is no such setting"
        text = answer_to(ask_for_restart(tmp_path, "a", identity="3", version="3.0"), Stage.REFUSED)
        assert text == "2.0 is installed there, and not 3.0: install it first"
        assert (agent.broker_pid, agent.status()["state"]) == (pid, "primary")


def test_an_agent_that_is_killed_in_a_restart_leaves_the_rest_to_the_next_one(
    agents: list[RunningAgent], tmp_path: Path
) -> None:
    """Nobody knows how far it came: its broker may be gone or not."""
    first, _ = agents
    coordinator = ask_for_restart(tmp_path, "a")
    answer_to(coordinator, Stage.TAKEN, Stage.BACK)
    first.process.kill()
    first.process.wait()
    first.restart()
    answer_to(coordinator, Stage.BACK)
    wait_until(lambda: sorted(str(agent.status().get("state")) for agent in agents) == ["primary", "ready"], first.log)
