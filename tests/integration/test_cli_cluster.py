"""Stories about what `qpid-ha` says of a cluster, and has it do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin_tool import qpid_ha
from control_broker import ControlBroker as Broker
from control_broker import asking, control_broker
from limits import LIMIT_S


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A primary of the test's own."""
    with control_broker(tmp_path / "qpid-ha", "primary") as broker:
        yield broker


def test_status_all_has_a_line_per_broker_also_for_one_that_is_silent(broker: Broker) -> None:
    heading, first, second, third = (line.split() for line in asking(broker, "status", "--all").stdout.splitlines())
    assert heading == ["name", "address", "state", "phase", "generation", "lsn", "in-sync"]
    assert first == ["node1", "amqp://a:5672", "primary", "active", "3", "100", "node1,", "node2"]
    assert second[:4] == ["node2", "amqp://a:5672", "ready", "-"]
    assert third == ["amqp://c:5672", "amqp://c:5672", "unreachable"]
    states = [row["state"] for row in json.loads(asking(broker, "status", "--all", "--format", "json").stdout)]
    assert states == ["primary", "ready", "unreachable"]


def test_what_status_suggests_goes_to_the_broker_that_was_asked(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent is silent, and it may not lead: each command that is said of that is complete."""
    told = {"name": "node1", "state": "connecting", "agent_silent_s": 7.2}
    told |= {"problem": "node2 is away: `qpid-ha activation list` shows what each one has", "paused": {"by": "olga"}}
    monkeypatch.setattr(broker, "status", lambda _params: told)
    problem, silent, paused = asking(broker, "status").stderr.splitlines()
    assert problem == f"node1: node2 is away: `qpid-ha -b {broker.path} activation list` shows what each one has"
    assert silent == (
        f"node1: its agent has not asked it for its status for 7.2 s: see `qpid-ha -b {broker.path} diagnose`"
    )
    assert "until somebody says `qpid-ha resume`; meanwhile" in paused, "which no broker is asked for"
    told["agent_silent_s"] = 0.4
    assert "its agent" not in asking(broker, "status").stderr


def test_query_all_has_a_column_per_broker(broker: Broker) -> None:
    lines = [line.split() for line in asking(broker, "query", "--all").stdout.splitlines()]
    assert lines == [["node1", "node2"], ["name", "node1", "node2"], ["connections", "2", "0"], ["lag", "7"]]
    assert json.loads(asking(broker, "query", "--all", "--format=json").stdout)[1]["lag"] == 7


def test_a_promotion_is_refused_with_the_reason_and_can_be_forced(broker: Broker) -> None:
    done = asking(broker, "promote")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "Error: node1 is catching up: promote node2, or use --force\n"
    done = asking(broker, "promote", "--force", "--cluster-manager")
    assert (done.exit_code, done.stdout) == (0, "node1 is primary of generation 4\n")
    asked = [params for method, params in broker.asked if method == "promote"]
    assert [params["force"] for params in asked] == [False, True]
    assert all(str(params["cause"]).startswith("promoted by ") for params in asked)


def test_a_primary_is_demoted_or_hands_over(broker: Broker) -> None:
    assert [line.split() for line in asking(broker, "demote").stdout.splitlines()][1] == ["state", "connecting"]
    assert json.loads(asking(broker, "demote", "--format", "json").stdout)["state"] == "connecting"
    assert asking(broker, "switchover").stdout == "node2 is primary\n"
    assert asking(broker, "switchover", "node3").stdout == "node3 is primary\n"
    assert [params.get("to") for _method, params in broker.asked[2:]] == [None, "node3"]
    causes = [str(params["cause"]).rpartition(" by ")[0] for _method, params in broker.asked]
    assert causes == ["demoted", "demoted", "a switchover", "a switchover"]


def test_backups_are_listed_with_what_they_lack(broker: Broker) -> None:
    heading, row = (line.split() for line in asking(broker, "backups").stdout.splitlines())
    assert heading == ["name", "state", "in-sync", "lsn", "lag-messages", "lag-bytes", "lag-s"]
    assert row == ["node2", "ready", "yes", "99", "12", "3400", "0.2"]
    assert json.loads(asking(broker, "backups", "--format", "json").stdout)[0]["lag_s"] == 0.25


def test_history_is_told_in_the_time_of_the_logs_wherever_it_is_read_and_in_milliseconds_to_programs(
    broker: Broker,
) -> None:
    done = qpid_ha("history", "-b", str(broker.path), TZ="UTC-2")
    assert done.stdout.splitlines()[1].split()[:5] == ["1", "node1", "1", "1970-01-02T00:00:00Z", "promoted"]
    assert json.loads(asking(broker, "history", "--format", "json").stdout)[0]["started_at_ms"] == 86_400_000


def test_one_queue_of_another_cluster_is_copied(broker: Broker) -> None:
    done = asking(broker, "replicate", "orders", "amqp://far:5672")
    assert done.stdout == "orders is copied from amqp://far:5672\n"
    assert broker.asked == [("replicate", {"queue": "orders", "address": "amqp://far:5672"})]


def test_a_copy_is_ended_by_the_name_of_its_queue(broker: Broker) -> None:
    asking(broker, "replicate", "orders", "--stop")
    assert broker.asked == [("replicate", {"queue": "orders", "stop": True})]


@pytest.mark.parametrize("words", [["--stop"], ["orders"], ["orders", "amqp://far:5672", "--stop"]])
def test_half_of_a_wish_for_a_copy_is_a_usage_error(broker: Broker, words: list[str]) -> None:
    done = qpid_ha("replicate", *words, "-b", str(broker.path))
    assert done.exit_code == 2
    assert broker.asked == []


def test_events_are_printed_as_they_come_until_the_broker_is_gone(broker: Broker) -> None:
    done = asking(broker, "events", "--format", "json")
    assert [json.loads(line).get("event") for line in done.stdout.splitlines()] == [None, "state", "primary"]
    assert done.exit_code == 3
    assert "tells nothing more" in done.stderr
    first, second, third = qpid_ha("events", "-b", str(broker.path), TZ="UTC-2").stdout.splitlines()
    assert "state=ready" in first
    assert second == "1970-01-02T00:00:00Z node1: ready -> primary (promoted)"
    assert third.endswith("node1: the primary is node1")


def test_watch_shows_brokers_and_backups(broker: Broker) -> None:
    lines = [line.split() for line in asking(broker, "watch", "--once").stdout.splitlines()]
    assert [line[0] for line in lines if line] == ["name", "node1", "node2", "amqp://c:5672", "name", "node2"]
    shown = json.loads(asking(broker, "watch", "--once", "--format", "json").stdout)
    assert [len(shown["brokers"]), len(shown["backups"])] == [3, 1]


def test_watch_goes_on_until_it_is_interrupted(broker: Broker) -> None:
    needed = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "watch", "-b", str(broker.path)]
    # What a shell starts in the background ignores SIGINT, and so would all that it starts: this test among it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        watching = subprocess.Popen(command, env=needed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert broker.wait_asked("backups", times=2)
    watching.send_signal(signal.SIGINT)
    shown, complaint = watching.communicate(timeout=LIMIT_S)
    assert (watching.returncode, complaint) == (0, "")
    assert "node2" in shown


@pytest.mark.parametrize("name", ["brokers-url", "public-url", "backup-timeout", "min-in-sync", "replicate"])
def test_set_knows_the_names_that_qpid_gave_to_a_clusters_settings(broker: Broker, name: str) -> None:
    done = asking(broker, "set", f"--{name}", "value")
    assert done.stdout == f"ha.{name}: none -> value\nnode3 is asked too\n"
    assert broker.asked == [("set", {"key": f"ha.{name}", "value": "value"})]


def test_a_standalone_broker_is_a_cluster_of_itself_and_has_nobody_to_hand_over_to(tmp_path: Path) -> None:
    with control_broker(tmp_path / "qpid-ha") as broker:
        assert asking(broker, "status", "--all").stdout.splitlines()[1].split() == ["node1", "standalone"]
        assert "12.3" in asking(broker, "query", "--all").stdout
        assert "standalone" in asking(broker, "watch", "--once").stdout
        done = asking(broker, "switchover")
        assert (done.exit_code, done.stdout) == (1, "")
        assert "ha.cluster" in done.stderr
        assert "ha.cluster" in asking(broker, "events").stderr
