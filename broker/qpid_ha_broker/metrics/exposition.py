"""The text that Prometheus reads (format 0.0.4), in pieces: whoever sends it can do something else between two of them.

Source: Prometheus, "Exposition formats", text-based format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from qpid_ha_broker.metrics.families import Family, FamilyKind
from qpid_ha_broker.metrics.histogram import Histogram

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PIECE_LINES: Final = 200
"""So many lines make a piece of a family with a sample for each queue."""

LabelValues = tuple[str, ...]
Samples = Mapping[LabelValues, float | Histogram]
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """`{name="value",...}`; empty for none. A lone surrogate, which UTF-8 has no bytes for, becomes a question mark."""
    if not names:
        return ""
    pairs = ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}".encode("utf-8", "replace").decode("utf-8")


def header(family: Family) -> str:
    """The two lines before the samples."""
    return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"


def family_text(family: Family, samples: Samples) -> str:
    """A family with few samples; empty if there is none."""
    if not samples:
        return ""
    lines = [header(family)]
    for values, value in samples.items():
        labels = label_text(family.labels, values)
        if isinstance(value, Histogram):
            lines += _histogram_lines(family.name, value)
        else:
            lines.append(f"{family.name}{labels} {value!r}\n")
    return "".join(lines)


def _histogram_lines(name: str, histogram: Histogram) -> Iterator[str]:
    so_far = 0
    counts = list(histogram.counts)  # another thread may go on counting: the buckets and the count have to agree
    for bound, count in zip((*map(repr, histogram.bounds), "+Inf"), counts, strict=True):
        so_far += count
        yield f'{name}_bucket{{le="{bound}"}} {so_far}\n'
    yield f"{name}_sum {histogram.sum!r}\n"
    yield f"{name}_count {so_far}\n"


def column_pieces(family: Family, labels: Sequence[str], values: Iterable[float]) -> Iterator[str]:
    """A family with a value for each of `labels`, which are texts by `label_text`, some lines at a time."""
    if not labels:
        return
    yield header(family)
    name, lines = family.name, []
    for text, value in zip(labels, values, strict=True):
        lines.append(f"{name}{text} {value!r}\n")
        if len(lines) == PIECE_LINES:
            yield "".join(lines)
            lines.clear()
    yield "".join(lines)


def check_kind(family: Family, value: float | Histogram) -> None:
    """Raise TypeError for a value that is not of the family's kind."""
    if isinstance(value, Histogram) is not (family.kind is FamilyKind.HISTOGRAM):
        raise TypeError(f"{family.name} is a {family.kind}, and {value!r} is none")
