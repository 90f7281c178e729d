"""What can be said to a reader or a writer of live queues. Names follow Spark's Kafka source where it has the same."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qpid_ha_config.scalars import parse_timeout_s
from qpid_ha_pipeline.amqp.brokers import Cluster, find_login, read_brokers
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.options import is_sparks_own, number_in, truth_in, words_in
from qpid_ha_pipeline.schema import near_name

_CLUSTER_NAMES: Final = ("brokers", "user", "passwordFile", "caFile", "failoverTimeout", "replyTimeout")
READ_NAMES: Final = (
    *_CLUSTER_NAMES, "queue", "subscribePattern", "path", "columns", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger", "maxRowsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger",
    "minPartitions", "numPartitions", "failOnDataLoss", "consume",
)  # fmt: skip
WRITE_NAMES: Final = (*_CLUSTER_NAMES, "target", "path", "producer", "exactlyOnce")
_PLACE: Final = 'expected earliest, latest, or JSON such as {"orders": 1017}'
_TIME: Final = "expected milliseconds since the beginning of 1970"
_TRIGGER_DELAY_S: Final = 15 * 60.0


@dataclass(frozen=True)
class Selection:
    """Which queues are read: those of `names`, or without any those whose whole name matches `pattern`."""

    names: tuple[str, ...]
    pattern: str = ""

    def has(self, name: str) -> bool:
        """Whether a queue of that name is read."""
        return name in self.names or bool(self.pattern and re.fullmatch(self.pattern, name))


@dataclass(frozen=True)
class Boundary:
    """Where reading begins or ends: by queue an id, else "earliest" or "latest"; or if given, by time."""

    places: str | dict[str, int]
    times_ms: int | dict[str, int] | None = None
    """Milliseconds since the Unix epoch, of all queues or by queue."""

    def time_of(self, queue: str) -> int | None:
        """At which time, where that is how it is said."""
        return self.times_ms.get(queue) if isinstance(self.times_ms, dict) else self.times_ms


@dataclass(frozen=True)
class TriggerLimits:
    """How much a batch of a stream has; None: no limit."""

    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    """With fewer, there is no batch, unless the last one was `max_delay_s` ago."""
    max_delay_s: float = _TRIGGER_DELAY_S


@dataclass(frozen=True)
class ReadOptions:
    """What is read, from where to where, and how."""

    cluster: Cluster
    selection: Selection
    columns: tuple[str, ...]
    starting: Boundary
    ending: Boundary
    limits: TriggerLimits
    partitions: int
    fail_on_data_loss: bool
    consumes: bool
    """Messages are consumed once the batch that has read them was committed."""

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """From what a user wrote. Raises PipelineError that names the option, and what was expected."""
        options = _known(given, READ_NAMES)
        selection = _selection(options)
        partitions = [number_in(name, options, 1) for name in ("minPartitions", "numPartitions")]
        return cls(
            cluster=_cluster(options),
            selection=selection,
            columns=words_in(options.get("columns", "")),
            starting=_boundary("starting", "earliest", options, selection),
            ending=_boundary("ending", "latest", options, selection),
            limits=_limits(options),
            partitions=max((count for count in partitions if count is not None), default=1),
            fail_on_data_loss=truth_in("failOnDataLoss", options.get("failOnDataLoss", "true")),
            consumes=truth_in("consume", options.get("consume", "false")),
        )


@dataclass(frozen=True)
class WriteOptions:
    """`target`: address of a queue or an exchange; empty: the column `to` says. `exactly_once` None: as is usual."""

    cluster: Cluster
    target: str
    producer: str
    exactly_once: bool | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        """From what a user wrote. Raises PipelineError that names the option, and what was expected."""
        options = _known(given, WRITE_NAMES)
        exactly = options.get("exactlyOnce")
        return cls(
            cluster=_cluster(options),
            target=options.get("target", options.get("path", "")),
            producer=options.get("producer", ""),
            exactly_once=None if exactly is None else truth_in("exactlyOnce", exactly),
        )


def _known(given: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    known = {name.lower(): name for name in names}
    options = {}
    for name, value in given.items():
        if name.lower() == "password":
            raise PipelineError(
                "password: an option ends up in plans and logs: use passwordFile, or the environment variable"
                " QPID_HA_PASSWORD"
            )
        if name.lower() in known:
            options[known[name.lower()]] = value
        elif not is_sparks_own(name):
            raise PipelineError(f"qpid-amqp has no option {name!r}{near_name(name, names)}")
    return options


def _cluster(options: Mapping[str, str]) -> Cluster:
    brokers, user = read_brokers(options.get("brokers", ""))
    login = find_login(options.get("user", user), options.get("passwordFile", ""), os.environ)
    times = {name: _duration(name, options) for name in ("failoverTimeout", "replyTimeout")}
    return Cluster(
        brokers,
        login,
        options.get("caFile", ""),
        times["failoverTimeout"] or Cluster.failover_timeout_s,
        times["replyTimeout"] or Cluster.reply_timeout_s,
    )


def _duration(name: str, options: Mapping[str, str]) -> float | None:
    if name not in options:
        return None
    try:
        return parse_timeout_s(options[name])
    except ValueError as error:
        raise PipelineError(f"{name}: {error}") from None


def _selection(options: Mapping[str, str]) -> Selection:
    pattern = options.get("subscribePattern", "")
    names = words_in(options.get("queue", options.get("path", "")))
    if bool(pattern) == bool(names):
        problem = "one of the two" if names else "missing: which queue is to be read?"
        raise PipelineError(f"queue: {problem}; a regular expression for several goes into subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise PipelineError(f"subscribePattern: {pattern!r} is no regular expression: {error}") from None
    return Selection(tuple(dict.fromkeys(names)), pattern)


def _limits(options: Mapping[str, str]) -> TriggerLimits:
    rows = [number_in(name, options, 1) for name in ("maxOffsetsPerTrigger", "maxRowsPerTrigger")]
    max_rows = min((limit for limit in rows if limit is not None), default=None)
    min_rows = number_in("minOffsetsPerTrigger", options, 1)
    if max_rows is not None and min_rows is not None and min_rows > max_rows:
        raise PipelineError(f"minOffsetsPerTrigger: {min_rows} is more than maxOffsetsPerTrigger, {max_rows}")
    delay_s = _duration("maxTriggerDelay", options)
    if delay_s is not None and min_rows is None:
        raise PipelineError("maxTriggerDelay: for how many messages a batch waits, minOffsetsPerTrigger says")
    return TriggerLimits(
        max_rows,
        number_in("maxBytesPerTrigger", options, 1),
        min_rows,
        _TRIGGER_DELAY_S if delay_s is None else delay_s,
    )


def _boundary(side: str, default: str, options: Mapping[str, str], selection: Selection) -> Boundary:
    """As `startingTimestamp`, else `startingOffsetsByTimestamp`, else `startingOffsets` says; or `ending...`."""
    offsets, one, several = f"{side}Offsets", f"{side}Timestamp", f"{side}OffsetsByTimestamp"
    places = _places(offsets, options.get(offsets, default), selection)
    if one in options:
        if (time_ms := number_in(one, options, 0)) is None or time_ms >= 1 << 64:
            raise PipelineError(f"{one}: {_TIME}, found {options[one]!r}")
        return Boundary(places, time_ms)
    if several in options:
        expected = f'{_TIME}, by queue: {{"orders": 1700000000000}}'
        times = _by_queue(several, options[several], expected, selection)
        if not all(0 <= time_ms < 1 << 64 for time_ms in times.values()):
            raise PipelineError(f"{several}: {expected}, found {options[several]!r}")
        return Boundary(places, times)
    return Boundary(places)


def _places(name: str, text: str, selection: Selection) -> str | dict[str, int]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    places = _by_queue(name, text, _PLACE, selection)
    return {queue: place % (1 << 64) for queue, place in places.items()}


def _by_queue(name: str, text: str, expected: str, selection: Selection) -> dict[str, int]:
    """A number for each queue, as JSON."""
    try:
        document: Any = json.loads(text)
    except ValueError:
        raise PipelineError(f"{name}: {expected}, found {text!r}") from None
    if not isinstance(document, dict):
        raise PipelineError(f"{name}: {expected}, found {text!r}")
    numbers: dict[str, Any] = {
        queue: value.get("message_id") if isinstance(value, dict) else value for queue, value in document.items()
    }
    for queue, number in numbers.items():
        if not selection.has(queue):
            raise PipelineError(f"{name}: names the queue {queue}, which is not read")
        if type(number) is not int or not -(1 << 63) <= number < 1 << 64:
            raise PipelineError(f"{name}: {expected}, found {text!r}")
    return numbers
