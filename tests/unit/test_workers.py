"""A machine with several brokers: what each has of the file, what does not go together, who sees to their agents."""

from __future__ import annotations

import socket
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner

from qpid_ha_agent import broker_address
from qpid_ha_agent.run_settings import count_agents, read_run_settings
from qpid_ha_agent.workers import (
    FAILURES_MOST,
    FAILURES_S,
    RETRY_S,
    STOP_PATIENCE_S,
    End,
    StartAgent,
    StopAgent,
    WorkerAgents,
)
from qpid_ha_broker.cluster_map import BrokerPlace
from qpid_ha_broker.server.clients.listeners import listening_socket
from qpid_ha_broker.server.command_line import main as qpidd
from qpid_ha_broker.server.runtime.member_settings import member_settings
from qpid_ha_broker.server.sets.set_cluster import place_of
from qpid_ha_config import defaults
from qpid_ha_config.addresses import Address, parse_peers
from qpid_ha_config.errors import ConfigError
from qpid_ha_config.loading import load_settings
from qpid_ha_config.settings import BrokerSettings
from qpid_ha_config.workers import worker_name

FOUR = """
name: node1
workers: 4
workers.listen: amqp://127.0.0.1:5701
listen: [amqp://127.0.0.1:5672, "amqp://[::1]:5672"]
admin.listen: http://127.0.0.1:8672
control-socket: {tmp}/x.sock
data-dir: {tmp}/data
log-file: {tmp}/broker.log
audit.file: {tmp}/audit.log
memory-limit: 1GiB
ha.cluster: true
ha.coordinator: file:{tmp}
ha.brokers-url: amqp://127.0.0.1:5701-5704,127.0.0.1:5801-5804
"""


def file_of(tmp_path: Path, *changes: str, text: str = FOUR) -> Path:
    """`changes`: lines that take the place of those with their keys."""
    keys = {change.partition(":")[0] for change in changes}
    lines = [line for line in text.format(tmp=tmp_path).splitlines() if line.partition(":")[0] not in keys]
    path = tmp_path / "qpid-ha.yaml"
    path.write_text("\n".join([*lines, *(change for change in changes if not change.endswith(": -"))]))
    path.chmod(0o600)
    return path


def worker(path: Path, number: int, **flags: object) -> BrokerSettings:
    return load_settings(path, {"worker": number, **flags}, {})


# --- what each has of the file


def test_no_two_workers_have_a_name_a_file_or_a_port_in_common_but_those_for_clients(tmp_path: Path) -> None:
    four = [worker(file_of(tmp_path), number) for number in range(1, 5)]

    for one, other in combinations(four, 2):
        for key in ("name", "control-socket", "data-dir", "log-file", "audit.file", "admin.listen"):
            assert one.get(key) != other.get(key), key
        shared = set(one.listen) & set(other.listen)
        assert shared == {Address("amqp", "127.0.0.1", 5672), Address("amqp", "::1", 5672)}
        assert all(each.workers.is_shared(address) for each in (one, other) for address in shared)
        assert not any(one.workers.is_shared(address) for address in set(one.listen) - shared)
        own = [member_settings(each, "x").own_address for each in (one, other)]
        assert "" not in own
        assert own[0] != own[1]
    assert [each.name for each in four] == ["node1", "node1.2", "node1.3", "node1.4"]
    assert [each.memory_limit_bytes for each in four] == [256 * 1024**2] * 4
    assert {each.workers.machine_of(each.name) for each in four} == {"node1"}


def test_the_first_worker_has_the_name_and_the_data_of_the_broker_that_was_there_before(tmp_path: Path) -> None:
    alone = load_settings(file_of(tmp_path, "workers: -", "workers.listen: -"), {}, {})
    first, second = worker(file_of(tmp_path), 1), worker(file_of(tmp_path), 2)

    for key in ("name", "data-dir", "control-socket", "log-file", "admin.listen"):
        assert first.get(key) == alone.get(key)
    assert second.data_dir == tmp_path / "data" / "WORKER-2"
    assert second.control_socket == tmp_path / "x.2.sock"


def test_what_a_machine_keeps_nowhere_its_workers_keep_nowhere(tmp_path: Path) -> None:
    path = file_of(tmp_path, "data-dir: -", "log-file: -", "audit.file: -", "control-socket: -", "admin.listen: -")
    second = worker(path, 2)

    assert (second.data_dir, second.log_file, second.audit.file, second.admin.listen) == (None, None, None, ())
    assert second.control_socket == defaults.control_socket("node1.2")


