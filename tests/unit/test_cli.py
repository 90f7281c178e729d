"""Stories about `qpid-ha` as people and scripts run it: a real process, a real socket, output and exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from qpid_ha_agent.broker_address import socket_directories
from qpid_ha_broker.server import defaults
from qpid_ha_broker.server.control import REFUSED, ControlError, ControlServer, Method, Stream

ORDERS = {"name": "orders", "messages": 3, "bytes": 300, "acquired": 1, "consumers": 1, "enqueued": 10, "dequeued": 7}

NODE1 = {"name": "node1", "address": "amqp://a:5672", "state": "primary", "phase": "active"}
NODE1 |= {"generation": 3, "lsn": 100, "in_sync": ["node1", "node2"]}
CLUSTER_METHODS = ("promote", "demote", "switchover", "backups", "history", "replicate", "events")


@dataclass
class Broker:
    """Answers on a real control socket as a broker with one queue would, and remembers what it was asked."""

    directory: Path
    asked: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    heard: threading.Condition = field(default_factory=threading.Condition)

    @property
    def path(self) -> Path:
        return self.directory / "node1.sock"

    def server(self, path: Path | None = None) -> ControlServer:
        names = ("ping", "status", "query", "get", "set", "queues", "exchanges", *CLUSTER_METHODS)
        return ControlServer(path or self.path, {name: self._method(name) for name in names})

    def wait_asked(self, name: str, times: int) -> bool:
        """Whether it was asked that, so often, within a while."""
        with self.heard:
            return self.heard.wait_for(lambda: [asked for asked, _params in self.asked].count(name) >= times, 20)

    def _method(self, name: str) -> Method:
        def method(params: dict[str, object]) -> object:
            with self.heard:
                self.asked.append((name, params))
                self.heard.notify_all()
            answer: object = getattr(self, name)(params)
            return answer

        return method

    def ping(self, params: dict[str, object]) -> object:
        return {"pong": True, "name": "node1"}

    def status(self, params: dict[str, object]) -> object:
        if params == {"all": True}:
            return [NODE1, {**NODE1, "name": "node2", "state": "ready", "phase": None}, {"address": "amqp://c:5672"}]
        return {"state": "standalone", "name": "node1"}

    def query(self, params: dict[str, object]) -> object:
        if params == {"all": True}:
            return [{"name": "node1", "connections": 2}, {"name": "node2", "connections": 0, "lag": 7}]
        return {"name": "node1", "state": "standalone", "connections": 2, "enqueue-rate": 12.34, "tls": False}

    def get(self, params: dict[str, object]) -> object:
        rules = [{"pattern": "tmp.*", "replicate": "none"}, {"pattern": "*", "replicate": "messages"}]
        settings = {"log-level": "info", "auto-create": True, "replication-rules": rules}
        if "key" not in params:
            return settings
        if params["key"] not in settings:
            raise ControlError(REFUSED, "unknown key; did you mean log-level?")
        return {params["key"]: settings[str(params["key"])]}

    def set(self, params: dict[str, object]) -> object:
        answer = {"key": params["key"], "old": "info", "new": params["value"]}
        return answer if params["key"] == "log-level" else {**answer, "old": None, "notes": ["node3 is asked too"]}

    def promote(self, params: dict[str, object]) -> object:
        if not params["force"]:
            raise ControlError(REFUSED, "node1 is catching up: promote node2, or use --force")
        return {"state": "primary", "generation": 4, "text": "node1 is primary of generation 4"}

    def demote(self, params: dict[str, object]) -> object:
        return {"name": "node1", "state": "connecting"}

    def switchover(self, params: dict[str, object]) -> object:
        return {"text": f"{params.get('to', 'node2')} is primary"}

    def backups(self, params: dict[str, object]) -> object:
        lag = {"lag_messages": 12, "lag_bytes": 3400, "lag_s": 0.25}
        return [{"name": "node2", "state": "ready", "in_sync": True, "lsn": 99, **lag}]

    def history(self, params: dict[str, object]) -> object:
        times = {"started_at_ms": 86_400_000, "cause": "promoted by an operator", "forced": False}
        return [{"generation": 1, "primary": "node1", "first_lsn": 1, **times}]

    def replicate(self, params: dict[str, object]) -> object:
        return {"text": f"{params['queue']} is copied from {params['address']}"}

    def events(self, params: dict[str, object]) -> object:
        async def notes() -> AsyncIterator[object]:
            yield {"before": "ready", "state": "primary", "cause": "promoted"}

        return Stream({"state": "ready"}, "event", notes(), lambda: None)

    def queues(self, params: dict[str, object]) -> object:
        if params["action"] == "list":
            return [ORDERS, {**ORDERS, "name": "a\x1b[31m", "arguments": {}}]
        if params.get("name") != "orders":
            raise ControlError(REFUSED, f"no queue named {params.get('name')}; see qpid-ha queue list")
        return {**ORDERS, "arguments": {"qpid.durable": True}}

    def exchanges(self, params: dict[str, object]) -> object:
        news = {"name": "news", "kind": "topic", "bindings": [{"queue": "orders", "key": "a.#", "arguments": {}}]}
        return [news] if params["action"] == "list" else news


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker that runs in a thread of its own."""
    broker = Broker(tmp_path / "qpid-ha")
    started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        server = broker.server()
        await server.start()
        started.set()
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(10)
    yield broker
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


