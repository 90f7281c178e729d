"""Who may log in: PLAIN and SCRAM against a sasldb, ANONYMOUS on loopback, and what a wrong password costs."""

from __future__ import annotations

import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import proton
import pytest
from proton.utils import BlockingConnection

from blocking_client import BlockingClient, bodies
from proxied_broker import Serve, Served
from raw_peer import AMQP_HEADER, CLOSE, OPEN, SASL_HEADER, RawPeer, described, encoded, frame
from running_broker import RunningBroker

USER, PASSWORD = "alice", "not committed anywhere else"
SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin")
EXTENDED = proton.SASL.extended()

needs_cyrus = pytest.mark.skipif(
    not EXTENDED, reason="this Proton was built without Cyrus SASL (libsasl2-dev): PLAIN and SCRAM are not tested"
)


@pytest.fixture(scope="module")
def users_db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One user. The realm is the name of this machine, as Cyrus looks it up."""
    path = tmp_path_factory.mktemp("sasl") / "users.sasldb"
    if SASLPASSWD is None:
        pytest.fail("saslpasswd2 is missing: install sasl2-bin")
    command = [SASLPASSWD, "-p", "-c", "-f", str(path), USER]
    subprocess.run(command, input=PASSWORD.encode(), check=True, timeout=30)
    return path


@pytest.fixture(scope="module")
def guarded(serve: Serve, users_db: Path) -> Iterator[Served]:
    """A broker that lets in who knows a password, and nobody else, brokers included."""
    secret = users_db.parent / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    settings: dict[str, object] = {
        "sasl.users-db": users_db,
        "sasl.allow-anonymous": False,
        "ha.username": USER,
        "ha.password-file": secret,
    }
    with serve(settings) as running:
        yield running
        assert PASSWORD not in running.all_logs()


def works(broker: Served, mechanism: str = "PLAIN") -> bool:
    with BlockingClient(
        broker.url, user=USER, password=PASSWORD, allowed_mechs=mechanism, allow_insecure_mechs=True
    ) as client:
        client.send("guarded", "x")
        return bodies(client.consume("guarded")) == ["x"]


def new_lines(broker: Served, before: int) -> list[str]:
    """What was logged after the first `before` characters; waits for it."""
    deadline = time.monotonic() + 5
    while len(broker.log()) == before and time.monotonic() < deadline:
        time.sleep(0.01)
    return broker.log()[before:].splitlines()


@needs_cyrus
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256"])
def test_who_knows_the_password_sends_and_receives(guarded: Served, mechanism: str) -> None:
    assert works(guarded, mechanism)


@needs_cyrus
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD), (USER, ""), ("", "")])
def test_wrong_credentials_are_unauthorized_and_logged_once(
    guarded: Served, mechanism: str, user: str, password: str
) -> None:
    before = len(guarded.log())

    with pytest.raises(proton.ProtonException) as refused:
        BlockingConnection(
            guarded.url, timeout=60, user=user, password=password, allowed_mechs=mechanism, allow_insecure_mechs=True
        )

    if user and password:  # else the client itself gives up before it has said anything
        assert "amqp:unauthorized-access" in str(refused.value)
        (line,) = new_lines(guarded, before)
        assert "amqp:unauthorized-access" in line
    assert works(guarded)


@needs_cyrus
def test_anonymous_is_not_let_in_where_it_is_not_allowed(guarded: Served) -> None:
    with pytest.raises(proton.ProtonException) as refused:
        BlockingConnection(guarded.url, timeout=60, allowed_mechs="ANONYMOUS")

    assert "amqp:unauthorized-access" in str(refused.value)


@needs_cyrus
def test_nobody_gets_around_the_login_by_leaving_it_out(guarded: Served) -> None:
    before = len(guarded.log())
    with RawPeer(guarded.port) as peer:
        peer.send(AMQP_HEADER + frame(OPEN, ["sneaky", "localhost"]))
        answer = peer.read_to_end()
    (line,) = new_lines(guarded, before)
    assert "amqp:connection:policy-error" in line
    assert b"ANONYMOUS-RELAY" not in answer  # that would be our open


@needs_cyrus
@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "NONSENSE", "EXTERNAL", "X" * 200])
def test_a_mechanism_that_was_not_offered_is_refused(guarded: Served, mechanism: str) -> None:
    init = encoded(described(0x41, [proton.symbol(mechanism), b"", "localhost"]))
    with RawPeer(guarded.port) as peer:
        peer.send(SASL_HEADER + struct.pack(">IBBH", len(init) + 8, 2, 1, 0) + init)
        answer = peer.read_to_end()
    assert b"\x00\x53\x44" in answer  # sasl-outcome
    assert b"\x50\x01" in answer  # auth
    assert works(guarded)


@needs_cyrus
def test_noise_in_the_login_costs_the_peer_its_socket(guarded: Served) -> None:
    for noise in (b"\xff" * 64, b"\x00\x00\x00\x10\x02\x01\x00\x00" + b"\x00\x53\x41\x45\x00\x00\x00\x00", bytes(1000)):
        with RawPeer(guarded.port) as peer:
            peer.send(SASL_HEADER + noise)
            peer.read_to_end()
    assert works(guarded)


def test_anonymous_is_let_in_on_loopback_by_default(broker: Served) -> None:
    with BlockingClient(broker.url, allowed_mechs="ANONYMOUS") as client:
        client.send("q", "x")
        assert client.connection.conn.transport.sasl().mech == "ANONYMOUS"


def test_anonymous_elsewhere_needs_a_decision() -> None:
    """0.0.0.0 is reachable through loopback too; what counts is where the broker listens."""
    with pytest.raises(RuntimeError, match="nobody could log in"), RunningBroker({"listen": "amqp://0.0.0.0:0"}):
        pass
    with (
        RunningBroker({"listen": "amqp://0.0.0.0:0", "sasl.allow-anonymous": True}) as open_to_all,
        BlockingClient(f"amqp://127.0.0.1:{open_to_all.port}", allowed_mechs="ANONYMOUS") as client,
    ):
        client.send("q", "x")


@needs_cyrus
def test_plain_is_not_offered_where_somebody_may_listen(users_db: Path) -> None:
    with RunningBroker({"listen": "amqp://0.0.0.0:0", "sasl.users-db": users_db}) as reachable:
        with RawPeer(reachable.port) as peer:
            peer.send(SASL_HEADER)
            peer.socket.settimeout(5)
            offered = b""
            while b"SCRAM-SHA-1" not in offered:
                offered += peer.socket.recv(4096)
        assert b"PLAIN" not in offered
        assert b"ANONYMOUS" not in offered


def test_the_client_is_closed_with_an_error_and_not_left_hanging(broker: Served) -> None:
    with RawPeer(broker.port) as peer:
        peer.open()
        peer.send(SASL_HEADER)
        assert peer.expect(CLOSE).error[0] == "amqp:connection:framing-error"
