"""Bindings with selectors: a queue gets what its subscriber would take, and keeps nothing else."""

from __future__ import annotations

from collections import Counter

import pytest

from model_support import Core, TextReader, bodies, message, transaction_of
from qpid_ha_broker.events.types import Arguments, Scalar
from qpid_ha_broker.model.errors import InvalidArgument, LimitReached
from qpid_ha_broker.model.exchanges.exchange import (
    MAX_CONDITIONAL_BINDINGS,
    MAX_SELECTORS_COST,
    SELECTOR_ARGUMENT,
    Binding,
    Exchange,
    make_exchange,
)
from qpid_ha_broker.model.message_reader import CompiledSelector, Lookup
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resource_set import ResourceSets
from qpid_ha_broker.model.sets.resources import Resources

RED, BLUE = "colour = 'red'", "colour = 'blue'"
KINDS: dict[str, tuple[str, Arguments]] = {
    "direct": ("news", {}),
    "topic": ("news.#", {}),
    "fanout": ("", {}),
    "headers": ("", {"x-match": "all", "size": "big"}),
}


def selects(text: str) -> dict[str, Scalar]:
    return {SELECTOR_ARGUMENT: text}


def bound(core: Core, kind: str, **selectors: str) -> tuple[Exchange, list[Queue]]:
    """An exchange, with a queue for each selector; empty: without."""
    exchange, (key, arguments) = core.exchange("x", kind), KINDS[kind]
    found = [core.queue(name) for name in selectors]
    for name, text in selectors.items():
        core.configuration.bind("x", name, key, {**arguments, **(selects(text) if text else {})})
    return exchange, found


