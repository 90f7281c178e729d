"""HTML pages with tables and SVG that need nothing else: no scripts, no fonts, no network.

Colours are classes, so that one style sheet has them for light and dark screens and for paper. A drawing is never
narrower than its text can be read: on a phone it scrolls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from itertools import accumulate
from math import ceil, floor, log10
from typing import Final, NamedTuple

WIDTH: Final = 900
_LEFT: Final = 120
"""Where the time axis begins: before it lie names of rows, or the values of an axis."""
_RIGHT: Final = 12
_ROW: Final = 26
_PLOT: Final = 150
_AXIS: Final = 22
_LINE: Final = 17
COLOURS: Final = 9
"""Of series; the last one is for the others."""

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1a202c; --paper: #fff; --faint: #e2e8f0; --soft: #64748b;
 --serving: #2b6cb0; --in-sync: #bee3f8; --waiting: #d69e2e; --uncertain: #a0aec0; --nobody: #c53030;
 --s0: #2b6cb0; --s1: #dd6b20; --s2: #2f855a; --s3: #b83280; --s4: #6b46c1; --s5: #0987a0; --s6: #975a16; --s7: #c53030;
 --s8: #94a3b8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --paper: #11151c; --faint: #2d3748; --soft: #94a3b8;
 --serving: #63b3ed; --in-sync: #2a4365; --waiting: #ecc94b; --uncertain: #4a5568; --nobody: #fc8181;
 --s0: #63b3ed; --s1: #f6ad55; --s2: #68d391; --s3: #f687b3; --s4: #b794f4; --s5: #4fd1c5; --s6: #d69e2e; --s7: #fc8181;
 --s8: #64748b } }
* { box-sizing: border-box }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; padding: 0 1rem; max-width: 66rem;
 color: var(--ink); background: var(--paper) }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2rem; overflow-wrap: anywhere } h3 { font-size: 1rem }
p { max-width: 46rem } .note { color: var(--soft) } .wide { overflow-x: auto }
table { border-collapse: collapse; margin: .7rem 0; font-size: 14px } .facts td { max-width: none }
.wide table { width: max-content } .wide th { max-width: 9rem }
th, td { padding: .2rem .6rem; border-bottom: 1px solid var(--faint); text-align: left; vertical-align: top }
td { overflow-wrap: break-word; max-width: 22rem } th { font-weight: 600 }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
figure { margin: .7rem 0 1.2rem } figcaption { font-weight: 600 }
.key { display: flex; flex-wrap: wrap; gap: .1rem 1rem; font-size: 13px }
.key span { overflow-wrap: anywhere } .key svg { width: 12px; height: 12px; min-width: 0; margin-right: .3rem }
svg { display: block; width: 100%; height: auto; min-width: 38rem }
.key span svg { display: inline-block; vertical-align: -1px }
svg text { font: 12px system-ui, sans-serif; fill: var(--ink) } svg .tick { fill: var(--soft) }
svg .end { text-anchor: end } svg .middle { text-anchor: middle }
svg .grid { stroke: var(--faint); stroke-width: 1 } svg .line { fill: none; stroke-width: 1.6 }
.serving { fill: var(--serving) } .in-sync { fill: var(--in-sync) } .waiting { fill: var(--waiting) }
.uncertain { fill: var(--uncertain) } .nobody { fill: var(--nobody) } .outage { fill: var(--nobody); opacity: .16 }
"""
_SERIES_STYLE: Final = "".join(
    f".s{place} {{ fill: var(--s{place}) }} .line.s{place} {{ fill: none; stroke: var(--s{place}) }}\n"
    for place in range(COLOURS)
)

_PRINT_STYLE: Final = """
@media print { :root { color-scheme: light; --ink: #000; --paper: #fff; --faint: #ccc; --soft: #444 }
 body { margin: 0; max-width: none; font-size: 11px }
 table { font-size: 8px } .wide table { width: auto } th, td { padding: .1rem .3rem }
 figure, tr { break-inside: avoid } .wide { overflow: visible } svg { min-width: 0 }
 * { print-color-adjust: exact; -webkit-print-color-adjust: exact } }
"""
"""Behind the others, because it takes something back from them."""


