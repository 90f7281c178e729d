"""How fast a user's publishers get credit: never more than the rate and a burst, and who waits is told in order."""

from __future__ import annotations

import random

import pytest

from qpid_ha_broker.access.rate_limit import BURST_S, LATE_S, WAKE_S, WINDOW_S, RateLimit, TokenBucket


class Clock:
    """A clock, and what was to be called at which time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def turn_after(self, wait_s: float) -> None:
        self.due_s.append(self.now_s + wait_s)


class Publisher:
    """A link whose client sends whatever it has credit for."""

    def __init__(self, limit: RateLimit, *, most: int = 1000) -> None:
        self.limit, self.due, self.left, self.sent = limit, most, 0, 0
        self.replenish()

    def replenish(self) -> None:
        given = self.limit.take(self, self.due, self.left)
        self.due -= given
        self.left += given

    def send(self, count: int = 1_000_000) -> int:
        """How many messages it could send."""
        count = min(count, self.left)
        self.left -= count
        self.due += count
        self.sent += count
        self.replenish()
        return count


@pytest.fixture
def clock() -> Clock:
    return Clock()


def limit_of(clock: Clock, rate: float) -> tuple[RateLimit, dict[RateLimit, None]]:
    held: dict[RateLimit, None] = {}
    return RateLimit(rate, clock, held, clock.turn_after), held


def run(clock: Clock, held: dict[RateLimit, None], publishers: list[Publisher], for_s: float) -> None:
    """Everybody sends what may be sent, woken when that was asked for."""
    end_s = clock.now_s + for_s
    while True:
        while sum(each.send() for each in publishers):
            pass
        later = [due_s for due_s in clock.due_s if due_s > clock.now_s]
        if not later or min(later) > end_s:
            clock.now_s = end_s
            return
        clock.now_s, clock.due_s = min(later), later
        for rate in list(held):
            rate.wake()


def test_a_bucket_gives_no_more_than_its_rate_and_one_burst_in_any_time() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    for _ in range(100):
        rate, now_s = chance.choice((0.01, 0.5, 1.0, 7.3, 500.0)), 0.0
        bucket, given = TokenBucket(rate, now_s), list[tuple[float, int]]()
        for _ in range(200):
            now_s += chance.choice((0.0, 0.001, 0.1, 3.0)) / min(rate, 1.0)
            given.append((now_s, bucket.take(chance.randrange(1, 1000), now_s)))
            start_s, _ = chance.choice(given)
            taken = sum(count for at_s, count in given if at_s >= start_s)
            assert taken <= rate * (now_s - start_s) + max(rate * BURST_S, 1.0) + 1e-6


def test_what_is_given_back_can_be_taken_again_but_makes_no_more_than_a_burst() -> None:
    bucket = TokenBucket(10.0, 0.0)
    assert bucket.take(100, 0.0) == 10
    bucket.give_back(4)
    assert bucket.take(100, 0.0) == 4
    bucket.give_back(1000)
    assert bucket.take(100, 0.0) == 10
    assert bucket.wait_s(5, 0.0) == pytest.approx(0.5)


@pytest.mark.parametrize("links", [1, 3, 40])
@pytest.mark.parametrize("rate", [0.5, 10.0, 500.0, 20_000.0])
def test_links_that_always_send_come_to_the_rate_together(clock: Clock, links: int, rate: float) -> None:
    limit, held = limit_of(clock, rate)
    publishers = [Publisher(limit) for _ in range(links)]
    run(clock, held, publishers, 100.0)
    total = sum(each.sent for each in publishers)
    most = rate * (100.0 + BURST_S) + 1
    assert most - rate * (2 * WAKE_S + 1) - links - 2 <= total <= most
    if rate * 100 > 10 * links * max(rate * WINDOW_S / links, 1):  # each had its turn many times
        assert min(each.sent for each in publishers) > total / links / 2


def test_a_link_that_sends_nothing_takes_nothing_from_the_others_but_its_window(clock: Clock) -> None:
    limit, held = limit_of(clock, 100.0)
    idle = [Publisher(limit) for _ in range(5)]
    busy = Publisher(limit)
    run(clock, held, [busy], 50.0)
    assert busy.sent >= 100.0 * 50 - 10
    assert idle[0].left == 25
    assert all(each.left >= 1 for each in idle)


def test_who_opens_a_link_for_each_message_is_as_fast_as_with_one_link(clock: Clock) -> None:
    limit, _ = limit_of(clock, 100.0)
    sent = 0
    for _ in range(1000):
        publisher = Publisher(limit)
        sent += publisher.send(1)
        limit.left(publisher, publisher.left)
        clock.now_s += 0.01
    assert sent == 1000


def test_who_waits_is_woken_in_the_order_of_asking_and_not_for_each_message(clock: Clock) -> None:
    limit, _ = limit_of(clock, 100.0)
    first = Publisher(limit)
    while first.send():
        pass
    second, third = Publisher(limit), Publisher(limit)
    assert [limit.is_waiting(each) for each in (first, second, third)] == [True] * 3
    assert clock.due_s == [pytest.approx(WAKE_S + LATE_S)]
    limit.wake()
    assert first.left == second.left == third.left == 0
    clock.now_s = clock.due_s[0]
    limit.wake()
    assert (first.left, second.left, third.left) == (1, 1, 1)
    while first.send() or second.send() or third.send():
        pass
    clock.now_s += 0.02
    limit.wake()
    assert (first.left, second.left, third.left) == (0, 0, 0)
    limit.left(third, 0)
    assert not limit.is_waiting(third)


def test_another_rate_holds_at_once_for_who_waits(clock: Clock) -> None:
    limit, held = limit_of(clock, 0.001)
    publisher = Publisher(limit)
    assert publisher.send() == 1
    assert held
    limit.change(1000.0)
    limit.wake(all_of_them=True)
    run(clock, held, [publisher], 1.0)
    assert 900 <= publisher.sent <= 1001


def test_nothing_is_remembered_of_who_has_been_away_for_a_burst(clock: Clock) -> None:
    limit, held = limit_of(clock, 10.0)
    publisher = Publisher(limit)
    run(clock, held, [publisher], 5.0)
    limit.left(publisher, publisher.left)
    assert not limit.is_idle
    clock.now_s += BURST_S
    assert limit.is_idle
