"""A client id that is in use (AMQP Enforcing Connection Uniqueness 1.0), as each connection of Qpid JMS asks for it.

Qpid JMS makes an InvalidClientIDException of the open property `amqp:connection-establishment-failed` and a close with
`amqp:invalid-field` whose info has `invalid-field: container-id`.
"""

from __future__ import annotations

import uuid
from typing import Any

import proton
import pytest

from paired_engines import PairedBroker, PairedClient
from paired_proxy import PairedProxy, paired_broker
from qpid_ha_broker.amqp.connections.sole_connections import DETECTION_POLICY
from qpid_ha_broker.amqp.nodes.directory import OneSet
from qpid_ha_broker.amqp.nodes.sole_connection import ENFORCEMENT_POLICY
from qpid_ha_broker.amqp.wire.conditions import ESTABLISHMENT_FAILED, READS_REFUSALS, SOLE_CONNECTION


def connect(
    broker: PairedBroker, container: str = "shop", user: str = "", *, asks: bool = True, policy: Any = None
) -> PairedClient:
    client = PairedClient(
        broker,
        None if policy is None else {proton.symbol(ENFORCEMENT_POLICY): policy},
        (SOLE_CONNECTION,) if asks else (),
        container=container,
        user=user,
    )
    broker.settle_down()
    return client


def refusal(client: PairedClient) -> tuple[str, Any] | None:
    condition = client.connection.remote_condition
    return None if condition is None else (condition.name, condition.info)


def properties_of(client: PairedClient) -> dict[Any, Any]:
    return dict(client.connection.remote_properties or {})


def test_a_second_connection_with_a_container_id_is_refused_as_jms_expects(broker: PairedBroker) -> None:
    first, second = connect(broker), connect(broker)
    assert refusal(second) == ("amqp:invalid-field", {"invalid-field": "container-id"})
    assert properties_of(second)[ESTABLISHMENT_FAILED] is True
    assert "failover-server-list" not in properties_of(second)
    assert (refusal(first), ESTABLISHMENT_FAILED in properties_of(first)) == (None, False)


@pytest.mark.parametrize("ends", ["closes", "vanishes"])
def test_when_the_first_one_has_ended_the_next_one_is_let_in(broker: PairedBroker, ends: str) -> None:
    first = connect(broker)
    if ends == "closes":
        first.connection.close()
        broker.settle_down()
    else:
        first.vanish()
    second = connect(broker)
    assert refusal(second) is None
    assert refusal(connect(broker)) is not None, "and is the only one then"


def test_one_that_was_refused_keeps_nobody_out(broker: PairedBroker) -> None:
    first, second = connect(broker), connect(broker)
    second.vanish()
    assert refusal(connect(broker)) is not None
    first.vanish()
    assert refusal(connect(broker)) is None


def test_a_client_with_a_session_and_one_that_only_reads_refusals_have_several_connections(
    broker: PairedBroker,
) -> None:
    """A session has a rule of its own: of two connections the newer one has it."""
    with_session: dict[Any, Any] = {proton.symbol("qpid.session"): str(uuid.uuid4())}
    for properties, desired in ((with_session, (SOLE_CONNECTION,)), (None, (SOLE_CONNECTION, READS_REFUSALS))):
        clients = [PairedClient(broker, properties, desired, container="shop") for _ in range(2)]
        broker.settle_down()
        assert refusal(clients[1]) is None
        assert refusal(clients[0]) in (None, ("amqp:connection:forced", None))
        assert SOLE_CONNECTION not in list(clients[1].connection.remote_offered_capabilities)


def test_nobody_keeps_another_user_out(broker: PairedBroker) -> None:
    users = ["", "alice", "mallory", "shop", "alice/shop"]
    assert [refusal(connect(broker, user=user)) for user in users] == [None] * len(users)
    assert [refusal(connect(broker, user=user)) is None for user in users] == [False] * len(users)


def test_who_does_not_ask_is_neither_refused_nor_in_the_way(broker: PairedBroker) -> None:
    clients = [connect(broker, asks=asks) for asks in (False, True, False)]
    assert [refusal(client) for client in clients] == [None] * 3


def test_who_asks_for_it_takes_the_place_of_the_older_one(broker: PairedBroker) -> None:
    first = connect(broker)
    second = connect(broker, policy=proton.uint(1))
    assert refusal(first) == ("amqp:resource-locked", {"sole-connection-enforcement": True})
    assert refusal(second) is None
    assert refusal(connect(broker)) is not None


def test_a_client_that_comes_back_before_its_loss_was_noticed_is_let_in(broker: PairedBroker) -> None:
    """Who lives is heard of within a quarter of the idle time-out."""
    at_broker = broker.proxy if isinstance(broker, PairedProxy) else broker
    dead = connect(broker)
    dead.peer.engine.transport.idle_timeout = 60
    at_broker.container.now_ms += 20_000
    assert refusal(connect(broker)) is not None
    at_broker.container.now_ms += 1
    assert refusal(connect(broker)) is None
    assert refusal(dead) == ("amqp:resource-locked", {"sole-connection-enforcement": True})


def test_a_client_that_is_heard_of_keeps_its_id(broker: PairedBroker) -> None:
    at_broker = broker.proxy if isinstance(broker, PairedProxy) else broker
    first = connect(broker)
    first.peer.engine.transport.idle_timeout = 60
    at_broker.container.now_ms += 15_000
    first.sender("amq.topic")
    at_broker.container.now_ms += 15_000
    assert refusal(connect(broker)) is not None


@pytest.mark.parametrize("policy", [0, 2, -1, "1", None])
def test_any_other_policy_is_the_standards_own(broker: PairedBroker, policy: Any) -> None:
    first = connect(broker)
    assert refusal(connect(broker, policy=policy)) is not None
    assert refusal(first) is None


def is_offered(client: PairedClient) -> bool:
    return SOLE_CONNECTION in list(client.connection.remote_offered_capabilities)


@pytest.mark.parametrize("broker", ["direct"], indirect=True)
def test_it_is_offered_to_who_asks(broker: PairedBroker) -> None:
    asking = connect(broker)
    assert is_offered(asking)
    assert properties_of(asking)[DETECTION_POLICY] == 1
    assert not is_offered(connect(broker, "other", asks=False))


def test_a_proxy_by_itself_offers_nothing() -> None:
    broker = paired_broker("proxied")
    assert not is_offered(connect(broker))
    assert refusal(connect(broker)) is not None, "each broker knows its own"


def test_it_is_not_offered_where_clients_have_links_to_several_brokers_and_none_relays() -> None:
    broker = PairedBroker()
    broker.container.directory = ManySets()
    first = connect(broker)
    assert not is_offered(first)
    assert refusal(connect(broker)) is not None, "each broker knows its own"


class ManySets(OneSet):
    @property
    def has_many_sets(self) -> bool:
        return True


@pytest.mark.parametrize("container", ["", "é" * 30_000, "a/b", "a%2Fb", "x" * 65_000])
def test_any_container_id_is_compared_whole(broker: PairedBroker, container: str) -> None:
    assert refusal(connect(broker, container)) is None
    assert refusal(connect(broker, f"{container}x")) is None
    assert refusal(connect(broker, container)) is not None
