"""What a store keeps of the time by which messages expire, and what the next process makes of it."""

from __future__ import annotations

import json
from random import Random

import pytest

from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.server.runtime.steady_clock import SteadyClock, machine_time
from qpid_ha_broker.server.stores.store_clock import TOLERANCE_MS, StoreClock
from qpid_ha_broker.store.clock_mark import CLOCK_FILE, ClockMark, MachineTime, read_clock_mark
from simulated_disk import SimulatedDisk

DAY_MS = 86_400_000
BEGAN_MS = 1_800_000_000_000
MARK = ClockMark(BEGAN_MS + 7, MachineTime(BEGAN_MS, 5000, "0f3a"))


class Machine:
    """Its clocks, and a process of a broker with a store on it."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk(Random(1))
        self.wall_ms, self.boot_ms, self.boot = BEGAN_MS, 1_000_000, "first"
        self.start()

    def start(self) -> None:
        """Another process of the broker."""
        self.clock = MessageClock()
        steady = SteadyClock(lambda: self.wall_ms / 1000, lambda: self.boot_ms / 1000)
        self.kept = StoreClock(self.disk, self.clock, self.time, steady.now_ms)
        self.kept.restore()
        self.steady_ms = steady.now_ms

    def time(self) -> MachineTime:
        return MachineTime(self.wall_ms, self.boot_ms, self.boot)

    def pass_ms(self, passed_ms: int) -> None:
        self.wall_ms += passed_ms
        self.boot_ms += passed_ms

    def reboot(self, takes_ms: int) -> None:
        self.wall_ms += takes_ms
        self.boot_ms, self.boot = 100, self.boot + "+"

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms(self.steady_ms())

    def tick(self) -> bool:
        """Whether something was written."""
        is_due = self.kept.is_due
        if is_due:
            self.kept.write()
        return is_due


def test_a_new_store_and_one_of_an_older_release_begin_with_the_time_of_day() -> None:
    assert Machine().now_ms == BEGAN_MS


def test_a_process_goes_on_where_the_one_before_it_was_and_counts_what_passed_between_them() -> None:
    machine = Machine()
    machine.tick()
    machine.pass_ms(5000)
    machine.start()
    assert machine.now_ms == BEGAN_MS + 5000


@pytest.mark.parametrize("set_by_ms", [DAY_MS, -DAY_MS])
def test_who_sets_the_time_of_day_while_no_process_runs_changes_nothing_until_the_machine_is_booted(
    set_by_ms: int,
) -> None:
    machine = Machine()
    machine.tick()
    machine.wall_ms += set_by_ms
    machine.pass_ms(5000)
    machine.start()
    assert machine.now_ms == BEGAN_MS + 5000


@pytest.mark.parametrize("set_by_ms", [DAY_MS, -DAY_MS])
def test_a_time_of_day_that_was_set_while_the_broker_ran_changes_nothing_also_after_a_boot(set_by_ms: int) -> None:
    machine = Machine()
    machine.tick()
    machine.wall_ms += set_by_ms
    assert machine.now_ms == BEGAN_MS
    assert machine.tick(), "the next process has to know"
    machine.reboot(60_000)
    machine.start()
    assert machine.now_ms == BEGAN_MS + 60_000


def test_a_time_of_day_that_is_set_back_while_the_machine_is_off_takes_nothing_back() -> None:
    machine = Machine()
    machine.pass_ms(DAY_MS)
    machine.tick()
    machine.reboot(-5 * DAY_MS)
    machine.start()
    assert machine.now_ms == BEGAN_MS + DAY_MS


def test_what_a_primary_has_told_is_kept_too() -> None:
    machine = Machine()
    machine.tick()
    machine.clock.told(BEGAN_MS + DAY_MS, machine.steady_ms())
    assert machine.tick()
    machine.reboot(1000)
    machine.start()
    assert machine.now_ms == BEGAN_MS + DAY_MS + 1000


def test_nothing_is_written_while_nobody_sets_a_clock() -> None:
    machine = Machine()
    assert machine.tick()
    for _ in range(1000):
        machine.pass_ms(3_600_000)
        machine.wall_ms += TOLERANCE_MS // 1000  # as a time service does, which makes the clock faster
        assert machine.kept.is_due is (machine.wall_ms - BEGAN_MS - (machine.boot_ms - 1_000_000) > TOLERANCE_MS)


def test_a_mark_says_what_was_put_into_it() -> None:
    disk = SimulatedDisk(Random(1))
    assert read_clock_mark(disk) is None
    disk.replace(CLOCK_FILE, MARK.encode())
    assert read_clock_mark(disk) == MARK


def test_no_byte_of_a_mark_changes_unnoticed() -> None:
    whole = MARK.encode()
    for at in range(len(whole)):
        for byte in {whole[at] ^ 1, whole[at] ^ 0x80, ord("1"), ord("}")} - {whole[at]}:
            damaged = whole[:at] + bytes([byte]) + whole[at + 1 :]
            try:
                found = ClockMark.decode(damaged)
            except ValueError:
                continue
            assert found == MARK  # white space


def test_a_mark_that_was_cut_off_is_none() -> None:
    whole = MARK.encode()
    for length in range(len(whole) - 1):
        with pytest.raises(ValueError):
            ClockMark.decode(whole[:length])


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 2}, {"reading_ms": -1}, {"reading_ms": "1"}, {"wall_ms": None}, {"boot_ms": 1.5}, {"boot": 3},
        {"more": 1}, {"crc32": "no"},
    ],
    ids=str,
)  # fmt: skip
def test_a_damaged_mark_is_left_aside_and_the_next_one_is_whole(changed: dict[str, object]) -> None:
    machine = Machine()
    machine.pass_ms(DAY_MS)
    fields = json.loads(MARK.encode()) | changed
    machine.disk.replace(CLOCK_FILE, json.dumps(fields).encode())
    machine.start()
    assert machine.now_ms == BEGAN_MS + DAY_MS
    assert machine.tick()
    assert read_clock_mark(machine.disk) is not None


def test_this_machine_knows_since_when_it_is_booted() -> None:
    first, second = machine_time(), machine_time()
    assert first.boot == second.boot != ""
    assert first.boot_ms <= second.boot_ms
    assert first.wall_ms > BEGAN_MS - 10 * 365 * DAY_MS
