"""A member's store: does what the core wants kept, and keeps STATUS to what the core knows."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import (
    Acquired,
    Annotated,
    Dequeued,
    Enqueued,
    Released,
    SessionAcquired,
    TransactionCommitted,
)
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.queue_arguments import StoreErrorPolicy as Policy
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.store.errors import StoreError

log = logging.getLogger("store")

LEVEL = (State.READY, State.PRIMARY)
BEHIND_BYTES: Final = 64 * 1024 * 1024
"""Waiting for the disk: so far behind the stream, a backup reads no more of it."""


StoreInput = fx.Persisted | fx.CheckpointPersisted | fx.StoreFailed
"""What it tells the core, of whichever kind."""


class MemberStore:
    """The promise: requests reach the store in the order of the effects; each is answered to `feed` once it holds."""

    def __init__(self, store: Store, catalog: Catalog, feed: Callable[[StoreInput], None]) -> None:
        self._store = store
        self._catalog = catalog
        self._feed = feed
        self._described: dict[str, object] = {}
        self._failure = ""
        self._checkpoint = 0
        """Number of the checkpoint that the store is writing; 0: none."""
        self._waiting: deque[fx.Persist] = deque()
        self._policy: Policy | None = None
        """Once the disk has failed, and this backup goes on without it: the one for queues that have none."""

    def has_room(self) -> bool:
        """Whether more of the stream may come: what the disk does not take waits in memory."""
        return self._policy is not None or self._store.writer.waiting_bytes < BEHIND_BYTES

    def persist(self, effect: fx.Persist) -> None:
        """A batch of the stream."""
        number, first_lsn, last_lsn, committed_lsn, transient, data = effect
        if self._policy is not None:
            self._check_may_lose(effect, self._policy)
            self._feed(fx.Persisted(number))
        elif self._store.persist(LogBatch(first_lsn, last_lsn, data, transient), committed_lsn, number):
            self._feed(fx.Persisted(number))
        else:
            self._waiting.append(effect)

    def persisted(self, number: int) -> None:
        """It is on disk, with all before it."""
        while self._waiting and self._waiting[0].number <= number:
            self._waiting.popleft()
        self._feed(fx.Persisted(number))

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
            self._feed(fx.Persisted(effect.number))
        if self._checkpoint:
            self._checkpoint_persisted(self._checkpoint)

    def _check_may_lose(self, effect: fx.Persist, policy: Policy) -> None:
        """Whether all that `effect` wants stored may stay in memory. Raises StoreError naming who minds.

        What is about messages, their queue decides; what is about more than that, `policy`.
        """
        for _, event, _ in decode(effect.data).records:
            if isinstance(event, Enqueued):
                queues = event.queues if event.durable else ()
            elif isinstance(event, Dequeued | Acquired | Annotated | Released | SessionAcquired):
                queues = (event.queue,)
            elif isinstance(event, TransactionCommitted) or policy is Policy.CONTINUE:
                continue
            else:
                raise StoreError(self._failure)
            for queue_id in queues:
                queue = self._catalog.queues_by_id.get(queue_id)
                own = None if queue is None else queue.arguments.store_error
                if (own or policy) is Policy.ABORT:
                    name = queue_id if queue is None else queue.name
                    raise StoreError(f"{self._failure} (it concerns queue {name}, which must not go on without)")

    def truncate(self, effect: fx.TruncateLog) -> None:
        """The end of the stream is void."""
        self._store.appender.truncate(effect.lsn)

    def begin_checkpoint(self, effect: fx.BeginCheckpoint) -> None:
        """The state follows from no log."""
        self.begin_checkpoint_at(effect.lsn)

    def begin_checkpoint_at(self, lsn: int) -> None:
        """The log ends at `lsn` now, by what no log tells."""
        self._store.checkpoints.begin(lsn)

    def write_checkpoint(self, effect: fx.WriteCheckpoint) -> None:
        """The state is whole again."""
        self._checkpoint = effect.number
        if self._policy is None:
            self._store.checkpoints.write(lambda: self._checkpoint_persisted(effect.number))
        else:
            self._checkpoint_persisted(effect.number)

    def _checkpoint_persisted(self, number: int) -> None:
        self._checkpoint = 0
        self._feed(fx.CheckpointPersisted(number))

    def persist_vote(self, effect: fx.PersistVote) -> None:
        """On disk before anything else is done. Raises StoreError."""
        self._store.persist_vote(*effect)

    def describe(self, status: fx.MemberStatus) -> None:
        """Let the store's STATUS tell what the member is now."""
        self.describe_as(
            cluster=status.cluster,
            history=status.history,
            role=status.state.value,
            epoch=status.epoch,
            members=status.members,
            is_level=status.state in LEVEL,
        )

    def describe_as(self, *, is_level: bool, **facts: object) -> None:
        """The same, in the fields of STATUS. `is_level`: which store was chosen is of no interest any more."""
        if facts != self._described:
            self._described = facts
            self._store.describe(**facts, **({"chosen": None} if is_level else {}))
