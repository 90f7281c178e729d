"""Stories about `qpid-ha diagnose` and `qpid-ha support-bundle`: brokers that are killed, and a real archive."""

from __future__ import annotations

import json
import socket
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from admin_tool import qpid_ha
from certificate_authority import Authority
from control_broker import ControlBroker, answering
from qpid_ha_agent.diagnosis.machine import LookedAt, look_at_machine, read_written
from qpid_ha_broker.diagnosis.facts import LocalProcess, Supervisor
from qpid_ha_config.certificates import CertificateError, validities
from running_cluster import RunningCluster

pytestmark = pytest.mark.direct_only("it is about brokers themselves, and asks each of them")

OF_THE_DISK = {"disk-nearly-full"}
"""That may be so on the machine of a test."""


def diagnosed(config: Path, *words: str) -> tuple[int, dict[str, Any]]:
    done = qpid_ha("diagnose", "--format", "json", *words, QPID_HA_CONFIG=str(config))
    assert not done.stderr, done.stderr
    return done.exit_code, json.loads(done.stdout)


class Diagnosis:
    """The last one that was made: texts by key."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def finds(self, config: Path, *wanted: str) -> bool:
        """Whether just that is wrong now, as the machine with this configuration sees it."""
        _, document = diagnosed(config)
        self.texts = {finding["key"]: finding["text"] for finding in document["findings"]}
        return set(self.texts) - OF_THE_DISK == set(wanted)


@contextmanager
def cluster_with_logs(tmp_path: Path) -> Iterator[RunningCluster]:
    logs = [{"log-file": str(tmp_path / f"node{number}.log")} for number in range(3)]
    with RunningCluster(tmp_path, agents=True, stores=tmp_path / "stores", own_settings=logs) as cluster:
        cluster.wait_whole()
        yield cluster


def test_a_cluster_is_diagnosed_with_all_half_and_none_of_it_alive(tmp_path: Path) -> None:
    with cluster_with_logs(tmp_path) as cluster:
        primary = cluster.the_primary()
        killed, stopped = (broker for broker in cluster.brokers if broker is not primary)

        diagnosis = Diagnosis()
        cluster.wait_until(lambda: diagnosis.finds(primary.config), "nothing is wrong")
        archive = tmp_path / "bundle.tar.gz"
        made = qpid_ha("support-bundle", "--output", str(archive), QPID_HA_CONFIG=str(killed.config))
        assert (made.exit_code, made.stderr) == (0, "")
        with tarfile.open(archive) as opened:
            names = {name.partition("/")[2] for name in opened.getnames()}
        places = [f"brokers/{broker.name}" for broker in cluster.brokers]
        expected = {f"{place}/{what}.json" for place in places for what in ("status", "settings")}
        expected |= {f"brokers/{primary.name}/{what}.json" for what in ("history", "backups", "queues")}
        expected |= {f"logs/node{cluster.brokers.index(killed)}.log", "store/facts.json"}
        assert names >= expected | {"index.json", "diagnosis.txt", "coordinator.json", "configuration.json"}

        assert qpid_ha("pause", "--reason", "new disks", QPID_HA_CONFIG=str(primary.config)).exit_code == 0
        cluster.kill(killed)
        stopped.terminate()
        stopped.wait()
        half = ("paused", "broker-silent", "no-backup")
        cluster.wait_until(lambda: diagnosis.finds(primary.config, *half), "one is killed, one is stopped")
        assert "new disks" in diagnosis.texts["paused"]
        cluster.wait_until(
            lambda: diagnosis.finds(killed.config, *half, "broker-not-running"), "the same, seen from the killed one"
        )
        assert "its log ends with: " in diagnosis.texts["broker-not-running"]
        cluster.wait_until(
            lambda: diagnosis.finds(stopped.config, *half, "broker-not-running", "agent-not-running"),
            "the same, seen from the stopped one, which has no agent any more",
        )

        primary.kill()
        # The killed one's store, at rest, does not have what the last primary confirmed alone.
        last = ("nobody-answers", "promotion-refused", "broker-not-running", "paused")
        cluster.wait_until(lambda: diagnosis.finds(killed.config, *last), "nobody is left")
    nobody = qpid_ha("diagnose", "-b", cluster.urls[0])
    assert (nobody.exit_code, nobody.stdout) == (3, "")
    assert "nothing could be asked" in nobody.stderr
    assert "systemctl status" in nobody.stderr


def test_a_broker_that_takes_connections_and_does_not_answer_is_told_by_its_process(tmp_path: Path) -> None:
    path, config = tmp_path / "s", tmp_path / "qpid-ha.yaml"
    config.write_text(f"name: node1\ncontrol-socket: {path}\n")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        code, document = diagnosed(config, "--timeout", "2")
    assert code == 1
    assert [finding["key"] for finding in document["findings"]] == ["broker-hangs"]


def test_a_mistake_in_the_address_is_one_of_usage() -> None:
    done = qpid_ha("diagnose", "-b", "amqp://olga:Zx9-planted@node1")
    assert done.exit_code == 2
    assert "Zx9-planted" not in done.stderr


# --- what this machine tells


def test_the_end_of_a_certificate_is_read_as_openssl_made_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    valid, _ = authority.issue("valid", days=40)
    (left_s,) = [each.ends_s - time.time() for each in validities(valid.read_text())]
    assert abs(left_s - 40 * 86_400) < 600
    chain = validities(valid.read_text() + authority.certificate.read_text())
    assert len(chain) == 2
    with pytest.raises(CertificateError):
        validities(valid.read_text().replace("MII", "MIJ"))


def looked_at(config: Path) -> LookedAt:
    looked = LookedAt()
    read_written(config, looked)
    look_at_machine(looked, {})
    return looked


def test_a_machine_tells_of_its_configuration_disk_and_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("node1", days=5)
    key.chmod(0o600)
    discarded = tmp_path / "data" / "discarded"
    discarded.mkdir(parents=True)
    (discarded / "orders-1.log").write_bytes(b"")
    (discarded / "orders-0.log.replayed").write_bytes(b"")
    rules = tmp_path / "acl"
    rules.write_text("allow all all\nalow bob publish\n")
    config = tmp_path / "qpid-ha.yaml"
    config.write_text(
        f"name: node1\ndata-dir: {tmp_path / 'data'}\nlisten: [amqp://127.0.0.1:5672]\n"
        f"tls: {{certificate: {certificate}, key: {key}, ca: {authority.certificate}}}\nacl: {{file: {rules}}}\n"
        "ha: {cluster: true, brokers-url: 'amqp://127.0.0.1:5672,127.0.0.1:5673', coordinator: 'file:/nowhere'}\n"
    )
    state = looked_at(config).state
    assert (state.name, state.supervisor, state.discarded_files) == ("node1", Supervisor.AGENT, 1)
    assert state.total_bytes > state.free_bytes > 0
    assert [Path(each.path).name for each in state.certificates] == ["node1.pem", "ca.pem"]
    assert "acl:2" in state.acl_problem
    assert state.config_problem == ""
    assert not state.has_agent
    rules.write_text("allow all all\n")
    config.write_text(config.read_text().replace("name: node1", "nmae: node1"))
    state = looked_at(config).state
    assert "did you mean name" in state.config_problem
    assert state.acl_problem == ""


def test_a_configuration_that_is_no_yaml_is_a_finding_and_not_an_end(tmp_path: Path) -> None:
    config = tmp_path / "qpid-ha.yaml"
    config.write_text("name: [")
    state = looked_at(config).state
    assert "not YAML" in state.config_problem
    assert state.process is LocalProcess.UNKNOWN


# --- secrets


PLANTED = [f"Planted-{number:02}-secret" for number in range(20)]


class LeakyBroker(ControlBroker):
    """Tells secrets in what it answers, as a broker with a fault could."""

    def status(self, params: dict[str, object]) -> object:
        return {"state": "standalone", "name": "node1", "problem": f"amqp://a:{PLANTED[0]}@b refuses {PLANTED[3]}"}

    def get(self, params: dict[str, object]) -> object:
        return {"name": "node1", "ha.password": PLANTED[1], "ha.public-url": f"amqp://me:{PLANTED[2]}@x:1"}

    def queues(self, params: dict[str, object]) -> object:
        arguments = {"qpid.cluster.source": f"amqp://u:{PLANTED[17]}@far/q"}
        return [{"name": "orders", "messages": 0, "consumers": 0, "arguments": arguments}]


def test_no_secret_is_in_a_bundle_wherever_there_was_one(tmp_path: Path) -> None:
    """In the configuration, its files, the environment, answers, and in log lines by chance."""
    broker = LeakyBroker(tmp_path)
    for number, name in enumerate(("peer", "coordinator", "remote", "given"), start=4):
        (tmp_path / name).write_text(f"{PLANTED[number]}\n")
        (tmp_path / name).chmod(0o600)
    log, data, config = tmp_path / "broker.log", tmp_path / "data", tmp_path / "qpid-ha.yaml"
    (data / "discarded").mkdir(parents=True)
    (data / "discarded" / "orders-1.log").write_text(f"a message: {PLANTED[8]}")
    log.write_text(
        f"2026-01-31T03:00:00.123Z info broker listens\ncannot reach amqp://u:{PLANTED[9]}@node2:5672/x\n"
        f"it sent {PLANTED[3]} and {PLANTED[4]} and {PLANTED[5]} and {PLANTED[6]}, {PLANTED[10]}, {PLANTED[11]}\n"
        f"password: {PLANTED[12]}\nAuthorization: Bearer {PLANTED[13]}\n"
    )
    config.write_text(
        f"name: node1\ncontrol-socket: {broker.path}\nlog-file: {log}\ndata-dir: {data}\n"
        f"sasl: {{users-db: /x/{PLANTED[14]}}}\nacl: {{rules: ['allow {PLANTED[15]} all']}}\n"
        f"ha: {{username: me, password: {PLANTED[3]}, on-promoted: /bin/x --key {PLANTED[16]},"
        f" password-file: {tmp_path}/peer, coordinator: 'file:{tmp_path}', public-url: 'amqp://w:{PLANTED[18]}@h',"
        f" coordinator-username: me, coordinator-password-file: {tmp_path}/coordinator}}\n"
        f"remote-nodes: {{far: {{url: 'amqp://far/q', user: me, password-file: {tmp_path}/remote}}}}\n"
    )
    config.chmod(0o600)
    archive = tmp_path / "bundle.tar.gz"
    secrets = {"QPID_HA_PASSWORD": PLANTED[10], "QPID_HA_TOKEN": PLANTED[11], "OTHER": PLANTED[19]}
    words = ["support-bundle", "--output", str(archive), "--password-file", str(tmp_path / "given")]
    with answering(broker):
        made = qpid_ha(*words, QPID_HA_CONFIG=str(config), **secrets)
    assert made.exit_code == 0, made.stderr
    with tarfile.open(archive) as opened:
        members = [(member.name, opened.extractfile(member)) for member in opened.getmembers()]
        content = {name.partition("/")[2]: file.read().decode() for name, file in members if file is not None}
    assert [secret for secret in PLANTED if secret in made.stdout + made.stderr + "".join(content)] == []
    assert [(name, secret) for name, text in content.items() for secret in PLANTED if secret in text] == []
    assert "info broker listens" in content["logs/broker.log"]
    assert '"name": "orders"' in content["brokers/node1/queues.json"]
    assert {"ha.password", "remote-nodes"} <= set(json.loads(content["configuration.json"])["set_and_not_shown"])
    assert archive.stat().st_mode & 0o777 == 0o600
    again = qpid_ha(*words, QPID_HA_CONFIG=str(config))
    assert (again.exit_code, "already" in again.stderr) == (1, True)
