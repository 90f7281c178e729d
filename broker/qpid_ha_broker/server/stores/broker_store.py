"""What a broker does with the store of a set itself: loads it before anybody is served, and keeps its own log in it.

The replicated log is the member's to have kept: see `member_store`.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.paging import share_of
from qpid_ha_broker.model.queues.paged import BodyDamaged
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.runtime.steady_clock import machine_time
from qpid_ha_broker.server.stores.pager import Pager
from qpid_ha_broker.server.stores.restored import restored_from
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.server.stores.store_clock import StoreClock
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.recovery import Progress, Recovered
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("store")

SHARES = 64
"""So small a part of the memory is left to a set at least, however much the others have that cannot leave it."""
WITNESS = "store"
"""Of the broker's own log."""


class Loaded(NamedTuple):
    """What a store held, besides the state; `restored`: what the member makes of it."""

    found: Recovered
    restored: Restored


class StoreOwner(Protocol):
    """What drives the member whose log is kept."""

    is_standalone: bool

    @property
    def committed_lsn(self) -> int:
        """How far the log is committed, as far as is known here."""

    def persisted(self, number: int) -> None:
        """The store holds what was asked for under that number."""

    def store_writable(self, problem: str) -> None:
        """Why the store takes nothing now; empty: it does."""

    def store_failed(self, text: str) -> None:
        """Nothing more can be stored. Raises StoreError where the member must not go on so."""

    def fail(self, reason: str) -> None:
        """The member must not go on."""


class BrokerStore:
    """The promise: what the broker's own log has to keep is confirmed only once it is; nothing is lost on the way."""

    def __init__(
        self, broker: Host, store: Store, resources: Resources, pager_threads: ThreadPoolExecutor | None = None
    ) -> None:
        """`pager_threads`: shared with other sets; None: some of its own."""
        self.store = store
        self._pager_threads = pager_threads
        self.owner: StoreOwner
        """Since there is a member."""
        self._broker = broker
        self._sets = resources.sets
        self._hosted: HostedSet
        """Since `begin`."""
        self.pager: Pager
        """Since `begin`."""
        self._clock: StoreClock
        """Since `read`."""
        self._is_clock_written = True
        """None of its writes is on its way."""

    def read(
        self,
        settings: MemberSettings,
        show: Progress = lambda done_bytes, total_bytes: None,
        *,
        apply_all: bool = False,
    ) -> Loaded:
        """Have what the store holds. Blocks; whoever calls this keeps everybody else from the resources meanwhile.

        `show` hears how far it is. `apply_all`: also what may not have been committed, as where nobody else has a copy.
        Raises StoreError.
        """
        found = self.store.recover(self._sets, apply_all=apply_all or settings.is_standalone, show=show)
        try:
            self._clock = StoreClock(
                self.store.files.disk, self._sets.catalog.clock, machine_time, self._broker.container.steady.now_ms
            )
            self._clock.restore()
            return Loaded(found, restored_from(self.store.files.disk, found, settings.tail_bytes))
        except OSError as error:
            raise StoreError(f"the store in {self.store.directory} cannot be used: {error}") from error

    def begin(self, found: Recovered, hosted: HostedSet) -> None:
        """It was read, and is what `hosted` has; the loop runs."""
        self._hosted = hosted
        pager = Pager(
            self._sets.catalog,
            self.store.files.bodies,
            self._memory_bytes(),
            self._turn_again,
            self._unreadable,
            self._pager_threads,
        )
        self.pager = pager
        pager.start(found.next_number)
        if self._sets.has_local:
            self._sets.local_log.add_witness(WITNESS)
        self.store.start(self, pager)

    def _turn_again(self) -> None:
        self._hosted.touch()
        self._broker.schedule_turn()

    def turn_ended(self) -> None:
        """Keep what the turn wrote to the broker's own log."""
        if self.store.health == "failed":
            return
        try:
            self.store.persist_local(self._sets.take_local_parts())
        except Exception as error:  # what is missing in the journal now must never seem to be there
            log.exception("a bug: %s", error)
            self.owner.fail(f"a bug in the store ({type(error).__name__}); the log has it")

    def tick(self) -> None:
        """Four times a second."""
        self.pager.paging.memory_bytes = self._memory_bytes()
        self.store.appender.note_committed(self.owner.committed_lsn)
        self.store.tick()
        self.pager.tick()
        if self._is_clock_written and self.store.health == "ok" and self._clock.is_due:
            self._is_clock_written = False
            self.store.writer.run(self._clock.write, self._clock_written)

    def _clock_written(self) -> None:
        self._is_clock_written = True

    def facts(self) -> dict[str, object]:
        """What `query` tells of it."""
        return {**self.store.facts(), **self.pager.facts()}

    def _memory_bytes(self) -> int:
        """Below the limit at which publishers have to wait, whatever the settings say; the set's share of that."""
        settings = self._broker.current()
        limit_bytes = min(settings.store.memory_bytes, settings.memory_limit_bytes * 3 // 4)
        share_bytes = share_of(limit_bytes, self._sets.catalog.memory_bytes, self._broker.container.memory_bytes)
        return max(share_bytes, limit_bytes // SHARES)

    def _unreadable(self, problem: BodyDamaged) -> None:
        """A message cannot be given out, and none behind it may be: a broker with a good copy should take over.

        A standalone one serves the other queues; the log and `unreadable_messages` tell the operator of this one.
        """
        if not self.owner.is_standalone:
            self.store_failed(f"{problem}; run qpid-ha store check")

    # --- see store.StoreListener

    def persisted(self, local_lsn: int, number: int) -> None:
        """On disk up to there."""
        if self._sets.has_local:
            local_log = self._sets.local_log
            before = local_log.committed_lsn
            local_log.acknowledge(WITNESS, local_lsn)
            if local_log.committed_lsn != before:
                self._hosted.touch()
                self._broker.tell_committed()
        if number:  # whether that commits anything, the member knows
            self.owner.persisted(number)

    def store_writable(self, problem: str) -> None:
        """The disk has room, or none."""
        self.owner.store_writable(problem)

    def store_failed(self, text: str) -> None:
        """Nothing is kept any more."""
        try:
            self.owner.store_failed(text)
        except StoreError as error:
            self.owner.fail(str(error))

    # --- the end

    async def close(self, clean: str) -> None:
        """The last turn is over; `clean`: the UUID under which the store is whole, empty if it is not."""
        self.pager.stop()
        self.store.appender.note_committed(self.owner.committed_lsn)
        if self.store.health != "failed":
            self.store.writer.run(self._clock.write)
        await self.store.close(clean)


def check_dirty(settings: BrokerSettings, found: StoreOrigin, set_name: str) -> None:
    """Raises StoreError for the store of a set that `ha.dirty-store` does not let in."""
    if not settings.ha.cluster or found is not StoreOrigin.DIRTY or settings.ha.dirty_store != "refuse":
        return
    where, best = f"{settings.data_dir}", "qpid-ha store best"
    if set_name != DEFAULT_SET:
        where, best = f"{settings.data_dir}/{set_name}", f"{best} --set {set_name}"
    raise StoreError(
        f"the store in {where} was not closed in order, and ha.dirty-store is refuse: compare it with"
        f" the others (`{best}`), then start this broker with ha.dirty-store=rejoin, or set it aside"
    )
