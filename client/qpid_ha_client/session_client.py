"""The blocking face: a client with a session for programs that go step by step, from any thread.

A thread of its own keeps the connection, so heartbeats go out and failovers are followed also while the program works.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self

from proton import Message
from proton.reactor import ApplicationEvent, Container, EventInjector

from qpid_ha_client.core import events as ev
from qpid_ha_client.core.errors import (
    ClientClosed,
    ClientError,
    LinkUnusable,
    MessageAbandoned,
    MessageRefused,
    MessageWithdrawn,
    SessionLost,
)
from qpid_ha_client.proton_driver import ConnectOptions, OutgoingMessage
from qpid_ha_client.session_handler import (
    PREFETCH,
    ClientLink,
    ReceivedMessage,
    SessionHandler,
    SessionReceiver,
    SessionSender,
)

UNCONFIRMED_MAX = 1000
CLOSE_TIMEOUT_S = 10.0


class SentMessage:
    """A message that was given to `BlockingSender.send_soon`. It is safe when `wait` returns."""

    def __init__(self, client: SessionClient, link: str, ticket: int) -> None:
        self._client = client
        self.link, self.ticket = link, ticket
        self.is_confirmed = False
        self.error: ClientError | None = None
        """It was not taken, or nobody knows: why."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is confirmed. Raises MessageRefused, TimeoutError (it may yet be), and what `SessionClient` does."""
        self._client.wait(lambda: self.is_confirmed or self.error is not None, timeout_s, self.link)
        if self.error is not None:
            raise self.error


class BlockingSender:
    """Publishes, in order. What `send` returns from is queued, once."""

    def __init__(self, client: SessionClient, link: SessionSender) -> None:
        self._client, self.name = client, link.name
        self._order = threading.Lock()
        self.unconfirmed: dict[int, SentMessage] = {}
        """By ticket: sent, and not known to be safe."""

    def send(self, message: Message, timeout_s: float | None = None) -> None:
        """Until it is confirmed. Raises as `SentMessage.wait`; after a TimeoutError it is still under way."""
        self.send_soon(message, timeout_s).wait(timeout_s)

    def send_soon(self, message: Message, timeout_s: float | None = None) -> SentMessage:
        """Do not wait for the confirmation; for room, if `unconfirmed_max` are not confirmed."""
        client = self._client
        client.wait(lambda: len(self.unconfirmed) < client.unconfirmed_max, timeout_s, self.name)
        outgoing = OutgoingMessage(message)
        with self._order:  # messages reach the core in the order of their tickets
            sent = SentMessage(client, self.name, client.next_ticket())
            self.unconfirmed[sent.ticket] = sent
            client.say(ev.Published(self.name, sent.ticket, outgoing))
        return sent

    def flush(self, timeout_s: float | None = None) -> None:
        """Until all that was sent is answered. Raises TimeoutError, and what `SessionClient` does."""
        self._client.wait(lambda: not self.unconfirmed, timeout_s, self.name)

    def close(self) -> None:
        """Send no more. What is not confirmed is given up."""
        self._client.drop(self.name)