class Band(NamedTuple):
    """A bar in a row of `bands`, from one moment to another; `style`: a class of the style sheet."""

    row: str
    begin_s: float
    end_s: float
    style: str
    title: str


class Axis(NamedTuple):
    """The time that a drawing shows, in seconds since the epoch."""

    begin_s: float
    end_s: float

    def at(self, moment_s: float) -> float:
        """Where that is; what lies outside is at the edge."""
        part = (moment_s - self.begin_s) / max(self.end_s - self.begin_s, 0.001)
        return _LEFT + min(max(part, 0.0), 1.0) * (WIDTH - _LEFT - _RIGHT)


def document(title: str, body: str) -> str:
    """A whole page."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}{_SERIES_STYLE}{_PRINT_STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Series that begin with a digit stand right."""
    top = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>" if head else ""
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{top}{lines}</table></div>'


def facts_table(rows: Iterable[tuple[str, str]]) -> str:
    """Names with their values."""
    lines_ = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    return f'<table class="facts">{lines_}</table>'


def _cell(value: str) -> str:
    is_number = value[:1].isdigit()
    return f'<td class="number">{escape(value)}</td>' if is_number else f"<td>{escape(value)}</td>"


def key(entries: Iterable[tuple[str, str]]) -> str:
    """Which colour is what: class and name."""
    return f'<div class="key">{"".join(_key_entry(*entry) for entry in entries)}</div>'


def _key_entry(style: str, name: str) -> str:
    square = f'<svg viewBox="0 0 12 12" aria-hidden="true"><rect width="12" height="12" class="{style}"/></svg>'
    return f"<span>{square}{escape(name)}</span>"


def _figure(title: str, height: int, shapes: str, legend: str) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption>{legend}<div class="wide">'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">{shapes}</svg></div></figure>'
    )


def bands(title: str, rows: Sequence[str], bars: Iterable[Band], axis: Axis, legend: str = "") -> str:
    """A row for each name, with bars over a time axis; what comes later lies over what came before.

    Of bars of one kind that would lie on each other only the first is drawn, so that there are no more than pixels.
    """
    tops = {name: place * _ROW for place, name in enumerate(rows)}
    height = len(rows) * _ROW
    shapes = [_time_axis(axis, height), _left_names(rows)]
    drawn = set()
    for bar in bars:
        left, right = axis.at(bar.begin_s), axis.at(bar.end_s)
        place = (bar.row, bar.style, round(left), round(right))
        if place in drawn or bar.end_s < axis.begin_s or bar.begin_s > axis.end_s:
            continue
        drawn.add(place)
        shapes.append(
            f'<rect x="{left:.1f}" y="{tops[bar.row] + 4}" width="{max(right - left, 1):.1f}" height="{_ROW - 8}"'
            f' class="{bar.style}"><title>{escape(bar.title)}</title></rect>'
        )
    return _figure(title, height + _AXIS, "".join(shapes), legend)


def _left_names(rows: Sequence[str]) -> str:
    return "".join(
        f'<text x="0" y="{place * _ROW + _LINE}">{escape(_short(name, _LINE))}</text>'
        for place, name in enumerate(rows)
    )


def parts(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, str]], str]], legend: str = "") -> str:
    """A bar for each row that is made of parts: name, lengths with their classes, and what is written behind it."""
    longest = max((sum(length for length, _ in lengths) for _, lengths, _ in rows), default=0.0) or 1.0
    scale = (WIDTH - _LEFT - 160) / longest
    shapes = [_left_names([name for name, _, _ in rows])]
    for place, (_, lengths, text) in enumerate(rows):
        left, top = float(_LEFT), place * _ROW + 4
        for length, style in lengths:
            width = length * scale
            shapes.append(f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_ROW - 8}" class="{style}"/>')
            left += width
        shapes.append(f'<text x="{left + 6:.1f}" y="{top + 13}">{escape(text)}</text>')
    return _figure(title, len(rows) * _ROW + 4, "".join(shapes), legend)


