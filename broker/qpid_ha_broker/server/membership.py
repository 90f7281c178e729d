"""The driver of a broker's `Member`: feeds it its inputs in their order, and carries its effects out in theirs.

It decides nothing. Each kind of effect has its place: channels (`PeerLinks`), questions to other brokers
(`PeerQuestions`), the coordinator's record (`RecordRequests`), the store (`MemberStore`), clients (`ClientAccess`),
operators (`OperatorRequests`). A standalone broker has one, too: a cluster of one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.pause import is_heeded_with
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import LEADING, State
from qpid_ha_broker.model.log import LogBatch
from qpid_ha_broker.model.queue_arguments import StoreErrorPolicy as Policy
from qpid_ha_broker.server.background_tasks import BackgroundTasks
from qpid_ha_broker.server.cluster_clients import ClientAccess, ClientsHost
from qpid_ha_broker.server.cluster_events import ClusterEvents
from qpid_ha_broker.server.cluster_facts import facts, summary
from qpid_ha_broker.server.discarded import DiscardedMessages
from qpid_ha_broker.server.member_settings import member_settings
from qpid_ha_broker.server.member_store import MemberStore
from qpid_ha_broker.server.operator_requests import OperatorRequests
from qpid_ha_broker.server.pause_watch import PauseWatch
from qpid_ha_broker.server.peer_channels import Dialler
from qpid_ha_broker.server.peer_links import LinksHost, PeerLinks
from qpid_ha_broker.server.peer_questions import PeerQuestions
from qpid_ha_broker.server.record_requests import RecordRequests
from qpid_ha_broker.server.store import Store
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("cluster")

_LEVELS: Final = logging.getLevelNamesMapping()
TICK_S = 0.1
WATCHED_BYTES = 32 * 1024
"""Written in one turn: for less, it is enough to look at each tick whether channels keep up."""


class MemberHost(ClientsHost, LinksHost, Protocol):
    """What a broker's part in its cluster needs of the broker."""

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
        self.discarded = discarded
        self.events = ClusterEvents()
        self._broker = broker
        self._store = None if store is None else MemberStore(store, broker.container.resources.catalog, self.feed)
        has_room = (lambda: True) if self._store is None else self._store.has_room
        self.links = PeerLinks(broker, member, dialler, self.feed, has_room)
        self.questions = PeerQuestions(member, dialler, self.feed)
        self.requests = OperatorRequests(member, self.feed)
        self.clients = ClientAccess(broker, member, self.feed, lambda: self._publish("primary"))
        self._records = RecordRequests(coordinator, self.feed)
        has_agents = not self.is_standalone and is_heeded_with(broker.current().coordinator.url)
        self._pause = PauseWatch(coordinator) if has_agents else None
        self._tasks = BackgroundTasks()
        self._inputs: list[fx.Input] = []
        self._is_feeding = False
        self._phase = member.status.phase
        """As the core told it last."""
        self._is_stopped = False
        self._is_shut_down = False
        """This broker ends because its cluster does, which its manager must not undo."""
        self._actions: dict[type, Callable[[Any], None]] = {
            fx.Connect: self.links.connect,
            fx.Send: self.links.send,
            fx.Close: self.links.close,
            fx.Ask: self.questions.ask_for_core,
            fx.ReadRecord: self._records.read,
            fx.WriteRecord: self._records.write,
            fx.StateChanged: self._state_changed,
            fx.StatusChanged: self._status_changed,
            fx.EndClients: self.clients.end_soon,
            fx.TurnDue: lambda _effect: self._broker.want_turn(),
            fx.Answered: self.requests.answered,
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
        self.clients.update()
        self.feed(fx.Started())
        if not self.is_standalone:
            self._tasks.start(self._tick_forever())
            self.questions.start()
        if self._pause is not None:
            self._pause.start()

    def stop(self) -> None:
        """The process will end; what the core still wants is sent before the channels are closed."""
        if self._is_stopped:
            return
        self.feed(fx.Stopping())
        self._is_stopped = True
        self.clients.stop()
        self._records.stop()
        if self._pause is not None:
            self._pause.stop()
        self._tasks.cancel()
        self.links.close_all("the broker is stopping")
        self.questions.close()
        self.requests.cancel()
        self.events.close()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_S, self.member.settings.heartbeat_interval_s / 4))
            self.feed(fx.Ticked())
            now_s = time.monotonic()
            self.questions.asker.tick(now_s)
            self.links.heartbeat(int(now_s * 1000))
            self.links.watch()

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
        self.links.flush()

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
        if behind is not None or self.links.is_any_full or (batch is not None and len(batch.data) > WATCHED_BYTES):
            self.links.watch()
        self.feed(fx.TurnEnded(batch))
        if behind is not None and behind.has_work:
            self._broker.schedule_turn()

    # --- what the core tells

    def _state_changed(self, effect: fx.StateChanged) -> None:
        log.info("Status change: %s -> %s (%s)", effect.before, effect.after, effect.reason)
        if effect.after is State.CATCHUP:
            self.discarded.begin()
        self.clients.update()
        if effect.before is State.PRIMARY:  # at once: before the next turn, which could confirm what nobody else has
            self.clients.end_now()
        self._broker.schedule_turn()
        self._publish("state", before=effect.before.value, after=effect.after.value, reason=effect.reason)

    def _status_changed(self, effect: fx.StatusChanged) -> None:
        status = effect.status
        # What STATUS says of a cluster stays while the broker is in none.
        if self._store is not None and not self.is_standalone:
            self._store.describe(status)
        before, self._phase = self._phase, status.phase
        if status.phase is not before and status.phase is not None:
            log.info("Phase change: %s", status.phase)
            self._publish("phase")
        self.clients.status_changed(status)

    def _publish(self, kind: str, **change: object) -> None:
        """Tell who listens to the cluster's events. `kind`: state, phase or primary."""
        self.events.publish(kind, {**self.summary(), **change})

    def _end(self, effect: fx.CleanEnd) -> None:
        self._is_shut_down = True
        self._broker.end(effect.uuid)

    # --- what the store tells

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

    # --- what the broker asks

    def change_settings(self, settings: BrokerSettings) -> None:
        """Other settings are in force."""
        current = self.member.settings
        self.member.settings = member_settings(settings, current.instance, current.own_address)
        self.clients.update()
        self._broker.schedule_turn()

    def facts(self) -> dict[str, object]:
        """What `query` tells of a broker's part in the cluster, flat."""
        return facts(self.member, peer_channels=self.links.count, discarded=self.discarded.total)

    def summary(self) -> dict[str, object]:
        """What `status` tells."""
        paused = None if self._pause is None else self._pause.now()
        return summary(self.member, shut_down=self._is_shut_down, paused=paused)


def _joined(batch: LogBatch, rest: LogBatch) -> LogBatch:
    return LogBatch(batch.first_lsn, rest.last_lsn, batch.data + rest.data, batch.transient + rest.transient)
