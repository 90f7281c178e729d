"""Who says to be another broker gets everything, and acts for any client: it has to prove it, and has its place."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from access_support import controlled
from paired_engines import BROKER, PairedBroker, PairedClient
from paired_links import condition
from paired_peers import Cluster
from qpid_ha_broker.access.rules import Permission, Subject
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.wire.conditions import RESOURCE_LIMIT, UNAUTHORIZED_ACCESS
from qpid_ha_broker.amqp.wire.peer_frames import ADDRESS, ADMIN_PROPERTY, PROOF_PROPERTY, SHARED_CAPABILITY
from qpid_ha_broker.amqp.wire.relay import RELAY_CAPABILITY, RelayRequest
from qpid_ha_broker.server.control.access_rules import AccessRules
from qpid_ha_broker.server.runtime.cluster_secret import VALID_S, ClusterSecret
from qpid_ha_config.access_rules import parse_entries
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import BrokerSettings

EVERYTHING = "allow all all,replicate,administer"
CLAIMS: dict[str, dict[str, object]] = {
    "a mark alone": {ADMIN_PROPERTY: True},
    "a mark and the product": {ADMIN_PROPERTY: True, "product": "qpid-ha"},
    "a wrong proof": {**BROKER, PROOF_PROPERTY: "guessed"},
    "an empty proof": {**BROKER, PROOF_PROPERTY: ""},
    "a proof of another type": {**BROKER, PROOF_PROPERTY: True},
}


def stranger(
    broker: PairedBroker,
    properties: dict[str, object],
    capabilities: tuple[str, ...] = (RELAY_CAPABILITY, SHARED_CAPABILITY),
) -> PairedClient:
    client = PairedClient(broker, properties, capabilities)
    broker.settle_down()
    return client


def publishes_as_bob(client: PairedClient) -> bool:
    link: Any = client.session.sender("relayed")
    link.target.address = "q"
    link.properties = RelayRequest(("proxy",), "client", user="bob").properties()
    link.open()
    client.broker.settle_down()
    assert condition(link) in (None, UNAUTHORIZED_ACCESS)
    return condition(link) is None


@pytest.mark.parametrize("rules", [(), (EVERYTHING,), ("allow anonymous replicate", "allow bob publish,create")])
@pytest.mark.parametrize("claim", CLAIMS)
def test_who_has_not_proved_to_be_a_broker_acts_for_nobody_and_gets_no_channel(
    claim: str, rules: tuple[str, ...]
) -> None:
    broker = Cluster()
    broker.container.peers.shared = broker.peers
    if rules:
        broker.container.access.change(parse_entries(rules).rules, "")
    client = stranger(broker, CLAIMS[claim])
    assert not client.peer.identity.is_broker
    assert not publishes_as_bob(client)
    assert condition(client.sender(ADDRESS)) == UNAUTHORIZED_ACCESS
    assert broker.peers.channels == []
    assert publishes_as_bob(stranger(broker, BROKER))


def test_where_brokers_have_a_login_a_proof_is_none() -> None:
    broker = Cluster(ContainerSettings("a", "0", peer_user="replicator"))
    client = stranger(broker, BROKER)
    assert condition(client.connection) == UNAUTHORIZED_ACCESS or not publishes_as_bob(client)
    assert not client.peer.identity.is_broker


def test_who_has_not_logged_in_is_no_broker_whatever_the_brokers_user_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Cluster(ContainerSettings("a", "0", peer_user="anonymous"))
    seen = property(lambda connection: PeerIdentity("10.0.0.1:5", "anonymous", connection.is_admin))
    monkeypatch.setattr(Connection, "identity", seen)
    client = stranger(broker, BROKER)
    assert not client.peer.relay.is_broker
    with pytest.raises(SettingsError, match=r"ha\.username: anonymous is what"):
        BrokerSettings.from_values({"name": "a", "ha.username": "anonymous", "ha.password": "x"})


def test_only_brokers_escape_the_limits_of_a_connection_and_of_a_user() -> None:
    broker = PairedBroker(replace(ContainerSettings("a", "0"), max_links_per_connection=2))
    limits = "limit all connections=1 links=1"
    broker.container.access.change(parse_entries([EVERYTHING]).rules, "")
    administrator: tuple[str, ...] = ()
    for properties, capabilities, is_limited in (
        ({ADMIN_PROPERTY: True}, administrator, True),
        (BROKER, (RELAY_CAPABILITY,), False),
    ):
        broker.container.limits.change((), "")
        client = stranger(broker, dict(properties), capabilities)
        links = [client.sender("q", f"link-{number}") for number in range(4)]
        assert any(condition(link) == RESOURCE_LIMIT for link in links) is is_limited
        broker.container.limits.change(parse_entries([limits]).limits, "")
        others = [stranger(broker, dict(properties), capabilities) for _ in range(2)]
        assert any(condition(each.connection) == RESOURCE_LIMIT for each in others) is is_limited
        for each in (client, *others):
            each.vanish()
        broker.settle_down()


class Clock:
    now_s = 1000.0


def test_a_proof_counts_for_who_can_read_the_secret_and_not_for_long(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "sockets" / "cluster" / "secret"
    one, other = (ClusterSecret(file, lambda: clock.now_s) for _ in range(2))
    stranger = ClusterSecret(tmp_path / "elsewhere" / "cluster" / "secret", lambda: clock.now_s)
    proof = one.proof()
    assert other.is_proof(proof)
    assert file.stat().st_mode & 0o777 == 0o600
    assert not stranger.is_proof(proof)
    claim, _, digest = proof.rpartition(".")
    for wrong in ("", ".", digest, f"{claim}.", f"1{proof}", f"{proof}0", f"x{proof}", "9" * 400 + f".a.{digest}", "é"):
        assert not other.is_proof(wrong)
    for at_s in (1000 + VALID_S + 1, 1000 - VALID_S - 1):
        clock.now_s = at_s
        assert not other.is_proof(proof)
    assert [path.name for path in file.parent.iterdir()] == ["secret"]


def test_a_secret_that_others_may_read_or_have_made_is_none(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    secret = ClusterSecret(file)
    proof = secret.proof()
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="alone may read"):
        secret.read()
    assert not secret.is_proof(proof)
    file.chmod(0o600)
    assert secret.is_proof(proof)
    file.write_bytes(b"")
    with pytest.raises(SettingsError, match="holds no secret"):
        secret.read()
    file.unlink()
    file.symlink_to("/dev/null")
    with pytest.raises(SettingsError, match="alone may read"):
        secret.read()
    with pytest.raises(SettingsError, match=r"ha\.username"):
        ClusterSecret(Path("/proc/no-such-directory/secret")).read()


@pytest.mark.parametrize(
    ("rule", "warns"), [("allow all all,administer", True), ("allow all all", False), ("allow olga administer", False)]
)
def test_a_broker_that_everybody_may_administer_says_so_at_its_start(
    rule: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    broker = PairedBroker()
    settings = BrokerSettings.from_values({"name": "a", "acl.rules": [rule]})
    AccessRules(cast(Any, SimpleNamespace(current=lambda: settings)), broker.container.access, broker.connections, None)
    assert ("everybody may administer this broker" in caplog.text) is warns


def test_what_a_broker_without_rules_recommends_has_nobody_administer_it(caplog: pytest.LogCaptureFixture) -> None:
    broker = PairedBroker()
    settings = BrokerSettings.from_values({"name": "a", "listen": "amqp://0.0.0.0:5672", "sasl.allow-anonymous": True})
    AccessRules(cast(Any, SimpleNamespace(current=lambda: settings)), broker.container.access, broker.connections, None)
    (recommended,) = re.findall(r"set acl\.rules to \[(.*)\]", caplog.text)
    access = controlled(recommended)
    for user in ("alice", ""):
        for action in (Permission.REPLICATE, Permission.ADMINISTER):
            assert not access.decide(Subject(user, False), action, "").is_allowed


def test_the_secret_leaves_the_directory_of_control_sockets_to_those_who_use_them(tmp_path: Path) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir(mode=0o755)
    ClusterSecret(sockets / "cluster" / "secret").read()
    assert [(path.stat().st_mode & 0o777) for path in (sockets, sockets / "cluster")] == [0o755, 0o700]
