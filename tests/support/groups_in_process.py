"""A group between three real brokers in one process, over a transport of the test, hosted by hand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from cluster_in_process import InProcessCluster, eventually, free_ports
from event_loops import in_event_loop
from hosted_sets import RecordsInOnePlace
from model_support import message, qpid
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.model.errors import BeingMade
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.server.sets.group_set_member import GroupSetMember

BROKERS = ("a", "b", "c")
UUID = "0123456789abcdef" * 2


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

    async def declare(self, broker: str, queue: str, **arguments: Scalar) -> None:
        """Ask until it is there, as the directory does."""
        hosted = self.hosted(broker)

        def is_there() -> bool:
            try:
                hosted.configuration.declare_queue(queue, qpid(arguments))
            except BeingMade:
                hosted.touch()
                return False
            return True

        await eventually(is_there)

    async def publish(self, broker: str, queue: str, *texts: str) -> None:
        resources = self.hosted(broker).resources
        for text in texts:
            await self.commit(broker, resources.publish(resources.catalog.queues[queue], message(text), 0))

    def attach(self, broker: str, queue: str, credit: int = 0) -> Consumer:
        """A consumer that takes no message that is there."""
        resources, consumer = self.hosted(broker).resources, Consumer(accepts=lambda body: False)
        resources.subscribe(resources.catalog.queues[queue], consumer, consumer)
        consumer.credit = credit
        resources.catalog.wake(resources.catalog.queues[queue])
        self.hosted(broker).touch()
        self.cluster.brokers[broker].schedule_turn()
        return consumer

    def users(self, broker: str, queue: str) -> set[str]:
        """Who has the queue, or waits for it, as that broker knows."""
        owner, waiting = self.member(broker).member.queues.users(self.hosted(broker).resources.catalog.queues[queue].id)
        return {owner, *waiting} - {""}

    def unhost(self, broker: str) -> None:
        hosts = self.cluster.brokers[broker].sets
        assert hosts is not None
        hosts.hosts.unhost("orders", "the test wants it")

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
