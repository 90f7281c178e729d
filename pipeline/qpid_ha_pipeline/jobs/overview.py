"""A line for each resource set, and one for all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_pipeline.journal.stores import default_first

from .activity import Activity
from .drawing import range_text, table, value_text
from .timeline import Availability, Timeline

ALL = "all"
"""What the sum has in place of a set's name; it has no cluster."""
SHOWN_SETS = 100
"""On a page."""


class SetOverview(NamedTuple):
    """Of one resource set, or the sum of several. What no journal tells is 0."""

    cluster: str
    set: str
    queues: int
    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    waiting: int
    """Messages in queues at the end."""
    generations: int
    span_s: float
    """From the first generation to the last sign of a primary; of several sets added up, as are outages."""
    outage_at_least_s: float
    outage_at_most_s: float

    @property
    def availability_at_least(self) -> float:
        """The part of the span in which a primary served, for certain."""
        return 1.0 - self.outage_at_most_s / self.span_s if self.span_s > 0 else 1.0

    @property
    def availability_at_most(self) -> float:
        """The availability, where all that is uncertain was service."""
        return 1.0 - self.outage_at_least_s / self.span_s if self.span_s > 0 else 1.0


def overview(timelines: Sequence[Timeline], activities: Sequence[Activity] = ()) -> list[SetOverview]:
    """A line for each set, `default` first, and behind them their sum; nothing where there is no set but `default`."""
    led = {(timeline.cluster, timeline.set): timeline for timeline in timelines}
    active = {(activity.cluster, activity.set): activity for activity in activities}
    logs = sorted({*led, *active}, key=lambda log: (default_first(log[1]), log[0]))
    lines = [_line(*log, led.get(log), active.get(log)) for log in logs]
    if all(line.set == DEFAULT_SET for line in lines):
        return []
    sums = (sum(values) for values in zip(*(line[2:] for line in lines), strict=True))
    return [*lines, SetOverview("", ALL, *sums)]


def _line(cluster: str, name: str, timeline: Timeline | None, activity: Activity | None) -> SetOverview:
    through, led = (0, 0, 0, 0, 0, 0), (0, 0.0, 0.0, 0.0)
    if activity is not None:
        flow = activity.total
        through = (
            activity.queue_count,
            round(sum(flow.messages_in)),
            round(sum(flow.messages_out)),
            round(sum(flow.bytes_in)),
            round(sum(flow.bytes_out)),
            round(flow.depth[-1]),
        )
    if timeline is not None:
        outage_s = timeline.time_s(Availability.NOBODY, Availability.WAITING)
        uncertain_s = timeline.time_s(Availability.UNCERTAIN)
        led = (len(timeline.generations), timeline.span_s, outage_s, outage_s + uncertain_s)
    return SetOverview(cluster, name or DEFAULT_SET, *through, *led)


def overview_section(lines: Sequence[SetOverview]) -> str:
    """As a table, in HTML; empty where there is one set."""
    if not lines:
        return ""
    has_queues = any(line.queues for line in lines)
    through = ("queues", "messages in", "messages out", "bytes in", "bytes out", "in queues at the end")
    head = ("set", *(through if has_queues else ()), "generations", "without service", "availability")
    *sets, whole = lines
    shown = (*sets[:SHOWN_SETS], whole)
    more = f'<p class="note">The first {SHOWN_SETS} of {len(sets)}, and all.</p>' if len(sets) > SHOWN_SETS else ""
    return f"<h2>All sets</h2>{more}{table(head, (_cells(line, has_queues=has_queues) for line in shown))}"


def _cells(line: SetOverview, *, has_queues: bool) -> tuple[str, ...]:
    through = (
        f"{line.queues:,}", f"{line.messages_in:,}", f"{line.messages_out:,}", f"{value_text(line.bytes_in)}B",
        f"{value_text(line.bytes_out)}B", f"{line.waiting:,}",
    )  # fmt: skip
    least, most = f"{line.availability_at_least:.4%}", f"{line.availability_at_most:.4%}"
    return (
        line.set,
        *(through if has_queues else ()),
        str(line.generations),
        range_text(line.outage_at_least_s, line.outage_at_most_s),
        most if least == most else f"{least} to {most}",
    )
