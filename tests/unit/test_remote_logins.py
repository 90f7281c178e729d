"""Which brokers outside of a cluster get to know a password: those that the configuration names, as it allows it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.server.control.control import ControlError
from qpid_ha_broker.server.proxies.remote_names import ConfiguredRemotes
from qpid_ha_broker.server.runtime.engines import remote_mechanisms
from qpid_ha_broker.server.sets.queue_copies import QueueCopies
from qpid_ha_config.addresses import Address, parse_brokers
from qpid_ha_config.errors import SettingsError
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


class Host:
    """A broker of a cluster with a password of its own, and with one partner."""

    def __init__(self) -> None:
        partner = {"url": "amqp://partner", "user": "copier", "password-file": "/no/password"}
        values = {"remote-brokers": [partner], "ha.username": "replicator", "ha.password": "of the cluster"}
        self.settings = BrokerSettings.from_values({"name": "a", "ha.queue-replication": True, **values})
        self.membership = SimpleNamespace(is_standalone=True, clients=SimpleNamespace(is_serving=True))
        self.notices = SimpleNamespace(bugs_noted=nullcontext)
        self.logins: list[RemoteLogin] = []
        self.copies = QueueCopies(cast(Any, self), ConfiguredRemotes(self.settings.remote), self.make)

    def current(self) -> BrokerSettings:
        return self.settings

    def make(self, address: Address, login: RemoteLogin) -> Any:
        self.logins.append(login)
        return SimpleNamespace()


@in_event_loop
async def test_an_operator_has_queues_copied_from_brokers_that_the_configuration_names_and_from_nowhere_else() -> None:
    host = Host()
    for there in ("amqp://stranger", "amqps://partner:5672", "amqp://partner,stranger"):
        with pytest.raises(ControlError, match="remote-brokers of this broker's configuration does not have"):
            await host.copies.replicate({"queue": "orders", "address": there})
    with pytest.raises(SettingsError, match="stranger"):
        host.copies._engine(Address.parse("amqp://stranger"))
    assert host.logins == []


def test_a_copy_is_logged_in_as_the_configuration_says_of_that_broker_and_not_as_the_cluster() -> None:
    host = Host()
    host.copies._engine(Address.parse("amqp://partner"))
    assert host.logins == [RemoteLogin("copier", Path("/no/password"))]


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
