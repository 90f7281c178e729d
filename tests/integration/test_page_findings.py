"""What a broker finds wrong for its web page: as `qpid-ha diagnose` would, of all brokers, whichever is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from certificate_authority import Authority
from cluster_in_process import InProcessBroker, InProcessCluster
from event_loops import in_event_loop
from qpid_ha_broker.diagnosis.facts import AGENT_SILENT_S
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.http.diagnoses import FRESH_S, SELDOM_S, Diagnoses
from qpid_ha_broker.server.http.metrics_source import MetricsSource
from qpid_ha_broker.server.http.refusals import HttpRefusal
from qpid_ha_broker.server.sets.agent_polls import AgentPolls


class Clock:
    """Time as a test has it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def keys(told: dict[str, Any]) -> list[str]:
    return [finding["key"] for finding in told["findings"]]


async def found(diagnoses: Diagnoses, clock: Clock, is_it: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """A diagnosis in which that is so; a cluster takes its moment to notice."""
    while not is_it(told := await diagnoses.findings()):
        clock.now_s += SELDOM_S
        await asyncio.sleep(0.02)  # a diagnosis tells nobody
    return told


@in_event_loop
async def test_a_page_of_a_backup_finds_what_that_of_the_primary_finds(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form("a")
        clock = Clock()
        pages = {name: Diagnoses(cluster.brokers[name], clock) for name in ("a", "b")}
        told = await found(pages["b"], clock, lambda told: not told["findings"])
        assert told["looked_at"]["brokers"] == 3
        assert told["looked_at"]["backups"] == 2
        assert [row for row in told["not_looked_at"] if "qpid-ha diagnose" not in row["why"]] == []
        await cluster.stop("c")
        for name in ("a", "b"):
            told = await found(pages[name], clock, lambda told: "broker-silent" in keys(told))
            (silent,) = [finding for finding in told["findings"] if finding["key"] == "broker-silent"]
            assert silent["severity"] == "warning"
            assert f"{cluster.url('c')} does not answer" in silent["text"]
            assert [each.partition("   #")[0] for each in silent["commands"]] == ["systemctl status qpid-ha"]
            assert told["broker"] == name


@in_event_loop
async def test_queues_disk_and_certificates_of_the_broker_are_looked_at(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("node1", days=90)
    settings = {
        "data-dir": str(tmp_path / "data"), "tls.certificate": str(certificate),
        "tls.key": str(key),
    }  # fmt: skip
    async with InProcessBroker(tmp_path, settings) as node1:
        clock = Clock()
        diagnoses = Diagnoses(node1.broker, clock)
        await node1.ask("queues", action="create", name="full", arguments={"qpid.max_count": 1})
        await node1.ask("queues", action="publish", name="full", body="x")
        told: dict[str, Any] = await diagnoses.findings()
        assert told["looked_at"] == {"brokers": 1, "queues": 1, "disks": 1, "certificates": 1}
        full = next(finding for finding in told["findings"] if finding["key"] == "queue-is-full")
        assert (full["about"], full["commands"]) == ("full", ["qpid-ha queue show full"])
        await node1.ask("queues", action="update", name="full", arguments={"qpid.max_count": 9})
        await node1.ask("queues", action="publish", name="full", body="y")
        clock.now_s += SELDOM_S
        told = await diagnoses.findings()
        assert {"queue-is-not-read"} == {*keys(told)} & {"queue-is-full", "queue-is-not-read"}


@in_event_loop
async def test_a_broker_tells_since_when_its_agent_has_asked_nothing(tmp_path: Path) -> None:
    """An agent that was stopped by a signal, or has died, leaves its broker alive: nobody else would notice."""
    async with InProcessBroker(tmp_path) as node1:
        agents, clock = Clock(), Clock()
        polls = node1.broker.membership.agent_polls = AgentPolls(agents)
        metrics = MetricsSource(node1.broker)
        assert "agent_silent_s" not in await node1.ask("status"), "there is none, as far as it knows"
        assert "qpid_ha_agent_silent_seconds" not in "".join(metrics.pieces())
        await node1.ask("status", agent=True)
        agents.now_s += AGENT_SILENT_S - 0.1
        diagnoses = Diagnoses(node1.broker, clock)
        assert "agent-silent" not in keys(await diagnoses.findings())
        agents.now_s += 0.2
        clock.now_s += FRESH_S
        assert (await node1.ask("status"))["agent_silent_s"] == 5.1
        assert "qpid_ha_agent_silent_seconds 5.1" in "".join(metrics.pieces())
        assert "agent-silent" in keys(await diagnoses.findings())
        await node1.ask("status", agent=True)
        clock.now_s += FRESH_S
        assert "agent-silent" not in keys(await diagnoses.findings())
        assert polls.silent_s() == 0.0


@in_event_loop
async def test_all_who_look_within_a_second_get_one_diagnosis(tmp_path: Path) -> None:
    async with InProcessBroker(tmp_path) as node1:
        clock, asked = Clock(), []
        methods = node1.broker.control.methods

        def status(params: dict[str, object]) -> object:
            asked.append(params)
            return methods["status"](params)

        node1.broker.control.methods = {**methods, "status": status}
        diagnoses = Diagnoses(node1.broker, clock)
        told = await asyncio.gather(*(diagnoses.findings() for _ in range(9)))
        assert all(each is told[0] for each in told)
        assert await diagnoses.findings() is told[0]
        assert len(asked) == 1
        clock.now_s += FRESH_S
        assert await diagnoses.findings() is not told[0]
        assert len(asked) == 2


@in_event_loop
async def test_what_was_found_counts_no_more_once_another_broker_leads(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        clock = Clock()
        page = Diagnoses(cluster.brokers["b"], clock)
        before = await page.findings()
        await cluster.ask("a", "switchover")
        await cluster.reach("b", State.PRIMARY)
        assert await page.findings() is not before
        assert clock.now_s == 0


@in_event_loop
async def test_a_broker_that_loads_its_store_says_so(tmp_path: Path) -> None:
    node1 = InProcessBroker(tmp_path)
    with pytest.raises(HttpRefusal, match="loads its store"):
        await Diagnoses(node1.broker).answer({})
    with pytest.raises(HttpRefusal, match="no parameters"):
        await Diagnoses(node1.broker).answer({"a": "b"})
