"""Load that lives through failovers, and its account: for tests that break a cluster while it works."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from limits import LIMIT_S
from polling import LOOK_S, wait_until
from qpid_ha_demo.ledger import Ledger, LedgerAudit
from qpid_ha_demo.load import DemoConsumer, DemoPublisher, FailoverClient

__all__ = ["FailoverLoad", "LedgerAudit"]


class _CountsLinks(FailoverClient):
    links_opened = 0
    """More than one: the client has had to come again."""

    def on_link_opened(self, event: Any) -> None:
        """Count it."""
        super().on_link_opened(event)
        self.links_opened += 1


class BurstPublisher(_CountsLinks, DemoPublisher):
    """Sends what is due all at once: one message at a time takes brokers three times as much of a shared processor."""

    burst_s = 0.02


class CountingConsumer(_CountsLinks, DemoConsumer):
    """Accepts whatever comes."""


class FailoverLoad:
    """`with FailoverLoad(cluster.urls) as load:` publishes and consumes until `finish`, which gives the account.

    Proton's ordinary client, in two threads. With `consume=False` messages pile up, and `finish` begins to consume.
    `consumer_urls`: where the consumer connects, if not where the publisher does.
    """

    def __init__(
        self,
        urls: Sequence[str],
        queue: str = "load",
        *,
        rate: int = 500,
        size: int = 100,
        consume: bool = True,
        durable: bool = False,
        consumer_urls: Sequence[str] = (),
    ) -> None:
        self.ledger = Ledger()
        self.publisher = BurstPublisher(urls, queue, self.ledger, rate=rate, size=size, durable=durable)
        self.consumer: CountingConsumer = self.make_consumer(consumer_urls or urls, queue)
        self._consumes = consume

    def make_consumer(self, urls: Sequence[str], queue: str) -> CountingConsumer:
        """One that writes down what arrives."""
        return CountingConsumer(urls, queue, self.ledger)

    def __enter__(self) -> Self:
        self.publisher.start()
        if self._consumes:
            self.consumer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.publisher.stop()
        self.consumer.stop()
        if error is not None:
            problems = [*self.publisher.problems, *self.consumer.problems]
            told = f"what brokers told the clients: {problems[-20:]}"
            error.add_note(f"{told}; {len(self.ledger.confirmed_at_s)} of {self.ledger.sent} were confirmed")

    @property
    def interruptions(self) -> list[str]:
        """What the clients noticed beside a pause: what brokers told them, and that they had to come again."""
        clients = (self.publisher, self.consumer)
        again = [f"{type(client).__name__} attached again" for client in clients if client.links_opened > 1]
        return [*self.publisher.problems, *self.consumer.problems, *again]

    @property
    def unconfirmed(self) -> int:
        """How many were sent and are not confirmed."""
        return self.ledger.sent - len(self.ledger.confirmed_at_s)

    def wait_confirmed(self, count: int = 1, timeout_s: float = LIMIT_S) -> float:
        """Until so many more messages were confirmed; when that was. Raises TimeoutError."""
        wanted = len(self.ledger.confirmed_at_s) + count
        missing = f"not in {timeout_s:g} s: {count} more messages are confirmed"
        wait_until(lambda: len(self.ledger.confirmed_at_s) >= wanted, lambda: missing, timeout_s)
        return time.monotonic()

    def recovered_after(self, at_s: float, timeout_s: float = LIMIT_S) -> float:
        """Seconds from `at_s` to the first confirmation on a connection made after it. Raises TimeoutError."""
        later: list[float] = []

        def is_served() -> bool:
            later[:] = [first_s for attached_s, first_s in list(self.publisher.recoveries) if attached_s > at_s]
            return bool(later)

        wait_until(is_served, lambda: f"no publisher was served again for {timeout_s:g} s", timeout_s)
        return later[0] - at_s

    def finish(self, timeout_s: float = LIMIT_S) -> LedgerAudit:
        """Publish no more, have all that was sent confirmed and all that was confirmed consumed; the account.

        What has not come when nothing moves for `timeout_s` is lost, and the account says so.
        """
        if not self._consumes:
            self._consumes = True
            self.consumer.start()
        self.publisher.pause()
        progress, moved_at_s = -1, time.monotonic()
        while not (self.publisher.is_settled and self.ledger.missing == 0):
            now_s = time.monotonic()
            if (done := len(self.ledger.confirmed_at_s) + len(self.ledger.arrivals)) != progress:
                progress, moved_at_s = done, now_s
            if now_s - moved_at_s > timeout_s:
                break
            time.sleep(LOOK_S)
        self.publisher.stop()
        self.consumer.stop()
        return self.ledger.audit()
