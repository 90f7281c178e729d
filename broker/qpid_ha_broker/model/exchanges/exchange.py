"""Exchanges: to which queues a message goes, by its key, by a pattern that the key fits, by its properties, or to all.

Queues are named by their ids, so an exchange knows nothing of queues, and a backup that applies the same events routes
alike. The order of a route is that of the earliest binding that matched. It follows from `bindings()` alone: an
exchange rebuilt from that list (a snapshot, a new backup) gives the same routes in the same order.

A binding may have conditions, too: a selector, and whose messages do not go by it (`no-local` of a subscriber). What
matches it otherwise, and not these, does not go by that binding. So a subscriber's queue does not keep what the
subscriber never takes. An exchange without conditions costs nothing for them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import ClassVar, NamedTuple

from qpid_ha_broker.events.types import Arguments, Scalar
from qpid_ha_broker.model.errors import LimitReached, ModelError
from qpid_ha_broker.model.exchanges.topic_trie import Reach, TopicTrie, has_wildcards, open_words
from qpid_ha_broker.model.message_reader import EVERYTHING, CompiledSelector, Lookup, MessageReader, NoReader
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.work import Task

MAX_PATTERN_BYTES = 255
"""Of the key of a new topic binding; AMQP before 1.0 had the same limit."""
MAX_OPEN_WORDS = 32
"""Of the key of a new topic binding, from its first `#` on: each may be compared with each word of a message's topic.
More than anybody needs, and so few that one pattern costs a topic of a hundred words some thousand steps."""
MAX_QUEUES = 5000
"""To which one message may go: for more it takes so long that nobody is served meanwhile. Where keys say nothing about
that, to which one exchange may lead."""
MAX_HEADERS_ARGUMENTS = 10_000
"""Of all bindings of one headers exchange: each is compared with every message."""
UNINDEXED_LENGTH = 100
"""Bindings of a queue that is gone that routing forgets together."""
MAX_SELECTORS_COST = 20_000
"""Of all selectors that one message may meet, each of which is evaluated then: see `CompiledSelector`. Where keys say
nothing about that, of all different ones of one exchange."""
MAX_CONDITIONAL_BINDINGS = 100
"""Of one queue to one exchange, if one of them has a selector or NO_LOCAL_ARGUMENT: which of them match is found for
every message."""
MATCH_ARGUMENT = "x-match"
SELECTOR_ARGUMENT = "x-filter-jms-selector"
"""As the Java broker of Qpid calls it. Releases that know no selectors of bindings ignore it."""
NO_LOCAL_ARGUMENT = "x-qpid-no-local"
"""As the Java broker of Qpid calls it; here with a name of the publisher whose messages do not go by the binding: see
`Origin`. Releases that do not know it ignore it."""
REPLICATE_ARGUMENT = "qpid.replicate"
"""Says where a binding is written; no message needs to have it."""
ROUTE_CACHE_KEYS = 4096
"""Topic keys whose route is remembered; one more, and the cache starts afresh."""
ROUTE_CACHE_KEY_CHARACTERS = 256
"""A longer key is routed but not remembered: publishers must not decide how much memory the cache takes."""


class ExchangeKind(StrEnum):
    """How an exchange decides."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"
    HEADERS = "headers"


class Binding(NamedTuple):
    """What matches `key` (for a headers exchange: `arguments`) goes to the queue with this id."""

    queue: int
    key: str
    arguments: Arguments


Properties = Callable[[], Mapping[str, object]]
"""Gives the message's application properties; called only by an exchange that needs them, since they must be parsed."""


Origin = tuple[str, ...]
"""The names of who publishes a message that a binding may have in NO_LOCAL_ARGUMENT: its connection's, and that of its
user with its container id."""
NOBODY: Origin = ()
"""What the broker itself sends, or a message that is moved."""


class _Selector:
    """The selector of one or several bindings of an exchange."""

    __slots__ = ("bindings", "compiled", "text")

    def __init__(self, text: str, compiled: CompiledSelector) -> None:
        self.text = text
        self.compiled = compiled
        self.bindings = 0
        """How many have it."""


class _Condition(NamedTuple):
    """What a message that matches a binding has to fulfil besides."""

    selector: _Selector | None
    no_local: str
    """Not published by who has this name; empty: by anybody."""


