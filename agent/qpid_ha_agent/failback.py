"""Which backup a primary shall hand over to, because it is preferred: `ha.failback`, `ha.priority`. Pure.

Each agent tells the others its broker's priority in the coordinator's note `priorities`; the primary's agent decides.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

from qpid_ha_config.settings import PRIORITY_MAX, ActivationSettings

PRIORITIES_NOTE: Final = "priorities"
STEADY_S: Final = 300.0
"""Who was primary for less than that has not proved itself."""
LONGEST_DELAY_S: Final = 3600.0
"""Of a hold-down, unless `ha.failback-delay` is longer."""
LOOKED_MOST_S: Final = 5.0
"""Who has not looked for longer has not seen that a backup was ready all the time."""


def read_priorities(note: str) -> dict[str, int]:
    """{broker: priority} of a note; what cannot be understood is none: their agents put it right."""
    try:
        priorities = json.loads(note)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(priorities, dict):
        return {}
    return {
        name: priority
        for name, priority in priorities.items()
        if isinstance(priority, int) and not isinstance(priority, bool) and 0 < priority <= PRIORITY_MAX
    }


def with_priority(note: str, name: str, priority: int) -> str:
    """The note with the priority of `name`; the same note when it has it already. Who has none is not in it."""
    priorities = read_priorities(note)
    if priorities.get(name, 0) == priority:
        return note
    wanted = {**priorities, name: priority}
    return json.dumps(dict(sorted((broker, number) for broker, number in wanted.items() if number)))


class Failback:
    """The promise: a backup is named only when it was ready and in sync for all of the delay, without a gap.

    The delay doubles for one that ceased to be primary within `STEADY_S`, up to an hour, until it has been primary for
    as long as that.
    """

    def __init__(self, name: str, settings: ActivationSettings) -> None:
        self._name = name
        self._settings = settings
        self._ready_since_s: dict[str, float] = {}
        """Backups that were ready and in sync at each look since."""
        self._looked_at_s = 0.0
        self._wishes: Mapping[str, int] = {}
        self._primary: str | None = None
        """None: we have not looked yet."""
        self._primary_since_s = 0.0
        self._unsteady: dict[str, int] = {}
        """How often each broker has ceased to be primary too soon."""

    @property
    def is_wanted(self) -> bool:
        """Whether this broker, as primary, would hand over."""
        return self._settings.failback == "preferred"

    def note_primary(self, primary: str, wishes: Mapping[str, int], now_s: float) -> None:
        """Whom the record names; empty: nobody yet. Who leads when we come may have led for long.

        `wishes` are the priorities: who made way for a better one has done nothing wrong.
        """
        self._wishes = wishes
        if self._primary is None:
            self._primary, self._primary_since_s = primary, now_s - STEADY_S
        before, lasted_s = self._primary, now_s - self._primary_since_s
        if before and lasted_s >= STEADY_S:
            self._unsteady.pop(before, None)
        if primary == before:
            return
        if before and lasted_s < STEADY_S and wishes.get(primary, 0) <= wishes.get(before, 0):
            self._unsteady[before] = self._unsteady.get(before, 0) + 1
        self._primary, self._primary_since_s = primary, now_s
        self._ready_since_s = {}

    def note_backups(self, ready: Collection[str], now_s: float) -> None:
        """Our broker is primary, and these backups are ready and in sync; none: it is not, or nobody knows."""
        if now_s - self._looked_at_s > LOOKED_MOST_S:
            self._ready_since_s = {}
        self._looked_at_s = now_s
        self._ready_since_s = {name: self._ready_since_s.get(name, now_s) for name in ready}

    def refused(self, target: str) -> None:
        """The switchover came to nothing: not again at once."""
        self._unsteady[target] = self._unsteady.get(target, 0) + 1
        self._ready_since_s.pop(target, None)

    def delay_s(self, name: str) -> float:
        """How long `name` has to be ready."""
        delay_s = self._settings.failback_delay_s
        return min(delay_s * 2.0 ** min(self._unsteady.get(name, 0), 20), max(delay_s, LONGEST_DELAY_S))

    def target(self, now_s: float) -> str:
        """Whom to hand over to now; empty: nobody. Only the best of those that are ready: one move, and not two."""
        if not self.is_wanted or now_s - self._looked_at_s > LOOKED_MOST_S:
            return ""
        best = min(self._ready_since_s, key=lambda name: (-self.priority_of(name), name), default="")
        if not best or self.priority_of(best) <= self.priority_of(self._name):
            return ""
        return best if now_s - self._ready_since_s[best] >= self.delay_s(best) else ""

    def priority_of(self, name: str) -> int:
        """As its agent has told it."""
        return self._wishes.get(name, 0)
