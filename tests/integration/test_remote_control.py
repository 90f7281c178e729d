"""Stories about `qpid-ha -b amqp://...`: a broker administered from elsewhere, and who may do that."""

from __future__ import annotations

import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import proton
import pytest
from click.testing import CliRunner, Result
from proton.utils import BlockingConnection

from admin_tool import qpid_ha
from blocking_client import Management
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.control import RequestRefused, Unreachable
from qpid_ha_agent.remote_control import RemoteControlClient
from qpid_ha_config.addresses import Address
from running_broker import RunningBroker
from running_cluster import RunningCluster

pytestmark = pytest.mark.direct_only("an operator administers the broker that is asked")

PASSWORD = "correct horse"
SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin")
needs_cyrus = pytest.mark.skipif(
    not proton.SASL.extended(), reason="this Proton was built without Cyrus SASL (libsasl2-dev): it knows no passwords"
)


def address_of(broker: RunningBroker) -> Address:
    return Address("amqp", "127.0.0.1", broker.port)


@pytest.fixture
def users_db(tmp_path: Path) -> Path:
    """Users `replicator` and `guest`, with the same password."""
    path = tmp_path / "users.sasldb"
    for user in ("replicator", "guest"):
        command = [SASLPASSWD or "saslpasswd2", "-p", "-c", "-f", str(path), user]
        subprocess.run(command, input=PASSWORD, text=True, check=True, capture_output=True)
    return path


def secret_file(path: Path, password: str) -> Path:
    """A password that nobody else can read."""
    path.touch(mode=0o600)
    path.write_text(f"{password}\n")
    return path


def test_a_broker_is_administered_through_its_amqp_port(broker: RunningBroker) -> None:
    far = broker.url
    assert qpid_ha("ping", "-b", far).stdout == "test is alive\n"
    assert qpid_ha("status", "-b", f"127.0.0.1:{broker.port}").stdout == "standalone\n"
    assert qpid_ha("queue", "create", "orders", "-b", far).exit_code == 0
    assert "orders" in qpid_ha("queue", "list", "-b", far).stdout
    done = qpid_ha("get", "log-levle", "-b", far)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "did you mean log-level" in done.stderr
    assert "on the machine" in qpid_ha("events", "-b", far).stderr


def test_one_connection_carries_many_calls_of_any_size(broker: RunningBroker) -> None:
    with RemoteControlClient(address_of(broker)) as client:
        for number in range(200):
            client.call("queues", action="create", name=f"queue-{number}", arguments={"x-note": "ä\n" * 500})
        listed = client.call("queues")
        assert isinstance(listed, list)
        assert {f"queue-{number}" for number in range(200)} <= {row["name"] for row in listed}
        with pytest.raises(RequestRefused, match="queue-7"):
            client.call("queues", action="create", name="queue-7", arguments={})


def test_a_connection_that_is_not_marked_does_not_administer(management: Management) -> None:
    answer = management.ask("control", '{"jsonrpc": "2.0", "id": 1, "method": "ping"}', type="org.qpid-ha.broker")
    assert answer.status == 401
    assert "qpid.ha-admin" in answer.description


@needs_cyrus
def test_where_ha_username_is_set_nobody_else_administers(tmp_path: Path, users_db: Path) -> None:
    password_file = secret_file(tmp_path / "password", PASSWORD)
    values: dict[str, object] = {"sasl.users-db": users_db, "ha.username": "replicator"}
    values["ha.password-file"] = password_file
    with RunningBroker(values) as broker:
        mine = f"amqp://replicator@127.0.0.1:{broker.port}"
        assert qpid_ha("ping", "-b", mine, QPID_HA_PASSWORD=PASSWORD).stdout == "test is alive\n"
        assert qpid_ha("ping", "-b", mine, "--password-file", str(password_file)).exit_code == 0
        for other in (f"amqp://guest@127.0.0.1:{broker.port}", broker.url):
            done = qpid_ha("ping", "-b", other, QPID_HA_PASSWORD=PASSWORD)
            assert (done.exit_code, done.stdout) == (4, "")
            assert "ha.username" in done.stderr
        done = qpid_ha("ping", "-b", mine, QPID_HA_PASSWORD="wrong")
        assert done.exit_code == 4
        assert "replicator" in done.stderr


def test_where_the_broker_of_this_machine_is_down_another_one_tells_of_all(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, count=2) as cluster:
        cluster.form(0)
        here = {"QPID_HA_CONFIG": str(cluster.broker(1).config)}
        alive = qpid_ha("status", "--all", **here)
        assert (alive.exit_code, alive.stderr) == (0, "")
        cluster.kill(1)
        done = qpid_ha("status", "--all", "--format", "json", **here)
        assert done.exit_code == 0
        assert f"this is what the broker at {cluster.urls[0]} sees" in done.stderr
        assert [(row["name"], row["state"]) for row in json.loads(done.stdout)] == [
            ("broker1", "primary"),
            (None, "unreachable"),
        ]
        assert qpid_ha("query", "--all", **here).exit_code == 0
        cluster.kill(0)
        assert qpid_ha("status", "--all", **here).exit_code == 3


