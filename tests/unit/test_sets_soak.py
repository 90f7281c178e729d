"""What a soak of resource sets reads out of its run: pauses, kinds of messages, log lines; and its steps by seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.sets_trouble import Trouble
from bench.soak_report import Pause, kind_of, pauses_of, read_logs, stuck
from bench.upgrade_soak import longest_pause
from qpid_ha_demo.cluster import LocalCluster
from qpid_ha_demo.ledger import Ledger
from qpid_ha_demo.sets import SetTraffic

LOG = """\
2026-11-23T22:51:40.189Z info cluster set set-01: primary of generation 1
2026-11-23T22:51:42.147Z warning cluster set set-10: lost the primary at amqp://127.0.0.1:42609: nothing came for 2.1 s
2026-11-23T22:51:43.147Z warning cluster set set-02: lost the primary at amqp://127.0.0.1:36611: nothing came for 3 s
2026-11-23T22:51:44.000Z error broker a bug: no
    Traceback (most recent call last):
"""


def test_lines_of_one_kind_are_counted_together_and_tracebacks_apart() -> None:
    lines = read_logs([LOG, LOG])
    assert lines.tracebacks == 2
    assert lines.warnings == {"cluster set SET: lost the primary at ADDRESS: nothing came for N s": 4}
    assert lines.errors == {"broker a bug: no": 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("broker1 is told to lead set-03", "broker5 is told to lead set-11"),
        ("left: broker1, broker2", "left: broker4"),
        ("link 8956edd5-e461-4630-9d8c-9cd0c5b2d6b7-q refused", "link a1074fdb-0887-4f3e-aac1-7ce444fb7ef4-q refused"),
    ],
)
def test_names_and_numbers_do_not_make_another_kind(one: str, other: str) -> None:
    assert kind_of(one) == kind_of(other)


def test_a_set_that_confirms_nothing_pauses_also_at_the_end() -> None:
    traffic = SetTraffic("set-01", ["amqp://127.0.0.1:1"], durable=False)
    for number, at_s in enumerate([9.0, 10.1, 10.2, 11.2]):
        traffic.ledger.confirm(number, at_s)
    pauses = pauses_of(traffic.name, traffic.ledger, 10.0, 14.2)
    assert [(round(each.for_s, 3), round(each.from_s, 3), each.set) for each in pauses] == [
        Pause(1.0, 0.2, "set-01"),
        Pause(3.0, 1.2, "set-01"),
    ]


def test_a_pause_belongs_to_the_step_in_which_it_begins_and_is_as_long_as_it_is() -> None:
    early, late = Ledger(), Ledger()
    for number, at_s in enumerate([10.0, 10.1, 21.0, 21.1]):
        early.confirm(number, at_s)
    for number in range(40):
        late.confirm(number, 10 + 0.2 * number)
    ledgers = {"early": early, "late": late}
    assert longest_pause(ledgers, 10.0, 15.0, 21.2) == (21.0 - 10.1, "early")
    assert longest_pause(ledgers, 17.0, 20.0, 21.2) == (21.0 - 17.0, "early"), "since this step has begun"
    assert longest_pause({"late": late}, 10.0, 15.0, 21.2) == (0.0, "nobody")


@pytest.mark.parametrize(
    ("pause", "is_stuck"),
    [
        (Pause(80.0, 10.0, "set-01"), False),
        (Pause(150.0, 10.0, "set-01"), False),
        (Pause(151.0, 10.0, "set-01"), True),
        (Pause(61.0, 101.0, "set-01"), True),
        (Pause(59.0, 101.0, "set-01"), False),
    ],
)
def test_a_set_is_stuck_when_it_confirms_nothing_for_a_minute_after_the_last_disturbance(
    pause: Pause, is_stuck: bool
) -> None:
    assert bool(stuck([Pause(0.3, 120.0, "set-02"), pause], calm_s=100.0)) == is_stuck
    assert not stuck([], calm_s=100.0)


@pytest.mark.parametrize("has_stores", [False, True])
def test_a_seed_names_the_same_steps_again_and_disks_are_emptied_only_where_there_are_any(
    tmp_path: Path, has_stores: bool
) -> None:
    stores = tmp_path / "stores" if has_stores else None
    steps = []
    for _ in range(2):
        trouble = Trouble(LocalCluster(tmp_path, 5, stores=stores), ["set-01", "set-02"], stores, seed=7)
        steps.append([trouble.draw() for _ in range(300)])
        (tmp_path / "coordinator").rmdir()
    assert steps[0] == steps[1]
    assert ("wipe" in {step.kind for step in steps[0]}) == has_stores