def publish(core: Core, exchange: Exchange, *texts: str, colour: str = "") -> None:
    for text in texts:
        plain = message(text, "news", size="big")
        core.publish(exchange, message(text, "news", size="big", colour=colour) if colour else plain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_gets_what_its_selector_matches_of_what_is_routed_to_it(kind: str) -> None:
    core = Core()
    exchange, queues = bound(core, kind, red=RED, everything="", blue=BLUE, blank="  ")
    publish(core, exchange, "r", colour="red")
    publish(core, exchange, "b", colour="blue")
    publish(core, exchange, "none")
    assert [bodies(queue.messages) for queue in queues] == [["r"], ["r", "b", "none"], ["b"], ["r", "b", "none"]]
    core.check()


class CountingSelector:
    """Counts how often it is asked."""

    cost = 1

    def __init__(self, text: str, counts: Counter[str]) -> None:
        self._text = text
        self._counts = counts

    def matches(self, lookup: Lookup) -> bool:
        self._counts[self._text] += 1
        return lookup("colour") == self._text


class CountingReader(TextReader):
    """Of selectors that are a colour."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.compiled = Counter[str]()

    def selector(self, text: str) -> CompiledSelector:
        self.compiled[text] += 1
        return CountingSelector(text, self.asked)


def test_equal_selectors_are_evaluated_once_for_a_message() -> None:
    reader = CountingReader()
    core = Core(Resources(reader))
    exchange, queues = bound(core, "topic", a="red", b="red", c="blue", d="")
    publish(core, exchange, "r", colour="red")
    assert reader.asked == {"red": 1, "blue": 1}
    assert [queue.messages.count for queue in queues] == [1, 1, 0, 1]


def test_a_thousand_subscriptions_with_ten_selectors_cost_ten_evaluations_for_a_message() -> None:
    reader = CountingReader()
    core = Core(Resources(reader))
    colours = [f"colour-{number}" for number in range(10)]
    exchange, queues = bound(core, "topic", **{f"q{number}": colours[number % 10] for number in range(1000)})
    publish(core, exchange, "m", colour=colours[3])
    assert reader.asked == dict.fromkeys(colours, 1)
    assert reader.compiled.total() <= 3 * len(queues), "when it is bound, and not for a message"
    assert [queue.messages.count for queue in queues] == [int(number % 10 == 3) for number in range(1000)]


def test_an_exchange_without_selectors_asks_for_nothing() -> None:
    reader = CountingReader()
    core = Core(Resources(reader))
    exchange, _ = bound(core, "topic", a="", b="")
    publish(core, exchange, "r", colour="red")
    assert not reader.compiled


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("other", "expected"), [({}, ["r", "b", "none"]), (selects(BLUE), ["r", "b"]), (selects(RED), ["r"])]
)
def test_of_several_bindings_of_a_queue_one_that_leads_there_is_enough(
    kind: str, other: Arguments, expected: list[str]
) -> None:
    core = Core()
    exchange, (queue,) = bound(core, kind, q=RED)
    others = {"direct": "news", "topic": "news", "fanout": "other", "headers": "other"}
    if kind != "direct":  # where a message has one binding of a queue only
        core.configuration.bind("x", "q", others[kind], {**KINDS[kind][1], **other})
    core.configuration.bind("x", "q", "elsewhere.#", {"x-match": "any", **selects("TRUE")})
    publish(core, exchange, "r", colour="red")
    publish(core, exchange, "b", colour="blue")
    publish(core, exchange, "none")
    leads_elsewhere = kind == "fanout"
    assert bodies(queue.messages) == (
        ["r", "b", "none"] if leads_elsewhere else ["r"] if kind == "direct" else expected
    )
    core.check()


def test_another_selector_takes_the_place_of_the_one_before_and_none_is_left_behind() -> None:
    core = Core()
    exchange, (queue, other) = bound(core, "topic", a=RED, b=RED)
    core.configuration.bind("x", "a", "news.#", selects(BLUE))
    publish(core, exchange, "r", colour="red")
    publish(core, exchange, "b", colour="blue")
    assert (bodies(queue.messages), bodies(other.messages)) == (["b"], ["r"])
    core.configuration.bind("x", "a", "news.#", {})
    publish(core, exchange, "r", colour="red")
    assert bodies(queue.messages) == ["b", "r"]
    core.configuration.bind("x", "a", "news.#", selects(BLUE))
    core.configuration.unbind("x", "a", "news.#")
    core.configuration.delete_queue("b")
    assert (exchange._selectors, exchange._conditions) == ({}, {})


def test_a_backup_and_a_restart_route_alike() -> None:
    core = Core()
    bound(core, "topic", a=RED, b="")
    backup = Core(core.followed())
    backup.resources.replicated.take_over(core.now_ms, 0)
    exchange = backup.catalog.exchanges["x"]
    publish(backup, exchange, "b", colour="blue")
    assert {name: queue.messages.count for name, queue in backup.catalog.queues.items()} == {"a": 0, "b": 1}


def test_a_selector_that_this_release_cannot_read_is_left_to_the_consumer() -> None:
    core = Core()
    exchange, (queue,) = bound(core, "fanout", a="")
    exchange.bind(Binding(queue.id, "", selects("colour ~ 'red'")))
    exchange.bind(Binding(queue.id, "other", {SELECTOR_ARGUMENT: 7}))
    publish(core, exchange, "b", colour="blue")
    assert bodies(queue.messages) == ["b"]


@pytest.mark.parametrize("text", ["colour =", "colour ~ 'red'", 7, True])
def test_what_is_no_selector_is_refused_and_nothing_is_bound(text: Scalar) -> None:
    core = Core()
    exchange, _ = bound(core, "fanout")
    core.queue("q")
    with pytest.raises(InvalidArgument):
        core.configuration.bind("x", "q", "", {SELECTOR_ARGUMENT: text})
    assert exchange.bindings() == []


@pytest.mark.parametrize(("kind", "key"), [("direct", "k{}"), ("topic", "#.k{}")])
def test_the_work_for_one_message_is_bounded(kind: str, key: str) -> None:
    core = Core()
    exchange, _ = bound(core, kind, q=RED)
    costly = " OR ".join(f"colour LIKE '%_{end}%'" for end in "abcd")
    most = MAX_SELECTORS_COST // TextReader().selector(costly).cost
    for number in range(most):
        core.configuration.bind("x", "q", key.format(number), selects(f"{costly}{' ' * number}"))
    with pytest.raises(LimitReached, match="different selectors"):
        core.configuration.bind("x", "q", key.format("x"), selects(f"{costly} OR TRUE"))
    core.configuration.bind("x", "q", "k", selects(costly))
    assert len(exchange._selectors) == most + 1
    core.configuration.bind("x", "q", "another", selects(RED))
    other = core.queue("other")
    for number in range(MAX_CONDITIONAL_BINDINGS):
        core.configuration.bind("x", "other", f"k{number}", {})
    with pytest.raises(LimitReached, match="100"):
        core.configuration.bind("x", "other", "more", selects(RED))
    core.configuration.bind("x", "other", "more", {})
    assert exchange.count_of(other.id) == MAX_CONDITIONAL_BINDINGS + 1


def test_selectors_of_topics_apart_from_each_other_do_not_add_up() -> None:
    core = Core()
    bound(core, "topic")
    costly = " OR ".join(f"colour LIKE '%_{end}%'" for end in "abcd")
    most = MAX_SELECTORS_COST // TextReader().selector(costly).cost
    for number in range(2 * most):
        core.queue(f"q{number}")
        core.configuration.bind("x", f"q{number}", f"topic.{number}", selects(f"{costly}{' ' * number}"))
    for number in range(most):
        core.configuration.bind("x", f"q{number}", "one", selects(f"{costly} OR TRUE{' ' * number}"))
    with pytest.raises(LimitReached, match="different selectors"):
        core.configuration.bind("x", f"q{most}", "one", selects(f"{costly} OR FALSE"))
    core.configuration.bind("x", f"q{most}", "another", selects(f"{costly} OR FALSE"))
    core.configuration.bind("x", "q0", "one", selects(RED))  # it makes room


class HalfReader(TextReader):
    """Cannot read the properties of some."""

    def lookup(self, payload: bytes) -> Lookup:
        if b"unreadable" in payload:
            raise InvalidArgument("cut off")
        return super().lookup(payload)


def test_a_message_that_cannot_be_read_is_matched_by_no_selector_and_kept_from_nobody_else() -> None:
    core = Core(Resources(HalfReader()))
    exchange, queues = bound(core, "topic", a="colour IS NULL", b="")
    publish(core, exchange, "unreadable", "x")
    assert [bodies(queue.messages) for queue in queues] == [["x"], ["unreadable", "x"]]


def test_what_no_selector_matches_goes_to_the_alternate_exchange_and_through_transactions_too() -> None:
    core = Core()
    rest = core.queue("rest")
    core.exchange("others", "fanout", rest)
    exchange = core.configuration.declare_exchange("x", "fanout", {"qpid.alternate_exchange": "others"})
    queue = core.queue("q")
    core.configuration.bind("x", "q", "", selects(RED))
    core.resources.commit(transaction_of(*[(exchange, message(c, colour=c)) for c in ("red", "blue")]), core.now_ms)
    assert (bodies(queue.messages), bodies(rest.messages)) == (["red"], ["blue"])
    core.check()


def test_a_dead_letter_goes_where_selectors_say() -> None:
    core = Core()
    dead = core.queue("dead")
    core.exchange("dlx", "fanout")
    core.configuration.bind("dlx", "dead", "", selects(RED))
    queue = core.queue("q", alternate_exchange="dlx")
    core.publish(queue, message("r", colour="red"), message("b", colour="blue"))
    core.resources.reject(queue, core.take(queue, core.consumer(queue)))
    assert (bodies(dead.messages), core.resources.dead_letters_dropped_total) == (["r"], 1)


def test_a_state_that_routes_nothing_takes_such_bindings() -> None:
    sets = ResourceSets()
    core = Core()
    bound(core, "topic", a=RED)
    core.read()
    for record in core.records:
        sets.replicated.follow([record])
    (binding,) = sets.catalog.exchanges["x"].bindings()
    assert binding.arguments == selects(RED)


def test_releases_that_know_no_selectors_of_bindings_ignore_them_in_headers() -> None:
    exchange = make_exchange("headers", 1, "x", {})
    exchange.bind(Binding(7, "", {"size": "big", **selects(RED)}))
    assert exchange.route("", lambda: {"size": "big"}) == (7,)
