"""What is read at once: blocks that lie together in one file, and all that has to be known for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from qpid_ha_broker.store.survey import NO_LIMIT, TakenBack

from .stores import Directory
from .survey import Damage, SurveyedPiece, SurveyedSegment, SurveyedStore


@dataclass(frozen=True)
class LsnRange:
    """LSNs of the replicated log, both ends included; none where `first` is greater than `last`."""

    first: int = 0
    last: int = NO_LIMIT

    def within(self, other: LsnRange) -> LsnRange:
        """What is in both."""
        return LsnRange(max(self.first, other.first), min(self.last, other.last))

    @property
    def is_empty(self) -> bool:
        """Whether there are none."""
        return self.first > self.last


ALL = LsnRange()
NONE = LsnRange(1, 0)


@dataclass(frozen=True)
class Substitute:
    """Another store that holds the same events, up to `last_lsn`."""

    directory: Directory
    last_lsn: int


@dataclass(frozen=True)
class Origin:
    """What is the same for all parts of a store. `generations`: pairs of first LSN and generation, ascending."""

    directory: Directory
    cluster: str
    generations: tuple[tuple[int, int], ...]
    taken_back: tuple[TakenBack, ...]
    committed_lsn: int
    complete_from: int = 1
    """From this LSN on, each event of the log is in a row."""
    discarded_from: int = NO_LIMIT + 1
    """From this LSN on, the events are of a branch that the cluster went on without."""
    substitutes: tuple[Substitute, ...] = ()
    """For blocks that cannot be read."""


@dataclass(frozen=True)
class JournalPart:
    """From the driver to an executor."""

    origin: Origin
    segment: SurveyedSegment
    """Without its pieces."""
    piece: SurveyedPiece
    lsns: LsnRange = ALL
    """Of the replicated log, only these."""
    with_local: bool = True
    """The broker's own log, too."""
    damages: tuple[Damage, ...] = ()
    """Found by the driver: one part of each store tells of them."""

    @property
    def file(self) -> str:
        """Its path, for people."""
        return self.origin.directory.file(self.segment.name)

    @property
    def bytes(self) -> int:
        """So many are read."""
        return self.piece.end - self.piece.begin


@dataclass(frozen=True)
class StatePart:
    """The whole of a store, of which the state is made."""

    origin: Origin
    bytes: int
    lsns: LsnRange = ALL
    """Of what is there now, only what these events brought."""
    with_local: bool = True
    is_permissive: bool = False


@dataclass(frozen=True)
class PartGroup(InputPartition):
    """What one task reads: a task costs Spark as much as reading some megabytes, so small parts go together."""

    parts: tuple[JournalPart | StatePart, ...]


def grouped(parts: Iterable[JournalPart | StatePart], most: int) -> list[InputPartition]:
    """Parts that follow each other in groups of at most so many bytes, or of one part."""
    groups: list[list[JournalPart | StatePart]] = []
    length = 0
    for part in parts:
        length += part.bytes
        if not groups or length > most:
            groups.append([])
            length = part.bytes
        groups[-1].append(part)
    return [PartGroup(tuple(group)) for group in groups]


def origin_of(store: SurveyedStore, history: Sequence[tuple[int, str, int]]) -> Origin:
    """Of a store that is alone."""
    generations = tuple(sorted((first_lsn, generation) for generation, _, first_lsn in history))
    return Origin(
        store.directory, store.cluster, generations, store.taken_back, store.committed_lsn, store.complete_from
    )


def part_of(origin: Origin, segment: SurveyedSegment, piece: SurveyedPiece, lsns: LsnRange = ALL, *,
            with_local: bool = True) -> JournalPart:  # fmt: skip
    """The part that is one piece of a segment."""
    return JournalPart(origin, segment._replace(pieces=(), taken_back=()), piece, lsns, with_local)
