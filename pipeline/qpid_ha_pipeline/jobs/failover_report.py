"""Timelines as one HTML page that needs nothing else: tables, and drawings as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from qpid_ha_broker.model.logs.log import DEFAULT_SET

from .client_gaps import ClientGap
from .drawing import Axis, Band, bands, document, facts_table, key, parts, range_text, span_text, table, time_text
from .failovers import PERCENTILES
from .overview import overview, overview_section
from .timeline import Availability, Generation, GroupChange, Lag, Outage, Phases, Timeline

MOST_OUTAGES = MOST_GENERATIONS = 100
"""Of more outages the longest are shown, and of more generations the last."""
_LIMITS = (
    "Bounds are what journals and event streams prove. An idle primary writes nothing, so quiet hours before a failover"
    " are uncertain, unless the brokers' state changes are given, too. Of a broker that is neither primary nor in the"
    " in-sync set nobody says whether it was connecting, catching up, stopping or gone. Times of"
    " different brokers are as good as their clocks agree."
)
_GROUP_LIMITS = (
    "A group has no primary: each member in sync serves. A change is shown at the time at which the first member wrote"
    " it down. A group that nobody uses writes nothing, so quiet hours before a change are uncertain. Times of"
    " different brokers are as good as their clocks agree."
)

NO_GENERATION = (
    "No generation began in what is left of these journals: what is older was consolidated; a larger"
    " store.consolidate-at keeps more."
)
_SERVICE_TEXTS = {
    Availability.SERVING: "a primary led",
    Availability.WAITING: "it led, and waited for its in-sync set",
    Availability.UNCERTAIN: "uncertain",
    Availability.NOBODY: "nobody led",
}
_GROUP_SERVICE_TEXTS = {
    Availability.SERVING: "its members served",
    Availability.WAITING: "they waited for one that is in sync",
    Availability.UNCERTAIN: "uncertain",
}
_EVERYBODY = "cluster"


def page(timelines: Sequence[Timeline], gaps: Sequence[ClientGap] | None = None) -> str:
    """The whole report. `gaps`: what clients saw; None: no history was given."""
    body = "".join(section(timeline) for timeline in timelines) or "<p>These journals tell of no generation.</p>"
    return document("Failovers", overview_section(overview(timelines)) + body + client_section(gaps))


def section(timeline: Timeline) -> str:
    """One resource set of a cluster."""
    title = f"<h2>{escape(title_of(timeline.cluster, timeline.set))}</h2>"
    if not timeline.generations:
        return f"{title}<p>{NO_GENERATION}</p>"
    if timeline.is_group:
        shown = (facts_table(facts(timeline)), drawing(timeline), group_section(timeline.group_changes))
        return "".join((title, *shown, f'<p class="note">{_GROUP_LIMITS}</p>'))
    return "".join((
        title,
        facts_table(facts(timeline)),
        drawing(timeline),
        outage_section(timeline.outages),
        generation_section(timeline),
        state_section(timeline),
        lag_section(timeline.lags),
        f'<p class="note">{_LIMITS}</p>',
    ))  # fmt: skip


def title_of(cluster: str, resource_set: str) -> str:
    """As people call it. Of a set other than `default` the identifier is of its own log."""
    name = cluster or "without a name"
    return f"Cluster {name}" if resource_set in ("", DEFAULT_SET) else f"Set {resource_set}, {name}"


def facts(timeline: Timeline) -> list[tuple[str, str]]:
    """Names and values."""
    outage_s = timeline.time_s(Availability.NOBODY, Availability.WAITING)
    uncertain_s = timeline.time_s(Availability.UNCERTAIN)
    return [
        ("generations", str(len(timeline.generations))),
        ("time from the first generation to the last sign", span_text(timeline.span_s)),
        ("without service", range_text(outage_s, outage_s + uncertain_s)),
        ("availability", availability_text(timeline)),
    ]


def availability_text(timeline: Timeline) -> str:
    """Both bounds, or the value on which they agree."""
    least, most = (f"{value:.4%}" for value in timeline.availability)
    return most if least == most else f"{least} to {most}"


def generation_section(timeline: Timeline) -> str:
    """Who began when and why, and how long that took; the last MOST_GENERATIONS."""
    rows = [_line(*pair) for pair in zip(timeline.generations, timeline.phases, strict=True)]
    more = f'<p class="note">The last {MOST_GENERATIONS} of {len(rows)}.</p>' if len(rows) > MOST_GENERATIONS else ""
    head = (
        "generation", "primary", "began", "events", "first LSN", "nobody led before", "waited for its in-sync set",
        "until work", "until a new message", "cause",
    )  # fmt: skip
    return f"<h3>Generations</h3>{more}{table(head, rows[-MOST_GENERATIONS:])}"


def group_section(changes: Sequence[GroupChange]) -> str:
    """Who was in sync in a group since when; the last MOST_GENERATIONS."""
    rows = [
        (
            str(change.epoch), time_text(change.at_s), ", ".join(change.members), ", ".join(change.left),
            ", ".join(change.came), change.recorded_by, str(change.lsn),
        )
        for change in changes
    ]  # fmt: skip
    more = f'<p class="note">The last {MOST_GENERATIONS} of {len(rows)}.</p>' if len(rows) > MOST_GENERATIONS else ""
    head = ("epoch", "when", "in sync", "left", "came", "recorded by", "LSN")
    return f"<h3>Changes of the group</h3>{more}{table(head, rows[-MOST_GENERATIONS:])}"


def state_section(timeline: Timeline) -> str:
    """How long each broker was what."""
    head = ("broker", "primary", "primary, waiting", "ready (in the in-sync set)", "uncertain", "neither")
    return "<h3>Time in each state</h3>" + table(
        head, ((times.broker, *map(span_text, times[1:])) for times in timeline.states)
    )


def _line(generation: Generation, phases: Phases | None) -> tuple[str, ...]:
    cause = f"{generation.cause} (forced)" if generation.forced else generation.cause
    times: tuple[str, ...] = ("",) * 4
    if phases is not None:
        times = (
            range_text(phases.nobody_at_least_s, phases.nobody_at_most_s),
            range_text(phases.waiting_at_least_s, phases.waiting_at_most_s),
            *("" if value is None else span_text(value) for value in (phases.work_s, phases.message_s)),
        )
    return (
        str(generation.number), generation.primary, time_text(generation.started_s), str(generation.events),
        str(generation.first_lsn), *times, cause,
    )  # fmt: skip


def lag_section(lags: Sequence[Lag]) -> str:
    """How far backups were behind."""
    if not lags:
        return ""
    head = ("backup", "events", *(f"p{percentile * 100:g}" for percentile in PERCENTILES), "late, being away")
    return f"<h3>Replication lag of backups in the in-sync set, in seconds</h3>{table(head, map(_lag, lags))}"


def _lag(lag: Lag) -> tuple[str, ...]:
    percentiles = [f"{value:.3f}" for value in lag.percentiles_s] or [""] * len(PERCENTILES)
    return (lag.broker, str(lag.events), *percentiles, str(lag.late_events))


def drawing(timeline: Timeline, axis: Axis | None = None) -> str:
    """A row for the cluster: whether a primary led; and one for each broker: when it led, and when it was in sync."""
    axis = axis or Axis(timeline.periods[0].begin_s if timeline.span_s else timeline.generations[0].started_s,
                        timeline.generations[0].started_s + max(timeline.span_s, 0.001))  # fmt: skip
    brokers = sorted({generation.primary for generation in timeline.generations} | {
        member for change in timeline.memberships for member in change.members
    })  # fmt: skip
    texts = _GROUP_SERVICE_TEXTS if timeline.is_group else _SERVICE_TEXTS
    legend = key([*((service.value, text) for service, text in texts.items()), ("in-sync", "in sync")])
    return bands(
        "Who was in sync" if timeline.is_group else "Who led", [_EVERYBODY, *brokers], _bars(timeline), axis, legend
    )


def _bars(timeline: Timeline) -> Iterator[Band]:
    pieces = timeline.periods
    end_s = pieces[-1].end_s if pieces else timeline.generations[-1].started_s
    ends = [*(change.at_s for change in timeline.memberships[1:]), end_s]
    for change, until_s in zip(timeline.memberships, ends, strict=False):
        for member in change.members:
            yield Band(member, change.at_s, until_s, "in-sync", f"{member} in sync, epoch {change.epoch}")
    for piece in pieces:
        if timeline.is_group:
            text = f"generation {piece.generation}: {_GROUP_SERVICE_TEXTS[piece.service]}"
            yield Band(_EVERYBODY, piece.begin_s, piece.end_s, piece.service, text)
            continue
        text = f"generation {piece.generation}, {piece.primary}: {_SERVICE_TEXTS[piece.service]}"
        yield Band(_EVERYBODY, piece.begin_s, piece.end_s, piece.service, text)
        if piece.service is not Availability.NOBODY:
            yield Band(piece.primary, piece.begin_s, piece.end_s, piece.service, text)


def outage_section(outages: Sequence[Outage]) -> str:
    """How long each lasted, at least and at most, and what says so."""
    if not outages:
        return ""
    shown = sorted(sorted(outages, key=lambda outage: -outage.at_most_s)[:MOST_OUTAGES])
    more = f'<p class="note">The {MOST_OUTAGES} longest of {len(outages)}.</p>' if len(outages) > len(shown) else ""
    rows = [
        (
            f"generation {outage.generation}",
            [(outage.at_least_s, "nobody"), (outage.at_most_s - outage.at_least_s, "uncertain")],
            range_text(outage.at_least_s, outage.at_most_s),
        )
        for outage in shown
    ]
    return "".join((
        "<h3>Outages</h3>", more,
        parts("How long", rows, key([("nobody", "at least"), ("uncertain", "at most")])),
        table(
            ("until generation", "not before", "ended by", "lasted", "the old primary led until", "and was gone by"),
            _outage_lines(shown),
        ),
    ))  # fmt: skip


def _outage_lines(outages: Iterable[Outage]) -> Iterator[tuple[str, ...]]:
    for outage in outages:
        yield (
            str(outage.generation), time_text(outage.begin_s), time_text(outage.end_s),
            range_text(outage.at_least_s, outage.at_most_s), outage.last_led or "-", outage.gone or "-",
        )  # fmt: skip


def client_section(gaps: Sequence[ClientGap] | None) -> str:
    """What clients saw, longest first."""
    if gaps is None:
        return ""
    head = "<h2>What clients saw</h2><p>The longest times in which messages were sent, and none was confirmed.</p>"
    if not gaps:
        return f"{head}<p>No message has both its time of sending and its time of confirmation.</p>"
    rows = ((time_text(gap.begin_s), time_text(gap.end_s), span_text(gap.seconds)) for gap in gaps)
    return head + table(("from, by the clients' clock", "to", "lasted"), rows)
