"""What can be said to a reader of journals, checked before anything is read.

Names follow Spark's Kafka source where it has one for the same. Spark makes no difference between upper and lower case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Final, TypeVar

from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_config.scalars import parse_boolean, parse_count

from .errors import PipelineError


class Mode(StrEnum):
    """What damage means."""

    STRICT = "strict"
    """An error with file and offset."""
    PERMISSIVE = "permissive"
    """Go on behind it; the column `damage` tells of it."""


class View(StrEnum):
    """What the rows are."""

    EVENTS = "events"
    """What happened: the snapshot with which a store begins, and all events since."""
    STATE = "state"
    """What is there now."""


class Replicas(StrEnum):
    """Which rows there are of events that several stores hold."""

    ONE = "one"
    """Each event once, of the log that counts."""
    ALL = "all"
    """One for each store."""
    DISCARDED = "discarded"
    """Only of branches that were discarded."""


class Isolation(StrEnum):
    """What of the end of a log is read."""

    ALL = "all"
    COMMITTED = "committed"
    """Only what the journal itself says was committed: nothing that could still be taken back."""


class KernelUse(StrEnum):
    """Whether compiled code goes through blocks and records, or Python does: rows are the same."""

    AUTO = "auto"
    """Where it was built."""
    OFF = "off"
    REQUIRED = "required"
    """An error where it was not."""


_NAMES: Final = (
    "path", "paths", "set", "view", "replicas", "mode", "isolation", "columns", "partitionBytes", "startingOffsets",
    "maxRowsPerTrigger", "maxBytesPerTrigger", "failOnDataLoss", "severalClusters", "queue", "event", "generation",
    "fromLsn", "toLsn", "checksums", "kernel",
)  # fmt: skip
_KNOWN: Final = {name.lower(): name for name in _NAMES}
_SPARKS_OWN: Final = frozenset({
    "checkpointlocation", "queryname", "outputmode", "truncate", "numrows",
    "asyncprogresstrackingenabled", "asyncprogresstrackingcheckpointintervalms",
    "collation", "comment", "external", "is_managed_location", "location", "owner", "provider",
})  # fmt: skip
"""Of a query, and of a table in a catalog: Spark hands them to sources and sinks with what is theirs."""
_SPARKS_COPIES: Final = "option."
"""How a catalog begins the name of each option that it keeps a second time."""
_MIN_PARTITION_BYTES: Final = 64 * 1024
_Member = TypeVar("_Member", bound=StrEnum)


@dataclass(frozen=True)
class JournalOptions:
    """`paths`: data directories. `starting_offsets`: earliest, latest, or an offset as JSON."""

    paths: tuple[str, ...]
    sets: tuple[str, ...] = ()
    """Only these resource sets; empty: all that the data directories have."""
    view: View = View.EVENTS
    replicas: Replicas = Replicas.ONE
    mode: Mode = Mode.STRICT
    isolation: Isolation | None = None
    """None: ALL for a batch, COMMITTED for a stream."""
    columns: tuple[str, ...] = ()
    """Empty: all."""
    partition_bytes: int = 128 * 1024 * 1024
    """A task reads about so many bytes at most."""
    starting_offsets: str = "earliest"
    max_rows_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    fail_on_data_loss: bool = True
    queues: tuple[str, ...] = ()
    """Only rows of these queues; empty: of all, as for `events` and `generations`."""
    events: tuple[str, ...] = ()
    generations: tuple[int, ...] = ()
    from_lsn: int | None = None
    to_lsn: int | None = None
    """The last one that is read."""
    checksums: bool = True
    """Whether what is read is compared with its checksums."""
    kernel: KernelUse = KernelUse.AUTO
    several_clusters: bool = False
    """Whether stores of different clusters are meant to be read together, and are not a slip."""

    @property
    def is_permissive(self) -> bool:
        """Whether damage is told in rows."""
        return self.mode is Mode.PERMISSIVE

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> JournalOptions:
        """From what a user wrote. Raises PipelineError that names the option, and what was expected."""
        options = {_canonical(name): value for name, value in given.items() if not is_sparks_own(name)}
        paths = (*_paths(options), *([options["path"]] if options.get("path") else []))
        if not paths:
            raise PipelineError("no data directory is given: use load(PATH) or the option paths, a JSON list")
        isolation = options.get("isolation")
        maximum_rows, maximum_bytes = options.get("maxRowsPerTrigger"), options.get("maxBytesPerTrigger")
        if maximum_rows is not None and maximum_bytes is not None:
            raise PipelineError(
                "maxRowsPerTrigger and maxBytesPerTrigger: Spark keeps to one of them only, so give one"
            )
        return cls(
            paths=tuple(dict.fromkeys(paths)),
            sets=_sets(options.get("set", "")),
            view=_member(View, "view", options.get("view", View.EVENTS)),
            replicas=_member(Replicas, "replicas", options.get("replicas", Replicas.ONE)),
            mode=_member(Mode, "mode", options.get("mode", Mode.STRICT)),
            isolation=None if isolation is None else _member(Isolation, "isolation", isolation),
            columns=words_in(options.get("columns", "")),
            partition_bytes=number_in("partitionBytes", options, _MIN_PARTITION_BYTES) or cls.partition_bytes,
            starting_offsets=options.get("startingOffsets", cls.starting_offsets),
            max_rows_per_trigger=number_in("maxRowsPerTrigger", options, 1),
            max_bytes_per_trigger=number_in("maxBytesPerTrigger", options, 1),
            fail_on_data_loss=truth_in("failOnDataLoss", options.get("failOnDataLoss", "true")),
            queues=words_in(options.get("queue", "")),
            events=words_in(options.get("event", "")),
            generations=tuple(_whole("generation", word) for word in words_in(options.get("generation", ""))),
            from_lsn=_whole("fromLsn", options["fromLsn"]) if "fromLsn" in options else None,
            to_lsn=_whole("toLsn", options["toLsn"]) if "toLsn" in options else None,
            checksums=truth_in("checksums", options.get("checksums", "true")),
            kernel=_member(KernelUse, "kernel", options.get("kernel", KernelUse.AUTO)),
            several_clusters=truth_in("severalClusters", options.get("severalClusters", "false")),
        )


def is_sparks_own(name: str) -> bool:
    """Whether an option with this name, in upper or lower case, is between Spark and its user."""
    return name.lower() in _SPARKS_OWN or name.lower().startswith(_SPARKS_COPIES)


def _canonical(name: str) -> str:
    try:
        return _KNOWN[name.lower()]
    except KeyError:
        near = get_close_matches(name.lower(), _KNOWN, n=1)
        hint = f"did you mean {_KNOWN[near[0]]}?" if near else f"there are {', '.join(_NAMES)}"
        raise PipelineError(f"qpid-journal has no option {name!r}: {hint}") from None


def _paths(options: Mapping[str, str]) -> list[str]:
    """`load` with several paths comes as a JSON list in `paths`, as in Spark's own sources."""
    text = options.get("paths")
    if text is None:
        return []
    try:
        paths = json.loads(text)
    except ValueError as error:
        raise PipelineError(f"paths: expected a JSON list of directories, found {text!r}: {error}") from None
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise PipelineError(f"paths: expected a JSON list of directories, found {text!r}")
    return paths


