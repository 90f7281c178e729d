"""Stories about where a message goes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.model.errors import LimitReached
from qpid_ha_broker.model.exchanges import exchange as exchanges
from qpid_ha_broker.model.exchanges.exchange import Binding, Exchange, ExchangeKind, make_exchange
from qpid_ha_broker.model.exchanges.topic_trie import TopicTrie

RED, GREEN, BLUE = 11, 12, 13

words = st.sampled_from(["a", "b", "", "*", "#"])
patterns = st.lists(words, max_size=6).map(".".join)
queues = st.integers(min_value=1, max_value=4)


def no_properties() -> Mapping[str, object]:
    raise AssertionError("only a headers exchange may ask for the application properties")


def exchange_of(kind: str, *bindings: tuple[int, str] | tuple[int, str, Arguments]) -> Exchange:
    exchange = make_exchange(kind, 7, "post", {})
    for queue, key, *arguments in bindings:
        exchange.bind(Binding(queue, key, arguments[0] if arguments else {}))
    return exchange


def headers_route(exchange: Exchange, **properties: object) -> tuple[int, ...]:
    return exchange.route("", lambda: properties)


def fits(pattern: list[str], key: list[str]) -> bool:
    """What a topic pattern means, in the fewest words."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return fits(pattern[1:], key) or (bool(key) and fits(pattern, key[1:]))
    return bool(key) and pattern[0] in ("*", key[0]) and fits(pattern[1:], key[1:])


def pattern_fits(pattern: str, key: str) -> bool:
    return fits(pattern.split(".") if pattern else [], key.split(".") if key else [])


def expected_route(exchange: Exchange, key: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(each.queue for each in exchange.bindings() if pattern_fits(each.key, key)))


@pytest.mark.parametrize("kind", list(ExchangeKind))
def test_an_exchange_is_what_it_was_declared_to_be(kind: ExchangeKind) -> None:
    exchange = make_exchange(kind.value, 5, "post", {"qpid.replicate": "none"})
    assert (exchange.id, exchange.name, exchange.kind) == (5, "post", kind)
    assert exchange.arguments == {"qpid.replicate": "none"}
    assert exchange.route("anything", no_properties) == ()


def test_an_unknown_kind_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ValueError, match=r"'topical'.*direct, topic, fanout, headers"):
        make_exchange("topical", 1, "post", {})


def test_a_direct_exchange_wants_the_exact_key() -> None:
    exchange = exchange_of("direct", (RED, "paint"), (GREEN, "paint"), (BLUE, "ink"))
    assert exchange.route("paint", no_properties) == (RED, GREEN)
    assert exchange.route("Paint", no_properties) == ()
    assert exchange.unbind(RED, "paint")
    assert exchange.route("paint", no_properties) == (GREEN,)


def test_a_fanout_exchange_ignores_the_key_and_names_each_queue_once() -> None:
    exchange = exchange_of("fanout", (RED, "a"), (GREEN, ""), (RED, "b"))
    assert exchange.route("whatever", no_properties) == (RED, GREEN)
    exchange.bind(Binding(BLUE, "", {}))
    assert exchange.route("whatever", no_properties) == (RED, GREEN, BLUE)
    exchange.unbind(RED, "a")
    assert exchange.route("whatever", no_properties) == (GREEN, RED, BLUE)


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("stock.usd.nyse", ["stock.usd.nyse"], ["stock.usd", "stock.usd.nyse.x", "stock_usd_nyse", ""]),
        ("stock.*.nyse", ["stock.usd.nyse", "stock..nyse"], ["stock.nyse", "stock.a.b.nyse"]),
        ("stock.#", ["stock", "stock.usd", "stock.usd.nyse"], ["stocks", "a.stock", ""]),
        ("#.nyse", ["nyse", "usd.nyse", "stock.usd.nyse"], ["nyse.usd", ""]),
        ("#", ["", "a", "a.b.c", "#", "*"], []),
        ("*", ["a", "*", "#"], ["", "a.b", "."]),
        ("*.#.*", ["a.b", "a.b.c", "."], ["a", ""]),
        ("a.#.b.#.c", ["a.b.c", "a.x.b.b.y.c"], ["a.c", "a.b", "a.c.b"]),
        ("", [""], ["a", "."]),
    ],
)
def test_a_topic_pattern_matches_word_by_word(pattern: str, matching: list[str], others: list[str]) -> None:
    exchange = exchange_of("topic", (RED, pattern))
    assert [exchange.route(key, no_properties) for key in matching] == [(RED,)] * len(matching)
    assert [exchange.route(key, no_properties) for key in others] == [()] * len(others)


def test_a_topic_exchange_routes_in_the_order_of_binding_and_names_each_queue_once() -> None:
    exchange = exchange_of("topic", (GREEN, "#.b"), (RED, "a.*"), (GREEN, "a.b"), (BLUE, "#"))
    assert exchange.route("a.b", no_properties) == (GREEN, RED, BLUE)
    exchange.unbind(GREEN, "#.b")
    assert exchange.route("a.b", no_properties) == (RED, GREEN, BLUE)


