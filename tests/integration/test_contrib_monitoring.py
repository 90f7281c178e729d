"""Stories about what is in contrib/: a load balancer, alert rules and a dashboard, and a cluster that they watch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import proton
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from proton.utils import BlockingConnection

from cluster_in_process import free_ports
from http_port import HttpPort, write_tokens
from qpid_ha_agent.cli.invocation import facts_of
from qpid_ha_agent.http_control import HttpControlClient, HttpLogin
from qpid_ha_broker.metrics.families import FamilyKind, all_families
from qpid_ha_config.addresses import parse_admin
from qpid_ha_config.tokens import TokenRole
from running_cluster import RunningCluster

pytestmark = pytest.mark.direct_only("the balancer is between clients and brokers already")

CONTRIB = Path(__file__).resolve().parents[2] / "contrib"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/sbin")
PATIENCE_S = 30.0


def series() -> set[str]:
    """The names that can stand in an expression."""
    names = {"up", "ALERTS"}
    for family in all_families():
        is_histogram = family.kind is FamilyKind.HISTOGRAM
        names |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")} if is_histogram else {family.name}
    return names


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:qpid_ha|process)_[a-z0-9_]+|\bup\b", expression))


def test_each_figure_of_the_dashboard_and_the_alerts_exists() -> None:
    dashboard = json.loads((CONTRIB / "grafana" / "qpid-ha.json").read_text(encoding="utf-8"))
    used = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used += [str(each["query"]["query"]) for each in dashboard["templating"]["list"] if each["type"] == "query"]
    (rules,) = yaml.safe_load((CONTRIB / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    used += [rule["expr"] for rule in rules["rules"]]
    found = set().union(*map(names_in, used))
    assert len(found) > 30
    assert found <= series()


def test_the_alerts_fire_when_they_should_and_not_else() -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: ./dev setup installs Debian's prometheus"
    done = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"],
        cwd=CONTRIB / "prometheus", capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def haproxy(directory: Path, port: int, brokers: list[tuple[int, int]]) -> Iterator[subprocess.Popen[bytes]]:
    """The configuration of contrib/ with other addresses: `brokers` have a port for AMQP and one for HTTP."""
    assert HAPROXY is not None, "haproxy is missing: ./dev setup installs it"
    text = (CONTRIB / "haproxy.cfg").read_text(encoding="utf-8").replace("bind :5672", f"bind 127.0.0.1:{port}")
    for number, (amqp, http) in enumerate(brokers, 1):
        line = f"server node{number} node{number}:5672 check port 8672"
        assert line in text
        text = text.replace(line, f"server node{number} 127.0.0.1:{amqp} check port {http}")
    file = directory / "haproxy.cfg"
    file.write_text(text, encoding="utf-8")
    process = subprocess.Popen([HAPROXY, "-db", "-f", str(file)])
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def send_through(port: int, text: str) -> None:
    """Publish one message by way of the balancer, however long that takes to find the primary."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection = BlockingConnection(f"amqp://127.0.0.1:{port}", timeout=5)
            try:
                connection.create_sender("orders").send(proton.Message(body=text))
            finally:
                connection.close()
        except (proton.ProtonException, OSError):
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def test_a_balancer_finds_the_primary_and_the_next_one_and_the_figures_tell_of_it(tmp_path: Path) -> None:
    """One cluster for all questions about a cluster."""
    tokens = write_tokens(tmp_path / "tokens")
    front, *ports = free_ports(4)
    own = [{"admin.listen": f"http://127.0.0.1:{port}"} for port in ports]
    settings = {"admin.tokens": str(tmp_path / "tokens"), "ha.clients": "redirect"}
    with RunningCluster(tmp_path, settings=settings, own_settings=own) as cluster:
        there = [HttpPort(f"http://127.0.0.1:{port}", tokens) for port in ports]
        for port in there:
            assert port.get("/live").status_code == 200
            assert port.get("/primary").status_code == 503
        cluster.form()
        assert [port.get("/primary").status_code for port in there] == [200, 503, 503]
        for port in there[1:]:
            port.wait_status("/replica", 200)
            port.wait_status("/in-sync", 200)
            assert port.get("/ready").status_code == 503
            port.wait_status("/replica?max-lag=0", 503)
        amqp = [int(url.rpartition(":")[2]) for url in cluster.urls]
        with haproxy(tmp_path, front, list(zip(amqp, ports, strict=True))):
            send_through(front, "one")
            told = figures(there[0])
            assert told["qpid_ha_set_leading", ("default",)] == 1
            assert told["qpid_ha_set_in_sync_brokers", ("default",)] == 3
            backups = {labels[0] for name, labels in told if name == "qpid_ha_set_backup_lag_seconds"}
            assert len(backups) == 2
            assert told["qpid_ha_confirm_latency_seconds_count", ()] > 0
            assert told["qpid_ha_set_generation", ("default",)] == 1
            assert ("qpid_ha_set_replica_lag_seconds", ("default",)) in figures(there[1])

            login = HttpLogin(tokens[TokenRole.VIEWER])
            with HttpControlClient(parse_admin(there[1].url), login, PATIENCE_S) as watching:
                notes = watching.stream("events")
                assert facts_of(next(notes))["state"] == "ready"
                cluster.kill(0)
                cluster.promote(1)
                assert next(note for note in notes if facts_of(note)["state"] == "primary")
                notes.close()
            there[1].wait_status("/primary", 200)
            send_through(front, "two")
            told = figures(there[1])
            assert told["qpid_ha_set_generation", ("default",)] == 2
            assert told["qpid_ha_promotions_total", ()] == 1
            assert told["qpid_ha_queue_messages", ("orders", "default")] == 2


def figures(port: HttpPort) -> dict[tuple[str, tuple[str, ...]], float]:
    text = port.get("/metrics", TokenRole.METRICS).text
    return {
        (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
