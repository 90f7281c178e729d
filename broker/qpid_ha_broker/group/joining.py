"""How a member that is outside gets a copy that counts, while the others go on.

1. It says JoinAsked, and keeps what is delivered from there on.
2. The first member in step answers with the lineage and the configuration as they were *there*. What was kept is
   applied to that, and from now on all is applied as it is delivered.
   Before, it reads the record: only if that is the one that was shown is its old copy given up. Who has answered may
   not know yet that the group goes on without it, and another part may have named this member in the meantime.
3. It asks for the messages, queue by queue and from the newest down (`ha.browser`, `ha.catchup`). Each answer is what
   whoever is first then has where the question was delivered, so an answer of any member is as good. Who that was is
   not known here, and it may be silent until the others go on without it: whenever one is in step no more, for whatever
   reason, all that is missing is asked for again.
4. Once no piece is missing the whole is written to its store, and only when that is on disk it says AdmissionAsked.

What it held before is kept as far as it was told that it is committed: that is the same everywhere, unless an operator
had the group go on with an older copy; then as far as the generations of both logs are the same. Nobody is let in
whom a record may name: until it is known that none does, its old copy may be the one that is needed.
"""

from __future__ import annotations

from collections.abc import Iterable

from qpid_ha_broker.events.types import EVERYTHING, MEMBERS_CHANGED, GenerationStarted
from qpid_ha_broker.group.context import GroupContext
from qpid_ha_broker.group.delivery import DeliveredLog
from qpid_ha_broker.group.effects import Delivered, ViewChanged
from qpid_ha_broker.group.frames import ChunkAsked, ChunkShown, JoinAsked, LineageShown, ObjectsShown, Ranges
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.ha.browser import ReplicatingBrowser, objects_frame
from qpid_ha_broker.ha.catchup import CatchUp
from qpid_ha_broker.ha.effects import ReadRecord, RecordRead
from qpid_ha_broker.ha.frame_codec import decode as decode_shown
from qpid_ha_broker.ha.frame_codec import encode as encode_shown
from qpid_ha_broker.ha.frames import Chunk, FrameError, Objects
from qpid_ha_broker.ha.history import common_lsn
from qpid_ha_broker.ha.replica import LogHistory
from qpid_ha_broker.model.queues.sequence import ELSEWHERE
from qpid_ha_broker.model.replication import has_replicated_messages


class JoinRequest:
    """Asking to be let in, and what is delivered until that is answered."""

    def __init__(self, ctx: GroupContext) -> None:
        self._ctx = ctx
        self.number = 0
        """Of the last question."""
        self.answered_by = ""
        """Who has let this member in."""
        self._asked_s = float("-inf")
        self._kept: list[Delivered | ViewChanged] | None = None
        """What was delivered since the question was; None: that is still on its way."""
        self._shown: dict[str, LineageShown] = {}
        self._objects: dict[str, ObjectsShown] = {}
        """Halves of answers, by who gave them: of two parts, one may not know yet that it is out."""
        self._proof = 0
        """The read of the record that says whether the answer is of who goes on with the group; 0: it was not read."""

    def ask(self) -> None:
        """Once in a while, as long as nobody answers."""
        if self._ctx.now_s - self._asked_s >= self._ctx.settings.ask_again_s:
            self._asked_s = self._ctx.now_s
            self.number = self._ctx.number()
            self._forget_answers()
            self._ctx.say(JoinAsked(self._ctx.settings.instance, self.number))

    def forget(self) -> None:
        """Begin anew."""
        self._asked_s = float("-inf")
        self._forget_answers()

    def forget_pause(self) -> None:
        """Others may answer now: ask again at once, unless the question is answered before."""
        self._asked_s = float("-inf")

    def asked(self, frame: JoinAsked) -> None:
        """The own question was delivered: what is shown will be as of here."""
        if frame.number == self.number:
            self._kept = []

    def keep(self, happened: Delivered | ViewChanged) -> None:
        """Something is delivered that will have to be applied."""
        if self._kept is not None:
            self._kept.append(happened)

    def _is_answer(self, frame: LineageShown | ObjectsShown) -> bool:
        """Or one to a question that was given up meanwhile, to the process before this one, or to another member."""
        own = self._ctx.settings
        return (frame.to, frame.instance, frame.number) == (own.name, own.instance, self.number)

    def shown(self, sender: str, frame: LineageShown) -> None:
        """The first half of an answer."""
        if self._is_answer(frame):
            self._shown[sender] = frame

    def objects_shown(self, sender: str, frame: ObjectsShown) -> None:
        """The second half; between them others may have said something."""
        if self._is_answer(frame):
            self._objects[sender] = frame

    def _answered_by(self) -> str:
        return next((sender for sender in self._shown if sender in self._objects), "")

    def ask_for_proof(self) -> None:
        """Read the record, once this member was shown a group."""
        if not self._proof and self._kept is not None and self._answered_by():
            self._proof = self._ctx.number()
            self._ctx.effects.append(ReadRecord(self._proof))

    def answer(self, read: RecordRead) -> tuple[LineageShown, ObjectsShown, list[Delivered | ViewChanged]] | None:
        """What was shown, and what was delivered since the question was; None: nothing, or not by the group."""
        sender = self._answered_by()
        if not sender or self._kept is None or read.number != self._proof:
            return None
        answer = self._shown[sender], self._objects[sender], self._kept
        if answer[0].record != read.record:
            self._forget_answers()
            return None
        self._forget_answers()
        self.answered_by = sender
        return answer

    def _forget_answers(self) -> None:
        self._kept = None
        self._proof = 0
        self._shown.clear()
        self._objects.clear()


