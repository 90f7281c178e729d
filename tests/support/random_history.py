"""Random lives of a cluster of three, written into stores as brokers write them, and what is true of each.

Turns of a primary reach the members of the in-sync set, in one block or several turns in one; members fall out, lag and
catch up by difference or by a copy of the state; primaries are replaced, in order or by force, which discards what only
others hold; journals are folded. At the end ends are torn, blocks and segments of one copy are damaged, stores are
moved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import UUID

from qpid_ha_broker.amqp.selectors.message_reader import AmqpMessageReader
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode_all
from qpid_ha_broker.events.scan import durable_only
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.store.blocks import BlockKind, FileHeader
from qpid_ha_broker.store.dump import Dump
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.fold import FoldError
from qpid_ha_broker.store.recovery import recover
from qpid_ha_broker.store.snapshot import SnapshotWriter
from written_journal import WrittenJournal, amqp, blocks_of, spoil

BROKERS = ("alpha", "beta", "gamma")
Turn = list[LogRecord]
"""What is one block at least: a transaction is never cut."""


class Store(WrittenJournal):
    """A broker's store, and what is in its log."""

    def __init__(self, directory: Path, broker: str, cluster: str) -> None:
        super().__init__(directory, broker, cluster=cluster, segment_bytes=1 << 16, generation=0)
        self.turns: list[Turn] = []
        self.waiting: list[Turn] = []
        """Received, and in no block yet."""
        self.own: dict[int, bool] = {}
        """Messages of the broker's own queue, and whether they are there."""
        self.own_queue = 0
        self.folded_to = 0
        """The last LSN that only a snapshot tells of."""

    @property
    def records(self) -> list[LogRecord]:
        """Its log."""
        return [record for turn in self.turns for record in turn]

    def receive(self, turn: Turn) -> None:
        """Hold what the next `flush` writes."""
        self.waiting.append(turn)

    def flush(self, committed: int) -> None:
        """Write all that waits as one block."""
        records = [record for turn in self.waiting for record in turn]
        if not records:
            return
        self.committed = max(self.committed, min(committed, self.lsn))
        for record in records:
            if isinstance(record.event, ev.GenerationStarted):
                self.history.append((record.event.generation, record.event.primary, record.lsn))
                self.journal.generation = record.event.generation
        data, left_out = durable_only(encode_all(records))
        self.journal.stage(BlockKind.EVENTS, records[0].lsn, records[-1].lsn, self.committed, left_out, data)
        self.journal.flush()
        self.lsn = records[-1].lsn
        self.turns += self.waiting
        self.waiting = []

    def truncate(self, lsn: int) -> None:
        """Take back what is behind that LSN."""
        self.take_back(lsn)
        self.committed = min(self.committed, lsn)
        self.turns = [turn for turn in self.turns if turn[-1].lsn <= lsn]
        self.history = [entry for entry in self.history if entry[2] <= lsn]

    def copy_state(self, other: Store) -> None:
        """Begin again with the state of another broker, as a catch-up does that finds nothing to go on from."""
        resources = Resources(AmqpMessageReader())
        recover(LocalDisk(other.directory), resources.sets, apply_all=True, read_only=True)
        number = self.journal.roll(needs_base=True, generation=other.history[-1][0], last_lsn=other.lsn)
        segment, self.committed = self.segment(number), 0
        dump, generation = Dump(resources.sets), other.history[-1][0]
        header = FileHeader(
            "snapshot", *self.identity, number, generation, other.lsn + 1, self.local_lsn + 1, self.now_ms, 0, False
        )
        writer = SnapshotWriter(self.disk, header)
        while (records := dump.next(1 << 16)) is not None:
            writer.add(records)
        end = dump.end()
        writer.finish(end._replace(local_lsn=self.local_lsn, local_counts_lsn=self.local_lsn))
        self.journal.base_persisted(number)
        for path in segment.parent.glob("*.log"):
            if int(path.stem) < number:
                path.unlink()
        self.turns, self.lsn, self.history = list(other.turns), other.lsn, list(other.history)
        self.folded_to = other.lsn
        self.own, self.own_queue = {}, 0

    def fold(self) -> None:
        """As its consolidator does with what is committed."""
        number = self.journal.roll()
        try:
            self.fold_away(number)
        except FoldError:
            return
        self.folded_to = self.lsn

    def keep(self, random: Random) -> None:
        """Something in a queue that the broker keeps for itself."""
        if not self.own_queue:
            (self.own_queue,) = self.write_local(ev.QueueDeclared("own", {"qpid.replicate": "none"}))
        there = [message for message, is_there in self.own.items() if is_there]
        if there and random.random() < 0.4:
            self.write_local(ev.Dequeued(self.own_queue, (there[0],), ev.DequeueReason.CONSUMED))
            self.own[there[0]] = False
        else:
            payload = amqp("own", id=f"{self.identity.cluster}-{self.identity.broker}-{len(self.own)}")
            (message,) = self.write_local(ev.Enqueued((self.own_queue,), payload, True, 4, 0, ""))
            self.own[message] = True