class Received:
    """A message that this client has, until it is answered: `accept`, `reject` or `release`, once."""

    def __init__(self, receiver: BlockingReceiver, received: ReceivedMessage) -> None:
        self._receiver = receiver
        self.ticket = received.ticket
        self.message: Any = received.message
        self.key = received.key
        """The same whenever this message comes, to whomever; None: nothing tells it from others."""
        self.redelivered = received.redelivered
        """Somebody else may have had it before. This client has not."""
        self.is_withdrawn = False
        """The message is not this client's any more; an answer has no effect."""
        self.is_settled = False
        """The answer counts."""

    @property
    def body(self) -> Any:
        """The message's."""
        return self.message.body

    def accept(self, *, wait: bool = False, timeout_s: float | None = None) -> None:
        """The message is done with. `wait`: until that counts, whatever fails; then it raises as `wait_settled`."""
        self._answer(ev.ConsumerVerdict.ACCEPT, wait, timeout_s)

    def reject(self, *, wait: bool = False, timeout_s: float | None = None) -> None:
        """Nobody can do anything with it."""
        self._answer(ev.ConsumerVerdict.REJECT, wait, timeout_s)

    def release(self, *, wait: bool = False, timeout_s: float | None = None) -> None:
        """Somebody else shall have it."""
        self._answer(ev.ConsumerVerdict.RELEASE, wait, timeout_s)

    def wait_settled(self, timeout_s: float | None = None) -> None:
        """Until the answer counts. Raises MessageWithdrawn, TimeoutError, and what `SessionClient` does."""
        client = self._receiver.client
        client.wait(lambda: self.is_settled or self.is_withdrawn, timeout_s, self._receiver.name)
        if self.is_withdrawn:
            raise MessageWithdrawn("the message is not this client's any more: it may go, or have gone, to others")

    def _answer(self, verdict: ev.ConsumerVerdict, wait: bool, timeout_s: float | None) -> None:
        self._receiver.client.say(ev.VerdictGiven(self._receiver.name, self.ticket, verdict))
        if wait:
            self.wait_settled(timeout_s)


class BlockingReceiver:
    """Consumes. No message comes twice, as far as the client's `guarantee` says."""

    def __init__(self, client: SessionClient, link: SessionReceiver) -> None:
        self.client, self.name = client, link.name
        self.waiting: deque[Received] = deque()
        """Handed to this client, and not to the program yet."""
        self.open: dict[int, Received] = {}
        """By ticket: all whose answer does not count yet."""

    def receive(self, timeout_s: float | None = None) -> Received:
        """The next message. Raises TimeoutError, and what `SessionClient` does."""
        received: list[Received] = []

        def take() -> bool:
            if self.waiting:
                received.append(self.waiting.popleft())
            return bool(received)

        self.client.wait(take, timeout_s, self.name)
        return received[0]

    def __iter__(self) -> Iterator[Received]:
        while True:
            yield self.receive()

    def close(self) -> None:
        """Consume no more. What is not answered goes back to the queue."""
        self.client.drop(self.name)


