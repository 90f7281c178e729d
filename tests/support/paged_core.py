"""The bare core with a journal behind it, and payloads that leave for the journal and come back when a test says so."""

from __future__ import annotations

from random import Random

from model_support import Core, message
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.model.paging import BodyRequest, Paging, Tally
from qpid_ha_broker.model.queues.paged import BodyDamaged, BodyRef, read_bodies
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.blocks import BlockKind
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.layout import segment_path
from simulated_disk import SimulatedDisk


class PagedCore(Core):
    """What is published is in the journal once `close_file` was called; then `page_out` lets payloads leave."""

    def __init__(self, memory_bytes: int = 0, disk: Disk | None = None, resources: Resources | None = None) -> None:
        super().__init__(resources)
        self.disk = disk or SimulatedDisk(Random(0))
        self.bodies = Bodies(self.disk)
        self.paging = Paging(self.catalog, memory_bytes)
        self.damaged: list[BodyDamaged] = []
        self.journal = Journal.begin(
            self.disk, Identity("cluster", "broker", "default"), 1, generation=1, first_lsn=1,
            first_local_lsn=(1 << 63) + 1, previous_bytes=0, clock=lambda: 0, segment_bytes=1 << 20,
        )  # fmt: skip

    def close_file(self) -> str:
        """All that was written so far is on disk, in files that are closed; returns the path of the last one."""
        known = len(self.records)
        self.read()
        self.write(self.records[known:])
        number = self.journal.number
        self.journal.roll()
        return segment_path(number)

    def write(self, records: list[LogRecord]) -> None:
        """Have `records` in the journal, in blocks of a few."""
        for start in range(0, len(records), 100):
            some = records[start : start + 100]
            data = encode_all(some)
            self.journal.stage(BlockKind.EVENTS, some[0].lsn, some[-1].lsn, some[0].lsn - 1, 0, data)
        self.journal.flush()

    def page_out(self, *names: str, outdated: tuple[str, ...] = ()) -> Tally:
        """Go through the files, or all that are closed."""
        tally = Tally()
        for name in names or [segment_path(each.number) for each in self.journal.closed_segments()]:
            for piece in self.bodies.pieces(name):
                for _ in self.paging.visit(piece, outdated, tally):
                    pass
        self.paging.find_queues()
        return tally

    def published_and_paged_out(self) -> None:
        """What is here leaves, as far as it may."""
        self.close_file()
        self.page_out()

    def wanted(self) -> list[BodyRequest]:
        """What has to be read for those who stand before it."""
        self.paging.find_queues()
        requests = self.paging.wanted()
        while stretches := self.paging.stretches():
            for stretch in stretches:
                self.paging.stretch_brought(stretch, stretch.cold.read())
            for queue in self.paging.waiting():
                self.resources.catalog.wake(queue)
            super().hand_out(100)
            requests += self.paging.wanted()
        return requests

    def bring(self, requests: list[BodyRequest]) -> None:
        """The disk has delivered."""
        self.damaged += self.paging.brought(requests, read_bodies([request.ref for request in requests]))
        for queue in self.paging.waiting():
            self.resources.catalog.wake(queue)

    def hand_out(self, limit: int = 100) -> None:
        """As ever, with a disk that delivers in time."""
        super().hand_out(limit)
        while requests := self.wanted():
            self.bring(requests)
            super().hand_out(limit)


def paged(queue: Queue) -> list[int]:
    """Which messages are on disk alone, by their places among all."""
    return [at for at, entry in enumerate(queue.messages) if type(entry.body) is BodyRef]


def resident(queue: Queue) -> list[int]:
    """Which are in memory."""
    return [at for at, entry in enumerate(queue.messages) if type(entry.body) is bytes]


def filled(core: PagedCore, count: int = 20, name: str = "q", **arguments: str | int) -> Queue:
    """A queue with durable messages 0, 1, ... all of which are paged out but the first."""
    queue = core.queue(name, **arguments)
    core.publish(queue, *(message(str(n), durable=True) for n in range(count)))
    core.published_and_paged_out()
    return queue


def numbers(count: int) -> list[str]:
    """What `filled` has put in, in order."""
    return [str(n) for n in range(count)]
