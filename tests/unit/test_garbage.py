"""Stories about what deleted queues and exchanges leave behind."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator

import pytest

from live_objects import no_collector
from model_support import Core, bodies, message
from paired_engines import PairedBroker
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.exchanges import topic_trie
from qpid_ha_broker.model.exchanges.exchange import UNINDEXED_LENGTH, ExchangeKind
from qpid_ha_broker.model.queues.sequence import BLOCK_LENGTH, Entry
from qpid_ha_broker.model.transactions.transaction import Message

SPENT = Budget(lambda: 0.0, 0.0)


@pytest.fixture(name="no_collector")
def without_collector() -> Iterator[None]:
    with no_collector():
        yield


def entries_in_memory() -> int:
    """Those of other tests too."""
    return sum(type(each) is Entry for each in gc.get_objects())


def patterns_in_memory() -> int:
    return sum(type(each).__module__ == topic_trie.__name__ for each in gc.get_objects())


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("arguments", [{}, {"priorities": 3}, {"last_value_queue_key": "k"}, {"message_ttl_ms": 1000}])
def test_the_messages_of_a_deleted_queue_go_in_portions_and_no_collector_is_needed(
    arguments: dict[str, Scalar],
) -> None:
    others = entries_in_memory()
    core = Core()
    queue = core.queue("q", **arguments)
    core.publish(queue, *(message("x", k=str(number)) for number in range(5 * BLOCK_LENGTH)))
    core.read()
    core.records.clear()
    core.configuration.delete_queue("q")
    core.catalog.deleted_queues.clear()
    left = [entries_in_memory()]
    del queue
    while core.catalog.garbage:
        core.catalog.garbage.run(SPENT)
        left.append(entries_in_memory())
    assert left[-1] == others
    assert max(before - after for before, after in itertools.pairwise(left)) <= BLOCK_LENGTH


@pytest.mark.parametrize("kind", ExchangeKind)
def test_no_message_goes_to_a_deleted_queue_while_its_bindings_are_still_being_taken_out(kind: ExchangeKind) -> None:
    core = Core()
    gone, stays = core.queue("gone"), core.queue("stays")
    exchange = core.exchange("e", kind.value)
    count = 3 * UNINDEXED_LENGTH
    for number in range(count):
        core.configuration.bind("e", "gone", f"red.{number}", {"colour": f"red.{number}", "x-match": "any"})
    last = message("x", f"red.{count - 1}", colour=f"red.{count - 1}")
    core.publish(exchange, last)
    core.configuration.delete_queue(gone.name)
    assert (len(exchange), exchange.bindings()) == (0, [])
    core.catalog.garbage.run(SPENT)
    core.publish(exchange, last)
    assert core.resources.unroutable_total == 1
    core.configuration.bind("e", "stays", f"red.{count - 1}", {"colour": f"red.{count - 1}"})
    core.publish(exchange, last)
    core.catalog.garbage.run()
    core.publish(exchange, last)
    assert stays.messages.count == 2
    core.check()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("whose", ["queue", "exchange"])
def test_the_patterns_of_what_is_deleted_go_in_portions(whose: str) -> None:
    core = Core()
    core.queue("q")
    core.exchange("e", "topic")
    for number in range(3 * UNINDEXED_LENGTH):
        core.configuration.bind("e", "q", f"red.{number}", {})
    left = [patterns_in_memory()]
    if whose == "queue":
        core.configuration.delete_queue("q")
    else:
        core.configuration.delete_exchange("e")
    while core.catalog.garbage:
        core.catalog.garbage.run(SPENT)
        left.append(patterns_in_memory())
    above = 2 * 4  # two nodes that all patterns have in common, each with its reach, and that of what lies below it
    assert max(before - after for before, after in itertools.pairwise(left)) <= UNINDEXED_LENGTH + above
    assert left[-1] <= left[0] - 3 * UNINDEXED_LENGTH


def test_what_only_deleted_queues_would_have_had_goes_to_the_alternate_exchange() -> None:
    core = Core()
    lost = core.queue("lost")
    core.exchange("lost-and-found", "fanout", lost)
    exchange = core.exchange("e", "topic", alternate_exchange="lost-and-found")
    core.queue("gone")
    core.configuration.bind("e", "gone", "#", {})
    core.publish(exchange, message("before", "red"))
    core.configuration.delete_queue("gone")
    core.publish(exchange, message("a", "red"))
    assert bodies(lost.messages) == ["a"]


@pytest.mark.usefixtures("no_collector")
def test_the_broker_lets_go_of_a_deleted_queue_over_several_turns() -> None:
    others = entries_in_memory()
    broker = PairedBroker()
    resources, configuration = broker.container.default.resources, broker.container.default.configuration
    queue = configuration.declare_queue("q", {})
    for _ in range(5 * BLOCK_LENGTH):
        resources.publish(queue, Message(b"x"), 0)
    clock = itertools.count()
    broker.container.clock = lambda: next(clock)
    configuration.delete_queue("q")
    turns = 0
    while broker.container.has_work:
        broker.turn()
        turns += 1
    assert turns >= 5
    assert entries_in_memory() == others
