"""Who another broker is, when users log in: only `ha.username` may replicate."""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from multiprocessing.pool import Pool
from pathlib import Path

import proton
import pytest

from paired_peers import SETTINGS, Backup, Cluster
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.wire.peer_input import Security
from qpid_ha_broker.server.runtime.engines import EngineFactory, SaslConfiguration, client_engine
from qpid_ha_config.addresses import Address
from qpid_ha_config.settings import BrokerSettings

SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin")
USERS = ("replicator", "alice")
PASSWORD = "only for this test"


needs_cyrus = pytest.mark.skipif(
    not proton.SASL.extended() or SASLPASSWD is None, reason="needs Cyrus SASL in Proton, and sasl2-bin"
)


@pytest.fixture(scope="module")
def process() -> Iterator[Pool]:
    """Where nothing was asked of Cyrus before: it reads its configuration once in the life of a process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def users_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sasl") / "users.sasldb"
    for user in USERS:
        command = [str(SASLPASSWD), "-p", "-c", "-f", str(path), user]
        subprocess.run(command, input=PASSWORD.encode(), check=True, timeout=30)
    return path


def try_to_follow(
    users_db: Path, user: str, password: str, mechanism: str, security: Security | None = None, *, in_clear: bool = True
) -> tuple[int, int, list[str]]:
    """How many channels a backup has opened, how many the primary has taken on, and why not.

    The primary listens on loopback, where users may log in, and guests too. `security`: what the backup's TLS has found
    out; `in_clear`: it may say its password without.
    """
    address = Address.parse("amqp://127.0.0.1:0")
    values = {"name": "primary", "listen": [str(address)], "sasl.users-db": str(users_db), "sasl.allow-anonymous": True}
    settings = BrokerSettings.from_values(values)
    broker = Cluster(replace(SETTINGS, peer_user="replicator"))
    ours = client_engine(user=user, password=password, mechanism=mechanism, insecure_plain=in_clear)
    ours.input.may_stream = True
    ours.input.security = security
    with closing(SaslConfiguration(users_db)) as sasl:
        theirs = EngineFactory(lambda: settings, address, sasl).make()
        backup = Backup(broker, Connection(broker.connections, theirs, "127.0.0.1:1"), ours)
        backup.client.send(b"frame")
        backup.settle_down()
        assert broker.peers.frames == [b"frame"] * backup.openings
        assert (theirs.input.stream is not None) is bool(backup.openings)  # what leaves AMQP has logged in before
    return backup.openings, len(broker.peers.channels), backup.reasons


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
    process: Pool, users_db: Path, user: str, password: str, mechanism: str, is_let_in: bool
) -> None:
    openings, channels, reasons = process.apply(try_to_follow, (users_db, user, password, mechanism))

    assert openings == channels == int(is_let_in), reasons
    assert is_let_in or "amqp:unauthorized-access" in reasons[0]


@needs_cyrus
@pytest.mark.parametrize("security", [Security(256, "CN=primary"), Security(0, None), None])
def test_a_password_is_said_in_clear_where_it_is_encrypted_below(
    process: Pool, users_db: Path, security: Security | None
) -> None:
    login = (users_db, "replicator", PASSWORD, "PLAIN", security)
    openings, _, reasons = process.apply(try_to_follow, login, {"in_clear": False})
    is_encrypted = security is not None and security.bits > 0
    assert openings == int(is_encrypted), reasons
