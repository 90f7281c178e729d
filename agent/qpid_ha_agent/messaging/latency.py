"""How long things took: counts by ranges that grow with the time, so that a day's measurement takes no more memory
than a second's, and a quantile is right to a 32nd of itself.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

_STEPS_BITS: Final = 5
"""Each power of two has 2^5 ranges."""
QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999))


class Latencies:
    """Times in microseconds, whole numbers from 0 on."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.most_us = 0

    def add(self, time_us: int) -> None:
        """One took that long; below 0, as by clocks of two machines, counts as 0."""
        time_us = max(time_us, 0)
        self._counts[_range_of(time_us)] += 1
        self.count += 1
        self.most_us = max(self.most_us, time_us)

    def join(self, other: Latencies) -> None:
        """Count those of the other one, too."""
        self._counts.update(other._counts)
        self.count += other.count
        self.most_us = max(self.most_us, other.most_us)

    def quantile_us(self, part: float) -> int:
        """What that part of them (0 to 1) did not exceed; 0 where there are none."""
        left = max(part * self.count, 1)
        for place in sorted(self._counts):
            left -= self._counts[place]
            if left <= 0:
                return min(_end_of(place), self.most_us)
        return self.most_us

    def summary_ms(self) -> dict[str, float]:
        """The quantiles and the longest, in milliseconds."""
        times_us = {name: self.quantile_us(part) for name, part in QUANTILES} | {"max": self.most_us}
        return {name: round(time_us / 1000, 3) for name, time_us in times_us.items()}

    def histogram(self) -> list[tuple[float, int]]:
        """For each power of two of microseconds: its end in milliseconds, and how many took less; those between the
        shortest and the longest."""
        by_power: Counter[int] = Counter()
        for place, count in self._counts.items():
            by_power[_end_of(place).bit_length()] += count
        if not by_power:
            return []
        return [((1 << power) / 1000, by_power[power]) for power in range(min(by_power), max(by_power) + 1)]


def _range_of(time_us: int) -> int:
    shift = max(time_us.bit_length() - _STEPS_BITS - 1, 0)
    return (shift << (_STEPS_BITS + 1)) + (time_us >> shift)


def _end_of(place: int) -> int:
    """The longest time of a range."""
    shift = place >> (_STEPS_BITS + 1)
    first = place & ((1 << (_STEPS_BITS + 1)) - 1)
    return ((first + 1) << shift) - 1
