"""Definitions on the page: what a command exports is exported, and a file is looked at before it is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_in_process import InProcessBroker, InProcessCluster
from event_loops import in_event_loop
from qpid_ha_broker.server.http.definition_pages import DefinitionPages
from qpid_ha_broker.server.http.refusals import HttpRefusal


async def carry_out(broker: InProcessBroker, plan: dict[str, Any]) -> None:
    """As the page does."""
    for step in plan["steps"]:
        await broker.ask(step["method"], **step["params"])


@in_event_loop
async def test_what_is_exported_makes_another_broker_the_same_and_the_same_again_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with InProcessBroker(tmp_path / "a") as one, InProcessBroker(tmp_path / "b") as other:
        await one.ask("queues", action="create", name="orders", arguments={"qpid.max_count": 5})
        await one.ask("exchanges", action="create", name="news", kind="topic")
        await one.ask("exchanges", action="bind", name="news", queue="orders", key="a.#")
        exported: dict[str, Any] = dict(await DefinitionPages(one.broker).export())
        assert [queue["name"] for queue in exported["queues"]] == ["orders"]
        pages = DefinitionPages(other.broker)
        plan: dict[str, Any] = dict(await pages.plan(json.dumps(exported), update=False))
        assert [step["thing"].split()[0] for step in plan["steps"]] == ["topic", "queue", "binding"]
        assert plan["conflicts"] == []
        assert await other.ask("queues", action="list") == []
        await carry_out(other, plan)
        assert dict(await pages.export()) == exported
        again = await pages.plan(json.dumps(exported), update=False)
        assert (again["steps"], again["unchanged"]) == ([], 3)


@in_event_loop
async def test_what_cannot_be_had_is_told_and_users_are_left_out(tmp_path: Path) -> None:
    async with InProcessBroker(tmp_path) as node1:
        await node1.ask("queues", action="create", name="orders", arguments={"qpid.max_count": 5})
        pages = DefinitionPages(node1.broker)
        file = {
            "format": 1,
            "queues": [
                {"name": "orders", "arguments": {"qpid.max_count": 6}},
                {"name": "wrong", "arguments": {"qpid.max_count": "many"}},
            ],
            "tokens": [{"name": "x", "role": "viewer", "digest": "0" * 64}],
        }
        plan: dict[str, Any] = dict(await pages.plan(json.dumps(file), update=False))
        assert {conflict["thing"] for conflict in plan["conflicts"]} == {"queue orders", "queue wrong"}
        assert plan["left_out"] == 1
        assert {step["method"] for step in plan["steps"]} == {"queues"}
        updated: dict[str, Any] = dict(await pages.plan(json.dumps(file), update=True))
        assert {conflict["thing"] for conflict in updated["conflicts"]} == {"queue wrong"}
        for text in ("format: 1\nqueue: []\n", "- x", "format: 2"):
            with pytest.raises(HttpRefusal, match="the file"):
                await pages.plan(text, update=False)


@in_event_loop
async def test_settings_and_sets_of_a_cluster_are_in_it(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        await cluster.ask("a", "sets", action="create", name="bills", replicas=["a", "b"])
        await cluster.ask("a", "settings", action="set", key="publisher-credit", value=500)
        exported: dict[str, Any] = dict(await DefinitionPages(cluster.brokers["b"]).export())
        assert [row["name"] for row in exported["sets"]] == ["bills"]
        assert exported["settings"] == [{"key": "publisher-credit", "value": 500}]
