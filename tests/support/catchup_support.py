"""A primary and a backup that have to find together again, in a test's hands."""

from __future__ import annotations

from model_support import PLENTY, Core, bodies, replicated_picture
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.ha.browser import Browsers, objects_frame
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.effects import Discarded
from qpid_ha_broker.ha.frames import CaughtUp, Chunk
from qpid_ha_broker.model.queues.queue import Queue

GENERATION = 7


class Pair:
    """A primary, and a backup that was level with it up to `common_lsn`; then each went its own way."""

    def __init__(self) -> None:
        self.primary, self.backup = Core(), Core()
        self.common_lsn = 0
        self.discarded: list[Discarded] = []
        self.chunks = 0

    def part(self) -> None:
        """Bring the backup level by the stream; from then on each is alone."""
        for record in self.written():
            self.backup.resources.replicated.follow([record])
        self.common_lsn = self.primary.log.last_lsn

    def written(self) -> list[LogRecord]:
        """What the primary wrote since the last call."""
        seen = len(self.primary.records)
        self.primary.read()
        return self.primary.records[seen:]

    # --- the catch-up, step by step

    def meet(self, max_messages: int = 2, window: int = 3) -> None:
        """Up to the primary's objects."""
        self.catch_up = CatchUp(self.backup.resources.replicated, self.common_lsn)
        self.discarded += self.catch_up.discard_after_common()
        held: dict[int, tuple[tuple[int, int], ...]] = {}
        for frame in self.catch_up.holdings():
            held[frame.queue] = held.get(frame.queue, ()) + frame.ranges
        self.written()
        lsn = self.primary.log.last_lsn
        self.discarded += self.catch_up.objects(objects_frame(self.primary.state, GENERATION, lsn))
        self.browsers = Browsers(
            self.primary.state, GENERATION, lsn, held,
            max_messages=max_messages, max_bytes=1 << 20, window=window, with_annotations=True,
        )  # fmt: skip
        self.chunks = 0
        self.catch_up.check_invariants()

    def stream(self) -> None:
        """Let the backup have what the primary wrote."""
        for record in self.written():
            self.catch_up.follow(record)
        self.catch_up.check_invariants()

    def next(self) -> Chunk | CaughtUp:
        """What the primary sends next, after all that it wrote."""
        self.stream()
        frame = self.browsers.next(PLENTY)
        assert frame is not None
        return frame

    def take(self, frame: Chunk | CaughtUp) -> bool:
        """The backup gets it; True at the end."""
        if isinstance(frame, CaughtUp):
            self.catch_up.finish()
        else:
            self.catch_up.chunk(frame)
            self.chunks += 1
            assert self.browsers.acknowledged(self.chunks) == ""
        self.catch_up.check_invariants()
        return isinstance(frame, CaughtUp)

    def step(self) -> bool:
        return self.take(self.next())

    def finish(self) -> None:
        while not self.step():
            pass
        self.check_equal()

    def check_equal(self) -> None:
        assert replicated_picture(self.backup.sets) == replicated_picture(self.primary.sets)
        assert self.backup.log.last_lsn == self.primary.log.last_lsn

    def follow_on(self) -> None:
        """Afterwards the backup follows as any other."""
        for record in self.written():
            self.backup.resources.replicated.follow([record])
        self.check_equal()


def pair_with(count: int = 0, **arguments: Scalar) -> tuple[Pair, Queue]:
    """A queue `a` with so many messages, of which both know."""
    pair = Pair()
    queue = pair.primary.queue("a", **arguments)
    pair.primary.publish(queue, *[f"m{number}" for number in range(count)])
    pair.part()
    return pair, queue


def accept(core: Core, name: str, *places: int) -> None:
    queue = core.catalog.queues[name]
    entries = sorted(queue.messages, key=lambda entry: entry.id)
    core.resources.accept(queue, [entries[place] for place in places])


def held_by(core: Core, name: str = "a") -> list[str]:
    return bodies(core.catalog.queues[name].messages)
