"""Stories about `qpid-ha` as people and scripts run it: a real process, a real socket, output and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from admin_tool import qpid_ha
from control_broker import ControlBroker as Broker
from control_broker import asking, control_broker
from qpid_ha_config import defaults


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own."""
    with control_broker(tmp_path / "qpid-ha") as broker:
        yield broker


# --- asking -----------------------------------------------------------------------------------------------


def test_ping_names_the_broker(broker: Broker) -> None:
    done = asking(broker, "ping")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "node1 is alive\n", "")


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
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", "")


def test_query_prints_facts_in_three_formats(broker: Broker) -> None:
    lines = [line.split() for line in asking(broker, "query").stdout.splitlines()]
    assert ["enqueue-rate", "12.3"] in lines
    assert ["tls", "no"] in lines
    assert yaml.safe_load(asking(broker, "query", "--format", "yaml").stdout)["connections"] == 2
    assert json.loads(asking(broker, "query", "--format=json").stdout)["enqueue-rate"] == 12.34


def test_options_may_stand_before_the_command_and_the_last_one_counts(broker: Broker) -> None:
    path = str(broker.path)
    assert qpid_ha("-b", f"unix:{path}", "--format", "json", "status").stdout.startswith("{")
    assert qpid_ha("-b", "/nonexistent.sock", "status", "-b", path).exit_code == 0


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


def test_set_without_a_value_is_a_usage_error_before_anything_changes(broker: Broker) -> None:
    done = asking(broker, "set", "log-level=debug", "auto-create")
    assert done.exit_code == 2
    assert "auto-create" in done.stderr
    assert broker.asked == []


def test_a_refusal_is_on_stderr_with_exit_code_1(broker: Broker) -> None:
    done = asking(broker, "get", "log-levle")
    assert (done.exit_code, done.stdout) == (1, "")
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


@pytest.mark.parametrize("level", ["none", "configuration", "messages", "all"])
def test_queue_create_takes_every_level_of_replication(broker: Broker, level: str) -> None:
    done = asking(broker, "queue", "create", "orders", "--replicate", level)
    assert (done.exit_code, done.stderr) == (0, "")
    assert broker.asked[0][1]["arguments"] == {"qpid.replicate": level}


def test_a_number_that_no_json_can_hold_is_sent_as_text(broker: Broker) -> None:
    done = asking(broker, "queue", "create", "orders", "--argument", "x=1e400", "--argument", "y=NaN")
    assert (done.exit_code, done.stderr) == (0, "")
    assert broker.asked[0][1]["arguments"] == {"x": "1e400", "y": "NaN"}


def test_queue_create_says_what_is_meant_in_the_brokers_terms(broker: Broker) -> None:
    limits = "--max-messages 1000 --max-bytes 1MiB --policy ring --ttl 1.5s --priorities 10 --fairshare 2"
    life = "--alternate-exchange dead --delivery-limit 5 --exclusive --auto-delete --auto-delete-delay 1m --durable"
    others = "--replicate none --argument x-mine=7"
    words = f"{limits} {life} {others}".split()
    done = asking(broker, "queue", "create", "orders", *words)
    assert (done.exit_code, done.stderr) == (0, "")
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
    assert asking(broker, "queue", "delete", "orders", "--if-empty").exit_code == 0
    assert asking(broker, "queue", "purge", "orders").exit_code == 0
    assert broker.asked == [
        ("queues", {"action": "delete", "name": "orders", "if_empty": True, "if_unused": False}),
        ("queues", {"action": "read", "name": "orders"}),
        ("queues", {"action": "purge", "name": "orders"}),
    ]
    done = asking(broker, "queue", "delete", "absent")
    typed = f"qpid-ha -b {broker.path} queue list"
    assert (done.exit_code, done.stderr) == (1, f"Error: no queue named absent; see `{typed}`\n")


def test_exchanges_are_made_bound_and_shown(broker: Broker) -> None:
    assert asking(broker, "exchange", "create", "news", "--kind", "headers").exit_code == 0
    assert asking(broker, "exchange", "bind", "news", "orders", "a.#", "--argument", "x-match=any").exit_code == 0
    assert asking(broker, "exchange", "unbind", "news", "orders", "a.#").exit_code == 0
    assert asking(broker, "exchange", "delete", "news").exit_code == 0
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
        (["ping", "-b", "ftp://node2:5672"], "amqp://"),
        (["ping", "-b", "amqp://me:secret@node2:5672"], "--password-file"),
        (["ping", "-b", "node2:99999"], "99999"),
        (["ping", "-b", "me@node2:1", "--password-file", "/nonexistent"], "/nonexistent"),
        (["status", "--all", "--is-primary"], "give one"),
        (["replicate", "orders"], "REMOTE-BROKER"),
        (["watch", "--format", "json"], "qpid-ha events"),
    ],
    ids=" ".join,
)
def test_a_usage_error_says_what_would_be_right(words: list[str], named: str) -> None:
    done = qpid_ha(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_no_broker_is_exit_code_3(tmp_path: Path) -> None:
    for words in (["-b", str(tmp_path / "absent.sock")], ["-b", "absent"], ["-b", "absent.invalid:5672"]):
        done = qpid_ha("ping", *words)
        assert (done.exit_code, done.stdout) == (3, "")
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
    assert [(done.exit_code, done.stdout) for done in found] == [(0, "node1 is alive\n")] * 4


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("name: [")
    done = qpid_ha("ping", QPID_HA_CONFIG=str(tmp_path / "broken.yaml"))
    assert done.exit_code == 2
    assert "broken.yaml:1:8: it is not YAML" in done.stderr


@pytest.mark.skipif(any(Path("/run/qpid-ha").glob("*.sock")), reason="a broker of this machine would be found too")
def test_the_only_broker_is_meant_and_of_several_one_must_be_chosen(broker: Broker, tmp_path: Path) -> None:
    assert qpid_ha("ping", XDG_RUNTIME_DIR=str(tmp_path)).exit_code == 0
    (broker.directory / "node2.sock").touch()
    done = qpid_ha("ping", XDG_RUNTIME_DIR=str(tmp_path))
    assert done.exit_code == 2
    assert "node2.sock" in done.stderr


def test_the_tool_looks_where_brokers_put_their_sockets(tmp_path: Path) -> None:
    for environment in ({}, {"XDG_RUNTIME_DIR": str(tmp_path)}, {"XDG_RUNTIME_DIR": "relative"}):
        assert defaults.control_socket("node1", environment).parent in defaults.socket_directories(environment)


def test_a_ping_imports_nothing_heavy(broker: Broker) -> None:
    """Monitors run it every few seconds on every node."""
    heavy = ("asyncio", "rich", "yaml", "proton", "psutil", "requests", "ssl")
    program = "import sys; from qpid_ha_agent.cli.admin import admin; admin(sys.argv[1:], standalone_mode=False)"
    program += f"; print([name for name in {heavy!r} if name in sys.modules])"
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", program, "ping", "-b", str(broker.path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "node1 is alive\n[]\n"
