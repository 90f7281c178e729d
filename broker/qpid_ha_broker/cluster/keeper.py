"""When the replicas of each set are looked at, and having done what follows.

Each set is checked once in `check_interval_s`, with jitter, so that a failure does not start everything at once; and
soon after something was said about it: a broker joined or was removed, a policy was changed, a replica was moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.liveness import BrokerLife
from qpid_ha_broker.cluster.placement import PlacementBroker, PlacementSet, one_a_machine, rank, ring
from qpid_ha_broker.cluster.records import SetRecords
from qpid_ha_broker.cluster.replicas import (
    ReplicaAction,
    ReplicaDecision,
    ReplicaStep,
    WantedReplicas,
    check,
    extra_replicas,
    first_replica,
    wanted_replicas,
)
from qpid_ha_broker.cluster_map import SetEntry

THROTTLED_S = 1.0
"""Until a set is checked again for which no broker had an addition left."""
_SAID = (ReplicaStep.ADD, ReplicaStep.KEEP, ReplicaStep.LEAVE, ReplicaStep.REMOVE)


class ReplicaKeeper:
    """The promise: no set has fewer replicas than it wants for longer than the recovery interval and one check, while
    there are brokers for them."""

    def __init__(self, ctx: ControllerContext, records: SetRecords) -> None:
        self._ctx, self._records = ctx, records
        self._due_s: dict[str, float] = {}
        self._checks = 0
        self._complaints: dict[str, str] = {}
        """By set: what was said of the placement last."""

    def began(self) -> None:
        """A new controller looks at all, spread over the first interval."""
        self._complaints.clear()
        self._due_s = {name: self._ctx.now_s + self._jitter(name) for name in self._ctx.draft.sets}

    def _jitter(self, name: str) -> float:
        """Between 0 and the interval; of another set, and of another check, another one."""
        self._checks += 1
        return self._ctx.settings.check_interval_s * crc32(f"{name} {self._checks}".encode()) / 2**32

    def trigger(self, names: Iterable[str] | None = None) -> None:
        """Something changed: look at these now; None: at all."""
        for name in self._ctx.draft.sets if names is None else names:
            self._due_s[name] = self._ctx.now_s

    def forget_set(self, name: str) -> None:
        """It was deleted."""
        self._due_s.pop(name, None)
        self._complaints.pop(name, None)

    def wanted(self, entry: SetEntry) -> WantedReplicas:
        """How many, and who says so."""
        draft = self._ctx.draft
        machines = {broker.place.machine for broker in draft.brokers.values()}
        return wanted_replicas(entry, draft.policies, self._ctx.settings, len(draft.brokers), len(machines))

    def tick(self) -> None:
        """Check what is due."""
        now_s = self._ctx.now_s
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s]
        if not due:
            return
        brokers = self._ctx.placement_brokers()
        for name in due:
            entry = self._ctx.draft.sets.get(name)
            if entry is None:
                self.forget_set(name)
                continue
            decision = self._check(entry, brokers)
            is_throttled = any(action.step is ReplicaStep.WAIT for action in decision.actions)
            interval_s = self._ctx.settings.check_interval_s
            soon_s = min(THROTTLED_S, interval_s)
            self._due_s[name] = now_s + (soon_s if is_throttled else 0.5 * interval_s + 0.5 * self._jitter(name) + 0.5)
            self._carry_out(entry, decision)

    def review(self, name: str) -> None:
        """Whether one that leaves, or has failed, can go now; of a set that is new, one that is away, too."""
        ctx, entry = self._ctx, self._ctx.draft.sets[name]
        is_new = self._records.is_new(entry)
        is_held_up = is_new and any(ctx.liveness.life(each) is BrokerLife.LOST for each in entry.replicas)
        if entry.leaving or is_held_up or ctx.reports.failed(name, entry.replicas):
            self._carry_out(entry, self._check(entry, self._ctx.placement_brokers()))

    def _check(self, entry: SetEntry, brokers: dict[str, PlacementBroker]) -> ReplicaDecision:
        ctx = self._ctx
        record = entry.record
        leading = ctx.reports.leads(record.primary, entry.name, record.generation)
        size_bytes = 0 if leading is None else leading.load.bytes
        wanted = self.wanted(entry).number
        failed, parting = ctx.reports.failed(entry.name, entry.replicas), ctx.parting(entry.name)
        is_led = leading is not None
        is_new = self._records.is_new(entry)
        return check(entry, brokers, wanted, ctx.settings, ctx.placement, size_bytes, is_led, failed, parting, is_new)

    def _carry_out(self, entry: SetEntry, decision: ReplicaDecision) -> None:
        self._complain(entry.name, decision.problem)
        for action in decision.actions:
            if action.step in _SAID:
                self._ctx.note(
                    "info", f"set {entry.name}: {action.step} replica {action.broker}: {action.why}", entry.name
                )
        self._ctx.place(entry._replace(replicas=decision.replicas, leaving=decision.leaving))
        brokers = self._ctx.placement_brokers()
        for name in set(decision.replicas) - set(entry.replicas):
            there = brokers[name]
            brokers[name] = there._replace(replicas=there.replicas + 1, catching_up=there.catching_up + 1)

    def _complain(self, name: str, problem: str) -> None:
        """The placement came to nothing for that set. It is asked again and again."""
        if problem and self._complaints.get(name) != problem:
            self._complaints[name] = problem
            self._ctx.note("error", problem)

    # --- what operators ask

    def plan(self, names: Iterable[str]) -> list[ReplicaAction]:
        """What would be done if all of these were looked at now."""
        brokers = self._ctx.placement_brokers()
        sets = self._ctx.draft.sets
        return [action for name in names for action in self._check(sets[name], brokers).actions]

    def extras(self, entry: SetEntry) -> tuple[str, ...]:
        """Replicas beyond what the set wants, worst first."""
        brokers = self._ctx.placement_brokers()
        wanted = self.wanted(entry).number
        return extra_replicas(entry, brokers, list(self._check(entry, brokers).counted), wanted)

    def trim(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Have what is beyond leave: of which set which ones."""
        trimmed = {}
        for name in names:
            entry = self._ctx.draft.sets[name]
            extras = self.extras(entry)
            if extras:
                trimmed[name] = extras
                self._ctx.place(entry._replace(leaving=(*entry.leaving, *extras)))
        return trimmed

    def choose(self, entry: SetEntry, count: int) -> tuple[str, ...]:
        """Brokers for so many more replicas of a set, best first; fewer where there are not as many.

        One that is about to stop comes last: it may be back in a moment, and does not begin with something new.
        """
        brokers = self._ctx.placement_brokers()
        taken = self._ctx.parting(entry.name).union(entry.replicas)
        chosen: list[str] = []
        while len(chosen) < count:
            placed = (*entry.staying, *chosen)
            others = {name: broker for name, broker in brokers.items() if name in placed or name not in taken}
            primary = first_replica(entry, placed)
            ranking = rank(self._ctx.placement, PlacementSet(entry.name, placed, primary), others)
            self._complain(entry.name, ranking.problem)
            if not ranking.ranked:
                break
            names = [each.broker for each in ranking.ranked]
            chosen.append(next((name for name in names if not brokers[name].stopping), names[0]))
        return tuple(chosen)

    def close_ring(self, names: Iterable[str]) -> int:
        """With placement `ring`: who was put in between takes over what it should, and its neighbours let go of it.

        How many sets change.
        """
        if self._ctx.placement is not ring:
            return 0
        brokers, changed = self._ctx.placement_brokers(), 0
        for name in names:
            entry = self._ctx.draft.sets[name]
            first = first_replica(entry, entry.staying) if entry.is_group else entry.preferred or entry.record.primary
            if first not in brokers or not brokers[first].is_open:
                continue
            after = [each.broker for each in ring(PlacementSet(name, (first,), first), brokers)]
            right = tuple(one_a_machine((first, *after), brokers)[: self.wanted(entry).number])
            if set(right) == set(entry.staying) or not self._ctx.parting(name).isdisjoint(right):
                continue
            changed += 1
            replicas = (*right, *(each for each in entry.replicas if each not in right))
            self._ctx.place(entry._replace(replicas=replicas, leaving=replicas[len(right) :]))
        return changed
