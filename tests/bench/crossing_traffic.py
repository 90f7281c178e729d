"""Load in which features meet, and its books: what `./dev soak --sets` has beside faults.

Each producer sends numbers, and one book is kept for each queue that its messages are to come to: plain publishers at
brokers that relay and at brokers that lead, clients with sessions, an exchange that forwards to queues of several sets,
transactions over two queues, and a queue whose messages are moved to another one.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

from proton import Delivery, Message, symbol
from proton.handlers import Release, TransactionHandler

from bench.soak_report import kind_of
from qpid_ha_client import ClientError, ConnectOptions, SessionClient, SessionLost
from qpid_ha_client.session_client import BlockingReceiver, SentMessage
from qpid_ha_demo.ledger import Arrival, Ledger, LedgerAudit
from qpid_ha_demo.load import DemoConsumer, DemoPublisher, arrival_of, numbered, producer_of

RATE: Final = 20
"""Messages a second of each producer."""
STEP_S: Final = 0.02
BATCH: Final = 4
"""Messages of one transaction, each in two queues."""
UNANSWERED: Final = 3
"""What a consumer with a session holds: it answers later."""
HEARTBEAT_S: Final = 2.0
CLOSE_S: Final = 5.0
ANNOTATION: Final = "x-opt-looked-at"
_ANNOTATED_EACH: Final = 10
_LOST: Final = "the session was lost"
SETS: Final = ("set-1", "set-2", "set-3", "set-4")
EXCHANGE: Final = "news"
MOVED: Final = ("parked", "unparked", "set-4")
"""A queue, the one to which its messages are moved, and the set of both."""
QUEUES: Final[Mapping[str, str]] = {
    **{f"queue-{name}": name for name in SETS},
    "exact-1": "set-1",
    "exact-3": "set-3",
    "exact-default": "default",
    "news-1": "set-1",
    "news-2": "set-2",
    "news-3": "set-3",
    "debit": "set-2",
    "credit": "set-2",
    MOVED[0]: MOVED[2],
    MOVED[1]: MOVED[2],
}
"""And the set of each."""
NEWS: Final = ("news-1", "news-2", "news-3")
"""Queues of the exchange."""
EXACT: Final = ("exact-1", "exact-3", "exact-default")
WITH_SESSIONS: Final = (*EXACT, NEWS[1])
"""Queues whose consumer has a session."""
ANNOTATED: Final = "queue-set-2"
"""The queue whose consumer says of some messages what it thinks of them, as it gives them back."""
EXCLUSIVE: Final = ("queue-set-1", "queue-set-3", NEWS[0], "debit", "credit")
"""Queues of one consumer at a time."""


class Producer(Protocol):
    """Whoever sends numbers."""

    name: str
    has_session: bool
    ledger: Ledger
    problems: list[str]
    in_doubt: set[int]
    """Numbers that were under way when a session was lost: they may be sent again, and do not say so."""

    def start(self) -> None:
        """Begin."""

    def pause(self) -> None:
        """Send nothing new."""

    def stop(self) -> None:
        """End."""

    @property
    def is_settled(self) -> bool:
        """Paused, and all that was sent is confirmed."""


class Consumer(Protocol):
    """Whoever takes from one queue."""

    queue: str
    has_session: bool
    problems: list[str]

    def start(self) -> None:
        """Begin."""

    def stop(self) -> None:
        """End."""


@dataclass
class Book:
    """What one producer has sent, and what has come of it out of one queue."""

    producer: Producer
    queue: str
    ledger: Ledger
    """It shares what was confirmed and refused with the producer's."""
    is_exact: bool
    """Both ends have sessions: a copy is one too many, with its mark, too."""
    is_sole: bool
    """The consumer has a session, or the queue is exclusive: nobody else is given messages meanwhile. Another consumer
    that comes again competes with its own earlier connection for as long as a broker that is stopped, or cut off, has
    that: what was sent there comes back late."""
    came_again_s: float = math.inf
    """When the consumer did that for the first time; of one that is alone: never."""

    @property
    def name(self) -> str:
        """Of the producer and of the queue."""
        return f"{self.producer.name} -> {self.queue}"

    def audit(self) -> LedgerAudit:
        """See `Ledger.audit`; what may come late counts as in order."""
        came_at_s: dict[int, float] = {}
        audit = self.ledger.audit()
        for arrival in self.ledger.arrivals:
            came_at_s.setdefault(arrival.number, arrival.at_s)
        late = [number for number in audit.out_of_order if came_at_s[number] < self.came_again_s]
        return replace(audit, out_of_order=tuple(late))