class Exchange(ABC):
    """Promise: `route` names each queue that has a matching binding once, in an order that `bindings()` determines."""

    kind: ClassVar[ExchangeKind]

    def __init__(self, exchange_id: int, name: str, arguments: Arguments) -> None:
        self.id = exchange_id
        self.name = name
        self.arguments = arguments
        self.replication = Replicate.MESSAGES
        """Of itself; a binding to a local queue is local, too."""
        self._bindings: dict[tuple[int, str], Binding] = {}
        self._keys_of_queue: dict[int, dict[str, None]] = {}
        self.reader: MessageReader = NoReader()
        self._selectors: dict[str, _Selector] = {}
        """By their texts."""
        self._conditions: dict[int, dict[str, _Condition]] = {}
        """By queue and key of the binding; the other bindings have none."""

    def bind(self, binding: Binding) -> None:
        """Add a binding; one with the same queue and key is replaced and keeps its place.

        Raises ValueError, and changes nothing, when the arguments make no sense to this kind of exchange.
        """
        self._index(binding)
        self._bindings[binding.queue, binding.key] = binding
        self._keys_of_queue.setdefault(binding.queue, {})[binding.key] = None
        self._forget_condition(binding.queue, binding.key)
        if has_condition(binding.arguments):
            self._note_condition(binding)

    def unbind(self, queue: int, key: str) -> bool:
        """Remove a binding; False when there was none."""
        return self._remove(queue, key) is not None

    def unbind_queue(self, queue: int) -> list[Binding]:
        """Remove and return all bindings of a queue.

        Routes may lead to it until `unindex` has come to its end for them: it must be one that is not there any more.
        """
        for key in tuple(self._conditions.get(queue, ())):
            self._forget_condition(queue, key)
        return [self._bindings.pop((queue, key)) for key in self._keys_of_queue.pop(queue, ())]

    def unindex(self, removed: list[Binding]) -> Task:
        """Stop routing by bindings that were just removed, some at each step."""
        for start in range(0, len(removed), UNINDEXED_LENGTH):
            for binding in removed[start : start + UNINDEXED_LENGTH]:
                self._unindex(binding)
            yield

    def dismantle(self) -> Task:
        """Let go of all bindings of an exchange that is deleted, some at each step."""
        return self.unindex(self.bindings())

    def binding(self, queue: int, key: str) -> Binding | None:
        """The binding of that queue with that key, if there is one."""
        return self._bindings.get((queue, key))

    def count_of(self, queue: int) -> int:
        """How many bindings lead to that queue."""
        return len(self._keys_of_queue.get(queue, ()))

    def keys_of(self, queue: int) -> list[str]:
        """The keys by which bindings lead to that queue, the oldest first."""
        return list(self._keys_of_queue.get(queue, ()))

    @property
    def queues(self) -> tuple[int, ...]:
        """All queues to which bindings lead."""
        return tuple(self._keys_of_queue)

    def bindings(self) -> list[Binding]:
        """All bindings, the oldest first."""
        return list(self._bindings.values())

    def check_room(self, binding: Binding) -> None:
        """Raises LimitReached for a new binding that would make routing too slow."""
        is_new = binding.queue not in self._keys_of_queue
        if is_new and len(self._keys_of_queue) >= MAX_QUEUES and self._has_too_many(binding):
            raise LimitReached(
                f"exchange {self.name} leads to {MAX_QUEUES} queues, and may lead to no more: use another"
            )
        is_conditional = has_condition(binding.arguments) or binding.queue in self._conditions
        if is_conditional and self.count_of(binding.queue) >= MAX_CONDITIONAL_BINDINGS:
            raise LimitReached(
                f"a queue that has a binding with a selector or {NO_LOCAL_ARGUMENT} has at most"
                f" {MAX_CONDITIONAL_BINDINGS} to one exchange"
            )
        text = selector_of(binding.arguments)
        if text and text not in self._selectors:
            cost = sum(selector.compiled.cost for selector in self._selectors.values())
            own_cost = self.reader.selector(text).cost
            if cost + own_cost > MAX_SELECTORS_COST and self._costs_too_much(binding, own_cost):
                raise LimitReached(
                    f"the {len(self._selectors)} different selectors of exchange {self.name} cost {cost} units for each"
                    f" message, and {MAX_SELECTORS_COST} are allowed: use another exchange, keys, or fewer selectors"
                )

    def _has_too_many(self, _binding: Binding) -> bool:
        """Whether one message might go to more than MAX_QUEUES with that binding, of an exchange that leads to more."""
        return True

    def _costs_too_much(self, _binding: Binding, _cost: int) -> bool:
        """Whether one message might cost more than MAX_SELECTORS_COST with that binding, of an exchange that
        has more."""
        return True

    def _weigh(self, _queue: int, _key: str, _cost: int) -> None:
        """The selector of a binding costs so much now; 0: it has none."""
        return

    def __len__(self) -> int:
        """How many bindings there are."""
        return len(self._bindings)

    def route_message(self, key: str, payload: bytes, origin: Origin = NOBODY) -> tuple[int, ...]:
        """The ids of the queues that get this message: `route`, without those whose conditions it does not fulfil.
        `origin`: who publishes it."""
        reader = self.reader
        queues = self.route(key, lambda: reader.properties(payload))
        return self._select(queues, key, payload, origin) if self._conditions else queues

    def route_of_key(self, key: str) -> tuple[int, ...]:
        """The route of all messages with this key; (): what else is in them may matter, or there is none."""
        queues = self.route(key, dict)
        return queues if self._conditions.keys().isdisjoint(queues) else ()

    def _select(self, queues: tuple[int, ...], key: str, payload: bytes, origin: Origin) -> tuple[int, ...]:
        """The queues of a route that a binding without conditions leads to, or one whose conditions are fulfilled."""
        lookup: Lookup | None = None
        verdicts: dict[_Selector, bool] = {}

        def fulfils(condition: _Condition) -> bool:
            nonlocal lookup
            selector, no_local = condition
            if no_local and no_local in origin:
                return False
            if selector is None:
                return True
            verdict = verdicts.get(selector)
            if verdict is None:
                try:
                    lookup = lookup or self.reader.lookup(payload)
                    verdict = selector.compiled.matches(lookup)
                except ModelError:  # what cannot be read has nothing that a selector could match
                    verdict = False
                verdicts[selector] = verdict
            return verdict

        kept = []
        for queue in queues:
            conditions = self._conditions.get(queue)
            if conditions is None:
                kept.append(queue)
            elif len(self._keys_of_queue[queue]) == 1:
                if all(map(fulfils, conditions.values())):
                    kept.append(queue)
            else:
                leading = self._leading(queue, key, payload)
                if any(binding_key not in conditions or fulfils(conditions[binding_key]) for binding_key in leading):
                    kept.append(queue)
        return tuple(kept)

    def _leading(self, queue: int, key: str, payload: bytes) -> list[str]:
        """Of a queue that a message goes to, the keys of the bindings that lead there: few, it has conditions."""
        alone = make_exchange(self.kind, 0, self.name, {})
        reader, leading = self.reader, []
        for binding_key in self._keys_of_queue[queue]:
            binding = self._bindings[queue, binding_key]
            alone.bind(binding)
            if alone.route(key, lambda: reader.properties(payload)):
                leading.append(binding_key)
            alone.unbind(queue, binding_key)
        return leading

    def _note_condition(self, binding: Binding) -> None:
        text = selector_of(binding.arguments)
        selector = self._selectors.get(text) if text else None
        if text:
            if selector is None:
                selector = self._selectors[text] = _Selector(text, _compiled(self.reader, text))
            selector.bindings += 1
            self._weigh(binding.queue, binding.key, selector.compiled.cost)
        condition = _Condition(selector, no_local_of(binding.arguments))
        self._conditions.setdefault(binding.queue, {})[binding.key] = condition

    def _forget_condition(self, queue: int, key: str) -> None:
        conditions = self._conditions.get(queue)
        condition = None if conditions is None else conditions.pop(key, None)
        if conditions is None or condition is None:
            return
        if not conditions:
            del self._conditions[queue]
        selector = condition.selector
        if selector is not None:
            self._weigh(queue, key, 0)
            selector.bindings -= 1
            if not selector.bindings:
                del self._selectors[selector.text]

    @abstractmethod
    def route(self, key: str, properties: Properties) -> tuple[int, ...]:
        """The ids of the queues that get a message with this key and these application properties."""

    @abstractmethod
    def _index(self, binding: Binding) -> None:
        """Prepare routing by a binding that is about to be added, or to replace one."""

    @abstractmethod
    def _unindex(self, binding: Binding) -> None:
        """Stop routing by a binding that was just removed."""

    def _remove(self, queue: int, key: str) -> Binding | None:
        binding = self._bindings.pop((queue, key), None)
        if binding is None:
            return None
        self._forget_condition(queue, key)
        keys = self._keys_of_queue[queue]
        del keys[key]
        if not keys:
            del self._keys_of_queue[queue]
        self._unindex(binding)
        return binding


