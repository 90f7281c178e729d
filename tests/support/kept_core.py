"""A core whose logs are kept on a disk, somebody who gives it all kinds of commands, and pictures of its state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from map_events import map_event
from model_support import NOW_MS, WITNESS, Core, TextReader, event_of, message
from qpid_ha_broker.events.codec import LogRecord, decode, encode_all
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.events.scan import durable_only
from qpid_ha_broker.events.types import GenerationStarted, InSyncChanged, Scalar
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Exchange
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message, Publish, Transaction
from qpid_ha_broker.server.stores.status import StoreStatus
from qpid_ha_broker.store.blocks import BlockKind, FileHeader
from qpid_ha_broker.store.bodies import Bodies
from qpid_ha_broker.store.dump import Dump
from qpid_ha_broker.store.files import Disk
from qpid_ha_broker.store.journal import Identity, Journal
from qpid_ha_broker.store.layout import (
    segment_numbers,
    segment_path,
    snapshot_index_numbers,
    snapshot_index_path,
    snapshot_numbers,
    snapshot_path,
)
from qpid_ha_broker.store.recovery import Recovered, recover
from qpid_ha_broker.store.snapshot import SnapshotWriter
from qpid_ha_broker.store.status import STATUS_FILE, Status
from qpid_ha_broker.store.unloading import Unloading
from session_support import session_event, taker
from simulated_disk import SimulatedDisk

IDENTITY = Identity("the cluster", "alpha", "default")
STORE = "1f0b7a2c5d9e4c3a8b6f0e1d2c3b4a59"
SEGMENT_BYTES = 1 << 16

QUEUES: dict[str, dict[str, Scalar]] = {
    "a": {},
    "b": {"qpid.priorities": 3},
    "c": {"qpid.last_value_queue_key": "k"},
    "d": {"qpid.max_count": 4, "qpid.policy_type": "ring"},
    "e": {"qpid.delivery_limit": 3, "qpid.alternate_exchange": "x"},
}
LEVELS = ["messages", "configuration", "none"]


class KeptCore(Core):
    """The promise: after `keep`, all that was written is in `journal`, in the order in which it was written."""

    def __init__(self, disk: Disk | None = None, *, log_acquisitions: bool = False) -> None:
        super().__init__(log_acquisitions=log_acquisitions)
        self.resources.sets.local_log.add_witness(WITNESS)
        self.disk: Disk = disk or SimulatedDisk(Random(1))
        self.committed_lsn: int | None = None
        """What blocks say; None: that all before them is committed."""
        self.status = StoreStatus(self.disk, Status(*IDENTITY, store=STORE))
        self.status.write()
        self.journal = self.status.journal = Journal.begin(
            self.disk, IDENTITY, 1, generation=1, first_lsn=1, first_local_lsn=LOCAL_BASE + 1, previous_bytes=0,
            clock=lambda: self.now_ms, segment_bytes=SEGMENT_BYTES, status=self.status,
        )  # fmt: skip
        self.resources.replicated.write(GenerationStarted(1, "alpha", "the cluster", NOW_MS, False, "the first start"))
        self.resources.replicated.write(InSyncChanged(1, ("alpha",)))
        self.keep()

    def keep(self) -> None:
        """What one turn wrote: blocks of both logs, cut where the other one was written in between."""
        batch = self.log.take_batch()
        records = decode(batch.data).records if batch is not None else []
        for part in self.resources.sets.local_log.take_parts():
            if part.is_joined:
                self.journal.stage_as_one()
            before = [record for record in records if record.lsn <= part.after_lsn]
            records = records[len(before) :]
            self._stage(before)
            self._stage(decode(part.batch.data).records)
        self._stage(records)
        self.journal.flush()

    def _stage(self, records: list[LogRecord]) -> None:
        if not records:
            return
        first, last = records[0].lsn, records[-1].lsn
        committed = self.committed_lsn
        if committed is None:
            committed = first - 1 if first < LOCAL_BASE else self.log.last_lsn
        data, left_out = durable_only(encode_all(records))
        self.journal.stage(BlockKind.EVENTS, first, last, committed, left_out, data)

    def begin_dump(self) -> tuple[Dump, int]:
        """Roll, and begin a dump of the state before the new segment."""
        self.keep()
        number = self.journal.roll()
        return Dump(self.sets), number

    def write_dump(self, dump: Dump, number: int, pieces: list[bytes]) -> None:
        """Make a snapshot of all pieces of a dump."""
        header = FileHeader("snapshot", *IDENTITY, number, 1, 0, 0, NOW_MS, 0, False, STORE)
        writer = SnapshotWriter(self.disk, header)
        for piece in pieces:
            writer.add(piece)
        writer.finish(dump.end())


def with_everything() -> KeptCore:
    """A snapshot whose segments are deleted, a closed segment, and an open one of several groups."""
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, *(message(text, durable=True) for text in ("one", "two", "three")))
    dump, number = core.begin_dump()
    core.write_dump(dump, number, list(iter(lambda: dump.next(100), None)))
    core.journal.drop_before(number)
    core.consume(queue, 1)
    core.keep()
    core.journal.roll()
    for text in ("four", "five", "six"):
        core.publish(queue, message(text, durable=True))
        core.keep()
    return core


class AnyCommands:
    """Does one thing after the other to a core, chosen by `random`: whatever comes must be written and come back."""

    def __init__(self, core: KeptCore, random: Random, durable: float = 0.8) -> None:
        self.core = core
        self.random = random
        self.durable = durable
        """How many of the messages are."""
        self.held: list[tuple[Queue, Entry]] = []
        self._consumers: dict[Queue, Consumer] = {}
        self._count = 0
        common = [self.publish] * 6 + [self.take] * 4 + [self.settle] * 4
        rare = [self.declare, self.delete, self.bind, self.unbind, self.level, self.purge, self.tick, self.transaction]
        rare += [self.change_map, self.change_session, self.levels]
        self._commands: list[Callable[[], object]] = [*common, *rare, self.declare, self.bind, self.transaction]
        core.resources.deduplication.producers = random.choice([2, 3, 10_000])
        core.configuration.declare_exchange("x", "fanout", {})
        core.configuration.declare_exchange("y", "topic", {})
        for name in QUEUES:
            core.configuration.declare_queue(name, QUEUES[name])
        self.bind()

    def step(self) -> None:
        """One command; refused is fine."""
        with suppress(ModelError):
            self.random.choice(self._commands)()

    def publish(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            self.core.publish(self._target(), self._message())

    def take(self) -> None:
        queue = self._queue()
        if queue not in self._consumers:
            has_session = self.random.random() < 0.5
            self._consumers[queue] = taker(self.core, queue) if has_session else self.core.consumer(queue)
        entries = self.core.take(queue, self._consumers[queue], self.random.randint(1, 4))
        self.held += [(queue, entry) for entry in entries]

    def settle(self) -> None:
        self.random.shuffle(self.held)
        for _ in range(min(len(self.held), self.random.randint(1, 4))):
            queue, entry = self.held.pop()
            how = self.random.choice(["accept", "accept", "fail", "fail", "release", "reject", "annotate", "annotate"])
            if how in ("accept", "reject"):
                getattr(self.core.resources, how)(queue, [entry])
            else:
                said = f"said={self.random.randint(1, 999)}".encode() if how == "annotate" else b""
                self.core.resources.release(queue, [entry], failed=how == "fail", annotations=said)

    def transaction(self) -> None:
        transaction = Transaction()
        for _ in range(self.random.randint(1, 3)):
            transaction.publish(Publish(self._target(), self._message(), "red"))
        for _ in range(min(len(self.held), 2)):
            queue, entry = self.held.pop()
            if not queue.deleted:
                transaction.accept(queue, entry, None)
        try:
            self.core.resources.commit(transaction, self.core.now_ms)
        except ModelError:
            self.core.resources.roll_back(transaction)

    def declare(self) -> None:
        name = self.random.choice(list(QUEUES))
        level: dict[str, Scalar] = self.random.choice([{}, {}, {"qpid.replicate": self.random.choice(LEVELS)}])
        self.core.configuration.declare_queue(name, {**QUEUES[name], **level})
        self.core.configuration.declare_exchange(
            self.random.choice("xy"), self.random.choice(["fanout", "topic"]), level
        )

    def delete(self) -> None:
        if self.random.random() < 0.3:
            self.core.configuration.delete_exchange(self.random.choice("xy"))
        else:
            self.core.configuration.delete_queue(self._queue().name)

    def bind(self) -> None:
        for name in self.random.sample(sorted({*QUEUES, *self.core.state.map.queues}), 3):
            level = self.random.choice([{}, {}, {"qpid.replicate": "none"}])
            self.core.configuration.bind(self.random.choice("xxy"), name, self.random.choice(["red", "#"]), level)

    def unbind(self) -> None:
        self.core.configuration.unbind("x", self._queue().name, "red")

    def level(self) -> None:
        self.core.configuration.update_queue(self._queue().name, {"qpid.replicate": self.random.choice(LEVELS)})

    def levels(self) -> None:
        """Of all that did not ask for one, exchanges too."""
        self.core.configuration.set_replication([], Replicate(self.random.choice(LEVELS)))

    def change_map(self) -> None:
        there = self.core.catalog
        self.core.resources.replicated.write(map_event(self.random, there.map, {*there.queues, *there.exchanges}))

    def change_session(self) -> None:
        self.core.resources.replicated.write(session_event(self.random, self.core.state.sessions))

    def purge(self) -> None:
        self.core.purge(self._queue())

    def tick(self) -> None:
        self.core.tick(self.random.choice([0, 1000]))

    def _message(self) -> Message:
        self._count += 1
        random = self.random
        plain = message(
            f"{self._count}", "red", priority=random.randint(0, 9), ttl_ms=random.choice([0, 0, 0, 3000]),
            delay_ms=random.choice([0, 0, 0, 2000]),
            durable=random.random() < self.durable, k=random.choice("123"),
        )  # fmt: skip
        if random.random() < 0.7:
            return plain
        number = self._count - random.choice([0, 0, 0, 3, 20])  # at times an old one
        return plain._replace(producer=random.choice([b"p", b"q", b"r", b"\xff"]), sequence=max(number, 0))

    def _queue(self) -> Queue:
        queues = list(self.core.catalog.queues.values())
        return self.random.choice(queues) if queues else self.core.queue("a")

    def _target(self) -> Queue | Exchange:
        targets: list[Queue | Exchange] = [
            *self.core.catalog.queues.values(),
            *self.core.catalog.exchanges.values(),
        ]
        return self.random.choice(targets) if targets else self.core.queue("a")


def recovered(disk: Disk, *, apply_all: bool = True) -> tuple[Resources, Recovered]:
    """What a broker knows that starts with what is on `disk`, whether or not it reads all of the snapshot; the books
    balance."""
    resources, facts = _recovered(disk, apply_all, None)
    with_index, other_facts = _recovered(disk, apply_all, Unloading(Bodies(disk), 1 << 40, cold_from_bytes=0))
    assert durable_picture(with_index.sets) == durable_picture(resources.sets)
    _check_books(with_index)
    assert other_facts._replace(bytes_read=0, notes=()) == facts._replace(bytes_read=0, notes=())
    return resources, facts


def _recovered(disk: Disk, apply_all: bool, unloading: Unloading | None) -> tuple[Resources, Recovered]:
    resources = Resources(TextReader())
    facts = recover(disk, resources.sets, apply_all=apply_all, unloading=unloading)
    assert facts.messages == sum(queue.messages.count for queue in resources.catalog.queues.values())
    _check_books(resources)
    return resources, facts


def _check_books(resources: Resources) -> None:
    memory = 0
    for queue in resources.catalog.queues.values():
        queue.messages.check_invariants()
        memory += queue.messages.resident + 300 * queue.messages.count
    assert resources.catalog.memory_bytes == memory


def durable_picture(sets: ResourceSets) -> dict[str, object]:
    """All that a restart must bring back."""
    catalog, state = sets.catalog, sets.replicated.state
    return {
        "queues": {queue.name: _queue_picture(queue) for queue in catalog.queues.values()},
        "exchanges": {
            each.name: (each.id, each.kind, dict(each.arguments), each.bindings())
            for each in catalog.exchanges.values()
        },
        "generations": state.generations,
        "in sync": state.in_sync,
        "producers": [each.state.producers.items() for each in sets.all],
        "sessions": sorted(state.sessions.by_id.values()),
        "held": durable_held(sets),
        "map": list(state.map.events(0)),
    }


def durable_held(sets: ResourceSets) -> list[object]:
    """What of the durable messages is held for sessions, and that its messages know."""
    found: list[object] = []
    for link in sets.catalog.holdings:
        entries = [entry for each in link.ids if (entry := link.queue.messages.find(each)) and entry.header.durable]
        assert all(entry.holder is not None for entry in entries)
        if entries:
            found.append([link.session, link.name, link.link, link.queue.name, [entry.id for entry in entries]])
    return sorted(found, key=str)


def check_transient(facts: Recovered, core: KeptCore, commands: AnyCommands) -> None:
    """Who comes back knows when it lacks messages that are not durable, and whose messages all are lacks none."""
    entries = [entry for queue in core.catalog.queues.values() for entry in queue.messages]
    assert facts.lost_transient >= sum(not entry.header.durable for entry in entries)
    if commands.durable == 1:
        assert facts.lost_transient == 0


def _queue_picture(queue: Queue) -> tuple[object, ...]:
    messages = [
        (entry.id, event.payload, event.priority, event.expires_at_ms, event.due_at_ms, event.key, entry.delivery_count)
        for entry in queue.messages
        if (event := event_of(entry)).durable
    ]
    said = {message[0]: queue.messages.annotations.get(message[0]) for message in messages}
    return queue.id, dict(queue.arguments.given), queue.replication, queue.used, queue.owner, messages, said


def copied(disk: Disk, *, without: tuple[str, ...] = ()) -> SimulatedDisk:
    """The same files on another disk."""
    copy = SimulatedDisk(Random(1))
    paths = [segment_path(each) for each in segment_numbers(disk)]
    paths += [snapshot_path(each) for each in snapshot_numbers(disk)]
    paths += [snapshot_index_path(each) for each in snapshot_index_numbers(disk)]
    for path in [*paths, "STATUS"]:
        if disk.exists(path) and path not in without:
            file = disk.open(path)
            copy.put(path, file.read(0, file.size))
            file.close()
    return copy


def files_of(disk: Disk) -> list[str]:
    """All that counts in a store, STATUS last."""
    segments = [segment_path(each) for each in segment_numbers(disk)]
    return [*segments, *(snapshot_path(each) for each in snapshot_numbers(disk)), STATUS_FILE]