def qpid_ha(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the tool with nothing in its environment but what is given."""
    needed = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", *words]
    return subprocess.run(command, env=needed | environment, capture_output=True, text=True, timeout=30, check=False)


def asking(broker: Broker, *words: str) -> subprocess.CompletedProcess[str]:
    return qpid_ha(*words, "-b", str(broker.path))


# --- asking -----------------------------------------------------------------------------------------------


def test_ping_names_the_broker(broker: Broker) -> None:
    done = asking(broker, "ping")
    assert (done.returncode, done.stdout, done.stderr) == (0, "node1 is alive\n", "")


def test_status_prints_the_bare_state(broker: Broker) -> None:
    assert asking(broker, "status", "--cluster-manager").stdout == "standalone\n"
    assert json.loads(asking(broker, "status", "--format", "json").stdout) == {"state": "standalone", "name": "node1"}


@pytest.mark.parametrize(
    ("words", "code"), [(["--expect", "standalone"], 0), (["--expect", "primary"], 1), (["--is-primary"], 1)]
)
def test_a_question_about_the_state_is_answered_by_the_exit_code_alone(
    broker: Broker, words: list[str], code: int
) -> None:
    done = asking(broker, "status", *words)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_query_prints_facts_in_three_formats(broker: Broker) -> None:
    lines = [line.split() for line in asking(broker, "query").stdout.splitlines()]
    assert ["enqueue-rate", "12.3"] in lines
    assert ["tls", "no"] in lines
    assert yaml.safe_load(asking(broker, "query", "--format", "yaml").stdout)["connections"] == 2
    assert json.loads(asking(broker, "query", "--format=json").stdout)["enqueue-rate"] == 12.34


def test_options_may_stand_before_the_command_and_the_last_one_counts(broker: Broker) -> None:
    path = str(broker.path)
    assert qpid_ha("-b", f"unix:{path}", "--format", "json", "status").stdout.startswith("{")
    assert qpid_ha("-b", "/nonexistent.sock", "status", "-b", path).returncode == 0


# --- a cluster --------------------------------------------------------------------------------------------


def test_status_all_has_a_line_per_broker_also_for_one_that_is_silent(broker: Broker) -> None:
    heading, first, second, third = (line.split() for line in asking(broker, "status", "--all").stdout.splitlines())
    assert heading == ["name", "address", "state", "phase", "generation", "lsn", "in-sync"]
    assert first == ["node1", "amqp://a:5672", "primary", "active", "3", "100", "node1,", "node2"]
    assert second[:4] == ["node2", "amqp://a:5672", "ready", "-"]
    assert third == ["amqp://c:5672", "unreachable"]
    states = [row["state"] for row in json.loads(asking(broker, "status", "--all", "--format", "json").stdout)]
    assert states == ["primary", "ready", "unreachable"]


def test_query_all_has_a_column_per_broker(broker: Broker) -> None:
    lines = [line.split() for line in asking(broker, "query", "--all").stdout.splitlines()]
    assert lines == [["node1", "node2"], ["name", "node1", "node2"], ["connections", "2", "0"], ["lag", "7"]]
    assert json.loads(asking(broker, "query", "--all", "--format=json").stdout)[1]["lag"] == 7


def test_a_promotion_is_refused_with_the_reason_and_can_be_forced(broker: Broker) -> None:
    done = asking(broker, "promote")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: node1 is catching up: promote node2, or use --force\n"
    done = asking(broker, "promote", "--force", "--cluster-manager")
    assert (done.returncode, done.stdout) == (0, "node1 is primary of generation 4\n")
    assert broker.asked == [("promote", {"force": False}), ("promote", {"force": True})]


def test_a_primary_is_demoted_or_hands_over(broker: Broker) -> None:
    assert [line.split() for line in asking(broker, "demote").stdout.splitlines()][1] == ["state", "connecting"]
    assert json.loads(asking(broker, "demote", "--format", "json").stdout)["state"] == "connecting"
    assert asking(broker, "switchover").stdout == "node2 is primary\n"
    assert asking(broker, "switchover", "node3").stdout == "node3 is primary\n"
    assert [params for _method, params in broker.asked[2:]] == [{}, {"to": "node3"}]


def test_backups_are_listed_with_what_they_lack(broker: Broker) -> None:
    heading, row = (line.split() for line in asking(broker, "backups").stdout.splitlines())
    assert heading == ["name", "state", "in-sync", "lsn", "lag-messages", "lag-bytes", "lag-s"]
    assert row == ["node2", "ready", "yes", "99", "12", "3400", "0.2"]
    assert json.loads(asking(broker, "backups", "--format", "json").stdout)[0]["lag_s"] == 0.25


def test_history_is_told_in_local_time_and_in_milliseconds_to_programs(broker: Broker) -> None:
    done = qpid_ha("history", "-b", str(broker.path), TZ="UTC-2")
    assert done.stdout.splitlines()[1].split()[:6] == ["1", "node1", "1", "1970-01-02", "02:00:00", "promoted"]
    assert json.loads(asking(broker, "history", "--format", "json").stdout)[0]["started_at_ms"] == 86_400_000


def test_one_queue_of_another_cluster_is_copied(broker: Broker) -> None:
    done = asking(broker, "replicate", "orders", "amqp://far:5672")
    assert done.stdout == "orders is copied from amqp://far:5672\n"
    assert broker.asked == [("replicate", {"queue": "orders", "address": "amqp://far:5672"})]


def test_events_are_printed_as_they_come_until_the_broker_is_gone(broker: Broker) -> None:
    done = asking(broker, "events", "--format", "json")
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["ready", "primary"]
    assert done.returncode == 3
    assert "tells nothing more" in done.stderr
    assert "before=ready state=primary cause=promoted" in asking(broker, "events").stdout.splitlines()[1]


def test_watch_shows_brokers_and_backups(broker: Broker) -> None:
    lines = [line.split() for line in asking(broker, "watch", "--once").stdout.splitlines()]
    assert [line[0] for line in lines if line] == ["name", "node1", "node2", "amqp://c:5672", "name", "node2"]
    shown = json.loads(asking(broker, "watch", "--once", "--format", "json").stdout)
    assert [len(shown["brokers"]), len(shown["backups"])] == [3, 1]


def test_watch_goes_on_until_it_is_interrupted(broker: Broker) -> None:
    needed = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "watch", "-b", str(broker.path)]
    watching = subprocess.Popen(command, env=needed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert broker.wait_asked("backups", times=2)
    watching.send_signal(signal.SIGINT)
    shown, complaint = watching.communicate(timeout=10)
    assert (watching.returncode, complaint) == (0, "")
    assert "node2" in shown


# --- settings ---------------------------------------------------------------------------------------------


def test_get_prints_one_bare_value_or_all(broker: Broker) -> None:
    assert asking(broker, "get", "log-level").stdout == "info\n"
    assert asking(broker, "get", "auto-create").stdout == "true\n"
    assert asking(broker, "get", "replication-rules").stdout == "tmp.*=none,*=messages\n"
    assert "log-level" in asking(broker, "get").stdout


@pytest.mark.parametrize(
    "words", [["log-level", "debug"], ["log-level=debug"], ["--log-level", "debug"], ["--log-level=debug"]]
)
def test_set_takes_key_and_value_in_the_ways_people_write_them(broker: Broker, words: list[str]) -> None:
    done = asking(broker, "set", *words)
    assert done.stdout == "log-level: info -> debug\n"
    assert broker.asked == [("set", {"key": "log-level", "value": "debug"})]


@pytest.mark.parametrize("name", ["brokers-url", "public-url", "backup-timeout", "min-in-sync", "replicate"])
def test_set_knows_the_names_that_qpid_gave_to_a_clusters_settings(broker: Broker, name: str) -> None:
    done = asking(broker, "set", f"--{name}", "value")
    assert done.stdout == f"ha.{name}: none -> value\nnode3 is asked too\n"
    assert broker.asked == [("set", {"key": f"ha.{name}", "value": "value"})]


def test_set_without_a_value_is_a_usage_error_before_anything_changes(broker: Broker) -> None:
    done = asking(broker, "set", "log-level=debug", "auto-create")
    assert done.returncode == 2
    assert "auto-create" in done.stderr
    assert broker.asked == []


def test_a_refusal_is_on_stderr_with_exit_code_1(broker: Broker) -> None:
    done = asking(broker, "get", "log-levle")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: unknown key; did you mean log-level?\n"


# --- queues and exchanges ---------------------------------------------------------------------------------


def test_queue_list_has_a_line_per_queue_and_names_cannot_steer_the_terminal(broker: Broker) -> None:
    done = asking(broker, "queue", "list")
    heading, first, second = (line.split() for line in done.stdout.splitlines())
    assert heading == ["name", "messages", "bytes", "acquired", "consumers", "enqueued", "dequeued"]
    assert first[0] == "a\\x1b[31m"
    assert second == ["orders", "3", "300", "1", "1", "10", "7"]


def test_queue_show_prints_figures_and_arguments(broker: Broker) -> None:
    lines = [line.split() for line in asking(broker, "queue", "show", "orders").stdout.splitlines()]
    assert ["messages", "3"] in lines
    assert ["qpid.durable", "yes"] in lines


def test_queue_create_says_what_is_meant_in_the_brokers_terms(broker: Broker) -> None:
    limits = "--max-messages 1000 --max-bytes 1MiB --policy ring --ttl 1.5s --priorities 10 --fairshare 2"
    life = "--alternate-exchange dead --delivery-limit 5 --exclusive --auto-delete --auto-delete-delay 1m --durable"
    others = "--replicate none --argument x-mine=7"
    words = f"{limits} {life} {others}".split()
    done = asking(broker, "queue", "create", "orders", *words)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ((method, params),) = broker.asked
    assert (method, params["action"], params["name"]) == ("queues", "create", "orders")
    assert params["arguments"] == {
        "qpid.max_count": 1000,
        "qpid.max_size": 1024**2,
        "qpid.policy_type": "ring",
        "qpid.message_ttl_ms": 1500,
        "qpid.priorities": 10,
        "qpid.fairshare": 2,
        "qpid.alternate_exchange": "dead",
        "qpid.delivery_limit": 5,
        "qpid.auto_delete": True,
        "qpid.auto_delete_delay_s": 60,
        "qpid.exclusive": True,
        "qpid.durable": True,
        "qpid.replicate": "none",
        "x-mine": 7,
    }


def test_a_plain_queue_has_no_arguments(broker: Broker) -> None:
    asking(broker, "queue", "create", "orders")
    assert broker.asked == [("queues", {"action": "create", "name": "orders", "arguments": {}})]


def test_queue_delete_and_purge(broker: Broker) -> None:
    assert asking(broker, "queue", "delete", "orders", "--if-empty").returncode == 0
    assert asking(broker, "queue", "purge", "orders").returncode == 0
    assert broker.asked == [
        ("queues", {"action": "delete", "name": "orders", "if_empty": True, "if_unused": False}),
        ("queues", {"action": "purge", "name": "orders"}),
    ]
    done = asking(broker, "queue", "delete", "absent")
    assert (done.returncode, done.stderr) == (1, "Error: no queue named absent; see qpid-ha queue list\n")


def test_exchanges_are_made_bound_and_shown(broker: Broker) -> None:
    assert asking(broker, "exchange", "create", "news", "--kind", "headers").returncode == 0
    assert asking(broker, "exchange", "bind", "news", "orders", "a.#", "--argument", "x-match=any").returncode == 0
    assert asking(broker, "exchange", "unbind", "news", "orders", "a.#").returncode == 0
    assert asking(broker, "exchange", "delete", "news").returncode == 0
    assert [params for _method, params in broker.asked] == [
        {"action": "create", "name": "news", "kind": "headers"},
        {"action": "bind", "name": "news", "queue": "orders", "key": "a.#", "arguments": {"x-match": "any"}},
        {"action": "unbind", "name": "news", "queue": "orders", "key": "a.#"},
        {"action": "delete", "name": "news"},
    ]
    assert asking(broker, "exchange", "list").stdout.splitlines()[1].split() == ["news", "topic", "1"]
    assert "a.#" in asking(broker, "exchange", "show", "news").stdout


# --- what goes wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["statsu"], "statsu"),
        (["status", "--expect", "standalon"], "standalone"),
        (["status", "--expect", "ready", "--is-primary"], "give one"),
        (["queue", "create"], "NAME"),
        (["queue", "create", "q", "--max-bytes", "lots"], "100MiB"),
        (["queue", "create", "q", "--ttl", "soon"], "10s"),
        (["queue", "create", "q", "--policy", "drop"], "ring"),
        (["queue", "create", "q", "--argument", "novalue"], "NAME=VALUE"),
        (["queue", "create", "q", "--durable", "--argument", "qpid.durable=false"], "qpid.durable"),
        (["ping", "--timeout", "0"], "timeout"),
        (["ping", "-b", "http://node2:5672"], "amqp://"),
        (["ping", "-b", "amqp://me:secret@node2:5672"], "--password-file"),
        (["ping", "-b", "node2:99999"], "99999"),
        (["ping", "-b", "node2:1", "--password-file", "/nonexistent"], "/nonexistent"),
        (["status", "--all", "--is-primary"], "give one"),
        (["replicate", "orders"], "REMOTE-BROKER"),
        (["watch", "--format", "json"], "qpid-ha events"),
    ],
    ids=" ".join,
)
def test_a_usage_error_says_what_would_be_right(words: list[str], named: str) -> None:
    done = qpid_ha(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_no_broker_is_exit_code_3(tmp_path: Path) -> None:
    for words in (["-b", str(tmp_path / "absent.sock")], ["-b", "absent"], ["-b", "absent.invalid:5672"]):
        done = qpid_ha("ping", *words)
        assert (done.returncode, done.stdout) == (3, "")
        assert "absent" in done.stderr


# --- which broker -----------------------------------------------------------------------------------------


def test_a_broker_is_found_by_environment_name_configuration_or_being_the_only_one(
    broker: Broker, tmp_path: Path
) -> None:
    (tmp_path / "by-name.yaml").write_text("name: node1\n")
    (tmp_path / "by-socket.yaml").write_text(f"control-socket: {broker.path}\n")
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    found = [
        qpid_ha("ping", QPID_HA_SOCKET=str(broker.path)),
        qpid_ha("ping", "-b", "node1", **runtime),
        qpid_ha("ping", QPID_HA_CONFIG=str(tmp_path / "by-socket.yaml")),
        qpid_ha("ping", QPID_HA_CONFIG=str(tmp_path / "by-name.yaml"), **runtime),
    ]
    assert [(done.returncode, done.stdout) for done in found] == [(0, "node1 is alive\n")] * 4


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("name: [")
    done = qpid_ha("ping", QPID_HA_CONFIG=str(tmp_path / "broken.yaml"))
    assert done.returncode == 2
    assert "broken.yaml is not YAML" in done.stderr


@pytest.mark.skipif(Path("/run/qpid-ha").exists(), reason="a broker of this machine would be found too")
def test_the_only_broker_is_meant_and_of_several_one_must_be_chosen(broker: Broker, tmp_path: Path) -> None:
    assert qpid_ha("ping", XDG_RUNTIME_DIR=str(tmp_path)).returncode == 0
    (broker.directory / "node2.sock").touch()
    done = qpid_ha("ping", XDG_RUNTIME_DIR=str(tmp_path))
    assert done.returncode == 2
    assert "node2.sock" in done.stderr


def test_the_tool_looks_where_brokers_put_their_sockets(tmp_path: Path) -> None:
    for environment in ({}, {"XDG_RUNTIME_DIR": str(tmp_path)}, {"XDG_RUNTIME_DIR": "relative"}):
        assert defaults.control_socket("node1", environment).parent in socket_directories(environment)


def test_a_ping_imports_nothing_heavy(broker: Broker) -> None:
    """Monitors run it every few seconds on every node."""
    heavy = ("asyncio", "rich", "yaml", "proton", "psutil", "requests", "ssl")
    program = "import sys; from qpid_ha_agent.cli.admin import admin; admin(sys.argv[1:], standalone_mode=False)"
    program += f"; print([name for name in {heavy!r} if name in sys.modules])"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", program, "ping", "-b", str(broker.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "node1 is alive\n[]\n"
