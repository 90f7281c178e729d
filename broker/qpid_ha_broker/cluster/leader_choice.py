"""Who of several brokers is to lead a set: the furthest, then the preferred, then who leads fewest."""

from __future__ import annotations

from collections import Counter

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster_map import SetEntry


class LeaderChoice:
    """The promise: what was chosen counts for the next choice, so that many sets at once are spread over brokers."""

    def __init__(self, ctx: ControllerContext) -> None:
        self._ctx = ctx
        self._counts: Counter[str] | None = None
        """Sets by the broker that leads them, or is to. None: not counted in this pass."""

    def begin_pass(self) -> None:
        """What is counted is counted once for many sets."""
        self._counts = None

    def best(self, entry: SetEntry, candidates: list[str]) -> str:
        """Of those that may lead the set, of which there is one at least."""
        return min(candidates, key=lambda name: self._rank(entry, name))

    def expected(self, entry: SetEntry, best: str) -> str:
        """Who should lead the set rather than `best`, the best of those that were heard of: one in sync that reports to
        a new controller in a moment, if it lives. Empty: nobody."""
        ctx = self._ctx
        expected = [
            name for name in entry.record.members if ctx.is_up(name) and ctx.liveness.is_expected(name, ctx.now_s)
        ]
        rather = min((best, *expected), key=lambda name: self._claim(entry, name))
        return "" if rather == best else rather

    def count(self, name: str) -> None:
        """It is to lead one set more."""
        self._counted()[name] += 1

    def position(self, entry: SetEntry, name: str) -> tuple[int, int]:
        """Generation and LSN up to which a broker has the set, by its own report; (0, 0): it has nothing."""
        replica = self._ctx.reports.replica(name, entry.name)
        return (0, 0) if replica is None else (replica.generation, replica.lsn)

    def _rank(self, entry: SetEntry, name: str) -> tuple[object, ...]:
        generation, lsn = self.position(entry, name)
        return -generation, -lsn, *self._claim(entry, name)

    def _claim(self, entry: SetEntry, name: str) -> tuple[object, ...]:
        """Of those that are as far: the least leads."""
        should_not = name not in entry.staying or not self._ctx.may_lead(name)
        return should_not, name != entry.preferred, self._counted()[name], name

    def _counted(self) -> Counter[str]:
        if self._counts is None:
            self._counts = self._ctx.primaries()
            for broker in self._ctx.draft.brokers:
                if not self._ctx.is_up(broker):
                    self._counts.pop(broker, None)
        return self._counts
