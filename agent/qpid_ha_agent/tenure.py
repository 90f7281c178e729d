"""Since when lock and broker stand to each other as they do. Pure."""

from __future__ import annotations

from qpid_ha_agent.decision import LockView


class Tenure:
    """Told often how things stand, it remembers how long they have been so."""

    def __init__(self) -> None:
        self._held_since_s: float | None = None
        self._demoted_at_s: float | None = None
        self._lockless_since_s: float | None = None
        self._was_primary = False

    @property
    def is_undecided(self) -> bool:
        """We have the lock, and the broker has not been primary yet."""
        return self._held_since_s is not None and not self._was_primary

    def note(self, lock: LockView, is_primary: bool, now_s: float) -> bool:
        """How it is now; True when the lock is newly ours."""
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
        if is_held or not is_primary:
            self._lockless_since_s = None
        elif self._lockless_since_s is None:
            self._lockless_since_s = now_s
        return is_new

    def held_for_s(self, now_s: float) -> float:
        """How long the lock has been ours."""
        return _since(self._held_since_s, now_s)

    def demoted_for_s(self, now_s: float) -> float | None:
        """How long ago the broker ceased to be primary under our lock; None if it did not."""
        return None if self._demoted_at_s is None else now_s - self._demoted_at_s

    def lockless_primary_s(self, now_s: float) -> float:
        """How long the broker has been primary without our lock."""
        return _since(self._lockless_since_s, now_s)


def _since(at_s: float | None, now_s: float) -> float:
    return 0.0 if at_s is None else now_s - at_s
