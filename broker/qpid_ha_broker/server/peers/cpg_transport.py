"""The transport of groups over Corosync, on the event loop: one process group for each.

So the daemon knows who is in which group, and nobody of one waits for a process of another; a group costs a connection
to the daemon in each process.

| what happens | what follows |
| --- | --- |
| the library is not there | `start` raises, and says what to install |
| the daemon is not there, or lets nobody in | logged once; tried again every `RETRY_S`; the listener has no view |
| it takes nothing now (`CS_ERR_TRY_AGAIN`) | what is to be sent waits here, and is tried again soon |
| it ends | the listener hears of an empty view; once it is back, all join anew, and what did not come is sent again |
| a batch does not fit into one message | it goes in pieces, and nothing else until it is delivered here |
| a view begins between its pieces | it is sent once more, from its first piece |

How much may be on the way is the core's to limit (`group.window_bytes`): nothing is refused here.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from qpid_ha_broker.server.peers.cpg_order import CpgOrder, OrderedBatch, OrderedView, hello, pieces_of
from qpid_ha_broker.server.peers.group_transport import GroupListener
from qpid_ha_broker.server.peers.libcpg import (
    LIBRARY,
    CpgAddress,
    CpgCallFailed,
    CpgConfiguration,
    CpgHandle,
    CpgLibrary,
    CpgMessage,
)

log = logging.getLogger("group")

RETRY_S: Final = 1.0
"""Until the daemon is tried again."""
TRY_AGAIN_S: Final = 0.002
"""Until it is offered again what it did not take."""
EVENTS_MOST: Final = 64
"""In one turn of the loop: others have work, too."""


class _Outgoing:
    """A batch of this process that has not come back."""

    __slots__ = ("data", "number", "unsent")

    def __init__(self, number: int, data: bytes) -> None:
        self.number = number
        self.data = data
        self.unsent: deque[bytes] | None = None
        """Its pieces that are to be sent; None: none was yet."""


class CpgTransport:
    """See `group_transport.GroupTransport`."""

    def __init__(self, cluster: str, name: str, listener: GroupListener, library: str = LIBRARY) -> None:
        """`cluster`: the UUID of the set's log, of which the process group's name is made. `name`: this broker's."""
        self._group = f"qpid-ha-{cluster}"
        self._name = name
        self._listener = listener
        self._path = library
        self._library: CpgLibrary | None = None
        self._handle: CpgHandle | None = None
        self._order: CpgOrder | None = None
        self._number = 0
        self._outgoing: deque[_Outgoing] = deque()
        """In their order; those at the beginning are on the way."""
        self._greetings = 0
        """To be sent before all else: who joins does not know this process."""
        self._timers: list[asyncio.TimerHandle] = []
        self._refused: set[CpgAddress] = set()
        self.problem = ""
        """Why the daemon cannot be used; empty: it can."""

    def start(self) -> None:
        """Join, now or once the daemon is there. Raises GroupTransportError when the library is not."""
        self._library = CpgLibrary(self._path)
        self._connect()

    def close(self) -> None:
        """Leave."""
        self._library = None
        self._disconnect()

    @property
    def unsent_bytes(self) -> int:
        """Of batches that were not delivered here."""
        return sum(len(batch.data) for batch in self._outgoing)

    def multicast(self, data: bytes) -> None:
        """Send a batch after all before."""
        self._number += 1
        self._outgoing.append(_Outgoing(self._number, data))
        self._send()

    # --- the daemon

    def _connect(self) -> None:
        if self._library is None or self._handle is not None:
            return
        try:
            self._handle = CpgHandle(self._library, self._group)
        except CpgCallFailed as failure:
            if str(failure) != self.problem:
                log.warning("No group can be joined: %s", failure)
            self.problem = str(failure)
            self._later(RETRY_S, self._connect)
            return
        if self.problem:
            log.info("Corosync is there")
        self.problem = ""
        self._order = CpgOrder(CpgAddress(self._handle.nodeid, os.getpid()), self._name)
        asyncio.get_running_loop().add_reader(self._handle.fd, self._take)
        self._send()

    def _disconnect(self) -> None:
        handle, self._handle = self._handle, None
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle.fd)
            handle.close()
        for batch in self._outgoing:
            batch.unsent = None
        self._greetings = 0

    def _lost(self, failure: CpgCallFailed) -> None:
        """The daemon has ended: nothing comes here until it is back, not even what this process sends. So it is not
        alone in a view, in which it could go on."""
        log.error("The group's transport is lost: %s", failure)
        self.problem = str(failure)
        others = tuple(name for name in self._order.members if name != self._name) if self._order is not None else ()
        self._order = None
        self._disconnect()
        self._listener.view_changed(OrderedView((), (), others, ()))
        self._later(RETRY_S, self._connect)

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [timer for timer in self._timers if timer.when() > loop.time() and not timer.cancelled()]
        self._timers.append(loop.call_later(delay_s, callback))

    # --- what comes

    def _take(self) -> None:
        handle, order = self._handle, self._order
        if handle is None or order is None:
            return
        try:
            came = handle.take(EVENTS_MOST)
        except CpgCallFailed as failure:
            self._lost(failure)
            return
        self._answer_configurations(came)
        for event in order.came(came):
            if isinstance(event, OrderedView):
                self._listener.view_changed(event)
            else:
                self._batch_came(event)
        for address, why in order.refused.items():
            if address not in self._refused:
                log.error("Process %d of node %d is not of the group: it %s", address.pid, address.nodeid, why)
        self._refused = set(order.refused)
        if len(came) >= EVENTS_MOST:
            asyncio.get_running_loop().call_soon(self._take)
        self._send()

    def _answer_configurations(self, came: Sequence[CpgMessage | CpgConfiguration]) -> None:
        """Say who this is to who joins; and what the view cut in two is sent from its beginning."""
        for event in came:
            if isinstance(event, CpgConfiguration):
                self._greetings += bool(event.joined)
                first = self._outgoing[0] if self._outgoing else None
                if first is not None and first.unsent is not None and self._is_large(first):
                    first.unsent = None

    def _batch_came(self, batch: OrderedBatch) -> None:
        if batch.sender == self._name:
            self._outgoing.popleft()
        self._listener.delivered(batch.sender, batch.data)

    # --- what goes

    def _is_large(self, batch: _Outgoing) -> bool:
        return self._handle is not None and len(batch.data) > self._piece_most

    @property
    def _piece_most(self) -> int:
        return 0 if self._handle is None else self._handle.message_bytes_most // 2

    def _send(self) -> None:
        try:
            if self._handle is not None and not self._send_all(self._handle):
                self._later(TRY_AGAIN_S, self._send)
        except CpgCallFailed as failure:
            self._lost(failure)

    def _send_all(self, handle: CpgHandle) -> bool:
        """Whether all was taken that may go."""
        while self._greetings:
            if not handle.multicast(hello(self._name)):
                return False
            self._greetings -= 1
        for batch in tuple(self._outgoing):
            is_large = self._is_large(batch)
            if is_large and batch is not self._outgoing[0]:
                return True  # until all before it has come back
            if batch.unsent is None:
                batch.unsent = deque(pieces_of(batch.number, batch.data, self._piece_most))
            while batch.unsent:
                if not handle.multicast(batch.unsent[0]):
                    return False
                batch.unsent.popleft()
            if is_large:
                return True  # until it has come back
        return True
