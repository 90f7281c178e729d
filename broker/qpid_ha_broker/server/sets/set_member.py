"""Drives the member of one resource set other than `default`: what `Membership` is to that one.

The controller is to this set what a coordinator and an operator are to `default`: its record comes from there, and what
it is asked to do. Its channels are sub-channels of connections that all sets share, and its clients are the links of
its queues; a client's connection is never ended for its sake.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.peer_frames import PeerListener
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.bundles import Purpose
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import LEADING, Phase, State
from qpid_ha_broker.server.clients.shared_connections import SharedConnections
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.peers.peer_links import PeerLinks
from qpid_ha_broker.server.peers.sub_channels import SubChannel
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.sets.member_driver import Action, MemberDriver
from qpid_ha_broker.server.sets.set_lines import SetLines
from qpid_ha_broker.server.sets.set_questions import SetQuestions
from qpid_ha_broker.server.stores.broker_store import BrokerStore
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.server.stores.fleet import VoteWriter
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.store.errors import StoreError

log = logging.getLogger("cluster")

_LEVELS: Final = logging.getLevelNamesMapping()
AWAKE_S: Final = 0.25
"""So long after the last thing that happened to it a member gets each tick, so that its backups hear what is committed;
then, if it is at rest, few of them."""
KEEP_S: Final = 0.5
"""Between two looks at the store of a member that is awake; then once it is at rest. None is pressing: hundreds of
sets that fail over do not need it before they are led."""


class RecordAnswer(NamedTuple):
    """What came of a request about a set's record. `record`: what is recorded now; None: not known, and why."""

    written: bool
    record: fx.ClusterRecord | None
    problem: str = ""


class RecordService(Protocol):
    """Reads and writes the records of sets: the controller does, with those of the cluster map.

    `answer` is called once, within a few seconds, and never before the call has returned.
    """

    def read_record(self, set_name: str, answer: Callable[[RecordAnswer], None]) -> None:
        """What is recorded of the set; `ClusterRecord()` when nothing is."""

    def write_record(
        self,
        set_name: str,
        expected: fx.ClusterRecord,
        wanted: fx.ClusterRecord,
        answer: Callable[[RecordAnswer], None],
    ) -> None:
        """Replace `expected` by `wanted`, if that is what is recorded."""


class SetMemberHost(Host, Protocol):
    """What a set's member needs of the broker."""

    waiters: CommitWaiters

    def unwritten_bytes(self, connection: Connection) -> int:
        """What its socket has not taken yet."""

    async def facts(self) -> dict[str, object]:
        """What `qpid-ha query` shows."""


class SetServices(NamedTuple):
    """What the members of all sets share."""

    broker: SetMemberHost
    lines: SetLines
    """Of the log."""
    shared: SharedConnections
    questions: SetQuestions
    records: RecordService
    """Which says itself where they are now."""
    process: ProcessTime
    wake: Callable[[SetMember], None]
    """Something happens to a member that was at rest."""
    changed: Callable[[SetMember], None]
    """There is something new to be told of a member."""
    votes: VoteWriter | None
    """None: there are no stores."""
    cannot_go_on: Callable[[SetMember, str], None]
    """This broker cannot have that replica, and why."""
    ended: Callable[[SetMember, str], None]
    """The cluster is shut down, and this set has ended: the UUID under which its store is whole, empty if it is not."""


class _SetDialler:
    """Opens channels on which the set is followed."""

    __slots__ = ("_set", "_shared")

    def __init__(self, shared: SharedConnections, set_name: str) -> None:
        self._shared = shared
        self._set = set_name

    def dial(self, address: str, listener: PeerListener, limit_s: float) -> SubChannel:
        """One that is being opened; the shared connection has a limit of its own."""
        return self._shared.open(address, self._set, Purpose.FOLLOW, listener)


