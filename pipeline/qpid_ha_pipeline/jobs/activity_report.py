"""What happened to a cluster as one HTML page for people: what went through its queues, and who led meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_pipeline.journal.stores import default_first

from .activity import PERCENTILES, SHOWN_QUEUES, Activity, Buckets, Flow, QueueTotals
from .client_gaps import ClientGap
from .drawing import (
    COLOURS,
    Axis,
    Series,
    document,
    facts_table,
    lines,
    span_text,
    stacked,
    table,
    time_text,
    value_text,
)
from .failover_report import (
    client_section,
    drawing,
    facts,
    generation_section,
    group_section,
    lag_section,
    outage_section,
    state_section,
    title_of,
)
from .overview import overview, overview_section
from .timeline import Availability, Timeline

SHOWN_CLUSTERS: Final = 20
_OTHERS: Final = "others"
_LATENCY_STYLES: Final = ("s2", "s0", "s1", "s8")
_LIMITS: Final = (
    "From the journals of brokers: durable messages alone, at the times at which a broker wrote them down. Depth is"
    " that at the end of each interval. Latency is the time from enqueue to dequeue of messages that were consumed, by"
    " the interval in which they were; percentiles are exact to a ten-thousandth of the rank. Light red: nobody served,"
    " for certain; a thin line is the end of an outage, of which the beginning may be uncertain."
)


def report(
    activities: Sequence[Activity], timelines: Sequence[Timeline], gaps: Sequence[ClientGap] | None = None
) -> str:
    """The whole page; its size does not depend on how many queues there are, nor on how long it was."""
    led = {(timeline.cluster, timeline.set): timeline for timeline in timelines}
    active = {(activity.cluster, activity.set): activity for activity in activities}
    logs = sorted({*led, *active}, key=lambda log: (default_first(log[1]), log[0]))
    body = "".join(_section(title_of(*log), active.get(log), led.get(log)) for log in logs[:SHOWN_CLUSTERS])
    if len(logs) > SHOWN_CLUSTERS:
        unit = "clusters" if all(name in ("", DEFAULT_SET) for _, name in logs) else "resource sets"
        body += f'<p class="note">And {len(logs) - SHOWN_CLUSTERS} {unit} more.</p>'
    sets = overview_section(overview(timelines, activities))
    return document("Cluster report", sets + (body or "<p>These journals hold nothing.</p>") + client_section(gaps))


def _section(title: str, activity: Activity | None, timeline: Timeline | None) -> str:
    if timeline is not None and not timeline.generations:
        timeline = None
    axis = _axis(activity, timeline)
    rows = [] if timeline is None else facts(timeline)
    if activity is not None:
        rows = [*_facts(activity), *rows]
    parts = [f"<h2>{escape(title)}</h2>", facts_table(rows)]
    if timeline is not None and axis is not None and timeline.is_group:
        parts += [drawing(timeline, axis), group_section(timeline.group_changes)]
    elif timeline is not None and axis is not None:
        parts += [
            "<h3>Leadership</h3>",
            drawing(timeline, axis),
            outage_section(timeline.outages),
            generation_section(timeline),
        ]
    if activity is not None:
        parts += [_charts(activity, _marks(timeline)), _tables(activity)]
    if timeline is not None and not timeline.is_group:
        parts += [state_section(timeline), lag_section(timeline.lags)]
    return "".join((*parts, f'<p class="note">{_LIMITS}</p>'))


def _axis(activity: Activity | None, timeline: Timeline | None) -> Axis | None:
    """The time axis of the queues, if something went through them, so that all drawings lie one below the other."""
    if activity is not None:
        return Axis(activity.buckets.begin_s, activity.buckets.end_s)
    if timeline is not None and timeline.span_s:
        return Axis(timeline.periods[0].begin_s, timeline.periods[-1].end_s)
    return None


def _marks(timeline: Timeline | None) -> list[Axis]:
    """When certainly nobody served, and where an outage ended."""
    if timeline is None:
        return []
    return [
        Axis(piece.begin_s, piece.end_s) for piece in timeline.periods
        if piece.service in (Availability.NOBODY, Availability.WAITING)
    ] + [Axis(outage.end_s, outage.end_s) for outage in timeline.outages]  # fmt: skip


def _facts(activity: Activity) -> list[tuple[str, str]]:
    total, buckets = activity.total, activity.buckets
    return [
        ("from", f"{time_text(buckets.begin_s)} UTC"),
        ("to", f"{time_text(buckets.end_s)} UTC, in intervals of {span_text(buckets.width_s)}"),
        ("queues", str(activity.queue_count)),
        ("messages in", f"{sum(total.messages_in):,.0f}, {value_text(sum(total.bytes_in))}B"),
        ("messages out", f"{sum(total.messages_out):,.0f}, {value_text(sum(total.bytes_out))}B"),
        ("messages in queues at the end", f"{total.depth[-1]:,.0f}"),
    ]


def _charts(activity: Activity, marks: Sequence[Axis]) -> str:
    axis, width_s = Axis(activity.buckets.begin_s, activity.buckets.end_s), activity.buckets.width_s

    def chart(title: str, unit: str, field: str, scale: float) -> str:
        def values(flow: Flow) -> list[float]:
            return [value * scale for value in getattr(flow, field)]

        return stacked(title, _series(activity, values), axis, unit, marks)

    return "".join((
        "<h3>Queues</h3>",
        chart("Messages in, per second", "/s", "messages_in", 1 / width_s),
        chart("Messages out, per second", "/s", "messages_out", 1 / width_s),
        chart("Bytes in, per second", "B/s", "bytes_in", 1 / width_s),
        chart("Bytes out, per second", "B/s", "bytes_out", 1 / width_s),
        chart("Depth in messages", "", "depth", 1.0),
        chart("Depth in bytes", "B", "depth_bytes", 1.0),
        lines("Latency from enqueue to dequeue", _latencies(activity), axis, "s", marks),
    ))  # fmt: skip


def _series(activity: Activity, values: Callable[[Flow], list[float]]) -> list[Series]:
    """The queues that have most of it, each in its colour, and the others as one."""
    by_queue = {name: values(flow) for name, flow in activity.queues.items()}
    first = sorted(by_queue, key=lambda name: (-sum(by_queue[name]), name))[:SHOWN_QUEUES]
    series = [Series(name, f"s{place}", by_queue[name]) for place, name in enumerate(first) if any(by_queue[name])]
    rest = values(activity.total)
    for line in series:
        rest = [max(0.0, whole - (part or 0.0)) for whole, part in zip(rest, line.values, strict=True)]
    if activity.queue_count > len(series) and any(value > 1e-9 for value in rest):
        series.append(Series(_OTHERS, f"s{COLOURS - 1}", rest))
    return series


def _latencies(activity: Activity) -> list[Series]:
    return [
        Series(_percentile(value), style, [bucket[place] if bucket else None for bucket in activity.latencies_s])
        for place, (value, style) in enumerate(zip(PERCENTILES, _LATENCY_STYLES, strict=True))
    ]


def _percentile(value: float) -> str:
    return "maximum" if value >= 1 else f"p{value * 100:g}"


def _tables(activity: Activity) -> str:
    head = ("queue", "in", "in per s", "out", "bytes in", "bytes out", "depth: first", "last", "highest",
            *(f"latency {_percentile(value)}" for value in PERCENTILES))  # fmt: skip
    parts = []
    for title, rows in {
        "messages": activity.by_messages, "depth": activity.by_depth, "bytes": activity.by_bytes,
    }.items():  # fmt: skip
        queues = table(head, (_line(row, activity.buckets) for row in rows))
        parts.append(f"<h3>Queues with the most {title}</h3>{queues}")
    return "".join(parts)


def _line(row: QueueTotals, buckets: Buckets) -> tuple[str, ...]:
    span_s = buckets.number * buckets.width_s
    latencies = [span_text(value) for value in row.latencies_s] or [""] * len(PERCENTILES)
    return (
        row.queue, f"{row.messages_in:,}", value_text(row.messages_in / span_s), f"{row.messages_out:,}",
        f"{value_text(row.bytes_in)}B", f"{value_text(row.bytes_out)}B", f"{row.first_depth:,}", f"{row.last_depth:,}",
        f"{row.highest_depth:,}", *latencies,
    )  # fmt: skip
