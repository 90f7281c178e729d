"""A publisher and a consumer of `qpid_ha_client` in threads, and the account of what became of each number."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from proton import Message

from qpid_ha_client import ClientClosed, SessionClient

PATIENCE_S = 60.0


class ExactLoad:
    """`with ExactLoad(urls, "q") as load:` sends the numbers from 0 on, and takes them, over one client each."""

    def __init__(self, urls: Sequence[str], queue: str, *, rate: int = 2000, **options: Any) -> None:
        self.sent = 0
        self._count: int | None = None
        """So many in all; None: until `finish`."""
        self.publisher = SessionClient(urls, **options)
        self.consumer = SessionClient(urls, **options)
        self.received: list[int] = []
        self.marked = 0
        self.errors: list[Exception] = []
        self._queue, self._rate = queue, rate
        self._threads = [threading.Thread(target=self._guard, args=(run,)) for run in (self._publish, self._consume)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self.publisher, self.consumer):
            client._end(keep_session=False)
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _guard(self, run: Callable[[], None]) -> None:
        try:
            run()
        except ClientClosed:
            pass
        except Exception as error:  # noqa: BLE001 (it is shown by whoever waits)
            self.errors.append(error)

    def _publish(self) -> None:
        sender = self.publisher.sender(self._queue)
        began_s = time.monotonic()
        while self._count is None or self.sent < self._count:
            sender.send_soon(Message(self.sent, durable=True))
            self.sent += 1
            time.sleep(max(0.0, began_s + self.sent / self._rate - time.monotonic()))
        sender.flush()

    def _consume(self) -> None:
        receiver = self.consumer.receiver(self._queue)
        while self._count is None or len(self.received) < self._count:
            try:
                message = receiver.receive(0.2)
            except TimeoutError:
                continue
            self.received.append(message.body)
            self.marked += message.redelivered
            message.accept()
        self.consumer.wait(lambda: not receiver.open, PATIENCE_S)

    def wait_more(self, more: int) -> None:
        """Until so many more have come."""
        count, deadline_s = len(self.received) + more, time.monotonic() + PATIENCE_S
        while len(self.received) < count:
            assert not self.errors, self.errors
            assert time.monotonic() < deadline_s, (len(self.received), self.publisher.broker, self.consumer.broker)
            time.sleep(0.01)

    def consumers_broker(self) -> str:
        """The URL of the one that serves the consumer."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := self.consumer.broker):
            assert time.monotonic() < deadline_s, "no broker serves the consumer"
            time.sleep(0.01)
        return found

    def finish(self) -> None:
        """Send a little more, and wait until all are there: each came once, in order."""
        self._count = self.sent + 500
        for thread in self._threads:
            thread.join(PATIENCE_S)
        assert not self.errors, self.errors
        assert self.received == list(range(self._count)), audit(self.received, self._count)


def audit(received: list[int], count: int) -> str:
    """What is wrong."""
    missing = sorted(set(range(count)) - set(received))
    twice = sorted({each for each in received if received.count(each) > 1}) if len(received) < 50_000 else []
    return (
        f"{len(received)} of {count}: missing {missing[:10]}, twice {twice[:10]}, sorted {received == sorted(received)}"
    )
