"""Access control of a broker that runs: users who have logged in, rules read again, and what an operator is told."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import proton
import pytest
from click.testing import Result
from proton.utils import LinkDetached

import admin_tool
from blocking_client import BlockingClient, Management
from qpid_ha_agent.control import ControlClient
from running_broker import RunningBroker

PASSWORD = "correct horse"
SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin") or "saslpasswd2"
PLENTY_S = 30.0
RULES = """
group operators olga
allow @operators administer,manage,purge
allow authenticated publish,consume,create ${user}.*
allow all publish,create inbox
allow authenticated create,publish temporary.*
"""

pytestmark = [
    pytest.mark.direct_only("rules are read again at the broker that is asked"),
    pytest.mark.skipif(not proton.SASL.extended(), reason="this Proton was built without Cyrus SASL: no passwords"),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users `alice`, `olga` and `replicator`, one password in a file, and the rules."""
    directory = tmp_path_factory.mktemp("acl")
    for user in ("alice", "olga", "replicator"):
        command = [SASLPASSWD, "-p", "-c", "-f", str(directory / "users"), user]
        subprocess.run(command, input=PASSWORD, text=True, check=True, capture_output=True, timeout=30)
    (directory / "password").touch(0o600)
    (directory / "password").write_text(f"{PASSWORD}\n")
    return directory


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[RunningBroker]:
    (directory / "rules").write_text(RULES)
    values: dict[str, object] = {
        "sasl.users-db": directory / "users",
        "acl.file": directory / "rules",
        "audit.file": directory / "audit",
        "ha.username": "replicator",
        "ha.password-file": directory / "password",
    }
    with RunningBroker(values) as running:
        yield running


@pytest.fixture
def rules(broker: RunningBroker, directory: Path) -> Iterator[Path]:
    """The file; afterwards it is as it was, and in force."""
    yield directory / "rules"
    (directory / "rules").write_text(RULES)
    assert qpid_ha(broker, "acl", "reload").exit_code == 0


def client_of(broker: RunningBroker, user: str = "") -> BlockingClient:
    if not user:
        return BlockingClient(broker.url)
    return BlockingClient(broker.url, user=user, password=PASSWORD, allowed_mechs="SCRAM-SHA-256")


def qpid_ha(broker: RunningBroker, *words: str, user: str = "") -> Result:
    """On the broker's own socket, or as a user through AMQP."""
    there = f"amqp://{user}@127.0.0.1:{broker.port}" if user else str(broker.control_socket)
    return admin_tool.qpid_ha(*words, "-b", there, QPID_HA_PASSWORD=PASSWORD)


def test_users_do_what_the_rules_say_and_are_told_how_to_be_allowed_more(broker: RunningBroker) -> None:
    with client_of(broker, "alice") as alice, client_of(broker) as stranger:
        alice.send("alice.in", "x")
        with pytest.raises(
            LinkDetached, match=r"alice may not publish olga\.in.*`allow alice publish olga\.in`"
        ) as refused:
            alice.send("olga.in", "x")
        assert refused.value.condition == "amqp:unauthorized-access"
        with pytest.raises(LinkDetached, match=r"who has not logged in may not publish anonymous\.in"):
            stranger.send("anonymous.in", "x")
        stranger.send("inbox", "x")
        assert Management(alice).ask("PURGE", type="queue", name="alice.in").status == 401
    with client_of(broker, "olga") as olga:
        assert Management(olga).ask("PURGE", type="queue", name="alice.in").body == {"purged": 1}
    assert "alice may not publish olga.in" in broker.log()
    assert PASSWORD not in broker.log()


def test_who_may_administer_does_so_through_amqp_and_brokers_only_ask(broker: RunningBroker) -> None:
    assert qpid_ha(broker, "get", "log-level", user="olga").stdout == "info\n"
    assert qpid_ha(broker, "ping", user="replicator").exit_code == 0
    for user, reason in (
        ("alice", "alice may not administer"),
        ("replicator", "no rule names the user of the cluster"),
    ):
        done = qpid_ha(broker, "get", "log-level", user=user)
        assert (done.exit_code, done.stdout) == (4, "")
        assert reason in done.stderr


def test_an_operator_asks_which_rule_decides(broker: RunningBroker, directory: Path) -> None:
    shown = qpid_ha(broker, "acl", "list").stdout
    assert "group operators olga" in shown
    assert "allow all publish,create inbox" in shown
    printed = qpid_ha(broker, "acl", "show")
    assert printed.stdout.splitlines() == RULES.strip().splitlines()
    assert printed.stderr == f"these are the rules of {directory}/rules\n"
    done = qpid_ha(broker, "acl", "check", "alice", "publish", "alice.in")
    line = f"{directory}/rules:4: allow authenticated publish,consume,create ${{user}}.*"
    assert (done.exit_code, done.stdout) == (0, f"allowed: {line}\n")
    done = qpid_ha(broker, "acl", "check", "anonymous", "publish", "alice.in")
    assert (done.exit_code, done.stdout) == (1, "denied: no rule matches\n")
    assert "did you mean publish?" in qpid_ha(broker, "acl", "check", "alice", "publsh", "q").stderr


