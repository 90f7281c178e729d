"""The driver of a broker's `Member`: feeds it its inputs in their order, and carries its effects out in theirs.

It decides nothing. Its own are the timers, the encoding of a frame once for all backups, the channels' back-pressure,
and what clients are told of who leads. A standalone broker has one, too: a cluster of one.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from qpid_ha_broker.amqp.conditions import UNAUTHORIZED_ACCESS, AmqpError
from qpid_ha_broker.amqp.connection import Connection
from qpid_ha_broker.amqp.peer_frames import Channel
from qpid_ha_broker.amqp.peer_link import PeerChannel
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Answer, Batch, Frame, FrameError, Question, Topic
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import LEADING, State
from qpid_ha_broker.model.log import LogBatch
from qpid_ha_broker.model.queue_arguments import StoreErrorPolicy as Policy
from qpid_ha_broker.server.cluster_clients import failover_servers, refusal
from qpid_ha_broker.server.cluster_events import ClusterEvents
from qpid_ha_broker.server.cluster_facts import facts, summary
from qpid_ha_broker.server.commit_waiters import CommitWaiters
from qpid_ha_broker.server.discarded import DiscardedMessages
from qpid_ha_broker.server.host import Host
from qpid_ha_broker.server.member_settings import member_settings
from qpid_ha_broker.server.member_store import MemberStore
from qpid_ha_broker.server.peer_asker import PeerAsker
from qpid_ha_broker.server.peer_channels import Dialler, OutgoingChannel
from qpid_ha_broker.server.record_requests import RecordRequests
from qpid_ha_broker.server.store import Store
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("cluster")

_LEVELS: Final = logging.getLevelNamesMapping()
TICK_S = 0.1
GREETING_S = 20.0
"""Between two questions to all peers that are asked for no other reason than to keep their channels."""
FULL_BYTES = 1024 * 1024
"""Unsent on a channel: beyond it, only the live stream is sent."""
ROOMY_BYTES = 256 * 1024
WATCHED_BYTES = 32 * 1024
"""Written in one turn: for less, it is enough to look at each tick whether channels keep up."""
CUT_BYTES = 256 * 1024 * 1024
"""Unsent on a channel: beyond it, the peer is given up. It can come back and compare."""


class Link:
    """A channel under the number by which the core knows it."""

    __slots__ = ("channel", "is_known", "number", "writable")

    def __init__(self, number: int, channel: Channel, *, is_known: bool) -> None:
        self.number = number
        self.channel = channel
        self.is_known = is_known
        """The core has heard of it."""
        self.writable = True


class MemberHost(Host, Protocol):
    """What a broker's part in its cluster needs of the broker."""

    waiters: CommitWaiters

    def turn(self) -> None:
        """Make the broker's move, and write to everybody what came of it."""

    def end_clients(self, reason: AmqpError) -> None:
        """End all connections but those of other brokers and of administrators, who are let in everywhere."""

    def unwritten_bytes(self, connection: Connection) -> int:
        """What its socket has not taken yet."""

    def facts(self) -> dict[str, object]:
        """What `qpid-ha query` shows."""

    def end(self, clean: str) -> None:
        """Stop as soon as possible; `clean`: the UUID under which the store is closed as one that is whole."""


