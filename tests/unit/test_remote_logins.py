"""Which brokers outside of a cluster get to know a password: those that the configuration names, as it allows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_broker.server.runtime.engines import remote_mechanisms
from qpid_ha_config.addresses import Address, parse_brokers
from qpid_ha_config.remote_nodes import RemoteLogin
from qpid_ha_config.settings import BrokerSettings
from qpid_ha_pipeline.amqp.brokers import Cluster

LOGIN = RemoteLogin("dmz", Path("/no/password"))
NODES = {"orders": {"url": "amqp://partner,127.0.0.1:7/orders", "user": "dmz", "password-file": "/no/password"}}
BROKERS = [{"url": "amqps://other", "user": "dmz", "password-file": "/no/password"}]


@pytest.mark.parametrize(
    ("address", "plain", "in_clear", "in_clear_if_told"),
    [
        ("amqp://partner", True, False, True),
        ("amqp://127.0.0.1:7", True, True, True),
        ("amqps://other", True, False, True),
        ("amqp://other:5671", False, False, False),  # where one speaks TLS, somebody else without
        ("amqps://partner:5672", False, False, False),
        ("amqp://stranger", False, False, False),
        ("amqps://stranger", False, False, False),  # whose certificate fits a name that another broker has chosen
        ("amqp://127.0.0.1:8", False, False, False),
    ],
)
def test_where_another_broker_sends_us_the_password_is_not_told(
    address: str, plain: bool, in_clear: bool, in_clear_if_told: bool
) -> None:
    for told, expected in ((False, in_clear), (True, in_clear_if_told)):
        values = {"remote-nodes": NODES, "remote-brokers": BROKERS, "sasl.allow-insecure-plain": told}
        settings = BrokerSettings.from_values({"name": "a", **values})
        mechanisms, is_in_clear = remote_mechanisms(settings, Address.parse(address), LOGIN)
        assert ("PLAIN" in mechanisms.split(), is_in_clear) == (plain, expected)
        assert "SCRAM-SHA-256" in mechanisms
        assert "ANONYMOUS" not in mechanisms
        assert remote_mechanisms(settings, Address.parse(address), RemoteLogin()) == ("ANONYMOUS", False)


@pytest.mark.parametrize(
    ("brokers", "there", "may"),
    [
        ("amqp://127.0.0.1:1", "amqp://127.0.0.1:2", True),
        ("amqp://far,127.0.0.1:1", "amqp://127.0.0.1:1", True),
        ("amqp://far,127.0.0.1:1", "amqp://127.0.0.1:2", False),
        ("amqp://far", "amqp://far", False),
    ],
)
def test_the_pipeline_says_a_password_in_clear_within_its_machine_alone(brokers: str, there: str, may: bool) -> None:
    assert Cluster(parse_brokers(brokers)).may_read_password(Address.parse(there)) is may
