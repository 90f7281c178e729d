"""What the figures of `metrics` are at this moment: read from a broker that runs, in steps."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from qpid_ha_broker import __version__
from qpid_ha_broker.access.rules import Permission
from qpid_ha_broker.access.user_limits import LimitKind
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.metrics.confirm_latency import ConfirmLatency
from qpid_ha_broker.metrics.exposition import Samples, check_kind, family_text
from qpid_ha_broker.metrics.families import BROKER, PROCESS, SETS
from qpid_ha_broker.metrics.histogram import Histogram
from qpid_ha_broker.metrics.queue_figures import QueueChoice, QueueCounters, queue_pieces
from qpid_ha_broker.model.queues.queue_sums import QueueSums, sum_queues
from qpid_ha_broker.server.runtime.descriptors import open_descriptors
from qpid_ha_broker.server.runtime.due_parties import TurnPlace

if TYPE_CHECKING:
    from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
    from qpid_ha_broker.server.broker import Broker
    from qpid_ha_broker.server.sets.hosted_member import HostedMember
    from qpid_ha_broker.server.stores.broker_store import BrokerStore

LAG_LOOK_S: Final = 0.1
"""How often the loop is asked how late it is."""
SETS_STEP: Final = 8
"""Sets that are looked at between two pieces."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

FromSet = dict[str, dict[tuple[str, ...], float | Histogram]]
"""By name of a family, samples by label values."""


