"""The backup's side of replication: finding the primary, following it, and being able to take back.

A backup acknowledges what it holds and applies what is committed. In between lies what it could still be asked to
forget: after a failover the new primary may lack the end of the stream, and then that end is simply dropped. Only a
backup whose state has already gone another way compares its messages one by one (`catchup`).
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from qpid_ha_broker.events.codec import Record, decode
from qpid_ha_broker.events.types import GenerationStarted, InSyncChanged
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.catchup import CatchUp, CatchUpError
from qpid_ha_broker.ha.effects import Connect
from qpid_ha_broker.ha.history import newest
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.model.state import ReplayError

Kind = TypeVar("Kind")


class _Held(NamedTuple):
    """A batch that is held and not applied."""

    last_lsn: int
    records: list[Record]


class Stage(Enum):
    """How far the channel to the primary is."""

    SEARCHING = auto()
    OPENING = auto()
    GREETING = auto()
    FOLLOWING = auto()


class StreamError(Exception):
    """What the primary sent does not fit; the channel is given up, and the state is as it was."""


class Backup:
    """The promise: `held_lsn` is never acknowledged before everything up to it is held, unbroken and checked."""

    def __init__(self, around: Surroundings, tail: Tail) -> None:
        self._around = around
        self._resources = around.resources
        self._tail = tail
        self.stage = Stage.SEARCHING
        self.link = 0
        self.address = ""
        """Where the channel leads, or led last."""
        self.primary = ""
        self.clients_url = ""
        self.generation = 0
        """Of the primary that is followed."""
        self.complete = True
        self.catch_up: CatchUp | None = None
        self.committed_lsn = 0
        self._held: deque[_Held] = deque()
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

    # --- what this broker holds

    @property
    def held_lsn(self) -> int:
        """The end of this broker's log."""
        return self._held[-1].last_lsn if self._held else self._resources.log.last_lsn

    def generations(self) -> list[tuple[int, GenerationStarted]]:
        """The history, with what is held and not applied."""
        return [*self._resources.state.generations, *self._held_events(GenerationStarted)]

    def in_sync(self) -> InSyncChanged:
        """The newest in-sync set that this broker knows of."""
        held = self._held_events(InSyncChanged)
        return held[-1][1] if held else self._resources.state.in_sync

    def _held_events(self, kind: type[Kind]) -> list[tuple[int, Kind]]:
        return [(lsn, event) for held in self._held for lsn, event, _ in held.records if isinstance(event, kind)]

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
                self._resources.log.last_lsn, self.complete, promised,
            ),
        )  # fmt: skip

    # --- following

    def welcomed(self, welcome: fr.Welcome) -> None:
        """The primary takes this broker as its backup. Raises StreamError when the welcome makes no sense."""
        if welcome.common_lsn > self.held_lsn:
            raise StreamError(f"welcomed at LSN {welcome.common_lsn}, but this log ends at {self.held_lsn}")
        if welcome.resync is fr.Resync.TAIL and welcome.common_lsn < self._resources.log.last_lsn:
            raise StreamError(f"the tail cannot begin at LSN {welcome.common_lsn}: more than that is applied")
        self.stage = Stage.FOLLOWING
        self.primary, self.generation, self.clients_url = welcome.name, welcome.generation, welcome.clients_url
        self._level_lsn = self._chunks = 0
        self._acknowledged = 0, 0
        self._pause_s = self._around.settings.reconnect_s
        self._truncate(welcome.common_lsn)
        if welcome.resync is fr.Resync.DIFF:
            self._begin_catch_up(welcome)

    def _truncate(self, lsn: int) -> None:
        """Drop what lies after `lsn` and was not applied: the primary never had it, so nobody was told of it."""
        taken_back = self.held_lsn - lsn
        while self._held and self._held[-1].last_lsn > lsn:
            last = self._held.pop()
            kept = [record for record in last.records if record.lsn <= lsn]
            if kept:
                self._held.append(_Held(lsn, kept))
                break
        if taken_back > 0:
            self._tail.truncate_after(lsn)
            self._around.note("info", f"{taken_back} events after LSN {lsn} are taken back: {self.primary} lacks them")

    def _begin_catch_up(self, welcome: fr.Welcome) -> None:
        self._apply_held(self.held_lsn)
        self.complete = False
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
            self.complete = True
        self._level_lsn = max(frame.lsn, 1)

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
            self._held.append(_Held(frame.last_lsn, records))
        self.committed(frame.committed_lsn)

    def committed(self, lsn: int) -> None:
        """Everything up to `lsn` can no longer be taken back by anybody."""
        self.committed_lsn = max(self.committed_lsn, lsn)
        self._apply_held(self.committed_lsn)

    def _apply_held(self, lsn: int) -> None:
        follow = self._resources.follow
        while self._held and self._held[0].last_lsn <= lsn:
            for record in self._held.popleft().records:
                follow(record)

    def promoted(self) -> None:
        """Follow nobody; apply all that is held, because any of it may have been confirmed."""
        self.lost()
        self.search()
        self._apply_held(self.held_lsn)
        self._resources.drop_open_unit()
        self.complete = True

    @property
    def is_ready(self) -> bool:
        """Whether it holds everything that the primary has confirmed, and the primary waits for it."""
        if not self._level_lsn or not self.complete or self._resources.log.last_lsn < self._level_lsn:
            return False
        return self._around.settings.name in self._resources.state.in_sync.members

    # --- time

    def acknowledge(self) -> None:
        """Tell the primary how far we are, if it does not know."""
        now = self.held_lsn, self._chunks
        if now != self._acknowledged and self.stage is Stage.FOLLOWING:
            self._send_ack(now)

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
            self._send_ack((self.held_lsn, self._chunks))
        return ""

    def lost(self) -> None:
        """The channel is gone."""
        if self.catch_up is not None:
            self.catch_up.abandon()
            self.catch_up = None
        self.primary, self.clients_url = "", ""
        self._level_lsn = 0

    def entries(self) -> tuple[fr.GenerationEntry, ...]:
        """The history as frames carry it."""
        return tuple(fr.GenerationEntry(event.generation, event.primary, lsn) for lsn, event in self.generations())

    def newest_generation(self) -> int:
        """Of this broker's log."""
        return newest(self.entries())

    def check_invariants(self) -> None:
        """Raise AssertionError where the promise is broken; called after each step in tests."""
        if self._acknowledged[0] > self.held_lsn and self.stage is Stage.FOLLOWING:
            raise AssertionError(f"acknowledged LSN {self._acknowledged[0]}, but holds {self.held_lsn}")
        if self._tail.last_lsn > self.held_lsn:
            raise AssertionError(f"the tail ends at LSN {self._tail.last_lsn}, the log at {self.held_lsn}")


STREAM_ERRORS = (StreamError, CatchUpError, ReplayError)
