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
from qpid_ha_agent.pacemaker.scores import (
    FALL_AFTER_S,
    FALL_AT_LAST_S,
    TOLD_AGAIN_AFTER_S,
    Scores,
    is_outvoted,
    position_of,
)
from qpid_ha_agent.sight import Life, Sight
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, StoreOrigin
from qpid_ha_broker.ha.states import UNWRITABLE_S, State
from qpid_ha_broker.ha.verdict import Accept, PromotionEvidence, judge

EVERY_BROKER = list(itertools.product([*State, None], *[[False, True]] * 4))


class Pacemaker(ClusterAttributes):
    """Keeps the scores that node b tells; `positions`: what each node has published."""

    def __init__(self, positions: dict[str, str] | None = None) -> None:
        super().__init__("broker", "b")
        self.scores: list[str] = []
        self.is_idle = True
        self.positions = positions or {}

    def set_score(self, score: str, node: str = "") -> None:
        self.scores.append(score)

    def is_cluster_idle(self) -> bool:
        return self.is_idle

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


NEVER_BEGAN = ClusterRecord("uuid", 1, "a", 1, ("a",), claimed=True)


@pytest.mark.parametrize(
    ("name", "record", "may"),
    [
        ("a", NEVER_BEGAN, True),
        ("b", NEVER_BEGAN, False),
        ("a", NEVER_BEGAN._replace(claimed=False), False),
        ("a", NEVER_BEGAN._replace(members=("a", "b")), False),
        ("a", None, False),
    ],
)
def test_a_first_primary_that_died_before_its_first_event_may_be_promoted_again_and_nobody_else(
    tmp_path: Path, name: str, record: ClusterRecord | None, may: bool
) -> None:
    scores = Scores(Pacemaker(), MemoryFile("broker", tmp_path), lambda: False, lambda: record)
    assert scores.score(sight_of(name=name, generation=0, epoch=0, lsn=0, members=[])) == ("10" if may else NEVER)


@pytest.fixture
def pacemaker() -> Pacemaker:
    return Pacemaker()


@pytest.fixture
def scores(pacemaker: Pacemaker, tmp_path: Path) -> Scores:
    """That it is told."""
    return Scores(pacemaker, MemoryFile("broker", tmp_path), lambda: False)


