"""Proton's blocking client with the few words that tests need: offer, send, consume, browse, break the connection.

Senders, receivers and received messages are typed as Any: Proton's own annotations are partial, and in places wrong.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from proton import Delivery, Link, Message, ProtonException
from proton.handlers import TransactionHandler
from proton.reactor import Copy, LinkOption
from proton.utils import BlockingConnection, SyncRequestResponse

from limits import LIMIT_S
from qpid_ha_config.closing import Closing

PLENTY = 10_000

CLOSE_LIMIT_S = 5.0
"""A broker that was killed or stopped does not answer."""


class Outcome(NamedTuple):
    """What the broker said of one message. `condition` is empty unless it said why."""

    state: Any
    condition: str = ""
    description: str = ""


class SettleSecond(LinkOption):
    """The receiver settles only after the sender has heard its answer."""

    def apply(self, link: Link) -> None:
        """Called by Proton."""
        link.rcv_settle_mode = Link.RCV_SECOND


class BlockingClient(Closing):
    """One connection, one session. Whatever waits gives up after LIMIT_S with proton.Timeout."""

    def __init__(self, url: str, **options: Any) -> None:
        self.connection: Any = BlockingConnection(url, timeout=LIMIT_S, **options)
        self._links = itertools.count()

    def wait(self, condition: Callable[[], object]) -> None:
        """Let events in until `condition` holds."""
        self.connection.wait(condition)

    def sender(self, address: str | None, **options: Any) -> Any:
        """Attach a sender."""
        return self.connection.create_sender(address, **{"name": f"link-{next(self._links)}", **options})

    def receiver(self, address: str | None, credit: int = 1, *options: Any, **more: Any) -> Any:
        """Attach a receiver, with exactly so much credit: Proton's own prefetch would keep adding to it."""
        name = f"link-{next(self._links)}"
        receiver = self.connection.create_receiver(address, 0, options=list(options), **{"name": name, **more})
        if credit:
            receiver.link.flow(credit)
        return receiver

    def round_trip(self) -> None:
        """Whatever was said before has reached the broker when this returns, and the primary behind a proxy."""
        self.sender("$management").close()

    def write_together(self, *steps: Callable[[], object]) -> None:
        """Take each step, and send what they come to in one piece, in this order: Proton alone would mix it."""
        transport, data = self.connection.conn.transport, b""
        for step in steps:
            step()
            data += (found := transport.peek(transport.pending()))
            transport.pop(len(found))
        transport._selectable._delegate.sendall(data)

    # --- in

    def offer(self, sender: Any, message: Message | str) -> Outcome:
        """Send one message, and say what became of it."""
        delivery = sender.link.send(message if isinstance(message, Message) else Message(message))
        self.wait(lambda: delivery.settled)
        condition = delivery.remote.condition
        outcome = Outcome(delivery.remote_state, *((condition.name, condition.description) if condition else ()))
        delivery.settle()
        return outcome

    def send(self, address: str, *messages: Message | str) -> list[Outcome]:
        """Send each over a link of its own making, and wait until all are answered."""
        sender = self.sender(address)
        outcomes = [self.offer(sender, message) for message in messages]
        sender.close()
        return outcomes

    # --- out

    def fetch(self, receiver: Any, count: int, state: Any = Delivery.ACCEPTED) -> list[Any]:
        """Wait for `count` messages; answer each with `state`, None: leave them unanswered."""
        messages = []
        for _ in range(count):
            if not receiver.fetcher.has_message and not receiver.link.credit:
                receiver.link.flow(1)
            self.wait(lambda: receiver.fetcher.has_message)
            messages.append(receiver.fetcher.pop())
            if state is not None and receiver.fetcher.unsettled:
                receiver.settle(state)
        return messages

    def drain(self, receiver: Any) -> list[Any]:
        """All that is there for `receiver` now, unanswered: the broker itself says that there is no more."""
        receiver.link.drain(PLENTY)
        self.wait(lambda: receiver.link.credit == 0)
        return [receiver.fetcher.pop() for _ in range(receiver.fetcher.has_message)]

    def consume(self, address: str, *options: Any) -> list[Any]:
        """Take and accept all that is there now."""
        receiver = self.receiver(address, 0, *options)
        messages = self.drain(receiver)
        while receiver.fetcher.unsettled:
            receiver.accept()
        receiver.close()
        return messages

    def browse(self, address: str, *options: Any) -> list[Any]:
        """See all that is there now."""
        receiver = self.receiver(address, 0, Copy(), *options)
        messages = self.drain(receiver)
        receiver.close()
        return messages

    # --- the end

    def break_connection(self) -> None:
        """As if the cable was cut: no close, no detach."""
        self.connection.conn.transport._selectable._delegate.shutdown(socket.SHUT_RDWR)
        with suppress(ProtonException):
            self.connection.wait(lambda: self.connection.disconnected)

    def close(self) -> None:
        """Close in the protocol's way, as far as there is still somebody to close with."""
        self.connection.timeout = CLOSE_LIMIT_S
        with suppress(ProtonException):
            self.connection.close()


