"""What the log is to say next of how far a queue may be handed out: see `handout_marks`.

1. Somebody takes as fast as messages come: all of it may be, and the log says so once.
2. Many wait: a step ahead of what was handed out, and the next one when half of that is used up.
3. All of it may be, and many have come since that nobody takes: what was handed out, and a step.
4. A message waits for a mark: one that covers it, at once.
5. The last mark is on its way: it is waited for, unless it is to be lower.
"""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.events.types import EVERYTHING
from qpid_ha_broker.model.queue import Queue

STEP_LENGTH: Final = 512
"""Messages that a mark is ahead of what is handed out: about so many may be marked that nobody had."""


def next_mark(queue: Queue, blocked_id: int) -> int | None:
    """What the log is to say next of how far `queue` may be handed out; None: what it says will do for now.

    `blocked_id`: of a message that waits for a mark; 0: none does.
    """
    mark, messages = queue.mark, queue.messages
    waiting = messages.count - messages.acquired
    newest = max(mark.highest, blocked_id)
    if mark.upto == EVERYTHING:
        # What nobody takes would be marked, too: more than so many of those are worth an event.
        if blocked_id or waiting <= 2 * STEP_LENGTH or messages.enqueued_total - mark.looked_at_total < STEP_LENGTH:
            return None
        mark.looked_at_total = messages.enqueued_total
        return None if _are_few(queue, newest, 2 * STEP_LENGTH) else _ahead(queue, newest, waiting)
    if mark.settled != mark.upto:
        return None
    if waiting <= STEP_LENGTH:
        return EVERYTHING if blocked_id or queue.dispatcher.has_takers_with_credit else None
    if blocked_id or mark.highest >= mark.renew_at:
        return EVERYTHING if _are_few(queue, newest, STEP_LENGTH) else _ahead(queue, newest, waiting)
    return None


def _are_few(queue: Queue, newest: int, most: int) -> bool:
    """Whether at most so many messages are above `newest`. Those below are marked in any case."""
    entries = queue.messages.newest_before(EVERYTHING, most + 1)
    return len(entries) <= most or entries[0].id <= newest


def _ahead(queue: Queue, newest: int, waiting: int) -> int:
    """An id below which some `STEP_LENGTH` messages above `newest` lie, if they are spaced alike."""
    distance = max(queue.messages.newest_id(EVERYTHING) - newest, waiting)
    return newest + distance * STEP_LENGTH // waiting
