"""The backup's side of replication: finding the primary, following it, and being able to take back.

A backup acknowledges what it holds and applies what is committed. In between lies what it could still be asked to
forget: after a failover the new primary may lack the end of the stream, and then that end is simply dropped. Only a
backup whose state has already gone another way compares its messages one by one (`catchup`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import Final, TypeVar

from qpid_ha_broker.events.codec import Record, decode
from qpid_ha_broker.events.types import Acquired, Dequeued, GenerationStarted, InSyncChanged, Released
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.catchup import CatchUp, CatchUpError
from qpid_ha_broker.ha.effects import Connect
from qpid_ha_broker.ha.keeping import Held, Keeping, Restored, transient_count
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.ha.verdict import CommittedSet
from qpid_ha_broker.model.state import ReplayError

Kind = TypeVar("Kind")


class Stage(Enum):
    """How far the channel to the primary is."""

    SEARCHING = auto()
    OPENING = auto()
    GREETING = auto()
    FOLLOWING = auto()


class StreamError(Exception):
    """What the primary sent does not fit; the channel is given up, and the state is as it was."""


class Backup:
    """The promise: no LSN is acknowledged before everything up to it is held, unbroken, checked, and in the store."""

    def __init__(self, around: Surroundings, tail: Tail, keeping: Keeping, restored: Restored) -> None:
        self._around = around
        self._keeping = keeping
        self._resources = around.resources
        self._tail = tail
        self.stage = Stage.SEARCHING
        self.link = 0
        self.address = ""
        """Where the channel leads, or led last."""
        self.primary = ""
        self.clients_url = ""
        self.login_problem = ""
        """Why another broker does not let this one in; empty as long as none has said so."""
        self.refused_at = ""
        """Its address."""
        self.generation = 0
        """Of the primary that is followed."""
        self.complete = True
        """This broker holds all that it may be in sync for."""
        self._follows_from_log = True
        """Its state is what a log says; not so in the middle of a comparison."""
        self.store = restored.store
        self.is_chosen = restored.is_chosen
        self.lacks_transient = restored.lost_transient > 0
        """Messages that were not durable were lost with the process before."""
        self.catch_up: CatchUp | None = None
        self.committed_lsn = 0
        self._held: deque[Held] = deque(restored.held)
        self._held_marks = [record for held in restored.held for record in _marks(held.records)]
        """Those of the held events that say who leads and who is in sync: they are asked for in every turn."""
        self._level_lsn = 0
        """What CaughtUp named; 0 before it came."""
        self._chunks = 0
        self._acknowledged = 0, 0
        self._heard_s = 0.0
        self._sent_s = 0.0
        self._next_try_s = 0.0
        self._pause_s = around.settings.reconnect_s
        self._turn = 0
        self._welcome: fr.Welcome | None = None
        self._lost_upto_lsn = self.held_lsn
        """None of the messages that were lost with the process before is newer."""

    # --- what this broker holds

    @property
    def held_lsn(self) -> int:
        """The end of this broker's log."""
        return self._held[-1].last_lsn if self._held else self._resources.log.last_lsn

    def generations(self) -> list[tuple[int, GenerationStarted]]:
        """The history, with what is held and not applied."""
        return [*self._resources.state.generations, *self._held_events(GenerationStarted)]

    def newest_in_sync(self) -> InSyncChanged:
        """The last one in this broker's log."""
        held = self._held_events(InSyncChanged)
        return held[-1][1] if held else self._resources.state.in_sync

    def committed_in_sync(self) -> CommittedSet | None:
        """The newest in-sync set that is applied, if a primary has said that all that is applied is committed."""
        state = self._resources.state
        if not state.generations or self.committed_lsn < self._resources.log.last_lsn:
            return None
        return CommittedSet(state.generations[-1][1].generation, state.in_sync.epoch, state.in_sync.members)

    def in_sync(self) -> InSyncChanged:
        """The newest in-sync set that this broker knows of.

        Out of a store: together with those that it may never have replaced. A primary that wrote "I am alone" and was
        not heard has not been alone, and its log does not know.
        """
        if self.store is not fr.Store.DIRTY:
            return self.newest_in_sync()
        newest, has_begun = self._resources.state.in_sync, False
        for record in self._held_marks:
            event = record.event
            if isinstance(event, GenerationStarted):
                has_begun = True  # by a verdict: what was before counts for it, and no more
            elif isinstance(event, InSyncChanged):
                before = () if has_begun else newest.members
                newest, has_begun = InSyncChanged(event.epoch, tuple(sorted({*before, *event.members}))), False
        return newest

    def _held_events(self, kind: type[Kind]) -> list[tuple[int, Kind]]:
        return [(lsn, event) for lsn, event, _ in self._held_marks if isinstance(event, kind)]

    # --- looking for the primary

    def search(self, at_once: bool = False) -> None:
        """Look for the primary again, after a pause that grows."""
        self.stage, self.link = Stage.SEARCHING, 0
        settings = self._around.settings
        if at_once:
            self._pause_s = settings.reconnect_s
            self._next_try_s = self._around.clock_s
            return
        jitter = 0.5 + self._around.random()
        self._next_try_s = self._around.clock_s + self._pause_s * jitter

    def try_next(self, address: str = "") -> None:
        """Connect to the next address, or to `address`."""
        addresses = self._around.settings.addresses
        own = self._around.settings.own_address
        candidates = [each for each in addresses if each != own] or list(addresses)
        if not address:
            address = candidates[self._turn % len(candidates)]
            self._turn += 1
            if self._turn % len(candidates) == 0:
                self._pause_s = min(self._pause_s * 2, self._around.settings.reconnect_most_s)
        self.stage, self.address = Stage.OPENING, address
        self.link = -self._around.number()
        self._heard_s = self._around.clock_s
        self._around.effects.append(Connect(self.link, address))

    @property
    def is_due(self) -> bool:
        """Whether the pause is over."""
        return self.stage is Stage.SEARCHING and self._around.clock_s >= self._next_try_s

    @property
    def is_round_over(self) -> bool:
        """Whether every address has been tried since the last pause."""
        return self._turn % max(len(self._around.settings.addresses) - bool(self._around.settings.own_address), 1) == 0

    def opened(self, cluster: str, history: tuple[fr.GenerationEntry, ...], promised: int) -> None:
        """The channel is there: say hello."""
        settings = self._around.settings
        self.stage = Stage.GREETING
        self._heard_s = self._around.clock_s
        self._around.send(
            self.link,
            fr.Hello(
                fr.PROTOCOL_VERSION, settings.name, settings.instance, cluster, history, self.held_lsn,
                self._resources.log.last_lsn, self.complete, self.lacks_transient, promised, self._remembers,
            ),
        )  # fmt: skip

    @property
    def _remembers(self) -> bool:
        return self._around.settings.has_store or self.complete

    # --- following

    def welcomed(self, welcome: fr.Welcome) -> None:
        """The primary takes this broker as its backup. Raises StreamError when the welcome makes no sense."""
        if welcome.common_lsn > self.held_lsn:
            raise StreamError(f"welcomed at LSN {welcome.common_lsn}, but this log ends at {self.held_lsn}")
        if welcome.resync is fr.Resync.TAIL and welcome.common_lsn < self._resources.log.last_lsn:
            raise StreamError(f"the tail cannot begin at LSN {welcome.common_lsn}: more than that is applied")
        self.stage = Stage.FOLLOWING
        self.refused_at, self.login_problem = "", ""
        self.primary, self.generation, self.clients_url = welcome.name, welcome.generation, welcome.clients_url
        self._level_lsn = self._chunks = 0
        self._acknowledged = 0, 0
        self._pause_s = self._around.settings.reconnect_s
        self._truncate(welcome.common_lsn)
        if welcome.resync is fr.Resync.DIFF:
            self._begin_catch_up(welcome)
        elif self.newest_generation() is None:
            # The beginning of a log may name this broker as in sync: so the one was whose memory is gone.
            self.complete = False

    def _truncate(self, lsn: int) -> None:
        """Drop what lies after `lsn` and was not applied: the primary never had it, so nobody was told of it.

        What is applied goes by comparison. The store has it until then: a base that was made of it cannot do without.
        """
        taken_back, stored_lsn = self.held_lsn - lsn, max(lsn, self._resources.log.last_lsn)
        if self.held_lsn > stored_lsn:
            self._keeping.take_back(stored_lsn)
        while self._held and self._held[-1].last_lsn > lsn:
            last = self._held.pop()
            if self.held_lsn < lsn:  # a part of it stays; there may be no record in that, but what a store left out
                self._held.append(Held(lsn, [record for record in last.records if record.lsn <= lsn]))
                break
        self._held_marks = [mark for mark in self._held_marks if mark.lsn <= lsn]
        self._lost_upto_lsn = min(self._lost_upto_lsn, lsn)
        if taken_back > 0:
            self._tail.truncate_after(lsn)
            self._around.note("info", f"{taken_back} events after LSN {lsn} are taken back: {self.primary} lacks them")

    def _begin_catch_up(self, welcome: fr.Welcome) -> None:
        self._apply_held(self.held_lsn)
        self.complete = self._follows_from_log = False
        self.catch_up = CatchUp(self._resources, welcome.common_lsn)
        self._around.effects += self.catch_up.discard_after_common()
        generations = self._resources.state.generations
        generations[:] = [(lsn, event) for lsn, event in generations if lsn <= welcome.common_lsn]
        self._resources.log.reset(welcome.common_lsn)
        self._tail.reset(welcome.common_lsn)
        self._welcome = welcome
        for holdings in self.catch_up.holdings():
            self._around.send(self.link, holdings)
        self._around.send(self.link, fr.HoldingsDone())

    def objects(self, frame: fr.Objects) -> None:
        """The configuration of a catch-up by difference."""
        self._around.effects += self._catching_up().objects(frame)
        self._tail.reset(frame.lsn)
        self._keeping.begin_base(frame.lsn)
        self._adopt_history()
        self.committed_lsn = 0

    def _adopt_history(self) -> None:
        if self._welcome is None:
            return
        generations = self._resources.state.generations
        known = {lsn for lsn, _ in generations}
        for entry in self._welcome.history:
            if entry.first_lsn not in known:  # when and why it began is not told: it was not in the stream
                event = GenerationStarted(entry.generation, entry.primary, self._welcome.cluster, 0, False, "")
                generations.append((entry.first_lsn, event))

    def chunk(self, frame: fr.Chunk) -> None:
        """What a replicating browser found."""
        self._catching_up().chunk(frame)
        self._chunks += 1

    def caught_up(self, frame: fr.CaughtUp) -> None:
        """All that was missing has been sent."""
        if self.catch_up is not None:
            self.catch_up.finish()
            self.catch_up = None
            self._is_whole()
            self._keeping.dump_base()
        self.complete = True
        self._level_lsn = max(frame.lsn, 1)

    def _is_whole(self) -> None:
        self.complete = self._follows_from_log = True
        self.lacks_transient = False

    def _catching_up(self) -> CatchUp:
        if self.catch_up is None:
            raise StreamError("a frame of a catch-up, and there is none")
        return self.catch_up

    def batch(self, frame: fr.Batch) -> None:
        """Hold the next batch. Raises StreamError, and then nothing of it is held."""
        if frame.generation != self.generation:
            raise StreamError(f"a batch of generation {frame.generation}; the primary's is {self.generation}")
        held_lsn = self.held_lsn
        if frame.first_lsn != held_lsn + 1:
            raise StreamError(f"a batch from LSN {frame.first_lsn}; LSN {held_lsn + 1} should come next")
        records, _, wrong = decode(frame.data)
        if wrong is not None:
            raise StreamError(f"a damaged batch from LSN {frame.first_lsn}: {wrong.text}, at offset {wrong.offset}")
        if not records or len(records) != frame.last_lsn - frame.first_lsn + 1 or records[-1].lsn != frame.last_lsn:
            raise StreamError(f"a batch that should reach from LSN {frame.first_lsn} to {frame.last_lsn} does not")
        self._tail.append(frame.first_lsn, frame.last_lsn, frame.data)
        if self.catch_up is not None:
            for record in records:
                self.catch_up.follow(record)
        else:
            self._held.append(Held(frame.last_lsn, records))
            self._held_marks += _marks(records)
        self._keep(frame, transient_count(records) if self._around.settings.has_store else 0)
        self.committed(frame.committed_lsn)

    def _keep(self, frame: fr.Batch, transient: int) -> None:
        self._keeping.keep(frame.first_lsn, frame.last_lsn, frame.committed_lsn, transient, frame.data)

    def committed(self, lsn: int) -> None:
        """Everything up to `lsn` can no longer be taken back by anybody."""
        self.committed_lsn = max(self.committed_lsn, lsn)
        self._apply_held(self.committed_lsn)

    def _apply_held(self, lsn: int) -> None:
        follow, state = self._resources.follow, self._resources.state
        while self._held and self._held[0].last_lsn <= lsn:
            held = self._held.popleft()
            try:
                for record in held.records:
                    follow(self._without_lost(record) if self.lacks_transient else record)
            except ReplayError:
                self._lose_track()
                raise
            if not state.open_unit:  # what a store left out is no record, but it was written
                self._resources.log.last_lsn = held.last_lsn
        if self._held_marks:
            # A batch out of a store may be empty: its messages were not durable.
            first_lsn = next((lsn for held in self._held for lsn, _, _ in held.records), self.held_lsn + 1)
            self._held_marks = [mark for mark in self._held_marks if mark.lsn >= first_lsn]
        if state.transients_lost_lsn > self._lost_upto_lsn:
            self.lacks_transient = False  # nobody has them any more

    def _lose_track(self) -> None:
        """What comes next does not fit what is here, which must never be: only a comparison helps, and no promotion."""
        self._held.clear()
        self._held_marks.clear()
        self._resources.drop_open_unit()
        self._tail.reset(self.held_lsn)
        self.complete = self._follows_from_log = False

    def _without_lost(self, record: Record) -> Record:
        """The record without the messages that were not durable, and did not come back with the store."""
        event = record.event
        if not isinstance(event, Dequeued | Acquired | Released):
            return record
        queue = self._resources.state.queues_by_id.get(event.queue)
        ids = tuple([each for each in event.ids if queue is None or queue.find(each) is not None])
        return record._replace(event=event._replace(ids=ids))

    def promoted(self) -> None:
        """Follow nobody; apply all that is held, because any of it may have been confirmed."""
        self.lost()
        self.search()
        self._apply_held(self.held_lsn)
        self._resources.drop_open_unit()
        if not self._follows_from_log:  # by force
            self._resources.state.producers.clear()  # their messages may not be here: better twice than never
            self._keeping.begin_base(self._resources.log.last_lsn)
            self._keeping.dump_base_later()
        self._is_whole()
        self.is_level()

    def is_level(self) -> None:
        """What this broker holds is no longer just what its store had."""
        if self.store is not fr.Store.FAILED:
            self.store, self.is_chosen = fr.Store.MEMORY, False

    @property
    def is_ready(self) -> bool:
        """Whether it holds everything that the primary has confirmed, and the primary waits for it."""
        if not self._level_lsn or not self.complete or self._resources.log.last_lsn < self._level_lsn:
            return False
        return self._around.settings.name in self._resources.state.in_sync.members

    # --- time

    def acknowledge(self) -> None:
        """Tell the primary how far we are, if it does not know."""
        now = self._position()
        if now != self._acknowledged and self.stage is Stage.FOLLOWING:
            self._send_ack(now)

    def _position(self) -> tuple[int, int]:
        return (min(self.held_lsn, self._keeping.kept_lsn) if self.complete else 0), self._chunks

    def _send_ack(self, now: tuple[int, int]) -> None:
        self._acknowledged = now
        self._sent_s = self._around.clock_s
        self._around.send(self.link, fr.Ack(self.generation, *now))

    def heard(self) -> None:
        """Something came from the primary."""
        self._heard_s = self._around.clock_s

    def tick(self) -> str:
        """A heartbeat if one is due; returns why the channel must be given up, if it must."""
        settings, clock_s = self._around.settings, self._around.clock_s
        if self.stage is Stage.SEARCHING:
            return ""
        limit_s = settings.link_timeout_s if self.stage is Stage.FOLLOWING else settings.ask_limit_s
        if clock_s - self._heard_s > limit_s:
            return f"nothing came for {clock_s - self._heard_s:.1f} s"
        if self.stage is Stage.FOLLOWING and clock_s - self._sent_s >= settings.heartbeat_interval_s:
            self._send_ack(self._position())
        return ""

    def lost(self) -> None:
        """The channel is gone."""
        if self.catch_up is not None:
            self.catch_up.abandon()
            self.catch_up = None
        self.primary, self.clients_url = "", ""
        self._level_lsn = 0

    def note_login(self, refusal: str) -> None:
        """A channel came to its end: `refusal` is why the broker there does not let us in, empty if it was not that.

        The first address that refuses stays the one that is told of: its sentence is shown to operators, who are not
        helped by one that changes with each attempt.
        """
        if not refusal:
            if self.refused_at == self.address:
                self.refused_at, self.login_problem = "", ""
        elif self.refused_at in ("", self.address):
            text = f"cannot log in to the broker at {self.address}: {refusal}"
            if text != self.login_problem:
                self._around.note("error", f"{text}; are ha.username and its password the same on all brokers?")
            self.refused_at, self.login_problem = self.address, text

    def entries(self) -> tuple[fr.GenerationEntry, ...]:
        """The history as frames carry it."""
        return tuple(fr.GenerationEntry(event.generation, event.primary, lsn) for lsn, event in self.generations())

    def newest_generation(self) -> GenerationStarted | None:
        """The last one of this broker's log; None for an empty one. Asked for in every turn: no list is made."""
        for record in reversed(self._held_marks):
            if isinstance(record.event, GenerationStarted):
                return record.event
        generations = self._resources.state.generations
        return generations[-1][1] if generations else None

    def check_invariants(self) -> None:
        """Raise AssertionError where the promise is broken; called after each step in tests."""
        if self._acknowledged[0] > self.held_lsn and self.stage is Stage.FOLLOWING:
            raise AssertionError(f"acknowledged LSN {self._acknowledged[0]}, but holds {self.held_lsn}")
        if self._tail.last_lsn > self.held_lsn:
            raise AssertionError(f"the tail ends at LSN {self._tail.last_lsn}, the log at {self.held_lsn}")


def _marks(records: list[Record]) -> list[Record]:
    return [record for record in records if type(record.event) in _MARKS]


_MARKS: Final = (GenerationStarted, InSyncChanged)


STREAM_ERRORS = (StreamError, CatchUpError, ReplayError)
