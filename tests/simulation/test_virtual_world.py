"""The simulation's own parts: time, the network and the coordinator do what they are said to do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import (
    Ask,
    FrameReceived,
    Input,
    LinkLost,
    LinkOpened,
    PeersAnswered,
    RecordWritten,
    SilentPeer,
)
from qpid_ha_broker.ha.frames import Heartbeat, Question, Topic
from simulation.copies import Copy
from simulation.core.channel import Delivery
from simulation.core.network import CONNECT_LIMIT_S, Network
from simulation.core.register import LIMIT_S, Register
from simulation.custody import Custody, Generation, Holder, Loss
from simulation.machines.streams import Post, StreamEnd, Streams
from simulation.virtual_time import Clock, Schedule


class Listener:
    """A host that writes down what it is told."""

    def __init__(self, network: Network, index: int) -> None:
        self.index = index
        self.name = f"n{index}"
        self.process = 1
        self.is_up = True
        self.is_paused = False
        self.heard: list[Input] = []
        network.hosts[f"n{index}:5672"] = self

    def feed(self, happening: Input, delivery: Delivery | None = None) -> None:
        self.heard.append(happening)

    def next_link(self) -> int:
        return 7

    def lsns(self) -> list[int]:
        frames = [each.frame for each in self.heard if isinstance(each, FrameReceived)]
        return [frame.last_lsn for frame in frames if isinstance(frame, Heartbeat)]


def make_network(nodes: int = 2) -> tuple[Schedule, Network, list[Listener]]:
    schedule = Schedule()
    network = Network(schedule, random.Random(1), 0.01, 1000, None)
    return schedule, network, [Listener(network, index) for index in range(nodes)]


def connected() -> tuple[Schedule, Network, Listener, Listener]:
    schedule, network, (one, other) = make_network()
    network.connect(one, -1, "n1:5672")
    schedule.run_until(1.0)
    assert one.heard == [LinkOpened(-1)]
    return schedule, network, one, other


def test_what_happens_at_the_same_time_happens_in_the_order_in_which_it_was_asked_for() -> None:
    schedule, seen = Schedule(), list[str]()
    schedule.at(2.0, lambda: seen.append("late"))
    schedule.at(1.0, lambda: seen.append("first"))
    schedule.at(1.0, lambda: seen.append("second"))

    schedule.run_until(1.5)

    assert (seen, schedule.now_s) == (["first", "second"], 1.5)


def test_a_wall_clock_that_jumps_leaves_the_monotonic_one_alone() -> None:
    schedule = Schedule()
    clock = Clock(schedule, 1.01, 100.0)
    schedule.run_until(10.0)
    before_ms = clock.wall_ms()
    clock.wall_offset_ms -= 86_400_000

    assert clock.wall_ms() == before_ms - 86_400_000
    assert clock.monotonic_s() == 100.0 + 10.0 * 1.01


def test_a_channel_keeps_the_order() -> None:
    schedule, network, one, other = connected()
    for lsn in range(300):
        network.send(one, -1, Heartbeat(1, 0, lsn))

    schedule.run_until(10.0)

    assert other.lsns() == list(range(300))


def test_a_partition_holds_frames_back_until_it_heals() -> None:
    schedule, network, one, other = connected()
    network.block(0, 1)
    network.send(one, -1, Heartbeat(1, 0, 1))
    network.send(other, 7, Heartbeat(1, 0, 2))
    schedule.run_until(5.0)
    assert other.lsns() == []

    network.unblock(0, 1)
    network.send(one, -1, Heartbeat(1, 0, 3))
    schedule.run_until(10.0)

    assert other.lsns() == [1, 3]


def test_a_broken_channel_takes_nothing_and_only_who_notices_hears_of_it() -> None:
    schedule, network, one, other = connected()
    network.send(one, -1, Heartbeat(1, 0, 1))
    schedule.run_until(2.0)
    network.break_between(0, 1, True, False)
    network.send(one, -1, Heartbeat(1, 0, 2))

    schedule.run_until(10.0)

    assert one.heard[-1] == LinkLost(-1, "connection reset")
    assert other.lsns() == [1]


def test_a_dead_process_refuses_and_a_cut_off_one_does_not_answer() -> None:
    schedule, network, (one, other) = make_network()
    other.is_up = False
    network.connect(one, -1, "n1:5672")
    schedule.run_until(0.5)
    assert one.heard == [LinkLost(-1, "refused")]

    other.is_up = True
    network.block(1, 0)
    network.connect(one, -2, "n1:5672")
    schedule.run_until(0.5 + CONNECT_LIMIT_S)
    assert one.heard[1:] == []
    schedule.run_until(4.0)
    assert one.heard[1:] == [LinkLost(-2, "no answer")]


def test_a_question_ends_at_its_limit_and_says_who_has_not_answered() -> None:
    schedule, network, (one, _, third) = make_network(3)
    third.is_up = False
    question = Question(5, Topic.STATUS, "n0", "n0#1", "", 0, 0, "")

    network.ask(one, Ask(question, ("n1:5672", "n2:5672"), 0.5))
    schedule.run_until(1.0)

    silent = (SilentPeer("n1:5672", "it said nothing"),)
    assert one.heard == [PeersAnswered(5, (), ("n1:5672", "n2:5672"), silent)]


def test_the_register_takes_one_of_two_writers() -> None:
    schedule = Schedule()
    register = Register(schedule, *(random.Random(1) for _ in range(3)))
    answers: list[object] = []
    for name in ("n0", "n1"):
        register.write(1, ClusterRecord(), ClusterRecord("c", 1, name, 1, (name,)), answers.append)

    schedule.run_until(2 * LIMIT_S)

    assert len(register.history) == 2
    assert len(answers) == 2


RECORD = ClusterRecord("c", 1, "n0", 1, ("n0",))


def written(register: Register, schedule: Schedule, expected: ClusterRecord, wanted: ClusterRecord) -> RecordWritten:
    """The answer to one write."""
    answers: list[RecordWritten] = []
    register.write(1, expected, wanted, answers.append)
    schedule.run_until(schedule.now_s + 2 * LIMIT_S)
    return answers[0]


def test_a_record_that_is_put_back_is_that_of_then() -> None:
    schedule = Schedule()
    register = Register(schedule, *(random.Random(2) for _ in range(3)))
    assert written(register, schedule, ClusterRecord(), RECORD).written
    now_s, newer = schedule.now_s, RECORD._replace(epoch=2)
    assert written(register, schedule, RECORD, newer).written

    since_s = register.put_back(now_s)

    assert register.record == RECORD
    assert 0 < since_s < now_s
    assert register.misleads_until_s(schedule.now_s, 4.0) == math.inf
    register.lose()
    assert register.record == ClusterRecord()


def test_a_record_that_was_put_back_misleads_nobody_once_it_was_written() -> None:
    schedule = Schedule()
    register = Register(schedule, *(random.Random(2) for _ in range(3)))
    assert written(register, schedule, ClusterRecord(), RECORD).written
    now_s, newer = schedule.now_s, RECORD._replace(epoch=2)
    assert written(register, schedule, RECORD, newer).written
    put_back_s = schedule.now_s
    register.put_back(now_s)

    assert written(register, schedule, RECORD, newer).written

    assert put_back_s < register.misleads_until_s(put_back_s, 4.0) < put_back_s + LIMIT_S


def test_but_the_primary_of_a_generation_that_is_over_until_somebody_else_has_written_and_it_has_looked() -> None:
    """It slept, and has a change recorded by what it finds."""
    schedule = Schedule()
    register = Register(schedule, *(random.Random(3) for _ in range(3)))
    assert written(register, schedule, ClusterRecord(), RECORD).written
    now_s, newer = schedule.now_s, RECORD._replace(generation=2, primary="n1")
    assert written(register, schedule, RECORD, newer).written
    put_back_s = schedule.now_s
    register.put_back(now_s)
    alone = RECORD._replace(epoch=2)
    assert written(register, schedule, RECORD, alone).written
    assert register.misleads_until_s(put_back_s, 4.0) == math.inf

    asked_s = schedule.now_s
    assert written(register, schedule, alone, newer).written

    assert asked_s + 4.0 < register.misleads_until_s(put_back_s, 4.0) < asked_s + 4.0 + LIMIT_S


def test_a_first_start_is_overtaken_by_one_whose_record_was_lost_after_it_had_begun() -> None:
    schedule = Schedule()
    register = Register(schedule, *(random.Random(2) for _ in range(3)))
    slow, late = RECORD._replace(cluster="slow"), RECORD._replace(cluster="late")
    register.writes_late = True
    register.write(2, ClusterRecord(), slow, lambda reply: None)
    schedule.run_until(LIMIT_S / 2)
    register.writes_late = False
    register.write(3, ClusterRecord(), RECORD, lambda reply: None)
    schedule.run_until(LIMIT_S)
    assert register.record == RECORD
    register.lose()
    schedule.run_until(10.0)
    assert register.record == slow
    register.lose()
    assert written(register, schedule, ClusterRecord(), late).written

    assert register.was_overtaken("slow", 10.0)
    assert not register.was_overtaken("slow", LIMIT_S), "it led before that"
    assert not register.was_overtaken("late", schedule.now_s), "it could have asked whoever held data"


def test_a_late_write_takes_effect_after_its_failure_was_told_unless_somebody_was_faster() -> None:
    schedule = Schedule()
    register = Register(schedule, *(random.Random(2) for _ in range(3)))
    register.writes_late = True
    answers: list[RecordWritten] = []
    register.write(1, ClusterRecord(), RECORD, answers.append)
    register.write(2, ClusterRecord(), RECORD._replace(primary="n1"), answers.append)
    while not answers:
        schedule.run_until(schedule.now_s + 0.05)

    assert answers[0].record is None
    assert register.record == ClusterRecord()
    schedule.run_until(20.0)
    assert register.record.primary in ("n0", "n1")
    assert len(register.history) == 2


def test_a_holder_has_lost_only_what_came_after_the_copy_of_its_disk() -> None:
    schedule = Schedule()
    custody = Custody(["n0"], True, lambda: schedule.now_s)
    copy = Copy("p", 1, 0, "q", 0)
    custody.synced("n0", b"..." + copy.payload() + b"...")
    (holder,) = custody.holders_of(copy)

    custody.disk_lost("n0", "put back", 5.0)

    assert custody.loss(holder, 4.0) is None
    assert custody.loss(holder, 6.0) == Loss("put back at 0.0 s", 5.0)
    custody.disk_lost("n0", "lost")
    assert custody.loss(holder, 4.0) == Loss("lost at 0.0 s")


def test_who_received_a_message_has_it_until_its_process_dies() -> None:
    schedule = Schedule()
    custody = Custody(["n0", "n1"], False, lambda: schedule.now_s)
    copy = Copy("p", 1, 0, "q", 0, durable=False)
    for name in ("n0", "n1"):
        custody.started((name, 1))
        custody.received((name, 1), copy.payload())
        custody.reached((name, 1), Generation("c", 1), 7 if name == "n0" else 6)

    custody.died(("n1", 1), "crash")

    assert [custody.loss(holder, 0.0) for holder in custody.holders_of(copy)] == [None, Loss("crash at 0.0 s")]
    assert custody.holders_at(Generation("c", 1), 7) == (Holder("n0", 1),)
    assert custody.holders_at(Generation("c", 2), 1) == ()


def test_a_newer_copy_brings_back_what_an_older_one_had_taken_away() -> None:
    schedule = Schedule()
    custody = Custody(["n0"], True, lambda: schedule.now_s)
    at_first = Holder("n0", 0, 1)
    schedule.run_until(10.0)
    custody.disk_put_back("n0", "put back", 5.0, is_silent=False)
    assert custody.loss(at_first, 8.0) is not None
    schedule.run_until(11.0)

    custody.disk_put_back("n0", "put back again", 9.0, is_silent=True)

    assert custody.loss(at_first, 8.0) is None
    loss, between = custody.loss(at_first, 9.5), custody.loss(Holder("n0", 0, 2), 10.5)
    assert loss is not None
    assert between is not None
    assert (loss.is_silent, between.is_silent) == (True, True)
    assert custody.loss(Holder("n0", 0, 3), 12.0) is None
    custody.disk_lost("n0", "lost")
    assert custody.loss(at_first, 8.0) is not None


class StoppedProcess:
    """It can be connected to, and reads nothing."""

    name = "stopped"
    is_up = True

    def __init__(self) -> None:
        self.end: StreamEnd | None = None
        self.posted: list[Callable[[], None]] = []

    def accept(self, end: StreamEnd) -> None:
        self.end = end

    def post_here(self) -> Post:
        return self.posted.append


@pytest.mark.parametrize("hang_up", [StreamEnd.close, StreamEnd.abort, StreamEnd.write_eof])
def test_a_stopped_process_can_see_that_the_other_end_of_a_stream_has_hung_up_once_that_came(
    hang_up: Callable[[StreamEnd], None],
) -> None:
    schedule, process, opened = Schedule(), StoppedProcess(), list[StreamEnd | None]()
    streams = Streams(schedule, random.Random(1), 0.01, 1 << 20)
    streams.listeners["stopped"] = process
    streams.connect("client", lambda told: told(), "stopped", lambda end, _: opened.append(end))
    schedule.run_until(1.0)
    (ours,), theirs = opened, process.end
    assert ours is not None
    assert theirs is not None
    ours.write(b"a request")
    schedule.run_until(2.0)
    assert not theirs.has_hung_up
    streams.block("client", "stopped")
    hang_up(ours)
    schedule.run_until(3.0)
    assert not theirs.has_hung_up
    streams.unblock("client", "stopped")
    assert theirs.has_hung_up
