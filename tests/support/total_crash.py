"""The power goes off for all at once, again and again, while clients work; and what they may expect afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

from blocking_client import SettleSecond
from failover_load import CountingConsumer, FailoverLoad, LedgerAudit
from qpid_ha_demo.cluster import ClusterFailed
from qpid_ha_demo.ledger import Ledger
from running_cluster import RunningCluster

SERVED_TIMEOUT_S = 60.0
MESSAGES_BETWEEN = 200
LONGEST_WAIT_S = 0.5
"""Between messages that are safe and the next crash: sometimes everything is level by then, sometimes nothing is."""


class ToldConsumer(CountingConsumer):
    """Accepts whatever comes, and writes down which messages it was told are gone for good; those must not come again.

    Messages are known by their correlation-id, which each sending has for itself: a number that its publisher sent
    again may well come twice.
    """

    def __init__(self, urls: Sequence[str], queue: str, ledger: Ledger) -> None:
        super().__init__(urls, queue, ledger, auto_accept=False)
        self._answered: dict[Any, str] = {}
        self.told: set[str] = set()
        self.came_back: list[str] = []

    def open_link(self, container: Any, connection: Any) -> None:
        """Attach to the queue."""
        self._answered.clear()
        container.create_receiver(connection, self._queue, options=[SettleSecond()])

    def on_message(self, event: Any) -> None:
        """Write it down and accept it."""
        super().on_message(event)
        sending = str(event.message.correlation_id)
        if sending in self.told:
            self.came_back.append(sending)
        self._answered[event.delivery] = sending
        event.delivery.update(event.delivery.ACCEPTED)

    def on_settled(self, event: Any) -> None:
        """The broker has forgotten it, and so have its replicas and their disks."""
        sending = self._answered.pop(event.delivery, None)
        if sending is not None:
            self.told.add(sending)
        event.delivery.settle()


class DurableLoad(FailoverLoad):
    """Durable messages, and a consumer that knows what it was told."""

    def __init__(self, urls: Sequence[str], queue: str, *, rate: int, consume: bool = True) -> None:
        self.told_consumer: ToldConsumer | None = None
        super().__init__(urls, queue, rate=rate, consume=consume, durable=True)

    def make_consumer(self, urls: Sequence[str], queue: str) -> CountingConsumer:
        """One that settles second."""
        self.told_consumer = ToldConsumer(urls, queue, self.ledger)
        return self.told_consumer

    @property
    def told(self) -> int:
        """How many messages are gone for good, as the consumer was told."""
        return 0 if self.told_consumer is None else len(self.told_consumer.told)

    @property
    def came_back(self) -> tuple[str, ...]:
        """The sendings that came all the same."""
        return () if self.told_consumer is None else tuple(self.told_consumer.came_back)


@dataclass(frozen=True)
class Account:
    """Of all rounds together."""

    served_s: tuple[float, ...]
    """Of each round: from the restart to the first confirmation."""
    audits: tuple[LedgerAudit, ...]
    told: int
    came_back: tuple[str, ...]

    @property
    def is_flawless(self) -> bool:
        """Nothing confirmed was lost, and nothing came that the consumer had been told is gone."""
        return not self.came_back and all(audit.is_flawless for audit in self.audits)

    @property
    def confirmed(self) -> int:
        """Messages."""
        return self.total("confirmed")

    def total(self, fact: str) -> int:
        """How many messages of all queues that is said of: a field of `LedgerAudit`."""
        facts = [getattr(audit, fact) for audit in self.audits]
        return sum(len(messages) if isinstance(messages, tuple) else messages for messages in facts)


class TotalCrashes:
    """`with TotalCrashes(directory, seed=1) as crashes:` runs a cluster with stores, under agents and under load.

    One queue is consumed as it is filled, in the other messages pile up and are consumed in the end.
    """

    def __init__(self, directory: Path, *, seed: int, rate: int = 400) -> None:
        self.stores = directory / "stores"
        self.stores.mkdir()
        self.cluster = RunningCluster(directory, agents=True, stores=self.stores)
        self._random = Random(seed)
        self._rate = rate
        self._stack = ExitStack()
        self._loads: list[DurableLoad] = []
        self._served_s: list[float] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.cluster)
            self.cluster.wait_whole()
            for queue, consume in (("flow", True), ("pile", False)):
                load = DurableLoad(self.cluster.urls, queue, rate=self._rate, consume=consume)
                self._loads.append(stack.enter_context(load))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def work(self, messages: int = MESSAGES_BETWEEN) -> None:
        """Until so many more are confirmed in each queue."""
        for load in self._loads:
            load.wait_confirmed(messages, SERVED_TIMEOUT_S)

    def round(self, *, machines: bool) -> float:
        """Work, crash, restart, and wait until clients are served; seconds from the restart. Raises TimeoutError.

        `machines`: the agents are killed with their brokers, and started again. Otherwise they live, and do that.
        """
        self.work()
        time.sleep(self._random.random() * LONGEST_WAIT_S)
        if machines:
            self.cluster.crash()
            at_s = self.restart()
        else:
            at_s = kill_brokers(self.cluster)
        self._served_s.append(self.wait_served(at_s))
        return self._served_s[-1]

    def restart(self, without: Sequence[int] = ()) -> float:
        """Start those that are down, in any order; when that was."""
        brokers = [broker for index, broker in enumerate(self.cluster.brokers) if index not in without]
        self._random.shuffle(brokers)
        at_s = time.monotonic()
        for broker in brokers:
            broker.start()
        return at_s

    def wait_served(self, since_s: float) -> float:
        """Until each publisher has a confirmation on a connection made after that; how long it took."""
        return max(load.recovered_after(since_s, SERVED_TIMEOUT_S) for load in self._loads)

    def finish(self) -> Account:
        """Publish no more, have all confirmed and consumed; the account."""
        audits = tuple(load.finish() for load in self._loads)
        came_back = tuple(sending for load in self._loads for sending in load.came_back)
        return Account(tuple(self._served_s), audits, sum(load.told for load in self._loads), came_back)


def kill_brokers(cluster: RunningCluster) -> float:
    """SIGKILL to all brokers at once, not to their agents; when that was."""
    at_s = time.monotonic()
    pids = []
    for broker in cluster.brokers:
        with suppress(ClusterFailed):  # on a busy machine an agent may have killed a silent broker itself
            pids.append(broker.pid)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return at_s
