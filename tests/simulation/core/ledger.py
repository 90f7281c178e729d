"""The books: what was promised to clients and what they got, kept by somebody who knows nothing of replication.

Who must hold what was confirmed is not asked of the brokers: `Custody` has seen it. What was confirmed is compared with
what is there at the end, and whatever is missing needs an excuse that names who lost it, and by which fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import NamedTuple

from simulation.copies import UNIT_SIZES, Copy, copies_in, queued_copies
from simulation.core.node import Node
from simulation.custody import Custody, Generation, Holder, Loss, Process
from simulation.violations import Violation


class Terms(NamedTuple):
    """What a cluster promises, by its settings."""

    min_in_sync: int
    has_coordinator: bool
    has_store: bool = False
    are_numbered: bool = False
    """What was sent again is not queued again: any copy of a message stands for all of them."""
    delayed_every: int = 0
    """So many messages of a publisher apart, one is due later; 0: none is."""


def is_delayed(number: int, delayed_every: int) -> bool:
    """Whether the message with that number of a publisher is due later."""
    return delayed_every > 0 and number % delayed_every == 0


class Promise(NamedTuple):
    """Who held something when it was confirmed, and in which generation."""

    generation: int
    holders: tuple[Holder, ...]
    at_s: float
    is_durable: bool = True


UNNOTICED_S = 4.0
"""A primary that went on alone, and so looks at the record every two seconds, may believe for so long that nobody else
was recorded: the coordinator had confirmed that to it."""


class FalseRecord(NamedTuple):
    """The coordinator's record was put back at `at_s` to that of `since_s`, and is right again from `until_s`."""

    since_s: float
    at_s: float
    until_s: Callable[[], float]


class Excuse(NamedTuple):
    """Something that was confirmed is lost, and may be: each holder has lost it, or an operator gave it up."""

    loss: str
    reasons: tuple[str, ...]


