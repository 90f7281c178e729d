"""What becomes of a broker's part in a set is told once, and of the in-sync set by who leads."""

from __future__ import annotations

import pytest

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.states import Phase, State
from qpid_ha_broker.model.exchanges.broker_events import BrokerEvents, EventSubject, Fact
from qpid_ha_broker.server.sets.set_events import SetEvents

READY = fx.MemberStatus(
    state=State.READY,
    phase=None,
    generation=1,
    epoch=3,
    members=("a", "b"),
    cluster="uuid",
    history=(),
    primary="a",
    primary_address="amqp://a",
    primary_broker_address="amqp://a",
    store=StoreOrigin.CLEAN,
    is_chosen=False,
    login_problem="",
    problem="",
    is_closing=False,
)
PRIMARY = READY._replace(state=State.PRIMARY, primary="b", primary_address="")


class Told:
    """What `SetEvents` of the set makes of changes."""

    def __init__(self, set_name: str, status: fx.MemberStatus) -> None:
        self._broker_events = BrokerEvents(lambda: 0)
        self.events = SetEvents(self._broker_events, set_name, status)

    @property
    def all(self) -> list[tuple[str, dict[str, Fact]]]:
        return [(str(event.subject), dict(event.facts)) for event in self._broker_events.last(EventSubject, 1000)]


@pytest.mark.parametrize(("set_name", "subject"), [("default", "broker.state"), ("orders", "set.state")])
def test_another_state_is_the_brokers_or_only_that_of_one_set(set_name: str, subject: str) -> None:
    told = Told(set_name, READY)
    told.events.state_changed(fx.StateChanged(State.READY, State.PRIMARY, "promoted"))
    told.events.status_changed(READY._replace(state=State.PRIMARY, phase=Phase.RECOVERING))
    told.events.status_changed(READY._replace(state=State.PRIMARY, phase=Phase.RECOVERING, generation=2))
    facts = {"set": set_name, "state": "primary"}
    assert told.all == [
        (subject, {**facts, "before": "ready", "reason": "promoted"}),
        (subject, {**facts, "phase": "recovering"}),
    ]


def test_another_in_sync_set_is_told_of_by_the_broker_that_leads_with_who_came_and_went() -> None:
    changed = {"members": ("b", "c"), "epoch": 4}
    backup, primary = Told("default", READY), Told("default", PRIMARY)
    backup.events.status_changed(READY._replace(**changed))  # type: ignore[arg-type]
    primary.events.status_changed(PRIMARY._replace(**changed))  # type: ignore[arg-type]
    assert backup.all == []
    facts = {"set": "default", "epoch": 4, "members": "b,c", "joined": "c", "left": "a"}
    assert primary.all == [("in-sync.changed", facts)]


def test_another_primary_is_told_of_by_whoever_hears_of_it() -> None:
    told = Told("default", READY)
    told.events.status_changed(READY._replace(primary="", primary_address=""))
    told.events.status_changed(READY._replace(primary="c", primary_address="amqp://c"))
    assert told.all == [
        ("primary.changed", {"set": "default", "primary": "", "address": ""}),
        ("primary.changed", {"set": "default", "primary": "c", "address": "amqp://c"}),
    ]


def test_a_store_that_takes_nothing_is_an_alarm_until_it_does() -> None:
    told = Told("orders", READY)
    told.events.status_changed(READY._replace(store_problem="no space left"))
    told.events.status_changed(READY._replace(store_problem="no space left on device"))
    told.events.status_changed(READY)
    assert told.all == [
        ("alarm.raised", {"alarm": "store", "set": "orders", "reason": "no space left"}),
        ("alarm.cleared", {"alarm": "store", "set": "orders"}),
    ]
