"""Drives the member of a group: feeds its core what the transport, the store and the clients bring, and does what it
wants.

It decides nothing. For other members of the broker's sets see `set_member`: what both have in common is `CoreLoop`,
`MemberStore`, the owner and its record service. A turn of the set is a turn of the group: what was submitted in it is
multicast as one batch, and what was delivered is stored as one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import GROUP_VERSION, Acknowledged, GroupFrame, decode_batch
from qpid_ha_broker.group.serving import GroupServing
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import Answered
from qpid_ha_broker.ha.frames import FrameError, Question
from qpid_ha_broker.ha.replica import LogHistory
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.sets.grouped import Grouped
from qpid_ha_broker.server.clients.set_clients import SetClients
from qpid_ha_broker.server.peers.cpg_order import OrderedView
from qpid_ha_broker.server.peers.cpg_transport import CpgTransport
from qpid_ha_broker.server.peers.group_transport import GroupListener, GroupTransport
from qpid_ha_broker.server.peers.libcpg import GroupTransportError
from qpid_ha_broker.server.peers.sub_channels import SubChannel
from qpid_ha_broker.server.sets.core_loop import Action, CoreLoop
from qpid_ha_broker.server.sets.group_facts import GroupFacts
from qpid_ha_broker.server.sets.hosted_member import MemberOwner, SetMemberHost
from qpid_ha_broker.server.sets.turn_timer import TurnTimer
from qpid_ha_broker.server.stores.broker_store import BrokerStore
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.store.errors import StoreError

log = logging.getLogger("group")

_LEVELS: Final = logging.getLevelNamesMapping()


class GroupSetMember:
    """The promise: the core hears all that happens to the set here, and all that it wants is done, each in its order;
    clients are served here as long as this broker has a part in the group."""

    has_primary = is_standalone = False

    def __init__(
        self,
        owner: MemberOwner,
        broker: SetMemberHost,
        hosted: HostedSet,
        settings: MemberSettings,
        kept: BrokerStore | None,
        committed_lsn: int,
    ) -> None:
        """`settings.cluster`: the UUID of the set's log. `committed_lsn`: as its store was told."""
        self.hosted, self.kept, self.settings = hosted, kept, settings
        self.name = hosted.name
        replication = hosted.resources.replication
        if not isinstance(replication, Grouped):
            raise TypeError(f"the resources of {self.name} are not those of a group")
        ours = broker.current()
        self.serving = GroupServing(
            GroupSettings(
                settings.name,
                settings.cluster,
                backup_timeout_s=settings.backup_timeout_s,
                comeback_s=settings.comeback_s,
                patience_s=min(GroupSettings.patience_s, settings.backup_timeout_s),
                min_in_sync=settings.min_in_sync,
                window_bytes=ours.replicas.group_window_bytes,
            ),
            hosted.resources,
            replication,
            committed_lsn,
            self.feed,
            ours.replicas.group_slice_s,
        )
        self.member = self.serving.member
        self.facts, self.peers = GroupFacts(self.serving, settings.cluster), _NoFollowers(self.name)
        self.discarded = DiscardedMessages(ours.data_dir, self.name)
        self.clients = SetClients(broker, hosted, lambda: self.member.takes_units, self.feed_nothing, lambda: None)
        self._owner, self._broker = owner, broker
        self._transport: GroupTransport = self.make_transport(settings.cluster, settings.name, self)
        self._store = None if kept is None else MemberStore(kept.store, hosted.resources.catalog, self.feed)
        self._told: ClusterRecord | None = None
        """The record of which the controller was told last; None: it is to be told all the same."""
        self._is_stored = False
        """The store has answered within a turn: what follows from that is for the same turn."""
        self._is_over = False
        self._slice_end = TurnTimer(self._turn_again)
        self._loop = CoreLoop(self.member.handle, self.fail, lambda: None)
        self._loop.actions = self._make_actions()
        if kept is not None:
            kept.owner = self
        hosted.prove_lead = lambda: LeadProof.PROVEN
        hosted.take_batch = _nothing_to_take

    def _make_actions(self) -> dict[type, Action]:
        """Who has what done."""
        return {
            fx.Multicast: self._multicast,
            fx.Placed: self.serving.placed,
            fx.SubmitRefused: self.serving.refused,
            fx.Progressed: self._progressed,
            fx.RoleChanged: self._role_changed,
            fx.Persist: self._persist,
            fx.WriteCheckpoint: self._write_checkpoint,
            fx.ReadRecord: self._read_record,
            fx.WriteRecord: self._write_record,
            fx.Discarded: lambda effect: self.discarded.keep(*effect),
            fx.Notice: lambda effect: log.log(_LEVELS[effect.level.upper()], "set %s: %s", self.name, effect.text),
            fx.Stop: lambda effect: self.fail(effect.reason),
        }

    @staticmethod
    def make_transport(cluster: str, name: str, listener: GroupListener) -> GroupTransport:
        """The way to the other members of the group of a log."""
        return CpgTransport(cluster, name, listener)

    # --- start and stop

    def start(self) -> None:
        """Come to the group."""
        self.facts.since_s = time.monotonic()
        self.clients.update()
        self.feed(fx.Started())
        try:
            self._transport.start()
        except GroupTransportError as error:
            self.fail(str(error))
        self._owner.wake(self)

    def stop(self, reason: str) -> None:
        """This replica ends here: the others go on without it at once."""
        if not self._is_over:
            self.feed(fx.Stopping())
        self._end()

    def fail(self, reason: str) -> None:
        """This replica ends, without another word of its core; see `MemberOwner.cannot_go_on`."""
        if not self._is_over:
            self._end()
            self._owner.cannot_go_on(self, reason)

    def _end(self) -> None:
        self._is_over = True
        self._slice_end.stop()
        self._transport.close()
        self.clients.stop()

    # --- the core

    def feed(self, happened: fx.Input) -> None:
        """Put it before the core, and do what it wants; a turn follows in which that is said, and told."""
        if self._is_over:
            return
        self._loop.feed(happened)
        is_over = isinstance(happened, fx.GroupTurnEnded) or (_is_acknowledgement(happened) and self.member.is_silent)
        if not is_over:
            self._turn_again()

    def feed_nothing(self, happened: object) -> None:
        """Of clients: what their ends are to the core of another kind of set, is nothing to a group."""

    def _turn_again(self) -> None:
        self.hosted.touch()
        self._broker.schedule_turn()

    def tick(self, now_s: float) -> bool:
        """A while went by; whether the next tick matters, too: always, others wait for signs of life."""
        if self._transport.problem != self.facts.transport_problem:
            self.facts.transport_problem = self._transport.problem
            self._owner.changed(self)
        self.feed(fx.Ticked())
        return True

    def turn_ended(self, batch: LogBatch | None) -> None:
        """The set had a turn. What its log was given, the core has given to the store."""
        if self._is_over:
            return
        if self.kept is not None:
            self.kept.turn_ended()
        if self.clients.is_serving == self.hosted.read_only:
            self._look_at_clients()
        self._slice_end.set(self.serving.turn_ends(time.monotonic()))
        self._is_stored = False
        self.feed(fx.GroupTurnEnded())
        if self._is_stored:
            self.feed(fx.GroupTurnEnded())
        if self.member.record != self._told:
            self._told = self.member.record
            self._describe()
            self._owner.changed(self)
        if self.hosted.resources.has_work:
            self._turn_again()

    # --- the transport: see `group_transport.GroupListener`

    def _multicast(self, effect: fx.Multicast) -> None:
        traffic = self.facts.traffic
        traffic.multicasts += 1
        traffic.multicast_bytes += len(effect.data)
        self._transport.multicast(effect.data)

    def delivered(self, sender: str, data: bytes) -> None:
        """A batch, perhaps an own one."""
        self.facts.traffic.delivered_batches += 1
        try:
            frames = _frames_of(data)
        except FrameError as error:
            text = f"what {sender} has multicast cannot be read: {error}"
            if data[:1] != bytes((GROUP_VERSION,)) and sender in self.member.record.members:
                self.fail(f"{text}; upgrade this broker")  # which others may read, and then have another log than this
                return
            log.error("set %s: %s", self.name, text)  # all members read the same bytes, and leave out the same
            frames = ()
        self.feed(fx.Delivered(sender, frames, len(data)))

    def view_changed(self, view: OrderedView) -> None:
        """Who is there from here on."""
        self.facts.traffic.views += 1
        log.info("set %s: its group is %s now%s", self.name, ", ".join(view.members) or "out of reach", _changes(view))
        self.feed(fx.ViewChanged(*view))

    # --- the record

    def _read_record(self, effect: fx.ReadRecord) -> None:
        """`RecordRead` follows."""
        number = effect.number
        self._owner.records.read_record(
            self.name, lambda answer: self.feed(fx.RecordRead(number, answer.record, answer.problem))
        )

    def _write_record(self, effect: fx.WriteRecord) -> None:
        """`RecordWritten` follows."""
        number, expected, wanted = effect
        self._owner.records.write_record(
            self.name, expected, wanted, lambda answer: self.feed(fx.RecordWritten(number, *answer))
        )

    # --- the store: see `broker_store.StoreOwner`

    @property
    def committed_lsn(self) -> int:
        """How far the log is committed, as far as this member knows."""
        return self.member.committed_lsn

    def _persist(self, effect: fx.Persist) -> None:
        self._is_stored = True
        if self._store is None:
            self.feed(fx.Persisted(effect.number))
        else:
            self._store.persist(effect)

    def _write_checkpoint(self, effect: fx.WriteCheckpoint) -> None:
        """What is in the store does not lead to what is here: the journal begins anew, and counts once this does."""
        if self._store is None:
            self.feed(fx.CheckpointPersisted(effect.number))
        else:
            self._store.begin_checkpoint_at(self.hosted.resources.replicated.log.last_lsn)
            self._store.write_checkpoint(effect)

    def persisted(self, number: int) -> None:
        """The store holds what was asked for under that number."""
        if self._store is not None:
            self._store.persisted(number)

    def store_writable(self, problem: str) -> None:
        """Why the store takes nothing now; empty: it does. Others drop this member if that goes on."""
        self.facts.store_problem = problem
        self._owner.changed(self)

    def store_failed(self, text: str) -> None:
        """Nothing more can be stored. Raises StoreError: this member leaves its group, and the others go on."""
        raise StoreError(text)

    # --- what the core tells

    def _progressed(self, _: fx.Progressed) -> None:
        self.serving.progressed()
        self._turn_again()

    def _role_changed(self, effect: fx.RoleChanged) -> None:
        before, after, self.facts.reason = effect
        self.facts.since_s = time.monotonic()
        log.info("set %s: %s -> %s (%s)", self.name, before, after, self.facts.reason)
        if after is GroupRole.CATCHING_UP:
            self.discarded.begin()
        self._look_at_clients()
        self._told = None
        self._turn_again()

    def _look_at_clients(self) -> None:
        """Who must not be served any more goes at once: the next turn could tell of what others decide. The core has
        changed by then, so whether anybody was served is what the set was told last."""
        served = not self.hosted.read_only
        self.serving.look(self.facts.reason)
        self.clients.update()
        if served and not self.clients.is_serving:
            self.clients.end_now()

    def _describe(self) -> None:
        """Let the store's STATUS tell what the member is now."""
        if self._store is not None:
            record, history = self.member.record, LogHistory(self.hosted.resources.replicated.state, ())
            self._store.describe_as(
                cluster=history.cluster,
                history=history.entries(),
                role=self.facts.state.value,
                epoch=record.epoch,
                members=record.members,
                is_level=self.member.takes_units,
            )

    # --- what its owner asks

    @property
    def is_serving(self) -> bool:
        """Whether clients are served here."""
        return self.clients.is_serving

    def change_settings(self, settings: MemberSettings) -> None:
        """Other brokers have replicas, or more have to be in sync: who takes part, the transport says."""
        self.settings = settings
        self.feed(fx.MinInSyncChanged(settings.min_in_sync))

    def ask(self, make: Callable[[int], object], done: Callable[[Answered], None]) -> None:
        """The controller wants something of a primary; there is none."""
        done(Answered(0, False, f"the resource set {self.name} is a group: it has no primary"))


class _NoFollowers:
    """See `hosted_member.SetPeers`."""

    def __init__(self, set_name: str) -> None:
        self._why = f"the resource set {set_name} is a group, which nobody follows: its members meet elsewhere"

    def accept(self, channel: SubChannel) -> PeerListener | str:
        return self._why

    def asked(self, channel: Channel, question: Question) -> None:
        """Left without an answer, as of a broker that is down: nobody claims a group."""

    def closed(self, channel: Channel, reason: str) -> None:
        """Nothing came on it."""


@lru_cache(maxsize=64)
def _frames_of(batch: bytes) -> tuple[GroupFrame, ...]:
    return tuple(decode_batch(batch)[1])


def _is_acknowledgement(happened: fx.Input) -> bool:
    """Nothing follows from it but what is said at once: that more is committed, or that the role is another one."""
    return isinstance(happened, fx.Delivered) and all(isinstance(frame, Acknowledged) for frame in happened.frames)


def _changes(view: OrderedView) -> str:
    parts: Sequence[str] = [
        f"{word} {', '.join(names)}" for word, names in (("joined", view.joined), ("left", view.left)) if names
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def _nothing_to_take() -> None:
    return None
