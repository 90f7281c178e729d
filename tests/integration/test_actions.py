"""What a resource manager asks for, with real processes: brokers that obey, refuse, hang, die, or never come."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from child_process import child_process
from qpid_ha_agent import actions
from qpid_ha_agent.actions import ActionFailed, Trouble
from qpid_ha_agent.service import Service, default_binary
from qpid_ha_agent.sight import Life, look
from qpid_ha_broker.ha.states import State
from scripted_broker import ScriptedBroker

TIMEOUT_S = 20.0
SHORT_S = 0.5


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as scripted:
        yield scripted


@pytest.fixture
def running(broker: ScriptedBroker) -> ScriptedBroker:
    actions.start(broker.service, TIMEOUT_S)
    return broker


def failure(action: object) -> ActionFailed:
    with pytest.raises(ActionFailed) as found:
        action()  # type: ignore[operator]
    return found.value


def life(broker: ScriptedBroker) -> Life:
    return look(broker.control_socket, SHORT_S).life


@contextmanager
def another_program_listens(control_socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    """It takes connections and never says a word."""
    program = (
        "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen();"
        " print(flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(control_socket)]
    with child_process(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


# --- start and stop


def test_a_start_leaves_a_broker_that_answers_and_a_stop_leaves_none(broker: ScriptedBroker) -> None:
    sight = actions.start(broker.service, TIMEOUT_S)
    assert (sight.life, sight.state) == (Life.ANSWERS, State.CONNECTING)

    assert "when it was told to" in actions.stop(broker.service, TIMEOUT_S)
    assert life(broker) is Life.GONE


def test_both_are_safe_to_repeat(broker: ScriptedBroker) -> None:
    actions.start(broker.service, TIMEOUT_S)
    pid = broker.pid
    actions.start(broker.service, TIMEOUT_S)
    assert broker.pid == pid

    actions.stop(broker.service, TIMEOUT_S)
    assert actions.stop(broker.service, TIMEOUT_S) == "it was not running"


def test_a_broker_keeps_neither_our_output_nor_our_session(running: ScriptedBroker) -> None:
    """Pacemaker waits for the end of an action's output, and kills its session."""
    assert Path(f"/proc/{running.pid}/fd/1").readlink() == running.log_file
    assert os.getsid(running.pid) == running.pid


def test_a_broker_that_ends_at_once_gives_its_own_words_as_the_reason(broker: ScriptedBroker) -> None:
    broker.log_file.write_text("words of an earlier life\n", encoding="utf-8")
    broker.script("qpidd", 'echo "qpidd: starting" >&2; echo "qpidd: a.yaml: there is no port 99999" >&2; exit 1')
    began_s = time.monotonic()

    found = failure(lambda: actions.start(broker.service, TIMEOUT_S))

    assert found.trouble is Trouble.MACHINE
    assert str(found) == "broker ended: a.yaml: there is no port 99999"
    assert time.monotonic() - began_s < TIMEOUT_S / 2


def test_of_a_broker_that_ends_without_a_word_it_is_said_where_to_look(broker: ScriptedBroker) -> None:
    broker.log_file.write_text("words of an earlier life\n", encoding="utf-8")
    broker.script("qpidd", "exit 1")
    assert str(broker.log_file) in str(failure(lambda: actions.start(broker.service, TIMEOUT_S)))


def test_a_broker_that_never_answers_is_told_as_such(broker: ScriptedBroker) -> None:
    broker.script("qpidd", f'exec {sys.executable} -c "import time; time.sleep(600)" "$@"')
    found = failure(lambda: actions.start(broker.service, SHORT_S))
    assert found.trouble is Trouble.FAILED
    assert "did not answer within 0.5 s" in str(found)
    assert broker.pid


def test_a_program_that_hides_what_it_was_started_with_is_silent_rather_than_dead(broker: ScriptedBroker) -> None:
    go_on = broker.directory / "go on"
    os.mkfifo(go_on)
    broker.script("qpidd", f"exec cat '{go_on}'")
    try:
        assert failure(lambda: actions.start(broker.service, SHORT_S)).trouble is Trouble.FAILED
    finally:
        go_on.write_text("now it ends", encoding="utf-8")


@pytest.mark.parametrize("missing", ["config", "program", "user"])
def test_what_is_missing_on_this_machine_is_named(broker: ScriptedBroker, missing: str) -> None:
    service = {
        "config": broker.service._replace(config=Path("/no/such/config.yaml")),
        "program": broker.service._replace(binary=("/no/such/qpidd",)),
        "user": broker.service._replace(user="no-such-user"),
    }[missing]
    found = failure(lambda: actions.start(service, TIMEOUT_S))
    assert found.trouble is Trouble.MACHINE
    assert "no/such" in str(found) or "no-such-user" in str(found)


def test_directories_that_are_missing_are_made(broker: ScriptedBroker) -> None:
    """/run is empty after a restart of the machine."""
    socket_path, log_file = broker.directory / "run" / "a.sock", broker.directory / "log" / "a.log"
    service = broker.service._replace(control_socket=socket_path, log_file=log_file)
    try:
        actions.start(service, TIMEOUT_S)
        assert log_file.exists()
    finally:
        actions.stop(service, TIMEOUT_S)


# --- a stopped process


def test_a_stop_kills_what_is_frozen_without_waiting_for_it(running: ScriptedBroker) -> None:
    running.send(signal.SIGSTOP)
    began_s = time.monotonic()

    assert "was killed" in actions.stop(running.service, 60.0)

    assert time.monotonic() - began_s < 30.0
    assert life(running) is Life.GONE