class LocalTransaction(TransactionHandler):
    """A local transaction on a blocking connection; `news` is what the coordinator said last."""

    def __init__(self, client: BlockingClient, *, settle_before_discharge: bool = False) -> None:
        super().__init__()
        self._client = client
        self.news = ""
        self.condition = ""
        connection = client.connection
        self.transaction: Any = connection.container.declare_transaction(connection.conn, self, settle_before_discharge)
        client.wait(lambda: self.news)
        if self.news != "declared":
            raise AssertionError(f"the coordinator said {self.news}: {self.condition}")

    def send(self, sender: Any, message: Message | str) -> Outcome:
        """Send one message as a part of it."""
        delivery = self.transaction.send(sender.link, message if isinstance(message, Message) else Message(message))
        self._client.wait(lambda: delivery.settled)
        return Outcome(delivery.remote_state)

    def accept(self, receiver: Any) -> None:
        """Accept what `receiver` got and did not answer, as a part of it."""
        while receiver.fetcher.unsettled:
            self.transaction.accept(receiver.fetcher.unsettled.popleft())

    def commit(self) -> str:
        """Discharge it; what the coordinator said."""
        return self._discharge(self.transaction.commit)

    def abort(self) -> str:
        """Roll it back; what the coordinator said."""
        return self._discharge(self.transaction.abort)

    def _discharge(self, how: Callable[[], None]) -> str:
        self.news = ""
        how()
        self._client.wait(lambda: self.news)
        return self.news

    # --- Proton's calls

    def on_transaction_declared(self, event: Any) -> None:
        """Declared."""
        self.news = "declared"

    def on_transaction_declare_failed(self, event: Any) -> None:
        """Refused."""
        self._failed(event, "declare failed")

    def on_transaction_committed(self, event: Any) -> None:
        """Done, all of it."""
        self.news = "committed"

    def on_transaction_aborted(self, event: Any) -> None:
        """Undone, all of it."""
        self.news = "aborted"

    def on_transaction_commit_failed(self, event: Any) -> None:
        """Not done, none of it."""
        self._failed(event, "commit failed")

    def _failed(self, event: Any, news: str) -> None:
        condition = event.delivery.remote.condition
        self.news, self.condition = news, condition.name if condition else ""


class Answer(NamedTuple):
    """What `$management` answered."""

    status: int
    description: str
    body: Any
    properties: dict[str, Any]


class Management:
    """Asks `$management`, over a dynamic reply queue as Proton's request/response client does."""

    def __init__(self, client: BlockingClient) -> None:
        self._calls: Any = SyncRequestResponse(client.connection, "$management")

    def ask(self, operation: str, body: Any = None, **properties: object) -> Answer:
        """One request, one answer."""
        answer = self._calls.call(Message(body=body, properties={"operation": operation, **properties}))
        status, description = answer.properties.pop("statusCode"), answer.properties.pop("statusDescription")
        return Answer(status, description, answer.body, answer.properties)

    def create_queue(self, name: str, arguments: dict[str, object] | None = None) -> None:
        """Raises AssertionError when it is refused."""
        self._create("queue", name, {"arguments": arguments or {}})

    def create_exchange(self, name: str, kind: str, arguments: dict[str, object] | None = None) -> None:
        """Raises AssertionError when it is refused."""
        self._create("exchange", name, {"kind": kind, "arguments": arguments or {}})

    def bind(self, exchange: str, queue: str, key: str = "", arguments: dict[str, object] | None = None) -> None:
        """Raises AssertionError when it is refused."""
        body = {"exchange": exchange, "queue": queue, "key": key, "arguments": arguments or {}}
        _expect(self.ask("CREATE", body, type="binding"), 201)

    def delete_queue(self, name: str) -> None:
        """Raises AssertionError when it is refused."""
        _expect(self.ask("DELETE", type="queue", name=name), 204)

    def queue(self, name: str) -> dict[str, Any] | None:
        """Its attributes; None when there is no such queue."""
        answer = self.ask("READ", type="queue", name=name)
        return answer.body if answer.status == 200 else None

    def messages(self, name: str) -> int | None:
        """How many a queue holds, acquired ones too; None when there is no such queue."""
        facts = self.queue(name)
        return None if facts is None else facts["messages"]

    def _create(self, kind: str, name: str, body: dict[str, object]) -> None:
        _expect(self.ask("CREATE", body, type=kind, name=name), 201)


def _expect(answer: Answer, status: int) -> None:
    if answer.status != status:
        raise AssertionError(f"{answer.status} {answer.description}")


def bodies(messages: Iterable[Any]) -> list[Any]:
    """What they say. Proton gives binary as a view into its memory, which does not stay."""
    return [bytes(m.body) if isinstance(m.body, memoryview) else m.body for m in messages]
