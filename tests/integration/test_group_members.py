"""Groups between real brokers in one process, over a transport of the test: who serves, what is there, who comes."""

from __future__ import annotations

from asyncio import to_thread
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

from cluster_in_process import eventually
from group_bus import GroupBus, installed
from groups_in_process import BROKERS, UUID, Groups, start, story_of_three
from hosted_sets import NoRecords
from limits import LIMIT_S
from model_support import PLENTY, message
from qpid_ha_agent.store_sources import facts_of_directory
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import GROUP_VERSION
from qpid_ha_broker.metrics.histogram import Histogram
from qpid_ha_broker.metrics.queue_listing import QueueListing
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.sets.grouped import QueueUsers
from qpid_ha_broker.model.sets.session_messages import held_for
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.controller.map_directory import MapDirectory
from qpid_ha_broker.server.http.figure_looks import FigureLooks
from qpid_ha_broker.server.http.metrics_source import MetricsSource
from qpid_ha_broker.server.http.queue_lists import QueueLists
from qpid_ha_broker.store.best import Standing, Winner, best
from session_support import FIRST, SessionTaker

SESSION = 1_000_000
"""Of which `default` may still tell: a lower one would have ended."""


@pytest.fixture(autouse=True)
def bus() -> Iterator[GroupBus]:
    """What the brokers of a test multicast goes through the test."""
    with installed() as bus:
        yield bus


