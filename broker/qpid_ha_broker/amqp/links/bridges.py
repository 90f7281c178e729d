"""Bridges: a queue here that the broker fills from a node of another broker, or empties into one, as a client of that.

The broker that leads the queue's set has the bridge; when another one leads, that one has it. The other broker is told
that a message is done with only when this one has committed what it did with it, and the other way round. So nothing
is lost when either of them ends, and what was under way then may be there twice: see docs/remote-nodes.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.connections.container import Container
from qpid_ha_broker.amqp.links.far_link import FarLink
from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.links.remote_links import RemoteDriver, RemoteTarget
from qpid_ha_broker.amqp.links.sent_payload import sent_payload
from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.annotations import Clocks, annotated, with_expiry, without_delay
from qpid_ha_broker.amqp.wire.conditions import (
    LINK_REDIRECT,
    MESSAGE_SIZE,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT,
    RESOURCE_LOCKED,
    TRANSFER_LIMIT,
    AmqpError,
    DecodeError,
)
from qpid_ha_broker.amqp.wire.engine import Delivery, Disposition, EachDisposition, EachTransfer, RemoteOutcome, Sender
from qpid_ha_broker.amqp.wire.message_path import message_path, with_path
from qpid_ha_broker.amqp.wire.remote_path import MOST_STEPS, Step, properties_of
from qpid_ha_broker.amqp.wire.sections import NO_ANNOTATIONS
from qpid_ha_broker.model.errors import ModelError, NotPrimary
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.transactions.transaction import Message

WINDOW_MESSAGES: Final = 200
WINDOW_BYTES: Final = 4 * 1024 * 1024
"""That may be under way over one bridge, at least one message."""
PAUSE_S: Final = 0.1
PAUSE_MOST_S: Final = 5.0
"""After the other side has refused a message, until it is tried again: at first, and at most."""
_REFUSED_FOR_NOW: Final = (RESOURCE_LIMIT, RESOURCE_LOCKED)
"""Reasons to reject a message that may pass: the queue there is full, or busy."""


class Bridge(FarLink[RemoteConnection]):
    """What both directions have in common: the way of the link, and its end."""

    passed = 0
    """Messages, so far."""
    is_open = False
    """No client waits for it."""
    far_container = ""
    far_name = ""
    fills = False
    """Messages come to the queue by it, so it is there as long as the set is led here; else while there is something
    to send."""
    used_s = 0.0
    """When there was something to send last, by the container's clock."""

    def begin(self, hosted: HostedSet, queue: Queue, target: RemoteTarget, driver: RemoteDriver) -> None:
        """`hosted`: the set of the queue, which is led here."""
        self.hosted = hosted
        self.queue = queue
        self.target = target
        self.driver = driver
        self.has_ended = False
        self._step = Step(driver.broker, driver.name, queue.name)
        hosted.links[self] = None
        hosted.touch()

    @property
    def needs_primary(self) -> bool:
        return True

    def note(self, reason: str) -> None:
        """Why it is not attached: nobody here waits for that."""

    def expire(self, now_s: float) -> None:
        """Time goes by, by the container's clock."""

    # --- the far end

    def detached(self, error: AmqpError) -> None:
        """The other broker has refused the link, or ended it: it is tried again, for the queue is here to stay."""
        self._left()
        if error.name == LINK_REDIRECT and self.driver.redirect(self, error):
            return
        self.refuse(error)

    def refuse(self, error: AmqpError) -> None:
        """It cannot be had there now."""
        self.driver.attach_again(self, error.description)
        self.driver.gone(self, error)

    def _paused(self, reason: str) -> None:
        self.driver.attach_again(self, reason)

    # --- the end

    def bug(self, error: Exception, handed_out: Sequence[Entry] = ()) -> None:
        """It is attached again, as after any other end."""
        if self.upstream is None or self.far is None:
            raise error
        self.upstream.engine.link_failed(self.far._impl, error)

    def end(self, error: AmqpError) -> None:
        """The queue is no more, or its set is led here no more."""
        self.finish(closed=self.queue.deleted)

    def finish(self, *, closed: bool) -> None:
        """It is wanted no more. Not `closed`: another broker will have it, or this one at its next start."""
        if not self.has_ended:
            self.has_ended = True
            self._left()
            self.driver.forget(self, closed=closed)
            self.hosted.forget(self)

    def closed(self, *, lost: bool) -> None:
        """Bridges belong to no connection of a client."""
        self.finish(closed=False)


