"""Which queues want a message with this topic, without trying every pattern.

Patterns that begin alike share a path from the root of a trie. A key is looked up by walking all of
those paths at once, one word at a time: `#` makes a path branch, but two branches that meet in one node are one branch
again. So the work is bounded by words times nodes, and `#.#.#.#` costs four nodes rather than an exponent. Of one
pattern a key comes by one node at a word, and from the first `#` on by as many as there are: these are bounded where it
is bound (`open_words`). All patterns together may still be too much for a key of many words: such a key is refused
after `MATCH_STEPS`.

A key's words are separated by dots; `*` stands for exactly one word, `#` for any number, none included. The empty key
has no words.

How much one key can lead to is known without asking any: a node holds the most that a key may meet from there on.
Where no `#` lies before it, a key takes one word of several, so the largest of them counts, beside what `*` and `#`
add; below a `#` it may meet all that is there. The bound is never too low, and topics apart from each other do not add
up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from qpid_ha_broker.model.errors import LimitReached

MATCH_STEPS = 20_000
"""Nodes that one key may come by: at half a microsecond each, as long as anybody else may be kept waiting."""
ONE_WORD = "*"
ANY_WORDS = "#"


def has_wildcards(pattern: str) -> bool:
    """Whether it may match keys other than itself."""
    return (ONE_WORD in pattern or ANY_WORDS in pattern) and not {ONE_WORD, ANY_WORDS}.isdisjoint(_words(pattern))


def open_words(pattern: str) -> int:
    """How many words there are from the first `#` on: each of them a key may have come to, after each of its own."""
    words = _words(pattern)
    return len(words) - words.index(ANY_WORDS) if ANY_WORDS in words else 0


class Reach(NamedTuple):
    """What one key may come by at most."""

    queues: int
    """A queue counts once for each of its patterns."""
    cost: int
    """Units of selectors, see `CompiledSelector`; equal ones count each time."""

    def plus(self, other: Reach) -> Reach:
        """Both of them."""
        return Reach(self.queues + other.queues, self.cost + other.cost)

    def largest(self, other: Reach) -> Reach:
        """One or the other."""
        return Reach(max(self.queues, other.queues), max(self.cost, other.cost))


_NOTHING = Reach(0, 0)
_ONE = Reach(1, 0)


class _Most:
    """The largest of numbers that come and go; zero is none."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def replace(self, old: int, new: int) -> None:
        if old == new:
            return
        counts = self._counts
        if old:
            counts[old] -= 1
            if not counts[old]:
                del counts[old]
        if new:
            counts[new] = counts.get(new, 0) + 1

    @property
    def most(self) -> int:
        return max(self._counts, default=0)


class _Node:
    """Where a pattern has got to. `places` holds the queues whose pattern ends here, with their turn."""

    __slots__ = ("children", "costs", "is_below_any", "literals", "places", "reach", "repeats")

    def __init__(self, *, repeats: bool, is_below_any: bool) -> None:
        self.children: dict[str, _Node] = {}
        self.places: dict[int, int] = {}
        self.repeats = repeats
        self.is_below_any = is_below_any
        """It is a `#`, or one lies before it."""
        self.reach = _NOTHING
        """From here on, this node included."""
        self.costs: dict[int, int] | None = None
        """Of those of `places` that have a selector."""
        self.literals: tuple[_Most, _Most] | None = None
        """What the children reach that are no wildcards: queues, and cost. None: there are none, or `is_below_any`."""

    @property
    def is_empty(self) -> bool:
        return not self.children and not self.places

    @property
    def most_by_word(self) -> Reach:
        """What the next word leads to, if it is no wildcard that leads there."""
        return _NOTHING if self.literals is None else Reach(self.literals[0].most, self.literals[1].most)

    def with_child(self, label: str, old: Reach, new: Reach) -> Reach:
        """The reach once that of the child `label` is `new`, and no smaller than `old`."""
        if self.is_below_any or label in (ONE_WORD, ANY_WORDS):
            return self.reach.plus(Reach(new.queues - old.queues, new.cost - old.cost))
        most = self.most_by_word
        larger = most.largest(new)
        return self.reach.plus(Reach(larger.queues - most.queues, larger.cost - most.cost))

    def child_changed(self, label: str, old: Reach, new: Reach) -> None:
        """The reach of the child `label` has become `new`."""
        if not (self.is_below_any or label in (ONE_WORD, ANY_WORDS)):
            if self.literals is None:
                self.literals = _Most(), _Most()
            before = self.most_by_word
            for most, was, is_now in zip(self.literals, old, new, strict=True):
                most.replace(was, is_now)
            old, new = before, self.most_by_word
        self.reach = self.reach.plus(Reach(new.queues - old.queues, new.cost - old.cost))


