"""A request to `$management` about a queue that another broker leads: carried out by that broker, answered here.

The client has its link here, and what it asks of other queues is answered here. For each other set there are two far
links: the requests go out on one, the replies come in on the other.

1. A request waits until both are attached at the primary of the set, then it is sent, once.
2. Where the set is led by somebody else before it is sent, it is sent there.
3. Where the primary is lost after it was sent, nobody knows whether it was carried out, and the client is told so.
4. Where the primary is of an older version, the client is told where it is.
5. Where the client has gone before it is sent, it is not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any, Final
from weakref import ref

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.management import CheckWaits
from qpid_ha_broker.amqp.nodes.management_messages import (
    MANAGEMENT,
    ManagementAnswer,
    Request,
    RequestRefusal,
    read_answer,
    write_request,
)
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait, WaitingAttach
from qpid_ha_broker.amqp.relaying.relayer import PrimaryEnd, Relayer, is_elsewhere
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import NOT_IMPLEMENTED, AmqpError
from qpid_ha_broker.amqp.wire.engine import (
    Consuming,
    Delivery,
    Disposition,
    EachDisposition,
    EachTransfer,
    Sender,
    Sending,
)
from qpid_ha_broker.amqp.wire.relay import RELAY_MANAGEMENT_CAPABILITY, RelayRequest
from qpid_ha_broker.model.commands.administration import Pending
from qpid_ha_broker.model.errors import ModelError, Unavailable, fresh
from qpid_ha_broker.model.logs.log import COMMITTED, CommitToken

FAR_SETS: Final = 16
"""Sets with far links, of one client's link; beyond, those without an open request are closed, longest unused first."""
_REPLIES: Final = 100
"""Credit for replies: as much as a client has for requests."""


class _Asked:
    """A request that another broker is to carry out: see `administration.Work`."""

    def __init__(self, payload: bytes, elsewhere: ServedElsewhere, check_waits: Callable[[], None]) -> None:
        self.payload = payload
        self.elsewhere = elsewhere
        """Where its set is led, as far as this broker knows."""
        self.check_waits = check_waits
        """Raises RequestRefusal where its client has gone."""
        self.is_sent = False
        self.written: CommitToken | None = None
        self.failure: ModelError | None = None
        self.answer: ManagementAnswer | None = None

    def result(self) -> ManagementAnswer:
        if self.answer is None:
            raise ValueError("it is not answered yet")
        return self.answer


class _FarEnd(PrimaryEnd):
    """What both far links have in common: see `upstream.UpstreamLink` and `relayer.PlacedLink`."""

    needed_capability = RELAY_MANAGEMENT_CAPABILITY

    def __init__(self, management: FarManagement, request: RelayRequest) -> None:
        super().__init__(request)
        self._management = ref(management)

    @property
    def management(self) -> FarManagement:
        """Which has both, and is there as long as one of them is attached or is to be. Raises RuntimeError."""
        management = self._management()
        if management is None:
            raise RuntimeError("a far link to $management is told something when nobody has it any more")
        return management

    def detached(self, error: AmqpError) -> None:
        self.upstream = None
        if is_elsewhere(error):
            self.management.end_lost(self)
        else:
            self.management.refused(error)

    def lost(self, reason: str) -> None:
        self.upstream = None
        self.management.end_lost(self)

    def out_of_reach(self) -> None:
        self.management.out_of_reach()

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        raise NotImplementedError(f"{type(self).__name__} does not say which link it is")

    def attached(self, upstream: Upstream, far: proton.Link) -> Consuming | Sending:
        raise NotImplementedError(f"{type(self).__name__} does not say what it is attached for")


class _FarRequests(_FarEnd, EachDisposition):
    """The link on which requests go out, settled: what becomes of them is in the replies."""

    sender: Sender

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        far: proton.Link = session.sender(name)
        far.target.address = MANAGEMENT
        return self._opened(far)

    def attached(self, upstream: Upstream, far: proton.Link) -> _FarRequests:
        self.upstream, self.sender = upstream, Sender(far)
        self.management.go_on()
        return self

    def flow(self) -> None:
        """The primary changed its credit: what was sent without goes out by itself."""

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """All were sent settled: there is nothing to say of them."""


