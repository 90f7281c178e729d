"""Which queues want a message with this topic, without trying every pattern.

Patterns that begin alike share a path from the root of a trie. A key is looked up by walking all of
those paths at once, one word at a time: `#` makes a path branch, but two branches that meet in one node are one branch
again. So the work is bounded by words times nodes, and `#.#.#.#` costs four nodes rather than an exponent. That is
still too much where many patterns with many `#` meet a key of many words: such a key is refused after `MATCH_STEPS`.

A key's words are separated by dots; `*` stands for exactly one word, `#` for any number, none included. The empty key
has no words.
"""

from __future__ import annotations

from collections.abc import Iterable

from qpid_ha_broker.model.errors import LimitReached

MATCH_STEPS = 20_000
"""Nodes that one key may come by: at half a microsecond each, as long as anybody else may be kept waiting."""
ONE_WORD = "*"
ANY_WORDS = "#"


class _Node:
    """Where a pattern has got to. `places` holds the queues whose pattern ends here, with their turn."""

    __slots__ = ("children", "places", "repeats")

    def __init__(self, *, repeats: bool) -> None:
        self.children: dict[str, _Node] = {}
        self.places: dict[int, int] = {}
        self.repeats = repeats

    @property
    def is_empty(self) -> bool:
        return not self.children and not self.places


class TopicTrie:
    """Patterns and the queues they lead to. Promise: `match` gives the queues in the order in which they came."""

    def __init__(self) -> None:
        self._root = _Node(repeats=False)
        self._next_place = 0

    def add(self, pattern: str, queue: int) -> None:
        """Lead what matches `pattern` to `queue`; adding the same again keeps its place."""
        node = self._root
        for word in _words(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(repeats=word == ANY_WORDS)
            node = child
        if queue not in node.places:
            node.places[queue] = self._next_place
            self._next_place += 1

    def remove(self, pattern: str, queue: int) -> None:
        """Undo `add`, and drop the part of the path that nobody else uses. KeyError if it was never added."""
        words = _words(pattern)
        path = [self._root]
        for word in words:
            path.append(path[-1].children[word])
        del path[-1].places[queue]
        for word, parent, child in zip(reversed(words), reversed(path[:-1]), reversed(path[1:]), strict=True):
            if not child.is_empty:
                return
            del parent.children[word]

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
