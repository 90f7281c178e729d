"""How figures went: a day of them in arrays of a fixed length, and what a chart of it shows. Pure.

Figures are noted at even steps, one number for each step that there was. The last hour is kept as it was noted, and a
day with a number for each minute, which is what the figure's fold makes of the numbers of that minute: the mean of a
rate, the highest of a depth, the lowest of the free space, so that no peak is lost. What a chart is sent is folded
again, to at most POINTS_MAX numbers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

STEP_S: Final = 5
"""Between two looks."""
MINUTE_STEPS: Final = 12
FINE_MAX: Final = 720
"""An hour of looks."""
COARSE_MAX: Final = 1440
"""A day of minutes."""
POINTS_MAX: Final = 240
"""Of one figure, in a chart."""
NOTHING: Final = math.nan
"""There was no look at that step, or nothing to be noted."""

Fold = Callable[[Sequence[float]], float]
"""What one number stands for several; they are at least one, and none of them is NOTHING."""


def mean(values: Sequence[float]) -> float:
    """Of rates: so many in a second all the while."""
    return sum(values) / len(values)


class Figure(NamedTuple):
    """What is noted."""

    name: str
    fold: Fold


class ChartSpan(NamedTuple):
    """How far a chart goes back: `points` numbers, each for `fold` of those that are kept."""

    is_fine: bool
    fold: int
    points: int

    @property
    def step_s(self) -> int:
        """Between two numbers of the chart."""
        return self.fold * (STEP_S if self.is_fine else STEP_S * MINUTE_STEPS)


SPANS: Final[Mapping[str, ChartSpan]] = {
    "20m": ChartSpan(True, 1, 240),
    "1h": ChartSpan(True, 3, 240),
    "24h": ChartSpan(False, 6, 240),
}
"""What a chart may be asked for."""


class Ring:
    """The last numbers of one figure, in an array that grows to `most` and then never again."""

    __slots__ = ("_next", "_values")

    def __init__(self, kind: str) -> None:
        """`kind`: of the array, such as `f`."""
        self._values: array[float] = array(kind)
        self._next = 0
        """Where the next one goes once the array is full: the oldest is there."""

    def append(self, value: float, most: int) -> None:
        """The newest; of more than `most`, which is the same each time, the oldest goes."""
        if len(self._values) < most:
            self._values.append(value)
            return
        self._values[self._next] = value
        self._next = (self._next + 1) % most

    def __len__(self) -> int:
        return len(self._values)

    def tolist(self) -> list[float]:
        """The oldest first."""
        values = self._values.tolist()
        return values[self._next :] + values[: self._next]


class FigureHistory:
    """Of some figures that are noted together. The promise: it takes 9 KiB for each figure at most, however long it is.

    `now_s`: a clock that never goes back. A step that nobody noted is NOTHING.
    """

    __slots__ = ("_coarse", "_figures", "_fine", "_minute", "_slot")

    def __init__(self, figures: Sequence[Figure]) -> None:
        self._figures = figures
        self._fine = [Ring("f") for _ in figures]
        self._coarse = [Ring("f") for _ in figures]
        self._minute: list[list[float]] = [[] for _ in figures]
        """What was noted of each figure in the minute that is not over."""
        self._slot: int | None = None
        """Of the last step that was noted."""

    def newest_s(self, span: ChartSpan) -> float | None:
        """When the newest number of a chart begins; None: nothing was noted."""
        return None if self._slot is None else float(self._slot * STEP_S // span.step_s * span.step_s)

    def note(self, now_s: float, values: Sequence[float]) -> None:
        """The figures, in their order, as they are now. A second note in one step is left out."""
        slot = int(now_s // STEP_S)
        if self._slot is not None:
            if slot <= self._slot:
                return
            nothing = [NOTHING] * len(self._figures)
            # Of what is longer ago than a day nothing is left either way.
            for missed in range(max(self._slot + 1, slot - COARSE_MAX * MINUTE_STEPS), slot):
                self._add(missed, nothing)
        self._add(slot, values)

    def _add(self, slot: int, values: Sequence[float]) -> None:
        if self._slot is not None and slot // MINUTE_STEPS != self._slot // MINUTE_STEPS:
            self._end_minute()
        self._slot = slot
        for fine, minute, value in zip(self._fine, self._minute, values, strict=True):
            fine.append(value, FINE_MAX)
            minute.append(value)

    def _end_minute(self) -> None:
        for figure, coarse, minute in zip(self._figures, self._coarse, self._minute, strict=True):
            coarse.append(folded(figure.fold, minute), COARSE_MAX)
            minute.clear()

    def series(self, span: ChartSpan) -> Generator[None, None, dict[str, list[float | None]]]:
        """The numbers of each figure for a chart, the newest last and all of one length; None: nothing was noted.
        Pauses after each figure.

        The last number is for the step of the chart that the last look is in, be it over or not.
        """
        points_of: dict[str, list[float | None]] = {}
        # All at once, for there may be a look between two steps.
        most = (span.points + 1) * span.fold  # the oldest point of these may lack a part, and is left out
        kept = [self._kept(number, is_fine=span.is_fine)[-most:] for number in range(len(self._figures))]
        slot = 0 if self._slot is None else self._slot if span.is_fine else self._slot // MINUTE_STEPS
        for number, figure in enumerate(self._figures):
            points = _folded_points(figure.fold, kept[number], slot, span.fold)
            points_of[figure.name] = [shortened(value) for value in points][-span.points :]
            yield
        return points_of

    def _kept(self, number: int, *, is_fine: bool) -> list[float]:
        if is_fine:
            return self._fine[number].tolist()
        minute = self._minute[number]
        return [*self._coarse[number].tolist(), *([folded(self._figures[number].fold, minute)] if minute else [])]


def _folded_points(fold: Fold, kept: Sequence[float], last_slot: int, width: int) -> Iterator[float]:
    """`width` neighbours make one, always the same ones: a chart that is asked for again has what it had before."""
    first = last_slot - len(kept) + 1
    for _, group in groupby(enumerate(kept, first), lambda numbered: numbered[0] // width):
        yield folded(fold, [value for _, value in group])


def folded(fold: Fold, values: Sequence[float]) -> float:
    """One number for all that were noted; NOTHING if none was."""
    noted = [value for value in values if not math.isnan(value)]
    return fold(noted) if noted else NOTHING


def shortened(value: float) -> float | None:
    """Six digits of it, which is what is kept; None for NOTHING."""
    if math.isnan(value):
        return None
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short
