"""A publisher and a consumer of `qpid_ha_client` in threads, and the account of what became of each number."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

from proton import Message

from polling import wait_until
from qpid_ha_client import ClientClosed, ConnectOptions, SessionClient

PATIENCE_S = 60.0


class ExactAccount(NamedTuple):
    """What became of the messages of one queue, or of several together."""

    sent: int
    lost: int
    twice: int
    out_of_order: int
    withdrawn: int
    """Messages that brokers took away from a consumer that had a session."""

    @property
    def is_flawless(self) -> bool:
        """All came once, in order, and stayed."""
        return not (self.lost or self.twice or self.out_of_order or self.withdrawn)


class ExactLoad:
    """`with ExactLoad(urls, "q") as load:` sends the numbers from 0 on, and takes them, over one client each.

    `consumer_urls`: where the consumer connects, if not where the publisher does. `unanswered`: so many messages the
    consumer has and answers later, which is what its session holds when something is killed. `rate`: messages a second;
    two clients of one Python process keep up with that also beside others, and nobody waits for a backlog in the end.
    While no broker serves, up to a thousand that nobody has confirmed pile up.
    """

    def __init__(
        self,
        urls: Sequence[str],
        queue: str,
        *,
        rate: int = 500,
        consumer_urls: Sequence[str] = (),
        unanswered: int = 0,
        require_session: bool = False,
    ) -> None:
        self.queue = queue
        self.sent = 0
        self.received: list[int] = []
        self.withdrawn = 0
        self.errors: list[str] = []
        self.reasons: list[str] = []
        """Why connections ended, as the clients were told."""
        self._rate, self._unanswered = rate, unanswered
        self._is_stopping = self._has_published = False
        self.publisher = self._client("publisher", urls, require_session)
        self.consumer = self._client("consumer", consumer_urls or urls, require_session)
        self.clients = (self.publisher, self.consumer)
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), daemon=True) for run in (self._publish, self._consume)
        ]

    def _client(self, role: str, urls: Sequence[str], require_session: bool) -> SessionClient:
        options = ConnectOptions(container_id=f"{role} of {self.queue}", heartbeat_s=2.0)
        client = SessionClient(list(urls), require_session=require_session, options=options)
        handler: Any = client._handler
        tell = handler.on_disconnected

        def disconnected(reason: str) -> None:
            self.reasons.append(reason.partition(": ")[2])
            tell(reason)

        handler.on_disconnected = disconnected
        return client

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both clients."""
        self._is_stopping = True
        for client in self.clients:
            client._end(keep_session=False)

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except ClientClosed:
            pass
        except Exception as error:  # noqa: BLE001 (any is one too many, and shown by whoever waits)
            self.errors.append(f"{type(error).__name__}: {error}")

    def _publish(self) -> None:
        sender = self.publisher.sender(self.queue)
        began_s = time.monotonic()
        try:
            while not self._is_stopping:
                sender.send_soon(Message(self.sent, durable=True))
                self.sent += 1
                time.sleep(max(0.0, began_s + self.sent / self._rate - time.monotonic()))
        finally:
            self._has_published = True
        sender.flush(PATIENCE_S)

    def _consume(self) -> None:
        receiver = self.consumer.receiver(self.queue)
        unanswered: deque[Any] = deque()
        while not (self._has_published and len(self.received) >= self.sent):
            try:
                received = receiver.receive(0.2)
            except TimeoutError:
                continue
            self.received.append(received.body)
            unanswered.append(received)
            if len(unanswered) > self._unanswered:
                self._accept(unanswered.popleft())
        while unanswered:
            self._accept(unanswered.popleft())
        self.consumer.wait(lambda: not receiver.open, PATIENCE_S)

    def _accept(self, received: Any) -> None:
        self.withdrawn += received.is_withdrawn
        received.accept()

    def wait_more(self, more: int) -> None:
        """Until so many more have come."""
        count = len(self.received) + more
        wait_until(lambda: len(self.received) >= count or self.errors, self._last_state, PATIENCE_S)
        assert not self.errors, self.errors

    def consumers_broker(self) -> str:
        """The URL of the one that serves the consumer."""
        wait_until(lambda: self.consumer.broker, self._last_state, PATIENCE_S)
        return self.consumer.broker

    def pause(self) -> None:
        """Publish no more."""
        self._is_stopping = True

    def settle(self, deadline_s: float) -> None:
        """Wait for the rest."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                self.errors.append(f"it did not come to its end: {self._last_state()}")

    def finish(self) -> None:
        """Send a little more, and wait until all are there: each came once, in order."""
        self.wait_more(500)
        self.pause()
        self.settle(time.monotonic() + PATIENCE_S)
        assert not self.errors, self.errors
        assert self.received == list(range(self.sent)), self.account()
        assert self.account().is_flawless, self.account()

    def _last_state(self) -> str:
        brokers = ", ".join(client.broker or "nowhere" for client in self.clients)
        unconfirmed = [len(sender.unconfirmed) for sender in self.publisher._senders.values()]
        waiting = [(len(receiver.waiting), len(receiver.open)) for receiver in self.consumer._receivers.values()]
        return f"clients at {brokers}; {len(self.received)} of {self.sent}, unconfirmed {unconfirmed}, open {waiting}"

    def account(self) -> ExactAccount:
        """Of what was sent."""
        times = Counter(self.received)
        lost = sum(1 for number in range(self.sent) if not times[number])
        twice = sum(count - 1 for count in times.values())
        disordered = sum(1 for first, second in zip(self.received, self.received[1:], strict=False) if second < first)
        return ExactAccount(self.sent, lost, twice, disordered, self.withdrawn)
