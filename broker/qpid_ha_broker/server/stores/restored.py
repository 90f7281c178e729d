"""What a member of a cluster has from its store when it starts."""

from __future__ import annotations

from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.replica import Held, Restored
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.store.blocks import Block, BlockKind
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.reading import open_blocks
from qpid_ha_broker.store.recovery import Recovered
from qpid_ha_broker.store.status import Status


def restored_from(disk: Disk, found: Recovered, tail_bytes: int) -> Restored:
    """Besides the state. Raises OSError."""
    if found.is_empty:
        return Restored(StoreOrigin.MEMORY)
    status = found.status
    return Restored(
        StoreOrigin.CLEAN if found.was_clean else StoreOrigin.DIRTY,
        tuple(Held(batch.last_lsn, batch.records, batch.behind) for batch in found.held),
        found.lost_transient,
        status.promised if status is not None else 0,
        status.promised_to if status is not None else "",
        status.known_claims if status is not None else (),
        _end_of_stream(disk, found, tail_bytes),
        status is not None and _is_chosen(status, found),
    )


def _is_chosen(status: Status, found: Recovered) -> bool:
    """The choice was about a store that ends just there: one that went on since has to be compared again."""
    return status.chosen is not None and status.chosen[:2] == (status.generation, found.journal_lsn)


def _end_of_stream(disk: Disk, found: Recovered, tail_bytes: int) -> Tail:
    """As much of the replicated log as a backup would have held in memory, if nothing was left out of it."""
    wanted, total = len(found.segments), 0
    while wanted and total < tail_bytes:
        wanted -= 1
        total += found.segments[wanted].end
    tail = Tail(tail_bytes)
    for segment in found.segments[wanted:]:
        with open_blocks(disk, segment.path, segment.header, limit=segment.end) as reader:
            for block in reader:
                _follow(tail, block)
    return tail


def _follow(tail: Tail, block: Block) -> None:
    if block.kind is BlockKind.TAKEN_BACK:
        tail.truncate_after(min(block.last_lsn, tail.last_lsn))
    elif block.kind is BlockKind.EVENTS and not block.is_local:
        if block.left_out:
            tail.reset(block.last_lsn)
            return
        if block.first_lsn != tail.last_lsn + 1:
            tail.reset(block.first_lsn - 1)
        tail.append(block.first_lsn, block.last_lsn, block.data)
