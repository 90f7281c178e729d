"""What became of a cluster, as far as journals tell: who led when, who was in sync, and for how long.

A journal knows who began a generation and who was in the in-sync set. It does not know of a broker that is neither
whether it is connecting, catching up, stopping or dead; nor, behind the last event of a primary, whether that still led
and had nothing to do, or was gone already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class Generation(NamedTuple):
    """One primary's time; moments in seconds since the epoch."""

    number: int
    primary: str
    cause: str
    forced: bool
    first_lsn: int
    started_s: float
    last_s: float
    """When its last event was written, by itself."""
    events: int
    detection_s: float
    """From the last event of the generation before to the start of this one: nobody led, or had nothing to do."""
    promotion_s: float
    """From there to the first event that is about a message or an object."""
    publishing_s: float | None
    """And from there to the first new message; None: there was none."""


class Lag(NamedTuple):
    """How much later than the primary a backup wrote the same event, in seconds: `failovers.PERCENTILES`.

    Negative: the clocks disagree by more than that.
    """

    broker: str
    events: int
    """Of those that it wrote while it was in the in-sync set: these are what publishers wait for."""
    percentiles_s: tuple[float, ...]
    late_events: int
    """And of those that it wrote when it was not, because it had been away or was catching up."""


class InSyncSetChange(NamedTuple):
    """A change of the in-sync set."""

    at_s: float
    epoch: int
    members: tuple[str, ...]
    lsn: int


class TimeInStates(NamedTuple):
    """Of one broker, in seconds; together they are the time from the first event to the last."""

    broker: str
    primary_s: float
    """From the start of its generations to their last events."""
    ready_s: float
    """In the in-sync set under another primary; also while nobody led."""
    silent_s: float
    """Behind the last event of a generation of its own, before the next one: it led, or was gone."""
    apart_s: float
    """`connecting`, `catchup`, `stopping`, or not there at all."""


class Timeline(NamedTuple):
    """Of one cluster."""

    cluster: str
    generations: tuple[Generation, ...]
    memberships: tuple[InSyncSetChange, ...]
    lags: tuple[Lag, ...]

    @property
    def span_s(self) -> float:
        """From the first to the last event."""
        return self.generations[-1].last_s - self.generations[0].started_s if self.generations else 0.0

    @property
    def without_primary_s(self) -> float:
        """How long nobody led, at most: a quiet time before a failover counts, too."""
        return sum(each.detection_s + each.promotion_s for each in self.generations[1:])

    @property
    def availability(self) -> float:
        """The part of the span in which somebody led."""
        return 1 - self.without_primary_s / self.span_s if self.span_s > 0 else 1.0

    @property
    def states(self) -> tuple[TimeInStates, ...]:
        """For how long each broker was what."""
        return times_in_states(self.generations, self.memberships)


def times_in_states(
    generations: Sequence[Generation], memberships: Sequence[InSyncSetChange]
) -> tuple[TimeInStates, ...]:  # fmt: skip
    """For each broker that is named anywhere; both ascending."""
    brokers = sorted({each.primary for each in generations} | {name for each in memberships for name in each.members})
    spent = {broker: dict.fromkeys(TimeInStates._fields[1:], 0.0) for broker in brokers}
    for begin, end in pairwise(_moments(generations, memberships)):
        led = next((each for each in reversed(generations) if each.started_s <= begin), None)
        members = next((each.members for each in reversed(memberships) if each.at_s <= begin), ())
        for broker in brokers:
            spent[broker][_state(broker, led, members, begin)] += end - begin
    return tuple(TimeInStates(broker, **times) for broker, times in spent.items())


def _moments(generations: Sequence[Generation], memberships: Sequence[InSyncSetChange]) -> list[float]:
    """At which anything changes, no later than the last event."""

    def all_of() -> Iterator[float]:
        for each in generations:
            yield from (each.started_s, each.last_s)
        yield from (each.at_s for each in memberships)

    last = max((each.last_s for each in generations), default=0.0)
    return sorted({moment for moment in all_of() if moment <= last})


def _state(broker: str, led: Generation | None, members: Sequence[str], moment: float) -> str:
    if led is not None and led.primary == broker:
        return "primary_s" if moment < led.last_s else "silent_s"
    return "ready_s" if broker in members else "apart_s"
