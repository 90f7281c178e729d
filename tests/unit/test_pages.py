"""Lists in pages: what a broker answers, and how its callers follow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from paired_engines import PairedBroker
from qpid_ha_agent.control import INVALID_PARAMS, RequestRefused, list_in_pages
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.server.control import administration
from qpid_ha_broker.server.control.control import ControlError
from several_sets import SeveralSets


class Caller:
    """Asks the methods of a broker. `knows_pages`: False for one of an older version."""

    def __init__(self, broker: PairedBroker, *, knows_pages: bool = True) -> None:
        async def wait_done(outcome: Any) -> Any:
            return outcome.result

        settings: Any = None
        of_broker = broker.container.management.administration
        self._methods = administration.control_methods("node1", of_broker, settings, wait_done)
        self._knows_pages = knows_pages
        self.answers: list[Any] = []

    def call(self, method: str, **params: object) -> Any:
        if not self._knows_pages and params.keys() & {"limit", "after"}:
            raise RequestRefused(INVALID_PARAMS, "unknown parameter 'limit'")

        async def ask() -> Any:
            answer: Any = self._methods[method](params)
            answer = await answer
            if isinstance(answer, dict):
                return {**answer, "rows": list(answer["rows"])}
            return list(answer)

        self.answers.append(asyncio.run(ask()))
        return self.answers[-1]


def filled(count: int) -> PairedBroker:
    broker = PairedBroker()
    for number in range(count):
        broker.container.default.configuration.declare_queue(f"q{number:05}", {})
    return broker


def names(rows: list[Any]) -> list[str]:
    return [row["name"] for row in rows]


def test_pages_follow_each_other_by_names_and_the_last_one_says_so() -> None:
    caller = Caller(filled(5))
    first = caller.call("queues", limit=2)
    assert (names(first["rows"]), first["next"]) == (["q00000", "q00001"], "q00001")
    second = caller.call("queues", limit=3, after=first["next"])
    assert (names(second["rows"]), second["next"]) == (["q00002", "q00003", "q00004"], None)
    assert len(caller.call("queues")) == 5


def test_what_is_deleted_between_two_pages_makes_no_other_one_missing() -> None:
    broker = filled(5)
    caller = Caller(broker)
    first = caller.call("queues", limit=2)
    broker.container.default.configuration.delete_queue("q00000")
    assert names(caller.call("queues", limit=2, after=first["next"])["rows"]) == ["q00002", "q00003"]


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, administration.SORTED_AT_ONCE + 1])
@pytest.mark.parametrize("knows_pages", [True, False])
def test_who_lists_follows_the_pages_of_a_broker_that_has_any(count: int, knows_pages: bool) -> None:
    caller = Caller(filled(count), knows_pages=knows_pages)
    rows = list_in_pages(caller, "queues")
    assert names(rows) == [f"q{number:05}" for number in range(count)]
    if knows_pages:
        assert all(len(answer["rows"]) <= administration.PAGE_ROWS_MAX for answer in caller.answers)


def test_queues_of_all_sets_and_exchanges_are_listed_so() -> None:
    caller = Caller(SeveralSets())
    assert names(list_in_pages(caller, "queues")) == ["blue", "plain", "red"]
    assert "amq.topic" in names(list_in_pages(caller, "exchanges"))


def test_queues_of_sets_that_others_lead_are_listed_with_their_own_set() -> None:
    broker = SeveralSets()
    write = broker.container.default.resources.replicated.write
    write(ev.BrokerRegistered("beta", "beta", "amqp://beta:5672", "", "", "0"))
    for name in ("green", "violet", "white"):
        write(ev.SetPlaced(name, ("beta",), (), "", 0, 0))
        write(ev.QueuePlaced(f"of {name}", name, {}, False))
    rows = Caller(broker).call("queues", action="list")
    assert {row["name"]: row["set"] for row in rows if row["name"].startswith("of ")} == {
        "of green": "green", "of violet": "violet", "of white": "white",
    }  # fmt: skip


@pytest.mark.parametrize("params", [{"limit": 0}, {"limit": 1001}, {"limit": True}, {"limit": "5"}, {"after": 3}])
def test_a_page_that_there_cannot_be_is_refused(params: dict[str, object]) -> None:
    with pytest.raises(ControlError):
        Caller(filled(1)).call("queues", **params)
