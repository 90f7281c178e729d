"""What becomes of queues when a broker that followed another one's log begins to write it.

It knows about how far the last primary had handed out each queue (`handout_marks`): what lies below goes out marked as
perhaps delivered before. Queues whose users are gone are kept for a while. The cost is that of the queues, never of
their messages: a failover must not take longer because more was waiting.
"""

from __future__ import annotations

from collections.abc import Iterable

from qpid_ha_broker.events.joined_names import SEPARATOR, joined, names_of
from qpid_ha_broker.model.errors import InUse
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.queues.handout_marks import SetMarks
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.timed_queues import TimedQueues, has_times


def take_over_queues(queues: Iterable[Queue], log: Log, marks: SetMarks, now_ms: int, grace_ms: int) -> TimedQueues:
    """Prepare `queues` for consumers; returns those that time will change, in order. `log` is the set's."""
    timed = TimedQueues()
    marks.inherited = min(marks.inherited, log.last_lsn)
    for queue in queues:
        before = max(marks.inherited, queue.mark.upto) if queue.log is log else queue.log.last_lsn
        queue.redelivered_below = queue.mark.highest = min(before, queue.log.last_lsn)
        queue.exclusive_owner = None
        if queue.arguments.exclusive or queue.arguments.auto_delete:
            queue.reserve(now_ms + grace_ms)
        if queue.arguments.auto_delete or has_times(queue):
            timed[queue] = None
            timed.note_scheduled(queue)
    return timed


def check_owner(queue: Queue, owner: object, name: str, now_ms: int) -> None:
    """Raises InUse where somebody else has `queue`, or it is kept for one who had it before a failover."""
    if queue.exclusive_owner not in (None, owner):
        raise InUse(f"queue {queue.name} is exclusive, and another connection has it")
    if queue.exclusive_owner is None:
        _check_reservation(queue, name, now_ms)


def owner_name(user: str, container: str) -> str:
    """By what a client is known when it comes back for a queue that it has alone: clients choose container ids, so by
    its user, too."""
    return joined((user, container))


def _check_reservation(queue: Queue, name: str, now_ms: int) -> None:
    owners = ["", name]
    if SEPARATOR not in queue.owner:  # a release wrote it that knew the container id alone
        owners += names_of(name)[1:]
    if now_ms < queue.reserved_until_ms and queue.owner not in owners:
        left_s = (queue.reserved_until_ms - now_ms) / 1000
        raise InUse(
            f"queue {queue.name} is exclusive, and kept for the client that had it before the failover:"
            f" try again in {left_s:.1f} s"
        )


def safe_name(name: str) -> str:
    """The name of an owner as a record can hold it: peers choose it, so it may be of any length and hold anything."""
    return name.encode("utf-8", "replace")[:_OWNER_BYTES].decode("utf-8", "ignore")


_OWNER_BYTES = 1024
