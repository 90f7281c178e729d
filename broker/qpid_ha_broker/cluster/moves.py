"""Primaries that are to be elsewhere: transfers, brokers that are drained or whose store cannot be written, and
rebalancing. All are switchovers, and none is of a group.

What becomes of a move (`Moves.review`), the first that applies:

| what is | what is done | why |
| --- | --- | --- |
| the set is gone | it is given up | |
| the broker leads the set that should | it is done | |
| it has taken too long | it is given up | whoever asked hears what was missing; a drain tries again |
| nobody leads the set | wait | first it needs a primary |
| the order is under way | wait | |
| its order was refused a moment ago | wait | a replica may be level soon |
| who should lead it is not in sync, or its broker is not open | wait, and say who is | |
| else | the primary is told to hand over | |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from qpid_ha_broker.cluster.context import ORDER_LIMIT_S, ControllerContext
from qpid_ha_broker.cluster.leadership import Leadership
from qpid_ha_broker.cluster.messages import AnswerRequest, GiveOrder, OrderKind
from qpid_ha_broker.cluster.reports import DEFAULT
from qpid_ha_broker.cluster_map import SetEntry
from qpid_ha_broker.events.counted import counted

MOVE_LIMIT_S = 10.0
RETRY_S = 0.5
AT_A_TIME = 16
"""Primaries that leave brokers which are drained."""


class PlannedMove(NamedTuple):
    """A primary that should be elsewhere."""

    set: str
    source: str
    to: str
    why: str


def plan_balance(
    sets: Mapping[str, SetEntry], open_brokers: tuple[str, ...], in_sync: Mapping[str, tuple[str, ...]]
) -> list[PlannedMove]:
    """Primaries to where they are preferred; the others from who leads most to who leads fewest, as far as that helps.

    `in_sync`: of each set that is led, who could lead it. Each set moves at most once, and a second plan after it finds
    nothing to do.
    """
    counts = Counter(dict.fromkeys(open_brokers, 0))
    counts.update(entry.record.primary for entry in sets.values())
    moves: list[PlannedMove] = []
    movable: dict[str, list[str]] = {}
    for name, entry in sorted(sets.items()):
        source, preferred = entry.record.primary, entry.preferred
        if name not in in_sync or source == preferred:
            continue
        if preferred in open_brokers:
            if preferred in in_sync[name]:
                moves.append(PlannedMove(name, source, preferred, "it is preferred"))
                counts[source] -= 1
                counts[preferred] += 1
        else:
            movable.setdefault(source, []).append(name)
    while (step := _evener(counts, movable, in_sync, open_brokers)) is not None:
        moves.append(step)
        movable[step.source].remove(step.set)
        counts[step.source] -= 1
        counts[step.to] += 1
    return moves


def _evener(
    counts: Counter[str],
    movable: dict[str, list[str]],
    in_sync: Mapping[str, tuple[str, ...]],
    brokers: tuple[str, ...],
) -> PlannedMove | None:
    for source in sorted(movable, key=lambda name: (-counts[name], name)):
        for to in sorted(brokers, key=lambda name: (counts[name], name)):
            if counts[source] - counts[to] < 2:
                break
            fitting = next((name for name in movable[source] if to in in_sync[name]), None)
            if fitting is not None:
                return PlannedMove(
                    fitting, source, to, f"{source} leads {counted(counts[source], 'set')}, {to} {counts[to]}"
                )
    return None


class Move(NamedTuple):
    """A primary that is on its way."""

    to: str
    """Empty: to whoever is best."""
    why: str
    since_s: float
    source: str
    """Who led when it began."""
    requests: tuple[int, ...] = ()
    """Who is to hear when it is done."""


class Moves:
    """The promise: every move ends, done or not, and no set has two at a time."""

    def __init__(self, ctx: ControllerContext, leadership: Leadership) -> None:
        self._ctx, self._leadership = ctx, leadership
        self.under_way: dict[str, Move] = {}
        self._not_before_s: dict[str, float] = {}
        self._texts: dict[str, str] = {}
        """What a move waits for, or why its last order was refused."""
        self.balancing: list[PlannedMove] = []
        """What is left of a rebalancing; the first is under way."""
        self._balance_request = 0
        self._balanced = 0

    def began(self) -> None:
        """A new controller: drains are in the map, the rest has to be asked for again."""
        self.under_way.clear()
        self._not_before_s.clear()
        self._texts.clear()
        self.balancing = []

    def begin(self, name: str, to: str, why: str, request: int = 0) -> str:
        """Have `to` lead the set; why not, if another move is under way."""
        there = self.under_way.get(name)
        requests = (request,) if request else ()
        if there is not None and to and there.to not in ("", to):
            return f"{name} is on its way to {there.to}: wait for that"
        entry = self._ctx.draft.sets[name]
        source = entry.record.primary if there is None else there.source
        since_s = self._ctx.now_s if there is None or request else there.since_s
        before = () if there is None else there.requests
        self.under_way[name] = Move(to, why, since_s, source, (*before, *requests))
        self._ctx.dirty.add(name)
        return ""

    def targets(self, entry: SetEntry) -> tuple[str, ...]:
        """Who could lead the set instead of its primary."""
        ctx, record = self._ctx, entry.record
        leading = ctx.reports.leads(record.primary, entry.name, record.generation)
        found = []
        for backup in () if leading is None else leading.backups:
            replica = ctx.reports.replica(backup.name, entry.name)
            is_ready = replica is not None and replica.state == "ready" and ctx.liveness.is_alive(backup.name)
            is_open = ctx.may_lead(backup.name) and backup.name in entry.staying
            if backup.in_sync and is_ready and is_open and backup.name in record.members:
                found.append(backup.name)
        return tuple(found)

    def review(self, name: str) -> None:
        """By the table above."""
        ctx, move = self._ctx, self.under_way[name]
        entry = ctx.draft.sets.get(name)
        if entry is None:
            self._end(name, False, f"there is no resource set {name} any more")
            return
        leads = self._leadership.leads(entry)
        primary = entry.record.primary
        if leads and (primary == move.to or (not move.to and primary != move.source)):
            self._end(name, True, f"{primary} leads {name}, in generation {entry.record.generation}")
        elif ctx.now_s - move.since_s > MOVE_LIMIT_S:
            self._end(name, False, self._texts.get(name, "it took too long: try again"))
        elif not leads:
            self._texts[name] = f"{name} has no primary that could hand over"
        elif self._may_order(name):
            self._order(entry, move)

    def _may_order(self, name: str) -> bool:
        is_pending = self._ctx.orders.pending(name, OrderKind.SWITCH_OVER, self._ctx.now_s) is not None
        return not is_pending and self._ctx.now_s >= self._not_before_s.get(name, 0.0)

    def _order(self, entry: SetEntry, move: Move) -> None:
        ready = self.targets(entry)
        if move.to not in ready and (move.to or not ready):
            who = f"{move.to} is not ready to lead" if move.to else "nobody else is ready to lead"
            self._texts[entry.name] = f"{who} {entry.name}; ready are: {', '.join(ready) or 'none'}"
            return
        counts = self._ctx.primaries()
        to = move.to or min(ready, key=lambda name: (name != entry.preferred, counts[name], name))
        self._ctx.order(entry.record.primary, entry.name, OrderKind.SWITCH_OVER, to, move.why)

    def answered(self, order: GiveOrder, done: bool, text: str) -> None:
        """What the primary said. That it hands over is not yet that the other one leads."""
        if order.set in self.under_way:
            self._texts[order.set] = text
            self._not_before_s[order.set] = self._ctx.now_s + (ORDER_LIMIT_S if done else RETRY_S)

    def _end(self, name: str, done: bool, text: str) -> None:
        move = self.under_way.pop(name)
        if not done:
            self._ctx.orders.forget(name, OrderKind.SWITCH_OVER)
        self._texts.pop(name, None)
        self._not_before_s.pop(name, None)
        self._ctx.dirty.add(name)
        if not done:
            self._ctx.cause(name)
            self._ctx.remember(name, f"was not moved to {move.to or 'another broker'} ({move.why}): {text}")
        for request in move.requests:
            self._ctx.answer(AnswerRequest(request, done, text))
        if self.balancing and self.balancing[0].set == name:
            self.balancing.pop(0)
            self._balanced += done
            self._next_to_balance()

    def _with_primary(self) -> dict[str, SetEntry]:
        """The sets whose primary may have to be elsewhere. A group has none: whoever is left goes on by itself."""
        return {name: entry for name, entry in self._ctx.draft.sets.items() if not entry.is_group}

    # --- drained brokers

    def clear_out(self) -> None:
        """Have primaries hand over that should not be where they are; so many at a time."""
        ctx = self._ctx
        brokers = ctx.draft.brokers
        draining = {name for name, broker in brokers.items() if broker.draining}
        own = ctx.reports.replica(ctx.name, DEFAULT)
        can_record = own is None or not own.unwritable
        room = AT_A_TIME - len(self.under_way)
        for name, entry in self._with_primary().items():
            if room <= 0:
                return
            primary = entry.record.primary
            if primary in draining:
                why = f"{primary} is drained"
            elif ctx.is_leaving(primary):
                why = f"{primary} is about to stop"
            elif primary in entry.leaving:
                why = "its replica there leaves"
            elif can_record and self._is_unwritable(entry):
                why = f"the store of {primary} cannot be written"
            else:
                continue
            if name not in self.under_way and self.targets(entry):
                self.begin(name, "", why)
                room -= 1

    def _is_unwritable(self, entry: SetEntry) -> bool:
        """Whether its primary's store takes nothing. Who is in sync can write: a backup that cannot leaves."""
        leading = self._ctx.reports.leads(entry.record.primary, entry.name, entry.record.generation)
        return leading is not None and leading.unwritable

    def movable(self, broker: str) -> int:
        """How many sets it leads that somebody else who is in sync could lead, now or in a moment."""
        ctx = self._ctx
        led = [entry for entry in self._with_primary().values() if entry.record.primary == broker]
        return sum(
            any(name != broker and ctx.is_up(name) and ctx.may_lead(name) for name in entry.record.members)
            for entry in led
        )

    # --- rebalancing

    def plan(self) -> list[PlannedMove]:
        """What rebalancing would do now."""
        ctx = self._ctx
        open_brokers = [name for name in ctx.draft.brokers if ctx.is_up(name) and ctx.may_lead(name)]
        sets = self._with_primary()
        in_sync = {name: self.targets(entry) for name, entry in sets.items() if self._leadership.leads(entry)}
        return plan_balance(sets, tuple(open_brokers), in_sync)

    def balance(self, request: int) -> str:
        """Do what is planned, one at a time; why not."""
        if self.balancing:
            return f"{counted(len(self.balancing), 'primary is', 'primaries are')} being moved already: wait for those"
        self.balancing, self._balance_request, self._balanced = self.plan(), request, 0
        self._next_to_balance()
        return ""

    def _next_to_balance(self) -> None:
        while self.balancing:
            name, source, to, why = self.balancing[0]
            entry = self._ctx.draft.sets.get(name)
            if entry is not None and entry.record.primary == source and not self.begin(name, to, f"rebalancing: {why}"):
                return
            self.balancing.pop(0)
        if self._balance_request:
            text = f"{counted(self._balanced, 'primary was', 'primaries were')} moved"
            self._ctx.answer(AnswerRequest(self._balance_request, True, text, {"moved": self._balanced}))
            self._balance_request = 0