@given(st.lists(st.tuples(queues, patterns), max_size=8), patterns)
def test_a_topic_route_is_what_trying_every_pattern_would_give(bindings: list[tuple[int, str]], key: str) -> None:
    exchange = exchange_of("topic", *bindings)
    assert exchange.route(key, no_properties) == expected_route(exchange, key)


@given(st.data())
def test_a_remembered_topic_route_never_outlives_a_change(data: st.DataObject) -> None:
    exchange = make_exchange("topic", 1, "post", {})
    asked = data.draw(st.lists(patterns, min_size=1, max_size=3))
    for _ in range(data.draw(st.integers(0, 10))):
        queue, pattern = data.draw(st.tuples(queues, patterns))
        change = data.draw(st.sampled_from(["bind", "unbind", "unbind queue"]))
        if change == "bind":
            exchange.bind(Binding(queue, pattern, {}))
        elif change == "unbind":
            had = (queue, pattern) in [each[:2] for each in exchange.bindings()]
            assert exchange.unbind(queue, pattern) == had
        else:
            forgotten(exchange, queue)
        for key in asked:
            assert exchange.route(key, no_properties) == expected_route(exchange, key)


@given(
    st.lists(st.tuples(st.booleans(), queues, patterns), max_size=20), st.sampled_from(["topic", "direct", "fanout"])
)
def test_an_exchange_rebuilt_from_its_bindings_routes_alike(changes: list[tuple[bool, int, str]], kind: str) -> None:
    exchange = make_exchange(kind, 1, "post", {})
    for is_bind, queue, key in changes:
        if is_bind:
            exchange.bind(Binding(queue, key, {}))
        else:
            exchange.unbind(queue, key)
    rebuilt = exchange_of(kind, *exchange.bindings())
    for _, _, key in changes:
        assert rebuilt.route(key, no_properties) == exchange.route(key, no_properties)


def test_many_wildcards_cost_words_times_nodes_and_no_more() -> None:
    exchange = exchange_of("topic", (RED, ".".join(["#"] * 60 + ["end"])), (GREEN, ".".join(["#", "a"] * 60)))
    assert exchange.route(".".join(["a"] * 60), no_properties) == (GREEN,)
    assert exchange.route(".".join(["a"] * 60 + ["end"]), no_properties) == (RED,)


def test_a_topic_that_meets_too_many_patterns_is_refused_before_it_takes_long() -> None:
    """Twenty thousand words against a hundred `#` took two seconds for each message."""
    exchange = exchange_of("topic", (GREEN, ".".join(["#", "a"] * 60)))
    with pytest.raises(LimitReached, match="a topic of 20000 words"):
        exchange.route(".".join(["a"] * 20_000), no_properties)
    assert exchange.route("a." * 59 + "a", no_properties) == (GREEN,)
    assert exchange_of("topic", (RED, "#")).route(".".join(["a"] * 9000), no_properties) == (RED,)


def test_what_would_make_routing_slow_is_refused_when_it_is_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "MAX_QUEUES", 2)
    monkeypatch.setattr(exchanges, "MAX_HEADERS_ARGUMENTS", 3)
    fanout = exchange_of("fanout", (RED, ""), (GREEN, ""))
    fanout.check_room(Binding(RED, "another key", {}))
    with pytest.raises(LimitReached, match="leads to 2 queues"):
        fanout.check_room(Binding(BLUE, "", {}))
    topic = exchange_of("topic")
    topic.check_room(Binding(RED, "ż" * 127, {}))
    with pytest.raises(LimitReached, match="at most 255 bytes, found 256"):
        topic.check_room(Binding(RED, "ż" * 128, {}))
    headers = exchange_of("headers", (RED, "", {"a": 1, "b": 2}), (RED, "", {"a": 1}), (GREEN, "", {"c": 1}))
    headers.check_room(Binding(RED, "k", {"b": 1}))
    with pytest.raises(LimitReached, match="2 arguments; 3 are allowed"):
        headers.check_room(Binding(RED, "k", {"b": 1, "c": 2}))
    headers.unbind(GREEN, "")
    headers.check_room(Binding(RED, "k", {"b": 1, "c": 2}))


def test_the_route_cache_stays_small_whatever_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "ROUTE_CACHE_KEYS", 10)
    exchange = exchanges.TopicExchange(1, "post", {})
    exchange.bind(Binding(RED, "#", {}))
    for number in range(100):
        assert exchange.route(f"key.{number}", no_properties) == (RED,)
        assert len(exchange._routes) <= 10
    before = len(exchange._routes)
    assert exchange.route("long" * 1000, no_properties) == (RED,)
    assert len(exchange._routes) == before


