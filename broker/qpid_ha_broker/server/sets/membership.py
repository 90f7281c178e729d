"""A broker's part in its cluster: the member of `default`, the set that clients come for, with what that one alone has.

That is the coordinator and its record (`RecordRequests`), clients' connections (`ClientAccess`), who listens to the
cluster's events, and the questions that keep channels open (`PeerQuestions`). A standalone broker has one, too: a
cluster of one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final, Protocol

from qpid_ha_broker.coordination.pause import is_heeded_with
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.server.clients.cluster_clients import ClientAccess, ClientsHost
from qpid_ha_broker.server.controller.cluster_events import ClusterEvents
from qpid_ha_broker.server.controller.cluster_facts import facts, summary
from qpid_ha_broker.server.peers.peer_channels import Dialler
from qpid_ha_broker.server.peers.peer_questions import PeerQuestions
from qpid_ha_broker.server.peers.record_requests import RecordRequests
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.engines import PeerEngines
from qpid_ha_broker.server.runtime.member_settings import member_settings
from qpid_ha_broker.server.runtime.pause_watch import PauseWatch
from qpid_ha_broker.server.sets.agent_polls import AgentPolls
from qpid_ha_broker.server.sets.hosted_member import HostedMember, SetMemberHost
from qpid_ha_broker.server.sets.set_member import SetMember, Surroundings, new_instance
from qpid_ha_broker.server.stores.broker_store import BrokerStore, check_dirty
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("cluster")

TICK_S: Final = 0.1
SUCCESSOR_LIMIT_S: Final = 1.0
"""So long a broker that stops waits for who has taken over from it; half of what that one would wait for it."""


class MemberHost(ClientsHost, SetMemberHost, Protocol):
    """What a broker's part in its cluster needs of the broker."""

    def end(self, clean: str) -> None:
        """Stop as soon as possible; `clean`: the UUID under which the store is closed as one that is whole."""


class Membership:
    """The promise: this broker is the member that its settings describe; if that one cannot go on, the broker ends.

    Without `ha.cluster` it leads alone: see `ha.member`. It is the `set_member.MemberOwner` of `default`.
    """

    votes = None

    def __init__(self, broker: MemberHost, kept: BrokerStore | None, restored: Restored | None) -> None:
        """`restored`: what it has from its store, `kept`. Raises SettingsError, and StoreError for a store that the
        settings do not let in."""
        settings = broker.current()
        if restored is not None:
            check_dirty(settings, restored.store, DEFAULT_SET)
        self._broker = broker
        self.process = ProcessTime()
        self.events = ClusterEvents()
        self.agent_polls = AgentPolls()
        self._dialler = Dialler(settings.name, PeerEngines(broker.current, broker.notices.fault))
        self.default = SetMember(
            self,
            Surroundings(
                broker,
                self._dialler,
                lambda _hosted, member, feed, _run_turn: ClientAccess(
                    broker, member, feed, lambda: self._publish("primary")
                ),
                kept,
            ),
            broker.container.default,
            member_settings(settings, new_instance()),
            restored,
        )
        self.member = self.default.member
        self.clients = self.default.clients
        self.is_standalone = self.member.is_standalone
        """The broker is in no cluster."""
        coordinator = open_coordinator(settings.coordinator)
        self.questions = PeerQuestions(self.member, self._dialler)
        self.records = RecordRequests(coordinator, self.default.feed)
        has_agents = not self.is_standalone and is_heeded_with(settings.coordinator.url)
        self.pause = PauseWatch(coordinator) if has_agents else None
        """The pause of all agents; None: there are none that heed it."""
        self._tasks = BackgroundTasks()
        self._phase = self.member.status.phase
        """As the core told it last."""
        self._is_shut_down = False
        """This broker ends because its cluster does, which its manager must not undo."""

    # --- start and stop

    def start(self) -> None:
        """Begin. The broker listens already, if there are others to connect to it."""
        self.default.start()
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
        self.default.stop("the broker is stopping")
        self.records.stop()
        if self.pause is not None:
            self.pause.stop()
        self._tasks.cancel()
        self.questions.close()
        self.events.close()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(min(TICK_S, self.member.settings.heartbeat_interval_s / 4))
            now_s = time.monotonic()
            self.process.look(now_s)
            self.default.tick(now_s)
            self.questions.tick(now_s)
            self._dialler.heartbeat(now_s)

    # --- what the member tells: see `set_member.MemberOwner`

    def wake(self, member: HostedMember) -> None:
        """It gets every tick anyway."""

    def state_changed(self, member: HostedMember, effect: fx.StateChanged) -> None:
        """For the log, and for who listens."""
        before, after, reason = effect
        log.info("Status change: %s -> %s (%s)", before, after, reason)
        self._publish("state", before=before.value, after=after.value, reason=reason)

    def changed(self, member: HostedMember) -> None:
        """Its phase, perhaps."""
        before, self._phase = self._phase, self.member.status.phase
        if self._phase is not before and self._phase is not None:
            log.info("Phase change: %s", self._phase)
            self._publish("phase")

    def note(self, member: HostedMember, level: int, text: str) -> None:
        """A line for the log."""
        log.log(level, "%s", text)

    def cannot_go_on(self, member: HostedMember, reason: str) -> None:
        """Clients come for this set, so the broker is of no use without it."""
        self._broker.fail(reason)

    def ended(self, member: HostedMember, uuid: str) -> None:
        """The cluster is shut down."""
        self._is_shut_down = True
        self._broker.end(uuid)

    def _publish(self, kind: str, **change: object) -> None:
        """Tell who listens to the cluster's events. `kind`: state, phase or primary."""
        self.events.publish(kind, {**self.summary(), **change})

    # --- what the broker asks

    def change_settings(self, settings: BrokerSettings) -> None:
        """Other settings are in force."""
        current = self.member.settings
        self.default.change_settings(member_settings(settings, current.instance, current.own_address))
        self.clients.update()
        self._broker.schedule_turn()

    def facts(self) -> dict[str, object]:
        """What `query` tells of a broker's part in the cluster, flat."""
        return facts(self.member, peer_channels=self.default.links.count, discarded=self.default.discarded.total)

    def summary(self) -> dict[str, object]:
        """What `status` tells."""
        paused = None if self.pause is None else self.pause.now()
        coordinator = str(self._broker.current().coordinator.url)
        return summary(self.member, shut_down=self._is_shut_down, paused=paused, coordinator=coordinator)