def _sets(text: str) -> tuple[str, ...]:
    sets = words_in(text)
    for name in sets:
        if (problem := set_name_problem(name)) is not None:
            raise PipelineError(f"set: {problem}")
    return sets


def _member(kind: type[_Member], name: str, value: str) -> _Member:
    try:
        return kind(value.lower())
    except ValueError:
        raise PipelineError(f"{name}: expected {' or '.join(kind)}, found {value!r}") from None


def number_in(name: str, options: Mapping[str, str], least: int) -> int | None:
    """A number from `least` up; None where it is not given. Raises PipelineError."""
    text = options.get(name)
    if text is None:
        return None
    try:
        if (number := parse_count(text)) >= least:
            return number
    except ValueError:
        pass
    raise PipelineError(f"{name}: expected a number from {least} up, found {text!r}")


def words_in(text: str) -> tuple[str, ...]:
    """Words between commas; as a JSON list where a word has a comma in it. Raises PipelineError."""
    if text.startswith("["):
        try:
            words = json.loads(text)
        except ValueError as error:
            raise PipelineError(f"expected a JSON list, found {text!r}: {error}") from None
        return tuple(str(word) for word in words)
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise PipelineError(f"{name}: expected a whole number, found {text!r}") from None


def truth_in(name: str, text: str) -> bool:
    """Raises PipelineError for what is neither true nor false."""
    try:
        return parse_boolean(text)
    except ValueError:
        raise PipelineError(f"{name}: expected true or false, found {text!r}") from None
