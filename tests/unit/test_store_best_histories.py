"""Random lives of a small cluster, stopped anywhere: what a verdict calls safe has all that was confirmed.

A model of the rules of docs/architecture.md, and nothing of their implementation: a primary confirms what all of its
in-sync set hold, drops a member only once the others have it in their logs, and a record admits one primary at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import pytest

from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.store.best import Admin, Equal, Winner, best
from qpid_ha_broker.store.facts import StoreFacts

NAMES = ("a", "b", "c")
LIVES, STEPS = 120, 50


class Entry(NamedTuple):
    """Of a log. `members` of an in-sync set; `text` makes messages differ."""

    generation: int
    primary: str
    epoch: int = 0
    members: tuple[str, ...] = ()
    text: int = 0

    @property
    def is_beginning(self) -> bool:
        """Of a generation."""
        return not self.members and not self.text


@dataclass
class Node:
    """A broker: what is on its disk, and what it believes as a primary."""

    name: str
    log: list[Entry] = field(default_factory=list)
    committed: int = 0
    acknowledged: dict[str, int] = field(default_factory=dict)
    waits_for: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    """Still waited for, but what they say from now on does not count."""

    def newest(self) -> tuple[int, int, tuple[str, ...], int]:
        """Generation, epoch, members and place of the last in-sync set."""
        places = [number for number, entry in enumerate(self.log, start=1) if entry.members]
        place = places[-1] if places else 0
        last = self.log[place - 1] if place else Entry(0, "")
        return self.log[-1].generation if self.log else 0, last.epoch, last.members, place

    def facts(self) -> StoreFacts:
        """As an inspection would find them."""
        _, epoch, members, place = self.newest()
        before = {self.log[-1].primary} if self.log and self.log[-1].is_beginning else set()
        for number, entry in reversed(list(enumerate(self.log, start=1))):
            before.update(entry.members)
            begins_generation = number > 1 and self.log[number - 2].is_beginning
            if entry.members and (number <= self.committed or begins_generation):
                break
        history: list[GenerationEntry] = []
        for number, entry in enumerate(self.log, start=1):
            if not history or history[-1].generation != entry.generation:
                history.append(GenerationEntry(entry.generation, entry.primary, number))
        return StoreFacts(
            self.name, self.name, "ours", "default", tuple(history), epoch, members, place,
            tuple(sorted(before - set(members))), len(self.log), self.committed,
        )  # fmt: skip


class Cluster:
    """Three brokers and the record of a coordinator."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.nodes = {name: Node(name) for name in NAMES}
        self.generation, self.primary, self.epoch = 0, "", 0
        self.members: tuple[str, ...] = (random.choice(NAMES),)
        self.follows = dict.fromkeys(NAMES, "")
        self.confirmed: list[Entry] = []
        self.texts = itertools.count(1)
        self.promote()

    def step(self) -> None:
        """Something happens."""
        steps: list[tuple[int, Callable[[], None]]] = [
            (6, self.write), (8, self.acknowledge), (2, self.drop), (2, self.add), (3, self.record), (1, self.promote),
        ]  # fmt: skip
        weights, actions = zip(*steps, strict=True)
        self.random.choices(actions, weights)[0]()
        self.confirm()

    def any_primary(self) -> Node:
        """One that thinks that it leads; an old one may be cut off."""
        return self.random.choice([node for node in self.nodes.values() if self.follows[node.name] == node.name])

    def write(self) -> None:
        primary = self.any_primary()
        primary.log.append(Entry(primary.newest()[0], primary.name, text=next(self.texts)))

    def acknowledge(self) -> None:
        """A follower takes some of what its primary has; whoever follows for the first time forgets what differs."""
        name = self.random.choice(NAMES)
        if self.follows[name] == name and name != self.primary:
            self.follows[name] = self.primary  # the old primary hears of the new one, and stays out of its set
        if self.follows[name] == name:
            return
        node, primary = self.nodes[name], self.nodes[self.follows[name]]
        same = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(node.log, primary.log, strict=False))
        )
        upto = self.random.randint(same, len(primary.log))
        node.log = primary.log[:upto]
        node.committed = min(upto, self.random.randint(0, primary.committed))
        if name not in primary.leaving:
            primary.acknowledged[name] = upto

    def drop(self) -> None:
        primary = self.any_primary()
        generation, epoch, members, _ = primary.newest()
        others = [name for name in members if name != primary.name]
        if others and generation:
            gone = self.random.choice(others)
            left = tuple(name for name in members if name != gone)
            primary.leaving |= {gone}
            primary.log.append(Entry(generation, primary.name, epoch + 1, left))

    def add(self) -> None:
        """One that has caught up is waited for from the moment at which the log says so."""
        primary = self.any_primary()
        generation, epoch, members, place = primary.newest()
        name = self.random.choice(NAMES)
        is_level = primary.acknowledged.get(name) == len(primary.log) and self.follows[name] == primary.name
        if name not in members and is_level and primary.committed >= place:
            joined = tuple(sorted({*members, name}))
            primary.log.append(Entry(generation, primary.name, epoch + 1, joined))
            primary.waits_for |= {name}

    def record(self) -> None:
        """What all of a new set have in their logs is recorded, if the record is still this primary's."""
        primary = self.any_primary()
        generation, epoch, members, place = primary.newest()
        others = [name for name in members if name != primary.name]
        held = all(primary.acknowledged.get(name, 0) >= place for name in others)
        if held and (self.primary, self.generation) == (primary.name, generation):
            self.members, self.epoch = members, epoch
            primary.waits_for, primary.leaving = frozenset(others), frozenset()

    def promote(self) -> None:
        """A member of the recorded set takes over; the others follow it when they hear of it."""
        name = self.random.choice(self.members)
        if name == self.primary:
            return
        node = self.nodes[name]
        left = tuple(each for each in self.members if each != self.primary) or (name,)
        self.generation, self.primary, self.members = self.generation + 1, name, left
        epoch = self.epoch = max(self.epoch, node.newest()[1]) + 1
        node.log += [Entry(self.generation, name), Entry(self.generation, name, epoch, left)]
        node.acknowledged, node.waits_for, node.leaving = {}, frozenset(left) - {name}, frozenset()
        for each in NAMES:
            if self.follows[each] != each or each == name:
                self.follows[each] = name

    def confirm(self) -> None:
        """Publishers are told what every broker holds that is waited for."""
        for node in self.nodes.values():
            if self.follows[node.name] == node.name:
                upto = min([len(node.log), *(node.acknowledged.get(name, 0) for name in node.waits_for)])
                if upto > node.committed:
                    self.confirmed += [entry for entry in node.log[node.committed : upto] if entry.text]
                    node.committed = upto