def test_connections_of_all_brokers_are_shown_and_closed_through_any_of_them(tmp_path: Path) -> None:
    audited = [tmp_path / f"audit{number}" for number in (1, 2)]
    own = [{"audit.file": str(path)} for path in audited]
    with RunningCluster(tmp_path, count=2, own_settings=own) as cluster:
        cluster.form(0)
        cluster.broker(0).ask("queues", action="create", name="orders")

        def ask(which: int, *words: str) -> Result:
            return CliRunner().invoke(admin, ["-b", str(cluster.broker(which).control_socket), "connections", *words])

        def listed(*words: str) -> list[dict[str, Any]]:
            done = ask(1, "list", "--format", "json", *words)
            assert (done.exit_code, done.stderr) == (0, "")
            rows: list[dict[str, Any]] = json.loads(done.stdout)
            return rows

        with closing(BlockingConnection(cluster.urls[0])) as client:
            client.create_receiver("orders")
            (row,) = listed("--node", "orders")
            assert (row["broker"], row["kind"], len(row["links"])) == ("broker1", "client", 1)
            brokers = {each["broker"] for each in listed()}
            assert brokers == {"broker1", "broker2"}, "each has at least the other one's"
            assert {each["broker"] for each in listed("--at", "broker1")} == {"broker1"}
            assert ask(1, "list").stdout.split()[:2] == ["broker", "id"]
            for words, code, text in (
                (("list", "--at", "broker7"), 1, "no broker broker7 answers; there are broker1, broker2"),
                (("close", "broker1/4711"), 1, "there is no connection 4711"),
                (("close", "4711"), 1, "there is no connection 4711"),
                (("close", "broker1/x"), 2, "node1/17"),
            ):
                done = ask(1, *words)
                assert (done.exit_code, text in done.stderr) == (code, True), done.stderr
            both = {each["id"] for each in listed("--at", "broker1")} & {
                each["id"] for each in listed("--at", "broker2")
            }
            for number in list(both)[:1]:
                done = ask(1, "close", str(number))
                assert (done.exit_code, f"broker1/{number}" in done.stderr) == (1, True), done.stderr
            done = ask(1, "close", f"broker1/{row['id']}", "--reason", "maintenance")
            assert done.stdout == f"connection {row['id']} of {row['address']} at broker1 closed\n", done.stderr
            assert listed("--node", "orders") == []
        lines = [[json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in audited]
        carried_out, asked_for = (
            [line for line in each if line["act"] == "connections close" and line["result"] == "done"] for each in lines
        )
        params = {"id": row["id"], "reason": "maintenance"}
        assert [line["params"] for line in asked_for] == [{**params, "broker": "broker1"}]
        assert [(line["channel"], line["via"], line["user"]) for line in carried_out] == [
            ("cluster", ["broker2"], asked_for[0]["user"])
        ]
        cluster.kill(0)
        done = ask(1, "list", "--format", "json")
        assert done.exit_code == 3
        assert f"the broker at {cluster.urls[0]}" in done.stderr
        assert {each["broker"] for each in json.loads(done.stdout)} <= {"broker2"}


def test_a_broker_that_is_not_there_is_unreachable() -> None:
    with RunningBroker() as broker:
        gone = address_of(broker)
    with pytest.raises(Unreachable, match=str(gone.port)):
        RemoteControlClient(gone, timeout_s=5).call("ping")


@needs_cyrus
def test_a_backup_with_a_wrong_password_says_so_in_its_status(tmp_path: Path, users_db: Path) -> None:
    secret, wrong = secret_file(tmp_path / "secret", PASSWORD), secret_file(tmp_path / "wrong", "wrong")
    settings = {"sasl.users-db": str(users_db), "ha": {"username": "replicator", "password-file": str(secret)}}
    cluster = RunningCluster(tmp_path, count=2, settings=settings)
    config = cluster.broker(1).config
    config.write_text(config.read_text().replace(str(secret), str(wrong)))
    with cluster:
        cluster.wait_until(lambda: bool(cluster.status(1).get("login_problem")), "the backup says what is wrong")
        done = qpid_ha("status", "-b", str(cluster.broker(1).control_socket))
        assert (done.exit_code, done.stdout) == (0, "connecting\n")
        assert f"broker2: cannot log in to the broker at {cluster.urls[0]}: amqp:unauthorized-access" in done.stderr
        forced = qpid_ha("promote", "--force", "-b", str(cluster.broker(1).control_socket))
        assert forced.exit_code == 1
        assert "somebody is there and could not be asked" in forced.stderr
        assert "amqp:unauthorized-access" in forced.stderr
        seen = qpid_ha("status", "--all", "-b", str(cluster.broker(1).control_socket))
        assert f"{cluster.urls[0]} is there and refuses this broker: amqp:unauthorized-access" in seen.stderr


def test_a_connection_without_tls_prepares_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proton would make two domains for each, which read all certificate authorities of the machine."""
    made = list[object]()
    monkeypatch.setattr(proton._reactor, "SSLDomain", lambda *arguments: made.append(arguments))
    with RunningBroker() as broker, closing(RemoteControlClient(address_of(broker))) as client:
        assert client.call("query")
    assert made == []