class LevelingUp:
    """The promise: when `is_done`, the copy is what a member in step has at the same place."""

    def __init__(
        self, ctx: GroupContext, log: DeliveredLog, shown: LineageShown, objects: Objects, common_lsn: int
    ) -> None:
        """`common_lsn`: up to there the copy is what it was everywhere."""
        self._ctx = ctx
        self._log = log
        resource_set = ctx.resource_set
        self._catch_up = CatchUp(resource_set, common_lsn)
        ctx.effects += self._catch_up.discard_after_common()
        generations = resource_set.state.generations
        generations[:] = [line for line in generations if line[0] <= common_lsn]
        _adopt(generations, shown)
        self._missing: dict[int, tuple[int, Ranges]] = {}
        """By queue: up to which id nothing is here yet, and what of that is held from before."""
        held = _held_by_queue(self._catch_up)
        ctx.effects += self._catch_up.objects(objects)
        for queue in resource_set.state.queues():
            queue.redelivered_below = objects.lsn
            if has_replicated_messages(queue):
                self._missing[queue.id] = (objects.lsn, held.get(queue.id, ()))
        self._asked: dict[int, int] = {}
        """By queue: up to which id a piece was asked for."""
        self._in_step = set(log.lineage.in_step)
        """Those who may have been asked."""
        log.catch_up = self._catch_up

    def ask(self) -> None:
        """For as many pieces as may be on the way."""
        for queue, (high, held) in self._missing.items():
            if len(self._asked) >= self._ctx.settings.chunks_ahead:
                return
            if queue not in self._asked:
                self._asked[queue] = high
                self._ctx.say(ChunkAsked(queue, high, held))

    def ask_others(self) -> None:
        """Ask again if one of those who may have been asked is in step no more. A second answer does no harm."""
        in_step = self._log.lineage.in_step
        if not self._in_step <= in_step:
            self._asked.clear()
            self.ask()
        if self._in_step != in_step:
            self._in_step = set(in_step)

    def chunk(self, frame: ChunkShown) -> None:
        """A piece. Raises FrameError, CatchUpError."""
        chunk = decode_shown(frame.data)
        if not isinstance(chunk, Chunk):
            raise FrameError(f"expected a Chunk, found {type(chunk).__name__}")
        if self._asked.get(chunk.queue) != chunk.high:
            return
        del self._asked[chunk.queue]
        self._catch_up.chunk(chunk)
        self._hold(chunk)
        _, held = self._missing.pop(chunk.queue)
        if not chunk.last:
            self._missing[chunk.queue] = (chunk.low - 1, _below(held, chunk.low))
        self.ask()

    def _hold(self, chunk: Chunk) -> None:
        """What members hold that have yielded the queue."""
        queue = self._ctx.resource_set.catalog.queues_by_id.get(chunk.queue)
        held = self._log.lineage.ownership.held(chunk.queue)
        if queue is not None and held:
            ids = sorted(number for number in held if chunk.low <= number <= chunk.high)
            for entry in queue.messages.find_all(ids):
                queue.messages.hold(entry, ELSEWHERE)

    def forget_deleted(self) -> None:
        """Queues that are gone need no messages."""
        there = self._ctx.resource_set.catalog.queues_by_id
        for queue in self._missing.keys() - there.keys():
            del self._missing[queue]
            self._asked.pop(queue, None)

    @property
    def is_done(self) -> bool:
        """No piece is missing."""
        return not self._missing

    def finish(self) -> None:
        """From here on this copy is as any other."""
        self._catch_up.finish()
        self._log.catch_up = None

    def abandon(self) -> None:
        """Put back what was set aside."""
        self._catch_up.abandon()
        self._log.catch_up = None