def holds_all(cluster: Cluster, facts: StoreFacts) -> bool:
    return set(cluster.confirmed) <= set(cluster.nodes[facts.broker].log)


@pytest.mark.parametrize("seed", range(0, LIVES, 40))
def test_a_safe_verdict_over_any_of_the_stores_has_all_that_was_confirmed(seed: int) -> None:
    for life in range(seed, seed + 40):
        cluster = Cluster(Random(life))
        for step in range(STEPS):
            cluster.step()
            facts = [node.facts() for node in cluster.nodes.values()]
            for count in (1, 2, 3):
                for stores in itertools.combinations(facts, count):
                    verdict = best(stores)
                    winners = verdict.stores if isinstance(verdict, Equal) else ()
                    if isinstance(verdict, Winner):
                        winners = (verdict.store,)
                    for winner in winners:
                        assert winner.is_empty or holds_all(cluster, winner), (life, step, verdict)


@pytest.mark.parametrize("seed", range(0, LIVES, 40))
def test_with_all_stores_here_nobody_has_to_decide(seed: int) -> None:
    for life in range(seed, seed + 40):
        cluster = Cluster(Random(life))
        for step in range(STEPS):
            cluster.step()
            verdict = best([node.facts() for node in cluster.nodes.values()])
            assert not isinstance(verdict, Admin), (life, step, verdict.question)