class DirectExchange(Exchange):
    """To the queues that are bound with exactly the message's key."""

    kind = ExchangeKind.DIRECT

    def __init__(self, exchange_id: int, name: str, arguments: Arguments) -> None:
        super().__init__(exchange_id, name, arguments)
        self._queues_of_key: dict[str, dict[int, None]] = {}

    def route(self, key: str, properties: Properties) -> tuple[int, ...]:
        return tuple(self._queues_of_key.get(key, ()))

    def _index(self, binding: Binding) -> None:
        self._queues_of_key.setdefault(binding.key, {})[binding.queue] = None

    def _unindex(self, binding: Binding) -> None:
        queues = self._queues_of_key[binding.key]
        del queues[binding.queue]
        if not queues:
            del self._queues_of_key[binding.key]


class TopicExchange(Exchange):
    """To the queues that are bound with a pattern of words which the message's key fits.

    Publishers repeat themselves: the route of a key that was seen since a change that may
    matter to it is one look-up.
    """

    kind = ExchangeKind.TOPIC

    def __init__(self, exchange_id: int, name: str, arguments: Arguments) -> None:
        super().__init__(exchange_id, name, arguments)
        self._trie = TopicTrie()
        self._routes: dict[str, tuple[int, ...]] = {}

    def check_room(self, binding: Binding) -> None:
        super().check_room(binding)
        size = len(binding.key.encode("utf-8", "surrogatepass"))
        if size > MAX_PATTERN_BYTES:
            raise LimitReached(f"the key of a topic binding is at most {MAX_PATTERN_BYTES} bytes, found {size}")
        words = open_words(binding.key)
        if words > MAX_OPEN_WORDS:
            raise LimitReached(
                f"the key of a topic binding has at most {MAX_OPEN_WORDS} words from its first # on, found {words}:"
                " each may be compared with all words of a topic; shorten it, or end it with a # in their place"
            )

    def _has_too_many(self, binding: Binding) -> bool:
        most, more = self._trie.reach().queues, self._trie.reach(binding.key, Reach(1, 0)).queues
        return more > max(most, MAX_QUEUES)

    def _costs_too_much(self, binding: Binding, cost: int) -> bool:
        most, more = self._trie.reach().cost, self._trie.reach(binding.key, Reach(0, cost)).cost
        return more > max(most, MAX_SELECTORS_COST)

    def _weigh(self, queue: int, key: str, cost: int) -> None:
        self._trie.weigh(key, queue, cost)

    def route(self, key: str, properties: Properties) -> tuple[int, ...]:
        queues = self._routes.get(key)
        return self._match(key) if queues is None else queues

    def _match(self, key: str) -> tuple[int, ...]:
        queues = self._trie.match(key)
        if len(key) <= ROUTE_CACHE_KEY_CHARACTERS:
            if len(self._routes) >= ROUTE_CACHE_KEYS:
                self._routes.clear()
            self._routes[key] = queues
        return queues

    def _index(self, binding: Binding) -> None:
        self._trie.add(binding.key, binding.queue)
        self._forget_routes(binding.key)

    def _unindex(self, binding: Binding) -> None:
        self._trie.remove(binding.key, binding.queue)
        self._forget_routes(binding.key)

    def _forget_routes(self, pattern: str) -> None:
        """Of the keys that it may match: most bindings are for one, and the routes of other topics stay."""
        if has_wildcards(pattern):
            self._routes.clear()
        else:
            self._routes.pop(pattern, None)