def test_workers_say_of_which_zone_and_machine_they_are_and_a_broker_that_is_alone_its_zone(tmp_path: Path) -> None:
    path = file_of(tmp_path, "ha.zone: rack")
    places = {BrokerPlace.read(each.name, place_of(each)) for each in (worker(path, 1), worker(path, 3))}
    alone = load_settings(file_of(tmp_path, "workers: -", "workers.listen: -", "ha.zone: rack"), {}, {})

    assert places == {BrokerPlace("rack", "node1")}
    assert place_of(alone) == "rack"


def test_auto_is_a_worker_for_each_processor_even_if_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = file_of(tmp_path, "workers: auto")
    monkeypatch.setattr(defaults, "processors", lambda: 3)
    assert count_agents(path, ()) == 3
    assert worker(path, 3).name == "node1.3"
    monkeypatch.setattr(defaults, "processors", lambda: 1)
    assert count_agents(path, ()) == 1
    assert worker(path, 1).workers.own_listener == Address("amqp", "127.0.0.1", 5701)


@pytest.mark.parametrize(
    ("number", "changes", "key", "says"),
    [
        (0, [], "workers", "`qpid-ha-agent run` starts the 4 brokers"),
        (5, [], "worker", "there is no worker 5"),
        (1, ["ha.coordinator: pacemaker"], "workers", "Pacemaker runs one broker on each node"),
        (1, ["ha.cluster: false"], "ha.cluster", "needs it"),
        (1, ["workers.listen: -"], "workers.listen", "needs it"),
        (1, ["ha.virtual-ip: 10.0.0.1/24@lo"], "ha.virtual-ip", "agents of this machine"),
        (1, ["workers.listen: amqp://127.0.0.1:65534"], "workers.listen", "port 65537"),
        (1, ["workers.listen: amqp://127.0.0.1:5670"], "workers.listen", "5670 to 5673"),
        (1, ["workers.listen: amqp://127.0.0.1:8670"], "workers.listen", "8670 to 8673"),
        (3, ["workers.listen: amqp://127.0.0.1:8670"], "admin.listen", "8672 to 8675"),
        (2, ["admin.listen: http://127.0.0.1:5670"], "admin.listen", "5670 to 5673"),
        (4, ["ha.brokers-url: amqp://127.0.0.1:5701-5703,127.0.0.1:5801"], "ha.brokers-url", "at port 5704"),
        (1, ["ha.brokers-url: amqp://127.0.0.1:5672,127.0.0.1:5701-5704"], "ha.brokers-url", "may be any of them"),
        (1, ["ha.brokers-url: amqp://127.0.0.1:5704-5701"], "ha.brokers-url", "no range"),
        (1, ["workers.listen: amqp://127.0.0.1"], "listen", "there twice"),
        (1, ["workers.listen: amqp://127.0.0.1:0"], "workers.listen", "name the port"),
        (1, ["ha.public-url: amqp://127.0.0.1:5672"], "ha.public-url", "set ha.clients: proxy"),
        (1, ["workers: 65"], "workers", "from 1 to 64, or auto"),
        (1, ["workers.listen: amqp://0.0.0.0:5701"], "listen", "nobody could log in"),
    ],
)
def test_what_does_not_go_together_is_refused_and_it_says_what_to_do(
    tmp_path: Path, number: int, changes: list[str], key: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        worker(file_of(tmp_path, *changes), number)
    assert refused.value.key == key
    assert says in refused.value.problem


def test_a_check_of_a_file_is_one_of_each_worker_and_a_start_without_an_agent_is_refused(tmp_path: Path) -> None:
    fine = CliRunner().invoke(qpidd, ["--check", "--config", str(file_of(tmp_path))])
    assert fine.exit_code == 0, fine.output
    checked = [line.split()[4] for line in fine.output.splitlines() if "the settings of" in line]
    assert checked == ["node1", "node1.2", "node1.3", "node1.4"]
    few = file_of(tmp_path, "ha.brokers-url: amqp://127.0.0.1:5701-5703,127.0.0.1:5801")
    assert "port 5704" in CliRunner().invoke(qpidd, ["--check", "--config", str(few)]).output
    started = CliRunner().invoke(qpidd, ["--config", str(file_of(tmp_path))])
    assert started.exit_code == 1
    assert "`qpid-ha-agent run` starts the 4 brokers of this machine" in started.output


def test_a_range_of_ports_is_each_of_its_ports_and_other_addresses_stay_as_they_are() -> None:
    assert [str(each) for each in parse_peers("amqps://a:7000-7002,b,[::1]:5-5")] == [
        "amqps://a:7000", "amqps://a:7001", "amqps://a:7002", "amqps://b:5671", "amqps://[::1]:5"
    ]  # fmt: skip


# --- its agents


def test_each_agent_starts_its_own_worker_and_finds_it_by_its_socket(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    said = ("log-level=debug", f"control-socket={tmp_path}/y.sock")
    assert count_agents(path, said) == 4
    second = read_run_settings(path, (*said, "worker=2"), ["qpidd"])

    assert count_agents(path, (*said, "worker=2")) == 0
    assert (second.name, second.control_socket) == ("node1.2", tmp_path / "y.2.sock")
    assert second.listening == ("amqp://127.0.0.1:5702",), "another worker may answer at a port that they share"
    flags = dict(word.split("=", 1) for word in second.command if "=" in word)
    started = load_settings(path, {**flags, "control-socket": second.command[4]}, {})
    assert (started.name, started.control_socket, started.log_level) == (second.name, second.control_socket, "debug")


def test_a_command_without_a_broker_means_the_first_worker_even_if_the_file_names_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_address, "socket_directories", lambda environment: [tmp_path])
    for number in (1, 2):
        (tmp_path / f"{worker_name(defaults.broker_name(), number)}.sock").touch()
    path = file_of(tmp_path, "name: -", "control-socket: -")

    found = broker_address.find_socket(None, {"QPID_HA_CONFIG": str(path)})
    assert found == tmp_path / f"{defaults.broker_name()}.sock"


def test_an_agent_that_fails_is_started_again_after_a_moment_and_not_for_ever() -> None:
    agents = WorkerAgents(2)
    assert agents.begin() == [StartAgent(1), StartAgent(2)]

    for attempt in range(FAILURES_MOST - 1):
        now_s = 10.0 * attempt
        assert agents.ended(2, "was killed by SIGKILL", now_s) == []
        assert agents.tick(now_s + RETRY_S / 2) == []
        assert agents.tick(now_s + RETRY_S) == [StartAgent(2)]
    assert agents.ended(2, "ended with exit code 1", FAILURES_S - 1) == []
    assert agents.tick(FAILURES_S + 100) == []
    assert agents.ended(1, "", FAILURES_S + 101) == [End(1)], "the other one goes on until then"


def test_who_fails_now_and_then_is_started_again_each_time() -> None:
    agents = WorkerAgents(1)
    agents.begin()
    for attempt in range(3 * FAILURES_MOST):
        now_s = FAILURES_S * attempt / (FAILURES_MOST - 1)
        assert agents.ended(1, "was killed by SIGKILL", now_s) == []
        assert agents.tick(now_s + RETRY_S) == [StartAgent(1)]


def test_agents_are_stopped_one_after_the_other_the_last_one_first() -> None:
    agents = WorkerAgents(3)
    agents.begin()

    assert agents.stop(1.0) == [StopAgent(3)]
    assert agents.stop(1.5) == []
    assert agents.tick(1.0 + STOP_PATIENCE_S / 2) == []
    assert agents.ended(3, "", 5.0) == [StopAgent(2)]
    assert agents.tick(5.0 + STOP_PATIENCE_S) == [StopAgent(1)], "nobody waits for ever for the second"
    assert agents.ended(1, "", 14.0) == []
    assert agents.ended(2, "was killed by SIGKILL", 15.0) == [End(0)]


def test_one_that_fails_while_all_are_stopped_is_not_started_again_and_those_that_are_gone_are_not_told() -> None:
    agents = WorkerAgents(3)
    agents.begin()
    agents.ended(3, "", 0.0)
    agents.ended(2, "was killed by SIGKILL", 0.5)

    assert agents.stop(1.0) == [StopAgent(1)]
    assert agents.tick(2.0 + RETRY_S) == []
    assert agents.ended(1, "", 3.0) == [End(0)]


def test_with_none_to_be_told_it_ends_at_once() -> None:
    agents = WorkerAgents(1)
    agents.begin()
    agents.ended(1, "was killed by SIGKILL", 0.0)

    assert agents.stop(0.5) == [End(0)]


def test_all_that_end_in_order_end_it() -> None:
    agents = WorkerAgents(2)
    agents.begin()
    assert agents.ended(1, "", 0.0) == []
    assert agents.ended(2, "", 0.0) == [End(0)]


# --- the port that they share


def test_two_listen_at_one_port_if_both_say_so_and_no_third_one() -> None:
    with listening_socket(socket.AF_INET, ("127.0.0.1", 0), is_shared=True) as one:
        bound = one.getsockname()
        with listening_socket(socket.AF_INET, bound, is_shared=True) as other:
            clients = [socket.create_connection(bound) for _ in range(24)]
            for each in (one, other):
                each.setblocking(True)
                each.settimeout(5.0)
                each.accept()[0].close()
            for client in clients:
                client.close()
            with pytest.raises(OSError, match="in use"):
                listening_socket(socket.AF_INET, bound)
