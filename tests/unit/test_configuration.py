"""Stories about making, changing and deleting queues, exchanges and bindings."""

from __future__ import annotations

import pytest

from model_support import Core, bodies, message
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.configuration import MAX_NAME_BYTES
from qpid_ha_broker.model.errors import AlreadyExists, InUse, InvalidArgument, NotFound
from qpid_ha_broker.model.exchanges import ExchangeKind
from qpid_ha_broker.model.queue_arguments import Replicate
from qpid_ha_broker.model.replication import STANDARD_EXCHANGES


def test_the_standard_exchanges_are_there_and_stay() -> None:
    core = Core()
    core.configuration.declare_standard_exchanges()
    core.configuration.declare_standard_exchanges()
    assert {name: each.kind for name, each in core.state.exchanges.items()} == STANDARD_EXCHANGES
    for name in STANDARD_EXCHANGES:
        with pytest.raises(InUse, match="standard"):
            core.configuration.delete_exchange(name)
    core.check()


def test_declaring_the_same_queue_again_finds_it_and_another_one_is_refused() -> None:
    core = Core()
    queue = core.queue("q", max_count=5)
    lsn = core.log.last_lsn
    assert core.queue("q", max_count=5) is queue
    with pytest.raises(AlreadyExists, match="other arguments"):
        core.queue("q", max_count=6)
    assert core.log.last_lsn == lsn


def test_declaring_the_same_exchange_again_finds_it_and_another_one_is_refused() -> None:
    core = Core()
    exchange = core.exchange("e", "topic")
    assert core.exchange("e", "topic") is exchange
    with pytest.raises(AlreadyExists, match="topic"):
        core.exchange("e", "fanout")


def test_queues_and_exchanges_share_their_names() -> None:
    core = Core()
    core.queue("q")
    core.exchange("e")
    with pytest.raises(AlreadyExists, match="taken"):
        core.exchange("q")
    with pytest.raises(AlreadyExists, match="taken"):
        core.queue("e")


@pytest.mark.parametrize("name", ["", "a\nb", "x" * (MAX_NAME_BYTES + 1), "é" * MAX_NAME_BYTES, "\ud800", "$own"])
def test_names_that_nobody_could_print_or_that_are_the_brokers_are_refused(name: str) -> None:
    core = Core()
    for declare in (core.queue, core.exchange):
        with pytest.raises(InvalidArgument):
            declare(name)
    assert core.log.last_lsn == 0


@pytest.mark.parametrize(
    "arguments",
    [{"owner": float("inf")}, {"owner": 1 << 70}, {"owner": "x" * 70_000}, {"owner": "\ud800"}, {"owner": b"bytes"}],
)
def test_what_no_log_could_hold_is_refused_before_it_is_written(arguments: dict[str, Scalar]) -> None:
    core = Core()
    core.queue("q")
    core.exchange("e", "headers")
    lsn = core.log.last_lsn
    with pytest.raises(InvalidArgument):
        core.configuration.declare_queue("other", arguments)
    with pytest.raises(InvalidArgument):
        core.configuration.declare_exchange("other", "fanout", arguments)
    with pytest.raises(InvalidArgument):
        core.configuration.update_queue("q", arguments)
    with pytest.raises(InvalidArgument):
        core.configuration.bind("e", "q", "key", arguments)
    with pytest.raises(InvalidArgument):
        core.configuration.bind("e", "q", "k" * 70_000, {})
    assert core.log.last_lsn == lsn
    core.check()


def test_the_same_queue_may_be_asked_for_in_other_words() -> None:
    core = Core()
    queue = core.configuration.declare_queue("q", {"qpid.replicate": "all", "qpid.max_count": "5", "owner": "me"})
    assert queue.replication is Replicate.MESSAGES
    for level in ("messages", "ALL"):
        same: dict[str, Scalar] = {"qpid.max_count": 5, "qpid.replicate": level, "owner": "me"}
        assert core.configuration.declare_queue("q", same) is queue
    others: list[dict[str, Scalar]] = [{"qpid.max_count": 5, "owner": "me"}, {"qpid.replicate": "all"}]
    for other in others:
        with pytest.raises(AlreadyExists):
            core.configuration.declare_queue("q", other)


def test_what_is_not_there_is_named() -> None:
    core = Core()
    core.queue("q")
    core.exchange("e")
    configuration = core.configuration
    for attempt in (
        lambda: configuration.delete_queue("nowhere"),
        lambda: configuration.update_queue("nowhere", {}),
        lambda: configuration.delete_exchange("nowhere"),
        lambda: configuration.bind("nowhere", "q", "", {}),
        lambda: configuration.bind("e", "nowhere", "", {}),
        lambda: core.queue("new", alternate_exchange="nowhere"),
        lambda: core.exchange("new", "fanout", alternate_exchange="nowhere"),
        lambda: configuration.update_queue("q", {"qpid.alternate_exchange": "nowhere"}),
    ):
        with pytest.raises(NotFound, match="nowhere"):
            attempt()
    with pytest.raises(NotFound, match="not bound"):
        configuration.unbind("e", "q", "key")
    core.check()


def test_an_exchange_is_of_a_kind_that_there_is() -> None:
    with pytest.raises(InvalidArgument, match="direct, topic, fanout, headers"):
        Core().exchange("e", "carrier pigeon")