class MetricsSource:
    """Counts what nobody else does while it runs, and tells all that there is. On the loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.loop_lag = Histogram()
        self.confirms = Histogram()
        self.syncs = Histogram()
        self.http: FromSet = {}
        """What the HTTP port counts itself."""
        self.state_changes: dict[str, int] = {"promotions": 0, "step_downs": 0, "catch_ups": 0}
        self._latencies: WeakKeyDictionary[HostedSet, ConfirmLatency] = WeakKeyDictionary()
        """Of the sets that are led here."""
        self._counters = QueueCounters()
        self._choice = QueueChoice(("*",), 0)
        self._events: asyncio.Task[None] | None = None
        self._lag_task: asyncio.Task[None] | None = None
        self._told: WeakKeyDictionary[HostedSet, tuple[int, int]] = WeakKeyDictionary()
        """Messages that ever came into a set, and that left it."""

    def start(self) -> None:
        """Begin to count. The broker may load its store yet."""
        self._lag_task = asyncio.get_running_loop().create_task(self._watch_loop())
        self._broker.turns.due.join(TurnPlace.METRICS, self._turn_ended)()

    def stop(self) -> None:
        """Count no more."""
        self._broker.turns.due.leave(TurnPlace.METRICS)
        for task in (self._lag_task, self._events):
            if task is not None:
                task.cancel()

    # --- what is counted here

    async def _watch_loop(self) -> None:
        while True:
            due_s = time.perf_counter() + LAG_LOOK_S
            await asyncio.sleep(LAG_LOOK_S)
            self.loop_lag.observe(max(time.perf_counter() - due_s, 0.0))
            if self._events is None and self._broker.is_loaded:
                self._events = asyncio.get_running_loop().create_task(self._watch_states())

    async def _watch_states(self) -> None:
        changes = self.state_changes
        membership = self._broker.membership
        changes["promotions"] += membership.member.status.state is State.PRIMARY
        changes["catch_ups"] += membership.member.status.state is State.CATCHUP
        async for event in membership.events.subscribe():
            if event["event"] == "state":
                changes["promotions"] += event["after"] == State.PRIMARY
                changes["step_downs"] += event["before"] == State.PRIMARY
                changes["catch_ups"] += event["after"] == State.CATCHUP

    def _turn_ended(self) -> bool:
        container = self._broker.container
        now_s = time.perf_counter()
        for hosted in (container.default, *container.visited):
            if hosted.read_only:
                self._latencies.pop(hosted, None)
                continue
            log = hosted.resources.replicated.log
            latency = self._latencies.get(hosted)
            if latency is None:
                self._latencies[hosted] = ConfirmLatency(log.last_lsn, self.confirms)
            else:
                latency.turn_ended(log.last_lsn, log.committed_lsn, now_s)
        return True

    # --- what is told

    def pieces(self) -> Iterator[str]:
        """The text of all families but those of `process_pieces`, some pieces empty.

        While the store is loaded there is little.
        """
        if not self._broker.is_loaded:
            state: dict[str, Samples] = {
                "qpid_ha_state": _states(State.LOADING),
                "qpid_ha_build_info": {(__version__,): 1.0},
            }
            yield from _texts(BROKER, {**state, "qpid_ha_loop_lag_seconds": {(): self.loop_lag}, **self.http})
            return
        yield from _texts(BROKER, self._broker_samples())
        samples: FromSet = {name: {} for name in SETS}
        now_s = time.monotonic()
        for number, member in enumerate(self._members()):
            if number % SETS_STEP == SETS_STEP - 1:
                yield ""
            yield from self._add_set(samples, member, now_s)
        yield from _texts(SETS, samples)
        yield from self._queue_pieces()

    def _queue_pieces(self) -> Iterator[str]:
        wanted = self._broker.current().metrics
        if (self._choice.patterns, self._choice.most) != (wanted.queues, wanted.queues_most):
            self._choice = QueueChoice(wanted.queues, wanted.queues_most)
        sets = self._broker.container.sets
        queues = [(name, queue) for name, hosted in sets.items() for queue in hosted.resources.catalog.queues.values()]
        return queue_pieces(queues, self._choice, self._counters, int(time.time() * 1000))

    def _members(self) -> list[HostedMember]:
        """Of all sets that are hosted."""
        sets = self._broker.sets
        return [self._broker.membership.default, *([] if sets is None else sets.hosts.members.values())]

    def _broker_samples(self) -> Mapping[str, Samples]:
        broker = self._broker
        settings, service = broker.current(), None if broker.sets is None else broker.sets.service
        relayed = 0 if broker.sets is None or broker.sets.proxying is None else broker.sets.proxying.count
        single: dict[str, float | Histogram] = {
            "paused": float(bool(broker.membership.summary().get("paused"))),
            "connections": broker.connection_count,
            "unopened_connections": len(broker.admission.unopened),
            "sessions": len(broker.container.default.resources.replicated.state.sessions),
            "relayed_links": relayed,
            "exchanges": len(broker.container.default.resources.catalog.exchanges),
            "message_memory_bytes": broker.container.memory_bytes,
            "memory_limit_bytes": settings.memory_limit_bytes,
            "bugs_total": broker.notices.bugs_total,
            "loop_lag_seconds": self.loop_lag,
            "confirm_latency_seconds": self.confirms,
            "store_sync_seconds": self.syncs,
            **{f"{name}_total": number for name, number in self.state_changes.items()},
        }
        samples: dict[str, Samples] = {f"qpid_ha_{name}": {(): value} for name, value in single.items()}
        facts = {} if service is None else service.facts
        for own, name in (("controller_failures", "controller_broker_failures"), ("controller_orders",) * 2):
            number = facts.get(own)
            if isinstance(number, int):
                samples[f"qpid_ha_{name}_total"] = {(): number}
        silent_s = broker.membership.agent_polls.silent_s()
        if silent_s is not None:
            samples["qpid_ha_agent_silent_seconds"] = {(): silent_s}
        return {
            **samples,
            "qpid_ha_build_info": {(__version__,): 1},
            "qpid_ha_state": _states(broker.membership.member.status.state),
            "qpid_ha_access_denied_total": {
                (action.value,): broker.container.access.denied[action.value] for action in Permission
            },
            "qpid_ha_limits_refused_total": {
                (kind.value,): broker.container.limits.refused[kind.value]
                for kind in LimitKind
                if kind is not LimitKind.RATE  # which refuses nothing
            },
            "qpid_ha_audit_lines_lost_total": {(): broker.files.audit.lost},
            "qpid_ha_requests_refused_total": {
                (method, reason): number for (method, reason), number in broker.control.refused.items()
            },
            **self.http,
        }

    def _add_set(self, samples: FromSet, member: HostedMember, now_s: float) -> Iterator[str]:
        name, hosted, kept = member.name, member.hosted, member.kept
        resources = hosted.resources
        # First what is gone: a queue that is deleted meanwhile is not to be counted twice.
        gone = resources.catalog.enqueued_gone, resources.catalog.dequeued_gone
        sums = yield from _as_pieces(sum_queues(list(resources.catalog.queues.values())))
        enqueued, dequeued = self._never_less(hosted, gone[0] + sums.enqueued, gone[1] + sums.dequeued)
        values: dict[str, float] = {
            **member.facts.figures(now_s),
            "generation": member.facts.generation,
            "min_in_sync_brokers": member.settings.min_in_sync,
            "last_lsn": resources.replicated.log.last_lsn,
            "queues": len(resources.catalog.queues),
            "messages": sums.messages,
            "message_bytes": sums.bytes,
            "enqueued_messages_total": enqueued,
            "dequeued_messages_total": dequeued,
            "unroutable_messages_total": resources.unroutable_total,
            "duplicate_messages_total": resources.deduplication.dropped_total,
            "dropped_dead_letters_total": resources.dead_letters_dropped_total,
            "overrun_queues_total": hosted.overrun_queues_total,
            "discarded_messages_total": member.discarded.total,
            **({} if kept is None else self._store_values(kept)),
        }
        for short, value in values.items():
            samples[f"qpid_ha_set_{short}"][name,] = value
        for row in member.facts.backups():
            _add_backup(samples, name, row)

    def _never_less(self, hosted: HostedSet, enqueued: int, dequeued: int) -> tuple[int, int]:
        """Than was told before: see `QueueCounters`."""
        exposed = self._told.get(hosted, (0, 0))
        self._told[hosted] = max(enqueued, exposed[0]), max(dequeued, exposed[1])
        return self._told[hosted]

    def _store_values(self, kept: BrokerStore) -> dict[str, float]:
        store = kept.store
        store.writer.observe_sync = self.syncs.observe
        facts = kept.facts()
        names = {
            "journal_written_bytes_total": "journal_written_bytes",
            "journal_closed_bytes": "journal_closed_bytes",
            "snapshot_bytes": "snapshot_bytes",
            "paged_bytes": "paged_bytes",
            "unreadable_messages": "unreadable_messages",
        }
        values = {name: _number(facts.get(own)) for name, own in names.items()}
        return {"store_healthy": float(store.health == "ok"), **values}


def _add_backup(samples: FromSet, set_name: str, row: Mapping[str, Any]) -> None:
    labels = set_name, str(row.get("name"))
    is_connected = row.get("state") != "expected"
    samples["qpid_ha_set_backup_in_sync"][labels] = float(bool(row.get("in_sync")))
    samples["qpid_ha_set_backup_connected"][labels] = float(is_connected)
    if is_connected:
        for unit, own in (("events", "lag_messages"), ("bytes", "lag_bytes"), ("seconds", "lag_s")):
            samples[f"qpid_ha_set_backup_lag_{unit}"][labels] = _number(row.get(own))


def _as_pieces(steps: Generator[None, None, QueueSums]) -> Generator[str, None, QueueSums]:
    """An empty piece where they pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            sums: QueueSums = end.value
            return sums
        yield ""


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0.0


def _texts(families: Mapping[str, Any], samples: Mapping[str, Samples]) -> Iterator[str]:
    for name, family in families.items():
        family_samples = samples.get(name, {})
        for value in list(family_samples.values())[:1]:
            check_kind(family, value)
        yield family_text(family, family_samples)


def _states(state: State) -> Samples:
    return {(possible.value,): float(possible is state) for possible in State}


def process_pieces() -> list[str]:
    """The text of the families of the process. Reads files, as many as there are connections: not on the loop.

    Source: proc(5).
    """
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    boot = next(line for line in Path("/proc/stat").read_text(encoding="ascii").splitlines() if line[:6] == "btime ")
    times = os.times()
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    values = {
        "cpu_seconds_total": times.user + times.system,
        "resident_memory_bytes": int(fields[21]) * _PAGE_BYTES,
        "start_time_seconds": int(boot.split()[1]) + int(fields[19]) / _TICKS_PER_S,
        "open_fds": open_descriptors(),
        "max_fds": soft,
    }
    return list(_texts(PROCESS, {f"process_{name}": {(): value} for name, value in values.items()}))
