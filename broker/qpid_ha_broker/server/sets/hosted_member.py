"""A member of a resource set as this broker hosts it, of whichever kind, and what it needs around it.

`set_member` drives one that follows a primary or leads, `group_set_member` one of a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Question
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.server.clients.set_clients import ServingHost
from qpid_ha_broker.server.peers.peer_asker import QuestionCarrier
from qpid_ha_broker.server.peers.peer_links import LinksHost
from qpid_ha_broker.server.peers.record_requests import RecordAnswer
from qpid_ha_broker.server.peers.sub_channels import SubChannel
from qpid_ha_broker.server.sets.member_facts import MemberFacts
from qpid_ha_broker.server.stores.broker_store import BrokerStore
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.server.stores.fleet import VoteWriter


class SetPeers(Protocol):
    """What other brokers want of a set."""

    def accept(self, channel: SubChannel) -> PeerListener | str:
        """One wants to follow it; who listens to that one, or why nobody does."""

    def asked(self, channel: Channel, question: Question) -> None:
        """One has a question about it."""

    def closed(self, channel: Channel, reason: str) -> None:
        """A channel on which it was followed, or asked about, is gone."""


class HostedMember(Protocol):
    """The promise: what happens to the set here reaches its core, and what that wants is done."""

    name: str
    """Of the set."""
    has_primary: bool
    """One broker leads it at a time, which has to be handed over."""
    hosted: HostedSet
    kept: BrokerStore | None
    """Its store; None: the replica is in memory only."""
    discarded: DiscardedMessages

    @property
    def facts(self) -> MemberFacts:
        """What is told of it."""

    @property
    def peers(self) -> SetPeers:
        """Who talks to other brokers about it."""

    @property
    def settings(self) -> MemberSettings:
        """As they are now."""

    @property
    def is_serving(self) -> bool:
        """Whether the set's queues are written here."""

    def start(self) -> None:
        """Look for the others."""

    def stop(self, reason: str) -> None:
        """This replica ends here."""

    def change_settings(self, settings: MemberSettings) -> None:
        """Other settings are in force, or other brokers have replicas."""

    def tick(self, now_s: float) -> bool:
        """A while went by; whether the next tick matters, too."""

    def turn_ended(self, batch: LogBatch | None) -> None:
        """The set had a turn, and its log has nothing pending."""

    def ask(self, make: Callable[[int], fx.Input], done: Callable[[fx.Answered], None]) -> None:
        """Put what `make` gives for a number before the core, and have `done` hear what came of it."""


class RecordService(Protocol):
    """Reads and writes the records of sets: a coordinator that of `default`, the controller those of the cluster map.

    `answer` is called once, within a few seconds, and never before the call has returned.
    """

    def read_record(self, set_name: str, answer: Callable[[RecordAnswer], None]) -> None:
        """What is recorded of the set; `ClusterRecord()` when nothing is."""

    def write_record(
        self,
        set_name: str,
        expected: ClusterRecord,
        wanted: ClusterRecord,
        answer: Callable[[RecordAnswer], None],
    ) -> None:
        """Replace `expected` by `wanted`, if that is what is recorded."""


class SetMemberHost(ServingHost, LinksHost, Protocol):
    """What a set's member needs of the broker."""


class MemberOwner(Protocol):
    """Who has a member. What it is told it is told while effects are carried out: to stop the member has to wait."""

    process: ProcessTime

    @property
    def questions(self) -> QuestionCarrier:
        """Who asks other brokers about the set."""

    @property
    def records(self) -> RecordService:
        """Where the set's record is now."""

    @property
    def votes(self) -> VoteWriter | None:
        """Writes votes beside the loop, those of several sets together; None: each is written where it is given."""

    def wake(self, member: HostedMember) -> None:
        """Something happens to a member that was at rest."""

    def state_changed(self, member: HostedMember, effect: fx.StateChanged) -> None:
        """The core is in another state."""

    def changed(self, member: HostedMember) -> None:
        """There is something new to be told of it."""

    def note(self, member: HostedMember, level: int, text: str) -> None:
        """A line for the log. `level`: of `logging`."""

    def cannot_go_on(self, member: HostedMember, reason: str) -> None:
        """This broker cannot have that replica, and why."""

    def ended(self, member: HostedMember, uuid: str) -> None:
        """The cluster is shut down, and this set has ended: the UUID under which its store is whole, empty if not."""
