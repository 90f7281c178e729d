"""Drives the member of a resource set that has a primary, of `default` or another: feeds it its inputs, and carries its
effects out.

It decides nothing. Each kind of effect has its place: channels (`PeerLinks`), clients (`SetClients`), the store
(`MemberStore`), requests (`OperatorRequests`). What differs from set to set is given to it: a way to peers, clients, a
store, and a `MemberOwner`, who has the record and the questions. `Membership` is that for `default`, `SetHost` for the
others.
"""

from __future__ import annotations

import logging
import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.link_ends import STOPPING
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import LEADING, Phase, State
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue_arguments import StoreErrorPolicy as Policy
from qpid_ha_broker.server.clients.set_clients import SetClients
from qpid_ha_broker.server.control.operator_requests import OperatorRequests
from qpid_ha_broker.server.peers.peer_asker import Feed
from qpid_ha_broker.server.peers.peer_links import ChannelOpener, PeerLinks
from qpid_ha_broker.server.sets.core_loop import Action, CoreLoop
from qpid_ha_broker.server.sets.hosted_member import MemberOwner, SetMemberHost
from qpid_ha_broker.server.sets.member_facts import PrimarySetFacts
from qpid_ha_broker.server.sets.set_events import SetEvents
from qpid_ha_broker.server.stores.broker_store import BrokerStore
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.server.stores.fleet import VoteWriter
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.store.errors import StoreError

log = logging.getLogger("cluster")

_LEVELS: Final = logging.getLevelNamesMapping()
WATCHED_BYTES: Final = 32 * 1024
"""Written in one turn: for less, it is enough to look at each tick whether channels keep up."""
AWAKE_S: Final = 0.25
"""So long after the last thing that happened to it a member gets each tick, so that its backups hear what is committed;
then, if it is at rest, few of them."""


class Surroundings(NamedTuple):
    """Of a member: what it has for itself. `opener`: of channels on which the set is followed."""

    broker: SetMemberHost
    opener: ChannelOpener
    make_clients: Callable[[HostedSet, Member, Feed, Callable[[], None]], SetClients]
    """The last is what runs a turn of the set: see `SetClients`."""
    kept: BrokerStore | None
    """None: the replica is in memory only."""


