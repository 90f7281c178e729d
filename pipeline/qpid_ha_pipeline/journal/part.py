"""What is read at once: blocks that lie together in one segment, and all that has to be known for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from qpid_ha_broker.store.survey import TakenBack

from .stores import Directory
from .survey import Damage, SurveyedPiece, SurveyedSegment, SurveyedStore


@dataclass(frozen=True)
class JournalPart:
    """From the driver to an executor. `generations`: pairs of first LSN and generation, ascending."""

    directory: Directory
    segment: SurveyedSegment
    """Without its pieces."""
    begin: int
    end: int
    committed_lsn: int
    taken_back: tuple[TakenBack, ...]
    generations: tuple[tuple[int, int], ...]
    cluster: str
    damages: tuple[Damage, ...] = ()
    """Found by the driver: one part of each store tells of them."""
    max_lsn: int | None = None
    """Beyond it, nothing of the replicated log is read."""
    min_lsn: int = 0
    """Before it, neither."""

    @property
    def file(self) -> str:
        """Its path, for people."""
        return self.directory.file(self.segment.name)


@dataclass(frozen=True)
class PartGroup(InputPartition):
    """What one task reads: a task costs Spark as much as reading some megabytes, so small parts go together."""

    parts: tuple[JournalPart, ...]


def grouped(parts: Iterable[JournalPart], most: int) -> list[InputPartition]:
    """Parts that follow each other in groups of at most so many bytes, or of one part."""
    groups: list[list[JournalPart]] = []
    length = 0
    for part in parts:
        length += part.end - part.begin
        if not groups or length > most:
            groups.append([])
            length = part.end - part.begin
        groups[-1].append(part)
    return [PartGroup(tuple(group)) for group in groups]


def generations_of(store: SurveyedStore) -> tuple[tuple[int, int], ...]:
    """What STATUS tells; what it does not know yet, the segments' headers and the events in them do."""
    history = store.status.history if store.status is not None else ()
    return tuple(sorted((first_lsn, generation) for generation, _, first_lsn in history))


def part_of(
    store: SurveyedStore,
    segment: SurveyedSegment,
    piece: SurveyedPiece,
    *,
    max_lsn: int | None = None,
    min_lsn: int = 0,
) -> JournalPart:
    """That piece of that segment."""
    return JournalPart(
        store.directory,
        segment._replace(pieces=(), taken_back=()),
        piece.begin,
        piece.end,
        store.committed_lsn,
        store.taken_back,
        generations_of(store),
        store.cluster,
        max_lsn=max_lsn,
        min_lsn=min_lsn,
    )
