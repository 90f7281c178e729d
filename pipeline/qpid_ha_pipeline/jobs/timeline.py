"""What became of a cluster, as far as journals and state changes tell: who led when, and how long nobody did.

`periods` cuts the time from the first generation to the last sign of a primary into pieces, and says of each whether
clients were served. Availability, outages and time in states are sums of these, so they agree with each other.

1. SERVING: a primary led, and its in-sync set held the beginning of its generation, so that it could confirm.
2. WAITING: it led, and could confirm nothing: a broker of its in-sync set did not hold that beginning yet.
3. UNCERTAIN: behind the last sign that a primary led: it had nothing to do, or was gone. Also where it cannot be told
   whether a primary waited.
4. NOBODY: the old primary is known to have gone, and the next generation had not begun.

An idle primary writes nothing: hours without traffic before a failover are UNCERTAIN, unless an event stream says more.

A group has no primary. Its generations are the changes of who is in sync, their `primary` is the member that had one
recorded, and a sign of any member is one of the group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple


class Availability(StrEnum):
    """What can be said of a period; see the list above."""

    SERVING = "serving"
    WAITING = "waiting"
    UNCERTAIN = "uncertain"
    NOBODY = "nobody"


class BoundSource(StrEnum):
    """What a bound comes from."""

    JOURNAL = "its last event"
    OWN_STREAM = "its own event stream"
    LINK = "the link of a backup"
    NEXT_GENERATION = "the next generation"
    NOTHING = ""


class Sign(NamedTuple):
    """A moment in seconds since the epoch, and how it is known."""

    at_s: float
    evidence: BoundSource


class Generation(NamedTuple):
    """One primary's time; moments in seconds since the epoch."""

    number: int
    primary: str
    cause: str
    forced: bool
    first_lsn: int
    events: int
    """As its primary wrote them."""
    started_s: float
    """By its primary's clock."""
    confirming_s: tuple[float, float]
    """When all of its in-sync set held its first event: not before, and at the latest."""
    led: Sign
    """The last sign that its primary led."""
    gone: Sign | None
    """When its primary is known to have led no more; None: not before the next generation began."""
    first_work_s: float | None
    """The first event about a message or an object; None: there was none."""
    first_message_s: float | None
    """The first new message."""


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
    generation: int


class GroupChange(NamedTuple):
    """Who is in sync in a group changed."""

    at_s: float
    """When the first member wrote it down, by its clock."""
    generation: int
    epoch: int
    members: tuple[str, ...]
    """Who is in sync from here on."""
    left: tuple[str, ...]
    came: tuple[str, ...]
    recorded_by: str
    """Empty: that is not in what is left of the journals."""
    lsn: int


class Period(NamedTuple):
    """A piece of time, and the generation that it belongs to: the last one that had begun."""

    begin_s: float
    end_s: float
    service: Availability
    generation: int
    primary: str

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end_s - self.begin_s


class Outage(NamedTuple):
    """The time between two periods in which a primary served, or before the first, or behind the last of them."""

    begin_s: float
    """Not before."""
    end_s: float
    """At the latest."""
    at_least_s: float
    at_most_s: float
    generation: int
    """With which it ended."""
    last_led: BoundSource
    """What says that the old primary led until `begin_s`."""
    gone: BoundSource
    """And what says that it was gone."""


class TimeInStates(NamedTuple):
    """Of one broker, in seconds; together they are the time from the first event to the last."""

    broker: str
    primary_s: float
    """SERVING, as the primary."""
    waiting_s: float
    """WAITING, as the primary."""
    ready_s: float
    """In the in-sync set under another primary; also while nobody led."""
    uncertain_s: float
    """UNCERTAIN, as the primary: it led, or was gone."""
    apart_s: float
    """`connecting`, `catchup`, `stopping`, or not there at all."""


class Phases(NamedTuple):
    """Of the failover with which a generation began, in seconds."""

    nobody_at_least_s: float
    nobody_at_most_s: float
    """From the last sign of the old primary to the start of this generation."""
    waiting_at_least_s: float
    waiting_at_most_s: float
    """From there until it could confirm."""
    work_s: float | None
    """From its start to the first event about a message or an object, for which somebody has to want something."""
    message_s: float | None
    """From its start to the first new message."""


