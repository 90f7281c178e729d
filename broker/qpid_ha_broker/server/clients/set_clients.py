"""Whether this broker serves the clients of a resource set, and how their links to it end when it does not any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.runtime.due_parties import nobody_asks


class ServingHost(Protocol):
    """What is needed of the broker."""

    container: Container
    waiters: CommitWaiters


class SetClients:
    """The promise: clients of a set are served by its primary, until it begins to hand over, and by nobody else.

    `leads`: whether this broker is that now. `run_turn`: has the set's log written down to its end, before
    `ClientsEnded` is fed.
    """

    __slots__ = ("_broker", "_feed", "_hosted", "_is_leaving", "_is_over", "_leads", "_run_turn", "changed")

    def __init__(
        self,
        broker: ServingHost,
        hosted: HostedSet,
        leads: Callable[[], bool],
        feed: Callable[[fx.Input], None],
        run_turn: Callable[[], None],
    ) -> None:
        self._broker = broker
        self._hosted = hosted
        self._leads = leads
        self._feed = feed
        self._run_turn = run_turn
        self.changed: Callable[[], None] = nobody_asks
        """Called when the member's status may be another one, or whether clients are served."""
        self._is_leaving = False
        """Clients are about to be ended, because the core wants to be primary no more."""
        self._is_over = False

    @property
    def is_serving(self) -> bool:
        """Whether clients are served, and commands carried out."""
        return self._leads() and not (self._is_leaving or self._is_over)

    def update(self) -> None:
        """Serve clients, or refuse them: as it is now."""
        self._hosted.read_only = not self.is_serving

    def status_changed(self) -> None:
        """The core told of it."""
        self.changed()
        self.update()

    def end_now(self) -> None:
        """This broker is primary no more: clients go before a turn confirms anything, and who waits for one is told."""
        self._end()
        self._broker.waiters.refuse(self._hosted.resources)

    def _end(self) -> None:
        """A connection may have something of other sets: only the links to this one end."""
        error = ServedElsewhere(self._broker.container.directory, self._hosted.name)
        self._hosted.end_links(error, browsers=False)

    def end_soon(self, _effect: fx.EndClients) -> None:
        """Not at once: what comes in through a client's link may be what led to this. `ClientsEnded` follows."""
        self._is_leaving = True
        self.status_changed()
        asyncio.get_running_loop().call_soon(self._end_and_tell)

    def _end_and_tell(self) -> None:
        if self._is_over:
            return
        self._end()
        self._run_turn()
        self._feed(fx.ClientsEnded())
        self._is_leaving = False
        self.status_changed()

    def stop(self) -> None:
        """Nobody is served here any more, whatever state the core is in."""
        self._is_over = True
        self.update()
