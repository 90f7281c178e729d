"""Who another broker is, when users log in: only `ha.username` may replicate."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import proton
import pytest

from paired_peers import SETTINGS, Backup, Cluster
from qpid_ha_broker.amqp.connection import Connection
from qpid_ha_broker.server.engines import EngineFactory, SaslConfiguration, client_engine
from qpid_ha_broker.server.listen_address import ListenAddress
from qpid_ha_broker.server.settings import BrokerSettings

SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin")


USERS = ("replicator", "alice")


PASSWORD = "only for this test"


needs_cyrus = pytest.mark.skipif(
    not proton.SASL.extended() or SASLPASSWD is None, reason="needs Cyrus SASL in Proton, and sasl2-bin"
)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineFactory]:
    """For a listener on loopback where users may log in, and guests too."""
    path = tmp_path_factory.mktemp("sasl") / "users.sasldb"
    for user in USERS:
        command = [str(SASLPASSWD), "-p", "-c", "-f", str(path), user]
        subprocess.run(command, input=PASSWORD.encode(), check=True, timeout=30)
    address = ListenAddress.parse("amqp://127.0.0.1:0")
    values = {"name": "primary", "listen": [str(address)], "sasl.users-db": str(path), "sasl.allow-anonymous": True}
    settings = BrokerSettings.from_values(values)
    sasl = SaslConfiguration(Path(path))
    yield EngineFactory(lambda: settings, address, sasl)
    sasl.close()


@needs_cyrus
@pytest.mark.parametrize(
    ("user", "password", "mechanism", "is_let_in"),
    [
        ("replicator", PASSWORD, "", True),
        ("replicator", PASSWORD, "PLAIN", True),
        ("alice", PASSWORD, "", False),
        ("", "", "", False),
        ("replicator", "wrong", "", False),
        ("replicator", "", "ANONYMOUS", False),
    ],
)
def test_the_user_is_the_one_who_has_logged_in(
    engines: EngineFactory, user: str, password: str, mechanism: str, is_let_in: bool
) -> None:
    broker = Cluster(replace(SETTINGS, peer_user="replicator"))
    peer = Connection(broker.container, engines.make(), "127.0.0.1:1")
    ours = client_engine(user=user, password=password, mechanism=mechanism, insecure_plain=True)
    backup = Backup(broker, peer, ours)
    backup.settle_down()
    assert backup.openings == len(broker.peers.channels) == int(is_let_in)
    assert is_let_in or "amqp:unauthorized-access" in backup.reasons[0]