class TopicTrie:
    """Patterns and the queues they lead to. Promise: `match` gives the queues in the order in which they came."""

    def __init__(self) -> None:
        self._root = _Node(repeats=False, is_below_any=False)
        self._next_place = 0

    def add(self, pattern: str, queue: int) -> None:
        """Lead what matches `pattern` to `queue`; adding the same again keeps its place."""
        words = _words(pattern)
        path = [self._root]
        for word in words:
            node = path[-1]
            child = node.children.get(word)
            if child is None:
                repeats = word == ANY_WORDS
                child = node.children[word] = _Node(repeats=repeats, is_below_any=node.is_below_any or repeats)
            path.append(child)
        if queue not in path[-1].places:
            path[-1].places[queue] = self._next_place
            self._next_place += 1
            _count(path, words, _ONE)

    def remove(self, pattern: str, queue: int) -> None:
        """Undo `add`, and drop the part of the path that nobody else uses. KeyError if it was never added."""
        self.weigh(pattern, queue, 0)
        words, path = self._path(pattern)
        del path[-1].places[queue]
        _count(path, words, Reach(-1, 0))
        for word, parent, child in zip(reversed(words), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if not child.is_empty:
                return
            del parent.children[word]

    def weigh(self, pattern: str, queue: int, cost: int) -> None:
        """What the selector of that place costs; 0: it has none. KeyError if it was never added."""
        words, path = self._path(pattern)
        leaf = path[-1]
        if queue not in leaf.places:
            raise KeyError(queue)
        costs = leaf.costs or {}
        change = cost - costs.pop(queue, 0)
        if cost:
            costs[queue] = cost
        leaf.costs = costs or None
        if change:
            _count(path, words, Reach(0, change))

    def reach(self, pattern: str = "", added: Reach = _NOTHING) -> Reach:
        """The most that one key may come by, once `added` is at `pattern`, too."""
        words = _words(pattern)
        path = [self._root]
        for word in words:
            child = path[-1].children.get(word)
            if child is None:
                break
            path.append(child)
        missing = words[len(path) - 1 :]
        new = added if missing else path[-1].reach.plus(added)
        if missing:
            new = path[-1].with_child(missing[0], _NOTHING, new)
        for at in range(len(path) - 1, 0, -1):
            new = path[at - 1].with_child(words[at - 1], path[at].reach, new)
        return new

    def _path(self, pattern: str) -> tuple[list[str], list[_Node]]:
        words = _words(pattern)
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        return words, path

    def match(self, key: str) -> tuple[int, ...]:
        """The queues whose pattern matches `key`, each once. Raises LimitReached."""
        reached = _with_zero_words((self._root,))
        steps = len(reached)
        for word in _words(key):
            reached = _with_zero_words(_step(reached, word))
            if not reached:
                return ()
            steps += len(reached)
            if steps > MATCH_STEPS:
                words = key.count(".") + 1
                raise LimitReached(
                    f"a topic of {words} words meets too many patterns: shorten it, or use patterns with fewer #"
                )
        return _in_order(reached)

    def __len__(self) -> int:
        """How many nodes there are, the root not counted: what the memory of the patterns costs."""
        count = 0
        pending = [self._root]
        while pending:
            children = pending.pop().children
            count += len(children)
            pending.extend(children.values())
        return count


def _count(path: list[_Node], words: list[str], change: Reach) -> None:
    """At the end of `path` there is so much more, or less, of its own."""
    old = path[-1].reach
    new = old.plus(change)
    path[-1].reach = _ONE if new == _ONE else new  # nearly all, of which each would have a tuple of its own
    for at in range(len(path) - 1, 0, -1):
        if path[at].reach == old:
            return
        parent = path[at - 1]
        before = parent.reach
        parent.child_changed(words[at - 1], old, path[at].reach)
        old = before


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _step(nodes: Iterable[_Node], word: str) -> set[_Node]:
    """Where one more word leads. A word that looks like a wildcard meets only the child it would meet anyway."""
    reached: set[_Node] = set()
    for node in nodes:
        if node.repeats:
            reached.add(node)
        for label in (word, ONE_WORD):
            child = node.children.get(label)
            if child is not None:
                reached.add(child)
    return reached


def _with_zero_words(nodes: Iterable[_Node]) -> set[_Node]:
    """`nodes`, and what follows from them when each `#` stands for nothing."""
    reached = set(nodes)
    pending = list(reached)
    while pending:
        child = pending.pop().children.get(ANY_WORDS)
        if child is not None and child not in reached:
            reached.add(child)
            pending.append(child)
    return reached


def _in_order(nodes: Iterable[_Node]) -> tuple[int, ...]:
    """The queues of `nodes` by their earliest place: a set of nodes has no order of its own to rely on."""
    earliest: dict[int, int] = {}
    for node in nodes:
        for queue, place in node.places.items():
            if place < earliest.get(queue, place + 1):
                earliest[queue] = place
    return tuple(sorted(earliest, key=earliest.__getitem__))
