"""Clients that resume their session when a broker is lost: one that publishes numbers, one that works them off.

As small as it can be: what a client has to do is send again what is above the number that was confirmed, and accept
without doing it again what comes under an id that it has worked off.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from proton import Message, ProtonException, symbol, ulong

from blocking_client import BlockingClient

PATIENCE_S = 40.0
WINDOW = 50
"""Messages that a publisher has not heard of, at most."""
LATE = 7
"""Messages that are worked off before any of them is accepted."""


def session_properties(name: str, **more: object) -> dict[Any, Any]:
    """Of an open."""
    given = {"qpid.session": name, "qpid.session-timeout": 60, **more}
    return {symbol(key.replace("_", "-").replace("qpid-", "qpid.")): value for key, value in given.items()}


def open_session(url: str, name: str, **more: object) -> BlockingClient:
    """Raises ProtonException where it is not granted."""
    return BlockingClient(url, properties=session_properties(name, **more))


def told(client: BlockingClient) -> dict[str, Any]:
    """What the broker's open says."""
    return {str(key): value for key, value in client.connection.conn.remote_properties.items()}


def link_property(link: Any, name: str) -> int:
    """Of the broker's attach."""
    return int(link.link.remote_properties[name])


class _Resuming(Thread):
    def __init__(self, urls: Sequence[str], queue: str) -> None:
        super().__init__(daemon=True)
        self.urls, self.queue = list(urls), queue
        self.session = str(uuid.uuid4())
        self.statuses: list[str] = []
        """What the broker has said of the session, at each connection."""
        self.failure: BaseException | None = None
        self.stopping = Event()

    def run(self) -> None:
        try:
            until_s = time.monotonic() + PATIENCE_S
            while not self.is_done and time.monotonic() < until_s:
                with suppress(ProtonException, OSError):
                    self._work_on_a_connection()
        except BaseException as error:
            self.failure = error
            raise

    @property
    def is_done(self) -> bool:
        raise NotImplementedError

    def work(self, client: BlockingClient) -> None:
        raise NotImplementedError

    def _work_on_a_connection(self) -> None:
        url = self.urls.pop(0)
        self.urls.append(url)
        try:
            client = open_session(url, self.session, qpid_session_resume=bool(self.statuses))
        except (ProtonException, OSError):
            time.sleep(0.02)
            raise
        self.statuses.append(told(client)["qpid.session-status"])
        try:
            self.work(client)
        finally:
            if self.is_done:
                with suppress(ProtonException):
                    client.close()
            elif client.connection.conn.transport is not None:  # the broker is there, and the client is at fault
                client.break_connection()


class ResumingPublisher(_Resuming):
    """Publishes 1 to `count`."""

    def __init__(self, urls: Sequence[str], queue: str, count: int) -> None:
        super().__init__(urls, queue)
        self.count = count
        self.confirmed = 0
        """All up to this one were accepted."""

    @property
    def is_done(self) -> bool:
        return self.confirmed == self.count

    def work(self, client: BlockingClient) -> None:
        sender = client.sender(self.queue, name="out")
        self.confirmed = max(self.confirmed, link_property(sender, "qpid.session-confirmed"))
        waiting: list[tuple[int, Any]] = []
        last = self.confirmed
        while not self.is_done:
            while last < self.count and len(waiting) < WINDOW and sender.link.credit > 0:
                last += 1
                waiting.append((last, sender.link.send(self._message(last))))
            client.wait(lambda: waiting[0][1].settled if waiting else sender.link.credit > 0)
            while waiting and waiting[0][1].settled:
                self.confirmed = waiting.pop(0)[0]

    def _message(self, number: int) -> Message:
        name = f"{self.session}/out"
        annotations = {symbol("x-opt-qpid-producer"): name, symbol("x-opt-qpid-sequence"): ulong(number)}
        return Message(number, durable=True, annotations=annotations)


class ResumingConsumer(_Resuming):
    """Works messages off until it has had `count`."""

    def __init__(self, urls: Sequence[str], queue: str, count: int) -> None:
        super().__init__(urls, queue)
        self.count = count
        self.done: list[int] = []
        """What was worked off, in order."""
        self.again = 0
        """Messages that came once more, and had been worked off."""
        self._ids: set[int] = set()

    @property
    def is_done(self) -> bool:
        return len(self.done) >= self.count

    def work(self, client: BlockingClient) -> None:
        receiver = client.receiver(self.queue, 2 * LATE, name="in")
        unanswered = 0
        while not self.is_done:
            message = receiver.receive()
            number = int(message.instructions["qpid.message-id"])
            if number in self._ids:
                self.again += 1
            else:
                self._ids.add(number)
                self.done.append(message.body)
            unanswered += 1
            if unanswered == LATE or self.is_done:
                for _ in range(unanswered):
                    receiver.accept()
                receiver.link.flow(unanswered)
                unanswered = 0
        client.round_trip()
