"""The soak of a group: its steps by seed, which faults go together, and what a disturbance excuses."""

from __future__ import annotations

from typing import cast

import pytest

from bench import group_soak
from bench.group_soak import GroupTrouble
from bench.steps import Step
from lab.group import EXCUSED_S, FAULTS, Disturbance, Fault, Group, GroupAccount, GroupLoad, is_excused

MEMBERS = ("n1", "n2", "n3")


class NoGroup:
    """Has members, to which nothing happens."""

    members = MEMBERS


def trouble(seed: int = 7) -> GroupTrouble:
    return GroupTrouble(cast("Group", NoGroup()), cast("GroupLoad", None), seed)


def step(kind: str, *order: int) -> Step:
    return Step(kind, order or (0, 1, 2), 0, 1.0, 0.0)


@pytest.fixture(autouse=True)
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Faults that only write down whom they befell."""
    begun: list[str] = []

    def begin(_: Group, victim: str) -> tuple[str, ...]:
        begun.append(victim)
        return (victim,)

    harmless = Fault(begin, lambda group, victim: None, 0.0)
    monkeypatch.setattr(group_soak, "FAULTS", dict.fromkeys(FAULTS, harmless))
    return begun


def test_a_seed_names_the_same_steps_again_and_all_faults_are_drawn() -> None:
    draws = [[made.draw() for _ in range(300)] for made in (trouble(), trouble())]
    assert draws[0] == draws[1]
    assert {drawn.kind for drawn in draws[0]} == {*FAULTS, "disconnect"}


def test_a_member_has_one_fault_at_a_time_and_the_network_too(begun: list[str]) -> None:
    made = trouble()
    for kind in ("cut-off", "one-way", "kill-corosync", "kill-all-brokers", "stop-broker"):
        made.make(step(kind))
    assert begun == ["n1", "n2", "n3"]
    assert [outcome.kind for outcome in made.outcomes if "skipped" in outcome.kind] == [
        "one-way: skipped",
        "kill-all-brokers: skipped",
    ]


def test_what_disturbed_a_member_excuses_it_and_nobody_else() -> None:
    disturbed = [Disturbance("n1", 10.0, 20.0)]
    times_s = (9.9, 10.0, 20.0 + EXCUSED_S, 20.1 + EXCUSED_S)
    assert [is_excused("n1", when_s, disturbed) for when_s in times_s] == [False, True, True, False]
    assert not is_excused("n2", 15.0, disturbed)


def test_an_account_complains_of_each_broken_promise() -> None:
    facts = ("lost", "duplicates_unmarked", "out_of_order", "accepted_again", "rejected_again", "released_lost",
             "broken_lost")  # fmt: skip
    for broken in facts:
        account = GroupAccount({"p1": {fact: [7] if fact == broken else [] for fact in facts}}, [], {"n1": 0})
        assert len(account.complaints()) == 1
    audits: dict[str, dict[str, list[int]]] = {"p1": {fact: [] for fact in facts}}
    assert GroupAccount(audits, [], {"n1": 0}).complaints() == []
    assert len(GroupAccount(audits, [{"number": 7}], {"n1": 1}).complaints()) == 2
