"""A member's store: does what the core wants kept, and keeps STATUS to what the core knows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Acquired, Dequeued, Enqueued, Released, TransactionCommitted
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.log import Batch
from qpid_ha_broker.model.queue_arguments import StoreError as Policy
from qpid_ha_broker.model.state import State as Content
from qpid_ha_broker.server.store import Store
from qpid_ha_broker.store.errors import StoreError

log = logging.getLogger("store")

LEVEL = (State.READY, State.PRIMARY)
BEHIND_BYTES: Final = 64 * 1024 * 1024
"""Waiting for the disk: so far behind the stream, a backup reads no more of it."""


class MemberStore:
    """The promise: requests reach the store in the order of the effects; each is answered to `feed` once it holds."""

    def __init__(self, store: Store, content: Content, feed: Callable[[fx.Input], None]) -> None:
        self._store = store
        self._content = content
        self._feed = feed
        self._told: tuple[object, ...] = ()
        self._failure = ""
        self._base = 0
        """Number of the base that the store is making; 0: none."""
        self._waiting: deque[fx.Keep] = deque()
        self._policy: Policy | None = None
        """Once the disk has failed, and this backup goes on without it: the one for queues that have none."""

    def has_room(self) -> bool:
        """Whether more of the stream may come: what the disk does not take waits in memory."""
        return self._policy is not None or self._store.writer.waiting_bytes < BEHIND_BYTES

    def keep(self, effect: fx.Keep) -> None:
        """A batch of the stream."""
        number, first_lsn, last_lsn, committed_lsn, transient, data = effect
        if self._policy is not None:
            self._check_may_lose(effect, self._policy)
            self._feed(fx.Kept(number))
        elif self._store.keep(Batch(first_lsn, last_lsn, data, transient), committed_lsn, number):
            self._feed(fx.Kept(number))
        else:
            self._waiting.append(effect)

    def kept(self, number: int) -> None:
        """It is on disk, with all before it."""
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()
        self._feed(fx.Kept(number))

    def go_on_without(self, text: str, policy: Policy) -> None:
        """The disk has failed, and this is a backup: do as its settings and its queues say. Raises StoreError."""
        self._policy, self._failure = policy, text
        waiting, self._waiting = self._waiting, deque()
        if policy is Policy.ABORT and not waiting:
            raise StoreError(text)
        for effect in waiting:
            self._check_may_lose(effect, policy)
        log.critical("%s; going on in memory, as ha.store-error or the queues say", text)
        self._feed(fx.StoreFailed())
        for effect in waiting:
            self._feed(fx.Kept(effect.number))
        if self._base:
            self._base_kept(self._base)

    def _check_may_lose(self, effect: fx.Keep, policy: Policy) -> None:
        """Whether all that `effect` wants stored may stay in memory. Raises StoreError naming who minds.

        What is about messages, their queue decides; what is about more than that, `policy`.
        """
        for _, event, _ in decode(effect.data).records:
            if isinstance(event, Enqueued):
                queues = event.queues if event.durable else ()
            elif isinstance(event, Dequeued | Acquired | Released):
                queues = (event.queue,)
            elif isinstance(event, TransactionCommitted) or policy is Policy.CONTINUE:
                continue
            else:
                raise StoreError(self._failure)
            for queue_id in queues:
                queue = self._content.queues_by_id.get(queue_id)
                own = None if queue is None else queue.arguments.store_error
                if (own or policy) is Policy.ABORT:
                    name = queue_id if queue is None else queue.name
                    raise StoreError(f"{self._failure} (it concerns queue {name}, which must not go on without)")

    def take_back(self, effect: fx.TakeBack) -> None:
        """The end of the stream is void."""
        self._store.take_back(effect.lsn)

    def begin_base(self, effect: fx.BeginBase) -> None:
        """The state follows from no log."""
        self._store.reset(effect.lsn)
        self._store.begin_base()

    def dump_base(self, effect: fx.DumpBase) -> None:
        """The state is whole again."""
        self._base = effect.number
        if self._policy is None:
            self._store.dump_base(lambda: self._base_kept(effect.number))
        else:
            self._base_kept(effect.number)

    def _base_kept(self, number: int) -> None:
        self._base = 0
        self._feed(fx.BaseKept(number))

    def remember(self, effect: fx.Remember) -> None:
        """On disk before anything else is done. Raises StoreError."""
        self._store.remember(*effect)

    def describe(self, member: Member) -> None:
        """Let STATUS tell what `member` is now, and the journal what is certain.

        What STATUS says of a cluster stays as it is while the broker is in none.
        """
        self._store.note_committed(member.committed_lsn)
        if member.is_standalone:
            return
        now = member.state, member.generation, member.epoch, member.members, member.cluster
        if now == self._told:
            return
        self._told = now
        history = tuple((line["generation"], line["primary"], line["first_lsn"]) for line in member.history())
        facts = {"cluster": member.cluster, "history": history, "role": member.state.value}
        chosen = {"chosen": None} if member.state in LEVEL else {}
        self._store.describe(**facts, epoch=member.epoch, members=member.members, **chosen)
