"""Stories about how much one message to a topic may cost, when all topics are in one exchange."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_support import Core
from qpid_ha_broker.events.types import Bound
from qpid_ha_broker.model.errors import LimitReached
from qpid_ha_broker.model.exchanges import exchange as exchanges
from qpid_ha_broker.model.exchanges import topic_trie
from qpid_ha_broker.model.exchanges.exchange import Binding, make_exchange
from qpid_ha_broker.model.exchanges.topic_trie import Reach, TopicTrie

words = st.sampled_from(["a", "b", "c", "*", "#"])
patterns = st.lists(words, max_size=5).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6).map(".".join)
places = st.lists(st.tuples(patterns, st.integers(1, 4), st.integers(0, 3)), max_size=25)


def filled(*wanted: tuple[str, int, int]) -> TopicTrie:
    """Patterns, queues, and what their selectors cost."""
    trie = TopicTrie()
    for pattern, queue, cost in wanted:
        trie.add(pattern, queue)
        trie.weigh(pattern, queue, cost)
    return trie


@given(places, keys)
def test_no_key_leads_to_more_than_is_said(wanted: list[tuple[str, int, int]], key: str) -> None:
    trie = filled(*wanted)
    assert len(trie.match(key)) <= trie.reach().queues
    alone = {(pattern, queue): cost for pattern, queue, cost in wanted}
    cost = sum(cost for (pattern, queue), cost in alone.items() if filled((pattern, queue, 0)).match(key))
    assert cost <= trie.reach().cost


@given(places, st.data())
def test_what_has_gone_counts_no_more(wanted: list[tuple[str, int, int]], data: st.DataObject) -> None:
    trie, left = filled(*wanted), {(pattern, queue): cost for pattern, queue, cost in wanted}
    for pattern, queue in data.draw(st.permutations(sorted(left)))[: data.draw(st.integers(0, len(left)))]:
        trie.remove(pattern, queue)
        del left[pattern, queue]
    assert trie.reach() == filled(*((pattern, queue, cost) for (pattern, queue), cost in left.items())).reach()


@given(places, patterns, st.integers(0, 3))
def test_what_would_be_is_known_before(wanted: list[tuple[str, int, int]], pattern: str, cost: int) -> None:
    trie = filled(*wanted)
    expected = trie.reach(pattern, Reach(1, cost))
    trie.add(pattern, 99)
    trie.weigh(pattern, 99, cost)
    assert trie.reach() == expected


@pytest.mark.parametrize(
    ("wanted", "most"),
    [
        (["a", "b", "c"], 1),
        (["a.x", "a.y", "b.x"], 1),
        (["user.1.#", "user.2.#", "user.3.#"], 1),
        (["a", "a.#", "b", "*"], 3),
        (["#", "a", "b.c"], 2),
        (["#.a", "#.b"], 2),
        (["#.x.a.#", "#.x.b.#"], 2),
        (["a.*.x", "a.b.*", "a.b.x"], 3),
    ],
)
def test_topics_that_no_key_has_both_of_do_not_add_up(wanted: list[str], most: int) -> None:
    trie = filled(*((pattern, number, 0) for number, pattern in enumerate(wanted)))
    assert trie.reach() == Reach(most, 0)


def test_an_exchange_leads_to_any_number_of_queues_by_topics_and_one_topic_to_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchanges, "MAX_QUEUES", 3)
    exchange = make_exchange("topic", 1, "amq.topic", {})

    def bind(queue: int, key: str) -> None:
        exchange.check_room(Binding(queue, key, {}))
        exchange.bind(Binding(queue, key, {}))

    for number in range(10):
        bind(number, f"topic.{number}")
    bind(11, "topic.*")
    bind(12, "topic.#")
    with pytest.raises(LimitReached, match="leads to 3 queues"):
        bind(13, "#")
    with pytest.raises(LimitReached):
        bind(13, "topic.1")
    bind(13, "another")
    exchange.unbind(12, "topic.#")
    bind(14, "topic.1")
    assert exchange.route_message("topic.1", b"") == (1, 11, 14)
    with pytest.raises(LimitReached):
        bind(15, "topic.1")
    bind(16, "topic.2")


def longest(unit: str) -> str:
    """The pattern of so many of `unit` that has 255 bytes at most."""
    return ".".join([unit] * (exchanges.MAX_PATTERN_BYTES // (len(unit) + 1)))


@pytest.mark.parametrize("unit", ["#", "#.*", "#.a", "#.a.a", "#.a.#.*", "a.#", "*.a.#"])
def test_no_pattern_that_may_be_bound_costs_a_topic_more_than_some_thousand_steps(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 255 bytes cost a topic of 128 words 16,500, and let one of 157 be refused, whoever it was for."""
    monkeypatch.setattr(topic_trie, "MATCH_STEPS", (exchanges.MAX_OPEN_WORDS + 1) * 129)
    assert topic_trie.MATCH_STEPS < 5000
    exchange, words = make_exchange("topic", 1, "x", {}), longest(unit).split(".")
    with pytest.raises(LimitReached, match="at most 32 words from its first # on"):
        exchange.check_room(Binding(1, longest(unit), {}))
    taken = Binding(1, ".".join(words[: words.index("#") + exchanges.MAX_OPEN_WORDS]), {})
    exchange.check_room(taken)
    exchange.bind(taken)
    exchange.route_message(".".join(["a"] * 128), b"")


def test_words_before_the_first_wildcard_for_many_cost_nothing_more() -> None:
    exchange = make_exchange("topic", 1, "x", {})
    for key in ("a" + ".a" * 120, "*" + ".*" * 120, "a" + ".*" * 90 + ".#" + ".b" * 31, "a.b#" + ".c" * 90):
        exchange.check_room(Binding(1, key, {}))
    with pytest.raises(LimitReached, match="found 33"):
        exchange.check_room(Binding(1, "a" + ".*" * 90 + ".#" + ".b" * 32, {}))


def test_a_pattern_that_an_earlier_release_took_is_still_there_and_leads_where_it_did() -> None:
    core, pattern = Core(), longest("#.a")
    core.queue("q")
    core.exchange("x", "topic")
    with pytest.raises(LimitReached, match="words from its first #"):
        core.configuration.bind("x", "q", pattern, {})
    bound = Bound(core.catalog.exchanges["x"].id, core.catalog.queues["q"].id, pattern, {})
    core.resources.replicated.write(bound)
    core.check()
    again = core.followed()
    (queue,) = again.route(again.catalog.exchanges["x"], b";;", "a" + ".a" * 63)
    assert queue.name == "q"
    core.configuration.bind("x", "q", pattern, {})  # as a client that comes back asks for it
    core.configuration.unbind("x", "q", pattern)
    assert not core.catalog.exchanges["x"].bindings()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3), patterns), max_size=20), st.lists(keys, min_size=1))
def test_routes_that_are_remembered_are_those_of_now(changes: list[tuple[bool, int, str]], asked: list[str]) -> None:
    exchange = make_exchange("topic", 1, "x", {})
    for binds, queue, key in changes:
        for each in asked:
            exchange.route_message(each, b"")
        if binds:
            exchange.bind(Binding(queue, key, {}))
        else:
            exchange.unbind(queue, key)
    anew = make_exchange("topic", 1, "x", {})
    for binding in exchange.bindings():
        anew.bind(binding)
    for each in asked:
        assert set(exchange.route_message(each, b"")) == set(anew.route_message(each, b""))