class SetMember(MemberDriver):
    """The promise: the set's queues are written here while this broker leads it, and by nobody else.

    `kept`: its store; None for a replica that is in memory only.
    """

    def __init__(
        self,
        services: SetServices,
        hosted: HostedSet,
        settings: MemberSettings,
        restored: Restored | None,
        discarded: DiscardedMessages,
        kept: BrokerStore | None,
    ) -> None:
        resource_set = hosted.resources.replicated
        member = Member(
            settings, resource_set, random.random, _wall_ms, restored, services.broker.container.steady.now_ms
        )
        super().__init__(services.broker, member, hosted, services.process, f"set {hosted.name}: ")
        self.hosted = hosted
        self.name = hosted.name
        self.discarded = discarded
        self.kept = kept
        self.is_standalone = False
        self.is_awake = False
        """It gets every tick."""
        self._is_active = True
        """Something has happened to it since its last tick."""
        self._rest_at_s = 0.0
        self._keep_at_s = 0.0
        """When its store has its next tick, if it is not at rest before."""
        self._services = services
        self._is_failed = False
        """Whatever state the core is in, it must not speak for this replica any more."""
        self._is_leaving = False
        """Links are about to be ended, because the core wants to be primary no more."""
        store = None if kept is None else MemberStore(kept.store, hosted.resources.catalog, self.feed)
        if kept is not None:
            kept.owner = self
        has_room = _always if store is None else store.has_room
        links = PeerLinks(services.broker, member, _SetDialler(services.shared, self.name), self.feed, has_room)
        own: dict[type, Action] = {
            fx.StateChanged: self._state_changed,
            fx.StatusChanged: self._status_changed,
            fx.EndClients: self._end_links_soon,
            fx.TurnDue: self._turn_due,
            fx.Discarded: lambda effect: self.discarded.keep(*effect),
            fx.Notice: self._note,
            fx.Stop: lambda effect: self.fail(effect.reason),
            fx.CleanEnd: lambda effect: services.ended(self, effect.uuid),
        }
        self._carry_out(links, self, self, store, own)
        if kept is not None and services.votes is not None:
            self._actions[fx.PersistVote] = partial(self._persist_vote, kept.store, services.votes)
        hosted.read_only = True

    # --- start and stop

    def start(self) -> None:
        """Look for the primary."""
        self.feed(fx.Started())

    def stop(self, reason: str) -> None:
        """This replica ends here; what the core still wants is sent before the channels are closed."""
        if self._is_stopped:
            return
        self.feed(fx.Stopping())
        self._is_stopped = True
        self.hosted.read_only = True
        self.links.close_all(reason)
        self.requests.cancel()

    # --- the core

    def feed(self, happened: fx.Input) -> None:
        """Put it before the core, and do what it wants."""
        if self._is_failed:
            return
        self._wake()
        self.member.ran_until(self._services.process.ran_until_s)
        super().feed(happened)

    def fail(self, reason: str) -> None:
        """This replica ends, without another word of its core; the broker goes on with its other sets."""
        if not self._is_failed:
            self._is_failed = self.hosted.read_only = True
            self._services.cannot_go_on(self, reason)

    def tick(self, now_s: float) -> bool:
        """A while went by; whether the next tick matters, too."""
        if self._is_active:
            self._rest_at_s = now_s + AWAKE_S
        if self._is_active or self.links.is_any_full:
            self.links.watch()
        self.is_awake = True  # whatever happens because of it
        self.feed(fx.Ticked())
        self._is_active = False
        self.is_awake = now_s < self._rest_at_s or not self.is_at_rest
        if self.kept is not None and (now_s >= self._keep_at_s or not self.is_awake):
            self._keep_at_s = now_s + KEEP_S
            self.kept.tick()
        return self.is_awake

    @property
    def is_at_rest(self) -> bool:
        """Nothing is under way that a tick may be needed for."""
        status, primary = self.member.status, self.member.primary
        if self.links.is_any_full:
            return False
        if primary is None:
            return status.state is State.READY
        is_settled = status.phase is Phase.ACTIVE and primary.unrecorded is None and not status.problem
        return is_settled and not primary.has_somebody_behind and self._log.committed_lsn == self._log.last_lsn

    def _turn_again(self) -> None:
        self.hosted.touch()
        self._broker.schedule_turn()

    def _turn_due(self, _effect: fx.TurnDue) -> None:
        self.hosted.touch()
        self._broker.want_turn()

    @property
    def is_serving(self) -> bool:
        """Whether the set's queues are written here."""
        status = self.member.status
        return status.state in LEADING and not (self._is_leaving or self._is_failed or status.is_closing)

    # --- what is asked of others: see `member_driver.CoreQuestions` and `RecordAccess`

    def ask_for_core(self, effect: fx.Ask) -> None:
        """`PeersAnswered` follows."""
        self._services.questions.ask(effect, self.feed)

    def read(self, effect: fx.ReadRecord) -> None:
        """`RecordRead` follows."""
        number = effect.number
        self._services.records.read_record(
            self.name, lambda answer: self._record_read(fx.RecordRead(number, answer.record, answer.problem))
        )

    def _record_read(self, read: fx.RecordRead) -> None:
        """A primary looks at its record every few seconds: as long as it finds what it expects, it stays at rest."""
        if self._is_failed:
            return
        self.member.ran_until(self._services.process.ran_until_s)
        super().feed(read)
        if not self.is_at_rest:
            self._wake()

    def _wake(self) -> None:
        self._is_active = True
        if not self.is_awake:
            self.is_awake = True
            self._keep_at_s = time.monotonic() + KEEP_S
            self._services.wake(self)

    def write(self, effect: fx.WriteRecord) -> None:
        """`RecordWritten` follows."""
        number = effect.number
        self._services.records.write_record(
            self.name,
            effect.expected,
            effect.wanted,
            lambda answer: self.feed(fx.RecordWritten(number, *answer)),
        )

    # --- the vote

    def _persist_vote(self, store: Store, votes: VoteWriter, effect: fx.PersistVote) -> None:
        """Beside the loop, with the votes of other sets; all that follows waits for it."""
        if store.note_vote(*effect):
            self._is_held = True
            votes.write(store, self._vote_written)

    def _vote_written(self, error: StoreError | None) -> None:
        if self._is_stopped:
            return
        if error is None:
            self._go_on()
        else:
            self._give_up(str(error))

    # --- what the core tells

    def _state_changed(self, effect: fx.StateChanged) -> None:
        before, after, reason = effect
        log.info("set %s: status change: %s -> %s (%s)", self.name, before, after, reason)
        if after is State.CATCHUP:
            self.discarded.begin()
        self.hosted.read_only = not (after in LEADING and not self._is_leaving)
        if before is State.PRIMARY:  # at once: before the next turn, which could confirm what nobody else has
            self.hosted.end_links(self.refusal(), browsers=False)
            self._services.broker.waiters.refuse(self.hosted.resources)
        self._turn_again()

    def _status_changed(self, effect: fx.StatusChanged) -> None:
        if self._store is not None:
            self._store.describe(effect.status)
        self.hosted.read_only = not self.is_serving
        self._services.changed(self)

    def _end_links_soon(self, _effect: fx.EndClients) -> None:
        """Not at once: what comes in through a link may be what led to this. `ClientsEnded` follows."""
        self._is_leaving = self.hosted.read_only = True
        asyncio.get_running_loop().call_soon(self._end_links)

    def _end_links(self) -> None:
        if not self._is_stopped:
            self.hosted.end_links(self.refusal(), browsers=False)
            self.turn_ended(self.hosted.turn())
            self.feed(fx.ClientsEnded())
            self._is_leaving = False
            self.hosted.read_only = not self.is_serving
            self._turn_again()

    def _note(self, effect: fx.Notice) -> None:
        self._services.lines.log(_LEVELS[effect.level.upper()], self.name, effect.text)

    def refusal(self) -> AmqpError:
        """Why this broker, which does not lead the set, does not serve a link to its queues."""
        return ServedElsewhere(self._broker.container.directory, self.name)

    # --- what the host asks

    def change_settings(self, settings: MemberSettings) -> None:
        """Other settings are in force, or other brokers have replicas."""
        if settings != self.member.settings:
            self.member.settings = settings
            self._turn_again()


def _always() -> bool:
    return True


def _wall_ms() -> int:
    return int(time.time() * 1000)


def new_instance() -> str:
    """For one more member: which process it is in, and, of the first primary of a set, how its log is told apart."""
    return uuid.uuid4().hex