@dataclass
class Books:
    """All of them, by queue and producer."""

    of: dict[tuple[str, str], Book] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    """Messages that nobody has sent there."""

    def open(self, producer: Producer, queue: str, *, is_exact: bool = False, is_sole: bool = False) -> None:
        """One more."""
        own = producer.ledger
        ledger = Ledger(confirmed_at_s=own.confirmed_at_s, refused=own.refused)
        self.of[queue, producer.name] = Book(producer, queue, ledger, is_exact, is_sole)

    def comes_again(self, queue: str) -> None:
        """Its consumer has another connection than it began with."""
        for book in self.of.values():
            if book.queue == queue and not book.is_sole:
                book.came_again_s = min(book.came_again_s, time.monotonic())

    def arrive(self, queue: str, message: Message) -> None:
        """A message came out of a queue."""
        arrival, book = arrival_of(message), self.of.get((queue, producer_of(message)))
        if book is None:
            self.strays.append(f"{arrival.number} of {producer_of(message) or 'nobody'} came out of {queue}")
            return
        if arrival.number in book.producer.in_doubt:
            arrival = arrival._replace(sent_again=True)
        book.ledger.arrive(arrival)


# --- clients without sessions


class PlainPublisher(DemoPublisher):
    """At brokers in the order of `urls`."""

    step_s = STEP_S
    has_session = False

    def __init__(self, name: str, urls: Sequence[str], address: str) -> None:
        super().__init__(urls, address, Ledger(), rate=RATE, durable=True)
        self.name = self.producer = name
        self.in_doubt: set[int] = set()


class TransactingPublisher(PlainPublisher, TransactionHandler):
    """Sends each number to two queues, some numbers in one transaction: all of it counts, or nothing."""

    def __init__(self, name: str, urls: Sequence[str], queues: tuple[str, str]) -> None:
        super().__init__(name, urls, queues[0])
        self._queues = queues
        self._senders: list[Any] = []
        self._batch: list[tuple[int, bool]] = []
        """Numbers of the transaction that is under way, and whether they were sent before."""

    def open_link(self, container: Any, connection: Any) -> None:
        """To both queues."""
        self._senders = [container.create_sender(connection, queue) for queue in self._queues]

    def lost(self) -> None:
        """Nobody knows whether the transaction counts."""
        super().lost()
        self._again = deque(sorted({*self._again, *(number for number, _ in self._batch)}))
        self._batch = []

    def _send_what_is_due(self) -> None:
        if self._batch or any(sender.credit < BATCH for sender in self._senders):
            return
        while self._again and len(self._batch) < BATCH:
            self._batch.append((self._again.popleft(), True))
        while not self._again and self.ledger.sent < self._due() and len(self._batch) < BATCH:
            self._batch.append((self.ledger.sent, False))
            self.ledger.sent += 1
        if self._batch:
            self._container.declare_transaction(self._connection, handler=self)

    def on_transaction_declared(self, event: Any) -> None:
        """Send the batch, and have it count."""
        if event.connection != self._connection:
            return
        for (number, sent_again), sender in itertools.product(self._batch, self._senders):
            tag = str(next(self._tags))
            event.transaction.send(sender, self._message(number, tag, sent_again=sent_again), tag=tag)
        event.transaction.commit()

    def on_transaction_committed(self, event: Any) -> None:
        """It counts: if the broker says so, for Proton calls that, too, whose commit was answered with neither accepted
        nor rejected."""
        if event.connection != self._connection:
            return
        if event.delivery.remote_state != Delivery.ACCEPTED:
            self.problems.append(f"a commit was answered with {event.delivery.remote_state}")
            self.on_transaction_aborted(event)
            return
        for number, _ in self._batch:
            self.ledger.confirm(number, time.monotonic())
        self._batch = []

    def on_transaction_aborted(self, event: Any) -> None:
        """It does not count: once more, before all others."""
        if event.connection == self._connection:
            self._again = deque(sorted({*self._again, *(number for number, _ in self._batch)}))
            self._batch = []

    def on_transaction_commit_failed(self, event: Any) -> None:
        """The same; the broker says why."""
        self.problems.append(f"commit refused: {event.delivery.remote.condition}")
        self.on_transaction_aborted(event)

    def on_transaction_declare_failed(self, event: Any) -> None:
        """The same."""
        self.problems.append(f"transaction refused: {event.delivery.remote.condition}")
        self.on_transaction_aborted(event)