def common_with(ctx: GroupContext, shown: LineageShown, committed_lsn: int) -> int:
    """Up to where the own copy is the same as what is shown: what this member was told is committed, unless an operator
    had the group go on with an older copy. By then the generations differ."""
    if not shown.history:
        return committed_lsn
    own = LogHistory(ctx.resource_set.state, ()).entries()
    return min(committed_lsn, common_lsn(own, ctx.last_lsn, shown.history, EVERYTHING))


def show(ctx: GroupContext, lineage: Lineage, to: str, asked: JoinAsked) -> None:
    """Answer a JoinAsked where it is delivered."""
    objects = objects_frame(ctx.resource_set.state, lineage.record.generation, ctx.last_lsn)
    history = LogHistory(ctx.resource_set.state, ()).entries()
    ctx.say(
        lineage.shown(to, asked.instance, asked.number)._replace(history=history),
        ObjectsShown(to, asked.instance, asked.number, encode_shown(objects)),
    )


def show_chunk(ctx: GroupContext, lineage: Lineage, to: str, asked: ChunkAsked) -> None:
    """Answer a ChunkAsked where it is delivered. Of a queue that is gone by now there is nothing to show."""
    queue = ctx.resource_set.catalog.queues_by_id.get(asked.queue)
    if queue is not None:
        browser = ReplicatingBrowser(queue, asked.high, asked.held, with_annotations=True)
        settings = ctx.settings
        chunk = browser.next_chunk(lineage.record.generation, settings.chunk_messages, settings.chunk_bytes)
        ctx.say(ChunkShown(to, encode_shown(chunk)))


def _adopt(generations: list[tuple[int, GenerationStarted]], shown: LineageShown) -> None:
    """The group's generations that this log lacks: by them logs are compared when nobody is left to ask."""
    present = {lsn for lsn, _ in generations}
    for generation, primary, first_lsn in shown.history:
        if first_lsn not in present:
            started = GenerationStarted(generation, primary, shown.record.cluster, 0, False, MEMBERS_CHANGED)
            generations.append((first_lsn, started))
    generations.sort(key=lambda line: line[0])


def read_objects(frame: ObjectsShown) -> Objects:
    """Raises FrameError."""
    objects = decode_shown(frame.data)
    if not isinstance(objects, Objects):
        raise FrameError(f"expected Objects, found {type(objects).__name__}")
    return objects


def _held_by_queue(catch_up: CatchUp) -> dict[int, Ranges]:
    held: dict[int, Ranges] = {}
    for holdings in catch_up.holdings():
        held[holdings.queue] = held.get(holdings.queue, ()) + holdings.ranges
    return held


def _below(ranges: Iterable[tuple[int, int]], bound: int) -> Ranges:
    return tuple((first, min(last, bound - 1)) for first, last in ranges if first < bound)
