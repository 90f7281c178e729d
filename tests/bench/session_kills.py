"""`./dev soak --sessions --kills N`: brokers that relay are killed under clients with sessions, which notice nothing.

Five brokers, six resource sets and a queue of `default`. Each queue has a publisher and a consumer of `qpid_ha_client`,
who are told the addresses of all brokers and begin at any. A kill takes a primary of a set, a broker that a client is
connected to, or one of each at once. In the end each queue's messages must have come once, in order, and no client may
have been told of anything but connections to brokers that were killed.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from proton import Message

from bench.sets_trouble import Trouble
from qpid_ha_client import ClientClosed, ConnectOptions, Guarantee, SessionClient
from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster

SETS: Final = 6
BROKERS: Final = 5
RATE: Final = 40
"""Messages a second of each queue."""
UNANSWERED: Final = 5
"""Messages that a consumer has and answers later: what its session holds when something is killed."""
PAUSES_S: Final = (0.5, 3.0)
PATIENCE_S: Final = 60.0
KINDS: Final = ("primary", "client's broker", "both")


class ExactAccount(NamedTuple):
    """What became of the messages of one queue, or of all of them."""

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


class ExactTraffic:
    """A publisher and a consumer of one queue, each with a session of its own."""

    def __init__(self, queue: str, urls: Sequence[str], rng: random.Random) -> None:
        self.queue = queue
        self.sent = 0
        self.received: list[int] = []
        self.errors: list[str] = []
        self.reasons: list[str] = []
        """Why connections ended, as the clients were told."""
        self.withdrawn = 0
        self._is_stopping = False
        order = list(urls)
        self.clients = []
        for role in ("publisher", "consumer"):
            rng.shuffle(order)
            options = ConnectOptions(container_id=f"{role} of {queue}", heartbeat_s=2.0)
            client = SessionClient(list(order), require_session=True, options=options)
            self._watch(client)
            self.clients.append(client)
        self.publisher, self.consumer = self.clients
        self._threads = [
            threading.Thread(target=self._guard, args=(run,), daemon=True) for run in (self._publish, self._consume)
        ]

    def _watch(self, client: SessionClient) -> None:
        handler: Any = client._handler
        told = handler.on_disconnected

        def disconnected(reason: str) -> None:
            self.reasons.append(reason.partition(": ")[2])
            told(reason)

        handler.on_disconnected = disconnected

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def _guard(self, run: Any) -> None:
        try:
            run()
        except ClientClosed:
            pass
        except Exception as error:  # noqa: BLE001 (any is one too many, and shown)
            self.errors.append(f"{type(error).__name__}: {error}")

    def _publish(self) -> None:
        sender = self.publisher.sender(self.queue)
        while not self._is_stopping:
            sender.send_soon(Message(self.sent, durable=True))
            self.sent += 1
            time.sleep(1 / RATE)
        sender.flush(PATIENCE_S)

    def _consume(self) -> None:
        receiver = self.consumer.receiver(self.queue, prefetch=20)
        unanswered: deque[Any] = deque()
        while not (self._is_stopping and len(self.received) >= self.sent):
            try:
                received = receiver.receive(0.2)
            except TimeoutError:
                continue
            self.received.append(received.body)
            unanswered.append(received)
            if len(unanswered) > UNANSWERED:
                self._accept(unanswered.popleft())
        while unanswered:
            self._accept(unanswered.popleft())
        self.consumer.wait(lambda: not receiver.open, PATIENCE_S)

    def _accept(self, received: Any) -> None:
        self.withdrawn += received.is_withdrawn
        received.accept()

    def pause(self) -> None:
        """Publish no more."""
        self._is_stopping = True

    def settle(self, deadline_s: float) -> None:
        """Wait for the rest."""
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
            if thread.is_alive():
                self.errors.append(f"it did not come to its end: {self._last_state()}")

    def _last_state(self) -> str:
        brokers = ", ".join(client.broker or "nowhere" for client in self.clients)
        unconfirmed = [len(sender.unconfirmed) for sender in self.publisher._senders.values()]
        waiting = [(len(receiver.waiting), len(receiver.open)) for receiver in self.consumer._receivers.values()]
        return f"clients at {brokers}; {len(self.received)} of {self.sent}, unconfirmed {unconfirmed}, open {waiting}"

    def close(self) -> None:
        """End both clients."""
        self._is_stopping = True
        for client in self.clients:
            client._end(keep_session=False)

    def account(self) -> ExactAccount:
        """Of what was sent."""
        times = Counter(self.received)
        lost = sum(1 for number in range(self.sent) if not times[number])
        twice = sum(count - 1 for count in times.values())
        disordered = sum(1 for first, second in zip(self.received, self.received[1:], strict=False) if second < first)
        return ExactAccount(self.sent, lost, twice, disordered, self.withdrawn)


class SessionKills:
    """One run, and what it showed."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._trouble = Trouble(cluster, [f"set-{number}" for number in range(1, SETS + 1)], None, seed)
        self.traffic: list[ExactTraffic] = []
        self.kills: Counter[str] = Counter()
        self.controllers_killed = 0
        """Of the brokers killed those that led `default`."""

    def start(self) -> None:
        """Make the sets and their queues, and begin to work."""
        cluster = self._cluster
        cluster.wait_whole()
        names = [f"set-{number}" for number in range(1, SETS + 1)]
        for number, name in enumerate(names):
            preferred = cluster.brokers[number % len(cluster.brokers)].name
            self._ask("sets", action="create", name=name, preferred=preferred)
        self.wait_whole()
        for name in names:
            self._ask("queues", action="create", name=f"queue-{name}", arguments={"qpid.resource-set": name})
        queues = [*(f"queue-{name}" for name in names), "queue-default"]
        self._ask("queues", action="create", name="queue-default")
        self.traffic = [ExactTraffic(queue, cluster.urls, self._random) for queue in queues]
        for each in self.traffic:
            each.start()
        cluster.wait_until(lambda: all(len(each.received) > UNANSWERED for each in self.traffic), "all receive")

    def run(self, kills: int) -> None:
        """Kill so often. A kill of two brokers counts once. Raises ClusterFailed where it does not come to that."""
        while self.kills.total() < kills:
            self._trouble.rest(self._random.uniform(*PAUSES_S))
            kind = self._random.choice(KINDS)
            victims = self._victims(kind)
            controller = self._cluster.primary()
            if victims and self._trouble.kill_these(kind, victims):
                self.kills[kind] += 1
                self.controllers_killed += controller in victims

    def settle(self) -> None:
        """Let everything arrive."""
        self.wait_whole()
        for each in self.traffic:
            each.pause()
        deadline_s = time.monotonic() + PATIENCE_S
        for each in self.traffic:
            each.settle(deadline_s)

    def stop(self) -> None:
        """End all clients."""
        for each in self.traffic:
            each.close()

    def total(self) -> ExactAccount:
        """Of all queues together."""
        accounts = [each.account() for each in self.traffic]
        return ExactAccount(*map(sum, zip(*accounts, strict=True)))

    def problems(self) -> list[str]:
        """What clients were told beside that a connection was lost, and what is wrong with the account."""
        found = [f"{each.queue}: {error}" for each in self.traffic for error in each.errors]
        for each in self.traffic:
            if not each.account().is_flawless:
                found.append(f"{each.queue}: {each.account()}")
            for client in each.clients:
                if client.guarantee is not Guarantee.EXACTLY_ONCE:
                    found.append(f"{each.queue}: a client was promised {client.guarantee}")
            found += [f"{each.queue}: a connection was ended: {reason}" for reason in each.reasons if _is_told(reason)]
        return found

    def wait_whole(self) -> None:
        """Until each set wants nothing."""

        def is_whole() -> bool:
            rows = self._trouble.rows()
            return len(rows) == SETS and all(row["state"] == "ok" for row in rows)

        self._cluster.wait_until(is_whole, "each set is whole", PATIENCE_S)

    def _victims(self, kind: str) -> list[LocalBroker]:
        """Different ones; empty: nobody knows who they would be."""
        rows = self._trouble.rows()
        primaries = [str(row["primary"]) for row in rows if row["primary"]]
        clients = [client.broker for each in self.traffic for client in each.clients if client.broker]
        if not (primaries and clients):
            return []
        by_url = dict(zip(self._cluster.urls, self._cluster.brokers, strict=True))
        by_name = {broker.name: broker for broker in self._cluster.brokers}
        primary, proxy = by_name[self._random.choice(primaries)], by_url[self._random.choice(clients)]
        chosen = {KINDS[0]: [primary], KINDS[1]: [proxy], KINDS[2]: [primary, proxy]}[kind]
        return list(dict.fromkeys(chosen))

    def _ask(self, method: str, **params: Any) -> None:
        primary = self._cluster.primary()
        if primary is None:
            raise ClusterFailed("default has no primary")
        primary.ask(method, timeout_s=10.0, **params)


def _is_told(reason: str) -> bool:
    """Whether a broker has ended a connection that lives, and not the kernel one whose broker is dead."""
    return reason.startswith("amqp:") and not reason.startswith("amqp:connection:framing-error")


def session_settings() -> dict[str, object]:
    """Of all brokers."""
    return {"ha": {"failure-timeout": "1s", "clients": "proxy", "failure-recovery-interval": "30s"}}
