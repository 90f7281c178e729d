"""After a crash of everything: which store holds all that was confirmed? One pure function, and its reasons.

It is the promotion verdict (`ha.verdict`) without anybody to ask. A member of the in-sync set I holds all that was
confirmed under I; and I is replaced only by a set that one of its members has written into its own log. So when all
members of the newest I that any log tells of are here, and none tells of a newer one, there is none: the furthest of
them is the answer, provably. When one is missing, it may have gone on without the others, and only an operator can say.
A set that is in a log and was never confirmed may have been refused: then the members of the one before it count, too.

Stores that were all put back from a copy look like that, too. A coordinator's record tells them apart, if there is one.

docs/runbooks/total-crash.md#how-it-judges has the rules as a table. Source: seed 000, LM6 and "Interaction with the
store".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import LogPosition
from qpid_ha_broker.ha.history import common_lsn
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.advice import Option, choose_commands, forced_option, start_commands
from qpid_ha_broker.store.facts import StoreFacts, set_of


class Standing(StrEnum):
    """What a store is to the verdict."""

    BEST = "best"
    BEHIND = "behind"
    """In the in-sync set, and not the furthest: what it lacks was never confirmed."""
    OUTSIDE = "outside"
    """Not in the newest in-sync set: it may lack what was confirmed."""
    OLD = "old"
    """Its log ends before the newest in-sync set."""
    FORKED = "forked"
    """Holds confirmed events that the others lack."""
    DAMAGED = "damaged"
    EMPTY = "empty"
    COPY = "copy"
    """Another store of the same broker is further."""
    STRANGER = "stranger"
    """Of another cluster, or another set."""
    MISSING = "missing"


class Reason(NamedTuple):
    """A line of the explanation. `where` is empty for a store that is not here."""

    broker: str
    where: str
    standing: Standing
    text: str


class Doubt(StrEnum):
    """What an operator has to decide, because the stores cannot."""

    NO_STORES = "no stores"
    CLUSTERS = "two clusters"
    MISSING = "member missing"
    NO_MEMBER = "no member readable"
    FORK = "fork"
    OLD_STORES = "older than the record"


@dataclass(frozen=True)
class Winner:
    """The store to begin with. `is_safe`: it holds all that was ever confirmed; else an operator answers for it."""

    store: StoreFacts
    text: str
    reasons: tuple[Reason, ...]
    is_safe: bool
    next_commands: tuple[str, ...]


@dataclass(frozen=True)
class Equal:
    """Any of these: they hold the same. The commands name the first."""

    stores: tuple[StoreFacts, ...]
    text: str
    reasons: tuple[Reason, ...]
    next_commands: tuple[str, ...]


@dataclass(frozen=True)
class Admin:
    """Somebody has to decide; `options` in the order in which they should be thought of."""

    doubt: Doubt
    question: str
    reasons: tuple[Reason, ...]
    options: tuple[Option, ...]
    missing: tuple[str, ...] = ()


Verdict = Winner | Equal | Admin


def best(stores: Sequence[StoreFacts], record: ClusterRecord | None = None) -> Verdict:
    """Which of these stores a cluster may begin with again. `record`: what its coordinator says, if it can be asked."""
    family, strangers = _family(stores)
    if family is None:
        return _two_clusters(stores)
    kept, copies = _one_each(family)
    verdict = _judge(kept)
    if record is not None:
        verdict = _beside(record, verdict, kept)
    return replace(verdict, reasons=(*verdict.reasons, *copies, *strangers))


def choose(stores: Sequence[StoreFacts], name: str, text: str) -> Winner | None:
    """The store of the broker `name`, because an operator says so; None when no such store can be loaded."""
    readable = [store for store in stores if store.broker == name and store.is_readable]
    if not readable:
        return None
    store = max(readable, key=_furthest)
    return Winner(store, text, (_reason(store, Standing.BEST, text),), False, start_commands(stores, store))


def leading(stores: Sequence[StoreFacts]) -> StoreFacts:
    """Whose log counts, as far as these stores of one cluster tell: the furthest member's of the newest in-sync set.

    It may lack what was confirmed: that `best` says.
    """
    return _Case.of(stores).best


def _beside(record: ClusterRecord, verdict: Verdict, stores: Sequence[StoreFacts]) -> Verdict:
    """The verdict, unless the promotion verdict (`ha.verdict`) would refuse its store because of the record."""
    if isinstance(verdict, Admin):
        return verdict
    chosen = verdict.store if isinstance(verdict, Winner) else verdict.stores[0]
    if record.cluster and chosen.cluster and record.cluster != chosen.cluster:
        return verdict  # it is not the record of these
    whose = "coordinator's record" if set_of(chosen) == DEFAULT_SET else "record in the cluster map"
    if chosen.generation > record.generation:
        is_empty = "is empty" if not record.generation else f"knows no more than generation {record.generation}"
        text = f"{verdict.text} The {whose} {is_empty}: it was lost, so the promotion has to be forced."
        commands = (*verdict.next_commands[:1], *start_commands(stores, chosen, force=True))
        return replace(verdict, text=text, next_commands=commands)
    knows = (chosen.generation, chosen.epoch) >= (record.generation, record.epoch)
    # Whoever is recorded and died before its first event has on disk that it wanted that generation.
    wanted = [store for store in stores if store.broker == record.primary and store.generation < record.generation]
    if knows or (record.claimed and any(record.generation in store.claims for store in wanted)):
        return verdict
    question = (
        f"The {whose} says generation {record.generation}, epoch {record.epoch}, led by {record.primary},"
        f" and no store here goes further than generation {chosen.generation}, epoch {chosen.epoch}. They were put back"
        " from a copy, or the newer ones are not here. Can those be had?"
    )
    wait = Option("Bring the newer stores here, and ask again", (_ask_again(stores, record.members),))
    forced = forced_option(stores, chosen, _loss(chosen), is_member=False)
    return Admin(Doubt.OLD_STORES, question, verdict.reasons, (wait, forced))


def _family(stores: Sequence[StoreFacts]) -> tuple[list[StoreFacts] | None, list[Reason]]:
    """The stores of the cluster that most of them are of, and why others are left out; None: no cluster has most."""
    owners = Counter((store.cluster, store.set) for store in stores if store.cluster)
    ranked = owners.most_common(2)
    if len(ranked) > 1 and ranked[0][1] == ranked[1][1]:
        return None, []
    owner = ranked[0][0] if ranked else ("", "")
    family = [store for store in stores if not store.cluster or (store.cluster, store.set) == owner]
    strangers = [
        _reason(store, Standing.STRANGER, f"is of the cluster {store.cluster}, set {store.set or 'default'}")
        for store in stores
        if store not in family
    ]
    return family, strangers


def _two_clusters(stores: Sequence[StoreFacts]) -> Admin:
    owners = dict.fromkeys((store.cluster, store.set) for store in stores if store.cluster)
    reasons = tuple(
        _reason(store, Standing.STRANGER, f"is of the cluster {store.cluster or 'none'}") for store in stores
    )
    groups = [[store for store in stores if (store.cluster, store.set) == owner] for owner in owners]
    return _several(stores, reasons, groups)


def _several(
    stores: Sequence[StoreFacts], reasons: tuple[Reason, ...], groups: Sequence[Sequence[StoreFacts]]
) -> Admin:
    options = tuple(
        Option(
            f"only {', '.join(store.label for store in group)}",
            ("qpid-ha store best " + " ".join(store.where for store in group),),
        )
        for group in groups
    )
    question = f"These {len(stores)} stores are not of one cluster. Which of them are meant?"
    return Admin(Doubt.CLUSTERS, question, reasons, options)


def _one_each(stores: Iterable[StoreFacts]) -> tuple[list[StoreFacts], list[Reason]]:
    """Of several stores of one broker the furthest: a copy is as old as it is."""
    kept: dict[str, StoreFacts] = {}
    copies = []
    for store in sorted(stores, key=_furthest, reverse=True):
        if store.broker and store.broker in kept:
            copies.append(_reason(store, Standing.COPY, f"is a copy: {kept[store.broker].where} is as far, or further"))
        else:
            kept[store.broker or store.where] = store
    return sorted(kept.values(), key=lambda store: store.label), copies


def _furthest(store: StoreFacts) -> tuple[bool, bool, LogPosition]:
    """A store that cannot be read comes last, and after it only one in which there is nothing."""
    return not store.is_empty, store.is_readable, store.position


def _judge(stores: Sequence[StoreFacts]) -> Verdict:
    filled = [store for store in stores if not store.is_empty]
    if not filled:
        return _nothing(stores)
    if not any(store.generation for store in filled):
        return _standalone(filled)
    case = _Case.of(stores)
    if not case.candidates:
        return case.no_member()
    if case.forked:
        return case.fork()
    if case.missing and not case.is_clean:
        return case.member_missing()
    return case.answer()


def _nothing(stores: Sequence[StoreFacts]) -> Verdict:
    reasons = tuple(_reason(store, Standing.EMPTY, "holds nothing") for store in stores)
    if not stores:
        question = "No store was given, or none could be reached. Where are they?"
        return Admin(Doubt.NO_STORES, question, reasons, ())
    text = "All of these are empty: there is nothing to lose."
    return Equal(tuple(stores), text, reasons, start_commands(stores, stores[0]))


def _standalone(stores: Sequence[StoreFacts]) -> Verdict:
    """A broker that was in no cluster has nobody to be compared with."""
    reasons = tuple(_reason(store, Standing.BEST, "was in no cluster, or never had a primary") for store in stores)
    if len(stores) == 1:
        text = "It is the store of a broker that was alone: there is no other to compare it with."
        return Winner(stores[0], text, reasons, True, start_commands(stores, stores[0])[:-1])
    return _several(stores, reasons, [[store] for store in stores])


class _Case:
    """Stores of one cluster, one for each broker, of which at least one holds something."""

    def __init__(self, stores: Sequence[StoreFacts], newest: StoreFacts) -> None:
        self.stores = stores
        self.key = (newest.generation, newest.epoch)
        self.members = newest.members
        self.set_text = f"generation {newest.generation}, epoch {newest.epoch}: {', '.join(newest.members) or 'nobody'}"
        at_newest = [store for store in stores if (store.generation, store.epoch) == self.key]
        of_members = [store for store in at_newest if store.is_readable and store.broker in store.members]
        self.candidates = sorted(of_members, key=lambda store: (-store.last_lsn, store.label))
        self.best = self.candidates[0] if self.candidates else newest
        self.forked = [store for store in stores if self._is_forked(store)]
        # All of the set acknowledged it: whoever does not have it any more is a copy from before.
        self.is_set_confirmed = any(store.is_set_confirmed for store in at_newest)
        # A set that nobody confirmed may have been refused, because another primary was recorded: ask those of the
        # set before as well.
        before = set() if self.is_set_confirmed else {name for store in at_newest for name in store.members_before}
        self.asked = (*self.members, *sorted(before - set(self.members)))
        self.missing = tuple(name for name in self.asked if not self._speaks_for(name))

    def _is_forked(self, store: StoreFacts) -> bool:
        """The store says that something was confirmed which the best one lacks, or calls another set by the name."""
        shared = common_lsn(store.history, store.last_lsn, self.best.history, self.best.last_lsn)
        has_same_name = (store.generation, store.epoch) == self.key and store.is_readable
        return store.confirmed_lsn > shared or (has_same_name and self._names_another(store))

    def _names_another(self, store: StoreFacts) -> bool:
        return (store.history, store.members) != (self.best.history, self.best.members)

    def _speaks_for(self, name: str) -> bool:
        """The store of the member is here, and whatever its broker did is in it."""
        return any(store.broker == name and store.is_readable and not self._is_old(store) for store in self.stores)

    def _is_old(self, store: StoreFacts) -> bool:
        lacks_set = (store.generation, store.epoch) < self.key
        return store.is_empty or (lacks_set and self.is_set_confirmed)

    @property
    def is_clean(self) -> bool:
        """All that are here were shut down together, level: then those that are not here hold nothing else."""
        return bool(self.best.clean) and all(
            store.clean == self.best.clean and store.is_readable for store in self.stores if not store.is_empty
        )

    @classmethod
    def of(cls, stores: Sequence[StoreFacts]) -> _Case:
        """With what the newest of them says."""
        filled = [store for store in stores if not store.is_empty] or stores
        newest = max(filled, key=lambda store: (store.generation, store.epoch, store.is_readable, store.last_lsn))
        return cls(stores, newest)

    # --- the answers

    def answer(self) -> Winner | Equal:
        """Every member has been heard."""
        level = tuple(store for store in self.candidates if store.last_lsn == self.best.last_lsn)
        held = f"Every member of the last in-sync set ({self.set_text}) is here"
        if self.missing:
            held = f"All of these were shut down together ({self.best.clean})"
        commands = choose_commands(self.stores, self.best)
        if len(level) > 1:
            names = ", ".join(store.label for store in level)
            return Equal(level, f"{held}, and {names} hold the same. Nothing that was confirmed is lost.",
                         self.reasons(level), commands)  # fmt: skip
        text = f"{held}, and {self.best.label} is the furthest. Nothing that was confirmed is lost."
        return Winner(self.best, text, self.reasons(level), True, commands)

    def member_missing(self) -> Admin:
        """The usual question: wait for the missing store, or go on without it?"""
        names = ", ".join(self.missing)
        question = (
            f"{names} may have been in sync at the end (the last set that is known is {self.set_text}), and cannot be"
            f" asked. It may have gone on without the others: then what it confirmed after {_position(self.best)} would"
            " be lost. Can its store be had?"
        )
        wait = Option(
            f"Wait for {names}: bring that store here, and ask again", (_ask_again(self.stores, self.missing),)
        )
        forced = [forced_option(self.stores, self.best, _loss(self.best), is_member=True)]
        return Admin(Doubt.MISSING, question, self.reasons(), (wait, *forced), self.missing)

    def no_member(self) -> Admin:
        """All that can be read here was left behind by a set whose stores are not here, or broken."""
        question = (
            f"No store that can be read is of the last in-sync set that is known ({self.set_text}). Those that can be"
            " read may lack what was confirmed. Can a store of that set be had, perhaps from a copy?"
        )
        readable = sorted((s for s in self.stores if s.is_readable and not s.is_empty), key=_furthest, reverse=True)
        wait = Option("Wait for a member's store, and ask again", (_ask_again(self.stores, self.asked),))
        forced = [forced_option(self.stores, store, _loss(store), is_member=False) for store in readable]
        return Admin(Doubt.NO_MEMBER, question, self.reasons(), (wait, *forced), self.missing)

    def fork(self) -> Admin:
        """Two primaries confirmed different things: no store holds both."""
        tips = [self.best, *(store for store in self.forked if store.is_readable and store is not self.best)]
        shared = min(
            common_lsn(self.best.history, self.best.last_lsn, store.history, store.last_lsn) for store in self.forked
        )
        generation = max((entry.generation for entry in self.best.history if entry.first_lsn <= shared), default=0)
        names = ", ".join(dict.fromkeys(store.label for store in [self.best, *self.forked]))
        question = (
            f"{names} went different ways after generation {generation}, LSN {shared}, and both confirmed messages."
            " Which one goes on? What the other one holds beside it is kept in its discarded/ when it joins again"
            " (`qpid-ha store discarded list`)."
        )
        options = tuple(
            forced_option(
                self.stores,
                store,
                counted(store.last_lsn - shared, "event after the parting is", "events after the parting are")
                + " kept",
                is_member=store in self.candidates,
            )
            for store in tips
        )
        return Admin(Doubt.FORK, question, self.reasons(), options, self.missing)

    # --- the reasons

    def reasons(self, level: Sequence[StoreFacts] = ()) -> tuple[Reason, ...]:
        """A line for each store, and for each member without one."""
        here = {store.broker for store in self.stores}
        lines = [_reason(store, *self._standing(store, level)) for store in self.stores]
        absent = [
            Reason(name, "", Standing.MISSING, f"{self._was(name)}, and its store is not here")
            for name in self.asked
            if name not in here
        ]
        return (*lines, *absent)

    def _standing(self, store: StoreFacts, level: Sequence[StoreFacts]) -> tuple[Standing, str]:
        if store in level:
            return Standing.BEST, "in sync and the furthest" if len(level) == 1 else "in sync, as far as any"
        if not store.is_readable:
            return Standing.DAMAGED, store.detail or str(store.integrity)
        if store.is_empty:
            is_lost = store.broker in self.asked
            return Standing.EMPTY, f"{self._was(store.broker)}, and its store is empty" if is_lost else "holds nothing"
        if store in self.forked:
            return Standing.FORKED, "confirmed what the others do not hold"
        if store.broker not in self.members:
            return Standing.OUTSIDE, f"is not in the last in-sync set ({self.set_text})" + self._beside(store)
        if store not in self.candidates:
            return Standing.OLD, f"does not know of the last in-sync set ({self.set_text})" + self._beside(store)
        behind = self.best.last_lsn - store.last_lsn
        return Standing.BEHIND, f"in sync, {behind} behind" if behind else "in sync"

    def _was(self, name: str) -> str:
        if name in self.members:
            return "is in the last in-sync set"
        return "was in sync, until a set without it that is not known to have been confirmed"

    def _beside(self, store: StoreFacts) -> str:
        """What it would put into discarded/."""
        own = store.last_lsn - common_lsn(store.history, store.last_lsn, self.best.history, self.best.last_lsn)
        return f"; events that only it has: {own}, never confirmed" if own > 0 else ""


def _reason(store: StoreFacts, standing: Standing, text: str) -> Reason:
    promise = ""
    if store.promised > store.generation:
        promise = f"; it has promised generation {store.promised} to {store.promised_to or 'somebody'}"
    return Reason(store.label, store.where, standing, text + promise)


def _position(store: StoreFacts) -> str:
    return f"generation {store.generation}, LSN {store.last_lsn}"


def _loss(store: StoreFacts) -> str:
    return f"at most, what was confirmed after {_position(store)} is lost"


def _ask_again(stores: Sequence[StoreFacts], missing: Iterable[str]) -> str:
    here = {store.broker for store in stores if store.is_readable and not store.is_empty}
    wanted = [f"{name}:DATA-DIR" for name in missing if name not in here]
    only = [f"--set {name}" for name in dict.fromkeys(map(set_of, stores)) if name != DEFAULT_SET]
    return " ".join(["qpid-ha store best", *only, *[store.where for store in stores if store.broker in here], *wanted])
