"""What can be said to a reader or a writer of live queues. Names follow Spark's Kafka source where it has the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from qpid_ha_config.scalars import parse_timeout_s
from qpid_ha_pipeline.amqp.brokers import Cluster, find_login, read_brokers
from qpid_ha_pipeline.errors import PipelineError
from qpid_ha_pipeline.options import number_in, truth_in, words_in
from qpid_ha_pipeline.schema import near_name

_CLUSTER_NAMES: Final = ("brokers", "user", "passwordFile", "caFile", "failoverTimeout", "replyTimeout")
READ_NAMES: Final = (
    *_CLUSTER_NAMES, "queue", "path", "columns", "startingOffsets", "endingOffsets", "maxOffsetsPerTrigger",
    "maxRowsPerTrigger", "numPartitions", "failOnDataLoss",
)  # fmt: skip
WRITE_NAMES: Final = (*_CLUSTER_NAMES, "target", "path", "producer", "exactlyOnce")
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "truncate", "numrows"})
"""Spark hands these to a sink, too."""
_PLACE: Final = 'expected earliest, latest, or JSON such as {"orders": 1017}'


@dataclass(frozen=True)
class ReadOptions:
    """`starting`, `ending`: by queue an id behind which to begin, or with which to end; or "earliest", "latest"."""

    cluster: Cluster
    queues: tuple[str, ...]
    columns: tuple[str, ...]
    starting: str | dict[str, int]
    ending: str | dict[str, int]
    max_offsets: int | None
    partitions: int
    fail_on_data_loss: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> ReadOptions:
        """From what a user wrote. Raises PipelineError that names the option, and what was expected."""
        options = _known(given, READ_NAMES)
        queues = words_in(options.get("queue", options.get("path", "")))
        if not queues:
            raise PipelineError("queue: missing: which queue is to be read?")
        limits = [number_in(name, options, 1) for name in ("maxOffsetsPerTrigger", "maxRowsPerTrigger")]
        return cls(
            cluster=_cluster(options),
            queues=tuple(dict.fromkeys(queues)),
            columns=words_in(options.get("columns", "")),
            starting=_places("startingOffsets", options.get("startingOffsets", "earliest"), queues),
            ending=_places("endingOffsets", options.get("endingOffsets", "latest"), queues),
            max_offsets=min((limit for limit in limits if limit is not None), default=None),
            partitions=number_in("numPartitions", options, 1) or 1,
            fail_on_data_loss=truth_in("failOnDataLoss", options.get("failOnDataLoss", "true")),
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
        elif name.lower() not in _SPARKS_OWN:
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


def _places(name: str, text: str, queues: tuple[str, ...]) -> str | dict[str, int]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        document: Any = json.loads(text)
    except ValueError:
        raise PipelineError(f"{name}: {_PLACE}, found {text!r}") from None
    if not isinstance(document, dict):
        raise PipelineError(f"{name}: {_PLACE}, found {text!r}")
    places: dict[str, Any] = {
        queue: value.get("message_id") if isinstance(value, dict) else value for queue, value in document.items()
    }
    for queue, place in places.items():
        if queue not in queues:
            raise PipelineError(f"{name}: names the queue {queue}, which is not read")
        if type(place) is not int or not -(1 << 63) <= place < 1 << 64:
            raise PipelineError(f"{name}: {_PLACE}, found {text!r}")
    return {queue: place % (1 << 64) for queue, place in places.items()}
