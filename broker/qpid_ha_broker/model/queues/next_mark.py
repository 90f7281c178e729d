"""What the log is to say next of how far a queue may be handed out: see `handout_marks`.

1. Somebody takes as fast as messages come: all of it may be, and the log says so once.
2. Many wait: a step ahead of what was handed out, and the next one when half of that is used up.
3. Many have come since below the mark, and nobody takes them: a step again, or all of them would be marked.
4. A message waits for a mark: one that covers it, at once.
5. The last mark is on its way: it is waited for.
"""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.events.types import EVERYTHING
from qpid_ha_broker.model.queues.queue import Queue

STEP_LENGTH: Final = 512
"""Messages that a mark is ahead of what is handed out: not many more than two steps may be marked that nobody had."""


def next_mark(queue: Queue, blocked_id: int) -> int | None:
    """See above; None: what the log says will do for now. `blocked_id`: of a message that waits for a mark, or 0."""
    mark, messages = queue.mark, queue.messages
    newest = max(mark.highest, blocked_id)
    come = messages.enqueued_total - mark.looked_at_total
    if come >= STEP_LENGTH and not blocked_id:
        mark.looked_at_total = messages.enqueued_total
        if 0 < messages.id_ahead(newest, 2 * STEP_LENGTH) < mark.upto:
            return messages.id_ahead(newest, STEP_LENGTH)
    if mark.upto == EVERYTHING or mark.settled != mark.upto:
        return None
    if blocked_id or mark.highest >= mark.renew_at:
        return messages.id_ahead(newest, STEP_LENGTH) or EVERYTHING
    takes_all = queue.dispatcher.has_takers_with_credit and not messages.id_ahead(newest, STEP_LENGTH)
    return EVERYTHING if takes_all else None
