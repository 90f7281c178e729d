"""What a broker does with its store: loads it before it serves anybody, and lets nothing be certain without it."""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from qpid_ha_broker.ha.keeping import Restored
from qpid_ha_broker.model.log import Batch
from qpid_ha_broker.model.paged import BodyDamaged
from qpid_ha_broker.server.pager import Pager
from qpid_ha_broker.server.restored import restored_from
from qpid_ha_broker.server.store import Store
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.recovery import Progress, Recovered

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

log = logging.getLogger("store")

WITNESS = "store"
RETURN_S = 10.0
"""After a restart: how long exclusive queues are kept for who had them, and those that delete themselves for all."""


class Loaded(NamedTuple):
    """What a store held, besides the state; `restored`: what a member of a cluster makes of it, None outside."""

    found: Recovered
    restored: Restored | None


class BrokerStore:
    """The promise: what has to be kept is confirmed only once it is, and nothing is lost on the way to the store.

    In a cluster the replicated log is the core's to have kept; the broker's own log is ours in any case.
    """

    def __init__(self, broker: Broker, store: Store) -> None:
        self.store = store
        self.is_alone = not broker.current().ha.cluster
        self._broker = broker
        self._resources = broker.container.resources
        self._is_in_turn = False
        self.pager: Pager
        """Since `begin`."""
        self._has_news = False
        """Something was kept since the clients were last told what is certain."""

    def read(self, show: Progress) -> Loaded:
        """Have what the store holds. Blocks; whoever calls this keeps everybody else from the resources meanwhile.

        `show` hears how far it is. Raises StoreError.
        """
        found = self.store.recover(self._resources, apply_all=self.is_alone, show=show)
        if self.is_alone:
            return Loaded(found, None)
        try:
            return Loaded(found, restored_from(self.store.disk, found, self._broker.current().ha.tail_bytes))
        except OSError as error:
            raise StoreError(f"the store in {self.store.directory} cannot be used: {error}") from error

    def begin(self, found: Recovered) -> None:
        """It was read; the loop runs."""
        resources = self._resources
        pager = Pager(resources, self.store.bodies, self._memory_bytes(), self._broker.schedule_turn, self._unreadable)
        self.pager = self.store.pager = pager
        pager.start(found.next_number)
        resources.local_log.add_witness(WITNESS)
        if self.is_alone:
            resources.log.add_witness(WITNESS)
            self._broker.container.configuration.declare_standard_exchanges()
            resources.take_over(int(time.time() * 1000), int(RETURN_S * 1000))
        self.store.start(self)

    def turn_ended(self, batch: Batch | None) -> None:
        """Keep what the turn wrote. What has not to be kept is certain at once: clients are told in this turn."""
        self._is_in_turn = True
        try:
            self._keep(batch)
        except Exception as error:  # what is missing in the journal now must never seem to be there
            log.exception("a bug: %s", error)
            self._broker.fail(f"a bug in the store ({type(error).__name__}); the log has it")
        finally:
            self._is_in_turn = False
        if self._has_news:
            self._has_news = False
            self._broker.container.tell_what_is_certain()

    def _keep(self, batch: Batch | None) -> None:
        resources, store = self._resources, self.store
        if store.health == "failed":
            return
        store.keep_local(resources.local_log.take_parts())
        if batch is not None and self.is_alone and store.keep(batch, resources.log.committed_lsn):
            self.kept(batch.last_lsn, 0, 0)

    def tick(self) -> None:
        """Four times a second."""
        self.pager.paging.memory_bytes = self._memory_bytes()
        if self.is_alone:
            self.store.note_committed(self._resources.log.committed_lsn)
        self.store.tick()
        self.pager.tick()

    def facts(self) -> dict[str, object]:
        """What `query` tells of it."""
        return {**self.store.facts(), **self.pager.facts()}

    def _memory_bytes(self) -> int:
        """Below the limit at which publishers have to wait, whatever the settings say."""
        settings = self._broker.current()
        return min(settings.store.memory_bytes, settings.memory_limit_bytes * 3 // 4)

    def _unreadable(self, problem: BodyDamaged) -> None:
        """A message cannot be given out, and none behind it may be: a broker with a good copy should take over.

        One that is alone serves the other queues; the log and `unreadable_messages` tell the operator of this one.
        """
        if self._broker.membership is not None:
            self.store_failed(f"{problem}; run qpid-ha store check")

    # --- see store.StoreListener

    def kept(self, lsn: int, local_lsn: int, number: int) -> None:
        """On disk up to there."""
        resources = self._resources
        if local_lsn:
            resources.local_log.acknowledge(WITNESS, local_lsn)
        if self.is_alone:
            if lsn:
                resources.log.acknowledge(WITNESS, lsn)
        elif number and self._broker.membership is not None:
            self._broker.membership.kept(number)
        if self._is_in_turn:
            self._has_news = True
        else:
            self._broker.schedule_turn()

    def store_failed(self, text: str) -> None:
        """Nothing is kept any more."""
        membership = self._broker.membership
        try:
            if membership is None:
                raise StoreError(text)
            membership.store_failed(text)
        except StoreError as error:
            self._broker.fail(str(error))

    # --- the end

    async def close(self, clean: str) -> None:
        """The last turn is over. A broker that is alone, and did not fail, is always whole."""
        if self.is_alone and not self._broker.failure:
            clean = clean or uuid.uuid4().hex
            self.store.note_committed(self._resources.log.last_lsn)
        self.pager.stop()
        await self.store.close(clean)
