"""`./dev soak --sessions --kills N`: brokers that relay are killed under clients with sessions, which notice nothing.

Five brokers, six resource sets and a queue of `default`. Each queue has a publisher and a consumer of `qpid_ha_client`,
who are told the addresses of all brokers and begin at any. A kill takes a primary of a set, a broker that a client is
connected to, or one of each at once. In the end each queue's messages must have come once, in order, and no client may
have been told of anything but connections to brokers that were killed.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Final

from bench.sets_trouble import Trouble
from exact_load import ExactAccount, ExactLoad
from qpid_ha_client import Guarantee
from qpid_ha_demo.cluster import LocalBroker, LocalCluster

SETS: Final = 6
BROKERS: Final = 5
RATE: Final = 40
"""Messages a second of each queue."""
UNANSWERED: Final = 5
"""Messages that a consumer has and answers later: what its session holds when something is killed."""
PAUSES_S: Final = (0.5, 3.0)
PATIENCE_S: Final = 60.0
KINDS: Final = ("primary", "client's broker", "both")


class SessionKills:
    """One run, and what it showed."""

    def __init__(self, cluster: LocalCluster, seed: int) -> None:
        self._cluster = cluster
        self._random = random.Random(seed)
        self._trouble = Trouble(cluster, [f"set-{number}" for number in range(1, SETS + 1)], None, seed)
        self.traffic: list[ExactLoad] = []
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
            self._trouble.ask("sets", action="create", name=name, preferred=preferred)
        self.wait_whole()
        for name in names:
            self._trouble.ask("queues", action="create", name=f"queue-{name}", arguments={"qpid.resource-set": name})
        queues = [*(f"queue-{name}" for name in names), "queue-default"]
        self._trouble.ask("queues", action="create", name="queue-default")
        self.traffic = [self._load(queue) for queue in queues]
        for each in self.traffic:
            each.start()
        cluster.wait_until(lambda: all(len(each.received) > UNANSWERED for each in self.traffic), "all receive")

    def _load(self, queue: str) -> ExactLoad:
        """A publisher and a consumer of that queue, who begin anywhere."""
        urls = self._cluster.urls
        orders = [self._random.sample(urls, len(urls)) for _ in range(2)]
        return ExactLoad(
            orders[0], queue, consumer_urls=orders[1], rate=RATE, unanswered=UNANSWERED, require_session=True
        )

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


def _is_told(reason: str) -> bool:
    """Whether a broker has ended a connection that lives, and not the kernel one whose broker is dead."""
    return reason.startswith("amqp:") and not reason.startswith("amqp:connection:framing-error")


def session_settings() -> dict[str, object]:
    """Of all brokers."""
    return {"ha": {"failure-timeout": "1s", "clients": "proxy", "failure-recovery-interval": "30s"}}
