"""Resource sets on the brokers of an in-process cluster, with their records in one place, as a controller has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from cluster_in_process import PATIENCE_S, InProcessCluster, eventually
from model_support import message
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.peers.peer_channels import OutgoingChannel
from qpid_ha_broker.server.peers.record_requests import RecordAnswer
from qpid_ha_broker.server.peers.sub_channels import Multiplexer
from qpid_ha_broker.server.sets.set_host import SetHost
from qpid_ha_broker.server.sets.set_member import SetMember


class RecordsInOnePlace:
    """The records of all sets: compare-and-set, answered a round of the loop later."""

    def __init__(self) -> None:
        self.records: dict[str, ClusterRecord] = {}

    def read_record(self, set_name: str, answer: Callable[[RecordAnswer], None]) -> None:
        record = self.records.get(set_name, ClusterRecord())
        asyncio.get_running_loop().call_soon(answer, RecordAnswer(False, record))

    def write_record(
        self,
        set_name: str,
        expected: ClusterRecord,
        wanted: ClusterRecord,
        answer: Callable[[RecordAnswer], None],
    ) -> None:
        written = self.records.get(set_name, ClusterRecord()) == expected
        if written:
            self.records[set_name] = wanted
        asyncio.get_running_loop().call_soon(answer, RecordAnswer(written, self.records.get(set_name)))


class NoRecords:
    """Nobody answers who has the records."""

    def read_record(self, set_name: str, answer: Callable[[RecordAnswer], None]) -> None:
        asyncio.get_running_loop().call_soon(answer, RecordAnswer(False, None, "no controller answers"))

    def write_record(
        self,
        set_name: str,
        expected: ClusterRecord,
        wanted: ClusterRecord,
        answer: Callable[[RecordAnswer], None],
    ) -> None:
        self.read_record(set_name, answer)


class HostedSets:
    """What a controller would do, by hand: have sets hosted, and their replicas promoted."""

    def __init__(self, cluster: InProcessCluster) -> None:
        self.cluster = cluster
        self.records = RecordsInOnePlace()
        for name in cluster.brokers:
            self.at(name).records = self.records

    def at(self, broker: str) -> SetHost:
        """The replicas of one broker."""
        sets = self.cluster.brokers[broker].sets
        assert sets is not None
        return sets.hosts

    def member(self, broker: str, set_name: str) -> SetMember:
        """One of them."""
        member = self.at(broker).members[set_name]
        assert isinstance(member, SetMember)
        return member

    def hosted(self, broker: str, set_name: str) -> HostedSet:
        """Its part of the container."""
        return self.cluster.brokers[broker].container.sets[set_name]

    def addresses(self, *brokers: str) -> list[str]:
        """Of these."""
        return [self.cluster.url(name) for name in brokers]

    def host(self, set_name: str, brokers: Sequence[str]) -> None:
        """Have replicas of a set on these brokers."""
        addresses = [self.cluster.url(name) for name in brokers]
        for name in brokers:
            self.at(name).records = self.records
            self.at(name).host(set_name, addresses, self.cluster.url(name), min_in_sync=1)

    async def promote(self, broker: str, set_name: str, *, failover: bool = False) -> None:
        """Have that broker lead the set."""
        answered: asyncio.Future[fx.Answered] = asyncio.get_running_loop().create_future()
        self.at(broker).ask(
            set_name, lambda number: fx.PromoteAsked(number, False, "by the test", failover), answered.set_result
        )
        outcome = await answered
        assert outcome.done, outcome.text

    async def switch_over(self, broker: str, set_name: str, to: str) -> None:
        """Have the primary hand over."""
        answered: asyncio.Future[fx.Answered] = asyncio.get_running_loop().create_future()
        self.at(broker).ask(set_name, lambda number: fx.SwitchoverAsked(number, to, "by the test"), answered.set_result)
        outcome = await answered
        assert outcome.done, outcome.text

    async def loaded(self, set_name: str, *brokers: str) -> None:
        """Wait until these have their replicas."""
        await eventually(lambda: all(set_name in self.at(name).members for name in brokers))
        for name in brokers:
            member = self.member(name, set_name).member
            member.settings = replace(member.settings, ask_limit_s=PATIENCE_S)

    def host_again(self, set_name: str, broker: str, *others: str) -> None:
        """Have a replica at `broker`, which has none; the others are there."""
        addresses = [self.cluster.url(name) for name in (broker, *others)]
        self.at(broker).records = self.records
        self.at(broker).host(set_name, addresses, self.cluster.url(broker))

    async def at_rest(self, set_names: Sequence[str]) -> None:
        """Wait until no member of these gets every tick any more."""
        members = [self.member(broker, name) for broker in self.cluster.brokers for name in set_names]
        await eventually(lambda: not any(member.is_awake for member in members))

    def is_same(self, set_name: str, one: str, other: str) -> bool:
        """Whether one broker has applied what the other has."""
        logs = [self.hosted(name, set_name).resources.replicated.log for name in (one, other)]
        return logs[0].last_lsn == logs[1].last_lsn

    @property
    def transfers(self) -> int:
        """Bundles that all brokers have sent to others."""
        return sum(mux.bundles_total for mux in self._multiplexers())

    @property
    def frames(self) -> int:
        """Entries that all of these had."""
        return sum(mux.entries_total for mux in self._multiplexers())

    def _multiplexers(self) -> list[Multiplexer]:
        shared = [self.at(name).shared for name in self.cluster.brokers]
        return [each.mux for one in shared for each in (*one._ours.values(), *one._theirs.values())]

    async def reach(self, broker: str, set_name: str, state: State) -> None:
        """Wait until that replica is so far."""
        await eventually(lambda: self.member(broker, set_name).member.status.state is state)

    async def place(self, set_name: str, primary: str, *others: str) -> None:
        """A set that is led by `primary`, and in sync everywhere."""
        self.host(set_name, (primary, *others))
        await self.loaded(set_name, primary, *others)
        await self.promote(primary, set_name)
        for name in others:
            await self.reach(name, set_name, State.READY)

    async def publish(self, broker: str, set_name: str, queue: str, *texts: str, durable: bool = False) -> None:
        """Publish there, and wait until that is confirmed."""
        hosted = self.hosted(broker, set_name)
        if queue not in hosted.resources.catalog.queues:
            hosted.configuration.declare_queue(queue, {})
        there = hosted.resources.catalog.queues[queue]
        tokens = [hosted.resources.publish(there, message(text, durable=durable), 0) for text in texts]
        hosted.touch()
        self.cluster.brokers[broker].schedule_turn()
        await eventually(lambda: all(token.is_committed for token in tokens))

    def bodies(self, broker: str, set_name: str, queue: str) -> list[str]:
        """What is queued there, in order."""
        found = self.hosted(broker, set_name).resources.catalog.queues.get(queue)
        return [] if found is None else [entry.resident_body().decode().rpartition(";")[2] for entry in found.messages]

    async def crash(self, name: str) -> None:
        """The broker is gone as after kill -9: its sockets are reset, and nothing more happens there."""
        broker = self.cluster.brokers.pop(name)
        membership = broker.membership
        assert broker.sets is not None
        host = broker.sets.hosts
        membership.default._is_stopped = True
        membership._tasks.cancel()
        membership.questions.close()
        host._tasks.cancel()
        for member in host.members.values():
            assert isinstance(member, SetMember)
            member._is_stopped = True
        for channel in host.shared._dialled.values():
            channel._drop()
        for link in membership.default.links._links.values():
            if isinstance(link.channel, OutgoingChannel):
                link.channel._drop()
        for protocol in list(broker._protocols.values()):
            protocol.abort()
        await broker._close_listeners()
        await broker.control.close()
