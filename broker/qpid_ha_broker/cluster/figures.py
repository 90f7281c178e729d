"""What the controller has done since it began, in numbers: for operators, and for what watches over a cluster."""

from __future__ import annotations

from collections.abc import Iterable


class ControllerFigures:
    """Counters, and how long the last failure of a broker was felt.

    A failure lasts from when the broker was last known to be there until each of the sets that it led has a primary
    again, or is deleted; another failure meanwhile takes its place.
    """

    def __init__(self) -> None:
        self.orders = 0
        """Given, also those that were given again."""
        self.map_events = 0
        """Written into the map."""
        self.failures = 0
        """Of brokers, also of those that led nothing."""
        self._broker = ""
        self._sets = 0
        self._since_s = 0.0
        self._without_primary: set[str] = set()
        self._duration_s: float | None = None

    def failed(self, broker: str, since_s: float, now_s: float, led: Iterable[str]) -> None:
        """A broker has failed, which was last known to be there at `since_s`, and led these sets."""
        self.failures += 1
        self._broker, self._since_s, self._without_primary = broker, since_s, set(led)
        self._sets = len(self._without_primary)
        self._duration_s = None if self._without_primary else now_s - since_s

    def settled(self, set_name: str, now_s: float) -> None:
        """That set has a primary, or is no more."""
        if set_name not in self._without_primary:
            return
        self._without_primary.discard(set_name)
        if not self._without_primary:
            self._duration_s = now_s - self._since_s

    def facts(self) -> dict[str, object]:
        """Flat; of a failure that is not over the duration is None."""
        facts: dict[str, object] = {
            "controller_orders": self.orders,
            "controller_map_events": self.map_events,
            "controller_failures": self.failures,
        }
        if self.failures:
            duration_s = None if self._duration_s is None else round(self._duration_s, 3)
            facts |= {
                "last_failure_broker": self._broker,
                "last_failure_sets": self._sets,
                "last_failure_s": duration_s,
            }
        return facts
