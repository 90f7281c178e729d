"""Stories about whom Pacemaker shall promote: what a state is worth, and the last comparison before a promotion."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

import pytest

from qpid_ha_agent.ocf.memory import MemoryFile
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes
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
from qpid_ha_agent.pacemaker.rivals import NOTIFIED, Rivals
from qpid_ha_agent.pacemaker.scores import FALL_AFTER_S, TOLD_AGAIN_AFTER_S, Scores, is_outvoted, position_of
from qpid_ha_agent.sight import Life, Sight
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, StoreOrigin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import Accept, PromotionEvidence, judge

EVERY_BROKER = list(itertools.product([*State, None], *[[False, True]] * 4))


class Pacemaker(ClusterAttributes):
    """Keeps the scores that node b tells; `positions`: what each node has published."""

    def __init__(self, positions: dict[str, str] | None = None) -> None:
        super().__init__("broker", "b")
        self.scores: list[str] = []
        self.positions = positions or {}

    def set_score(self, score: str, node: str = "") -> None:
        self.scores.append(score)

    def published(self, name: str) -> dict[str, str]:
        return self.positions


def sight_of(**changes: object) -> Sight:
    """A look at b, which was in sync and has lost its primary, but for these changes."""
    status = {"name": "b", "state": "connecting", "generation": 3, "epoch": 7, "lsn": 100, "members": ["a", "b"]}
    return Sight(Life.ANSWERS, "", {**status, **changes})


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


@pytest.mark.parametrize(
    ("members", "epoch", "generation", "is_out"),
    [
        pytest.param("a", 8, 3, True, id="others went on without it"),
        pytest.param("ab", 8, 3, False, id="it was in the newest set"),
        pytest.param("a", 6, 3, False, id="its own log knows a newer set"),
        pytest.param("ab", 9, 2, True, id="the record does not know its generation"),
    ],
)
def test_who_was_left_out_by_the_record_is_no_candidate(
    tmp_path: Path, members: str, epoch: int, generation: int, is_out: bool
) -> None:
    record = ClusterRecord("uuid", generation, "a", epoch, tuple(members))
    assert is_outvoted(sight_of(), record) == is_out
    assert not is_outvoted(sight_of(), None)
    scores = Scores(Pacemaker(), MemoryFile("broker", tmp_path), lambda: False, lambda: record)
    assert scores.score(sight_of()) == (NEVER if is_out else "200")


def test_a_rise_is_told_at_once_and_a_fall_when_it_lasts_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover's stages must not disturb what Pacemaker carries out."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    pacemaker = Pacemaker()
    scores = Scores(pacemaker, MemoryFile("broker", tmp_path), lambda: False)
    for state in ("ready", "ready", "connecting", "catchup", "ready", "connecting"):
        scores.refresh(sight_of(state=state))
    assert pacemaker.scores == ["500"]

    now_s += FALL_AFTER_S
    scores.refresh(sight_of())
    scores.refresh(sight_of(state="ready"))
    assert pacemaker.scores == ["500", "200", "500"]
    scores.refresh(sight_of(state="ready"), always=True)
    now_s += TOLD_AGAIN_AFTER_S
    scores.refresh(sight_of(state="ready"))
    assert pacemaker.scores == ["500", "200", "500", "500", "500"]


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


# --- among those that Pacemaker names


FURTHER = "3:8:90:connecting:in-sync "
MOVED: dict[str, object] = {"state": "ready"}
RESTORED: dict[str, object] = {"restored": "dirty"}


@pytest.mark.parametrize(
    ("published", "active", "changes", "makes_way"),
    [
        pytest.param(FURTHER, "a b", {}, True, id="another one is further"),
        pytest.param(FURTHER, "b c", {}, False, id="it has gone since"),
        pytest.param(FURTHER, "", {}, False, id="nobody is told who is there"),
        pytest.param(FURTHER, "a b", {"chosen": True}, False, id="this store was chosen"),
        pytest.param("3:7:101:ready:in-sync 3:101", "a b", MOVED, True, id="a move to one that lacks something"),
        pytest.param("3:7:100:ready:in-sync 3:101", "a b", MOVED, True, id="a move to one that lacks the very end"),
        pytest.param("3:7:100:ready:in-sync 3:100", "a b", MOVED, False, id="a move to one that has all"),
        pytest.param("3:7:101:connecting:in-sync:restored", "a b", RESTORED, True, id="its store goes further"),
        pytest.param("3:7:100:connecting:in-sync:restored", "a b", RESTORED, False, id="its store is no further"),
        pytest.param("²:1:2:ready:in-sync ²:9", "a b", {}, False, id="garbage"),
    ],
)  # fmt: skip
def test_way_is_made_for_who_runs_and_has_published_that_it_holds_more(
    published: str, active: str, changes: dict[str, object], makes_way: bool
) -> None:
    rivals = Rivals(lambda: Pacemaker({"a": published}), {f"{NOTIFIED}active_uname": active})
    assert isinstance(rivals.judge(sight_of(**changes), 0), MakeWay) == makes_way


@pytest.mark.parametrize(
    ("operation", "named", "is_leaving"),
    [
        pytest.param("stop", {}, True, id="it goes"),
        pytest.param("demote", {"demote": "b"}, True, id="the primary goes"),
        pytest.param("stop", {"demote": "b"}, False, id="it was cleared before it was demoted"),
        pytest.param("stop", {"start": "b"}, False, id="it is restarted"),
        pytest.param("stop", {"stop": "a"}, False, id="another one is stopped"),
        pytest.param("stop", {"stop": "a b"}, False, id="all are stopped"),
        pytest.param("demote", {"demote": "b", "stop": " "}, False, id="the primary moves"),
    ],
)
def test_a_broker_is_cleared_before_it_is_stopped_for_longer(
    operation: str, named: dict[str, str], is_leaving: bool
) -> None:
    about = {"stop": "b", "active": "a b"} | named
    environment = {f"{NOTIFIED}{role}_uname": nodes for role, nodes in about.items()}
    assert Rivals(Pacemaker, environment).is_leaving("b", operation) == is_leaving


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
