"""The options that select rows, carried out where the journal is read: what they leave out never becomes a row."""

from __future__ import annotations

from difflib import get_close_matches

import numpy as np

from qpid_ha_broker.events.layout import RecordKind
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.options import JournalOptions

from .records import Ints, Mask, event_name
from .survey import SurveyedPiece


class RowFilters:
    """Those of `queue`, `event`, `generation`, `fromLsn` and `toLsn`. Raises PipelineError for an unknown event."""

    def __init__(self, options: JournalOptions) -> None:
        _check_events(options.events)
        self._texts = {
            column: frozenset(names)
            for column, names in (("queue", options.queues), ("event", options.events))
            if names
        }  # fmt: skip
        self._generations = options.generations
        self._from_lsn = options.from_lsn
        self._to_lsn = options.to_lsn

    def has(self, column: str) -> bool:
        """Whether anything is asked of that column."""
        if column == "lsn":
            return self._from_lsn is not None or self._to_lsn is not None
        if column == "generation":
            return bool(self._generations)
        return column in self._texts

    def accepts(self, column: str, text: str | None) -> bool:
        """Whether a queue or an event passes; None is null."""
        return column not in self._texts or text in self._texts[column]

    def generations(self, generations: Ints) -> Mask:
        """Which of these pass."""
        return np.isin(generations, self._generations)

    def lsns(self, lsns: Ints) -> Mask:
        """Which of these pass."""
        passing = np.ones(len(lsns), np.bool_)
        if self._from_lsn is not None:
            passing &= lsns >= self._from_lsn
        if self._to_lsn is not None:
            passing &= lsns <= self._to_lsn
        return passing

    def may_be_in(self, piece: SurveyedPiece) -> bool:
        """Whether a piece of journal can have LSNs that pass."""
        if piece.has_local:
            return True
        if self._from_lsn is not None and piece.last_lsn < self._from_lsn:
            return False
        return self._to_lsn is None or piece.first_lsn <= self._to_lsn


def _check_events(events: tuple[str, ...]) -> None:
    known = list(dict.fromkeys(map(event_name, RecordKind)))
    unknown = [event for event in events if event.lower() not in known]
    if unknown:
        near = get_close_matches(unknown[0].lower(), known, n=1)
        hint = f"did you mean {near[0]}?" if near else ", ".join(known)
        raise PipelineError(f"event: there is no event {unknown[0]!r}: {hint}")