def test_other_rules_are_in_force_at_once_and_bad_ones_never(broker: RunningBroker, rules: Path) -> None:
    with client_of(broker, "alice") as alice:
        alice.send("alice.in", "x")
        rules.write_text("allow alice publsh\n")
        done = qpid_ha(broker, "acl", "reload")
        assert done.exit_code == 1
        assert f"{rules}:1: there is no action 'publsh'; did you mean publish?" in done.stderr
        assert "the rules in force stay" in done.stderr
        alice.send("alice.in", "x")
        rules.write_text("allow alice consume\nlimit alice links=1\n")
        assert "1 rule of" in qpid_ha(broker, "acl", "reload").stdout
        with ControlClient(broker.control_socket) as control:
            limits: Any = control.call("user-limits", user="alice")
        assert [row["limit"] for row in limits if row["kind"] == "links"] == [1]
        with pytest.raises(LinkDetached, match="alice may not publish"):
            alice.send("alice.in", "x")


def test_sighup_reads_the_rules_again(broker: RunningBroker, rules: Path) -> None:
    rules.write_text("allow all browse\n")
    (rules.parent / "audit").rename(rules.parent / "audit.1")  # as logrotate does
    os.kill(broker.pid, signal.SIGHUP)
    assert broker.await_log("read again: 1 rule", PLENTY_S)
    with client_of(broker, "alice") as alice, pytest.raises(LinkDetached, match="alice may not publish"):
        alice.send("alice.in", "x")
    acts = [json.loads(line) for line in (rules.parent / "audit").read_text().splitlines()]
    assert [(act["channel"], act["act"], act["result"]) for act in acts] == [
        ("signal", "reload-tls", "done"),
        ("signal", "reload-acl", "done"),
    ]


def test_rules_of_the_configuration_are_read_again_too_and_never_vanish() -> None:
    with RunningBroker(config="acl: {rules: [allow all all]}\nmax-connections: 50\n") as broker:
        file = broker.directory / "qpid-ha.yaml"
        client = BlockingClient(broker.url)
        with client:
            client.send("inbox", "x")
            for text, problem in (
                ("acl: {rules: [allow all publsh]}\n", "entry 1: there is no action 'publsh'; did you mean publish?"),
                ("acl: {rules: [\n", "qpid-ha.yaml"),
                ("max-connections: 50\n", "acl.rules: the configuration has no acl any more"),
            ):
                file.write_text(text)
                done = qpid_ha(broker, "acl", "reload")
                assert (done.exit_code, problem in done.stderr) == (1, True), done.stderr
                assert "the rules in force stay" in done.stderr
                client.send("inbox", "x")
            file.write_text("acl: {rules: [allow all browse, deny all publish]}\nmax-connections: 1\n")
            assert "2 rules of acl.rules are in force" in qpid_ha(broker, "acl", "reload").stdout
            with pytest.raises(LinkDetached, match="may not publish"):
                client.send("inbox", "x")
        shown = qpid_ha(broker, "--format", "json", "get").stdout
        found = json.loads(shown)
        assert (found["acl.rules"], found["max-connections"]) == (["allow all browse", "deny all publish"], 50)
        os.kill(broker.pid, signal.SIGHUP)
        assert broker.await_log("read again: 2 rules.*\\n(?s:.*)read again: 2 rules", PLENTY_S)


def test_who_did_what_by_which_way_is_in_the_audit_log(broker: RunningBroker, directory: Path) -> None:
    assert qpid_ha(broker, "queue", "create", "mine").exit_code == 0
    assert qpid_ha(broker, "set", "log-level", "info", user="olga").exit_code == 0
    with client_of(broker, "olga") as olga, client_of(broker, "alice") as alice:
        assert Management(olga).ask("PURGE", type="queue", name="mine").status == 200
        assert Management(alice).ask("DELETE", type="queue", name="mine").status == 401
    text = (directory / "audit").read_text()
    acts = [json.loads(line) for line in text.splitlines()][-4:]
    assert [(act["channel"], act["user"], act["act"], act["result"]) for act in acts] == [
        ("control-socket", pwd.getpwuid(os.getuid()).pw_name, "queues create", "done"),
        ("amqp", "olga", "set", "done"),
        ("management", "olga", "queue PURGE", "done"),
        ("management", "alice", "queue DELETE", "denied"),
    ]
    assert (acts[0]["uid"], acts[0]["params"]) == (os.getuid(), {"name": "mine", "arguments": {}})
    assert acts[1]["params"] == {"key": "log-level", "value": "info"}
    assert all(act["address"].startswith("127.0.0.1:") for act in acts[1:])
    assert PASSWORD not in text
