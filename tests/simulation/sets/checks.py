"""The controllers of a cluster of real brokers, as they are seen from outside: what each hears, and what it decides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.placement import Placement
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.server.controller.controller_service import ControllerCore, ControllerService
from qpid_ha_broker.server.sets.set_member import SetMember
from simulation.machines.node import BrokerNode
from simulation.machines.streams import Streams
from simulation.sets.map_checks import MapChecks, copy_map
from simulation.trace import Trace, shown
from simulation.violations import Violation
from simulation.virtual_time import Schedule

LATE_S: Final = 0.05
"""What takes longer may be too late for an answer."""
REACH_S: Final = 3.0
"""A broker that the controller reaches for longer answers before it counts as failed."""


class SeenController:
    """A controller as it ships, at which `ControllersWatch` looks: see `controller_service.ControllerCore`."""

    def __init__(self, core: ControllerCore, watch: ControllersWatch, node: BrokerNode) -> None:
        self._core = core
        self._watch = watch
        self._node = node
        self._map: ClusterMap | None = None
        self._generation = 0

    @property
    def facts(self) -> dict[str, object]:
        return self._core.facts

    def change_settings(self, settings: ms.ControllerSettings, placement: Placement) -> None:
        self._core.change_settings(settings, placement)

    def handle(self, happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
        if isinstance(happened, ms.ControllerBegan):
            self._map, self._generation = happened.map, happened.generation
            self._watch.began(self._node, happened)
        elif isinstance(happened, ms.MapWritten) and self._map is not None:
            self._watch.written(self._generation, happened.lsn, self._map)
        elif isinstance(happened, ms.MapCommitted):
            self._watch.committed(self._generation, happened.lsn)
        elif isinstance(happened, ms.RequestReceived) and self._map is not None:
            self._watch.asked(happened.request, self._map)
        effects = self._core.handle(happened, now_s)
        if self._map is not None:
            self._watch.decided(self._node, self._map, happened, effects)
        return effects


class ControllersWatch:
    """All controllers that there have been, and what is committed of what they wrote. Each check raises Violation."""

    def __init__(
        self,
        schedule: Schedule,
        streams: Streams,
        trace: Trace,
        nodes: Sequence[BrokerNode],
        checks: MapChecks,
        leads: Callable[[BrokerNode], list[str]],
    ) -> None:
        """`leads`: sets that are led there."""
        self._schedule = schedule
        self._streams = streams
        self._trace = trace
        self._nodes = nodes
        self._checks = checks
        self._leads = leads
        self.map = ClusterMap()
        """As it is committed; one and the same, all the time."""
        self.generation = 0
        """Of the newest."""
        self.writes = 0
        self._written: list[tuple[int, ClusterMap]] = []
        """By the newest, and not known to be committed: an LSN, and the map as of it."""
        self._own: BrokerNode | None = None
        self._in_reach_s: dict[str, float] = {}
        """By broker: since when the newest controller reaches it, and it is there."""

    def watch(self, node: BrokerNode, service: ControllerService, default: SetMember) -> None:
        """Look at all controllers that this broker's process will be. `default`: its member of that set."""
        make = service._make_core
        service._make_core = lambda: SeenController(make(), self, node)
        service.core = SeenController(service.core, self, node)
        go_on = default._loop.actions[fx.Committed]

        def seen_committed(effect: fx.Committed) -> None:
            self.note_committed()
            go_on(effect)

        default._loop.actions = {**default._loop.actions, fx.Committed: seen_committed}

    # --- what happens

    def began(self, node: BrokerNode, began: ms.ControllerBegan) -> None:
        """It goes on from what is in its log, of which it may not know yet that it is committed."""
        if began.generation > self.generation:
            self.generation, self._own = began.generation, node
            self._written = [(began.map.changed_lsn, copy_map(began.map))]
            self._in_reach_s.clear()
            self.note_committed()

    def written(self, generation: int, lsn: int, there: ClusterMap) -> None:
        """The map is that, as of that LSN of the log of `default`."""
        if generation == self.generation:
            self.writes += 1
            self._written.append((lsn, copy_map(there)))

    def committed(self, generation: int, lsn: int) -> None:
        """The log of `default` is, up to there."""
        if generation != self.generation:
            return
        while self._written and self._written[0][0] <= lsn:
            self._commit(self._written.pop(0)[1])

    def note_committed(self) -> None:
        """The log of `default` has committed more. A controller that has written nothing does not hear of it: what it
        found may be committed only now, and whoever leads a set acts on that at once."""
        own = self._own
        if own is not None and own.is_serving and own.member.status.generation == self.generation:
            self.committed(self.generation, own.resources.replicated.log.whole_lsn())

    def asked(self, request: ms.ClusterRequest, there: ClusterMap) -> None:
        """Of a controller that has that map."""
        queue = there.queues.get(request.name) if isinstance(request, ms.DeleteQueue) else None
        if queue is not None:
            self._checks.asked_deletions.add(queue.id)

    def was_cut(self, one: BrokerNode, other: BrokerNode) -> None:
        """All connections between them."""
        if self._own in (one, other):
            self._in_reach_s.pop((other if self._own is one else one).name, None)

    def look(self) -> None:
        """Now and then."""
        if self._own is not None:
            self.note_committed()
            self._note_reach()

    def decided(
        self,
        node: BrokerNode,
        there: ClusterMap,
        happened: ms.ControllerInput,
        effects: Sequence[ms.ControllerEffect],
    ) -> None:
        """`there`: the map, before any of that is carried out."""
        is_news = effects or not isinstance(happened, ms.TimePassed | ms.ReportReceived)
        if self._trace.wanted and is_news and not isinstance(happened, ms.ControllerBegan):
            text = f"{shown(happened)} -> {'; '.join(map(shown, effects)) or '-'}"
            self._trace.add(f"{node.name}/controller", text)
        events = [event for effect in effects if isinstance(effect, ms.WriteMap) for event in effect.events]
        before = copy_map(there) if len(events) > 1 else there
        for number, event in enumerate(events, 1):
            if isinstance(event, ev.BrokerChanged) and not event.up and isinstance(happened, ms.TimePassed):
                self._check_loss(node, event.name)
            self._checks.check_write(before, event, happened)
            if before is not there:
                before.apply(before.changed_lsn + number, event)

    def _commit(self, newer: ClusterMap) -> None:
        before = self.map
        for queue_id, queue in before.queues_by_id.items():
            if queue_id not in newer.queues_by_id:
                self._checks.removed(queue)
        for name, entry in newer.sets.items():
            there = before.sets.get(name)
            if there is None or (there.record.cluster and there.record.cluster != entry.record.cluster):
                self._checks.made(name)
            if entry.record.generation and (there is None or there.record != entry.record):
                self._checks.recorded(entry.record)
        self.map.replace(newer)

    # --- who counts as failed

    def _note_reach(self) -> None:
        own = self._own
        for node in self._nodes:
            if own is not None and self._reaches(own, node):
                self._in_reach_s.setdefault(node.name, self._schedule.now_s)
            else:
                self._in_reach_s.pop(node.name, None)

    def _reaches(self, own: BrokerNode, node: BrokerNode) -> bool:
        is_there = all(each.is_up and not each.is_paused for each in (own, node))
        ends = (own.name, node.name), (node.name, own.name)
        return (
            is_there and not any(self._streams.is_blocked(*each) for each in ends) and self._streams.delay_s <= LATE_S
        )

    def _check_loss(self, own: BrokerNode, name: str) -> None:
        """A broker counts as failed from now on."""
        if own is not self._own:
            return
        self._note_reach()  # it may have been cut off since the last look
        since_s = self._in_reach_s.get(name, math.inf)
        leads = self._leads(next(node for node in self._nodes if node.name == name))
        recorded = [each for each in leads if each in self.map.sets and self.map.sets[each].record.primary == name]
        if recorded and self._schedule.now_s - since_s > REACH_S:
            raise Violation(
                f"{name} lives, is in reach since {since_s:.2f} s, leads {recorded}, and is taken for failed"
            )
