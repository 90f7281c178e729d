"""Where a broker sends the clients of sets that it does not serve."""

from __future__ import annotations

import pytest

from qpid_ha_broker.amqp.nodes.directory import ServerAddress
from qpid_ha_broker.cluster.map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.effects import MemberStatus
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.controller.map_directory import MapDirectory

BETA = ServerAddress("beta", "beta.example", 5672)


def a_map(primary: str) -> ClusterMap:
    """Of two brokers, with a set that `primary` leads."""
    there = ClusterMap()
    events: list[ev.MapEvent] = [
        ev.BrokerRegistered(name, "u", f"amqp://{name}.example:5672", "", "", "0.3") for name in ("alpha", "beta")
    ]
    events.append(ev.SetPlaced("orders", ("alpha", "beta"), (), "", 0, 0))
    events.append(ev.SetRecorded("orders", "c", 1, primary, 1, (primary,), False))
    for lsn, event in enumerate(events, start=1):
        there.apply(lsn, event)
    return there


def status(primary: str, address: str) -> MemberStatus:
    """Of the member of `default`."""
    state = State.PRIMARY if primary == "alpha" else State.READY
    return MemberStatus(state, None, 1, 1, (), "", (), primary, address, "", StoreOrigin.MEMORY, False, "", "", False)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [("beta", BETA), ("alpha", None), ("gamma", None)],
    ids=["another leads it", "this broker is to, or hands over", "one that nobody knows"],
)
def test_clients_are_sent_to_another_broker_or_nowhere(recorded: str, expected: ServerAddress | None) -> None:
    directory = MapDirectory("alpha", a_map(recorded), lambda: status("beta", "amqp://beta.example:5672"))
    assert directory.primary_of("orders") == expected


@pytest.mark.parametrize(
    ("primary", "address", "expected"),
    [("beta", "amqp://beta.example:5672", BETA), ("alpha", "amqp://alpha.example:5672", None), ("", "", None)],
)
def test_so_are_those_of_default(primary: str, address: str, expected: ServerAddress | None) -> None:
    directory = MapDirectory("alpha", a_map("beta"), lambda: status(primary, address))
    assert directory.primary_of("default") == expected