def _time_axis(axis: Axis, height: int) -> str:
    """Lines over `height` at round times of UTC, and the times below."""
    shapes = []
    for moment_s, text in time_ticks(axis.begin_s, axis.end_s):
        left = axis.at(moment_s)
        shapes.append(f'<line x1="{left:.1f}" x2="{left:.1f}" y1="0" y2="{height}" class="grid"/>')
        side = "tick end" if left > WIDTH - 40 else "tick middle"
        shapes.append(f'<text x="{left:.1f}" y="{height + _LINE}" class="{side}">{text}</text>')
    return "".join(shapes)


STEPS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
    10800, 21600, 43200, 86400, 172800, 604800, 2592000, 7776000, 31536000,
)  # fmt: skip


def time_ticks(begin_s: float, end_s: float, most: int = 9) -> list[tuple[float, str]]:
    """Round moments within, at most `most`, and as few letters for each as tell them apart."""
    span_s = max(end_s - begin_s, 0.001)
    step_s = next((step for step in STEPS_S if span_s / step <= most), span_s / most)
    first = ceil(begin_s / step_s)
    moments = [number * step_s for number in range(first, floor(end_s / step_s) + 1)]
    if step_s >= 86400:
        form = "%Y-%m-%d"
    elif step_s >= 60:
        form = "%H:%M" if span_s < 86400 else "%m-%d %H:%M"
    else:
        form = "%H:%M:%S"
    decimals = max(0, -floor(log10(step_s))) if step_s < 1 else 0
    return [(moment, _clock(moment, form, decimals)) for moment in moments[: most + 1]]


def _clock(moment_s: float, form: str, decimals: int) -> str:
    if not decimals:
        return _date(round(moment_s)).strftime(form)
    whole, part = divmod(round(moment_s * 10**decimals), 10**decimals)
    return f"{_date(whole).strftime(form)}.{part:0{decimals}d}"


def _date(moment_s: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=moment_s)


def time_text(moment_s: float) -> str:
    """To the millisecond, UTC."""
    return _date(moment_s).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def span_text(seconds: float) -> str:
    """As precise as somebody wants it who reads of an outage."""
    if seconds < 120:
        return f"{seconds:.3f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def range_text(low_s: float, high_s: float) -> str:
    """Both bounds, or the one value that they are."""
    low, high = span_text(low_s), span_text(high_s)
    return high if low == high else f"{low} to {high}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# --- values over time


class Series(NamedTuple):
    """A series over equal buckets of time; None: there is no value. `style`: a class of the style sheet."""

    name: str
    style: str
    values: Sequence[float | None]


def lines(title: str, series: Sequence[Series], axis: Axis, unit: str = "", marks: Iterable[Axis] = ()) -> str:
    """A line for each series over the time axis; the buckets divide it equally. `marks`: times with a red shade."""
    highest = max((value for line in series for value in line.values if value is not None), default=0.0)
    shapes = [_marks(marks, axis), _value_axis(highest, unit), _time_axis(axis, _PLOT)]
    shapes += [_polyline(line, axis, highest) for line in series]
    legend = key((line.style, line.name) for line in series) if len(series) > 1 else ""
    return _figure(title, _PLOT + _AXIS, "".join(shapes), legend)


