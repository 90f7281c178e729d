"""Stories about whom Pacemaker shall promote: what a state is worth, and the last comparison before a promotion."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from qpid_ha_agent.pacemaker.election import (
    NEVER,
    SCORES,
    Go,
    HandedOver,
    MakeWay,
    NodePosition,
    compare,
    reason_of,
    score_of,
)
from qpid_ha_agent.pacemaker.scores import position_of
from qpid_ha_agent.sight import Life, Sight
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, StoreOrigin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import Accept, PromotionEvidence, judge

EVERY_BROKER = list(itertools.product([*State, None], *[[False, True]] * 4))


def at(
    lsn: int = 100, generation: int = 3, epoch: int = 7, *, in_sync: bool = True, restored: bool = False
) -> NodePosition:
    """A backup that lost its primary."""
    return NodePosition(generation, epoch, lsn, "connecting", in_sync, restored)


def verdict(
    own: NodePosition, others: dict[str, NodePosition], handed_over: HandedOver | None = None, max_lag: int = 10
) -> Go | MakeWay:
    """What b does."""
    return compare("b", own, others, handed_over, max_lag)


# --- scores


def expected(state: State | None, has_data: bool, is_in_sync: bool, is_first_start: bool, is_restored: bool) -> str:
    """The table of docs/pacemaker.md, row by row."""
    match state, has_data, is_in_sync, is_first_start, is_restored:
        case State.PRIMARY, _, _, _, _:
            return "1000"
        case State.READY, _, _, _, _:
            return "500"
        case State.CONNECTING, True, True, _, False:
            return "200"
        case State.CONNECTING, True, True, _, True:
            return "100"
        case State.CONNECTING, False, _, True, _:
            return "10"
        case _:
            return "-INFINITY"


@pytest.mark.parametrize(("state", "has_data", "is_in_sync", "is_first_start", "is_restored"), EVERY_BROKER)
def test_every_broker_has_the_score_of_its_row(
    state: State | None, has_data: bool, is_in_sync: bool, is_first_start: bool, is_restored: bool
) -> None:
    broker = (state, has_data, is_in_sync, is_first_start, is_restored)
    assert score_of(reason_of(*broker)) == expected(*broker)


def test_who_was_made_way_for_comes_after_a_primary_and_before_everybody_else() -> None:
    others = [worth for reason, worth in SCORES.items() if reason not in ("primary", "better")]
    assert SCORES["primary"] > SCORES["better"] > max(others) > min(others) > 0
    assert score_of("") == NEVER


# --- the comparison


def test_a_candidate_that_nobody_else_published_beside_goes_on() -> None:
    assert isinstance(verdict(at(), {}), Go)


def test_the_furthest_goes_on() -> None:
    assert isinstance(verdict(at(100), {"a": at(99), "c": at(100)}), Go)


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (at(generation=2, epoch=9, lsn=900), at(generation=3, epoch=1, lsn=1)),
        (at(generation=3, epoch=6, lsn=900), at(generation=3, epoch=7, lsn=1)),
        (at(lsn=100), at(lsn=111)),
    ],
    ids=["generation before epoch", "epoch before position", "position"],
)
def test_a_newer_generation_beats_an_epoch_and_an_epoch_beats_a_position(
    own: NodePosition, other: NodePosition
) -> None:
    found = verdict(own, {"a": other})
    assert isinstance(found, MakeWay)
    assert found.node == "a"
    assert isinstance(verdict(other, {"a": own}), Go)


def test_way_is_made_for_the_best_of_several() -> None:
    found = verdict(at(1), {"a": at(500), "c": at(5, epoch=8), "d": at(900, generation=2)})
    assert isinstance(found, MakeWay)
    assert found.node == "c"


@pytest.mark.parametrize("max_lag", [0, 1, 10_000])
def test_a_small_lag_is_no_reason_for_another_election(max_lag: int) -> None:
    assert isinstance(verdict(at(100), {"a": at(100 + max_lag)}, max_lag=max_lag), Go)
    assert isinstance(verdict(at(100), {"a": at(101 + max_lag)}, max_lag=max_lag), MakeWay)


def test_a_lag_is_only_small_among_those_of_one_generation_and_epoch() -> None:
    """Else a broker that missed a whole generation would count as one message behind."""
    assert isinstance(verdict(at(100, epoch=6), {"a": at(101, epoch=7)}, max_lag=10_000), MakeWay)


def test_who_is_not_in_sync_never_wins_however_far_it_is() -> None:
    assert isinstance(verdict(at(1), {"a": at(10_000, generation=9, in_sync=False)}), Go)

    found = verdict(at(10_000, generation=9, in_sync=False), {"a": at(1)})
    assert isinstance(found, MakeWay)
    assert found.node == "a"


def test_when_nobody_is_in_sync_the_broker_itself_is_asked() -> None:
    """It refuses, and says who would have what is missing."""
    assert isinstance(verdict(at(in_sync=False), {"a": at(in_sync=False)}), Go)


def test_nobody_makes_way_for_a_dead_primary_that_was_restarted_though_its_store_goes_further() -> None:
    """Its broker would refuse: what it alone has was not confirmed."""
    dead_primary = at(103, restored=True)
    assert isinstance(verdict(at(100), {"a": dead_primary, "c": at(100)}, max_lag=0), Go)
    assert isinstance(verdict(at(99), {"a": dead_primary, "c": at(100)}, max_lag=0), MakeWay)

    found = verdict(dead_primary, {"a": at(99, epoch=6), "c": at(100)})
    assert isinstance(found, MakeWay)
    assert found.node == "c"


@pytest.mark.parametrize("own", [at(epoch=6), at(in_sync=False)], ids=["it was dropped", "it catches up"])
def test_who_has_to_make_way_does_so_for_one_that_was_not_restarted(own: NodePosition) -> None:
    others = {"a": at(103, restored=True), "c": at(100)}
    found = verdict(own, others)
    assert isinstance(found, MakeWay)
    assert found.node == "c"
    alone = verdict(own, others | {"a": at(1, epoch=8, restored=True)})
    assert isinstance(alone, MakeWay)
    assert alone.node == "a", "it went on alone"


def test_of_those_that_were_restarted_the_furthest_goes_on_whatever_lag_is_allowed() -> None:
    found = verdict(at(100, restored=True), {"a": at(101, restored=True)}, max_lag=10_000)
    assert isinstance(found, MakeWay)
    assert isinstance(verdict(at(101, restored=True), {"a": at(100, restored=True)}), Go)


# --- after a planned demotion


def test_a_planned_move_waits_for_the_last_of_what_the_old_primary_held() -> None:
    """Also what was not confirmed, however small the lag."""
    old = {"a": at(100)}
    found = verdict(at(99), old, HandedOver("a", 3, 100), max_lag=10_000)
    assert isinstance(found, MakeWay)
    assert found.node == "a"
    assert isinstance(verdict(at(100), old, HandedOver("a", 3, 100)), Go)


def test_a_planned_move_does_not_wait_for_one_that_is_gone() -> None:
    assert isinstance(verdict(at(99), {}, HandedOver("a", 3, 100)), Go)


def test_the_end_of_an_older_generation_says_nothing_about_this_one() -> None:
    assert isinstance(verdict(at(50, generation=4), {"a": at(50, generation=4)}, HandedOver("a", 3, 100)), Go)


# --- what is published


def test_a_position_reads_back_as_it_was_published() -> None:
    for position in (at(), at(in_sync=False), at(restored=True), NodePosition(0, 0, 0, "catchup", False)):
        assert NodePosition.read(str(position)) == position


@pytest.mark.parametrize(
    "text",
    ["", ":", "3:7:100", "3:7:100:ready", "3:7:100:ready:in-sync:1", "3:7:100:ready:restored",
     "-3:7:100:ready:in-sync", "3:7:x:ready:in-sync",
     "3:7:²:ready:in-sync", "3:7:100:ready:maybe", f"3:7:{'9' * 5000}:ready:in-sync", "3:7:100:re ady:in-sync"],
)  # fmt: skip
def test_what_is_no_position_is_read_as_none(text: str) -> None:
    assert NodePosition.read(text) is None


def test_where_a_primary_handed_over_reads_back() -> None:
    assert HandedOver.read("a", "3:100") == HandedOver("a", 3, 100)


@pytest.mark.parametrize("text", ["", "3", "3:", ":100", "²:1", "3:100:1", "-3:100", "9" * 5000 + ":1"])
def test_what_is_no_hand_over_is_read_as_none(text: str) -> None:
    assert HandedOver.read("a", text) is None


def test_a_broker_that_catches_up_publishes_that_it_is_behind_although_its_log_says_in_sync() -> None:
    """The log is of the time before it was away."""
    status = {"name": "b", "state": "ready", "generation": 3, "epoch": 7, "lsn": 100, "members": ["a", "b"]}
    assert position_of(Sight(Life.ANSWERS, "", status)) == NodePosition(3, 7, 100, "ready", True)
    assert not position_of(Sight(Life.ANSWERS, "", {**status, "state": "catchup"})).is_in_sync
    assert not position_of(Sight(Life.ANSWERS, "", {**status, "members": ["a", "c"]})).is_in_sync


def test_the_scores_are_those_of_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "pacemaker.md").read_text(encoding="utf-8")
    section = text.partition("## Scores and election")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([0-9]+) \| ", section, re.MULTILINE)
    assert sorted(map(int, rows)) == sorted(SCORES.values())


# --- the agents' election and the brokers' verdict


EVERY_THREE = list(itertools.product(itertools.product([7, 8], [100, 101], [False, True]), repeat=3))
"""Epoch, last number, and whether it was restarted, of three brokers."""
POSSIBLE = [three for three in EVERY_THREE if all(epoch == 8 or restored for epoch, _, restored in three)]
"""Whoever was not restarted has heard of the newest set."""


@pytest.mark.parametrize("three", POSSIBLE)
def test_whom_the_election_sends_ahead_the_verdict_accepts_and_nobody_else(
    three: tuple[tuple[int, int, bool], ...],
) -> None:
    """All are in sync and can be asked. Whoever is sent ahead and refused, or held back and fit, costs a plan."""
    names = ("a", "b", "c")
    positions = {
        name: at(lsn, epoch=epoch, restored=restored) for name, (epoch, lsn, restored) in zip(names, three, strict=True)
    }
    answers = {name: answer_of(name, names, position) for name, position in positions.items()}
    record = ClusterRecord("uuid", 3, "z", max(epoch for epoch, _, _ in three), names)
    for name in names:
        others = {other: position for other, position in positions.items() if other != name}
        elected = compare(name, positions[name], others, None, max_lag=1000)
        known = PromotionEvidence(
            own=answers[name], own_primary="z", answers=tuple(answers[other] for other in others), unreachable=(),
            record=record, has_coordinator=True, min_in_sync=1,
        )  # fmt: skip
        judged = judge(known)
        assert isinstance(elected, Go) == isinstance(judged, Accept), (name, elected, judged)


def answer_of(name: str, members: tuple[str, ...], position: NodePosition) -> Answer:
    """What that broker tells the others."""
    store = StoreOrigin.DIRTY if position.is_restored else StoreOrigin.MEMORY
    generation, epoch, lsn = position[:3]
    return Answer(
        1, name, f"{name}-1", "uuid", "connecting", generation, epoch, members, members, lsn, True, 0, "", True, "", 1,
        store,
    )  # fmt: skip


# --- what an administrator adds, docs/pacemaker.md, A preferred node


def test_the_preference_that_brings_a_primary_back_does_so_only_to_a_ready_node_and_does_not_beat_a_better_one() -> (
    None
):
    page = (Path(__file__).parents[2] / "docs" / "pacemaker.md").read_text(encoding="utf-8")
    section = page.partition("### A preferred node")[2].partition("\n##")[0]
    stay, preferred, never = (int(number) for number in re.findall(r"^\| `?(\d+)", section, re.MULTILINE))
    assert SCORES["ready"] + stay < SCORES["primary"] < SCORES["ready"] + preferred
    for reason in ("lost its primary", "came back", "first"):  # the last is what making way leaves
        assert SCORES[reason] + preferred < SCORES["better"]
    assert SCORES["lost its primary"] + never >= SCORES["better"]
