"""When the broker makes its move, and who is asked at its end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.sets.timed_queues import NEVER_MS
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.runtime.due_parties import DueParties, TurnPlace
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_broker.server.sets.outside import OutsideBrokers
from qpid_ha_broker.server.sets.set_cluster import SetCluster
from qpid_ha_broker.server.sets.turn_timer import TurnTimer
from qpid_ha_broker.server.stores.broker_store import BrokerStore
from qpid_ha_broker.server.stores.loading import StoreLoading

DUE_SOON_MS: Final = 500
"""Before a message is due that is so later, there will have been a tick."""


class TurnsHost(Host, Protocol):
    """What is needed of the broker."""

    membership: Membership
    sets: SetCluster | None
    outside: OutsideBrokers
    waiters: CommitWaiters
    broker_store: BrokerStore | None
    loading: StoreLoading | None

    def set_time(self) -> None:
        """Let the container know what time it is."""

    def flush_touched(self) -> None:
        """Write what links have for their peers."""


class Turns:
    """The promise: what happened in a round of the loop is written, told and sent at its end; who has nothing is not
    asked.

    What was only committed is told without a turn: there is no move to make, unless that is found out. In both cases
    the parties at `due` are asked last.
    """

    def __init__(self, broker: TurnsHost) -> None:
        self.due = DueParties()
        self._broker = broker
        self._is_due = False
        self._has_news = False
        """Something was committed of which clients may not have been told yet."""
        self._due_soon: dict[HostedSet, None] = {}
        """Sets in which a message is due that waits, before the next tick."""
        self._timer = TurnTimer(self._something_is_due)
        """Of these."""
        self._others: Sequence[tuple[HostedSet, LogBatch | None]] = ()
        """The sets other than `default` that had the last turn, with what it wrote."""
        container = broker.container
        self.due.join(TurnPlace.MEMBERS, self._tell_members)
        self.due.join(TurnPlace.CONNECTIONS, broker.flush_touched)
        remotes, waiters = broker.outside.remotes, broker.waiters
        remotes.unflushed.due = self.due.join(TurnPlace.REMOTES, remotes.flush)
        waiters.due = self.due.join(TurnPlace.WAITERS, waiters.turn_ended)
        notices = self.due.join(TurnPlace.NOTICES, lambda: broker.notices.log(container.take_notices()))
        container.notices.due = notices
        container.notices.events.due = self.schedule

    def schedule(self) -> None:
        """Have a turn at the end of this round of the loop."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.run)

    def tell_committed(self) -> None:
        """Something was committed: have those told who wait for it, at the end of this turn, or without one."""
        if not (self._has_news or self._is_due or self._broker.is_in_turn):
            asyncio.get_running_loop().call_soon(self._tell_between)
        self._has_news = True

    def run(self) -> None:
        """Make the broker's move, and write to everybody what came of it."""
        broker, container = self._broker, self._broker.container
        self._is_due = self._has_news = False
        broker.set_time()
        if broker.loading is not None:  # there is no move to make, and nobody to serve
            broker.flush_touched()
            broker.notices.log(container.notices.take())
            return
        sets = broker.sets
        if sets is not None and sets.proxying is not None and sets.proxying.awaits_flush:
            broker.flush_touched()  # what is relayed has nothing to do with the move
            sets.proxying.flush()
        if sets is not None:
            sets.service.turn_begins()
        (_, batch), *others = container.turn()
        for hosted in (container.default, *(hosted for hosted, _ in others)):
            next_due_ms = hosted.resources.catalog.timed.next_due_ms
            if next_due_ms != NEVER_MS:
                self._turn_when_due(hosted, next_due_ms - hosted.now_ms)
        broker.is_in_turn = True
        broker.membership.default.turn_ended(batch)
        if others:
            self._others = others
            self.due.put(TurnPlace.MEMBERS)
        self.due.ask_writers()
        broker.is_in_turn = False
        if self._has_news:
            self._has_news = False
            container.tell_what_is_committed()
        self._end()
        if broker.broker_store is not None:
            broker.broker_store.pager.turn()
        if others and sets is not None:
            sets.turn_pagers(others)

    def _turn_when_due(self, hosted: HostedSet, in_ms: int) -> None:
        """Have a turn then, at the latest, in which is handed out what waits."""
        if in_ms <= DUE_SOON_MS and not hosted.read_only:
            self._due_soon[hosted] = None
            self._timer.set(time.monotonic() + max(in_ms, 1) / 1000)

    def _something_is_due(self) -> None:
        due, self._due_soon = self._due_soon, {}
        for hosted in due:
            hosted.tick_in_turn()
        self.schedule()

    def _tell_between(self) -> None:
        if not self._has_news:  # a turn was faster
            return
        self._has_news = False
        self._broker.set_time()
        self._broker.container.tell_what_is_committed(in_turn=False)
        self._end()

    def _tell_members(self) -> None:
        others, self._others = self._others, ()
        if self._broker.sets is not None:
            self._broker.sets.hosts.turn_ended(others)

    def _end(self) -> None:
        due, container = self.due, self._broker.container
        due.put(TurnPlace.CONNECTIONS)
        if container.visited:  # what was done in `default` its configuration says itself
            due.put(TurnPlace.NOTICES)
        due.ask()
        if due.are_due or container.has_work:
            self.schedule()