class Membership:
    """The promise: inputs reach the core in the order in which they happen, and effects are carried out in theirs.

    The core is never entered twice: what happens while its effects are carried out waits for its turn.
    """

    def __init__(
        self,
        broker: MemberHost,
        member: Member,
        dialler: Dialler,
        coordinator: Coordinator,
        discarded: DiscardedMessages,
        store: Store | None,
    ) -> None:
        self.member = member
        self.is_standalone = member.is_standalone
        """The broker is in no cluster."""
        self._has_witness = member.settings.has_witness
        self.asker = PeerAsker(dialler)
        self.discarded = discarded
        self.events = ClusterEvents()
        self._broker = broker
        self._dialler = dialler
        self._records = RecordRequests(coordinator, self.feed)
        self._store = None if store is None else MemberStore(store, broker.container.resources.catalog, self.feed)
        self._links: dict[int, Link] = {}
        self._numbers: dict[Channel, int] = {}
        self._incoming = itertools.count(1)
        self._requests = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[fx.Answered]] = {}
        self._inputs: list[fx.Input] = []
        self._is_feeding = False
        self._dirty: dict[OutgoingChannel, None] = {}
        self._encoded: tuple[Batch | None, bytes] = (None, b"")
        self._is_a_link_full = False
        """More waits on a channel than should, as of the last look."""
        self._status = member.status
        """As the core told it last."""
        self._shown: tuple[object, ...] = ()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_leaving = False
        """Clients are about to be ended, because the core wants to be primary no more."""
        self._is_stopped = False
        self._is_shut_down = False
        """This broker ends because its cluster does, which its manager must not undo."""
        self._actions: dict[type, Callable[[Any], None]] = {
            fx.Connect: self._connect,
            fx.Send: self._send,
            fx.Close: self._close,
            fx.Ask: lambda effect: self.run(self._ask_peers(effect)),
            fx.ReadRecord: self._records.read,
            fx.WriteRecord: self._records.write,
            fx.StateChanged: self._state_changed,
            fx.StatusChanged: self._status_changed,
            fx.EndClients: self._end_clients_soon,
            fx.TurnDue: lambda _effect: self._broker.want_turn(),
            fx.Answered: self._answered,
            fx.Discarded: lambda effect: self.discarded.keep(*effect),
            fx.Notice: lambda effect: log.log(_LEVELS[effect.level.upper()], "%s", effect.text),
            fx.Stop: lambda effect: self._broker.fail(effect.reason),
            fx.CleanEnd: self._end,
        }
        if self._store is not None:
            self._actions |= {
                fx.Persist: self._store.persist,
                fx.TruncateLog: self._store.truncate,
                fx.BeginCheckpoint: self._store.begin_checkpoint,
                fx.WriteCheckpoint: self._store.write_checkpoint,
                fx.PersistVote: self._store.persist_vote,
            }

    # --- start and stop

    def start(self) -> None:
        """Begin. The broker listens already, if there are others to connect to it."""
        self._show_clients_the_way()
        self.feed(fx.Started())
        if not self.is_standalone:
            self.run(self._tick_forever())
            self.run(self._greet_forever())

    def stop(self) -> None:
        """The process will end; what the core still wants is sent before the channels are closed."""
        if self._is_stopped:
            return
        self.feed(fx.Stopping())
        self._is_stopped = True
        self._records.stop()
        for task in self._tasks:
            task.cancel()
        for link in list(self._links.values()):
            link.channel.close("the broker is stopping")
        self._links.clear()
        self._numbers.clear()
        self.asker.close()
        for waiter in self._waiting.values():
            waiter.cancel()
        self.events.close()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Have `work` done beside all this, until the end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_S, self.member.settings.heartbeat_interval_s / 4))
            self.feed(fx.Ticked())
            now_s = time.monotonic()
            self.asker.tick(now_s)
            for link in list(self._links.values()):
                if isinstance(link.channel, OutgoingChannel):
                    link.channel.heartbeat(int(now_s * 1000))
            self._watch_links()

    # --- the core

    def feed(self, happened: fx.Input) -> None:
        """Put it before the core, and do what it wants."""
        if self._is_stopped:
            return
        self._inputs.append(happened)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            for input_ in self._inputs:  # grows meanwhile
                for effect in self.member.handle(input_, time.monotonic()):
                    self._actions[type(effect)](effect)
        except StoreError as error:
            self._broker.fail(str(error))
        except Exception as error:  # whatever state the core is in now, it must not speak for this broker any more
            log.exception("a bug: %s", error)
            self._broker.fail(f"a bug in the cluster's logic ({type(error).__name__}); the log has it")
        finally:
            self._inputs.clear()
            self._is_feeding = False
            self._encoded = (None, b"")
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for channel in dirty:
                channel.flush()

    def turn_ended(self, batch: LogBatch | None) -> None:
        """The broker had a turn, and the log has nothing pending."""
        if not self._has_witness:
            return
        rest = self._broker.container.resources.default.log.take_batch()  # what the turn's last steps have written
        if rest is not None:
            batch = rest if batch is None else _joined(batch, rest)
        primary = self.member.primary
        behind = primary if primary is not None and primary.has_somebody_behind else None
        if batch is None and behind is None:
            return
        if behind is not None or self._is_a_link_full or (batch is not None and len(batch.data) > WATCHED_BYTES):
            self._watch_links()
        self.feed(fx.TurnEnded(batch))
        if behind is not None and behind.has_work:
            self._broker.schedule_turn()

    async def request(self, make: Callable[[int], fx.Input]) -> fx.Answered:
        """Feed what an operator asks for, under a number of its own; what came of it."""
        number = next(self._requests)
        waiter: asyncio.Future[fx.Answered] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiter
        try:
            self.feed(make(number))
            return await waiter
        finally:
            self._waiting.pop(number, None)

    def _answered(self, effect: fx.Answered) -> None:
        if effect.text != self.member.status.problem:  # that is in the log already, perhaps for the hundredth attempt
            log.log(logging.INFO if effect.done else logging.WARNING, "%s", effect.text)
        waiter = self._waiting.get(effect.request)
        if waiter is not None and not waiter.done():
            waiter.set_result(effect)

    # --- channels: see peer_channels.Listener

    def opened(self, channel: Channel) -> None:
        """One that we opened is there, or a peer has opened one."""
        number = self._numbers.get(channel)
        if number is not None:
            self.feed(fx.LinkOpened(number))
            return
        number = self._numbers[channel] = next(self._incoming)
        self._links[number] = Link(number, channel, is_known=False)

    def received(self, channel: Channel, data: bytes) -> None:
        """A frame came."""
        number = self._numbers.get(channel)
        if number is None:
            return
        self._links[number].is_known = True
        try:
            frame = decode(data)
        except FrameError as error:
            self.feed(fx.FrameDamaged(number, str(error)))
            return
        if isinstance(frame, Question) and frame.topic is Topic.QUERY:
            text = json.dumps(self._broker.facts())
            self._send(fx.Send(number, self.member.answer(frame.number, True, text)))
        else:
            self.feed(fx.FrameReceived(number, frame))

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone."""
        number = self._numbers.pop(channel, None)
        if number is None:
            return
        link = self._links.pop(number)
        if link.is_known:
            self.feed(fx.LinkLost(number, reason, is_login=reason.startswith(UNAUTHORIZED_ACCESS)))

    def _connect(self, effect: fx.Connect) -> None:
        channel = self._dialler.dial(effect.address, self, self.member.settings.link_timeout_s)
        if self._store is not None:
            channel.may_read = self._store.has_room
        self._numbers[channel] = effect.link
        self._links[effect.link] = Link(effect.link, channel, is_known=True)

    def _send(self, effect: fx.Send) -> None:
        link = self._links.get(effect.link)
        if link is None:  # it was lost, and the core will hear of it
            return
        channel = link.channel
        channel.send(self._encode(effect.frame))
        if isinstance(channel, OutgoingChannel):
            self._dirty[channel] = None
        elif not self._broker.is_in_turn:
            self._broker.schedule_turn()

    def _encode(self, frame: Frame) -> bytes:
        """A batch for several backups is encoded once."""
        if not isinstance(frame, Batch):
            return encode(frame)
        if self._encoded[0] is not frame:
            self._encoded = (frame, encode(frame))
        return self._encoded[1]

    def _close(self, effect: fx.Close) -> None:
        link = self._links.pop(effect.link, None)
        if link is not None:
            del self._numbers[link.channel]
            link.channel.close(effect.reason)
            self._broker.schedule_turn()

    def _watch_links(self) -> None:
        for link in list(self._links.values()):
            unsent = link.channel.unsent_bytes
            if isinstance(link.channel, PeerChannel):
                unsent += self._broker.unwritten_bytes(link.channel.connection)
            if unsent > CUT_BYTES:
                log.warning("%s is given up: %d bytes wait for it", link.channel.peer, unsent)
                link.channel.close("it does not read")
                self.closed(link.channel, f"{unsent} bytes wait for it")
            elif link.is_known and (unsent > FULL_BYTES if link.writable else unsent < ROOMY_BYTES):
                link.writable = not link.writable
                self.feed(fx.LinkWritable(link.number, link.writable))
        self._is_a_link_full = not all(link.writable for link in self._links.values())

    # --- what else the core wants

    async def _ask_peers(self, effect: fx.Ask) -> None:
        found = await self.ask(*effect)
        answers = tuple(answer for answer in found.values() if answer is not None)
        unreachable = tuple(address for address, answer in found.items() if answer is None)
        self.feed(fx.PeersAnswered(effect.question.number, answers, unreachable))

    async def ask(self, question: Question, addresses: Sequence[str], limit_s: float) -> dict[str, Answer | None]:
        """What each address answered; None: nothing in time. Whoever answers as this very process shows its address."""
        found = await self.asker.ask(question, addresses, limit_s)
        settings = self.member.settings
        for address, answer in found.items():
            if answer is not None and answer.instance == settings.instance != "" and not settings.own_address:
                log.info("%s is this broker's own address", address)
                self.member.settings = replace(settings, own_address=address)
        return found

    def question(self, topic: Topic) -> Question:
        """A question of the driver's own, under a number that no other one has."""
        member, settings = self.member, self.member.settings
        number, lsn = self.asker.number(), member.position.lsn
        return Question(
            number,
            topic,
            settings.name,
            settings.instance,
            member.status.cluster,
            member.status.generation,
            lsn,
            settings.own_address,
            member.set,
        )

    async def _greet_forever(self) -> None:
        """So that channels are there when a promotion has to ask, and this broker learns its own address."""
        while True:
            settings = self.member.settings
            addresses = [each for each in settings.addresses if each != settings.own_address]
            await self.ask(self.question(Topic.STATUS), addresses, settings.ask_limit_s)
            await asyncio.sleep(GREETING_S)

    def _state_changed(self, effect: fx.StateChanged) -> None:
        log.info("Status change: %s -> %s (%s)", effect.before, effect.after, effect.reason)
        if effect.after is State.CATCHUP:
            self.discarded.begin()
        self._show_clients_the_way()
        if effect.before is State.PRIMARY:  # at once: before the next turn, which could confirm what nobody else has
            self._broker.end_clients(refusal(self.member))
            self._broker.waiters.refuse()
        self._broker.schedule_turn()
        change = {"before": effect.before.value, "after": effect.after.value, "reason": effect.reason}
        self.events.publish("state", {**self.summary(), **change})

    def _status_changed(self, effect: fx.StatusChanged) -> None:
        before, status = self._status, effect.status
        self._status = status
        # What STATUS says of a cluster stays while the broker is in none.
        if self._store is not None and not self.is_standalone:
            self._store.describe(status)
        if status.phase is not before.phase and status.phase is not None:
            log.info("Phase change: %s", status.phase)
            self.events.publish("phase", self.summary())
        self._announce_primary()

    def _announce_primary(self) -> None:
        """Tell clients and whoever listens who leads, if that is somebody else now, or serves no more."""
        status = self._status
        shown = (status.state, status.primary, status.primary_address, self.is_serving)
        if shown != self._shown:
            self._shown = shown
            self._show_clients_the_way()
            self.events.publish("primary", self.summary())

    def _end_clients_soon(self, _effect: fx.EndClients) -> None:
        """Not at once: what comes in through a client's connection may be what led to this."""
        self._is_leaving = True
        self._announce_primary()
        asyncio.get_running_loop().call_soon(self._end_clients)

    def _end_clients(self) -> None:
        if self._is_stopped:
            return
        self._broker.end_clients(refusal(self.member))
        self._broker.turn()
        self.feed(fx.ClientsEnded())
        self._is_leaving = False
        self._announce_primary()

    def persisted(self, number: int) -> None:
        """The store holds what was asked for under that number."""
        if self._store is not None:
            self._store.persisted(number)

    def store_failed(self, text: str) -> None:
        """Nothing more can be stored: who leads ends; a backup does as it was told. Raises StoreError."""
        policy = Policy(self._broker.current().ha.store_error)
        if self._store is None or self.member.status.state in LEADING:
            raise StoreError(text)
        self._store.go_on_without(text, policy)

    def _end(self, effect: fx.CleanEnd) -> None:
        self._is_shut_down = True
        self._broker.end(effect.uuid)

    # --- what others see

    def _show_clients_the_way(self) -> None:
        """Clients are served by a primary, until it begins to hand over."""
        container, member = self._broker.container, self.member
        container.client_refusal = None if self.is_serving else refusal(member)
        container.read_only = not self.is_serving
        container.failover_servers = failover_servers(self._broker.current().ha, member)

    @property
    def is_serving(self) -> bool:
        """Whether clients are served, and commands carried out."""
        return self.member.status.state in LEADING and not self._is_leaving and not self.member.status.is_closing

    def change_settings(self, settings: BrokerSettings) -> None:
        """Other settings are in force."""
        current = self.member.settings
        self.member.settings = member_settings(settings, current.instance, current.own_address)
        self._show_clients_the_way()
        self._broker.schedule_turn()

    def facts(self) -> dict[str, object]:
        """What `query` tells of a broker's part in the cluster, flat."""
        return facts(self.member, peer_channels=len(self._links), discarded=self.discarded.total)

    def summary(self) -> dict[str, object]:
        """What `status` tells."""
        return summary(self.member, shut_down=self._is_shut_down)


def _joined(batch: LogBatch, rest: LogBatch) -> LogBatch:
    return LogBatch(batch.first_lsn, rest.last_lsn, batch.data + rest.data, batch.transient + rest.transient)