class SetMember:
    """The promise: the core hears all that happens to the set here, and all that it wants is done, each in its order;
    the set's queues are written here while this broker leads it, and by nobody else.
    """

    has_primary = True

    def __init__(
        self,
        owner: MemberOwner,
        around: Surroundings,
        hosted: HostedSet,
        settings: MemberSettings,
        restored: Restored | None,
    ) -> None:
        broker, self.kept = around.broker, around.kept
        """Its store."""
        self.hosted = hosted
        self.name = hosted.name
        self.member = Member(
            settings, hosted.resources.replicated, random.random, _wall_ms, restored, broker.container.steady.now_ms
        )
        self.is_standalone = settings.is_standalone
        """The broker is in no cluster."""
        self.discarded = DiscardedMessages(broker.current().data_dir, self.name)
        self._events = SetEvents(broker.container.notices.events, self.name, self.member.status)
        self.requests = OperatorRequests(self.member, self.feed)
        self.clients = around.make_clients(hosted, self.member, self.feed, self._run_turn)
        self.is_awake = False
        """It gets every tick."""
        self._is_active = True
        """Something has happened to it since its last tick."""
        self._rest_at_s = 0.0
        self._owner = owner
        self._broker = broker
        self._log = hosted.resources.replicated.log
        self._has_witness = settings.has_witness
        self.facts = PrimarySetFacts(self.member, hosted.resources.replicated.log)
        self._loop = CoreLoop(self._handle, self.fail, lambda: self.links.flush())
        self._is_stopped = False
        self._is_failed = False
        """Whatever state the core is in, it must not speak for this replica any more."""
        self._store = None if self.kept is None else MemberStore(self.kept.store, hosted.resources.catalog, self.feed)
        has_room = _always if self._store is None else self._store.has_room
        self.links = self.peers = PeerLinks(broker, self.member, around.opener, self.feed, has_room)
        self._loop.actions = self._make_actions()
        if self.kept is not None:
            self.kept.owner = self
        hosted.prove_lead = self.prove_lead

    def _make_actions(self) -> dict[type, Action]:
        """Who has what done."""
        links, store, owner = self.links, self._store, self._owner
        actions: dict[type, Action] = {
            fx.Connect: links.connect,
            fx.Send: links.send,
            fx.Close: links.close,
            fx.Ask: lambda effect: owner.questions.ask_for(effect, self.feed),
            fx.ReadRecord: self._read_record,
            fx.WriteRecord: self._write_record,
            fx.Answered: self.requests.answered,
            fx.StateChanged: self._state_changed,
            fx.StatusChanged: self._status_changed,
            fx.EndClients: self.clients.end_soon,
            fx.TurnDue: self._turn_due,
            fx.Committed: self._turn_due,
            fx.Discarded: lambda effect: self.discarded.keep(*effect),
            fx.Notice: lambda effect: owner.note(self, _LEVELS[effect.level.upper()], effect.text),
            fx.Stop: lambda effect: self.fail(effect.reason),
            fx.CleanEnd: lambda effect: owner.ended(self, effect.uuid),
        }
        if store is not None:
            actions |= {
                fx.Persist: store.persist,
                fx.TruncateLog: store.truncate,
                fx.BeginCheckpoint: store.begin_checkpoint,
                fx.WriteCheckpoint: store.write_checkpoint,
                fx.PersistVote: store.persist_vote,
            }
        if self.kept is not None and owner.votes is not None:
            votes, written = owner.votes, self.kept.store
            actions[fx.PersistVote] = lambda effect: self._persist_vote(written, votes, effect)
        return actions

    # --- start and stop

    def start(self) -> None:
        """Look for the primary."""
        self.clients.update()
        self.feed(fx.Started())

    def stop(self, reason: str) -> None:
        """This replica ends here; what the core still wants is sent before the channels are closed."""
        if self._is_stopped:
            return
        self.feed(fx.Stopping())
        self._is_stopped = True
        self.clients.stop()
        # A core that must not speak any more cannot say so itself: nobody need wait for this replica.
        self.links.close_all(STOPPING if self._is_failed else reason)
        self.requests.cancel()

    def fail(self, reason: str) -> None:
        """This replica ends, without another word of its core; see `MemberOwner.cannot_go_on`."""
        if not self._is_failed:
            self._is_failed = True
            self.clients.stop()
            self._owner.cannot_go_on(self, reason)

    # --- the core

    def feed(self, happened: fx.Input) -> None:
        """Put it before the core, and do what it wants."""
        if self._is_stopped or self._is_failed:
            return
        if self.is_awake:
            self._is_active = True
        else:
            self._wake()
        self._loop.feed(happened)

    def _handle(self, happened: fx.Input, now_s: float) -> Sequence[fx.Effect]:
        return self.member.handle(happened, now_s)

    def _wake(self) -> None:
        self._is_active = True
        if not self.is_awake:
            self.is_awake = True
            self.member.ran_until(self._owner.process.ran_until_s)
            self._owner.wake(self)

    def prove_lead(self) -> LeadProof:
        """How sure it is that this broker leads the set; in each turn in which consumers may be given something."""
        now_s = time.monotonic()
        return self.member.lead_proof(now_s, self._owner.process.look(now_s))

    # --- ticks and turns

    def tick(self, now_s: float) -> bool:
        """A while went by; whether the next tick matters, too."""
        self.member.ran_until(self._owner.process.ran_until_s)
        if self._is_active:
            self._rest_at_s = now_s + AWAKE_S
        self.is_awake = True  # whatever happens because of it
        self.feed(fx.Ticked())
        self.links.watch()
        self._is_active = False
        self.is_awake = now_s < self._rest_at_s or not self.is_at_rest
        return self.is_awake

    @property
    def is_at_rest(self) -> bool:
        """Nothing is under way that a tick may be needed for. Who sends heartbeats never is."""
        status, primary = self.member.status, self.member.primary
        if self.links.is_any_full or self.member.settings.has_heartbeats:
            return False
        if primary is None:
            return status.state is State.READY
        is_settled = status.phase is Phase.ACTIVE and primary.unrecorded is None and not status.problem
        return is_settled and not primary.has_somebody_behind and self._log.committed_lsn == self._log.last_lsn

    def turn_ended(self, batch: LogBatch | None) -> None:
        """The set had a turn, and its log has nothing pending."""
        if not self._has_witness:
            return
        if self.kept is not None:
            self.kept.turn_ended()
        rest = self._log.take_batch()  # what the turn's last steps have written
        if rest is not None:
            batch = rest if batch is None else _joined(batch, rest)
        primary = self.member.primary
        behind = primary if primary is not None and primary.has_somebody_behind else None
        if batch is None and behind is None:
            return
        if behind is not None or self.links.is_any_full or (batch is not None and len(batch.data) > WATCHED_BYTES):
            self.links.watch()
        self.feed(fx.TurnEnded(batch))
        if behind is not None and behind.has_work:
            self._turn_again()

    def _run_turn(self) -> None:
        self.turn_ended(self.hosted.turn())
        self._turn_again()

    def _turn_again(self) -> None:
        """The set has more to do than fits into this turn."""
        self.hosted.touch()
        self._broker.schedule_turn()

    def _turn_due(self, effect: fx.TurnDue | fx.Committed) -> None:
        """What is committed may be told without one; but who catches up, or copies a queue, goes on in a turn."""
        primary = self.member.primary
        if type(effect) is fx.TurnDue or primary is None or primary.has_somebody_behind:
            self._turn_again()
        else:
            self.hosted.touch()
            self._broker.tell_committed()

    # --- the record

    def _read_record(self, effect: fx.ReadRecord) -> None:
        """`RecordRead` follows."""
        number = effect.number
        self._owner.records.read_record(
            self.name, lambda answer: self._record_read(fx.RecordRead(number, answer.record, answer.problem))
        )

    def _record_read(self, read: fx.RecordRead) -> None:
        """A primary looks at its record every few seconds: as long as it finds what it expects, it stays at rest."""
        if self._is_stopped or self._is_failed:
            return
        self.member.ran_until(self._owner.process.ran_until_s)
        self._loop.feed(read)
        if not self.is_at_rest:
            self._wake()

    def _write_record(self, effect: fx.WriteRecord) -> None:
        """`RecordWritten` follows."""
        number, expected, wanted = effect
        self._owner.records.write_record(
            self.name, expected, wanted, lambda answer: self.feed(fx.RecordWritten(number, *answer))
        )

    # --- the store: see `broker_store.StoreOwner`

    def _persist_vote(self, store: Store, votes: VoteWriter, effect: fx.PersistVote) -> None:
        """Beside the loop, with the votes of other sets; all that follows waits for it."""
        if store.note_vote(*effect):
            self._loop.hold()
            votes.write(store, self._vote_written)

    def _vote_written(self, error: StoreError | None) -> None:
        if self._is_stopped:
            return
        if error is None:
            self._loop.go_on()
        else:
            self._loop.end(str(error))

    def persisted(self, number: int) -> None:
        """The store holds what was asked for under that number."""
        if self._store is not None:
            self._store.persisted(number)

    def store_writable(self, problem: str) -> None:
        """Why the store takes nothing now; empty: it does."""
        self.feed(fx.StoreWritable(problem))

    def store_failed(self, text: str) -> None:
        """Nothing more can be stored: who leads ends; a backup does as it was told. Raises StoreError."""
        policy = Policy(self._broker.current().ha.store_error)
        if self._store is None or self.member.status.state in LEADING:
            raise StoreError(text)
        self._store.go_on_without(text, policy)

    # --- what the core tells

    def _state_changed(self, effect: fx.StateChanged) -> None:
        self._owner.state_changed(self, effect)
        self._events.state_changed(effect)
        if effect.after is State.CATCHUP:
            self.discarded.begin()
        self.clients.update()
        if effect.before is State.PRIMARY:  # at once: before the next turn, which could confirm what nobody else has
            self.clients.end_now()
        self._turn_again()

    def _status_changed(self, effect: fx.StatusChanged) -> None:
        self._events.status_changed(effect.status)
        # What STATUS says of a cluster stays while the broker is in none.
        if self._store is not None and not self.is_standalone:
            self._store.describe(effect.status)
        self._owner.changed(self)
        self.clients.status_changed()

    # --- what its owner asks

    @property
    def is_serving(self) -> bool:
        """Whether the set's queues are written here."""
        return self.clients.is_serving

    @property
    def committed_lsn(self) -> int:
        """How far the log is committed, as far as this member knows."""
        return self.member.committed_lsn

    @property
    def settings(self) -> MemberSettings:
        """As they are now."""
        return self.member.settings

    def ask(self, make: Callable[[int], fx.Input], done: Callable[[fx.Answered], None]) -> None:
        """Put what `make` gives for a number before the core, and have `done` hear what came of it."""
        self.requests.begin(make, done)

    def change_settings(self, settings: MemberSettings) -> None:
        """Other settings are in force, or other brokers have replicas."""
        if settings != self.member.settings:
            self.member.settings = settings
            self._turn_again()


def _joined(batch: LogBatch, rest: LogBatch) -> LogBatch:
    return LogBatch(batch.first_lsn, rest.last_lsn, batch.data + rest.data, batch.transient + rest.transient)


def _always() -> bool:
    return True


def _wall_ms() -> int:
    return int(time.time() * 1000)


def new_instance() -> str:
    """For one more member: which process it is in, and, of the first primary of a set, how its log is told apart."""
    return uuid.uuid4().hex
