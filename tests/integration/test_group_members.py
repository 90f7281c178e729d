"""Groups between real brokers in one process, over a transport of the test: who serves, what is there, who comes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from cluster_in_process import InProcessCluster, eventually, free_ports
from event_loops import in_event_loop
from group_bus import GroupBus
from hosted_sets import RecordsInOnePlace
from model_support import message
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import GROUP_VERSION
from qpid_ha_broker.model.errors import BeingMade
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.server.sets.group_set_member import GroupSetMember

BROKERS = ("a", "b", "c")
UUID = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def bus(monkeypatch: pytest.MonkeyPatch) -> GroupBus:
    """What the brokers of a test multicast goes through the test."""
    bus = GroupBus()
    monkeypatch.setattr(GroupSetMember, "make_transport", staticmethod(bus.port))
    return bus


class Groups:
    """What the controller would do, by hand: have `orders` hosted as a group."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster, self.records = cluster, RecordsInOnePlace()

    def host(self, *brokers: str) -> None:
        for name in brokers:
            sets = self.cluster.brokers[name].sets
            assert sets is not None
            sets.hosts.records = self.records
            addresses = [self.cluster.url(each) for each in BROKERS]
            sets.hosts.host("orders", addresses, self.cluster.url(name), cluster=UUID, is_group=True)

    def member(self, broker: str) -> GroupSetMember:
        sets = self.cluster.brokers[broker].sets
        assert sets is not None
        member = sets.hosts.members["orders"]
        assert isinstance(member, GroupSetMember)
        return member

    def hosted(self, broker: str) -> HostedSet:
        return self.cluster.brokers[broker].container.sets["orders"]

    async def serve(self, *brokers: str) -> None:
        def are_serving() -> bool:
            hosts = [self.cluster.brokers[name].sets for name in brokers]
            return all(each is not None and "orders" in each.hosts.members for each in hosts) and all(
                self.member(name).member.role is GroupRole.SERVING
                and set(self.member(name).member.record.members) == set(brokers)
                for name in brokers
            )

        await eventually(are_serving)

    async def commit(self, broker: str, token: CommitToken) -> None:
        self.hosted(broker).touch()
        self.cluster.brokers[broker].schedule_turn()
        await eventually(lambda: token.is_committed)

    async def declare(self, broker: str, queue: str) -> None:
        """Ask until it is there, as the directory does."""
        hosted = self.hosted(broker)

        def is_there() -> bool:
            try:
                hosted.configuration.declare_queue(queue, {})
            except BeingMade:
                hosted.touch()
                return False
            return True

        await eventually(is_there)

    async def publish(self, broker: str, queue: str, *texts: str) -> None:
        resources = self.hosted(broker).resources
        for text in texts:
            await self.commit(broker, resources.publish(resources.catalog.queues[queue], message(text), 0))

    def bodies(self, broker: str, queue: str) -> list[str]:
        there = self.hosted(broker).resources.catalog.queues[queue]
        return [entry.resident_body().decode().rpartition(";")[2] for entry in there.messages]


def story_of_three(directory: Path, story: Callable[[Groups], Awaitable[None]], *stores: str) -> None:
    """A cluster of three brokers. `stores`: those that have one."""

    @in_event_loop
    async def run() -> None:
        async with InProcessCluster(directory) as cluster:
            cluster.ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
            for name in BROKERS:
                await start(cluster, directory, name, stores)
            await cluster.form("a")
            await story(Groups(cluster))

    run()


async def start(cluster: InProcessCluster, directory: Path, name: str, stores: Sequence[str]) -> None:
    settings = {"data_dir": str(directory / name)} if name in stores else {}
    await cluster.start(name, **settings)


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
        hosts = groups.cluster.brokers["a"].sets
        assert hosts is not None
        hosts.hosts.unhost("orders", "the test wants it")
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
