"""When what of a log was written: never later than it is said, however much was noted and whatever was taken back."""

from __future__ import annotations

from random import Random

import pytest

from kept_core import KeptCore, recovered
from paired_engines import PairedBroker
from qpid_ha_broker.model.logs.log import Log
from qpid_ha_broker.model.logs.write_times import BUCKET_MS, MAX_NOTES, WriteTimes

FIRST_MS = 1_000_000


def noted(random: Random) -> tuple[WriteTimes, list[int]]:
    """What was noted at 500 times, of some events or of none, and when each event came."""
    times = WriteTimes()
    came_ms: list[int] = []
    now_ms = FIRST_MS
    for _ in range(500):
        now_ms += random.choice([0, 1, 7, 50, 5000])
        came_ms += [now_ms] * random.randrange(4)
        times.note(now_ms, len(came_ms))
    return times, came_ms


@pytest.mark.parametrize("seed", range(20))
def test_what_is_skipped_came_before_and_hardly_anything_else_is_left(seed: int) -> None:
    random = Random(seed)
    times, came_ms = noted(random)
    for _ in range(200):
        asked_ms = random.randrange(FIRST_MS - 10, came_ms[-1] + 10)
        skipped = times.last_before(asked_ms)
        assert all(each < asked_ms for each in came_ms[:skipped])
        assert all(each >= asked_ms - BUCKET_MS for each in came_ms[skipped:])


@pytest.mark.parametrize("seed", range(20))
def test_an_event_is_dated_never_before_it_came_and_hardly_later(seed: int) -> None:
    random = Random(seed)
    times, came_ms = noted(random)
    after = random.randrange(len(came_ms) - 1)
    lsn, up_to = after, random.randrange(after + 1, len(came_ms) + 1)
    while lsn < up_to:
        notes = times.between(lsn, up_to, 7)
        assert 1 <= len(notes) <= 7
        for time_ms, last in notes:
            for dated in range(lsn + 1, min(last, up_to) + 1):
                assert came_ms[dated - 1] <= time_ms < came_ms[dated - 1] + BUCKET_MS
            lsn = last
    assert times.between(len(came_ms), len(came_ms) + 9, 7) == []


def test_many_notes_are_thinned_from_the_old_end_and_stay_true() -> None:
    times = WriteTimes()
    count = 3 * MAX_NOTES
    for at in range(1, count):
        times.note(at * BUCKET_MS, at)
    assert len(times) <= MAX_NOTES
    for at in (2, 1000, count // 2, count - 1):
        assert 0 <= times.last_before(at * BUCKET_MS) < at
    assert times.last_before((count - 1) * BUCKET_MS) == count - 2
    assert times.last_before(count // 2 * BUCKET_MS) > count // 2 - 50


def test_a_log_that_is_truncated_forgets_the_times_of_what_is_gone() -> None:
    log = Log()
    for now_ms, last_lsn in ((1000, 5), (2000, 9)):
        log.last_lsn = last_lsn
        log.note_time(now_ms)
    log.reset(7)
    log.note_time(3000)
    assert [log.write_times.last_before(ms) for ms in (1000, 1001, 2500, 3001)] == [0, 5, 5, 7]


def test_a_clock_that_is_put_back_makes_nothing_older() -> None:
    times = WriteTimes()
    times.note(5000, 1)
    times.note(1000, 2)
    assert [times.last_before(ms) for ms in (2000, 5000, 5001)] == [0, 0, 2]


def test_a_broker_that_is_started_again_knows_the_times_from_its_journal() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.keep()
    declared_lsn, declared_ms = core.log.last_lsn, core.now_ms
    core.now_ms += 60_000
    core.publish(queue, "a")
    core.keep()
    resources, facts = recovered(core.disk)
    times = resources.replicated.log.write_times
    asked_ms = (declared_ms, declared_ms + 1, core.now_ms, core.now_ms + 1)
    assert [times.last_before(each) for each in asked_ms] == [0, declared_lsn, declared_lsn, facts.last_lsn]


@pytest.mark.parametrize("is_marked", [False, True])
def test_a_turn_ends_with_the_time_at_which_all_of_it_was_written(is_marked: bool) -> None:
    """Whatever came in between two turns came before the end of the second."""
    container = PairedBroker().container
    configuration = container.default.configuration
    container.now_ms = 1_000
    configuration.declare_queue("q", {"qpid.replicate": "none"} if is_marked else {})
    container.turn()
    declared = container.default.resources.sets.log_ends
    container.now_ms = 2_000
    container.turn()
    logs = [each.log for each in container.default.resources.sets.all]
    assert [log.write_times.last_before(1_001) for log in logs] == list(declared)
    assert [log.write_times.last_before(1_000) for log in logs] == [0, 0]