class Ledger:
    """The promise: whatever contradicts what a client was told raises Violation, at once or in `check_end`.

    1. A confirmation had `min_in_sync` holders when it reached the client.
    2. What one holder still has is never lost, unless an operator gives it up.
    3. What all holders have lost is lost without a word only where nobody can know of it: with a coordinator the
       brokers refuse to go on, and an operator is asked.
    """

    def __init__(
        self, processes: Mapping[str, Node], custody: Custody, terms: Terms, now_s: Callable[[], float]
    ) -> None:
        self._nodes = processes
        self._custody = custody
        self._terms = terms
        self._now_s = now_s
        self._false_records: list[FalseRecord] = []
        self._promotions: list[tuple[float, frozenset[str]]] = []
        """When, and which brokers could have told then that a store was put back."""
        self.is_memory_damaged = False
        """A store or the coordinator's record was lost, or put back."""
        self.is_record_lost = False
        """The coordinator's record was emptied once."""
        self._may_have_begun_anew = False
        self.given_up_for: set[str] = set()
        """Whom an operator promotes by force at the moment, knowing that others may hold more."""
        self.confirmations: dict[Copy, list[Promise]] = {}
        self.settlements: dict[Copy, list[Promise]] = {}
        self._sent: dict[tuple[str, int], int] = {}
        self._accepting: set[Copy] = set()
        self._unmarked: dict[Copy, Promise] = {}
        """What was delivered as new, and who knew then that it might be: whoever leads next is to be one of those."""
        self._seen: set[Copy] = set()
        self._gone_at_s: dict[Copy, float] = {}
        """When a primary began without a confirmed copy."""
        self._in_sync: list[tuple[float, frozenset[str]]] = []
        """The in-sync sets of the newest primaries, and since when."""
        self._last_delivered: dict[tuple[str, str], int] = {}
        self._primaries: dict[tuple[str, int], Process] = {}
        self._led_since_s: dict[Process, float] = {}
        """When each process became primary last."""
        self._newest_confirmed = 0
        self._newest_started = 0
        self._has_incomplete_lineage = False
        self._objects: dict[str, tuple[int, bool, Promise | None]] = {}
        self._changes = 0
        self.excuses: list[Excuse] = []
        self.deliveries_total = 0

    # --- who is primary

    def _is_still_primary(self, process: Process) -> bool:
        node = self._nodes[process[0]]
        return node.is_up and node.process == process[1] and node.is_primary

    def _knows_another(self, node: Node, generation: int) -> bool:
        others = [each for each in self._nodes.values() if each is not node and each.is_up]
        return any(each.member.status.generation >= generation for each in others)

    def became_primary(self, node: Node) -> None:
        """At most one primary in a generation. A cluster that has lost all its memory is another one.

        With neither a coordinator nor a majority, nobody may be left who knows of a generation whose primary died.
        Nor where all who knew of it have died since, and their memory with them. Nor may anybody know of one that leads
        and cannot be asked, if the record was put back to what it was before that one was recorded.
        """
        key, process = (node.member.status.cluster, node.member.status.generation), (node.name, node.process)
        self._newest_started = max(self._newest_started, node.member.status.generation)
        contradicting = {other.name for other in self._nodes.values() if _may_contradict(other, node)}
        self._promotions.append((self._now_s(), frozenset(contradicting)))
        other = self._primaries.setdefault(key, process)
        settings = node.member.settings
        is_in_history = bool(node.member.history()[-1]["forced"])
        is_forced = is_in_history or node.name in self.given_up_for  # by an operator, who knows that nobody remembers
        can_be_forgotten = not self._terms.has_store or self.is_memory_damaged
        is_in_no_memory = can_be_forgotten and not self._knows_another(node, key[1])
        is_nobody_asked = not settings.has_coordinator and settings.min_in_sync == 1
        is_recorded = settings.has_coordinator and not self.is_memory_damaged
        may_forget = is_forced or is_nobody_asked or (is_in_no_memory and not is_recorded)
        is_over = may_forget and not self._is_still_primary(other)
        if other != process and (is_over or self._is_hidden(other, node)):
            self._primaries[key] = process
        elif other != process:
            raise Violation(f"{other} and {process} were both primary of generation {key[1]}")
        self._led_since_s[process] = self._now_s()
        self._has_incomplete_lineage |= is_in_history
        if node.name in self.given_up_for:
            self.give_up(node)
        if self.is_record_lost and len(node.member.history()) == 1:
            # Neither the record nor a broker knows that anything was there. Nobody may: what is kept is not excused.
            self._may_have_begun_anew = True
        self._note_what_is_gone(copies_in(node.resources.catalog))

    def _is_hidden(self, primary: Process, candidate: Node) -> bool:
        """Whether the candidate asked that one in vain, and was promoted by a record of before it that was put back."""
        led_since_s, now_s = self._led_since_s.get(primary, inf), self._now_s()
        return primary[0] in candidate.could_not_ask and any(
            record.since_s <= led_since_s <= record.at_s and now_s <= record.until_s() + UNNOTICED_S
            for record in self._false_records
        )

    def _note_what_is_gone(self, present: set[Copy]) -> None:
        for copy in self.confirmations:
            if self._is_there(copy, present):
                self._gone_at_s.pop(copy, None)
            else:
                self._gone_at_s.setdefault(copy, self._now_s())

    def in_sync_is(self, names: Iterable[str]) -> None:
        """The newest primary waits for these. Excuses who was left out, where that is no fault: see `_why_lost`."""
        in_sync = frozenset(names)
        if not self._in_sync or self._in_sync[-1][1] != in_sync:
            self._in_sync.append((self._now_s(), in_sync))

    def force(self, node: Node) -> None:
        """An operator is about to make `node` primary, or to let it go on, whatever others may hold."""
        if node.is_primary:
            self.give_up(node)
        else:
            self.given_up_for.add(node.name)

    def give_up(self, node: Node) -> None:
        """An operator promoted `node` by force: what it lacks was given up, and only that."""
        present, reason = copies_in(node.resources.catalog), (f"an operator promoted {node.name} by force",)
        for copy in [copy for copy in self.confirmations if not self._is_there(copy, present)]:
            del self.confirmations[copy]
            self.excuses.append(Excuse(f"{copy} was confirmed", reason))
        for copy in [copy for copy in self.settlements if copy in present]:
            del self.settlements[copy]
            self.excuses.append(Excuse(f"{copy} was settled", reason))
        for name, (change, exists, promise) in self._objects.items():
            if promise is not None and (name in node.resources.catalog.queues) != exists:
                self._objects[name] = change, exists, None
                self.excuses.append(Excuse(f"queue {name} was changed", reason))

    def _promise(self, what: str, holders: tuple[Holder, ...], node: Node, is_durable: bool = True) -> Promise:
        """Note who has it. Raises Violation when those are too few."""
        names = {holder.name for holder in holders}
        if len(names) < self._terms.min_in_sync:
            some = " and ".join(sorted(names)) or "nobody"
            raise Violation(
                f"{node.name} confirmed {what}, held by {some}: {self._terms.min_in_sync} brokers should have it"
            )
        return Promise(node.member.status.generation, holders, self._now_s(), is_durable)

    def _is_kept_by_somebody(self, promise: Promise) -> bool:
        losses = {holder: self._custody.loss(holder, promise.at_s) for holder in promise.holders}
        if None not in losses.values() or self._is_last_set_lost(promise, losses):
            return False
        return not self._is_a_copy_believed(promise) and not self._misled(promise)

    def _is_a_copy_believed(self, promise: Promise) -> bool:
        """Whether a holder's store was put back, and may lead, or have another one lead, where nobody contradicts.

        Without a coordinator, and with `min-in-sync` 1 or while those who hold it could not be asked, or were not in
        sync by their own logs.
        """
        losses = {holder.name: self._custody.loss(holder, promise.at_s) for holder in promise.holders}
        is_silent = any(loss is not None and loss.is_silent for loss in losses.values())
        if not is_silent or self._terms.has_coordinator:
            return False
        kept = {name for name, loss in losses.items() if loss is None}
        was_contradicted = all(kept & told for at_s, told in self._promotions if at_s > promise.at_s)
        return self._terms.min_in_sync == 1 or not was_contradicted

    def record_put_back(self, since_s: float, until_s: Callable[[], float]) -> None:
        """The coordinator's record is that of `since_s` again, until brokers write a new one."""
        self._false_records.append(FalseRecord(since_s, self._now_s(), until_s))

    @property
    def has_promises(self) -> bool:
        """Whether anything was confirmed to anybody that counts still."""
        made = any(promise is not None for _, _, promise in self._objects.values())
        return bool(made or self.confirmations or self.settlements)

    # --- publishers

    def sent(self, copy: Copy) -> None:
        self._sent[copy.publisher, copy.number] = copy.attempt

    def confirmed(self, copy: Copy, node: Node) -> None:
        """A publisher hears that `copy` is certain."""
        attempts = range(self._attempts(copy) + 1) if self._terms.are_numbered else (copy.attempt,)
        same = [copy._replace(attempt=attempt) for attempt in attempts]
        holders = {holder for each in same for holder in self._custody.holders_of(each)}
        if not self._accepting.isdisjoint(same):  # a consumer has it: who came later was never sent it
            holders |= {
                holder for each in same for promise in self.settlements.get(each, ()) for holder in promise.holders
            }
            promise = Promise(node.member.status.generation, tuple(sorted(holders)), self._now_s(), copy.durable)
        else:
            promise = self._promise(str(copy), tuple(sorted(holders)), node, copy.durable)
        self.confirmations.setdefault(copy, []).append(promise)
        self._check_stale(copy, promise, node)

    def _check_stale(self, copy: Copy, promise: Promise, node: Node) -> None:
        """Of two primaries only the newer one may confirm; the older only what the newer one has too.

        Or what it had recorded itself alone for, if that record was put back, and it had no time to notice.
        """
        generation = promise.generation
        if generation >= self._newest_confirmed:
            self._newest_confirmed = generation
            return
        if self._misled(promise):
            return
        for other in self._nodes.values():
            if other is node or not other.is_primary or other.member.status.generation <= generation:
                continue
            is_there = self._is_among(copy, copies_in(other.resources.catalog))
            if not is_there and not self._is_among(copy, self._accepting):
                raise Violation(f"{node.name} confirmed {copy} in generation {generation}; {other.name} has it not")

    def _is_among(self, copy: Copy, copies: set[Copy]) -> bool:
        if copy in copies or not self._terms.are_numbered:
            return copy in copies
        return any(copy._replace(attempt=attempt) in copies for attempt in range(self._attempts(copy) + 1))

    def _attempts(self, copy: Copy) -> int:
        return self._sent.get((copy.publisher, copy.number), copy.attempt)

    # --- consumers

    def delivered(self, copy: Copy, is_marked: bool, node: Node, mark_lsn: int) -> None:
        """`mark_lsn`: where the log says that it may have been, if it is not `is_marked`."""
        self.deliveries_total += 1
        if not is_marked:
            if copy in self._unmarked:
                self._check_mark(f"{node.name} delivered {copy} for the second time without saying so", copy, node)
            holders = self._holders_at(node, mark_lsn)
            self._unmarked[copy] = Promise(node.member.status.generation, holders, self._now_s())
        self._check_not_queued_again(copy, node)
        if copy in self._seen:
            self._check_not_settled(copy, node)
            return
        self._seen.add(copy)
        if copy.attempt or self._sent[copy.publisher, copy.number]:
            return
        if is_delayed(copy.number, self._terms.delayed_every):
            return  # what was published behind it comes first
        last = self._last_delivered.get((copy.publisher, copy.queue), -1)
        if node.member.status.generation < self._newest_started:
            return  # a primary that does not know yet that it is none: what it hands out, others hand out too
        if copy.number < last:
            raise Violation(f"{node.name} delivered {copy} after number {last}")
        self._last_delivered[copy.publisher, copy.queue] = copy.number

    def _check_mark(self, text: str, copy: Copy, node: Node) -> None:
        """Whether all who knew of the first delivery have lost that, or need not have been asked.

        That is where a broker that was dropped does not hear of it, and is promoted beside those who went on.
        """
        promise = self._unmarked[copy]
        kept = {holder.name for holder in promise.holders if self._custody.loss(holder, promise.at_s) is None}
        is_dropped_unasked = not (self._terms.has_coordinator or kept & {node.name, *node.member.status.members})
        if not (is_dropped_unasked and self._terms.min_in_sync == 1):
            self._excuse_or_raise(text, [promise])

    def _check_not_settled(self, copy: Copy, node: Node) -> None:
        for promise in self.settlements.get(copy, ()):
            if promise.generation <= node.member.status.generation and not self._misled(promise):
                self._why_lost(f"{node.name} delivered {copy}, whose settlement was confirmed", promise)

    def _check_not_queued_again(self, copy: Copy, node: Node) -> None:
        """Of a numbered message no other copy was done with before."""
        if self._terms.are_numbered and not self._has_incomplete_lineage:
            for attempt in range(self._attempts(copy) + 1):
                if attempt != copy.attempt:
                    self._check_not_settled(copy._replace(attempt=attempt), node)

    def accepting(self, copy: Copy) -> None:
        self._accepting.add(copy)

    def settled(self, copy: Copy, node: Node, lsn: int) -> None:
        """A consumer's acceptance, in the log at `lsn`, is certain."""
        promise = self._promise(f"the settlement of {copy}", self._holders_at(node, lsn), node)
        self.settlements.setdefault(copy, []).append(promise)
        self._newest_confirmed = max(self._newest_confirmed, promise.generation)

    def _holders_at(self, node: Node, lsn: int) -> tuple[Holder, ...]:
        return self._custody.holders_at(Generation(node.member.status.cluster, node.member.status.generation), lsn)

    # --- configuration

    def object_changing(self, name: str, exists: bool) -> int:
        """Somebody makes or deletes a queue; returns the number of the change."""
        self._changes += 1
        self._objects[name] = self._changes, exists, None
        return self._changes

    def object_changed(self, name: str, change: int, node: Node, lsn: int) -> None:
        """It was confirmed; which matters if nothing was tried since."""
        newest, exists, _ = self._objects.get(name, (0, False, None))
        if newest == change:
            promise = self._promise(f"a change of queue {name}", self._holders_at(node, lsn), node)
            self._objects[name] = change, exists, promise

    # --- the end

    def check_end(self, primary: Node, backups: Iterable[Node] = ()) -> None:
        """Compare what was promised with what is there, on all brokers at rest."""
        queued = queued_copies(primary.resources.catalog)
        self._check_order(queued)
        for backup in backups:
            if queued_copies(backup.resources.catalog) != queued:
                raise Violation(
                    f"{backup.name} is at rest and holds other messages than {primary.name}, or in other order"
                )
        present = {copy for copies in queued.values() for copy in copies}
        for copy, promises in self.confirmations.items():
            if not self._is_there(copy, present):
                gone_at_s = self._gone_at_s.get(copy, self._now_s())
                self._excuse_or_raise(f"{copy} was confirmed and is gone", promises, gone_at_s)
        for copy, promises in self.settlements.items():
            if copy in present:
                self._excuse_or_raise(f"{copy} was settled and is there again", promises)
        self._check_units(present)
        self._check_numbers(present)
        for name, (_, exists, promise) in self._objects.items():
            if promise is not None and (name in primary.resources.catalog.queues) != exists:
                self._excuse_or_raise(f"queue {name} should {'' if exists else 'not '}exist", [promise])

    def _is_there(self, copy: Copy, present: set[Copy]) -> bool:
        """In a queue, or a consumer has it."""
        return self._is_among(copy, present) or self._is_among(copy, self._accepting)

    def _check_order(self, queued: Mapping[str, list[Copy]]) -> None:
        """No copy is there twice; of what a publisher has sent equally often, the earlier stands before the later."""
        copies = [copy for queue in queued.values() for copy in queue]
        if len(set(copies)) < len(copies):
            twice = sorted(copy for copy in set(copies) if copies.count(copy) > 1)
            raise Violation(f"in the queues more than once: {twice}")
        for name, queue in queued.items():
            last: dict[tuple[str, int], int] = {}
            for copy in queue:
                if copy.queue != name or copy.number < last.get((copy.publisher, copy.attempt), -1):
                    raise Violation(f"{copy} is out of order in queue {name}: {queue}")
                last[copy.publisher, copy.attempt] = copy.number

    def _excuse_or_raise(self, text: str, promises: Iterable[Promise], gone_at_s: float = inf) -> None:
        reasons: list[str] = []
        for promise in promises:
            reasons += self._misled(promise) or self._why_lost(text, promise, gone_at_s)
        self.excuses.append(Excuse(text, tuple(reasons)))

    def _misled(self, promise: Promise) -> list[str]:
        """Whether the coordinator had forgotten who was in sync then, and could not know that it had."""
        return [
            f"the record of {record.since_s:.1f} s was put back at {record.at_s:.1f} s"
            for record in self._false_records
            if record.since_s <= promise.at_s <= max(record.until_s(), record.at_s + UNNOTICED_S)
        ]

    def _why_lost(self, text: str, promise: Promise, gone_at_s: float = inf) -> list[str]:
        """Each holder's loss. Raises Violation where there is none, or where the brokers should have noticed."""
        losses = {holder: self._custody.loss(holder, promise.at_s) for holder in promise.holders}
        kept = [holder for holder, loss in losses.items() if loss is None]
        reasons = [f"{holder}: {loss.cause}" for holder, loss in losses.items() if loss is not None]
        is_silent = any(loss.is_silent for loss in losses.values() if loss is not None)
        # What is not durable goes with the last process in sync, though one that was dropped may have it still.
        is_memory = self._terms.has_store and not promise.is_durable
        binding = [each for each in kept if not (is_memory and self._was_dropped(each, promise.at_s, gone_at_s))]
        is_unknown = self._is_a_copy_believed(promise) or self._is_last_set_lost(promise, losses)
        if not reasons or (binding and not is_unknown):
            raise Violation(
                f"{text}, confirmed at {promise.at_s:.2f} s in generation {promise.generation}:"
                f" {' and '.join(map(str, kept))} has it"
            )
        if self._can_be_noticed(promise) and not is_silent:
            raise Violation(f"{text}, and no operator was asked: {promise}; {reasons}")
        return reasons

    def _is_last_set_lost(self, promise: Promise, losses: Mapping[Holder, Loss | None]) -> bool:
        """Whether all who were in sync before a promotion have lost it, where nobody else can know that they had it.

        With neither a coordinator nor a majority a broker that was dropped does not know of it, and any may be
        promoted once nobody of the last in-sync set is left: one that was dropped earlier than another, too.
        """
        if self._terms.has_coordinator or self._terms.min_in_sync > 1:
            return False
        kept = {holder.name for holder, loss in losses.items() if loss is None}
        lost = {holder.name for holder in losses} - kept
        last_sets = (
            [in_sync for begin_s, in_sync in self._in_sync if begin_s < at_s][-1:]
            for at_s, _ in self._promotions
            if at_s > promise.at_s
        )
        return any(in_sync <= lost for last in last_sets for in_sync in last)

    def _was_dropped(self, holder: Holder, since_s: float, until_s: float) -> bool:
        """Whether the newest primary did not wait for that broker at some time between."""
        ends_s = [begin_s for begin_s, _ in self._in_sync[1:]] + [inf]
        return any(
            begin_s < until_s and end_s > since_s and holder.name not in in_sync
            for (begin_s, in_sync), end_s in zip(self._in_sync, ends_s, strict=True)
        )

    def _can_be_noticed(self, promise: Promise) -> bool:
        """Whether brokers can tell that all who held it have lost it: a coordinator's record names those.

        What was not durable is gone with the processes, whatever the record says.
        """
        if self._may_have_begun_anew or not self._terms.has_coordinator:
            return False
        return promise.is_durable or not self._terms.has_store

    def _check_numbers(self, present: set[Copy]) -> None:
        """No numbered message was queued twice; an operator's force forgets the numbers."""
        if not self._terms.are_numbered or self._has_incomplete_lineage:
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
        for copy in sorted(
            copy for copy in present | kept if copy.unit and (copy.durable or not self._terms.has_store)
        ):
            first, count = divmod(copy.unit, UNIT_SIZES)
            numbers = known[copy.publisher, copy.unit, copy.attempt]
            if numbers != set(range(first, first + count)):
                if self._has_incomplete_lineage:  # an operator promoted a broker in the middle of its catch-up
                    self.excuses.append(
                        Excuse(f"a transaction of {copy.publisher} is there in part", ("an operator's force",))
                    )
                    return
                raise Violation(
                    f"of {count} messages of {copy.publisher} from {first} on, in a transaction, there is {numbers}"
                )


def _may_contradict(other: Node, candidate: Node) -> bool:
    """Whether it can be asked, and is in sync by its own log, or knows a set without the candidate.

    Who was dropped, and is in the middle of a comparison perhaps, takes it that the one in sync holds more; unless it
    was told of a commit that the candidate lacked when it was promoted.
    """
    if not other.is_up or other.is_paused:
        return False
    answer, history = other.member.answer(), candidate.member.status.history
    members = answer.members
    defers = candidate.name in members and other.name not in members
    before = (history[-2].generation if len(history) > 1 else 0), history[-1].first_lsn - 1
    return not defers or (answer.committed_generation, answer.committed_lsn) > before