class Timeline(NamedTuple):
    """Of one resource set of a cluster."""

    cluster: str
    set: str
    generations: tuple[Generation, ...]
    memberships: tuple[InSyncSetChange, ...]
    lags: tuple[Lag, ...]
    end_s: float = 0.0
    """The last sign of any broker, where the last primary is known to have gone; else the last sign of that counts."""
    is_group: bool = False
    recorders: tuple[tuple[int, str], ...] = ()
    """Of a group: by generation, who had it recorded."""

    @property
    def group_changes(self) -> tuple[GroupChange, ...]:
        """In order; of a set with a primary none."""
        return tuple(group_changes(self.memberships, dict(self.recorders))) if self.is_group else ()

    @property
    def periods(self) -> tuple[Period, ...]:
        """In order and without gaps."""
        return periods(self.generations, self.end_s)

    @property
    def span_s(self) -> float:
        """From the first generation to the last sign of a primary."""
        pieces = self.periods
        return pieces[-1].end_s - pieces[0].begin_s if pieces else 0.0

    def time_s(self, *services: Availability) -> float:
        """How long it was so."""
        return sum(piece.seconds for piece in self.periods if piece.service in services)

    @property
    def availability(self) -> tuple[float, float]:
        """The part of the span in which a primary served: at least, and at most."""
        span_s = self.span_s
        if span_s <= 0:
            return 1.0, 1.0
        serving_s, uncertain_s = self.time_s(Availability.SERVING), self.time_s(Availability.UNCERTAIN)
        return serving_s / span_s, min(1.0, (serving_s + uncertain_s) / span_s)

    @property
    def outages(self) -> tuple[Outage, ...]:
        """In order; of a group none: who was gone then, its changes tell."""
        return () if self.is_group else tuple(outages(self.periods, self.generations))

    @property
    def phases(self) -> tuple[Phases | None, ...]:
        """Of each generation; None for the first. A group fails over to nobody: of none."""
        return () if self.is_group else tuple(phases(self.generations, self.end_s))

    @property
    def states(self) -> tuple[TimeInStates, ...]:
        """For how long each broker was what, as the primary or beside it."""
        return () if self.is_group else times_in_states(self.periods, self.memberships)


def group_changes(memberships: Sequence[InSyncSetChange], recorders: Mapping[int, str]) -> Iterator[GroupChange]:
    """Of the first that is left nobody knows what it changed: nobody left, and nobody came."""
    before: tuple[str, ...] | None = None
    for change in memberships:
        known = change.members if before is None else before
        left = tuple(name for name in known if name not in change.members)
        came = tuple(name for name in change.members if name not in known)
        recorded_by = recorders.get(change.generation, "")
        yield GroupChange(
            change.at_s, change.generation, change.epoch, change.members, left, came, recorded_by, change.lsn
        )
        before = change.members


class Moments(NamedTuple):
    """Of one generation, ascending."""

    start_s: float
    confirming_earliest_s: float
    confirming_latest_s: float
    led_s: float
    gone_s: float
    next_s: float
    """The next generation's start, or the end of it all."""


def moments(generations: Sequence[Generation], end_s: float = 0.0) -> tuple[Moments, ...]:
    """The one place that says when what began, and the next ended; `generations` ascending, and so is what is returned.

    Clocks of brokers differ, so times may be out of order: each moment then is as late as the one before it.
    """
    return tuple(
        _moments(generation, start_s, next_s)
        for generation, (start_s, next_s) in zip(generations, pairwise(_starts(generations, end_s)), strict=True)
    )


def _moments(generation: Generation, start_s: float, next_s: float) -> Moments:
    earliest_s, latest_s = generation.confirming_s
    led_s, gone_s = generation.led.at_s, next_s if generation.gone is None else generation.gone.at_s
    low_s = _between(start_s, earliest_s, next_s)
    high_s = _between(low_s, min(latest_s, max(gone_s, led_s)), next_s)
    led_s = _between(high_s, led_s, next_s)
    return Moments(start_s, low_s, high_s, led_s, _between(led_s, gone_s, next_s), next_s)


def _starts(generations: Sequence[Generation], end_s: float) -> list[float]:
    """Of each generation, ascending, and the end of it all."""
    starts: list[float] = []
    for generation in generations:
        starts.append(max([generation.started_s, *starts[-1:]]))
    if generations:
        last = generations[-1]
        starts.append(max(starts[-1], last.led.at_s, end_s if last.gone is not None else 0.0))
    return starts


