"""How far streams are behind what they read: for logs, dashboards and alarms.

A data source in Python has no metrics of its own in Spark (4.3): Spark counts its rows, and keeps what the source
reports as its newest offset. The difference to what was read is the lag.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

log = logging.getLogger(__name__)

_ID: Final = "message_id"
_LSN: Final = "lsn"


class QueryLag(NamedTuple):
    """After a batch of a query, or when it has looked and there was none.

    `behind`: by queue messages, by store events that were there and not read yet, at most. `rows_per_s`: both of Spark:
    how many came, and how many it can deal with.
    """

    query_id: str
    name: str
    batch: int
    rows: int
    rows_per_s: float
    possible_rows_per_s: float
    behind: dict[str, int]

    def __str__(self) -> str:
        behind = ", ".join(f"{name} {count}" for name, count in sorted(self.behind.items()) if count) or "nothing"
        rate = f"{self.rows_per_s:.1f} rows/s of {self.possible_rows_per_s:.1f}"
        return f"query {self.name or self.query_id}, batch {self.batch}: {self.rows} rows, {rate}; behind: {behind}"


class LagListener(StreamingQueryListener):
    """`spark.streams.addListener(LagListener())`: logs the lag of each query, and holds the last in `latest`.

    `report`: instead of the log. Queries without sources of ours are passed over.
    """

    def __init__(self, report: Callable[[QueryLag], None] | None = None) -> None:
        self._report = report or (lambda lag: log.info("%s", lag))
        self.latest: dict[str, QueryLag] = {}
        """By the query's id, of those that run."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is no lag yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch was committed, or none was due."""
        lag = lag_of(event.progress)
        if lag is not None:
            self.latest[lag.query_id] = lag
            self._report(lag)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """It is nobody's any more."""
        self.latest.pop(str(event.id), None)


def lag_of(progress: StreamingQueryProgress) -> QueryLag | None:
    """Of `query.lastProgress`, too. None: no source of ours is in it."""
    behind: dict[str, int] = {}
    is_ours = False
    for source in progress.sources:
        end, newest = _places(source.endOffset), _places(source.latestOffset)
        is_ours |= end is not None and newest is not None
        for name, place in (newest or {}).items():
            behind[name] = behind.get(name, 0) + _distance((end or {}).get(name), place)
    if not is_ours:
        return None
    return QueryLag(
        str(progress.id), progress.name or "", progress.batchId, progress.numInputRows, progress.inputRowsPerSecond,
        progress.processedRowsPerSecond, behind,
    )  # fmt: skip


def _places(offset: str | None) -> dict[str, dict[str, Any]] | None:
    """The places of an offset of one of our sources."""
    try:
        places = json.loads(offset or "")
    except ValueError:
        return None
    if not isinstance(places, dict):
        return None
    return places if all(isinstance(place, dict) and place.keys() & {_ID, _LSN} for place in places.values()) else None


def _distance(end: dict[str, Any] | None, newest: dict[str, Any]) -> int:
    """Of ids in a log that is not of this queue alone there are more than messages: never more than the queue holds."""
    number = _ID if _ID in newest else _LSN
    is_same = end is not None and end.get("queue_id") == newest.get("queue_id")
    since = int(end[number]) if end is not None and is_same else 0
    distance = int(newest[number]) - since
    return max(min(distance, int(newest.get("messages", distance))), 0)
