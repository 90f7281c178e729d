"""The guarantees of a group, whatever befalls a member or all: a row for each guarantee, a column for each fault.

Each fault happens once, under publishers and consumers at all members, and their books answer for all guarantees. One
that is not fenced can break more promises, so nobody is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import pytest

from lab.group import FAULTS, Befallen, Group, GroupAccount, befall
from lab.stage import RESOURCES, Stage

Complaints = Callable[[GroupAccount], Sequence[object]]


def facts(*names: str) -> Complaints:
    """These, of all producers."""
    return lambda account: [(name, account.audits[who][name]) for name in names for who in account.audits
                            if account.audits[who][name]]  # fmt: skip


GUARANTEES: Final[Mapping[str, Complaints]] = {
    "transfer": lambda account: [*facts("lost")(account), *(left for left in account.left.values() if left)],
    "acquire": lambda account: [*account.unexcused, *facts("duplicates_unmarked")(account)],
    "accept": facts("accepted_again"),
    "release": facts("released_lost"),
    "reject": facts("rejected_again"),
    "disconnect": facts("broken_lost"),
    "order": facts("out_of_order"),
}
LEADS: Final = ("kill-broker", "power-off", "cut-off")
"""They also befall the member whose broker leads `default`: the others can record nothing before it is led again."""


@pytest.fixture(scope="module")
def group(stage: Stage) -> Iterator[Group]:
    """Of three members in sync; afterwards the cluster is made new."""
    group = Group(stage.ready(*RESOURCES))
    group.make()
    yield group
    stage.distrust()


@pytest.fixture(scope="module", params=[*FAULTS, *(f"{name}-of-the-leader" for name in LEADS)])
def befallen(request: pytest.FixtureRequest, group: Group) -> Befallen:
    """What came of the fault."""
    name, leads, _ = str(request.param).partition("-of-the-leader")
    group.wait_whole()
    leader = group.leader()
    victim = leader if leads else next(member for member in group.members if member != leader)
    return befall(group, name, victim)


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_guarantee_holds(befallen: Befallen, guarantee: str) -> None:
    account = befallen.account
    assert all(account.sum(name) for name in ("confirmed", "accepted", "rejected", "returned")), str(account)
    assert GUARANTEES[guarantee](account) == [], str(account)