class _FarReplies(_FarEnd, EachTransfer):
    """The link on which replies come in."""

    def __init__(self, management: FarManagement, request: RelayRequest) -> None:
        super().__init__(management, request)
        self._far: proton.Link | None = None
        self._parts = bytearray()

    def open_far(self, upstream: Upstream, session: Any, name: str) -> proton.Link:
        far: proton.Link = session.receiver(name)
        far.source.address = MANAGEMENT
        self._parts.clear()
        return self._opened(far)

    def attached(self, upstream: Upstream, far: proton.Link) -> _FarReplies:
        self.upstream, self._far = upstream, far
        engine.give_credit(far, _REPLIES)
        self.management.go_on()
        return self

    def partial(self, delivery: Delivery, data: bytes) -> None:
        self._parts += data

    def aborted(self, delivery: Delivery) -> None:
        self._parts.clear()
        if self._far is not None:
            engine.give_credit(self._far, 1)

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """A reply."""
        whole, self._parts = bytes(self._parts) + payload, bytearray()
        engine.forget(delivery)
        if self._far is not None:
            engine.give_credit(self._far, 1)
        self.management.replied(whole)

    def settlements(self, batch: list[Disposition]) -> None:
        """Replies come settled."""

    def drained(self) -> None:
        """No credit is withdrawn."""


class FarManagement:
    """`$management` of the primary of one set, for what one client's link asks. The promise: each request ends once."""

    def __init__(
        self,
        connection: Connection,
        link: proton.Link,
        request: RelayRequest,
        relayer: Relayer,
        check_waits: CheckWaits,
    ) -> None:
        """`connection` and `link`: the client's. `request`: of which set, and for whom."""
        self._connection = connection
        self._link = link
        self._relayer = relayer
        self._check_waits = check_waits
        own = request._replace(
            client=f"management {id(self):x}"
        )  # as no connection is called, so that replies come here
        self._requests, self._replies = _FarRequests(self, own), _FarReplies(self, own)
        self._set_name = request.set_name
        self._is_placed = False
        self._numbers = count(1)
        self._open: dict[int, _Asked] = {}
        self._unsent: deque[int] = deque()
        self._waiting: dict[int, WaitingAttach] = {}

    @property
    def is_idle(self) -> bool:
        """No request is open."""
        return not self._open

    def ask(self, request: Request, elsewhere: ServedElsewhere) -> Pending[ManagementAnswer]:
        """Have a request carried out. It ends with the primary's answer, with Unavailable, or with `elsewhere`."""
        number = next(self._numbers)
        payload, check_waits = write_request(request, MANAGEMENT, number), partial(self._check_waits, request)
        asked = self._open[number] = _Asked(payload, fresh(elsewhere), check_waits)
        self._unsent.append(number)
        self._limit(number)
        if not self._is_placed:
            self._is_placed = True
            self._relayer.place(self._requests)
            self._relayer.place(self._replies)
        self.go_on()
        return Pending(asked, None, asked.result)

    def _limit(self, number: int) -> None:
        """It waits as long as an attach."""
        container = self._connection.container
        wait = NodeWait(f"the broker that leads the resource set {self._set_name} is asked")
        until_s = container.clock() + container.settings.attach_timeout_s
        waiting = WaitingAttach(self._link, wait, partial(self._too_late, number), until_s)
        self._waiting[number] = waiting
        container.waiting[waiting] = None

    def _too_late(self, number: int, error: AmqpError | None) -> None:
        asked = self._open.get(number)
        if asked is not None and asked.is_sent:
            self._fail(number, _unknown(self._set_name, "has not answered in time"))
        elif asked is not None:
            self._fail(number, asked.elsewhere)

    def go_on(self) -> None:
        """Send what can be sent by now."""
        upstream = self._requests.upstream
        if upstream is None or upstream is not self._replies.upstream:
            return
        while self._unsent:
            number = self._unsent[0]
            asked = self._open[number]
            try:
                asked.check_waits()
            except RequestRefusal as refusal:
                self._answered(number, ManagementAnswer(refusal.status, refusal.description, {}))
                continue
            del self._unsent[0]
            asked.is_sent = True
            self._requests.sender.send_settled(asked.payload)
        upstream.touch()

    # --- how they end

    def replied(self, payload: bytes) -> None:
        """The primary has answered one."""
        try:
            number, answer = read_answer(payload)
        except AmqpError as error:
            self.refused(error)
            return
        if self._replies.upstream is not None:
            self._replies.upstream.touch()
        self._answered(number, answer)

    def _answered(self, number: int, answer: ManagementAnswer) -> None:
        asked = self._end(number)
        if asked is not None:
            asked.answer, asked.written = answer, COMMITTED

    def end_lost(self, end: _FarEnd) -> None:
        """The primary is lost, or leads no more."""
        for number, asked in list(self._open.items()):
            if asked.is_sent:
                self._fail(number, _unknown(self._set_name, "was lost, or leads it no more"))
        if self._open:
            self._relayer.attach_again(end)
        else:
            self._let_go()

    def out_of_reach(self) -> None:
        """What has not been sent is answered: another broker may be asked."""
        for number, asked in list(self._open.items()):
            if not asked.is_sent:
                self._fail(number, asked.elsewhere)
        if not self._open:
            self._let_go()

    def refused(self, error: AmqpError) -> None:
        """The primary does not take such requests."""
        for number, asked in list(self._open.items()):
            if error.name == NOT_IMPLEMENTED:
                self._fail(number, asked.elsewhere)
            else:
                text = f"the broker that leads the resource set {self._set_name} has refused it: {error.description}"
                self._fail(number, Unavailable(text))
        self._let_go()

    def _fail(self, number: int, error: ModelError) -> None:
        asked = self._end(number)
        if asked is not None:
            asked.failure = fresh(error)

    def _end(self, number: int) -> _Asked | None:
        asked = self._open.pop(number, None)
        if asked is not None:
            self._connection.container.waiting.pop(self._waiting.pop(number), None)
            if not asked.is_sent:
                self._unsent.remove(number)
            self._connection.touch()
        return asked

    def _let_go(self) -> None:
        self._is_placed = False
        for end in (self._requests, self._replies):
            end.upstream = None
            self._relayer.forget(end)

    def close(self) -> None:
        """Nobody waits for the answers any more."""
        for number in list(self._open):
            self._end(number)
        self._let_go()