def _between(low: float, value: float, high: float) -> float:
    return min(max(low, value), high)


_SERVICES = (
    Availability.WAITING,
    Availability.UNCERTAIN,
    Availability.SERVING,
    Availability.UNCERTAIN,
    Availability.NOBODY,
)
"""Between the Moments."""


def periods(generations: Sequence[Generation], end_s: float = 0.0) -> tuple[Period, ...]:
    """All time from the first to the last of the moments, in order; none is empty."""
    return tuple(
        Period(begin_s, until_s, service, generation.number, generation.primary)
        for generation, times in zip(generations, moments(generations, end_s), strict=True)
        for service, (begin_s, until_s) in zip(_SERVICES, pairwise(times), strict=True)
        if until_s > begin_s
    )


def outages(pieces: Sequence[Period], generations: Sequence[Generation]) -> Iterator[Outage]:
    """Runs of pieces in which nobody certainly served."""
    signs = {generation.number: generation for generation in generations}
    run: list[Period] = []
    served: Generation | None = None
    for piece in (*pieces, None):
        if piece is not None and piece.service is not Availability.SERVING:
            run.append(piece)
            continue
        if run:
            yield _outage(run, served, run[-1].generation if piece is None else piece.generation)
        run = []
        served = None if piece is None else signs[piece.generation]


def _outage(run: Sequence[Period], served: Generation | None, generation: int) -> Outage:
    certain_s = sum(piece.seconds for piece in run if piece.service is not Availability.UNCERTAIN)
    uncertain_s = sum(piece.seconds for piece in run if piece.service is Availability.UNCERTAIN)
    last_led, gone = BoundSource.NOTHING, BoundSource.NOTHING
    if served is not None:
        last_led = served.led.evidence
        gone = BoundSource.NEXT_GENERATION if served.gone is None else served.gone.evidence
    return Outage(run[0].begin_s, run[-1].end_s, certain_s, certain_s + uncertain_s, generation, last_led, gone)


def phases(generations: Sequence[Generation], end_s: float = 0.0) -> Iterator[Phases | None]:
    """Of each generation; None for the first, because nothing is said of the time before it."""
    before: Moments | None = None
    for generation, times in zip(generations, moments(generations, end_s), strict=True):
        if before is None:
            yield None
        else:
            work_s, message_s = generation.first_work_s, generation.first_message_s
            yield Phases(
                before.next_s - before.gone_s,
                before.next_s - before.led_s,
                times.confirming_earliest_s - times.start_s,
                times.confirming_latest_s - times.start_s,
                None if work_s is None else max(0.0, work_s - times.start_s),
                None if message_s is None else max(0.0, message_s - times.start_s),
            )
        before = times


def times_in_states(
    pieces: Sequence[Period], memberships: Sequence[InSyncSetChange]
) -> tuple[TimeInStates, ...]:  # fmt: skip
    """For each broker that is named anywhere; both ascending."""
    names = {piece.primary for piece in pieces} | {name for change in memberships for name in change.members}
    spent = {broker: dict.fromkeys(TimeInStates._fields[1:], 0.0) for broker in sorted(names)}
    for piece in _cut(pieces, [change.at_s for change in memberships]):
        members = next((change.members for change in reversed(memberships) if change.at_s <= piece.begin_s), ())
        for broker, times in spent.items():
            times[_state(broker, piece, members)] += piece.seconds
    return tuple(TimeInStates(broker, **times) for broker, times in spent.items())


def _cut(pieces: Sequence[Period], moments: Sequence[float]) -> Iterator[Period]:
    """The pieces, and none goes on beyond one of the moments."""
    for piece in pieces:
        within = sorted({moment for moment in moments if piece.begin_s < moment < piece.end_s})
        for begin_s, end_s in pairwise([piece.begin_s, *within, piece.end_s]):
            yield piece._replace(begin_s=begin_s, end_s=end_s)


_AS_PRIMARY = {
    Availability.SERVING: "primary_s",
    Availability.WAITING: "waiting_s",
    Availability.UNCERTAIN: "uncertain_s",
    Availability.NOBODY: "apart_s",
}


def _state(broker: str, piece: Period, members: Sequence[str]) -> str:
    if piece.primary == broker:
        return _AS_PRIMARY[piece.service]
    return "ready_s" if broker in members else "apart_s"