def test_a_rise_is_told_at_once_and_a_fall_when_it_lasts_and_nothing_twice(
    pacemaker: Pacemaker, scores: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover's stages must not disturb what Pacemaker carries out."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
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


def full(unwritable_s: float = UNWRITABLE_S, **changes: object) -> Sight:
    """A primary whose disk is full, with a backup in sync, but for these changes."""
    status = {"state": "primary", "store_problem": "no room", "unwritable_s": unwritable_s, **changes}
    return sight_of(**status)


@pytest.mark.parametrize(
    ("sight", "score"),
    [
        pytest.param(full(1.9), "1000", id="it may have a moment"),
        pytest.param(full(), "5", id="whoever is in sync is better"),
        pytest.param(full(members=["b"]), "1000", id="nobody is"),
        pytest.param(full(state="ready"), "500", id="a backup leaves the in-sync set itself"),
        pytest.param(full(state="catchup"), NEVER, id="and has left it"),
        pytest.param(full(state="connecting"), NEVER, id="and leads nothing before it can"),
    ],
)
def test_a_broker_that_cannot_write_is_worth_less_than_any_that_can(tmp_path: Path, sight: Sight, score: str) -> None:
    assert Scores(Pacemaker(), MemoryFile("broker", tmp_path), lambda: False).score(sight) == score


def test_that_a_primary_cannot_write_is_told_with_the_next_look_when_pacemaker_is_idle(
    pacemaker: Pacemaker, scores: Scores
) -> None:
    scores.refresh(full(0.0))
    pacemaker.is_idle = False
    for _ in range(3):
        scores.raise_to(full())
    assert pacemaker.scores == ["1000"], "what is carried out is not thrown away for it"
    pacemaker.is_idle = True
    scores.raise_to(full())
    scores.raise_to(full())
    assert pacemaker.scores == ["1000", "5"]


def test_a_backup_that_loses_its_primary_reads_no_record_for_what_is_told_later_anyway(tmp_path: Path) -> None:
    """That takes a process, in the middle of a failover."""
    read = list[str]()
    pacemaker = Pacemaker()
    scores = Scores(pacemaker, MemoryFile("broker", tmp_path), lambda: False, lambda: read.append("it"))
    scores.refresh(sight_of(state="ready"))
    scores.raise_to(sight_of())
    assert read == []
    scores.raise_to(sight_of())  # it has fallen, and may have to be told
    assert read
    assert pacemaker.scores == ["500"]


def test_a_fall_waits_until_pacemaker_has_carried_out_what_it_does_though_not_for_ever(
    pacemaker: Pacemaker, scores: Scores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move of a virtual IP, or a fencing, may take longer than a fall has to last; each backup threw it away anew."""
    now_s = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    scores.refresh(sight_of(state="ready"))
    pacemaker.is_idle = False
    scores.refresh(sight_of())
    now_s += FALL_AFTER_S
    scores.refresh(sight_of())
    assert pacemaker.scores == ["500"]
    pacemaker.is_idle = True
    scores.refresh(sight_of())
    assert pacemaker.scores == ["500", "200"]

    pacemaker.is_idle = False
    scores.refresh(sight_of(state="catchup"))
    now_s += FALL_AT_LAST_S
    scores.refresh(sight_of(state="catchup"))
    assert pacemaker.scores == ["500", "200", "-INFINITY"]


# --- the comparison


HELD_100 = HandedOver("a", 3, 100)
DEAD_PRIMARY = at(103, restored=True)
COMPARISONS: dict[str, tuple[NodePosition, dict[str, NodePosition], int, HandedOver | None, str]] = {
    "nobody else has published anything": (at(), {}, 10, None, ""),
    "it is the furthest": (at(100), {"a": at(99), "c": at(100)}, 10, None, ""),
    "generation before epoch": (at(900, 2, 9), {"a": at(1, 3, 1)}, 10, None, "a"),
    "a newer generation": (at(1, 3, 1), {"a": at(900, 2, 9)}, 10, None, ""),
    "epoch before position": (at(900, 3, 6), {"a": at(1, 3, 7)}, 10, None, "a"),
    "a newer epoch": (at(1, 3, 7), {"a": at(900, 3, 6)}, 10, None, ""),
    "position": (at(100), {"a": at(111)}, 10, None, "a"),
    "a later position": (at(111), {"a": at(100)}, 10, None, ""),
    "the best of several": (at(1), {"a": at(500), "c": at(5, epoch=8), "d": at(900, 2)}, 10, None, "c"),
    "no lag is allowed and there is none": (at(100), {"a": at(100)}, 0, None, ""),
    "no lag is allowed": (at(100), {"a": at(101)}, 0, None, "a"),
    "as much as is allowed": (at(100), {"a": at(101)}, 1, None, ""),
    "more than is allowed": (at(100), {"a": at(102)}, 1, None, "a"),
    "as much as is allowed, of much": (at(100), {"a": at(10_100)}, 10_000, None, ""),
    "more than is allowed, of much": (at(100), {"a": at(10_101)}, 10_000, None, "a"),
    # Else a broker that missed a whole generation would count as one message behind.
    "a lag is only small within one epoch": (at(100, epoch=6), {"a": at(101)}, 10_000, None, "a"),
    "who is not in sync never wins": (at(1), {"a": at(10_000, 9, in_sync=False)}, 10, None, ""),
    "however far it is": (at(10_000, 9, in_sync=False), {"a": at(1)}, 10, None, "a"),
    # It refuses, and says who would have what is missing.
    "nobody is in sync": (at(in_sync=False), {"a": at(in_sync=False)}, 10, None, ""),
    # The broker of a primary that died and was restarted would refuse: what it alone has was not confirmed.
    "a dead primary's store goes further": (at(100), {"a": DEAD_PRIMARY, "c": at(100)}, 0, None, ""),
    "beside it the others compare": (at(99), {"a": DEAD_PRIMARY, "c": at(100)}, 0, None, "c"),
    "it makes way": (DEAD_PRIMARY, {"a": at(99, epoch=6), "c": at(100)}, 10, None, "c"),
    "who was dropped": (at(epoch=6), {"a": DEAD_PRIMARY, "c": at(100)}, 10, None, "c"),
    "one went on alone": (at(epoch=6), {"a": at(1, epoch=8, restored=True), "c": at(100)}, 10, None, "a"),
    "who catches up": (at(in_sync=False), {"a": DEAD_PRIMARY, "c": at(100)}, 10, None, "c"),
    "and one went on alone": (at(in_sync=False), {"a": at(1, epoch=8, restored=True), "c": at(100)}, 10, None, "a"),
    "of the restarted the furthest goes on": (at(100, restored=True), {"a": at(101, restored=True)}, 10_000, None, "a"),
    "whatever lag is allowed": (at(101, restored=True), {"a": at(100, restored=True)}, 10, None, ""),
    # A planned demotion: also what was not confirmed counts, however small the lag.
    "a move waits for all that the primary held": (at(99), {"a": at(100)}, 10_000, HELD_100, "a"),
    "and it is here": (at(100), {"a": at(100)}, 10, HELD_100, ""),
    "it does not wait for one that is gone": (at(99), {}, 10, HELD_100, ""),
    "the end of an older generation says nothing": (at(50, 4), {"a": at(50, 4)}, 10, HELD_100, ""),
}
"""Where b is, where the others are, what lag is allowed, what a handed over; whom b makes way for, nobody if empty."""


@pytest.mark.parametrize("title", COMPARISONS)
def test_the_furthest_in_sync_goes_on_and_the_others_make_way_for_it(title: str) -> None:
    own, others, max_lag, handed_over, node = COMPARISONS[title]
    found = compare("b", own, others, handed_over, max_lag)
    assert (found.node if isinstance(found, MakeWay) else "") == node


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
