"""Where all brokers are here, and each would have another one lead, each says what an operator can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, StoreOrigin
from qpid_ha_broker.ha.record_keeper import COORDINATOR, RecordKeeper, controller_of
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import Accept, PromotionEvidence, Refusal, Verdict, judge

NAMES = "abc"
LEADERS = {1: "a", 2: "b"}
"""By generation."""


def broker(name: str, generation: int, epoch: int, members: tuple[str, ...], store: StoreOrigin, **rest: Any) -> Answer:
    cluster = "uuid" if generation else ""
    state = State.CONNECTING.value
    answer = Answer(
        1, name, f"{name}-1", cluster, state, generation, epoch, members, members, 5, True, 0, "", True, "", 1, store
    )
    return answer._replace(**rest)


def evidence(name: str, here: list[Answer], record: ClusterRecord | None, keeper: RecordKeeper) -> PromotionEvidence:
    (own,) = [each for each in here if each.name == name]
    return PromotionEvidence(
        own=own, own_primary=LEADERS.get(own.generation, ""), answers=tuple(each for each in here if each != own),
        unreachable=(), record=record, has_coordinator=record is not None, min_in_sync=1, keeper=keeper,
    )  # fmt: skip


def verdicts(here: list[Answer], record: ClusterRecord | None, keeper: RecordKeeper) -> dict[str, Verdict]:
    return {each.name: judge(evidence(each.name, here, record, keeper)) for each in here}


@st.composite
def answers(draw: st.DrawFn, name: str) -> Answer:
    """Any broker, as it may answer."""
    generation = draw(st.integers(0, 2))
    members = tuple(sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1)))) if generation else ()
    claims = tuple(each for each in sorted(draw(st.sets(st.integers(1, 3)))) if each > generation)
    epoch, lsn = (draw(st.integers(1, 3)) if generation else 0 for _ in range(2))
    is_complete = not generation or draw(st.booleans())
    store = draw(st.sampled_from(list(StoreOrigin)))
    return broker(name, generation, epoch, members, store, lsn=lsn, complete=is_complete, claims=claims)


@st.composite
def records(draw: st.DrawFn) -> ClusterRecord | None:
    """None: there is no coordinator."""
    generation = draw(st.integers(0, 2))
    if not generation:
        return draw(st.sampled_from([None, ClusterRecord()]))
    primary = LEADERS[generation]
    members = tuple(sorted({primary, *draw(st.sets(st.sampled_from(NAMES)))}))
    return ClusterRecord("uuid", generation, primary, draw(st.integers(1, 3)), members, draw(st.booleans()))


@given(data=st.data())
def test_where_all_are_here_somebody_may_lead_or_each_names_a_command_that_makes_one_of_them_lead(
    data: st.DataObject,
) -> None:
    here = [data.draw(answers(name)) for name in NAMES]
    record = data.draw(records())
    keeper = data.draw(st.sampled_from([COORDINATOR, controller_of("orders")]))

    found = verdicts(here, record, keeper)

    if all(isinstance(each, Refusal) for each in found.values()):
        for each in found.values():
            assert isinstance(each, Refusal)
            assert "--force" in each.text
    forced = [judge(replace(evidence(name, here, record, keeper), force=True)) for name in NAMES]
    assert any(isinstance(each, Accept) for each in forced)


def test_a_broker_is_judged_alike_whoever_asks_and_in_whatever_order_the_others_have_answered() -> None:
    """Two of the same epoch that tell of two sets: that cannot be, and one of the refusals named no command."""
    first = broker("a", 1, 2, ("a",), StoreOrigin.MEMORY, lsn=1, complete=False)
    own = broker("b", 1, 1, ("b",), StoreOrigin.MEMORY, lsn=1)
    last = broker("c", 1, 2, ("a", "b"), StoreOrigin.MEMORY, lsn=1, complete=False)
    for here in ([first, own, last], [last, own, first]):
        for found in verdicts(here, None, COORDINATOR).values():
            assert isinstance(found, Refusal)
            assert "--force" in found.text


DIRTY, FAILED, UNVERIFIED = StoreOrigin.DIRTY, StoreOrigin.FAILED, StoreOrigin.UNVERIFIED
RECORDED = ClusterRecord("uuid", 1, "a", 1, ("a",))
EMPTY = broker("a", 0, 0, (), UNVERIFIED, lsn=0)
OUT_OF_SYNC = [broker(name, 1, 1, ("a",), UNVERIFIED, lsn=lsn) for name, lsn in (("b", 7), ("c", 9))]
DEAD_ENDS: dict[str, tuple[list[Answer], str]] = {
    "the only one in sync was emptied": ([EMPTY, *OUT_OF_SYNC], "c"),
    "it came back halfway": ([broker("a", 1, 1, ("a",), DIRTY, complete=False), *OUT_OF_SYNC], "c"),
    "its store has failed": ([broker("a", 1, 1, ("a",), FAILED, lsn=8), *OUT_OF_SYNC], "a"),
    "and nobody else is whole": ([EMPTY, *[each._replace(complete=False) for each in OUT_OF_SYNC]], "c"),
    "the furthest is not whole": ([EMPTY, OUT_OF_SYNC[0], OUT_OF_SYNC[1]._replace(complete=False)], "b"),
}
"""Who is here, and who loses the least."""


@pytest.mark.parametrize("title", DEAD_ENDS)
@pytest.mark.parametrize("keeper", [COORDINATOR, controller_of("orders")])
def test_who_would_send_to_each_other_all_name_one_broker_and_the_command(title: str, keeper: RecordKeeper) -> None:
    here, best = DEAD_ENDS[title]
    command = keeper.force_on.format(broker=best)
    for verdict in verdicts(here, RECORDED, keeper).values():
        assert isinstance(verdict, Refusal)
        assert command in verdict.text
    assert isinstance(judge(replace(evidence(best, here, RECORDED, keeper), force=True)), Accept)


def test_that_is_no_advice_while_one_may_lead_or_does_or_somebody_cannot_be_asked() -> None:
    in_sync = broker("a", 1, 1, ("a",), StoreOrigin.MEMORY, lsn=8)
    refused = evidence("b", [in_sync, *OUT_OF_SYNC], RECORDED, COORDINATOR)
    leads = in_sync._replace(state=State.PRIMARY)
    emptied = evidence("b", [EMPTY, *OUT_OF_SYNC], RECORDED, COORDINATOR)
    for each in (
        refused, replace(refused, answers=(leads, OUT_OF_SYNC[1])), replace(emptied, unreachable=("d:5672",)),
    ):  # fmt: skip
        verdict = judge(each)
        assert isinstance(verdict, Refusal)
        assert "--force" not in verdict.text