@dataclass
class Fate:
    """Of one message."""

    id: str
    is_confirmed: bool = False
    is_consumed: bool = False


@dataclass
class State:
    """What follows from a log."""

    names: dict[int, str] = field(default_factory=dict)
    messages: dict[int, dict[int, str]] = field(default_factory=dict)
    """By queue and LSN, the AMQP message-id."""

    def apply(self, records: Iterable[LogRecord], ids: dict[bytes, str]) -> State:
        """Returns itself."""
        for record in records:
            match record.event:
                case ev.QueueDeclared(name=name):
                    self.names[record.lsn], self.messages[record.lsn] = name, {}
                case ev.QueueDeleted(queue=queue):
                    self.messages.pop(queue)
                case ev.Enqueued(queues=queues, payload=payload):
                    for queue in queues:
                        self.messages[queue][record.lsn] = ids[payload]
                case ev.Dequeued(queue=queue, ids=gone):
                    for message in gone:
                        self.messages[queue].pop(message)
        return self


class RandomHistory:
    """A life. `log`: of the last primary, which is the one that counts."""

    def __init__(self, directory: Path, seed: int, turns: int = 24) -> None:
        self.random = Random(seed)
        self.seed = seed
        self.directory = directory
        self.cluster = str(UUID(int=seed + 1))
        self.stores = {name: Store(directory / name, name, self.cluster) for name in BROKERS}
        self.primary = "alpha"
        self.generation = self.epoch = 0
        self.in_sync: list[str] = []
        self.fates: dict[str, Fate] = {}
        self.ids: dict[bytes, str] = {}
        self.forced = 0
        """How often somebody was promoted who lacked what was confirmed."""
        self.read_lsn: int | None = None
        """Up to where a reader is by now: nothing is folded that it has not read. None: there is no reader."""
        self._turns = turns

    @property
    def log(self) -> list[LogRecord]:
        """Those that count."""
        return self.stores[self.primary].records

    @property
    def history(self) -> list[tuple[int, str, int]]:
        """Of generations."""
        return self.stores[self.primary].history

    @property
    def committed(self) -> int:
        """What all members hold."""
        return min(self.stores[name].lsn for name in self.in_sync)

    @property
    def state(self) -> State:
        """What is there now."""
        return State().apply(self.log, self.ids)

    def live(self) -> Iterator[None]:
        """One step after the other; at each, stores may be read."""
        self._lead(BROKERS[0], list(BROKERS), "first start")
        self._write([ev.QueueDeclared("orders", {}), ev.QueueDeclared("billing", {})])
        for _ in range(self._turns):
            self.random.choices(
                (self._work, self._drop_out, self._join, self._fold, self._fail, self._force, self._keep),
                (14, 2, 3, 2, 1.5, 0.7, 1),
            )[0]()
            if self.read_lsn is not None:
                self._describe()
            yield
        self._work()
        self._settle()
        yield

    # --- what happens

    def _write(self, events: Sequence[ev.Event], *, unit: bool = False) -> Turn:
        store = self.stores[self.primary]
        last = store.waiting[-1][-1].lsn if store.waiting else store.lsn
        turn = [LogRecord(last + place, event, unit) for place, event in enumerate(events, start=1)]
        if unit:
            turn.append(LogRecord(last + len(events) + 1, ev.TransactionCommitted(len(events)), False))
        committed = self.committed if self.in_sync else 0
        for name in dict.fromkeys((self.primary, *self.in_sync)):
            self.stores[name].receive(turn)
            if name == self.primary or self.random.random() < 0.7:
                self.stores[name].flush(committed)
        return turn

    def _settle(self) -> None:
        """All that was sent is on disk, and all know that it is committed."""
        for name in self.in_sync:
            self.stores[name].flush(self.committed)
        self._write([ev.InSyncChanged(self.epoch, tuple(self.in_sync))])
        for name in self.in_sync:
            self.stores[name].flush(self.committed)
        self._confirm()
        self._describe()

    def _describe(self) -> None:
        """Each broker writes what it knows into STATUS."""
        for store in self.stores.values():
            known = [record.event for record in store.records if isinstance(record.event, ev.InSyncChanged)]
            if known:
                store.write_status(epoch=known[-1].epoch, members=known[-1].members)

    def _confirm(self) -> None:
        """Publishers hear of what all members hold."""
        for record in self.log:
            if record.lsn <= self.committed and isinstance(record.event, ev.Enqueued):
                self.fates[self.ids[record.event.payload]].is_confirmed = True
            if record.lsn <= self.committed and isinstance(record.event, ev.Dequeued):
                for message in record.event.ids:
                    self.fates[self._id_of(message)].is_consumed = True

    def _id_of(self, lsn: int) -> str:
        record = self.log[lsn - 1]
        assert isinstance(record.event, ev.Enqueued)
        return self.ids[record.event.payload]

    def _work(self) -> None:
        for _ in range(self.random.randint(1, 4)):
            state, random = self.state, self.random
            queues = list(state.messages)
            chance = random.random()
            if chance < 0.1 or not queues:
                self._write([ev.QueueDeclared(f"queue-{len(self.log)}", {})])
            elif chance < 0.15 and len(queues) > 1:
                self._write([ev.QueueDeleted(random.choice(queues[1:]))])
            elif chance < 0.65:
                chosen = [random.sample(queues, min(len(queues), random.choice((1, 1, 1, 2)))) for _ in range(5)]
                enqueued = [ev.Enqueued(tuple(each), self._message(), True, 4, 0, "") for each in chosen]
                self._write(enqueued[: random.randint(1, 5)], unit=random.random() < 0.2)
            else:
                queue = random.choice(queues)
                ids = random.sample(list(state.messages[queue]), len(state.messages[queue]) // 2)
                if ids:
                    self._write([ev.Dequeued(queue, tuple(ids), ev.DequeueReason.CONSUMED)])
        self._confirm()

    def _message(self) -> bytes:
        name = f"{self.cluster}-{len(self.ids)}"
        payload = amqp("x" * self.random.randint(1, 40), id=name)
        self.ids[payload] = name
        self.fates[name] = Fate(name)
        return payload

    def _lead(self, name: str, members: list[str], cause: str, *, forced: bool = False) -> None:
        self.generation, self.epoch, self.primary = self.generation + 1, self.epoch + 1, name
        self.in_sync = [each for each in members if each == name]
        store = self.stores[name]
        store.waiting = []
        began = ev.GenerationStarted(self.generation, name, self.cluster, store.now_ms, forced, cause)
        self._write([began, ev.InSyncChanged(self.epoch, tuple(members))])
        turn = store.turns[-1]
        for each in members:
            if each != name and self._agrees(each):
                self.stores[each].receive(turn)
                self.stores[each].flush(0)
        self.in_sync = [each for each in members if self.stores[each].turns and self.stores[each].turns[-1] is turn]
        if self.in_sync != members:
            self._change(self.in_sync)

    def _agrees(self, name: str) -> bool:
        """Whether it holds all that came before the last turn of the primary."""
        store, turns = self.stores[name], self.stores[self.primary].turns
        store.waiting = []
        return len(store.turns) == len(turns) - 1 and all(a is b for a, b in zip(store.turns, turns, strict=False))

    def _change(self, members: list[str]) -> None:
        self.epoch += 1
        self.in_sync = members
        self._write([ev.InSyncChanged(self.epoch, tuple(members))])

    def _drop_out(self) -> None:
        others = [name for name in self.in_sync if name != self.primary]
        if others:
            gone = self.random.choice(others)
            self.stores[gone].waiting = []
            self._change([name for name in self.in_sync if name != gone])

    def _join(self) -> None:
        outside = [name for name in BROKERS if name not in self.in_sync]
        if not outside:
            return
        name, leader = self.random.choice(outside), self.stores[self.primary]
        store = self.stores[name]
        store.waiting = []
        shared = 0
        for mine, others in zip(store.turns, leader.turns, strict=False):
            if mine is not others:
                break
            shared += 1
        common = store.turns[shared - 1][-1].lsn if shared else 0
        if common < max(store.folded_to, leader.folded_to) or self.random.random() < 0.2:
            if (
                leader.own_queue
                or leader.lsn > self.committed
                or not (self.read_lsn is None or self.read_lsn >= leader.lsn)
            ):
                return
            store.copy_state(leader)
        else:
            if shared < len(store.turns):
                store.truncate(common)
            for turn in leader.turns[shared:]:
                store.receive(turn)
                if self.random.random() < 0.5:
                    store.flush(leader.committed)
            store.flush(leader.committed)
        self._change([*self.in_sync, name])

    def _fold(self) -> None:
        store = self.stores[self.random.choice(self.in_sync)]
        is_read = self.read_lsn is None or self.read_lsn >= store.lsn
        if not store.waiting and store.lsn <= self.committed and is_read:
            store.fold()

    def _fail(self) -> None:
        """The primary dies; a member goes on, with all that was confirmed."""
        others = [name for name in self.in_sync if name != self.primary]
        if not others:
            return
        if self.random.random() < 0.5:  # and has written what nobody else has
            alone = self.stores[self.primary]
            queue = next(iter(self.state.messages))
            alone.receive([LogRecord(alone.lsn + 1, ev.Enqueued((queue,), self._message(), True, 4, 0, ""), False)])
            alone.flush(0)
        chosen = max(others, key=lambda name: self.stores[name].lsn)
        self._lead(chosen, others, "silent")
        self._confirm()

    def _force(self) -> None:
        """Somebody outside of the set is promoted, and what it lacks is discarded."""
        outside = [name for name in BROKERS if name not in self.in_sync and self.stores[name].turns]
        if outside and all(self.stores[name].history for name in outside):
            self._confirm()
            self.forced += 1
            name = self.random.choice(outside)
            self._lead(name, [name], "forced", forced=True)

    def _keep(self) -> None:
        self.stores[self.random.choice(BROKERS)].keep(self.random)

    # --- what is done to stores in the end

    def tear_ends(self) -> None:
        """As a crash leaves them: a block that was never confirmed, cut."""
        for store in self.stores.values():
            if store.turns and self.random.random() < 0.3:
                lsn = store.lsn
                store.receive([LogRecord(lsn + 1, ev.QueueDeclared("torn", {}), False)])
                store.flush(0)
                number = max(int(path.stem) for path in store.directory.glob("journal/*.log"))
                _, end = blocks_of(store, number)[-1]
                spoil(store.segment(number), end - 3)
                store.lsn = lsn
                store.turns.pop()

    def damage_a_block(self) -> None:
        """Anywhere in one of the stores, but for its last block: that would be a torn end, of which nobody was told."""
        store = self.stores[self.random.choice(BROKERS)]
        number = self.random.choice(sorted(int(path.stem) for path in store.directory.glob("journal/*.log")))
        blocks = blocks_of(store, number)[:-1]
        if blocks:
            begin, end = self.random.choice(blocks)
            spoil(store.segment(number), self.random.randrange(begin, end))

    def move(self) -> None:
        """Directories are called otherwise, as on another machine."""
        for name, store in self.stores.items():
            target = store.data_dir.with_name(f"moved-{name}")
            store.data_dir.rename(target)
            store.data_dir, store.directory = target, target / "default"

    @property
    def paths(self) -> list[str]:
        """Of all stores."""
        return [str(store.data_dir) for store in self.stores.values()]


def lived(directory: Path, seed: int) -> RandomHistory:
    """From beginning to end."""
    history = RandomHistory(directory, seed)
    for _ in history.live():
        pass
    return history
