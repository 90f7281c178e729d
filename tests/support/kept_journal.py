"""A small journal whose blocks say which LSN they are, and what a broker that starts finds of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.store.blocks import Block, BlockKind
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import ClosedSegment, Identity, Journal, StatusFile
from qpid_ha_broker.store.layout import segment_numbers, segment_path
from qpid_ha_broker.store.reading import BlockReader, Verdict, read_header, witnesses_of
from qpid_ha_broker.store.status import read_status

IDENTITY = Identity("cluster", "alpha", "default")
SEGMENT_BYTES = 8 * 1024


def begin(
    disk: Disk, number: int = 1, first_lsn: int = 1, previous_bytes: int = 0, closed: Sequence[ClosedSegment] = (),
    status: StatusFile | None = None,
) -> Journal:  # fmt: skip
    return Journal.begin(
        disk,
        IDENTITY,
        number,
        generation=1,
        first_lsn=first_lsn,
        first_local_lsn=LOCAL_BASE,
        previous_bytes=previous_bytes,
        segment_bytes=SEGMENT_BYTES,
        clock=lambda: 1_700_000_000_000,
        closed=closed,
        status=status,
    )


def stage(journal: Journal, lsn: int, length: int = 100) -> None:
    journal.stage(BlockKind.EVENTS, lsn, lsn, max(0, lsn - 1), 0, content(lsn, length))


def content(lsn: int, length: int) -> bytes:
    return (b"%d " % lsn * length)[:length]


def keep(journal: Journal, *lsns: int, length: int = 100) -> None:
    for lsn in lsns:
        stage(journal, lsn, length)
    journal.flush()


class Read(NamedTuple):
    """What a broker that starts finds: blocks of events, and how the last segment ends."""

    blocks: list[Block]
    verdicts: list[Verdict]
    number: int

    @property
    def lsns(self) -> list[int]:
        return [block.first_lsn for block in self.blocks]


def read_journal(disk: Disk) -> Read:
    blocks, verdicts, number = [], [], 0
    numbers = segment_numbers(disk)
    headers = {each: read_header(disk.open(segment_path(each))) for each in numbers}
    for number in numbers:
        file = disk.open(segment_path(number))
        assert headers[number].number == number
        reader = BlockReader(file, headers[number])
        blocks += [block for block in reader if block.kind is BlockKind.EVENTS]
        is_last = number == numbers[-1]
        witnesses = witnesses_of(number, read_status(disk), headers.get(number + 1), is_last=is_last)
        verdicts.append(reader.verdict(witnesses))
    return Read(blocks, verdicts, number)


def last_block(disk: Disk) -> Block:
    """The last of the journal, a MARK or an END too."""
    file = disk.open(segment_path(segment_numbers(disk)[-1]))
    *_, last = BlockReader(file, read_header(file))
    return last
