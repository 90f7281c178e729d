"""The books: what was promised to clients and what they got, kept by somebody who knows nothing of replication.

A *copy* is a message as a publisher sent it once; sent again after a failure it is another copy of the same message,
which a receiver can tell by the attempt in it. What was confirmed is compared with what is there at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from qpid_ha_broker.ha.states import State as MemberState
from qpid_ha_broker.model.state import State as Content
from simulation.node import Node, Violation

UNIT_SIZES = 4


class Copy(NamedTuple):
    """A message as it was sent once.

    `unit` says of which transaction it is part: the number of the first, times `UNIT_SIZES`, plus how many; 0: of none.
    """

    publisher: str
    number: int
    attempt: int
    queue: str
    unit: int
    durable: bool = True

    def payload(self) -> bytes:
        how = "" if self.durable else " transient"
        return f"{self.publisher} {self.number} {self.attempt} {self.queue} {self.unit}{how}".encode()

    @staticmethod
    def read(payload: bytes) -> Copy:
        publisher, number, attempt, queue, unit, *how = payload.decode().split()
        return Copy(publisher, int(number), int(attempt), queue, int(unit), not how)

    def again(self) -> Copy:
        return self._replace(attempt=self.attempt + 1)


Process = tuple[str, int]


class Promise(NamedTuple):
    """Who was in sync when something was confirmed, and in which generation."""

    generation: int
    holders: tuple[Process, ...]
    is_stored: bool = False
    """They have it on their disks: a new process has it, too."""


class Ledger:
    """The promise: whatever contradicts what a client was told raises Violation, at once or in `check_end`.

    With stores, what is durable is never excused: every disk comes back.
    """

    def __init__(self, processes: Mapping[str, Node], has_store: bool = False, are_numbered: bool = False) -> None:
        self._nodes = processes
        self._has_store = has_store
        self._are_numbered = are_numbered
        """What was sent again is not queued again: any copy of a message stands for all of them."""
        self.confirmations: dict[Copy, list[Promise]] = {}
        self.settlements: dict[Copy, list[Promise]] = {}
        self._sent: dict[tuple[str, int], int] = {}
        self._accepting: set[Copy] = set()
        self._unmarked: set[Copy] = set()
        self._seen: set[Copy] = set()
        self._last_delivered: dict[tuple[str, str], int] = {}
        self._primaries: dict[tuple[str, int], Process] = {}
        self._in_sync: dict[Process, dict[str, int]] = {}
        self._newest_confirmed = 0
        self._newest_started = 0
        self._has_incomplete_lineage = False
        self._objects: dict[str, tuple[int, bool, Promise | None]] = {}
        self._changes = 0
        self.excused_total = 0
        self.deliveries_total = 0

    # --- who is primary

    def _is_still_primary(self, process: Process) -> bool:
        node = self._nodes[process[0]]
        return node.is_up and node.process == process[1] and node.is_primary

    def _knows_another(self, node: Node, generation: int) -> bool:
        others = [each for each in self._nodes.values() if each is not node and each.is_up]
        return any(each.member.generation >= generation for each in others)

    def became_primary(self, node: Node) -> None:
        """At most one primary in a generation. A cluster that has lost all its memory is another one.

        With neither a coordinator nor a majority, nobody may be left who knows of a generation whose primary died.
        Nor where all who knew of it have died since, and their memory with them.
        """
        key, process = (node.member.cluster, node.member.generation), (node.name, node.process)
        self._has_incomplete_lineage |= bool(node.member.history()[-1]["forced"])
        self._newest_started = max(self._newest_started, node.member.generation)
        other = self._primaries.setdefault(key, process)
        settings = node.member.settings
        is_forced = bool(node.member.history()[-1]["forced"])  # by an operator, who knows that nobody remembers
        is_in_no_memory = not self._has_store and not self._knows_another(node, key[1])
        may_forget = is_forced or (not settings.has_coordinator and (settings.min_in_sync == 1 or is_in_no_memory))
        if other != process and may_forget and not self._is_still_primary(other):
            self._primaries[key] = process
        elif other != process:
            raise Violation(f"{other} and {process} were both primary of generation {key[1]}")

    def observe(self, primary: Node) -> dict[str, int]:
        """The processes in sync with a primary: a name in the set may stand for one that died, until it is noticed."""
        before = self._in_sync.get((primary.name, primary.process), {})
        now = {name: self._process_behind(self._nodes[name], before.get(name)) for name in primary.member.members}
        self._in_sync[primary.name, primary.process] = now
        return now

    def _process_behind(self, node: Node, known: int | None) -> int:
        if known is None:
            has_memory = not node.is_up or (node.was_level if self._has_store else node.member.generation > 0)
            return node.process if has_memory else node.process - 1
        return node.process if node.is_up and node.member.state is MemberState.READY else known

    def _promise(self, node: Node, is_durable: bool = True) -> Promise:
        is_stored = self._has_store and is_durable
        return Promise(node.member.generation, tuple(self.observe(node).items()), is_stored)

    def _is_kept_by_somebody(self, promise: Promise) -> bool:
        """Whether one of those who were in sync still lives, with its memory."""
        return promise.is_stored or any(
            self._nodes[name].is_up and self._nodes[name].process == process for name, process in promise.holders
        )

    @property
    def has_promises(self) -> bool:
        """Whether anything was confirmed to anybody that counts still."""
        made = any(promise is not None for _, _, promise in self._objects.values())
        return bool(made or self.confirmations or self.settlements)

    def excuse_everything(self) -> None:
        """An operator overrode a refusal: what had been promised before may be lost."""
        self.excused_total += len(self.confirmations) + len(self.settlements)
        self.confirmations.clear()
        self.settlements.clear()
        self._objects.clear()

    def excuse_transient(self) -> None:
        """All processes that were in sync last are gone, and with them what was on nobody's disk."""
        for copy in [copy for copy in self.confirmations if not copy.durable]:
            del self.confirmations[copy]

    # --- publishers

    def sent(self, copy: Copy) -> None:
        self._sent[copy.publisher, copy.number] = copy.attempt

    def confirmed(self, copy: Copy, node: Node) -> None:
        promise = self._promise(node, copy.durable)
        self.confirmations.setdefault(copy, []).append(promise)
        self._check_stale(copy, promise.generation, node, should_be_there=True)

    def _check_stale(self, copy: Copy, generation: int, node: Node, *, should_be_there: bool) -> None:
        """Of two primaries only the newer one may confirm; the older only what the newer one has too."""
        if generation >= self._newest_confirmed:
            self._newest_confirmed = generation
            return
        for other in self._nodes.values():
            if other is node or not other.is_primary or other.member.generation <= generation:
                continue
            is_there = self._is_among(copy, copies_in(other.resources.state))
            if should_be_there and not is_there and not self._is_among(copy, self._accepting):
                raise Violation(f"{node.name} confirmed {copy} in generation {generation}; {other.name} has it not")

    def _is_among(self, copy: Copy, copies: set[Copy]) -> bool:
        if copy in copies or not self._are_numbered:
            return copy in copies
        return any(copy._replace(attempt=attempt) in copies for attempt in range(self._attempts(copy) + 1))

    def _attempts(self, copy: Copy) -> int:
        return self._sent.get((copy.publisher, copy.number), copy.attempt)

    # --- consumers

    def delivered(self, copy: Copy, is_marked: bool, node: Node) -> None:
        self.deliveries_total += 1
        if not is_marked:
            if copy in self._unmarked:
                raise Violation(f"{node.name} delivered {copy} for the second time without saying so")
            self._unmarked.add(copy)
        self._check_not_queued_again(copy, node)
        if copy in self._seen:
            self._check_not_settled(copy, node)
            return
        self._seen.add(copy)
        if copy.attempt or self._sent[copy.publisher, copy.number]:
            return
        last = self._last_delivered.get((copy.publisher, copy.queue), -1)
        if node.member.generation < self._newest_started:
            return  # a primary that does not know yet that it is none: what it hands out, others hand out too
        if copy.number < last:
            raise Violation(f"{node.name} delivered {copy} after number {last}")
        self._last_delivered[copy.publisher, copy.queue] = copy.number

    def _check_not_settled(self, copy: Copy, node: Node) -> None:
        for promise in self.settlements.get(copy, ()):
            if promise.generation <= node.member.generation and self._is_kept_by_somebody(promise):
                raise Violation(f"{node.name} delivered {copy}, whose settlement was confirmed: {promise}")

    def _check_not_queued_again(self, copy: Copy, node: Node) -> None:
        """Of a numbered message no other copy was done with before."""
        if self._are_numbered and not self._has_incomplete_lineage:
            for attempt in range(self._attempts(copy) + 1):
                if attempt != copy.attempt:
                    self._check_not_settled(copy._replace(attempt=attempt), node)

    def accepting(self, copy: Copy) -> None:
        self._accepting.add(copy)

    def settled(self, copy: Copy, node: Node) -> None:
        promise = self._promise(node)
        self.settlements.setdefault(copy, []).append(promise)
        self._newest_confirmed = max(self._newest_confirmed, promise.generation)

    # --- configuration

    def object_changing(self, name: str, exists: bool) -> int:
        """Somebody makes or deletes a queue; returns the number of the change."""
        self._changes += 1
        self._objects[name] = self._changes, exists, None
        return self._changes

    def object_changed(self, name: str, change: int, node: Node) -> None:
        """It was confirmed; which matters if nothing was tried since."""
        newest, exists, _ = self._objects.get(name, (0, False, None))
        if newest == change:
            self._objects[name] = change, exists, self._promise(node)

    # --- the end

    def check_end(self, primary: Node) -> None:
        """Compare what was promised with what is there."""
        present = copies_in(primary.resources.state)
        for copy, promises in self.confirmations.items():
            if self._is_among(copy, present) or self._is_among(copy, self._accepting):
                continue
            self._excuse_or_raise(f"{copy} was confirmed and is gone", promises)
        for copy, promises in self.settlements.items():
            if copy in present:
                self._excuse_or_raise(f"{copy} was settled and is there again", promises)
        self._check_units(present)
        self._check_numbers(present)
        for name, (_, exists, promise) in self._objects.items():
            if promise is not None and (name in primary.resources.state.queues) != exists:
                self._excuse_or_raise(f"queue {name} should {'' if exists else 'not '}exist", [promise])

    def _excuse_or_raise(self, text: str, promises: Iterable[Promise]) -> None:
        for promise in promises:
            if self._is_kept_by_somebody(promise):
                raise Violation(f"{text}: {promise}")
        self.excused_total += 1

    def _check_numbers(self, present: set[Copy]) -> None:
        """No numbered message was queued twice; an operator's force forgets the numbers."""
        if not self._are_numbered or self._has_incomplete_lineage:
            return
        kept = {copy for copy, made in self.settlements.items() if any(map(self._is_kept_by_somebody, made))}
        queued: dict[tuple[str, int], set[Copy]] = {}
        for copy in present | kept:
            queued.setdefault((copy.publisher, copy.number), set()).add(copy)
        for copies in queued.values():
            if len(copies) > 1:
                raise Violation(f"a numbered message was queued more than once: {sorted(copies)}")

    def _check_units(self, present: set[Copy]) -> None:
        """A transaction is there as a whole or not at all."""
        kept = {copy for copy, made in self.settlements.items() if any(map(self._is_kept_by_somebody, made))}
        known: dict[tuple[str, int, int], set[int]] = {}
        for copy in present | kept | self._accepting:
            known.setdefault((copy.publisher, copy.unit, copy.attempt), set()).add(copy.number)
        for copy in sorted(copy for copy in present | kept if copy.unit and (copy.durable or not self._has_store)):
            first, count = divmod(copy.unit, UNIT_SIZES)
            numbers = known[copy.publisher, copy.unit, copy.attempt]
            if numbers != set(range(first, first + count)):
                if self._has_incomplete_lineage:  # an operator promoted a broker in the middle of its catch-up
                    self.excused_total += 1
                    return
                raise Violation(
                    f"of {count} messages of {copy.publisher} from {first} on, in a transaction, there is {numbers}"
                )


def copies_in(content: Content) -> set[Copy]:
    """All messages of publishers, wherever they are."""
    return {
        Copy.read(payload)
        for queue in content.queues.values()
        for entry in queue.entries()
        if (payload := entry.content().payload) != b"?"
    }