def _unknown(set_name: str, problem: str) -> Unavailable:
    text = f"the broker that led the resource set {set_name} {problem}, after it was asked"
    return Unavailable(f"{text}: whether that is done is not known. Ask again")


class ManagedElsewhere:
    """What one client's link has other brokers carry out, by set."""

    def __init__(
        self,
        connection: Connection,
        link: proton.Link,
        request: RelayRequest,
        relayer: Relayer,
        check_waits: CheckWaits,
    ) -> None:
        """`request`: for whom. `check_waits`: asked before a request is sent."""
        self._connection = connection
        self._link = link
        self._request = request
        self._relayer = relayer
        self._check_waits = check_waits
        self._far: dict[str, FarManagement] = {}
        """By set, the longest unused first."""

    def ask(self, request: Request, elsewhere: ServedElsewhere) -> Pending[ManagementAnswer]:
        """See `FarManagement.ask`."""
        name = elsewhere.set_name
        far = self._far.pop(name, None)
        if far is None:
            self._close_unused()
            request_there = self._request._replace(set_name=name)
            far = FarManagement(self._connection, self._link, request_there, self._relayer, self._check_waits)
        self._far[name] = far
        return far.ask(request, elsewhere)

    def _close_unused(self) -> None:
        if len(self._far) >= FAR_SETS:
            unused = next((name for name, far in self._far.items() if far.is_idle), None)
            if unused is not None:
                self._far.pop(unused).close()

    def close(self) -> None:
        """The client's link has ended."""
        far, self._far = self._far, {}
        for each in far.values():
            each.close()