class PlainConsumer(DemoConsumer):
    """At brokers in the order of `urls`; accepts whatever comes."""

    step_s = STEP_S
    has_session = False

    def __init__(self, books: Books, urls: Sequence[str], queue: str) -> None:
        super().__init__(urls, queue, Ledger())
        self.queue, self._books = queue, books
        self._has_consumed = False

    def on_link_opened(self, event: Any) -> None:
        """A broker serves us."""
        super().on_link_opened(event)
        self._has_consumed = True

    def lost(self) -> None:
        """Another connection follows."""
        if self._has_consumed:
            self._books.comes_again(self.queue)

    def write_down(self, message: Message) -> None:
        """Into the book of its producer."""
        self._books.arrive(self.queue, message)


class GivenBack(NamedTuple):
    """A message that was given back with an annotation, and came again."""

    given_at_s: float
    came_at_s: float
    has_annotation: bool


class AnnotatingConsumer(PlainConsumer):
    """Gives each message that has a number of a kind back once, as `modified` with an annotation."""

    def __init__(self, books: Books, urls: Sequence[str], queue: str) -> None:
        super().__init__(books, urls, queue)
        self._given_at_s: dict[tuple[str, int], float] = {}
        """By producer and number; infinite: it came again."""
        self.given_back: list[GivenBack] = []

    def on_message(self, event: Any) -> None:
        """One arrived. Raises Release: it is given back."""
        super().on_message(event)
        number = producer_of(event.message), arrival_of(event.message).number
        if number[1] % _ANNOTATED_EACH:
            return
        if number not in self._given_at_s:
            self._given_at_s[number] = time.monotonic()
            event.delivery.local.failed = True
            event.delivery.local.annotations = {symbol(ANNOTATION): number[1]}
            raise Release
        given_at_s, self._given_at_s[number] = self._given_at_s[number], math.inf
        if given_at_s < math.inf:
            said = (event.message.annotations or {}).get(ANNOTATION)
            self.given_back.append(GivenBack(given_at_s, time.monotonic(), said is not None))
            if said not in (None, number[1]):
                self.problems.append(f"an annotation of another message came: {said} and not {number[1]}")


# --- clients with sessions


