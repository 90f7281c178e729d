"""Steps that a seed draws, one after the other, what is due in between, and what came of each: of every soak.

Each step is drawn before it is known what the cluster looks like, so that a seed names the same steps again; what they
do to a cluster depends on when they meet it.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, NamedTuple

PAUSES_S: Final = (0.5, 5.0)
"""Between two steps."""


class Step(NamedTuple):
    """What is to be done, as far as it was drawn."""

    kind: str
    brokers: tuple[int, ...]
    """All of them, in the order in which they are chosen."""
    set: int
    share: float
    """From 0 to 1: of a duration, or which of several."""
    pause_s: float
    """After it."""


class Outcome(NamedTuple):
    """What came of a step."""

    at_s: float
    """Since the beginning."""
    kind: str
    target: str
    text: str
    """Empty: it was done; else why not, or not yet."""


class Skipped(Exception):
    """It would destroy what the cluster promises to keep, or cannot be done now."""


Kind = tuple[Callable[[Step], None], int]
"""What it does, and how often compared with others."""


class DrawnSteps(ABC):
    """The promise: a seed draws the same steps again, whatever comes of them."""

    pauses_s = PAUSES_S
    refusals: ClassVar[tuple[type[Exception], ...]] = ()
    """By which a step says that it was not done."""

    def __init__(self, seed: int, brokers: int, sets: int) -> None:
        self._random = random.Random(seed)
        self._counts = brokers, sets
        self._began_s = time.monotonic()
        self._due: list[tuple[float, Callable[[], None]]] = []
        self.outcomes: list[Outcome] = []
        self._kinds = self.kinds()
        self._names = [kind for kind, (_, weight) in self._kinds.items() for _ in range(weight)]

    @abstractmethod
    def kinds(self) -> Mapping[str, Kind]:
        """What may be done, by its name."""

    def begin(self) -> None:
        """Times of outcomes count from now on."""
        self._began_s = time.monotonic()

    def draw(self) -> Step:
        """The next one."""
        brokers, sets = self._counts
        order = list(range(brokers))
        kind, number = self._random.choice(self._names), self._random.randrange(sets)
        self._random.shuffle(order)
        return Step(kind, tuple(order), number, self._random.random(), self._random.uniform(*self.pauses_s))

    def make(self, step: Step) -> None:
        """Do it, and write down what came of it."""
        try:
            self._kinds[step.kind][0](step)
        except Skipped as why:
            self._note(f"{step.kind}: skipped", str(why), "")
        except self.refusals as error:
            self._note(step.kind, "", str(error).partition("\n")[0])

    def rest(self, for_s: float) -> None:
        """Let time pass, and do what is due meanwhile."""
        end_s = time.monotonic() + for_s
        while True:
            now_s = time.monotonic()
            for due in [each for each in self._due if each[0] <= now_s]:
                self._due.remove(due)
                due[1]()
            if now_s >= end_s:
                return
            time.sleep(min(0.02, max(0.0, end_s - time.monotonic())))

    def rest_until_nothing_is_due(self) -> None:
        """Whatever was to end has ended."""
        self.rest(max([0.0, *[due_s - time.monotonic() for due_s, _ in self._due]]))

    def counts(self) -> Mapping[str, Counter[str]]:
        """Of each kind, how often it was done, and what else became of it."""
        counts: dict[str, Counter[str]] = {}
        for outcome in self.outcomes:
            kind, _, is_skipped = outcome.kind.partition(": ")
            counts.setdefault(kind, Counter())[is_skipped or ("refused" if outcome.text else "done")] += 1
        return counts

    def _later(self, after_s: float, action: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + after_s, action))

    def _note(self, kind: str, target: str, text: str) -> None:
        self.outcomes.append(Outcome(time.monotonic() - self._began_s, kind, target, text))
