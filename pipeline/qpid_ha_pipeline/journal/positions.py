"""How far a stream has come in a store, and how far it may go.

The promise: what a stream has given is never taken back, and nothing of it is given twice or left out: it goes no
further than the journal itself says is committed (unless asked to), in the order in which the broker wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.store.blocks import FILE_HEADER_BYTES, Block, read_block
from qpid_ha_broker.store.survey import NO_LIMIT, limits_of
from qpid_ha_pipeline.errors import PipelineError

from .stores import Directory
from .survey import Known, SurveyedPiece, SurveyedSegment, SurveyedSnapshot, SurveyedStore, Wanted, look


class JournalPlace(NamedTuple):
    """Everything before `offset` in `segment` was read. `generation` and `lsn` say it in the terms of the log.

    Offset 0 is before the snapshot with the number of the segment.

    `created_ms`: of the segment, so that another one with its number is not taken for it. `skip`: the first events to
    come up to this LSN were read, too.
    """

    segment: int
    offset: int
    generation: int
    lsn: int
    created_ms: int = 0
    skip: int = 0

    def to_json(self) -> dict[str, int]:
        """The place as it lies in a checkpoint."""
        return {name: value for name, value in self._asdict().items() if value or name != "skip"}

    @property
    def in_log(self) -> tuple[int, int]:
        """Generation and LSN, by which replicas of a log are compared."""
        return self.generation, self.lsn

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> JournalPlace:
        """Raises PipelineError."""
        try:
            return cls(**{name: int(value) for name, value in document.items()})
        except (TypeError, ValueError):
            raise PipelineError(
                f"expected a position with {', '.join(cls._fields)}, found {dict(document)!r}"
            ) from None


NOWHERE = JournalPlace(0, FILE_HEADER_BYTES, 0, 0)
"""Before everything that may ever be in a store."""


class JournalStep(NamedTuple):
    """A block that can be read next: where it leads, and how much it is."""

    place: JournalPlace
    events: int
    bytes: int


def look_from(
    directory: Directory, place: JournalPlace, *, wanted: Wanted | None = None, known: Known | None = None
) -> SurveyedStore:
    """What lies behind `place`, block by block, as far as it is wanted."""
    begin = (place.segment, place.offset)
    if wanted is None:
        return look(directory, is_permissive=False, piece_bytes=1, begin=begin, known=known)
    return look(directory, is_permissive=False, piece_bytes=1, begin=begin, wanted=wanted, known=known)


def steps(
    store: SurveyedStore, begin: JournalPlace, history: Sequence[GenerationEntry], committed_lsn: int | None
) -> Iterator[JournalStep]:
    """The snapshot, and block after block, as far as a stream may go by now. `history`: of the store's log.

    `committed_lsn`: no further; None: as far as there are whole blocks.
    """
    lsn, taken_back, base = begin.lsn, store.taken_back, store.base
    limit_of = limits_of(taken_back)
    if base is not None and begin[:2] <= (base.file.number, 0):
        lsn = max(lsn, base.last_lsn)
        yield JournalStep(_after_snapshot(store, base, lsn, history), max(base.messages, 1), base.file.end)
    for segment in store.counting_segments:
        for piece in segment.pieces:
            last = min(piece.last_lsn, limit_of((segment.number, piece.begin)))
            counts = last >= piece.first_lsn
            if committed_lsn is not None and counts and last > committed_lsn:
                return
            if committed_lsn is None and not _is_whole(store, segment, piece):
                return
            begin_and_end = (segment.number, piece.begin), (segment.number, piece.end)
            truncated = [
                truncation.last_lsn
                for truncation in taken_back
                if begin_and_end[0] <= truncation.place < begin_and_end[1]
            ]
            lsn = last if counts else min(lsn, *truncated, NO_LIMIT)
            events = piece.last_lsn - piece.first_lsn + 1 if counts else int(piece.has_local)
            generation = generation_at(history, lsn) if history else begin.generation
            place = JournalPlace(segment.number, piece.end, generation, lsn, segment.header.created_ms)
            yield JournalStep(place, events, piece.end - piece.begin)


def _after_snapshot(
    store: SurveyedStore, base: SurveyedSnapshot, lsn: int, history: Sequence[GenerationEntry]
) -> JournalPlace:
    created_ms = next(
        (segment.header.created_ms for segment in store.segments if segment.number == base.file.number), 0
    )
    return JournalPlace(base.file.number, FILE_HEADER_BYTES, generation_at(history, lsn), lsn, created_ms)


def _is_whole(store: SurveyedStore, segment: SurveyedSegment, piece: SurveyedPiece) -> bool:
    """A broker may be writing this block right now. Only the end of the last segment can be in doubt."""
    if not segment.witnesses.is_last:
        return True
    with closing(store.directory.disk.open(segment.name)) as file:
        data = file.read(piece.begin, piece.end - piece.begin)
    return isinstance(read_block(data, 0, segment.number, base=piece.begin), Block)


def pieces_between(
    store: SurveyedStore, begin: JournalPlace, end: JournalPlace, most: int
) -> Iterator[tuple[SurveyedSegment, SurveyedPiece]]:
    """What lies between two places, in pieces of at most so many bytes."""
    base = store.base
    if base is not None and begin[:2] <= (base.file.number, 0) and end[:2] > (base.file.number, 0):
        for piece in base.file.pieces:
            yield base.file, piece
    for segment in store.counting_segments:
        if segment.number > end.segment:
            return
        gathered: list[SurveyedPiece] = []
        for piece in segment.pieces:
            if segment.number == end.segment and piece.end > end.offset:
                break
            if gathered and piece.end - gathered[0].begin > most:
                yield segment, _joined(gathered)
                gathered = []
            gathered.append(piece)
        if gathered:
            yield segment, _joined(gathered)


def _joined(pieces: list[SurveyedPiece]) -> SurveyedPiece:
    return SurveyedPiece(
        pieces[0].begin,
        pieces[-1].end,
        min(piece.first_lsn for piece in pieces),
        max(piece.last_lsn for piece in pieces),
        any(piece.has_local for piece in pieces),
    )


def first_place(store: SurveyedStore) -> JournalPlace:
    """The beginning of what is kept."""
    segments = store.counting_segments
    if not segments:
        return NOWHERE
    header = segments[0].header
    if store.base is not None:
        return JournalPlace(header.number, 0, 0, 0, header.created_ms)
    return JournalPlace(header.number, FILE_HEADER_BYTES, header.generation, header.first_lsn - 1, header.created_ms)


def place_after(store: SurveyedStore, lsn: int, history: Sequence[GenerationEntry]) -> JournalPlace:
    """Where the event after that LSN of the replicated log is, or will be. `store`: all of it, block by block."""
    generation, begin = generation_at(history, lsn), first_place(store)
    place, limit_of = begin._replace(generation=generation, lsn=lsn), limits_of(store.taken_back)
    if store.base is not None and lsn < store.base.last_lsn:
        return place
    for segment in store.counting_segments:
        created_ms = segment.header.created_ms
        for piece in segment.pieces:
            last = min(piece.last_lsn, limit_of((segment.number, piece.begin)))
            if last >= piece.first_lsn and last > lsn:
                skip = lsn if piece.first_lsn <= lsn else 0
                return JournalPlace(segment.number, piece.begin, generation, lsn, created_ms, skip)
            place = JournalPlace(segment.number, piece.end, generation, lsn, created_ms)
    return place


def generation_at(history: Sequence[GenerationEntry], lsn: int) -> int:
    """Which generation an event is of; 0: nobody has led by then."""
    return max((entry.generation for entry in history if entry.first_lsn <= lsn), default=0)


def end_of_generation(history: Sequence[GenerationEntry], generation: int) -> int:
    """The last LSN up to which a log can hold events of that generation; NO_LIMIT: it goes on."""
    return min((entry.first_lsn - 1 for entry in history if entry.generation > generation), default=NO_LIMIT)


def why_lost(store: SurveyedStore, begin: JournalPlace) -> str | None:
    """Why what follows `begin` is not there any more; None: it is."""
    if begin == NOWHERE or (not begin.offset and not begin.lsn):
        return None  # nothing was read yet
    first = first_place(store)
    if not store.first_number:
        return "the journal is empty, although events were read from it before"
    if begin.segment < store.first_number:
        kept = first if first.segment == store.first_number else None
        after = f"after LSN {kept.lsn}" if kept is not None else f"with segment {store.first_number}"
        return (
            f"the events after LSN {begin.lsn} were in segment {begin.segment}, which is not there any more: what is"
            f" kept begins {after}"
        )
    if not any(segment.number == begin.segment for segment in store.segments):
        return f"segment {begin.segment}, which was read before, is not there: the store is another one now"
    if begin.created_ms and store.segments[0].header.created_ms != begin.created_ms:
        return f"segment {begin.segment} is not the one that was read before: the store was made anew"
    return None