class FanoutExchange(Exchange):
    """To every queue that is bound, whatever the key."""

    kind = ExchangeKind.FANOUT

    def __init__(self, exchange_id: int, name: str, arguments: Arguments) -> None:
        super().__init__(exchange_id, name, arguments)
        self._route: tuple[int, ...] | None = None

    def route(self, key: str, properties: Properties) -> tuple[int, ...]:
        if self._route is None:
            # By bindings, not by `_keys_of_queue`: a queue that lost its first binding lost its place with it.
            self._route = tuple(dict.fromkeys(binding.queue for binding in self._bindings.values()))
        return self._route

    def _index(self, binding: Binding) -> None:
        self._route = None

    def _unindex(self, binding: Binding) -> None:
        self._route = None


class _HeadersMatch(NamedTuple):
    """A binding's arguments, taken apart once rather than for each message."""

    needs_all: bool
    expected: tuple[tuple[str, Scalar], ...]

    @property
    def cost(self) -> int:
        """Comparisons at most, at least one."""
        return len(self.expected) or 1

    def matches(self, properties: Mapping[str, object]) -> bool:
        hits = (
            name in properties and (value is None or _same_value(value, properties[name]))
            for name, value in self.expected
        )
        return all(hits) if self.needs_all else any(hits)


class HeadersExchange(Exchange):
    """To the queues whose binding arguments, all or any of them (`x-match`), are among the application properties.

    An argument without a value asks only that the property be there. Without any arguments, `all` matches every
    message and `any` none.
    """

    kind = ExchangeKind.HEADERS

    def __init__(self, exchange_id: int, name: str, arguments: Arguments) -> None:
        super().__init__(exchange_id, name, arguments)
        self._matches: dict[tuple[int, str], _HeadersMatch] = {}
        self._arguments = 0
        """How many arguments all bindings have; one that has none counts as one."""

    def check_room(self, binding: Binding) -> None:
        super().check_room(binding)
        if self._arguments + len(binding.arguments) > MAX_HEADERS_ARGUMENTS:
            raise LimitReached(
                f"the bindings of exchange {self.name} have {self._arguments} arguments; "
                f"{MAX_HEADERS_ARGUMENTS} are allowed: use another exchange"
            )

    def route(self, key: str, properties: Properties) -> tuple[int, ...]:
        if not self._matches:
            return ()
        present = properties()
        return tuple(dict.fromkeys(queue for (queue, _), match in self._matches.items() if match.matches(present)))

    def route_of_key(self, key: str) -> tuple[int, ...]:
        return ()

    def _index(self, binding: Binding) -> None:
        match, before = _headers_match(binding.arguments), self._matches.get((binding.queue, binding.key))
        self._arguments += match.cost - (before.cost if before is not None else 0)
        self._matches[binding.queue, binding.key] = match

    def _unindex(self, binding: Binding) -> None:
        self._arguments -= self._matches.pop((binding.queue, binding.key)).cost