def stacked(title: str, series: Sequence[Series], axis: Axis, unit: str = "", marks: Iterable[Axis] = ()) -> str:
    """An area for each series, one on top of the other, so that the height is the sum."""
    buckets = max((len(line.values) for line in series), default=0)
    tops = list(accumulate(
        series, lambda below, line: [low + (value or 0.0) for low, value in zip(below, line.values, strict=True)],
        initial=[0.0] * buckets,
    ))  # fmt: skip
    highest = max(tops[-1], default=0.0)
    shapes = [_marks(marks, axis), _value_axis(highest, unit), _time_axis(axis, _PLOT)]
    for line, low, high in zip(series, tops, tops[1:], strict=False):
        if any(line.values):
            shapes.append(_area(line, axis, (low, high), highest))
    return _figure(title, _PLOT + _AXIS, "".join(shapes), key((line.style, line.name) for line in series))


def _area(line: Series, axis: Axis, edges: tuple[Sequence[float], Sequence[float]], highest: float) -> str:
    """Steps, because a bucket has one value: a rate that lasted for a moment was not a slope."""
    low, high = ([_height(value, highest) for value in edge] for edge in edges)
    bounds = _bounds(axis, len(low))
    points = [point for place in range(len(high)) for point in
              ((bounds[place], high[place]), (bounds[place + 1], high[place]))]  # fmt: skip
    points += [point for place in reversed(range(len(low))) for point in
               ((bounds[place + 1], low[place]), (bounds[place], low[place]))]  # fmt: skip
    return f'<polygon points="{_points(points)}" class="{line.style}"><title>{escape(line.name)}</title></polygon>'


def _polyline(line: Series, axis: Axis, highest: float) -> str:
    bounds = _bounds(axis, len(line.values))
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(line.values):
        if value is None:
            pieces.append([])
        else:
            height = _height(value, highest)
            pieces[-1] += [(bounds[place], height), (bounds[place + 1], height)]
    return "".join(
        f'<polyline points="{_points(piece)}" class="line {line.style}"><title>{escape(line.name)}</title></polyline>'
        for piece in pieces if piece
    )  # fmt: skip


def _bounds(axis: Axis, buckets: int) -> list[float]:
    step = (WIDTH - _RIGHT - _LEFT) / max(buckets, 1)
    return [_LEFT + place * step for place in range(buckets + 1)]


def _height(value: float, highest: float) -> float:
    return _PLOT - value / _ceiling(highest) * (_PLOT - 8)


def _points(points: Iterable[tuple[float, float]]) -> str:
    """Without those that lie between two of the same height."""
    kept: list[tuple[float, float]] = []
    for point in points:
        if len(kept) > 1 and kept[-1][1] == kept[-2][1] == point[1]:
            kept[-1] = point
        else:
            kept.append(point)
    return " ".join(f"{left:.1f},{top:.1f}" for left, top in kept)


def _marks(marks: Iterable[Axis], axis: Axis) -> str:
    return "".join(
        f'<rect x="{axis.at(mark.begin_s):.1f}" y="0" height="{_PLOT}" class="outage"'
        f' width="{max(axis.at(mark.end_s) - axis.at(mark.begin_s), 1.5):.1f}"><title>outage</title></rect>'
        for mark in marks
    )


def _ceiling(highest: float) -> float:
    return highest if highest > 0 else 1.0


def _value_axis(highest: float, unit: str) -> str:
    """Lines at nought and at two or more round values."""
    shapes = []
    for value in value_ticks(highest):
        top = _height(value, highest)
        shapes.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{top:.1f}" y2="{top:.1f}" class="grid"/>')
        text = f"{value_text(value)} {unit}".strip()
        shapes.append(f'<text x="{_LEFT - 6}" y="{max(top + 4, 11):.1f}" class="tick end">{text}</text>')
    return "".join(shapes)


def value_ticks(highest: float, most: int = 4) -> list[float]:
    """Nought and round values up to `highest`."""
    if highest <= 0:
        return [0.0]
    magnitude: float = 10 ** floor(log10(highest / most))
    step = next(factor * magnitude for factor in (1, 2, 5, 10, 20) if highest / (factor * magnitude) <= most)
    return [number * step for number in range(floor(highest / step * (1 + 1e-9)) + 1)]


def value_text(value: float) -> str:
    """Three digits with a prefix: 12.3k."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"
