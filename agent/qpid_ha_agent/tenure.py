"""Since when lock, record and broker stand to each other as they do. Pure."""

from __future__ import annotations

from qpid_ha_agent.decision import LockView
from qpid_ha_broker.ha.states import State

GIVES_WAY_S = 5.0
"""The agent of a primary that lost the lock, as all do when the coordinator was away, tries again within a second."""


class Tenure:
    """Told often how things stand, it remembers how long they have been so."""

    def __init__(self) -> None:
        self._gave_way_at_s: float | None = None
        self._held_since_s: float | None = None
        self._demoted_at_s: float | None = None
        self._disowned_since_s: float | None = None
        self._was_primary = False

    @property
    def is_undecided(self) -> bool:
        """We have the lock, and the broker has not been primary yet."""
        return self._held_since_s is not None and not self._was_primary

    def note(self, lock: LockView, is_primary: bool, is_disowned: bool, now_s: float) -> bool:
        """How it is now; True when the lock is newly ours. `is_disowned`: the record names another primary, and a newer
        generation than our broker, which says that it is primary."""
        is_held = lock is LockView.HELD
        is_new = is_held and self._held_since_s is None
        if not is_held:
            self._held_since_s, self._was_primary, self._demoted_at_s = None, False, None
        elif is_new:
            self._held_since_s = now_s
        if is_held and is_primary:
            self._was_primary, self._demoted_at_s = True, None
        elif self._was_primary and self._demoted_at_s is None:
            self._demoted_at_s = now_s
        if not is_disowned:
            self._disowned_since_s = None
        elif self._disowned_since_s is None:
            self._disowned_since_s = now_s
        return is_new

    def give_way(self, now_s: float) -> None:
        """The lock is let go because our broker has a primary, whose agent shall have it."""
        self._gave_way_at_s = now_s

    def gives_way_s(self, state: State | None, now_s: float) -> float:
        """How long we still keep out of that agent's way; 0 once there is no primary.

        Of two backups' agents that tried again at once, one would always have the lock, and that agent might never.
        """
        if self._gave_way_at_s is None or state is not State.READY:
            self._gave_way_at_s = None
            return 0.0
        return max(0.0, self._gave_way_at_s + GIVES_WAY_S - now_s)

    def forgive(self, now_s: float) -> None:
        """Count from now on how long it is disowned: who was held up knows an old record and an old answer."""
        if self._disowned_since_s is not None:
            self._disowned_since_s = now_s

    def held_for_s(self, now_s: float) -> float:
        """How long the lock has been ours."""
        return _since(self._held_since_s, now_s)

    def demoted_for_s(self, now_s: float) -> float | None:
        """How long ago the broker ceased to be primary under our lock; None if it did not."""
        return None if self._demoted_at_s is None else now_s - self._demoted_at_s

    def disowned_s(self, now_s: float) -> float:
        """How long it has been primary against the record."""
        return _since(self._disowned_since_s, now_s)


class Refusals:
    """How many pauses to make after a refusal: one that repeats itself will not be over in the next second.

    The first few cost nothing: brokers that are started together are not all there at once.
    """

    SOON = 20
    MOST = 8.0
    """A primary is back so many pauses late at most after the cause is gone."""

    def __init__(self) -> None:
        self._reason = ""
        self._times = 0

    def pauses(self, reason: str) -> float:
        """The promotion was refused, because."""
        self._times = self._times + 1 if reason == self._reason else 1
        self._reason = reason
        return min(2.0 ** max(0, self._times - self.SOON), self.MOST)

    def forget(self) -> None:
        """The broker is in another state."""
        self._reason, self._times = "", 0


class LeaseWatch:
    """The promise: whoever holds the lock counts as silent only for as long as this agent has looked, by its own clock.

    A pause between two looks counts for `look_max_s` at most: an agent that was held up itself has seen nothing.
    """

    def __init__(self, look_max_s: float) -> None:
        self._look_max_s = look_max_s
        self._renewal: str | None = None
        self._looked_at_s = 0.0
        self.silent_s = 0.0
        """Since the last renewal; 0 when nobody else holds it."""

    def note(self, renewal: str, now_s: float) -> None:
        """Another one holds it, and wrote that last."""
        if renewal == self._renewal:
            self.silent_s += min(now_s - self._looked_at_s, self._look_max_s)
        else:
            self._renewal, self.silent_s = renewal, 0.0
        self._looked_at_s = now_s

    def forget(self) -> None:
        """Nobody else is known to hold it."""
        self._renewal, self.silent_s = None, 0.0


def _since(at_s: float | None, now_s: float) -> float:
    return 0.0 if at_s is None else now_s - at_s