class _Thread(SessionHandler):
    """The handler in the client's thread; what it hears is told to who waits."""

    def __init__(self, client: SessionClient, addresses: str | Iterable[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self._client = client
        self.injector = EventInjector()

    def on_start(self, event: Any) -> None:
        event.container.selectable(self.injector)

    def on_client_call(self, event: Any) -> None:
        """The program's thread wants something done here."""
        event.subject()

    def on_connected(self, broker: Any, guarantee: ev.Guarantee) -> None:
        self._client.note(lambda client: setattr(client, "broker", str(broker)))

    def on_disconnected(self, reason: str) -> None:
        def disconnected(client: SessionClient) -> None:
            client.broker = ""
            client.reconnects += 1

        self._client.note(disconnected)

    def on_message(self, received: ReceivedMessage) -> None:
        self._client.note(lambda client: client.arrived(received))

    def on_confirmed(self, sender: SessionSender, ticket: int) -> None:
        self._client.note(lambda client: client.answered_send(sender.name, ticket, None))

    def on_refused(self, sender: SessionSender, ticket: int, error: MessageRefused) -> None:
        self._client.note(lambda client: client.answered_send(sender.name, ticket, error))

    def on_abandoned(self, sender: SessionSender, ticket: int) -> None:
        error = MessageAbandoned("nobody knows whether the message is queued: its session was lost")
        self._client.note(lambda client: client.answered_send(sender.name, ticket, error))

    def on_answered(self, receiver: SessionReceiver, ticket: int) -> None:
        self._client.note(lambda client: client.settled(receiver.name, ticket, is_withdrawn=False))

    def on_withdrawn(self, receiver: SessionReceiver, ticket: int) -> None:
        self._client.note(lambda client: client.settled(receiver.name, ticket, is_withdrawn=True))

    on_answer_in_doubt = on_withdrawn

    def on_link_failed(self, link: ClientLink, error: LinkUnusable) -> None:
        self._client.note(lambda client: client.failed_links.update({link.name: error}))

    def on_session_lost(self, error: SessionLost) -> None:
        self._client.note(lambda client: setattr(client, "lost", error))

    def on_end(self, error: ClientError | None) -> None:
        self._client.note(lambda client: client.ended_with(error))
        self.injector.close()


class SessionClient:
    """The promise: what `send` returned from is queued once, and `receive` gives a message once, over failovers, or an
    error says what is in doubt. `guarantee` says which of that the brokers can keep.

    Whatever waits raises, beside its own errors: LoginRefused, SessionsNotOffered, SessionRefused, SessionTaken (the
    client has ended), SessionLost (until `begin_anew`), LinkUnusable (of its link), ClientClosed.
    """

    def __init__(
        self,
        addresses: str | Iterable[str],
        *,
        session: str | None = None,
        unconfirmed_max: int = UNCONFIRMED_MAX,
        options: ConnectOptions | None = None,
        **settings: Any,
    ) -> None:
        """`addresses`: of brokers, `amqp://a:5672,b:5672`. `session`: the UUID of one to resume, else a new one.

        `unconfirmed_max`: of one sender. `settings`: of `ClientSettings`. Raises ValueError.
        """
        self.unconfirmed_max = unconfirmed_max
        self.broker = ""
        """The one that serves us; empty: none just now."""
        self.reconnects = 0
        self.lost: SessionLost | None = None
        self.failed_links: dict[str, LinkUnusable] = {}
        self._senders: dict[str, BlockingSender] = {}
        self._receivers: dict[str, BlockingReceiver] = {}
        self._news = threading.Condition()
        self._has_ended = False
        self._error: ClientError | None = None
        self._handler = _Thread(self, addresses, session=session, options=options, **settings)
        self._thread = threading.Thread(target=self._run, name="qpid-ha-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            Container(self._handler).run()
        except BaseException as error:  # a bug of ours or of Proton: who waits must not wait for ever
            failure = ClientError(f"the client's thread has ended: {error!r}")
            failure.__cause__ = error
            self.note(lambda client: client.ended_with(failure))
            raise
        finally:
            self.note(lambda client: client.ended_with(None))
            for descriptor in self._handler.injector.pipe:
                os.close(descriptor)

    # --- what a program does

    @property
    def session_id(self) -> str:
        """The UUID under which another process can resume this session."""
        return self._handler.session_id

    @property
    def guarantee(self) -> ev.Guarantee | None:
        """What is promised with the broker that we are connected to, or were last; None: with none yet."""
        return self._handler.guarantee

    def wait_connected(self, timeout_s: float | None = None) -> None:
        """Until a broker serves us. Raises TimeoutError."""
        self.wait(lambda: bool(self.broker), timeout_s)

    def sender(self, address: str, name: str = "", *, options: Iterable[Any] = ()) -> BlockingSender:
        """Publish to `address`. `name`: of the link, the same whenever the session is resumed. Raises ValueError."""

        def made() -> BlockingSender:
            sender = BlockingSender(self, self._handler.create_sender(address, name, options=options))
            self._senders[sender.name] = sender
            return sender

        sender: BlockingSender = self._call(made)
        return sender

    def receiver(
        self, address: str, name: str = "", *, prefetch: int = PREFETCH, options: Iterable[Any] = ()
    ) -> BlockingReceiver:
        """Consume from `address`; `prefetch` messages come before the first is answered. Raises ValueError."""

        def made() -> BlockingReceiver:
            link = self._handler.create_receiver(address, name, prefetch=prefetch, options=options)
            receiver = BlockingReceiver(self, link)
            self._receivers[receiver.name] = receiver
            return receiver

        receiver: BlockingReceiver = self._call(made)
        return receiver

    def begin_anew(self, *, resend: bool = True) -> None:
        """After SessionLost: go on with a new session. `resend`: what may not be queued is sent again."""
        self._call(lambda: self._begin_anew(resend))

    def close(self, *, keep_session: bool = False, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """End. What was sent is waited for first; TimeoutError says that some of it is not confirmed.

        `keep_session`: brokers hold what is not answered, for whoever resumes the session.
        """
        try:
            if not self._has_ended and self.lost is None:
                for sender in list(self._senders.values()):
                    if sender.name not in self.failed_links:
                        sender.flush(timeout_s)
        finally:
            self._end(keep_session)

    def _end(self, keep_session: bool) -> None:
        if not self._has_ended:
            self.say(ev.CloseWanted(keep_session))
        self._thread.join(CLOSE_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:  # what is under way is not waited for: the error is more important
            self._end(keep_session=False)

    # --- between the threads

    def wait(self, is_reached: Callable[[], bool], timeout_s: float | None, link: str = "") -> None:
        """Until it is so; raises what ends the waiting, and TimeoutError."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._news:
            while not is_reached():
                self._check(link)
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise TimeoutError(f"not within {timeout_s:g} s; {self.broker or 'no broker serves just now'}")
                self._news.wait(left_s)

    def _check(self, link: str) -> None:
        if self._has_ended:
            if self._error is not None:
                raise self._error
            raise ClientClosed("the client is closed")
        if self.lost is not None:
            raise self.lost
        if link in self.failed_links:
            raise self.failed_links[link]

    def say(self, event: ev.Input) -> None:
        """To the core, in its thread. After the end nobody listens."""
        self._inject(lambda: self._handler.feed(event))

    def next_ticket(self) -> int:
        """Of a message that is sent."""
        return next(self._handler.tickets)

    def drop(self, link: str) -> None:
        """Have no such link any more."""
        self._call(lambda: self._drop(link))

    def note(self, change: Callable[[SessionClient], None]) -> None:
        """In the client's thread: something has changed."""
        with self._news:
            change(self)
            self._news.notify_all()

    def _drop(self, link: str) -> None:
        self._senders.pop(link, None)
        self._receivers.pop(link, None)
        self._handler.drop(link)

    def _begin_anew(self, resend: bool) -> None:
        with self._news:
            self.lost = None
        self._handler.begin_anew(resend=resend)

    def _inject(self, call: Callable[[], object]) -> None:
        with self._news:
            if self._has_ended:
                self._check("")
            self._handler.injector.trigger(ApplicationEvent("client_call", subject=call))

    def _call(self, call: Callable[[], Any]) -> Any:
        """Have it done in the client's thread, and return or raise what comes of it."""
        results: list[Any] = []
        errors: list[Exception] = []

        def called() -> None:
            try:
                result = call()
            except ValueError as error:  # what the program asked for makes no sense: its error, not the thread's
                refused = error
                self.note(lambda _: errors.append(refused))
            else:
                self.note(lambda _: results.append(result))

        self._inject(called)
        with self._news:
            self._news.wait_for(lambda: results or errors or self._has_ended)
            if not results and not errors:
                self._check("")
        if errors:
            raise errors[0]
        return results[0]

    # --- what the handler tells, with the lock

    def arrived(self, received: ReceivedMessage) -> None:
        """A message came."""
        receiver = self._receivers.get(received.receiver.name)
        if receiver is not None:
            message = receiver.open[received.ticket] = Received(receiver, received)
            receiver.waiting.append(message)

    def answered_send(self, link: str, ticket: int, error: ClientError | None) -> None:
        """A message that was sent is safe, or was not taken."""
        sender = self._senders.get(link)
        sent = None if sender is None else sender.unconfirmed.pop(ticket, None)
        if sent is not None:
            sent.is_confirmed, sent.error = error is None, error

    def settled(self, link: str, ticket: int, *, is_withdrawn: bool) -> None:
        """An answer counts, or a message was taken from us; one that the program has not seen it shall not see."""
        receiver = self._receivers.get(link)
        message = None if receiver is None else receiver.open.pop(ticket, None)
        if receiver is None or message is None:
            return
        message.is_withdrawn, message.is_settled = is_withdrawn, not is_withdrawn
        if is_withdrawn and message in receiver.waiting:
            receiver.waiting.remove(message)

    def ended_with(self, error: ClientError | None) -> None:
        """The thread has nothing more to do; the first reason counts."""
        if not self._has_ended:
            self._has_ended, self._error = True, error
