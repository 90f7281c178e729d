"""Filters that are carried out where the journal is read, so that what they leave out never becomes a row.

Three kinds, from cheap to dear: of what is the same for a whole store (which leaves whole stores out), of names, which
are looked up once and not once per row, and of numbers. What is not here, Spark does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from qpid_ha_broker.events.layout import RecordKind
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.options import JournalOptions

from .records import Ints, Mask
from .survey import SurveyedPiece

CONSTANTS: Final = frozenset({"cluster", "broker", "set"})
TEXTS: Final = frozenset({"event", "queue"})
NUMBERS: Final = frozenset({"generation", "lsn", "queue_id", "message_id"})

_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: lambda text, value: text.startswith(value),
    StringEndsWith: lambda text, value: text.endswith(value),
    StringContains: lambda text, value: value in text,
}
_OF_TEXT: Final = (StringStartsWith, StringEndsWith, StringContains)


def asked_for(options: JournalOptions) -> list[Filter]:
    """The filters that were given as options: they belong to what was loaded, whatever becomes of it."""
    unknown = [event for event in options.events if event.upper() not in RecordKind.__members__]
    if unknown:
        near = get_close_matches(unknown[0].upper(), RecordKind.__members__, n=1)
        hint = f"did you mean {near[0].lower()}?" if near else ", ".join(RecordKind.__members__).lower()
        raise PipelineError(f"event: there is no event {unknown[0]!r}: {hint}")
    filters: list[Filter] = []
    for column, values in (
        ("queue", options.queues), ("event", options.events), ("generation", options.generations),
    ):  # fmt: skip
        if values:
            filters.append(In((column,), tuple(values)))
    if options.from_lsn is not None:
        filters.append(GreaterThanOrEqual(("lsn",), options.from_lsn))
    if options.to_lsn is not None:
        filters.append(LessThanOrEqual(("lsn",), options.to_lsn))
    return filters


class RowFilters:
    """The filters that were taken, by column."""

    def __init__(self) -> None:
        self._by_column: dict[str, list[Filter]] = {}

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take those that can be carried out here; returns the others."""
        left = []
        for each in filters:
            column = _column(each)
            if column is None:
                left.append(each)
            else:
                self._by_column.setdefault(column, []).append(each)
        return left

    def has(self, column: str) -> bool:
        """Whether anything is asked of that column."""
        return column in self._by_column

    def accepts(self, column: str, value: object) -> bool:
        """Whether one value passes; None is null."""
        return all(_holds(each, value) for each in self._by_column.get(column, ()))

    def mask(self, column: str, values: Ints, missing: Mask | None = None) -> Mask:
        """Which of these numbers pass. `missing`: which are null."""
        passing = np.ones(len(values), np.bool_)
        for each in self._by_column.get(column, ()):
            passing &= _mask(each, values, missing)
        return passing

    def may_be_in(self, piece: SurveyedPiece) -> bool:
        """Whether a piece of journal can have LSNs that pass. Only comparisons leave pieces out."""
        if piece.has_local:
            return True
        return all(_overlaps(each, piece.first_lsn, piece.last_lsn) for each in self._by_column.get("lsn", ()))


def _column(given: Filter) -> str | None:
    """The column that a filter is about, if it is one that is carried out here."""
    inner = given.child if isinstance(given, Not) else given
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in CONSTANTS | TEXTS | NUMBERS:
        return None
    if isinstance(inner, _OF_TEXT) and path[0] in NUMBERS:
        return None
    if isinstance(given, Not) and isinstance(inner, In) and None in inner.value:
        return None  # to SQL, nothing is certainly not in such a list
    if type(inner) not in (*_COMPARISONS, In, EqualNullSafe, IsNull, IsNotNull):
        return None
    return str(path[0])


def _holds(given: Filter, value: object) -> bool:
    """SQL's truth: what is unknown, because the value is null, does not pass, nor does its opposite."""
    if isinstance(given, Not):
        if isinstance(given.child, IsNull | IsNotNull | EqualNullSafe):
            return not _holds(given.child, value)
        return value is not None and not _holds(given.child, value)
    if isinstance(given, IsNull):
        return value is None
    if isinstance(given, IsNotNull):
        return value is not None
    if isinstance(given, EqualNullSafe):
        return bool(value == given.value)
    if value is None:
        return False
    if isinstance(given, In):
        return value in given.value
    return bool(_COMPARISONS[type(given)](value, given.value))  # type: ignore[attr-defined]


def _mask(given: Filter, values: Ints, missing: Mask | None) -> Mask:
    if isinstance(given, Not):
        opposite = ~_mask(given.child, values, missing)
        if missing is None or isinstance(given.child, IsNull | IsNotNull | EqualNullSafe):
            return opposite
        return opposite & ~missing
    none = np.zeros(len(values), np.bool_) if missing is None else missing
    if isinstance(given, IsNull):
        return none
    if isinstance(given, IsNotNull):
        return ~none
    if isinstance(given, In):
        return np.isin(values, [value for value in given.value if value is not None]) & ~none
    if isinstance(given, EqualNullSafe):
        return none if given.value is None else (values == given.value) & ~none
    found: NDArray[np.bool_] = _COMPARISONS[type(given)](values, given.value)  # type: ignore[attr-defined]
    return found & ~none


def _overlaps(given: Filter, first: int, last: int) -> bool:
    match given:
        case EqualTo(_, value):
            return bool(first <= value <= last)
        case In(_, values):
            return any(first <= value <= last for value in values if value is not None)
        case GreaterThan(_, value):
            return bool(last > value)
        case GreaterThanOrEqual(_, value):
            return bool(last >= value)
        case LessThan(_, value):
            return bool(first < value)
        case LessThanOrEqual(_, value):
            return bool(first <= value)
    return True