class _SessionThread:
    """A client with a session, and the thread that works with it. When the session is lost it begins another one."""

    has_session = True

    def __init__(self, label: str, urls: Sequence[str]) -> None:
        self.label, self._urls = label, list(urls)
        self._client: SessionClient | None = None
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=label, daemon=True)
        self.problems: list[str] = []
        self.lost_at_s: list[float] = []
        """When a session was lost."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._is_stopping = True
        if self._thread.is_alive():
            self._thread.join(2 * CLOSE_S)

    def broken_promises(self, began_s: float) -> Iterator[str]:
        """What no client with a session may be told, each in a sentence; times are since `began_s`."""
        if self.lost_at_s:
            times = ", ".join(f"{at_s - began_s:.1f}" for at_s in self.lost_at_s)
            yield f"its session was lost, at {times} s"
        others = Counter(kind_of(text) for text in self.problems if not text.startswith(_LOST))
        yield from (f"{count} times: {text}" for text, count in others.items())

    def _run(self) -> None:
        options = ConnectOptions(container_id=self.label, heartbeat_s=HEARTBEAT_S)
        self._client = client = SessionClient(self._urls, require_session=True, options=options)
        try:
            self._attach(client)
            while not self._is_stopping:
                try:
                    self._work(client)
                except SessionLost as error:
                    self.problems.append(f"{_LOST}: {error}")
                    self.lost_at_s.append(time.monotonic())
                    self._began_anew()
                    client.begin_anew()
        except Exception as error:  # noqa: BLE001 (any is one too many, and a finding)
            self.problems.append(f"the client has ended: {type(error).__name__}: {error}")
        finally:
            with suppress(ClientError, TimeoutError):
                client.close(timeout_s=CLOSE_S)

    def _attach(self, client: SessionClient) -> None:
        raise NotImplementedError

    def _work(self, client: SessionClient) -> None:
        """A moment of it. Raises SessionLost."""
        raise NotImplementedError

    def _began_anew(self) -> None:
        """Before another session is begun."""


class SessionPublisher(_SessionThread):
    """Sends numbers, each of which is to be queued once."""

    def __init__(self, name: str, urls: Sequence[str], address: str) -> None:
        super().__init__(f"publisher {name}", urls)
        self.name, self._address = name, address
        self.ledger = Ledger()
        self.in_doubt: set[int] = set()
        self._open: list[tuple[int, SentMessage]] = []
        self._is_paused = self.is_settled = False
        self._next_s = 0.0

    def pause(self) -> None:
        """Send nothing new."""
        self._is_paused = True

    def _attach(self, client: SessionClient) -> None:
        self._sender = client.sender(self._address)

    def _work(self, client: SessionClient) -> None:
        self._write_down()
        if self._is_paused:
            with suppress(TimeoutError):
                self._sender.flush(STEP_S)
            self._write_down()
            self.is_settled = not self._open
            time.sleep(STEP_S)
            return
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._next_s = time.monotonic() + 1 / RATE
        with suppress(TimeoutError):  # too much is not confirmed
            sent = self._sender.send_soon(numbered(self.ledger.sent, self.name), STEP_S)
            self._open.append((self.ledger.sent, sent))
            self.ledger.sent += 1

    def _write_down(self) -> None:
        now_s = time.monotonic()
        for number, sent in self._open:
            if sent.is_confirmed:
                self.ledger.confirm(number, now_s)
            elif sent.error is not None:
                self.problems.append(f"a message was not taken: {sent.error}")
        self._open = [(number, sent) for number, sent in self._open if not sent.is_confirmed and sent.error is None]

    def _began_anew(self) -> None:
        self.in_doubt.update(number for number, _ in self._open)


class SessionConsumer(_SessionThread):
    """Takes each message once, and answers some messages later."""

    def __init__(self, books: Books, urls: Sequence[str], queue: str) -> None:
        super().__init__(f"consumer of {queue}", urls)
        self.queue, self._books = queue, books
        self._unanswered: deque[Any] = deque()

    def _attach(self, client: SessionClient) -> None:
        self._receiver: BlockingReceiver = client.receiver(self.queue)

    def _work(self, client: SessionClient) -> None:
        try:
            received = self._receiver.receive(0.2)
        except TimeoutError:
            while self._unanswered:
                self._answer()
            return
        self._books.arrive(self.queue, received.message)
        self._unanswered.append(received)
        if len(self._unanswered) > UNANSWERED:
            self._answer()

    def _answer(self) -> None:
        received = self._unanswered.popleft()
        if received.is_withdrawn:
            self.problems.append("a message was taken away from a client with a session")
        received.accept()

    def _began_anew(self) -> None:
        self._unanswered.clear()


# --- all of it


class Finding(NamedTuple):
    """A book that does not balance, or something that a client should never be told."""

    where: str
    text: str


class CrossingTraffic:
    """All clients and books of a run. They are made, and begin, where `start` is called: in a namespace, say."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self.books = Books()
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self._make()

    def _from(self, number: int) -> list[str]:
        """All addresses, that one first. Set N prefers the broker N, the first of them."""
        number %= len(self._urls)
        return self._urls[number:] + self._urls[:number]

    def _make(self) -> None:
        for number, name in enumerate(SETS):
            queue = f"queue-{name}"
            self._produce(PlainPublisher(f"leader's client of {name}", self._from(number), queue), queue)
            self._produce(PlainPublisher(f"proxy's client of {name}", self._from(number + 2), queue), queue)
        for number, queue in enumerate(EXACT):
            self._produce(SessionPublisher(f"session of {queue}", self._from(number + 1), queue), queue, exactly=True)
        for producer in (
            PlainPublisher("leader's newsman", self._from(0), EXCHANGE),
            PlainPublisher("proxy's newsman", self._from(4), EXCHANGE),
            SessionPublisher("newsman's session", self._from(3), EXCHANGE),
        ):
            self._produce(producer, *NEWS)
        bookings = ("debit", "credit")
        self._produce(TransactingPublisher("booker", self._from(3), bookings), *bookings)
        self._produce(PlainPublisher("parker", self._from(2), MOVED[0]), MOVED[1])
        for number, queue in enumerate(name for name in QUEUES if name != MOVED[0]):
            kind = SessionConsumer if queue in WITH_SESSIONS else PlainConsumer
            kind = AnnotatingConsumer if queue == ANNOTATED else kind
            self.consumers.append(kind(self.books, self._from(number), queue))

    def _produce(self, producer: Producer, *queues: str, exactly: bool = False) -> None:
        self.producers.append(producer)
        for queue in queues:
            self.books.open(producer, queue, is_exact=exactly, is_sole=queue in (*WITH_SESSIONS, *EXCLUSIVE))

    def start(self) -> None:
        """Begin to work."""
        for client in self._clients():
            client.start()

    def pause(self) -> None:
        """Publish nothing new."""
        for producer in self.producers:
            producer.pause()

    def stop(self) -> None:
        """End all clients."""
        for client in self._clients():
            client.stop()

    def _clients(self) -> Iterator[Producer | Consumer]:
        yield from self.producers
        yield from self.consumers

    @property
    def is_at_work(self) -> bool:
        """Something came of each producer in each queue."""
        return all(book.ledger.arrived for book in self.books.of.values() if book.queue != MOVED[1])

    @property
    def is_settled(self) -> bool:
        """Everything that was sent is confirmed, and has arrived."""
        producers = all(producer.is_settled for producer in self.producers)
        return producers and not any(book.ledger.missing for book in self.books.of.values())

    @property
    def progress(self) -> int:
        """Grows with each confirmation and arrival."""
        confirmed = sum(len(producer.ledger.confirmed_at_s) for producer in self.producers)
        return confirmed + sum(len(book.ledger.arrivals) for book in self.books.of.values())

    @property
    def given_back(self) -> list[GivenBack]:
        """By consumers that say what they think of messages."""
        annotating = [consumer for consumer in self.consumers if isinstance(consumer, AnnotatingConsumer)]
        return [each for consumer in annotating for each in consumer.given_back]

    def problems(self) -> list[Finding]:
        """What brokers told clients, and what clients say of themselves."""
        named = [(producer.name, producer.problems) for producer in self.producers]
        named += [(f"consumer of {consumer.queue}", consumer.problems) for consumer in self.consumers]
        return [Finding(name, text) for name, problems in named for text in problems]

    def findings(self, began_s: float) -> list[Finding]:
        """What does not balance, with times since `began_s`, and what no client may be told."""
        found = [Finding("books", stray) for stray in self.books.strays]
        for book in self.books.of.values():
            found += [Finding(book.name, text) for text in broken_promises(book, began_s)]
        for client in self._clients():
            if isinstance(client, SessionPublisher | SessionConsumer):
                found += [Finding(client.label, text) for text in client.broken_promises(began_s)]
        for producer in self.producers:
            if not producer.is_settled:
                missing = producer.ledger.sent - len(producer.ledger.confirmed_at_s)
                found.append(
                    Finding(producer.name, f"{missing} of {producer.ledger.sent} were not confirmed in the end")
                )
        return found