def test_limits_can_change_while_messages_wait_and_a_none_takes_one_away() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, "a")
    assert core.configuration.update_queue("q", {"qpid.max_count": 2}) is queue
    core.publish(queue, "b")
    core.configuration.update_queue("q", {"qpid.max_count": None})
    core.publish(queue, *"cd")
    assert core.consume(queue) == [*"abcd"]
    assert queue.arguments.given == {}
    core.check()


@pytest.mark.parametrize(
    "changes", [{"qpid.priorities": 5}, {"qpid.last_value_queue_key": "k"}, {"qpid.fairshare": 2, "qpid.priorities": 3}]
)
def test_the_order_of_a_queue_is_fixed_when_it_is_made(changes: dict[str, Scalar]) -> None:
    core = Core()
    core.queue("q")
    with pytest.raises(InvalidArgument, match="fixed"):
        core.configuration.update_queue("q", changes)


def test_a_smaller_ring_drops_what_is_too_much_at_the_next_message() -> None:
    core = Core()
    queue = core.queue("q", max_count=5, policy_type="ring")
    core.publish(queue, *"abcde")
    core.configuration.update_queue("q", {"qpid.max_count": 2})
    core.publish(queue, "f")
    assert bodies(queue.entries()) == ["e", "f"]
    core.check()


def test_a_queue_is_not_deleted_where_it_had_to_be_empty_or_unused() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    consumer = core.consumer(queue)
    with pytest.raises(InUse, match="1 messages"):
        core.configuration.delete_queue("q", if_empty=True)
    with pytest.raises(InUse, match="1 consumers"):
        core.configuration.delete_queue("q", if_unused=True)
    core.leave(queue, consumer)
    assert core.configuration.delete_queue("q", if_unused=True).queue is queue
    assert queue.deleted
    assert core.resources.deleted_queues == [queue]


def test_a_queue_that_is_made_again_under_its_old_name_is_a_new_one() -> None:
    core = Core()
    old = core.queue("q")
    core.exchange("e", "fanout", old)
    core.publish(old, "a")
    held = core.take(old, core.consumer(old))
    core.configuration.delete_queue("q")
    new = core.queue("q")
    assert new is not old
    assert new.id > old.id
    assert (new.count, new.consumers) == (0, [])
    assert core.state.exchanges["e"].bindings() == []
    core.publish(new, "b")
    core.resources.accept(old, held)
    assert bodies(new.entries()) == ["b"]
    core.check()


def test_a_deleted_queue_leaves_all_its_bindings() -> None:
    core = Core()
    queue, other = core.queue("q"), core.queue("other")
    exchanges = [core.exchange(kind.value, kind, queue, other) for kind in ExchangeKind]
    core.configuration.delete_queue("q")
    for exchange in exchanges:
        assert [binding.queue for binding in exchange.bindings()] == [other.id]
        core.publish(exchange, "a")
    assert other.count == 4
    core.check()


def test_unbinding_stops_messages() -> None:
    core = Core()
    queue = core.queue("q")
    exchange = core.exchange("e", "direct")
    core.configuration.bind("e", "q", "red", {})
    core.publish(exchange, message("a", "red"), message("b", "blue"))
    core.configuration.unbind("e", "q", "red")
    core.publish(exchange, message("c", "red"))
    assert bodies(queue.entries()) == ["a"]
    core.check()


def test_a_bad_binding_is_refused_before_it_is_written() -> None:
    core = Core()
    core.queue("q")
    core.exchange("e", "headers")
    lsn = core.log.last_lsn
    with pytest.raises(InvalidArgument, match="x-match"):
        core.configuration.bind("e", "q", "", {"x-match": "some"})
    assert core.log.last_lsn == lsn


def test_an_exchange_in_use_is_not_deleted() -> None:
    core = Core()
    queue = core.queue("q")
    core.exchange("dlx", "fanout", queue)
    core.queue("user", alternate_exchange="dlx")
    core.exchange("e", "fanout", alternate_exchange="dlx")
    with pytest.raises(InUse, match="user, e"):
        core.configuration.delete_exchange("dlx")
    core.configuration.delete_queue("user")
    core.configuration.delete_exchange("e")
    with pytest.raises(InUse, match="1 bindings"):
        core.configuration.delete_exchange("dlx", if_unused=True)
    core.configuration.delete_exchange("dlx")
    assert core.state.exchanges == {}
    core.check()


def test_what_was_done_is_told_in_an_operators_words_once() -> None:
    core = Core()
    core.exchange("news", "topic")
    core.queue("orders", max_count=5)
    core.queue("reply", auto_delete=True)
    core.configuration.bind("news", "orders", "a.#", {})
    core.configuration.declare_queue("orders", {"qpid.max_count": 5})
    core.configuration.delete_queue("orders")
    assert core.configuration.take_changes() == [
        ("topic exchange news created", False),
        ("queue orders created qpid.max_count=5", False),
        ("queue reply created qpid.auto_delete=True", True),
        ("queue orders bound to news with the key 'a.#'", False),
        ("queue orders deleted; messages in it: 0", False),
    ]
    assert core.configuration.take_changes() == []
