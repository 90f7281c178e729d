"""Runs on the lab's client: publishes and consumes through the virtual address, and answers for it.

    /opt/qpid-ha/bin/python client_load.py URL[,URL...] QUEUE [--rate N] [--size BYTES] [--no-consumer] [--transient]
    /opt/qpid-ha/bin/python client_load.py URL[,URL...] QUEUE --group [--rate N] [--size BYTES]

Ordinary Proton clients with their books. With --group there is a publisher and a consumer at *each* address, all of
one queue, and the books also say who had which message when.

Each line of the standard input is a JSON object {"do": ...}, each answer a line of JSON with the time `now_s` of this
machine's clock, to which all other times refer. It ends with its input. Alone on its machine, it needs nothing but an
installed qpid-ha, and the demo's package beside it.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from qpid_ha_demo.delivery_ledger import AnsweringConsumer, DeliveryLedger
from qpid_ha_demo.ledger import Ledger
from qpid_ha_demo.load import DemoConsumer, DemoPublisher, FailoverClient

_CONNECT_LIMIT_S = 0.25
_SHOWN = 20
Request = Mapping[str, Any]


def is_reachable(url: str) -> bool:
    """Does anybody accept connections there at once?"""
    place = urlsplit(url)
    try:
        with socket.create_connection((str(place.hostname), place.port or 5672), _CONNECT_LIMIT_S):
            return True
    except OSError:
        return False


class WithConnectLimit(FailoverClient):
    """Does not wait for a connection to nobody: Proton has no limit for that, and TCP tries again only each second.

    While a virtual address moves, what is sent to it gets lost.
    """

    def _connect(self) -> None:
        # The first connection has to be begun, or the container ends for want of anything to do.
        if getattr(self, "_connection", None) is not None and not is_reachable(self._addresses.upcoming):
            self._addresses.next()
            self._connect_at_s = time.monotonic() + self._addresses.pause_s()
        else:
            super()._connect()


class PatientPublisher(WithConnectLimit, DemoPublisher):
    """The publisher. With 200 messages a second one by one, three brokers use 0.43 of a processor; in bursts, 0.13."""

    burst_s = 0.04


class PatientConsumer(WithConnectLimit, DemoConsumer):
    """The consumer."""


class GroupConsumer(WithConnectLimit, AnsweringConsumer):
    """One of several."""


class Load:
    """Both clients, and what may be asked of them."""

    def __init__(self, urls: Sequence[str], queue: str, rate: int, size: int, *, consumes: bool, durable: bool) -> None:
        self._ledger = Ledger()
        self._publisher = PatientPublisher(urls, queue, self._ledger, rate=rate, size=size, durable=durable)
        self._consumer = PatientConsumer(urls, queue, self._ledger)
        self._publisher.start()
        self._consumes = False
        if consumes:
            self._consume({})
        self._deeds: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "report": lambda _: {},
            "gaps": self._gaps,
            "pause": self._pause,
            "resume": self._resume,
            "consume": self._consume,
            "audit": self._audit,
        }

    def answer(self, request: Request) -> dict[str, Any]:
        """Do it, and say how things are."""
        found = self._deeds[request["do"]](request)
        ledger = self._ledger
        return {
            "now_s": time.monotonic(),
            "sent": ledger.sent,
            "confirmed": len(ledger.confirmed_at_s),
            "arrived": len(ledger.arrivals),
            "missing": ledger.missing if self._consumes else 0,
            "is_settled": self._publisher.is_settled,
            "recoveries": list(self._publisher.recoveries),
            "problems": [*self._publisher.problems[-_SHOWN:], *self._consumer.problems[-_SHOWN:]],
            **found,
        }

    def stop(self) -> None:
        """End both."""
        self._publisher.stop()
        if self._consumes:
            self._consumer.stop()

    def _pause(self, _: Request) -> dict[str, Any]:
        self._publisher.pause()
        return {}

    def _resume(self, _: Request) -> dict[str, Any]:
        self._publisher.resume()
        return {}

    def _consume(self, _: Request) -> dict[str, Any]:
        if not self._consumes:
            self._consumes = True
            self._consumer.start()
        return {}

    def _gaps(self, request: Request) -> dict[str, Any]:
        return {"gaps": _gaps_of(self._ledger, request)}

    def _audit(self, _: Request) -> dict[str, Any]:
        audit = asdict(self._ledger.audit())
        return {"audit": {name: fact[:_SHOWN] if isinstance(fact, tuple) else fact for name, fact in audit.items()}}


class GroupLoad:
    """A publisher and a consumer at each member of a group, and what may be asked of them."""

    def __init__(self, urls: Sequence[str], queue: str, rate: int, size: int) -> None:
        names = [f"p{number}" for number in range(1, len(urls) + 1)]
        self._ledgers = {name: DeliveryLedger() for name in names}
        self._publishers: list[PatientPublisher] = []
        self._consumers: list[GroupConsumer] = []
        for url, (name, ledger) in zip(urls, self._ledgers.items(), strict=True):
            publisher = PatientPublisher([url], queue, ledger, rate=rate, size=size, durable=True)
            publisher.producer = name
            self._publishers.append(publisher)
            self._consumers.append(GroupConsumer([url], queue, f"c{name[1:]}", self._ledgers))
        for client in (*self._publishers, *self._consumers):
            client.start()
        self._deeds: Mapping[str, Callable[[Request], dict[str, Any]]] = {
            "report": lambda _: {},
            "gaps": self._gaps,
            "pause": self._pause,
            "resume": self._resume,
            "break": self._break,
            "audit": self._audit,
        }

    def answer(self, request: Request) -> dict[str, Any]:
        """Do it, and say how things are."""
        found = self._deeds[request["do"]](request)
        ledgers = self._ledgers.values()
        return {
            "now_s": time.monotonic(),
            "sent": sum(ledger.sent for ledger in ledgers),
            "confirmed": sum(len(ledger.confirmed_at_s) for ledger in ledgers),
            "confirmed_at": [len(ledger.confirmed_at_s) for ledger in ledgers],
            "arrived": sum(len(ledger.arrivals) for ledger in ledgers),
            "missing": sum(ledger.missing for ledger in ledgers),
            "holds": sum(len(each.held_now(name)) for each in self._consumers for name in self._ledgers),
            "is_settled": all(publisher.is_settled for publisher in self._publishers),
            "connected_to": [each.connected_to for each in (*self._publishers, *self._consumers)],
            "problems": [text for each in (*self._publishers, *self._consumers) for text in each.problems[-_SHOWN:]],
            **found,
        }

    def stop(self) -> None:
        """End all."""
        for client in (*self._publishers, *self._consumers):
            client.stop()

    def _gaps(self, request: Request) -> dict[str, Any]:
        """Of each publisher, every stretch of more than `longer_than_s` without a confirmation."""
        return {"gaps_at": [_gaps_of(ledger, request) for ledger in self._ledgers.values()]}

    def _pause(self, _: Request) -> dict[str, Any]:
        for publisher in self._publishers:
            publisher.pause()
        return {}

    def _resume(self, _: Request) -> dict[str, Any]:
        for publisher in self._publishers:
            publisher.resume()
        return {}

    def _break(self, request: Request) -> dict[str, Any]:
        """End the connection of a consumer."""
        self._consumers[int(request["number"])].break_connection()
        return {}

    def _audit(self, _: Request) -> dict[str, Any]:
        audits = {}
        for name, ledger in self._ledgers.items():
            held = [each for consumer in self._consumers for each in consumer.held_now(name)]
            audits[name] = asdict(ledger.audit(held))
        return {"audit": audits}


def _gaps_of(ledger: Ledger, request: Request) -> list[tuple[float, float]]:
    """Every stretch of more than `longer_than_s` without a confirmation, since `since_s` and up to now."""
    since_s, now_s = request["since_s"], time.monotonic()
    times = sorted(at_s for at_s in list(ledger.confirmed_at_s.values()) if at_s > since_s)
    edges = zip([since_s, *times], [*times, now_s], strict=True)
    return [edge for edge in edges if edge[1] - edge[0] > request["longer_than_s"]]


def main() -> None:
    """Serve the standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("urls", help="where to connect, one after the other; commas between them")
    parser.add_argument("queue")
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--no-consumer", action="store_true")
    parser.add_argument("--transient", action="store_true")
    parser.add_argument("--group", action="store_true")
    options = parser.parse_args()
    urls = options.urls.split(",")
    load: Load | GroupLoad
    if options.group:
        load = GroupLoad(urls, options.queue, options.rate, options.size)
    else:
        load = Load(
            urls, options.queue, options.rate, options.size,
            consumes=not options.no_consumer, durable=not options.transient,
        )  # fmt: skip
    for line in sys.stdin:
        print(json.dumps(load.answer(json.loads(line))), flush=True)
    load.stop()


if __name__ == "__main__":
    main()