def test_what_is_published_at_each_member_is_at_all_of_them_in_one_order(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("b", "q")
        for name in BROKERS:
            await groups.publish(name, "q", f"{name}1", f"{name}2")
        await eventually(lambda: all(len(groups.bodies(name, "q")) == 6 for name in BROKERS))
        assert groups.bodies("a", "q") == groups.bodies("b", "q") == groups.bodies("c", "q")
        assert not any(groups.hosted(name).read_only for name in BROKERS)
        assert [groups.member(name).facts.keeps_directory for name in BROKERS].count(True) == 1

    story_of_three(tmp_path, story)


def test_the_others_go_on_when_a_member_ends_and_let_it_in_again(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("a", "q")
        await groups.publish("a", "q", "one")
        groups.unhost("a")
        await groups.serve("b", "c")
        await groups.publish("b", "q", "two")
        groups.host("a")
        await groups.serve(*BROKERS)
        await groups.publish("a", "q", "three")
        await eventually(lambda: groups.bodies("c", "q") == ["one", "two", "three"])
        assert groups.bodies("a", "q") == ["one", "two", "three"]

    story_of_three(tmp_path, story)


class ServedLink:
    """A client's link that may only be where the set is served."""

    needs_primary = True

    def __init__(self) -> None:
        self.why_ended: list[AmqpError] = []

    def end(self, error: AmqpError) -> None:
        self.why_ended.append(error)


def test_clients_of_a_member_that_the_others_go_on_without_are_sent_away(tmp_path: Path, bus: GroupBus) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        link = ServedLink()
        groups.hosted("a").links[cast("LinkEndpoint", link)] = None
        bus.cut_off("a")
        await groups.serve("b", "c")
        await eventually(lambda: groups.member("a").member.role is GroupRole.OUTSIDE)
        await eventually(lambda: bool(link.why_ended))
        assert groups.hosted("a").read_only

    story_of_three(tmp_path, story)


def test_all_come_back_from_their_stores_with_what_was_committed(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("c", "q")
        await groups.publish("b", "q", "one", "two")
        for name in BROKERS:
            await groups.cluster.stop(name)
        for name in BROKERS:
            await start(groups.cluster, tmp_path, name, BROKERS)
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        assert [groups.bodies(name, "q") for name in BROKERS] == [["one", "two"]] * 3
        await groups.publish("c", "q", "three")
        await eventually(lambda: groups.bodies("a", "q") == ["one", "two", "three"])

    story_of_three(tmp_path, story, *BROKERS)


def test_a_group_begins_again_with_an_older_copy_and_who_comes_back_puts_aside_what_that_lacks(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("a", "q")
        await groups.publish("a", "q", "one")
        await groups.cluster.stop("c")
        await groups.serve("a", "b")
        await groups.publish("b", "q", "two")
        for name in ("a", "b"):
            await groups.cluster.stop(name)
        await start(groups.cluster, tmp_path, "c", BROKERS)
        groups.host("c")
        record = groups.records.records["orders"]
        assert record.members == ("b",)
        forced = record._replace(generation=record.generation + 1, epoch=record.epoch + 1, primary="c", members=("c",))
        groups.records.records["orders"] = forced  # as `set promote orders c --force` has it
        await groups.serve("c")
        await groups.publish("c", "q", "three", "four")
        await start(groups.cluster, tmp_path, "b", BROKERS)
        groups.host("b")
        await groups.serve("b", "c")
        assert groups.bodies("b", "q") == groups.bodies("c", "q") == ["one", "three", "four"]
        assert groups.member("b").discarded.total == 1

    story_of_three(tmp_path, story, *BROKERS)


def test_the_stores_of_a_group_are_seen_to_be_of_one_log_and_the_furthest_is_the_best(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("a", "q")
        for name in BROKERS:
            await groups.publish(name, "q", name)
        for name in BROKERS:
            await groups.cluster.stop(name)

    story_of_three(tmp_path, story, *BROKERS)
    verdict = best([facts_of_directory(tmp_path / name / "orders") for name in BROKERS])
    assert isinstance(verdict, Winner)
    assert verdict.store.broker == "c", "it was stopped last, and had that recorded"
    assert {reason.broker: reason.standing for reason in verdict.reasons} == {
        "a": Standing.OUTSIDE, "b": Standing.OUTSIDE, "c": Standing.BEST,
    }  # fmt: skip


def test_what_nobody_can_read_is_left_out_and_of_another_release_only_by_who_leaves(
    tmp_path: Path, bus: GroupBus, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("a", "q")
        port = bus.port(UUID, "a", groups.member("a"))
        bus.multicast(port, bytes((GROUP_VERSION,)) + b"no frame")
        await groups.publish("b", "q", "one")
        assert "what a has multicast cannot be read" in caplog.text
        groups.member("c").delivered("a", bytes((GROUP_VERSION + 1,)))
        await groups.serve("a", "b")
        hosts = groups.cluster.brokers["c"].sets
        assert hosts is not None
        await eventually(lambda: "upgrade this broker" in hosts.hosts.absent.problems.get("orders", ""))
        await groups.publish("a", "q", "two")
        assert groups.bodies("b", "q") == ["one", "two"]

    story_of_three(tmp_path, story)


def test_the_figures_of_a_group_count_batches_and_not_messages(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("a", "q")
        before = figures_of(groups.cluster.brokers["a"])
        resources = groups.hosted("a").resources
        tokens = [resources.publish(resources.catalog.queues["q"], message("x" * 100), 0) for _ in range(50)]
        await groups.commit("a", tokens[-1])
        hosts = groups.cluster.brokers["c"].sets
        assert hosts is not None
        hosts.hosts.unhost("orders", "the test wants it")
        await groups.serve("a", "b")
        after = figures_of(groups.cluster.brokers["a"])
        more = {name: after[name] - before[name] for name in after}
        assert 0 < more["multicasts"] < 25
        assert more["multicast_bytes"] > 50 * 100
        assert more["delivered_batches"] > more["multicasts"]
        assert (more["views"], more["queue_moves"]) == (1, 0)

    story_of_three(tmp_path, story)


def test_a_member_that_waits_says_for_whom_and_why_nothing_is_recorded(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        assert "groups" not in await groups.cluster.ask("a", "status")
        hosts = {name: groups.cluster.brokers[name].sets for name in BROKERS}
        assert hosts["a"] is not None
        hosts["a"].hosts.records = NoRecords()
        for name in ("b", "c"):
            there = hosts[name]
            assert there is not None
            there.hosts.records = NoRecords()
            there.hosts.unhost("orders", "the test wants it")
        member = groups.member("a")
        await eventually(lambda: bool(member.member.standing.record_problem))
        (told,) = (await groups.cluster.ask("a", "status"))["groups"]
        assert (told["set"], told["role"], told["missing"]) == ("orders", "withheld", ["b", "c"])
        assert told["record_problem"] == "no controller answers"
        hosts["a"].hosts.records = groups.records
        await groups.serve("a")
        assert "groups" not in await groups.cluster.ask("a", "status")

    story_of_three(tmp_path, story)


def test_a_member_whose_transport_does_not_answer_says_so_to_operators_and_to_the_controller(
    tmp_path: Path, bus: GroupBus
) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        bus.problem = "Corosync is not there"
        await eventually(lambda: bool(groups.member("c").facts.transport_problem))
        (told,) = (await groups.cluster.ask("c", "status"))["groups"]
        assert (told["role"], told["transport_problem"]) == ("serving", bus.problem)
        assert groups.member("c").facts.report(0.0).problem == bus.problem

    story_of_three(tmp_path, story)


def test_the_list_of_queues_says_which_member_hands_out_and_which_ones_wait(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("a", "q")
        groups.hosted("a").resources.replication.users = lambda queue: QueueUsers("b", ("a", "c"), True, 7)  # type: ignore[attr-defined]
        broker = groups.cluster.brokers["a"]
        listing = await QueueLists(broker, FigureLooks(broker, Histogram())).page(QueueListing(name="q"))
        assert isinstance(listing["rows"], list)
        (row,) = listing["rows"]
        assert (row["set"], row["owner"], row["waiting"]) == ("orders", "b", ["a", "c"])
        assert row["moves_last_minute"] == 7

    story_of_three(tmp_path, story)


def figures_of(broker: Broker) -> dict[str, float]:
    """Those of the group `orders` in what Prometheus is told."""
    text = "".join(MetricsSource(broker).pieces())
    prefix = "qpid_ha_set_group_"
    return {
        sample.name.removeprefix(prefix).removesuffix("_total"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(prefix) and sample.labels == {"set": "orders"}
    }


def test_a_client_is_refused_an_exclusive_queue_that_one_of_another_member_has_and_gets_it_when_that_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MapDirectory, "has_many_sets", True)
    monkeypatch.setattr(MapDirectory, "set_of", lambda _, name: "orders" if name == "mine" else None)

    def refusal(connection: BlockingConnection, link: str) -> str:
        with pytest.raises(LinkDetached) as refused:
            connection.create_receiver("mine", name=link)
        return str(refused.value.condition)

    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("b", "mine", exclusive=True)
        connections = {name: await to_thread(BlockingConnection, groups.cluster.url(name), LIMIT_S) for name in "ab"}
        sender = await to_thread(connections["b"].create_sender, "mine")
        for number in range(2):
            await to_thread(sender.send, Message(number))
        first = await to_thread(connections["a"].create_receiver, "mine")
        assert (await to_thread(first.receive, LIMIT_S)) is not None
        first.accept()
        assert await to_thread(refusal, connections["b"], "early") == "amqp:resource-locked"
        again = await to_thread(connections["a"].create_receiver, "mine", name="again")
        await to_thread(first.close)
        assert await to_thread(refusal, connections["b"], "late") == "amqp:resource-locked"
        await to_thread(again.close)
        second = await to_thread(connections["b"].create_receiver, "mine", name="second")
        assert (await to_thread(second.receive, LIMIT_S)) is not None
        for connection in connections.values():
            await to_thread(connection.close)

    story_of_three(tmp_path, story)


class Taker(SessionTaker):
    """A consumer of a session, whose client has what it is given."""

    def __init__(self) -> None:
        super().__init__(session=SESSION)
        self.got: list[str] = []

    def deliver(self, entries: list[Entry]) -> None:
        self.got += [entry.resident_body().decode().rpartition(";")[2] for entry in entries]


def test_a_session_goes_on_at_another_member_and_nobody_else_got_what_it_holds(
    tmp_path: Path,
) -> None:
    link = SessionOwner(SESSION, FIRST, "link")

    async def attach(groups: Groups, broker: str, epoch: int, consumer: Taker, credit: int) -> list[Entry]:
        resources = groups.hosted(broker).resources
        queue = resources.catalog.queues["q"]
        token = resources.replication.take_link(queue, link, epoch)
        assert token is not None
        await groups.commit(broker, token)
        resources.subscribe(queue, consumer, consumer)
        consumer.credit, consumer.window_bytes = credit, PLENTY
        resources.catalog.wake(queue)
        groups.hosted(broker).touch()
        return held_for(resources, queue, link)

    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("b", "q")
        await groups.publish("a", "q", *"1234")
        first, others, second = Taker(), Taker(), Taker()
        others.session_owner = None
        assert await attach(groups, "b", 1, first, 3) == []
        await eventually(lambda: first.got == ["1", "2", "3"])
        resources = groups.hosted("b").resources
        (entry, *_) = held_for(resources, resources.catalog.queues["q"], link)
        await groups.commit("b", resources.accept(resources.catalog.queues["q"], [entry]))
        await groups.cluster.stop("b")
        await groups.serve("a", "c")
        await attach(groups, "a", 1, others, 10)
        await eventually(lambda: others.got == ["4"])

        held = await attach(groups, "c", 2, second, 10)
        assert [entry.resident_body().decode().rpartition(";")[2] for entry in held] == ["2", "3"]
        resources = groups.hosted("c").resources
        await groups.commit("c", resources.accept(resources.catalog.queues["q"], held))
        await eventually(lambda: groups.bodies("a", "q") == ["4"])
        assert (others.got, second.got) == (["4"], [])

    story_of_three(tmp_path, story)
