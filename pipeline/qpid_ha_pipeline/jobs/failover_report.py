"""Timelines as one HTML page that needs nothing else: tables, and drawings as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from .failovers import PERCENTILES
from .timeline import Generation, Lag, Timeline

_WIDTH, _ROW, _LEFT = 900, 26, 120
_LED, _GAP, _IN_SYNC = "#2b6cb0", "#c53030", "#bee3f8"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; color: #1a202c }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2rem; overflow-wrap: anywhere }
table { border-collapse: collapse; margin: .7rem 0 } th, td { padding: .2rem .8rem; border-bottom: 1px solid #e2e8f0 }
th { text-align: left } td.number { text-align: right; font-variant-numeric: tabular-nums }
svg { max-width: 100%; height: auto } svg text { font: 12px system-ui, sans-serif; fill: #1a202c }
"""


_LIMITS = (
    "Journals do not tell when a primary died, only what it wrote last; nor of a broker that is neither primary nor in"
    " the in-sync set whether it was connecting, catching up, stopping or gone; nor what clients saw. Times of"
    " different brokers are as good as their clocks agree."
)


NO_GENERATION = (
    "No generation began in what is left of these journals: what is older was consolidated; a larger"
    " store.consolidate-at keeps more."
)


def page(timelines: Sequence[Timeline]) -> str:
    """The whole report."""
    body = "".join(_section(timeline) for timeline in timelines) or "<p>These journals tell of no generation.</p>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Failovers</title>'
        f"<style>{_STYLE}</style></head><body><h1>Failovers</h1>{body}</body></html>\n"
    )


def _section(timeline: Timeline) -> str:
    title = f"<h2>Cluster {escape(timeline.cluster or 'without a name')}</h2>"
    if not timeline.generations:
        return f"{title}<p>{NO_GENERATION}</p>"
    failovers = timeline.generations[1:]
    facts = [
        ("generations", str(len(timeline.generations))),
        ("time from the first to the last event", _span(timeline.span_s)),
        ("without a primary, at most", _span(timeline.without_primary_s)),
        ("availability, at least", f"{timeline.availability:.4%}"),
    ]
    return "".join((
        title,
        _table((), facts),
        _drawing(timeline),
        "<h3>Generations</h3>",
        _table(
            (
                "generation", "primary", "began", "events", "first LSN", "nobody led", "until work went on",
                "until a new message", "cause",
            ),
            (_line(each) for each in timeline.generations),
        ),
        _bars(failovers),
        "<h3>Time in each state</h3>",
        _table(
            ("broker", "primary", "ready (in the in-sync set)", "silent: led, or was gone", "neither"),
            ((each.broker, *(_span(value) for value in each[1:])) for each in timeline.states),
        ),
        "<h3>Replication lag of backups in the in-sync set, in seconds</h3>",
        _table(
            ("backup", "events", *(f"p{percentile * 100:g}" for percentile in PERCENTILES), "late, being away"),
            (_lag(lag) for lag in timeline.lags),
        ),
        f"<p>{_LIMITS}</p>",
    ))  # fmt: skip


def _line(each: Generation) -> tuple[str, ...]:
    cause = f"{each.cause} (forced)" if each.forced else each.cause
    return (
        str(each.number), each.primary, _time(each.started_s), str(each.events), str(each.first_lsn),
        _span(each.detection_s), _span(each.promotion_s), "" if each.publishing_s is None else _span(each.publishing_s),
        cause,
    )  # fmt: skip


def _lag(lag: Lag) -> tuple[str, ...]:
    percentiles = [f"{value:.3f}" for value in lag.percentiles_s] or [""] * len(PERCENTILES)
    return (lag.broker, str(lag.events), *percentiles, str(lag.late_events))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    top = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>" if head else ""
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f"<table>{top}{lines}</table>"


def _cell(value: str) -> str:
    is_number = value[:1].isdigit()
    return f'<td class="number">{escape(value)}</td>' if is_number else f"<td>{escape(value)}</td>"


def _drawing(timeline: Timeline) -> str:
    """A row for each broker: when it led (dark), and when it was in sync (light)."""
    begin, span = timeline.generations[0].started_s, max(timeline.span_s, 0.001)
    brokers = sorted({each.primary for each in timeline.generations} | {
        member for each in timeline.memberships for member in each.members
    })  # fmt: skip
    shapes = []

    def bar(broker: str, start_s: float, end_s: float, colour: str, title: str) -> None:
        left = _LEFT + (start_s - begin) / span * (_WIDTH - _LEFT)
        width = max((end_s - start_s) / span * (_WIDTH - _LEFT), 1)
        top = brokers.index(broker) * _ROW + 4
        shapes.append(
            f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 8}" fill="{colour}">'
            f"<title>{escape(title)}</title></rect>"
        )

    ends = [*(each.at_s for each in timeline.memberships[1:]), begin + span]
    for change, end in zip(timeline.memberships, ends, strict=False):
        for member in change.members:
            bar(member, change.at_s, end, _IN_SYNC, f"{member} in sync, epoch {change.epoch}")
    for each in timeline.generations:
        bar(each.primary, each.started_s, each.last_s, _LED, f"generation {each.number}: {each.primary} led")
    names = "".join(f'<text x="0" y="{row * _ROW + 17}">{escape(broker)}</text>' for row, broker in enumerate(brokers))
    height = len(brokers) * _ROW + 4
    return f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">{names}{"".join(shapes)}</svg>'


def _bars(failovers: Sequence[Generation]) -> str:
    """How long each failover took, and of what that was made."""
    if not failovers:
        return ""
    longest = max(each.detection_s + each.promotion_s for each in failovers) or 1.0
    scale = (_WIDTH - _LEFT - 80) / longest
    shapes = []
    for row, each in enumerate(failovers):
        top, first, second = row * _ROW + 4, each.detection_s * scale, each.promotion_s * scale
        total = _span(each.detection_s + each.promotion_s)
        shapes.append(
            f'<text x="0" y="{top + 13}">generation {each.number}</text>'
            f'<rect x="{_LEFT}" y="{top}" width="{max(first, 1):.1f}" height="{_ROW - 8}" fill="{_GAP}"/>'
            f'<rect x="{_LEFT + first:.1f}" y="{top}" width="{max(second, 1):.1f}" height="{_ROW - 8}" fill="{_LED}"/>'
            f'<text x="{_LEFT + first + second + 6:.1f}" y="{top + 13}">{total}</text>'
        )
    height = len(failovers) * _ROW + 4
    return (
        "<h3>Failover times</h3><p>Red: from the last event of the old primary to the new generation; blue: from there"
        " until the first event of a client.</p>"
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">{"".join(shapes)}</svg>'
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