def test_a_stop_kills_what_does_not_end_when_it_is_told_to() -> None:
    with ScriptedBroker(deaf=True) as broker:
        actions.start(broker.service, TIMEOUT_S)
        assert "was killed" in actions.stop(broker.service, actions.KILLED_WITHIN_S + SHORT_S)
        assert life(broker) is Life.GONE


def test_a_demotion_kills_what_is_frozen_because_it_may_wake_up_as_primary(running: ScriptedBroker) -> None:
    actions.promote(running.service, "test", TIMEOUT_S)
    running.send(signal.SIGSTOP)

    sight = actions.demote(running.service, "demoted by a test", 8.0)

    assert sight.life is Life.GONE
    assert not running.pid


def test_a_frozen_broker_is_not_started_a_second_time(running: ScriptedBroker) -> None:
    pid = running.pid
    running.send(signal.SIGSTOP)
    found = failure(lambda: actions.start(running.service, SHORT_S))
    assert found.trouble is Trouble.FAILED
    assert running.pid == pid


# --- sockets and numbers that are not what they seem


def test_a_socket_file_that_nobody_listens_at_is_no_broker_and_no_hindrance(broker: ScriptedBroker) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(broker.control_socket))
    assert life(broker) is Life.GONE
    assert actions.stop(broker.service, TIMEOUT_S) == "it was not running"
    assert actions.start(broker.service, TIMEOUT_S).life is Life.ANSWERS


def test_a_socket_that_takes_connections_and_never_answers_is_silence_within_the_limit(broker: ScriptedBroker) -> None:
    with another_program_listens(broker.control_socket) as other:
        assert life(broker) is Life.SILENT
        for action in (
            lambda: actions.start(broker.service, SHORT_S),
            lambda: actions.promote(broker.service, "test", SHORT_S),
        ):
            began_s = time.monotonic()
            assert failure(action).trouble is Trouble.FAILED
            assert time.monotonic() - began_s < TIMEOUT_S / 2
        assert other.poll() is None


def test_a_process_id_in_a_file_is_never_believed(broker: ScriptedBroker) -> None:
    """The broker is dead, and its number is another program's by now."""
    with child_process(["sleep", "600"]) as innocent:
        (broker.directory / "a.pid").write_text(f"{innocent.pid}\n", encoding="utf-8")
        actions.stop(broker.service, TIMEOUT_S)
        actions.demote(broker.service, "demoted by a test", TIMEOUT_S)
        assert innocent.poll() is None


def test_a_process_of_another_socket_is_another_broker(running: ScriptedBroker) -> None:
    neighbour = running.service._replace(control_socket=running.control_socket.with_name("aa.sock"))
    assert actions.stop(neighbour, TIMEOUT_S) == "it was not running"
    assert running.pid


def test_something_else_that_answers_is_no_broker_of_a_cluster(broker: ScriptedBroker) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(broker.control_socket))
        listener.listen()

        def answer() -> None:
            connection, _address = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b'{"jsonrpc": "2.0", "id": 1, "result": ["hello"]}\n')

        thread = threading.Thread(target=answer)
        thread.start()
        sight = look(broker.control_socket, TIMEOUT_S)
        thread.join()
    assert (sight.life, sight.state) == (Life.SILENT, None)


# --- promote and demote


def test_a_promotion_makes_a_primary_and_a_demotion_a_backup_and_both_can_be_repeated(running: ScriptedBroker) -> None:
    for _ in range(2):
        assert actions.promote(running.service, "test", TIMEOUT_S).is_primary
    for _ in range(2):
        sight = actions.demote(running.service, "demoted by a test", TIMEOUT_S)
        assert (sight.life, sight.is_primary) == (Life.ANSWERS, False)


def test_a_refused_promotion_is_told_in_the_brokers_words() -> None:
    with ScriptedBroker(refuse="c has what this broker lacks") as broker:
        actions.start(broker.service, TIMEOUT_S)
        found = failure(lambda: actions.promote(broker.service, "test", TIMEOUT_S))
        assert (found.trouble, str(found)) == (Trouble.REFUSED, "c has what this broker lacks")
        assert broker.pid


def test_what_is_not_there_cannot_be_promoted_and_need_not_be_demoted(broker: ScriptedBroker) -> None:
    assert failure(lambda: actions.promote(broker.service, "test", TIMEOUT_S)).trouble is Trouble.NOT_RUNNING
    assert actions.demote(broker.service, "demoted by a test", TIMEOUT_S).life is Life.GONE


# --- with the broker itself


def real(directory: Path, name: str, data_dir: Path) -> Service:
    """A broker whose only peer is not there: it waits for a primary."""
    config = directory / f"{name}.yaml"
    ha = {"cluster": True, "brokers-url": "amqp://127.0.0.1:1,127.0.0.2:1", "coordinator": f"file:{directory}"}
    listen = "amqp://127.0.0.1:0"
    document = {"name": name, "listen": listen, "control-socket": str(directory / f"{name}.sock"), "ha": ha}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    return Service(
        config, directory / f"{name}.sock", directory / f"{name}.log", default_binary(), data_dir=str(data_dir)
    )


def test_of_two_brokers_with_one_data_directory_the_second_says_who_has_it(broker: ScriptedBroker) -> None:
    first, second = (real(broker.directory, name, broker.directory / "data") for name in ("first", "second"))
    try:
        actions.start(first, TIMEOUT_S)
        found = failure(lambda: actions.start(second, TIMEOUT_S))
        assert found.trouble is Trouble.MACHINE
        assert "data-dir" in str(found)
        assert "in use by another broker" in str(found)
        assert look(first.control_socket, TIMEOUT_S).life is Life.ANSWERS
    finally:
        for each in (first, second):
            actions.stop(each, TIMEOUT_S)