class _Arrived(NamedTuple):
    """A message that waits to be published: the queue had no room."""

    delivery: Delivery
    message: Message
    is_settled: bool


class InboundBridge(Bridge, EachTransfer):
    """The promise: a message is accepted at the other broker only when this one has committed it, and in its order.

    While the queue takes no more, what has come waits here, no more than the credit that was given, and is tried again.
    """

    fills = True

    def __init__(self, hosted: HostedSet, queue: Queue, target: RemoteTarget, driver: RemoteDriver,
                 container: Container) -> None:  # fmt: skip
        self.begin(hosted, queue, target, driver)
        self._container = container
        self._waiting: deque[_Arrived] = deque()
        self._unconfirmed: deque[tuple[CommitToken, Delivery]] = deque()
        self._parts = bytearray()
        self._largest = 0
        """Bytes of the messages that came last, at most."""
        self._retry_s = 0.0
        self._pause_s = PAUSE_S
        self._is_plain = False
        """The other broker has nothing that outlives the link: it is asked for a link, and no more."""
        self._failure: AmqpError | None = None
        """Why the link is to end, once all that was taken before is accepted; what comes behind goes back."""
        self.far_container = f"qpid-ha/{driver.broker}"
        self.far_name = f"{self.far_container}/{queue.name}"

    # --- attaching

    def open_far(self, connection: RemoteConnection, session: Any, name: str) -> proton.Link:
        far: proton.Link = session.receiver(name)
        far.source.address = self.target.node
        far.snd_settle_mode = proton.Link.SND_UNSETTLED
        far.rcv_settle_mode = proton.Link.RCV_FIRST
        if connection.is_ours and not self._is_plain:  # others may understand something else by it
            far.source.durability = proton.Terminus.CONFIGURATION
            far.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
        far.properties = properties_of((self._step,))
        far.open()
        return far

    def attached(self, connection: RemoteConnection, far: proton.Link) -> InboundBridge:
        """Go on."""
        self._arrived(connection, far)
        self.replenish()
        return self

    def detached(self, error: AmqpError) -> None:
        self._is_plain = self._is_plain or error.name == NOT_IMPLEMENTED
        super().detached(error)

    def _left(self) -> None:
        """What was not accepted there will come again, what is in the log by now as a copy."""
        super()._left()
        self._waiting.clear()
        self._unconfirmed.clear()
        self._parts.clear()
        self._failure = None

    def replenish(self) -> None:
        """Ask for as much as may be under way."""
        far = self.far
        if far is None or self._waiting or self._failure is not None or not self._container.has_room(self):
            return
        window = max(1, min(WINDOW_MESSAGES, WINDOW_BYTES // max(self._largest, 1)))
        due = window - engine.credit(far) - len(self._unconfirmed)
        if due > 0 and due * 2 >= window:
            engine.give_credit(far, due)
            self._touch_far()

    # --- messages

    def partial(self, delivery: Delivery, data: bytes) -> None:
        """A part of a message."""
        self._parts += data
        self._check_size(len(self._parts))

    def aborted(self, delivery: Delivery) -> None:
        """The other broker took back what it had begun: the credit for it may be used again."""
        self._parts.clear()
        self.replenish()

    def _check_size(self, size: int) -> bool:
        limit = self._container.settings.max_message_bytes
        if size > limit:
            self._fail(AmqpError(MESSAGE_SIZE, f"it has sent a message of {size} bytes or more; the limit is {limit}"))
        return size <= limit

    def _fail(self, error: AmqpError) -> None:
        self._failure = self._failure or error
        if self.upstream is not None and not (self._waiting or self._unconfirmed):
            self.upstream.fail_link(self, self._failure)

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """A message came."""
        if self._parts:
            payload, self._parts = bytes(self._parts) + payload, bytearray()
        if self.far is None or self._failure is not None or not self._check_size(len(payload)):
            return
        if engine.credit(self.far) < 0:
            self._fail(AmqpError(TRANSFER_LIMIT, "it has sent more messages than there was credit for"))
            return
        self._largest = len(payload)
        try:
            path = message_path(payload)
            message = self._message(with_path(payload, (*path, self._step)))
        except AmqpError as error:
            self._reject(delivery, error)
            return
        if any((step.broker, step.node) == (self._step.broker, self._step.node) for step in path):
            way = " -> ".join(map(str, (*path, self._step)))
            self._fail(AmqpError(NOT_ALLOWED, f"a message comes back to where it was, {way}: one bridge has to go"))
            return
        if len(path) >= MOST_STEPS:
            way = " -> ".join(map(str, path))
            self._fail(AmqpError(NOT_ALLOWED, f"a message came over {MOST_STEPS} bridges, {way}: shorten the way"))
            return
        self._waiting.append(_Arrived(delivery, message, settled))
        if len(self._waiting) == 1:
            self._publish_waiting()

    def _reject(self, delivery: Delivery, error: AmqpError) -> None:
        text = f"a message is rejected, which cannot be in a queue here: {error.description}"
        self.driver.warn(self, text)
        engine.reject(delivery, error.name, text)
        self._touch_far()

    def _message(self, payload: bytes) -> Message:
        """Raises AmqpError for one that this broker would not take from a client."""
        sections = self._container.sections
        header = sections.header(payload)
        clocks = Clocks(self.hosted.resources.catalog.clock, self._container.steady)
        message = with_expiry(sections, payload, header, clocks)
        if payload[header.length + 2 : header.length + 3] not in NO_ANNOTATIONS:
            # A delay has passed where it comes from.
            message = annotated(sections, message, header.length, clocks, with_numbers=False, with_delay=False)
        return message

    def _publish_waiting(self) -> None:
        resources = self.hosted.resources
        while self._waiting:
            delivery, message, is_settled = self._waiting[0]
            self.hosted.flush_accepted()
            try:
                token = resources.publish(self.queue, message, self.hosted.now_ms)
            except NotPrimary:
                return  # the end of the bridge is under way
            except DecodeError as error:
                self._reject(delivery, error)
                self._waiting.popleft()
                continue
            except ModelError as error:
                self._wait(str(error))
                return
            self._waiting.popleft()
            self._pause_s, self._retry_s = PAUSE_S, 0.0
            if is_settled:
                engine.forget(delivery)
                self.passed += 1
            else:
                self._unconfirmed.append((token, delivery))
            self.hosted.unconfirmed[self] = None
            self.hosted.touch()

    def _wait(self, reason: str) -> None:
        now_s = self._container.clock()
        if now_s >= self._retry_s:
            self._retry_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)
            self.driver.warn(self, f"what comes waits: {reason}")

    def expire(self, now_s: float) -> None:
        if self._waiting and now_s >= self._retry_s:
            self._publish_waiting()
            self.replenish()

    def settlements(self, batch: list[Disposition]) -> None:
        """The other broker has taken messages back without being asked."""
        gone = {delivery for delivery, _, _ in batch}
        self._waiting = deque(each for each in self._waiting if each.delivery not in gone)
        self._unconfirmed = deque(each for each in self._unconfirmed if each[1] not in gone)
        engine.forget_all(list(gone))

    def drained(self) -> None:
        """It is never asked to."""

    def confirm(self) -> bool:
        """Accept at the other broker what is committed here; whether more still waits for that."""
        waiting, committed = self._unconfirmed, []
        while waiting and waiting[0][0].is_committed:
            committed.append(waiting.popleft()[1])
        if committed:
            engine.accept_all(committed)
            self.passed += len(committed)
            self._touch_far()
        if self._failure is not None:
            self._fail(self._failure)
        self.replenish()
        return bool(waiting)


class OutboundBridge(Consumer, Bridge, EachDisposition):
    """The promise: a message leaves the queue only when the other broker has accepted it, or rejects it for good.

    What the other broker releases, or rejects because it has no room, goes back to its place, and after a pause all is
    sent again from there. Rejected for another reason, it is rejected here: to the alternate exchange, or dropped.
    """

    def __init__(self, hosted: HostedSet, queue: Queue, target: RemoteTarget, driver: RemoteDriver,
                 container: Container) -> None:  # fmt: skip
        super().__init__()
        self.begin(hosted, queue, target, driver)
        self._container = container
        self._sender: Sender | None = None
        self._unanswered: dict[Delivery, tuple[Entry, Any, int]] = {}
        """What was sent: the message, its tag, and its size."""
        self._resume_s = 0.0
        """Nothing is sent before."""
        self._pause_s = PAUSE_S
        self.used_s = container.clock()
        hosted.resources.subscribe(queue, self, self)

    # --- attaching

    def open_far(self, connection: RemoteConnection, session: Any, name: str) -> proton.Link:
        far: proton.Link = session.sender(name)
        far.target.address = self.target.node
        far.snd_settle_mode = proton.Link.SND_UNSETTLED
        far.rcv_settle_mode = proton.Link.RCV_FIRST
        far.properties = properties_of((self._step,))
        far.open()
        return far

    def attached(self, connection: RemoteConnection, far: proton.Link) -> OutboundBridge:
        """Go on."""
        self._arrived(connection, far)
        self._sender = Sender(far, connection.engine.formats)
        self.flow()
        return self

    def _left(self) -> None:
        """What is not answered may be there or not: it is sent again, marked."""
        super()._left()
        self.credit, self._sender = 0, None
        unanswered, self._unanswered = self._unanswered, {}
        self._container.held.unsettled_bytes -= sum([size for _, _, size in unanswered.values()])
        self._give_back([entry for entry, _, _ in unanswered.values()], failed=False)

    def _give_back(self, entries: list[Entry], *, failed: bool) -> None:
        mine = [entry for entry in entries if entry.holder is self]
        if mine:
            self.hosted.resources.release(self.queue, mine, failed)
            self.hosted.touch()

    # --- credit

    def flow(self) -> None:
        """The other broker changed its credit, or there is room for more."""
        sender = self._sender
        if sender is None or self.has_ended or self._container.clock() < self._resume_s:
            self.credit = 0
            return
        self.credit = min(sender.credit, WINDOW_MESSAGES - len(self._unanswered))
        self.window_bytes = WINDOW_BYTES - sum([size for _, _, size in self._unanswered.values()])
        if self.credit > 0 and self.window_bytes > 0:
            self.hosted.resources.catalog.wake(self.queue)
            self.hosted.touch()

    def expire(self, now_s: float) -> None:
        if self._unanswered or self.queue.messages.count:
            self.used_s = now_s
            if self.credit <= 0:
                self.flow()

    # --- messages

    def deliver(self, entries: list[Entry]) -> None:
        """Send what the queue has handed out; back it goes if there is nobody to send it to any more, or if the queue
        was deleted."""
        sender = self._sender
        if sender is None or self.has_ended or self.queue.deleted or self._container.clock() < self._resume_s:
            self._give_back(entries, failed=False)
            return
        for number, entry in enumerate(entries):
            try:
                payload = self._payload(entry)
            except DecodeError as error:
                self._reject(entry, f"it is no message that could be passed on: {error}")
                continue
            except AmqpError as error:
                self._pause(error.description)
                self._give_back(entries[number:], failed=False)
                break
            if payload is None:
                self._reject(entry, "it came back over other bridges, and has been sent before")
                continue
            delivery, tag = sender.send(payload)
            self._unanswered[delivery] = entry, tag, len(payload)
            self._container.held.unsettled_bytes += len(payload)
        self._touch_far()

    def _payload(self, entry: Entry) -> bytes | None:
        """As it is sent; None for one that comes back. Raises DecodeError, and AmqpError for a way that is too long."""
        sections, body = self._container.sections, entry.resident_body()
        path = message_path(body)
        if any((step.broker, step.node) == (self._step.broker, self._step.node) for step in path):
            return None
        if len(path) >= MOST_STEPS:
            way = " -> ".join(map(str, path))
            raise AmqpError(NOT_ALLOWED, f"a message came over {MOST_STEPS} bridges, {way}: shorten the way")
        body = sent_payload(sections, self.queue, entry, without_delay(body), self.hosted.now_ms)
        return with_path(body, (*path, self._step))

    def _reject(self, entry: Entry, reason: str) -> None:
        self.driver.warn(self, f"a message was rejected: {reason}")
        self.hosted.resources.reject(self.queue, [entry])
        self.hosted.touch()

    def dispositions(self, batch: list[Disposition]) -> None:
        """The other broker has answered."""
        accepted: list[Entry] = []
        for delivery, state, settled in batch:
            if not settled and state not in (engine.ACCEPTED, engine.REJECTED, engine.RELEASED, engine.MODIFIED):
                continue
            found = self._unanswered.pop(delivery, None)
            outcome = RemoteOutcome(delivery).read() if state else None
            engine.forget(delivery)
            if found is None:
                continue
            entry, tag, size = found
            self._container.held.unsettled_bytes -= size
            if self._sender is not None:
                self._sender.free(tag)
            if entry.holder is not self:
                continue  # the queue was purged, or is no more
            if state == engine.ACCEPTED:
                accepted.append(entry)
            else:
                self._refused(entry, outcome)
        if accepted:
            self.passed += len(accepted)
            self._pause_s = PAUSE_S
            self.hosted.resources.accept(self.queue, accepted)
            self.hosted.touch()
        self.flow()
        self._touch_far()

    def _refused(self, entry: Entry, outcome: engine.Outcome | None) -> None:
        if outcome is not None and outcome.state == engine.REJECTED and outcome.condition not in _REFUSED_FOR_NOW:
            self._reject(entry, f"{outcome.condition} {outcome.description}".strip() or "without a reason")
            return
        if outcome is not None and outcome.state == engine.MODIFIED and outcome.undeliverable:
            self._reject(entry, "it is undeliverable there")
            return
        is_failed = outcome is None or (outcome.state == engine.MODIFIED and outcome.failed)
        reason = "" if outcome is None else outcome.description or outcome.condition
        self._pause(f"a message is not taken there now ({reason or 'no reason is given'}), and sent again")
        self._give_back([entry], failed=is_failed)

    def _pause(self, reason: str) -> None:
        now_s = self._container.clock()
        if now_s >= self._resume_s:
            self._resume_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, PAUSE_MOST_S)
            self.driver.warn(self, reason)
        self.credit = 0

    # --- the end

    def bug(self, error: Exception, handed_out: Sequence[Entry] = ()) -> None:
        super().bug(error)
        self._give_back(list(handed_out), failed=False)

    def stop(self) -> None:
        """Take nothing more from the queue."""
        self.credit = 0

    def finish(self, *, closed: bool) -> None:
        if not self.has_ended:
            super().finish(closed=closed)
            self.hosted.resources.unsubscribe(self.queue, self, self.hosted.now_ms)


BRIDGES: Final[Mapping[str, type[InboundBridge] | type[OutboundBridge]]] = {
    "qpid.cluster.source": InboundBridge,
    "qpid.cluster.proxy": OutboundBridge,
}
"""By the argument of a queue that has its URL: see `QueueArguments.bridge`."""
