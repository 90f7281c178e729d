"""Settings of a cluster: set at any broker, in force at all, kept, and refused where a broker cannot have them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.exchanges.broker_events import EventSubject

KEY = "max-message-size"


def in_force(cluster: InProcessCluster) -> Mapping[str, object]:
    return {name: broker.current().get(KEY) for name, broker in cluster.brokers.items()}


async def has(cluster: InProcessCluster, value: str) -> None:
    await eventually(lambda: set(in_force(cluster).values()) == {value})


@in_event_loop
async def test_what_is_set_at_a_backup_is_in_force_at_all_and_at_the_next_primary(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form_with_controller("a")
        told = await cluster.ask("b", "settings", action="set", key=KEY, value="2MiB")
        assert told == {"key": KEY, "old": "100MiB", "new": "2MiB"}
        await has(cluster, "2MiB")
        assert cluster.brokers["c"].container.settings.max_message_bytes == 2 * 1024**2
        events = cluster.brokers["c"].container.notices.events.last([EventSubject.SETTING_CHANGED], 10)
        assert [(event.facts["key"], event.facts["unset"]) for event in events] == [(KEY, False)]
        await cluster.stop("a")
        await cluster.ask("b", "promote")
        assert in_force(cluster) == {"b": "2MiB", "c": "2MiB"}
        await cluster.start("a")
        await has(cluster, "2MiB")
        await cluster.knows_controller("c")
        await cluster.ask("c", "settings", action="unset", key=KEY)
        await has(cluster, "100MiB")
        history = await cluster.ask("a", "settings", action="history")
        assert [(row["key"], row["value"]) for row in history] == [(KEY, "2MiB"), (KEY, None)]
        assert all(row["user"] for row in history)


@in_event_loop
async def test_one_that_cannot_have_it_has_it_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.stop("b")
        await cluster.start("b", memory_limit="16MiB", max_message_size="1MiB")
        await cluster.form_with_controller("a")
        with pytest.raises(RequestRefused, match=r"b cannot put it in force, nothing is changed.*memory-limit"):
            await cluster.ask("a", "settings", action="set", key=KEY, value="32MiB")
        assert in_force(cluster) == {"a": "100MiB", "b": "1MiB"}
        assert await cluster.ask("a", "settings", action="history") == []


@in_event_loop
async def test_one_that_was_away_has_it_when_it_is_back_or_says_why_not(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form_with_controller("a")
        await cluster.stop("b")
        await cluster.stop("c")
        told = await cluster.ask("a", "settings", action="set", key=KEY, value="32MiB")
        assert [note.partition(" ")[0] for note in told["notes"]] == sorted([cluster.url("b"), cluster.url("c")])
        await cluster.start("b")
        await cluster.start("c", memory_limit="16MiB", max_message_size="1MiB")
        await eventually(lambda: in_force(cluster) == {"a": "32MiB", "b": "32MiB", "c": "1MiB"})
        await eventually(lambda: KEY in cluster.brokers["c"].layers.problems)
        row: dict[str, Any] = next(row for row in await cluster.ask("c", "settings") if row["key"] == KEY)
        assert (row["own"], row["cluster"], row["in_force"], "memory-limit" in row["problem"]) == (
            "1MiB", "32MiB", "1MiB", True,
        )  # fmt: skip


@in_event_loop
async def test_it_outlives_a_start_of_all_and_counts_before_a_broker_leads(tmp_path: Path) -> None:
    directories = {name: str(tmp_path / f"data-{name}") for name in ("a", "b")}
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        for name in ("a", "b"):
            await cluster.stop(name)
            await cluster.start(name, data_dir=directories[name])
        await cluster.form_with_controller("a")
        await cluster.ask("a", "settings", action="set", key="ha.min-in-sync", value="2")
        await cluster.ask("a", "shutdown", cluster=True)
        for name in ("a", "b"):
            await cluster.brokers[name].ended.wait()
            await cluster.stop(name)
            await cluster.start(name, data_dir=directories[name])
            assert cluster.member(name).member.settings.min_in_sync == 2


@in_event_loop
async def test_rules_of_access_are_in_force_at_all_and_a_broker_with_a_file_of_them_has_them_refused(
    tmp_path: Path,
) -> None:
    rules = ["allow alice consume orders", "limit alice connections=2"]
    asked = {"user": "alice", "action": "publish", "node": "orders"}
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form_with_controller("a")
        await cluster.ask("b", "settings", action="set", key="acl.rules", value=rules)
        await eventually(lambda: all(broker.container.access.rules for broker in cluster.brokers.values()))
        for name in ("a", "b"):
            assert not (await cluster.ask(name, "check-acl", **asked))["allowed"]
            (layer,) = await cluster.ask(name, "list-acl")
            assert (layer["layer"], layer["in_force"], layer["entries"], layer["problem"]) == (
                "cluster",
                True,
                rules,
                "",
            )
            assert [line["text"] for line in layer["lines"]] == rules
        with pytest.raises(RequestRefused, match="alow"):
            await cluster.ask("a", "settings", action="set", key="acl.rules", value=["alow alice consume orders"])
        await cluster.stop("b")
        await cluster.start("b")
        await eventually(lambda: cluster.brokers["b"].container.access.rules)
        assert (await cluster.ask("b", "reload-acl"))["rules"] == 1, "of the cluster, which count above those of files"
        await cluster.ask("a", "settings", action="unset", key="acl.rules")
        await eventually(lambda: not any(broker.container.access.rules for broker in cluster.brokers.values()))
        await cluster.stop("b")
        (tmp_path / "acl").write_text("allow all consume\n")
        (tmp_path / "acl").chmod(0o600)
        await cluster.start("b", acl__file=str(tmp_path / "acl"))
        await cluster.reach("b", State.READY)
        with pytest.raises(RequestRefused, match=r"b cannot put it in force.*acl\.file has rules, too"):
            await cluster.ask("a", "settings", action="set", key="acl.rules", value=rules)


@in_event_loop
async def test_the_rules_of_a_file_are_shown_under_those_of_the_cluster_and_which_of_both_decide(
    tmp_path: Path,
) -> None:
    file = tmp_path / "acl"
    file.write_text("# who may\nallow alice consume\n")
    file.chmod(0o600)
    asked = {"user": "alice", "action": "consume", "node": "orders"}

    async def shown(name: str) -> list[tuple[str, bool, list[str]]]:
        layers = await cluster.ask(name, "list-acl")
        decides = (await cluster.ask(name, "check-acl", **asked))["reason"]
        for layer in layers:
            assert (layer["in_force"]) == (decides in [f"{line['place']}: {line['text']}" for line in layer["lines"]])
        return [(each["layer"], each["in_force"], [line["text"] for line in each["lines"]]) for each in layers]

    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.stop("b")
        await cluster.start("b", acl__rules="allow alice browse,consume")
        await cluster.form_with_controller("a")
        assert await cluster.ask("a", "list-acl") == []
        own = ("file", True, ["allow alice browse,consume"])
        assert await shown("b") == [own]
        await cluster.stop("c")
        await cluster.ask("a", "settings", action="set", key="acl.rules", value=["", "deny alice consume"])
        shared = ("cluster", True, ["deny alice consume"])
        await eventually(lambda: "acl.rules" in cluster.brokers["b"].layers.shared)
        assert await shown("b") == [shared, ("file", False, own[2])]
        await cluster.start("c", acl__file=str(file))
        await eventually(lambda: "acl.rules" in cluster.brokers["c"].layers.problems)
        assert await shown("c") == [("cluster", False, shared[2]), ("file", True, ["allow alice consume"])]
        assert "acl.file has rules" in (await cluster.ask("c", "list-acl"))[0]["problem"]
        await cluster.ask("a", "settings", action="unset", key="acl.rules")
        await eventually(lambda: "acl.rules" not in cluster.brokers["b"].layers.shared)
        assert await shown("b") == [own]


@in_event_loop
async def test_rules_of_access_are_in_force_before_anybody_comes_in_after_a_start(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.stop("a")
        await cluster.start("a", data_dir=data_dir)
        await cluster.form_with_controller("a")
        await cluster.ask("a", "settings", action="set", key="acl.rules", value=["allow alice consume orders"])
        await cluster.ask("a", "shutdown", cluster=True)
        await cluster.brokers["a"].ended.wait()
        await cluster.stop("a")
        await cluster.start("a", data_dir=data_dir)
        assert cluster.brokers["a"].container.access.rules


@in_event_loop
async def test_what_a_broker_is_told_for_itself_counts_below_that(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form_with_controller("a")
        await cluster.ask("a", "settings", action="set", key=KEY, value="2MiB")
        await has(cluster, "2MiB")
        told = await cluster.ask("b", "set", key=KEY, value="3MiB")
        assert (told["new"], "config unset" in told["notes"][0]) == ("3MiB", True)
        assert in_force(cluster)["b"] == "2MiB"
        await cluster.ask("a", "settings", action="unset", key=KEY)
        await eventually(lambda: in_force(cluster) == {"a": "100MiB", "b": "3MiB"})


@in_event_loop
async def test_a_long_value_is_asked_about_as_a_short_one_is(tmp_path: Path) -> None:
    rules = [f"allow user{number} consume orders.of-a-department-with-a-long-name" for number in range(300)]
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form_with_controller("a")
        told = await cluster.ask("a", "settings", action="set", key="acl.rules", value=rules)
        assert "notes" not in told, "the other broker answers"
        await eventually(lambda: all(broker.container.access.rules for broker in cluster.brokers.values()))
