"""Which member hands out from a queue, who waits for it, and whose its messages are, as one member knows it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.parts import GroupParts
from qpid_ha_broker.model.queues.sequence import SessionOwner


class QueueUse:
    """Of one member. What it says follows from what was delivered to it."""

    def __init__(self, parts: GroupParts) -> None:
        self._parts = parts

    def may_hand_out(self, queue: int) -> bool:
        """Whether consumers here get messages of the queue, as far as `committed_lsn`."""
        if self._parts.log is None or self._parts.role is not GroupRole.SERVING or queue in self._parts.yielding:
            return False
        lineage = self._parts.log.lineage
        owner, since = lineage.ownership.owner(queue)
        return owner == self._parts.ctx.settings.name and since <= lineage.stable_position

    def may_take(self, queue: int, ids: Collection[int]) -> bool:
        """Whether these messages are this member's: to remove, or to give back."""
        log = self._parts.log
        return log is not None and log.lineage.ownership.may_take(queue, self._parts.ctx.settings.name, ids)

    def has_link(self, queue: int, link: SessionOwner) -> bool:
        """Whether a session's link is attached here, so that what the session holds on it is answered here."""
        log = self._parts.log
        return log is not None and log.lineage.ownership.link_at(queue, link) == self._parts.ctx.settings.name

    def has_named(self, queue: int) -> bool:
        """Whether this member has named messages of the queue as held here when it yielded it."""
        return self._parts.ctx.settings.name in self.held(queue).values()

    def held(self, queue: int) -> Mapping[int, str]:
        """Ids of messages that were out when their holders yielded, with these."""
        return self._parts.log.lineage.ownership.held(queue) if self._parts.log is not None else {}

    def is_wanted_elsewhere(self, queue: int) -> bool:
        """Whether another member owns the queue, waits for it, or has a client who has it alone."""
        if self._parts.log is None:
            return False
        ownership = self._parts.log.lineage.ownership
        users = {ownership.owner(queue)[0], *ownership.wanting(queue), ownership.user(queue)}
        return bool(users - {"", self._parts.ctx.settings.name})

    def is_anybodys(self, queue: int) -> bool:
        """Whether no client of any member has the exclusive queue."""
        return self._parts.log is None or not self._parts.log.lineage.ownership.user(queue)

    def others_want(self, queue: int) -> bool:
        """Whether another member waits for the queue."""
        return self._parts.log is not None and bool(self._parts.log.lineage.ownership.wanting(queue))

    def owner(self, queue: int) -> str:
        """Who owns the queue, as far as this member was delivered; empty: nobody."""
        return self.users(queue)[0]

    def users(self, queue: int) -> tuple[str, tuple[str, ...]]:
        """The owner of the queue, and who waits for it, in order."""
        if self._parts.log is None:
            return "", ()
        ownership = self._parts.log.lineage.ownership
        return ownership.owner(queue)[0], ownership.wanting(queue)

    @property
    def moved(self) -> Iterable[int]:
        """What `take_moved` would return."""
        return () if self._parts.log is None else tuple(self._parts.log.lineage.ownership.moved)

    def take_moved(self) -> Mapping[int, int]:
        """Queues of which others became the owner, or wait, since the last call; and how often any member did."""
        if self._parts.log is None:
            return {}
        ownership = self._parts.log.lineage.ownership
        moved, ownership.moved = ownership.moved, {}
        return moved
