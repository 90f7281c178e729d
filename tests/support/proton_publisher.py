"""A publisher as Proton's Python documentation has it: a list of addresses, and Proton's own reconnecting.

`python proton_publisher.py QUEUE URL...` sends numbered messages one after the other, each until it is accepted, and
prints the number of each that was. It adds nothing to the client: no order of its own, no look at any error.
"""

from __future__ import annotations

import sys
from typing import Any

from proton import Message
from proton.handlers import MessagingHandler
from proton.reactor import Container

PAUSE_S = 0.02


class Publisher(MessagingHandler):
    """One message is under way at a time."""

    def __init__(self, queue: str, urls: list[str]) -> None:
        super().__init__()
        self._queue = queue
        self._urls = urls
        self._number = 0
        self._is_due = True

    def on_start(self, event: Any) -> None:
        """Connect."""
        connection = event.container.connect(urls=self._urls)
        self._sender = event.container.create_sender(connection, self._queue)

    def on_sendable(self, event: Any) -> None:
        """A broker takes messages."""
        self._send()

    def on_link_opened(self, event: Any) -> None:
        """A broker, the first or another one, knows nothing of what was under way."""
        self._is_due = True

    def _send(self) -> None:
        if self._is_due and self._sender.credit > 0:
            self._is_due = False
            self._sender.send(Message(str(self._number)))

    def on_accepted(self, event: Any) -> None:
        """On to the next."""
        print(self._number, flush=True)
        self._number += 1
        event.container.schedule(PAUSE_S, self)

    def on_rejected(self, event: Any) -> None:
        """The same again."""
        event.container.schedule(PAUSE_S, self)

    on_released = on_rejected

    def on_timer_task(self, event: Any) -> None:
        """The pause is over."""
        self._is_due = True
        self._send()


if __name__ == "__main__":
    Container(Publisher(sys.argv[1], sys.argv[2:])).run()
