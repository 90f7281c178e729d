"""A part of the list of queues: filtered, sorted, and from one row to another, made in steps. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import translate
from itertools import islice
from re import IGNORECASE
from re import compile as compile_pattern
from typing import Final

from qpid_ha_broker.metrics.queue_figures import oldest_age_s
from qpid_ha_broker.metrics.queue_trends import QueueTrends
from qpid_ha_broker.model.queues.queue import Queue

ROWS_MAX: Final = 100
FILTER_LENGTH_MAX: Final = 256
STEP: Final = 50
"""Queues that are looked at between two pauses."""
CHUNK: Final = 500
"""So many are sorted at once; the chunks are merged."""

PlacedIn = tuple[str, Queue]
"""The name of its resource set, and the queue."""
SortKey = Callable[[str, Queue, QueueTrends, int], float | str]
SortedBy = tuple[float | str, str, int]
"""A value, the queue's name, and where it is among those that were found."""


def _in_rate(_set: str, queue: Queue, trends: QueueTrends, _now_ms: int) -> float:
    trend = trends.of(queue)
    return 0.0 if trend is None else trend.in_rate


def _out_rate(_set: str, queue: Queue, trends: QueueTrends, _now_ms: int) -> float:
    trend = trends.of(queue)
    return 0.0 if trend is None else trend.out_rate


SORT_KEYS: Final[Mapping[str, SortKey]] = {
    "name": lambda _set, queue, _trends, _now_ms: queue.name,
    "set": lambda name, _queue, _trends, _now_ms: name,
    "messages": lambda _set, queue, _trends, _now_ms: queue.messages.count,
    "bytes": lambda _set, queue, _trends, _now_ms: queue.messages.size,
    "acquired": lambda _set, queue, _trends, _now_ms: queue.messages.acquired,
    "consumers": lambda _set, queue, _trends, _now_ms: len(queue.dispatcher.consumers),
    "age": lambda _set, queue, _trends, now_ms: oldest_age_s(queue, now_ms),
    "in": _in_rate,
    "out": _out_rate,
}
"""By what the list can be sorted; queues of the same value are in the order of their names."""
TEXTS: Final = ("name", "set")
"""Of these, the keys that are texts."""
ONLY: Final[Mapping[str, Callable[[Queue], bool]]] = {
    "all": lambda _queue: True,
    "not-empty": lambda queue: queue.messages.count > 0,
    "no-consumers": lambda queue: queue.messages.count > 0 and not queue.dispatcher.consumers,
}


class ListingError(ValueError):
    """No list can be made of what was asked; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class QueueListing:
    """Which rows are asked for."""

    sort: str = "name"
    descending: bool = False
    filter: str = ""
    """A part of the name, or with `*`, `?` or `[` a pattern for all of it; case does not count."""
    only: str = "all"
    name: str = ""
    """The queue of just this name."""
    set: str = ""
    """Those of this resource set alone."""
    offset: int = 0
    count: int = 50

    @classmethod
    def read(cls, given: Mapping[str, str]) -> QueueListing:
        """The parameters of a request. Raises ListingError."""
        there = [field.name for field in fields(cls)]
        unknown = sorted({*given} - {*there})
        if unknown:
            raise ListingError(f"unknown parameter {unknown[0]!r:.80}; there are {', '.join(there)}")
        for name, known in (("sort", SORT_KEYS), ("only", ONLY), ("descending", {"true": 1, "false": 1})):
            if name in given and given[name] not in known:
                raise ListingError(f"{name} is one of {', '.join(known)}")
        if len(given.get("filter", "")) > FILTER_LENGTH_MAX:
            raise ListingError(f"filter has at most {FILTER_LENGTH_MAX} characters")
        return cls(
            sort=given.get("sort", "name"),
            descending=given.get("descending") == "true",
            filter=given.get("filter", ""),
            only=given.get("only", "all"),
            name=given.get("name", ""),
            set=given.get("set", ""),
            offset=_number(given, "offset", 0, 1 << 31),
            count=_number(given, "count", 50, ROWS_MAX),
        )

    def matcher(self) -> Callable[[str], object]:
        """Whether a name is that of a queue that is asked for: what it returns is true, or not None."""
        if self.name:
            return self.name.__eq__
        if not self.filter:
            return lambda _name: True
        if any(sign in self.filter for sign in "*?["):
            return compile_pattern(translate(self.filter), IGNORECASE).match
        part = self.filter.casefold()
        return lambda name: part in name.casefold()


def _number(given: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = given.get(name, str(default))
    if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or int(text) > most:
        raise ListingError(f"{name} is a whole number from 0 to {most}")
    return int(text)


def list_queues(
    queues: Iterable[PlacedIn], asked: QueueListing, trends: QueueTrends, now_ms: int
) -> Generator[None, None, dict[str, object]]:
    """The rows that were asked for, and how many there are; pauses in between.

    {"total": queues, "matching": those that the filter lets through, "offset", "rows": [...]}. `now_ms`: since the Unix
    epoch.
    """
    backwards = asked.descending and asked.sort in TEXTS
    key_of, matches, is_wanted = SORT_KEYS[asked.sort], asked.matcher(), ONLY[asked.only]
    chunks: list[list[SortedBy]] = [[]]
    matching: list[PlacedIn] = []
    total = 0
    for number, (set_name, queue) in enumerate(queues):
        if number % STEP == STEP - 1:
            yield
        if queue.deleted:
            continue
        total += 1
        if asked.set not in ("", set_name) or not is_wanted(queue) or not matches(queue.name):
            continue
        value = key_of(set_name, queue, trends, now_ms)
        if asked.descending and not isinstance(value, str):
            value = -value  # so that queues of the same value are in the order of their names
        chunks[-1].append((value, queue.name, len(matching)))
        matching.append((set_name, queue))
        if len(chunks[-1]) == CHUNK:
            chunks[-1].sort(reverse=backwards)
            chunks.append([])
    chunks[-1].sort(reverse=backwards)
    places: list[int] = []
    merged = heapq.merge(*chunks, reverse=backwards)
    for number, (_, _, place) in enumerate(islice(merged, asked.offset + asked.count)):
        if number % STEP == STEP - 1:
            yield
        if number >= asked.offset:
            places.append(place)
    rows = [_row(*matching[place], trends, now_ms) for place in places]
    return {"total": total, "matching": len(matching), "offset": asked.offset, "rows": rows}


def _row(set_name: str, queue: Queue, trends: QueueTrends, now_ms: int) -> dict[str, object]:
    trend = trends.of(queue)
    messages = queue.messages
    return {
        "name": queue.name,
        "set": set_name,
        "messages": messages.count,
        "bytes": messages.size,
        "acquired": messages.acquired,
        "consumers": len(queue.dispatcher.consumers),
        "age_s": round(oldest_age_s(queue, now_ms), 1),
        "in_rate": 0.0 if trend is None else round(trend.in_rate, 1),
        "out_rate": 0.0 if trend is None else round(trend.out_rate, 1),
        "depths": [] if trend is None else trend.depths.tolist(),
    }
