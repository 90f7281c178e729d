"""Drives the member of `default`, the set that clients come for, with what belongs to that one alone.

That is the coordinator's record (`RecordRequests`), clients' connections (`ClientAccess`), who listens to the cluster's
events, and the questions that keep channels open (`PeerQuestions`). A standalone broker has one, too: a cluster of one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.pause import is_heeded_with
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.clients.cluster_clients import ClientAccess, ClientsHost
from qpid_ha_broker.server.controller.cluster_events import ClusterEvents
from qpid_ha_broker.server.controller.cluster_facts import facts, summary
from qpid_ha_broker.server.peers.peer_channels import Dialler
from qpid_ha_broker.server.peers.peer_links import LinksHost, PeerLinks
from qpid_ha_broker.server.peers.peer_questions import PeerQuestions
from qpid_ha_broker.server.peers.record_requests import RecordRequests
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.member_settings import member_settings
from qpid_ha_broker.server.runtime.pause_watch import PauseWatch
from qpid_ha_broker.server.sets.member_driver import Action, MemberDriver
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("cluster")

_LEVELS: Final = logging.getLevelNamesMapping()
TICK_S = 0.1
SUCCESSOR_LIMIT_S = 1.0
"""So long a broker that stops waits for who has taken over from it; half of what that one would wait for it."""


class MemberHost(ClientsHost, LinksHost, Protocol):
    """What a broker's part in its cluster needs of the broker."""

    def end(self, clean: str) -> None:
        """Stop as soon as possible; `clean`: the UUID under which the store is closed as one that is whole."""


class Membership(MemberDriver):
    """The promise: clients are served while this broker leads `default`, and by nobody else."""

    _broker: MemberHost

    def __init__(
        self,
        broker: MemberHost,
        member: Member,
        dialler: Dialler,
        coordinator: Coordinator,
        discarded: DiscardedMessages,
        store: Store | None,
    ) -> None:
        default = broker.container.default
        super().__init__(broker, member, default, ProcessTime())
        self.is_standalone = member.is_standalone
        """The broker is in no cluster."""
        self.discarded = discarded
        self.events = ClusterEvents()
        kept = None if store is None else MemberStore(store, default.resources.catalog, self.feed)
        self.questions = PeerQuestions(member, dialler, self.feed)
        self.clients = ClientAccess(broker, member, self.feed, lambda: self._publish("primary"))
        self.records = RecordRequests(coordinator, self.feed)
        has_agents = not self.is_standalone and is_heeded_with(broker.current().coordinator.url)
        self.pause = PauseWatch(coordinator) if has_agents else None
        """The pause of all agents; None: there are none that heed it."""
        self._tasks = BackgroundTasks()
        self._phase = member.status.phase
        """As the core told it last."""
        self._is_shut_down = False
        """This broker ends because its cluster does, which its manager must not undo."""
        has_room = (lambda: True) if kept is None else kept.has_room
        links = PeerLinks(broker, member, dialler, self.feed, has_room)
        own: dict[type, Action] = {
            fx.StateChanged: self._state_changed,
            fx.StatusChanged: self._status_changed,
            fx.EndClients: self.clients.end_soon,
            fx.TurnDue: lambda _effect: self._broker.want_turn(),
            fx.Discarded: lambda effect: self.discarded.keep(*effect),
            fx.Notice: lambda effect: log.log(_LEVELS[effect.level.upper()], "%s", effect.text),
            fx.Stop: lambda effect: self._broker.fail(effect.reason),
            fx.CleanEnd: self._end,
        }
        self._carry_out(links, self.questions, self.records, kept, own)

    # --- start and stop

    def start(self) -> None:
        """Begin. The broker listens already, if there are others to connect to it."""
        self.clients.update()
        self.feed(fx.Started())
        if not self.is_standalone:
            self._tasks.start(self._tick_forever())
            self.questions.start()
        if self.member.settings.has_coordinator:
            self.records.start(str(self._broker.current().coordinator.url))
        if self.pause is not None:
            self.pause.start()

    async def meet_successor(self) -> None:
        """Before a stop: who has handed over a moment ago waits for a channel to the next primary, on which that one
        hears of the stop. Else it would take this broker for one in sync that is slow, and confirm nothing for 2 s."""
        events = self.events.subscribe()
        try:
            async with asyncio.timeout(SUCCESSOR_LIMIT_S):
                while self.member.role.awaits_successor:
                    await anext(events)
        except TimeoutError:
            log.warning("nobody has taken over yet from this broker, which stops")
        finally:
            events.close()

    def stop(self) -> None:
        """The process will end; what the core still wants is sent before the channels are closed."""
        if self._is_stopped:
            return
        self.feed(fx.Stopping())
        self._is_stopped = True
        self.clients.stop()
        self.records.stop()
        if self.pause is not None:
            self.pause.stop()
        self._tasks.cancel()
        self.links.close_all("the broker is stopping")
        self.questions.close()
        self.requests.cancel()
        self.events.close()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_S, self.member.settings.heartbeat_interval_s / 4))
            now_s = time.monotonic()
            self.process.look(now_s)
            self.feed(fx.Ticked())
            self.questions.asker.tick(now_s)
            self.links.heartbeat(int(now_s * 1000))
            self.links.watch()

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
        paused = None if self.pause is None else self.pause.now()
        coordinator = str(self._broker.current().coordinator.url)
        return summary(self.member, shut_down=self._is_shut_down, paused=paused, coordinator=coordinator)
