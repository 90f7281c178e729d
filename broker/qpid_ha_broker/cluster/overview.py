"""What there is, for people and programs: the map, what brokers say of it, and what is missing."""

from __future__ import annotations

from collections.abc import Mapping

from qpid_ha_broker.cluster import group_standing
from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.keeper import ReplicaKeeper
from qpid_ha_broker.cluster.leadership import Leadership
from qpid_ha_broker.cluster.moves import Moves
from qpid_ha_broker.cluster_map import BrokerEntry, ClusterMap, SetEntry
from qpid_ha_broker.events.counted import counted


def map_facts(known: ClusterMap, broker: str) -> dict[str, object]:
    """What the map alone says of the sets, for the status of that broker; nothing in a cluster that has one set."""
    own = known.brokers.get(broker)
    if own is None:
        return {}
    without_primary = [entry.name for entry in known.sets.values() if not _may_be_led(entry, known.brokers)]
    return {"sets": len(known.sets), "sets_without_primary": sorted(without_primary), "draining": own.draining}


def _may_be_led(entry: SetEntry, brokers: Mapping[str, BrokerEntry]) -> bool:
    """A group goes on with any of those in sync, and has another one recorded in a moment."""
    leaders = entry.record.members if entry.is_group else (entry.record.primary,)
    return any(name in brokers and brokers[name].up for name in leaders)


def _failed_replicas(ctx: ControllerContext, entry: SetEntry) -> dict[str, str]:
    return ctx.reports.failed(entry.name, entry.replicas)


def _policy(policy: tuple[str, int], origin: str) -> dict[str, object]:
    return {"pattern": policy[0], "replicas": policy[1], "origin": origin}


class ClusterOverview:
    """Tells, and changes nothing."""

    def __init__(self, ctx: ControllerContext, leadership: Leadership, moves: Moves, keeper: ReplicaKeeper) -> None:
        self._ctx, self._leadership, self._moves, self._keeper = ctx, leadership, moves, keeper

    def shown(self) -> dict[str, object]:
        """All of it, as JSON can carry it."""
        draft, settings = self._ctx.draft, self._ctx.settings
        return {
            "controller": self._ctx.name,
            "brokers": [self._broker(broker) for _, broker in sorted(draft.brokers.items())],
            "sets": [self._set(entry) for _, entry in sorted(draft.sets.items())],
            "policies": [
                *[_policy(policy, "of the cluster") for policy in draft.policies],
                *[_policy(policy, f"the setting replica-policies of {self._ctx.name}") for policy in settings.policies],
                _policy(("*", settings.min_replicas), f"the setting ha.min-replicas of {self._ctx.name}"),
            ],
            "uncommitted": self._ctx.commits.is_waiting,
            "balancing": len(self._moves.balancing),
            "figures": self._ctx.figures.facts(),
        }

    def why_not_to_stop(self, name: str) -> list[str]:
        """What a broker still has; empty: it is safe to stop it."""
        sets = self._ctx.draft.sets.values()
        primaries = [entry.name for entry in sets if entry.record.primary == name and not entry.is_group]
        replicas = [entry.name for entry in sets if name in entry.replicas]
        reasons = []
        if primaries:
            reasons.append(f"it leads {counted(len(primaries), 'set')}: {', '.join(primaries[:3])}")
        if replicas:
            reasons.append(f"it has {counted(len(replicas), 'replica')}: {', '.join(replicas[:3])}")
        if name == self._ctx.name:
            reasons.append("it leads `default`: have another broker lead that (`qpid-ha switchover`)")
        return reasons

    def _broker(self, broker: BrokerEntry) -> dict[str, object]:
        ctx, name = self._ctx, broker.name
        sets = ctx.draft.sets.values()
        reported = ctx.reports.brokers.get(name)
        reasons = self.why_not_to_stop(name) if broker.draining else []
        if broker.draining and ctx.commits.is_waiting:
            reasons.append("what the controller has written last is not committed yet")
        return {
            **broker._asdict(),
            "up": ctx.is_up(name),
            "primaries": sum(entry.record.primary == name and not entry.is_group for entry in sets),
            "replicas": sum(name in entry.replicas for entry in sets),
            "room_bytes": 0 if reported is None else reported.room_bytes,
            "safe_to_stop": broker.draining and not reasons,
            "why_not_to_stop": reasons,
        }

    def _set(self, entry: SetEntry) -> dict[str, object]:
        ctx, record = self._ctx, entry.record
        wanted = self._keeper.wanted(entry)
        leading = ctx.reports.leads(record.primary, entry.name, record.generation)
        states = {}
        for name in entry.replicas:
            replica = ctx.reports.replica(name, entry.name)
            states[name] = "away" if not ctx.is_up(name) else "" if replica is None else replica.state
        troubled = group_standing.troubled_members if entry.is_group else _failed_replicas
        problems = [f"{name}: {text}" for name, text in troubled(ctx, entry).items()]
        if leading is not None and leading.problem:
            problems.insert(0, leading.problem)
        move = self._moves.under_way.get(entry.name)
        return {
            "name": entry.name,
            "strategy": entry.strategy,
            "primary": record.primary if leading is not None else "",
            "generation": record.generation,
            "in_sync": list(record.members),
            "replicas": states,
            "leaving": list(entry.leaving),
            "extras": list(self._keeper.extras(entry)),
            "preferred": entry.preferred,
            "wanted": wanted.number,
            "why": wanted.why,
            "min_replicas": entry.min_replicas,
            "min_in_sync": entry.min_in_sync,
            "queues": len(ctx.map.queues_of(entry.name)),
            "messages": None if leading is None else leading.load.messages,
            "rate": None if leading is None else leading.load.rate,
            "phase": "" if leading is None else leading.phase,
            "lags": {} if leading is None else {backup.name: backup.lag for backup in leading.backups},
            "problem": self._leadership.problems.get(entry.name, "; ".join(problems)),
            "moving_to": "" if move is None else move.to or "the best",
        }