def make_exchange(kind: str, exchange_id: int, name: str, arguments: Arguments) -> Exchange:
    """An exchange without bindings. Raises ValueError, naming the kinds there are, for any other kind."""
    for exchange_class in (DirectExchange, TopicExchange, FanoutExchange, HeadersExchange):
        if exchange_class.kind == kind:
            return exchange_class(exchange_id, name, arguments)
    raise ValueError(f"unknown exchange kind {kind!r}: use one of {', '.join(ExchangeKind)}")


def selector_argument(text: str) -> dict[str, Scalar]:
    """For a binding with that selector; none for one that selects all."""
    return {SELECTOR_ARGUMENT: text} if text.strip() else {}


def selector_of(arguments: Arguments) -> str:
    """The selector of a binding with these arguments; empty: it has none, or one of nothing, which selects all."""
    text = arguments.get(SELECTOR_ARGUMENT)
    return text if isinstance(text, str) and text.strip() else ""


def no_local_of(arguments: Arguments) -> str:
    """Whose messages do not go by a binding with these arguments; empty: anybody's do."""
    name = arguments.get(NO_LOCAL_ARGUMENT)
    return name if isinstance(name, str) else ""


def has_condition(arguments: Arguments) -> bool:
    """Whether not all that matches a binding with these arguments goes by it."""
    return bool(selector_of(arguments) or no_local_of(arguments))


def _compiled(reader: MessageReader, text: str) -> CompiledSelector:
    """What cannot be read here was written by another release, and its consumer selects."""
    try:
        return reader.selector(text)
    except ValueError:
        return EVERYTHING


def _headers_match(arguments: Arguments) -> _HeadersMatch:
    match = arguments.get(MATCH_ARGUMENT, "all")
    if match not in ("all", "any"):
        raise ValueError(f"{MATCH_ARGUMENT} is {match!r}: use 'all' or 'any'")
    own = (REPLICATE_ARGUMENT, MATCH_ARGUMENT)
    expected = tuple((key, value) for key, value in arguments.items() if key not in own and not key.startswith("x-"))
    return _HeadersMatch(match == "all", expected)


def _same_value(expected: Scalar, actual: object) -> bool:
    """Equal and of one kind: Python holds that True is 1, a subscriber does not."""
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    return expected == actual
