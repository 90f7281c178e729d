"""Stories about what comes next: by arrival, by priority with a fair share, or the last value of each key."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_support import Core, bodies, message, transaction_of, wants
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues.orders import ByPriority
from qpid_ha_broker.model.queues.sequence import Cursor, Entry

# Levels, then the level of each AMQP priority 0 to 9, from the table of the specification, section 3.2.1.
AMQP_LEVELS = {
    1: [0] * 10,
    2: [0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
    3: [0, 0, 0, 0, 1, 2, 2, 2, 2, 2],
    4: [0, 0, 0, 0, 1, 2, 3, 3, 3, 3],
    5: [0, 0, 0, 1, 2, 3, 4, 4, 4, 4],
    10: list(range(10)),
}


def test_first_in_first_out() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    assert core.consume(queue, 2) == ["a", "b"]
    core.publish(queue, "d")
    assert core.consume(queue) == ["c", "d"]
    core.check()


@pytest.mark.parametrize("levels", AMQP_LEVELS)
def test_amqp_priorities_fall_into_the_levels_that_the_specification_names(levels: int) -> None:
    order = ByPriority([0] * levels)
    assert [order.level_of(priority) for priority in range(10)] == AMQP_LEVELS[levels]
    assert order.level_of(255) == levels - 1


def test_higher_priorities_first_and_in_order_within_one() -> None:
    core = Core()
    queue = core.queue("q", priorities=10)
    for text, priority in (("a", 1), ("b", 9), ("c", 1), ("d", 9), ("e", 4)):
        core.publish(queue, message(text, priority=priority))
    assert bodies(queue.messages) == ["b", "d", "e", "a", "c"]
    assert core.consume(queue) == ["b", "d", "e", "a", "c"]
    core.check()


def test_an_urgent_message_overtakes_what_is_not_yet_handed_out() -> None:
    core = Core()
    queue = core.queue("q", priorities=2)
    core.publish(queue, "a", "b")
    consumer = core.consumer(queue)
    first = core.take(queue, consumer, 1)
    core.publish(queue, message("urgent", priority=9))
    assert bodies(first + core.take(queue, consumer)) == ["a", "urgent", "b"]


def test_a_released_message_returns_to_its_place_in_its_priority() -> None:
    core = Core()
    queue = core.queue("q", priorities=10)
    core.publish(queue, message("a", priority=1), message("b", priority=7), message("c", priority=7))
    consumer = core.consumer(queue)
    a, b, c = sorted(core.take(queue, consumer), key=lambda entry: entry.id)
    for entry in (c, a, b):
        core.resources.release(queue, [entry], failed=False)
    assert bodies(core.take(queue, consumer)) == ["b", "c", "a"]


def test_levels_without_messages_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    core, looks = Core(), 0
    queue = core.queue("q", priorities=10)
    core.publish(queue, *(message(str(n), priority=n) for n in range(10)))
    assert len(core.consume(queue)) == 10
    core.publish(queue, *(message(str(n), priority=0) for n in range(50)))
    peek = Cursor.peek

    def counted(cursor: Cursor) -> Entry | None:
        nonlocal looks
        looks += 1
        return peek(cursor)

    monkeypatch.setattr(Cursor, "peek", counted)
    assert len(core.take(queue, core.consumer(queue), 50)) == 50
    assert looks < 50, "where nobody has it, not even what comes next costs a call"


def test_with_a_share_lower_priorities_get_their_turn() -> None:
    core = Core()
    queue = core.queue("q", priorities=10, fairshare=3)
    for priority in (9, 5, 1):
        core.publish(queue, *(message(str(priority), priority=priority) for _ in range(7)))
    assert "".join(core.consume(queue)) == "999555111999555111951"


def test_without_lower_messages_a_share_holds_nobody_back() -> None:
    core = Core()
    queue = core.queue("q", priorities=10, fairshare=1)
    core.publish(queue, *(message(str(n), priority=9) for n in range(5)))
    assert "".join(core.consume(queue)) == "01234"


def test_a_share_is_that_of_the_queue_and_not_of_each_consumer() -> None:
    core = Core()
    queue = core.queue("q", priorities=10, fairshare=2)
    for priority in (9, 1):
        core.publish(queue, *(message(str(priority), priority=priority) for _ in range(6)))
    given_out = "".join(core.consume(queue, 1)[0] for _ in range(12))
    assert given_out == "991199119911"


def test_released_messages_wait_for_the_turn_of_their_priority() -> None:
    core = Core()
    queue = core.queue("q", priorities=10, fairshare=2)
    for priority in (9, 1):
        core.publish(queue, *(message(f"{priority}{n}", priority=priority) for n in range(4)))
    consumer = core.consumer(queue)
    held = core.take(queue, consumer, 2)
    assert bodies(held) == ["90", "91"]
    core.resources.release(queue, held, failed=False)
    # The high priority has had its two in a row: the low one is served before the returned ones are.
    assert bodies(core.take(queue, consumer)) == ["10", "11", "90", "91", "12", "13", "92", "93"]


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 4), st.integers(2, 10))
def test_a_share_never_loses_nor_repeats_and_keeps_each_priority_in_order(
    priorities: list[int], share: int, levels: int
) -> None:
    core = Core()
    queue = core.queue("q", priorities=levels, fairshare=share)
    core.publish(queue, *(message(str(n), priority=p) for n, p in enumerate(priorities)))
    order = ByPriority([0] * levels)
    level_of = [order.level_of(p) for p in priorities]
    given_out = [int(text) for text in core.consume(queue)]
    assert Counter(given_out) == Counter(range(len(priorities)))
    for level in range(levels):
        in_level = [n for n in given_out if level_of[n] == level]
        assert in_level == sorted(in_level)
    left = Counter(level_of)
    in_a_row = 0
    for n, following in pairwise(given_out):
        left[level_of[n]] -= 1
        in_a_row = in_a_row + 1 if level_of[n] == level_of[following] else 0
        others_wait = any(count for level, count in left.items() if level != level_of[n])
        # A row may end one turn and begin the next, so two shares are the most that others ever wait for.
        assert not others_wait or in_a_row < 2 * share


def test_browsers_of_a_priority_queue_see_every_message_by_priority() -> None:
    core = Core()
    queue = core.queue("q", priorities=10, fairshare=1)
    core.publish(queue, message("a", priority=1), message("b", priority=9), message("c", priority=9))
    assert bodies(core.take(queue, core.browser(queue))) == ["b", "c", "a"]
    assert queue.messages.acquired == 0


# --- last value


def test_only_the_last_value_of_each_key_stays_and_goes_to_the_end() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    core.publish(queue, message("a1", symbol="A"), message("b1", symbol="B"), message("a2", symbol="A"))
    assert bodies(queue.messages) == ["b1", "a2"]
    core.check()
    assert core.consume(queue) == ["b1", "a2"]


def test_messages_without_the_key_replace_nothing() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    core.publish(queue, "x", "y", message("a1", symbol="A"))
    assert core.consume(queue) == ["x", "y", "a1"]


def test_a_value_replaced_while_somebody_has_it_does_not_come_back() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    core.publish(queue, message("old", symbol="A"), message("other", symbol="B"))
    consumer = core.consumer(queue)
    held = core.take(queue, consumer)
    core.publish(queue, message("new", symbol="A"))
    assert queue.messages.count == 3
    core.resources.release(queue, held, failed=True)
    assert bodies(queue.messages) == ["other", "new"]
    core.check()
    assert bodies(core.take(queue, consumer)) == ["other", "new"]


def test_a_value_replaced_twice_while_held_is_gone_even_if_the_newer_one_was_consumed() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    core.publish(queue, message("1", symbol="A"))
    consumer = core.consumer(queue)
    held = core.take(queue, consumer)
    core.publish(queue, message("2", symbol="A"), message("3", symbol="A"))
    assert core.consume(queue) == ["3"]
    core.resources.release(queue, held, failed=False)
    assert queue.messages.count == 0
    core.publish(queue, message("4", symbol="A"))
    assert core.consume(queue) == ["4"]
    core.check()


def test_a_held_older_value_can_still_be_accepted() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    core.publish(queue, message("1", symbol="A"))
    consumer = core.consumer(queue)
    held = core.take(queue, consumer)
    core.publish(queue, message("2", symbol="A"))
    core.resources.accept(queue, held)
    core.publish(queue, message("3", symbol="A"))
    assert bodies(queue.messages) == ["3"]
    core.check()


def test_the_last_of_several_values_in_one_transaction_stays() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    core.publish(queue, message("0", symbol="A"))
    core.resources.commit(transaction_of(*((queue, message(n, symbol="A")) for n in "123")), core.now_ms)
    assert bodies(queue.messages) == ["3"]
    core.check()


@pytest.mark.parametrize("policy", ["reject", "ring"])
def test_a_newer_value_takes_the_room_of_the_older_one_and_not_that_of_another_key(policy: str) -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol", max_count=2, policy_type=policy)
    core.publish(queue, message("a1", symbol="A"), message("b1", symbol="B"), message("b2", symbol="B"))
    assert bodies(queue.messages) == ["a1", "b2"]
    core.check()


def test_a_browser_sees_each_value_once_and_newer_values_as_they_come() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    core.publish(queue, message("a1", symbol="A"), message("b1", symbol="B"))
    browser = core.browser(queue)
    assert bodies(core.take(queue, browser)) == ["a1", "b1"]
    core.publish(queue, message("a2", symbol="A"))
    assert bodies(core.take(queue, browser)) == ["a2"]


def test_selectors_and_last_values_agree() -> None:
    core = Core()
    queue = core.queue("prices", last_value_queue_key="symbol")
    picky = core.consumer(queue, accepts=wants("b"))
    core.publish(queue, message("a1", symbol="A"), message("b1", symbol="B"), message("b2", symbol="B"))
    assert bodies(core.take(queue, picky)) == ["b2"]


# --- shares of levels, and last values that are to go


def test_each_level_may_have_a_share_of_its_own() -> None:
    core = Core()
    shares = {"qpid.priorities": 3, "qpid.fairshare": 1, "qpid.fairshare-2": 3, "qpid.fairshare-0": 0}
    queue = core.configuration.declare_queue("q", shares)
    for level in (3, 4, 5):
        core.publish(queue, *(message(f"{level}", priority=level) for _ in range(5)))
    assert "".join(core.consume(queue, 9)) == "5554" + "33333"


def test_shares_of_levels_that_are_not_there_are_refused() -> None:
    core = Core()
    with pytest.raises(InvalidArgument, match="levels count from 0"):
        core.configuration.declare_queue("q", {"qpid.priorities": 3, "qpid.fairshare-3": 1})
    with pytest.raises(InvalidArgument, match="levels count from 0"):
        core.configuration.declare_queue("q", {"qpid.fairshare-1": 1})
    core.configuration.declare_queue("q", {"qpid.priorities": 3, "qpid.fairshare-1": 1})
    with pytest.raises(InvalidArgument, match="is fixed"):
        core.configuration.update_queue("q", {"qpid.fairshare-1": 2})


def test_a_tombstone_deletes_what_its_key_has_and_is_seen_by_nobody() -> None:
    core = Core()
    queue = core.queue("q", last_value_queue_key="key")
    core.publish(queue, message("a1", key="a"), message("b1", key="b"))
    core.publish(queue, message("", key="a", tombstone="yes"))
    assert core.consume(queue) == ["b1"]
    core.tick()
    assert queue.messages.count == 0
    core.check()


def test_a_tombstone_with_a_time_to_live_is_seen_for_so_long() -> None:
    core = Core()
    queue = core.queue("q", last_value_queue_key="key")
    browser = core.browser(queue)
    core.publish(queue, message("a1", key="a"), message("a2", key="a", tombstone="yes", ttl_ms=1000))
    assert bodies(core.take(queue, browser)) == ["a2"]
    core.tick(2000)
    assert queue.messages.count == 0


def test_what_a_consumer_has_when_its_key_is_deleted_does_not_come_back() -> None:
    core = Core()
    queue = core.queue("q", last_value_queue_key="key")
    core.publish(queue, message("a1", key="a"))
    consumer = core.consumer(queue)
    held = core.take(queue, consumer)
    core.publish(queue, message("", key="a", tombstone="yes"))
    core.tick()
    core.resources.release(queue, held, failed=True)
    assert core.take(queue, consumer) == []
    assert queue.messages.count == 0
    core.publish(queue, message("a2", key="a"))
    assert bodies(core.take(queue, consumer)) == ["a2"]


def test_without_a_key_a_tombstone_is_a_message() -> None:
    core = Core()
    queue = core.queue("q", last_value_queue_key="key")
    core.publish(queue, message("x", tombstone="yes"))
    assert core.consume(queue) == ["x"]
