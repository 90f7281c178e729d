"""Whom the client tells its password: those who were given to it, and whom these name over TLS, and nobody else."""

from __future__ import annotations

from random import Random

import pytest

from qpid_ha_client import ConnectOptions
from qpid_ha_client.core import events as ev
from qpid_ha_client.core.addresses import BrokerAddress, parse_addresses
from qpid_ha_client.core.client_core import KNOWN_HOSTS, ClientCore, ClientPhase, ClientSettings
from qpid_ha_client.core.errors import LoginRefused
from qpid_ha_client.proton_driver import login_arguments

STRANGER = "stranger"


class Opening:
    """A client that connects, and the connections that it has wanted."""

    def __init__(self, given: str) -> None:
        self.core = ClientCore(ClientSettings(parse_addresses(given)), "session", Random(1).random)
        self.opened: list[ev.OpenConnection] = []
        self.effects: list[ev.Effect] = []
        self.now_s = 0.0
        self.feed(ev.SenderWanted("out", "q"))
        self.feed(ev.Begun())

    def feed(self, event: ev.Input) -> None:
        effects = self.core.handle(event, self.now_s)
        self.effects += effects
        self.opened += [effect for effect in effects if isinstance(effect, ev.OpenConnection)]

    def served(self, *named: BrokerAddress, capabilities: frozenset[str] = frozenset()) -> None:
        """The broker lets us in, and names others."""
        servers = [{"network-host": each.host, "port": each.port, "scheme": each.scheme} for each in named]
        facts = ev.OpenFacts("broker", capabilities, {"failover-server-list": servers})
        self.feed(ev.BrokerOpened(self.opened[-1].attempt, facts))
        self.feed(ev.LinkAttached(self.opened[-1].attempt, "out", {}))

    def lost(self, *, is_login: bool = False) -> None:
        self.feed(ev.ConnectionLost(self.opened[-1].attempt, ev.EndReason(), is_login))
        while self.core.phase is ClientPhase.PAUSING:
            self.now_s += 10
            self.feed(ev.DeadlineReached())

    def wanted(self, host: str) -> ev.OpenConnection:
        """The connection to `host`, which has to come before long."""
        for _ in range(5):
            if self.opened[-1].broker.host == host:
                return self.opened[-1]
            self.lost()
        raise AssertionError(f"{host} was not tried")


@pytest.mark.parametrize(
    ("given", "named", "may"),
    [
        ("amqps://a", f"amqps://{STRANGER}", True),  # which has to show a certificate for its name
        ("amqp://a", f"amqp://{STRANGER}", False),
        ("amqp://a", f"amqps://{STRANGER}", False),  # anybody on the way could have named a host with a certificate
        ("amqp://127.0.0.1", "amqp://127.0.0.1:1", True),
        ("amqp://127.0.0.1", f"amqp://{STRANGER}", False),
        ("amqp://a", "amqp://127.0.0.1:1", False),
        ("amqp://a,b", "amqp://b", True),
    ],
)
@pytest.mark.parametrize("way", ["open", "connection:redirect", "connection:forced", "link:redirect"])
def test_a_broker_that_another_one_names_reads_the_password_over_tls_or_within_this_machine(
    given: str, named: str, may: bool, way: str
) -> None:
    client, (there,) = Opening(given), parse_addresses(named)
    assert client.opened[-1].may_read_password
    if way == "open":
        client.served(there)
        client.lost()
    else:
        reason = ev.EndReason(
            f"amqp:{way}", "", {"network-host": there.host, "port": there.port, "scheme": there.scheme}
        )
        attempt = client.opened[-1].attempt
        if way == "link:redirect":
            client.served()
            client.feed(ev.LinkEnded(attempt, "out", reason))
        else:
            client.feed(ev.BrokerClosed(attempt, reason))
    assert client.wanted(there.host).may_read_password is may


def test_a_notice_vouches_for_nobody() -> None:
    client = Opening("amqps://a")
    client.served(*parse_addresses("amqps://b"), capabilities=frozenset((KNOWN_HOSTS,)))
    client.feed(ev.HostsTold(client.opened[-1].attempt, f"{STRANGER}:1,b:5671"))
    client.lost()
    assert not client.wanted(STRANGER).may_read_password
    assert client.wanted("b").may_read_password  # its open had said so


def test_notices_are_listened_to_where_only_the_broker_publishes_them() -> None:
    for offered, listens in (({"qpid.known-hosts"}, False), ({"qpid.known-hosts", KNOWN_HOSTS}, True)):
        client = Opening("amqp://a")
        client.served(capabilities=frozenset(offered))
        assert (ev.ListenForHosts() in client.effects) is listens


def test_a_broker_that_was_not_given_and_refuses_the_login_is_left_out_and_ends_nothing() -> None:
    client = Opening("amqp://a")
    (stranger,) = parse_addresses(f"amqp://{STRANGER}")
    client.served(stranger)
    client.lost()
    client.wanted(STRANGER)
    client.lost(is_login=True)
    assert client.wanted("a").may_read_password
    client.served(stranger)
    assert [each.host for each in client.core.brokers.known] == ["a"]
    client.lost()
    client.lost(is_login=True)
    assert isinstance(client.core.error, LoginRefused)


ALICE = ConnectOptions("alice", "secret")


@pytest.mark.parametrize(
    ("address", "options", "in_clear"),
    [
        ("amqp://a", ALICE, False),
        ("amqp://a", ConnectOptions("alice", "secret", allow_insecure_plain=True), True),
        ("amqp://a", ConnectOptions("alice", "secret", more={"allow_insecure_mechs": True}), True),
        ("amqp://a", ConnectOptions(more={"user": "alice", "password": "secret"}), False),
        ("amqp://127.0.0.1", ALICE, True),
        ("amqp://[::1]", ALICE, True),
        ("amqp://localhost", ALICE, True),
        ("amqps://a", ALICE, True),
        ("amqp://a", ConnectOptions(), False),
    ],
)
def test_a_password_is_said_in_clear_within_this_machine_or_when_told_so(
    address: str, options: ConnectOptions, in_clear: bool
) -> None:
    (broker,) = parse_addresses(address)
    assert login_arguments(options, broker, may_read_password=True)["allow_insecure_mechs"] is in_clear


@pytest.mark.parametrize("address", ["amqp://127.0.0.1", "amqp://a", "amqps://a"])
@pytest.mark.parametrize("wanted", [None, "PLAIN", "PLAIN SCRAM-SHA-256"])
def test_who_may_not_read_the_password_gets_a_proof_of_it_or_nothing(address: str, wanted: str | None) -> None:
    more = {"allow_insecure_mechs": True, "allowed_mechs": wanted}
    options = ConnectOptions("alice", "secret", allow_insecure_plain=True, more=more)
    (broker,) = parse_addresses(address)
    login = login_arguments(options, broker, may_read_password=False)
    assert login["allow_insecure_mechs"] is False
    assert login["allowed_mechs"]
    assert "PLAIN" not in login["allowed_mechs"]
    if wanted and "SCRAM" in wanted:
        assert login["allowed_mechs"] == "SCRAM-SHA-256"
