"""What clients' sessions hold of the messages of a set: it comes first on their next links, or goes back."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import compress
from operator import not_

from qpid_ha_broker.model.queues.queue import Queue, SessionLink
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner, load_bodies
from qpid_ha_broker.model.sets.resources import Resources


def held_for(resources: Resources, queue: Queue, owner: SessionOwner) -> list[Entry]:
    """What is held for a link of a client's session, in the order in which it went out."""
    link = resources.catalog.holdings.find(*owner, queue)
    if link is None:
        return []
    by_id = {entry.id: entry for entry in queue.messages.find_all(sorted(link.ids))}
    return [by_id[message_id] for message_id in link.ids]


def release_held(resources: Resources, link: SessionLink, failed: bool, *, ids: AbstractSet[int] | None = None) -> None:
    """Give back what a link of a client's session holds, but for what an open transaction has accepted.

    `ids`: of that, these alone; None: all.
    `failed`: what its client may have seen counts as a failed delivery. What was never sent does not; it is marked all
    the same, because it comes back late: others may have got by now what was behind it.
    """
    queue = link.queue
    wanted = link.ids if ids is None else link.ids.keys() & ids
    held = [entry for entry in queue.messages.find_all(sorted(wanted)) if entry.holder is link]
    seen = [queue.is_redelivered(entry) for entry in held]
    resources.release(queue, list(compress(held, seen)), failed)
    resources.release(queue, list(compress(held, map(not_, seen))), failed=False)


def give_back_held(
    resources: Resources,
    link: SessionLink,
    epoch: int,
    failed: bool,
    *,
    ids: AbstractSet[int] | None = None,
    is_kept: Callable[[], bool] | None = None,
) -> None:
    """`release_held`, wherever the link was attached: as soon as what it holds is answered here. `epoch`: of the
    connection of the session for which that is done. `is_kept`: whether it is not to go back any more by then."""
    queue, owner = link.queue, link.owner

    def give_back() -> bool:
        if is_kept is not None and is_kept():
            return False
        there = resources.catalog.holdings.find(*owner, queue)
        if there is not None:
            release_held(resources, there, failed, ids=ids)
        return True

    resources.replication.when_answering(queue, owner, epoch, give_back)


def bodies_of(entries: list[Entry]) -> list[bytes]:
    """The bodies of what is held for a session. Those that are paged out are read now: for few at a time.

    What consumers hold is in memory, but not where it was acquired at another broker, or before a restart.
    """
    return load_bodies(entries)