def test_a_pattern_that_nobody_uses_any_more_takes_no_memory() -> None:
    trie = TopicTrie()
    trie.add("a.b", RED)
    trie.add("a.b.c.#", RED)
    trie.add("a.b.*", GREEN)
    trie.remove("a.b.c.#", RED)
    assert len(trie) == 3
    trie.remove("a.b.*", GREEN)
    assert trie.match("a.b") == (RED,)
    trie.remove("a.b", RED)
    assert len(trie) == 0


@pytest.mark.parametrize(
    ("arguments", "properties", "is_match"),
    [
        ({"color": "red", "size": 3}, {"color": "red", "size": 3, "more": 1}, True),
        ({"color": "red", "size": 3}, {"color": "red"}, False),
        ({"x-match": "all", "color": "red", "size": 3}, {"color": "red", "size": 4}, False),
        ({"x-match": "any", "color": "red", "size": 3}, {"color": "blue", "size": 3}, True),
        ({"x-match": "any", "color": "red", "size": 3}, {"color": "blue"}, False),
        ({"color": None}, {"color": "blue"}, True),
        ({"color": None}, {"color": None}, True),
        ({"color": None}, {"size": 3}, False),
        ({"x-match": "all"}, {}, True),
        ({"x-match": "any"}, {"color": "red"}, False),
        ({"x-ttl": 5}, {}, True),
        ({"flag": True}, {"flag": True}, True),
        ({"flag": True}, {"flag": 1}, False),
        ({"flag": 0}, {"flag": False}, False),
        ({"size": 3}, {"size": 3.0}, True),
        ({"size": 3}, {"size": "3"}, False),
    ],
)
def test_a_headers_binding_matches_by_its_arguments(
    arguments: Arguments, properties: dict[str, object], is_match: bool
) -> None:
    exchange = exchange_of("headers", (RED, "k", arguments))
    assert headers_route(exchange, **properties) == ((RED,) if is_match else ())


def test_a_headers_exchange_routes_in_the_order_of_binding_and_names_each_queue_once() -> None:
    exchange = exchange_of("headers", (GREEN, "1", {"a": 1}), (RED, "2", {}), (GREEN, "3", {}))
    assert headers_route(exchange, a=1) == (GREEN, RED)
    assert headers_route(exchange, a=2) == (RED, GREEN)


@pytest.mark.parametrize("match", ["some", "ALL", "", 1, None])
def test_a_nonsensical_match_is_refused_and_the_old_binding_stays(match: str | int | None) -> None:
    exchange = exchange_of("headers", (RED, "k", {"a": 1}))
    with pytest.raises(ValueError, match=re.escape(f"x-match is {match!r}: use 'all' or 'any'")):
        exchange.bind(Binding(RED, "k", {"x-match": match}))
    with pytest.raises(ValueError, match="x-match"):
        exchange.bind(Binding(GREEN, "k", {"x-match": match}))
    assert exchange.bindings() == [Binding(RED, "k", {"a": 1})]
    assert headers_route(exchange, a=1) == (RED,)


@pytest.mark.parametrize("kind", list(ExchangeKind))
def test_binding_again_replaces_and_keeps_the_place(kind: str) -> None:
    exchange = exchange_of(kind, (RED, "k", {"a": 1}), (GREEN, "k"), (RED, "k", {"a": 2}))
    assert exchange.bindings() == [Binding(RED, "k", {"a": 2}), Binding(GREEN, "k", {})]
    assert exchange.route("k", lambda: {"a": 2}) == (RED, GREEN)
    assert exchange.unbind(RED, "k")
    assert exchange.route("k", lambda: {"a": 2}) == (GREEN,)


@pytest.mark.parametrize("kind", list(ExchangeKind))
def test_unbinding_tells_whether_there_was_a_binding(kind: str) -> None:
    exchange = exchange_of(kind, (RED, "k"))
    assert not exchange.unbind(RED, "other")
    assert not exchange.unbind(GREEN, "k")
    assert exchange.unbind(RED, "k")
    assert not exchange.unbind(RED, "k")
    assert exchange.bindings() == []


def forgotten(exchange: Exchange, queue: int) -> list[Binding]:
    """The bindings of a queue that is gone, when routing has forgotten all of them."""
    removed = exchange.unbind_queue(queue)
    for _ in exchange.unindex(removed):
        pass
    return removed


@pytest.mark.parametrize("kind", list(ExchangeKind))
def test_a_queue_that_is_gone_takes_all_its_bindings_along(kind: str) -> None:
    exchange = exchange_of(kind, (RED, "k"), (GREEN, "k"), (RED, "l"))
    assert forgotten(exchange, RED) == [Binding(RED, "k", {}), Binding(RED, "l", {})]
    assert forgotten(exchange, RED) == []
    assert exchange.bindings() == [Binding(GREEN, "k", {})]
    assert exchange.route("k", dict) == (GREEN,)