def broken_promises(book: Book, began_s: float) -> Iterator[str]:
    """Of a book, each in a sentence; times are since `began_s`."""
    audit, confirmed_at_s = book.audit(), book.ledger.confirmed_at_s
    first_at_s: dict[int, Arrival] = {}
    last_at_s: dict[int, Arrival] = {}
    for arrival in book.ledger.arrivals:
        first_at_s.setdefault(arrival.number, arrival)
        last_at_s[arrival.number] = arrival
    if audit.lost:
        when = _spans(confirmed_at_s[number] - began_s for number in audit.lost)
        yield f"lost {len(audit.lost)} of {audit.confirmed} confirmed: {_numbers(audit.lost)}, confirmed at {when}"
    if audit.duplicates_unmarked:
        numbers = audit.duplicates_unmarked
        when = ", ".join(
            f"{number} at {first_at_s[number].at_s - began_s:.1f} s and {last_at_s[number].at_s - began_s:.1f} s"
            for number in numbers[:3]
        )
        yield f"{len(numbers)} came twice without a mark: {_numbers(numbers)}: {when}"
    if audit.out_of_order:
        when = _spans(first_at_s[number].at_s - began_s for number in audit.out_of_order)
        yield f"{len(audit.out_of_order)} out of order: {_numbers(audit.out_of_order)}, at {when}"
    if book.is_exact and audit.duplicates_announced:
        yield f"{audit.duplicates_announced} came twice to a client with a session, of one with a session"


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, ... {numbers[-1]}"


def _spans(times_s: Iterable[float]) -> str:
    times_s = sorted(times_s)
    return f"{times_s[0]:.1f} to {times_s[-1]:.1f} s"
