"""amqps: a certificate made for the test, clients that check it, clients that show one of their own, and bad hellos."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import proton
import pytest
from proton import SSLDomain
from proton.utils import BlockingConnection, LinkDetached

from admin_tool import qpid_ha
from blocking_client import BlockingClient, bodies
from certificate_authority import Authority
from doc_blocks import titled_blocks
from proxied_broker import Serve, Served
from qpid_ha_config.errors import ConfigError
from qpid_ha_config.loading import load_settings
from raw_peer import AMQP_HEADER, RawPeer
from running_broker import RunningBroker

pytestmark = pytest.mark.skipif(
    not proton.SSL.present() or shutil.which("openssl") is None, reason="needs openssl and a Proton with TLS"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_settings(authority: Authority) -> dict[str, object]:
    """Of a broker that takes TLS only, and believes who shows a certificate of the authority."""
    certificate, key = authority.issue("localhost")
    return {
        "listen": "amqps://127.0.0.1:0",
        "tls.certificate": certificate,
        "tls.key": key,
        "tls.ca": authority.certificate,
    }


@pytest.fixture(scope="module")
def secure(serve: Serve, authority: Authority) -> Iterator[Served]:
    """A broker that takes TLS only, and logs in whoever shows a certificate of the authority."""
    with serve({**tls_settings(authority), "handshake-timeout": "1s"}) as running:
        yield running


def trusting(authority: Authority) -> SSLDomain:
    """A client's side that checks the broker's certificate and name."""
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(authority.certificate))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER_NAME)
    return domain


def by_name(broker: Served) -> str:
    """The broker's URL with the name that its certificate has."""
    return f"amqps://localhost:{broker.port}"


def works(broker: Served, authority: Authority, **options: object) -> bool:
    with BlockingClient(by_name(broker), ssl_domain=trusting(authority), **options) as client:
        client.send("secret", "x" * 100_000)
        return bodies(client.consume("secret")) == ["x" * 100_000]


def test_a_client_that_trusts_the_authority_sends_and_receives(secure: Served, authority: Authority) -> None:
    assert works(secure, authority)


def test_a_client_of_another_authority_does_not_go_on(secure: Served, authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(proton.ProtonException):
        BlockingConnection(by_name(secure), timeout=60, ssl_domain=trusting(Authority(tmp_path)))
    assert works(secure, authority)


peers_differ = pytest.mark.direct_only("brokers would log in to each other so: that is test_peer_login's subject")


@pytest.fixture(scope="module")
def demanding(serve: Serve, authority: Authority) -> Iterator[Served]:
    """A broker that talks only to who shows a certificate of the authority."""
    demands = {"tls.require-client-certificate": True, "sasl.allow-anonymous": False}
    with serve({**tls_settings(authority), **demands}) as running:
        yield running


def showing(authority: Authority, issuer: Authority, name: str) -> SSLDomain:
    """A client's side with a certificate of its own."""
    domain = trusting(authority)
    certificate, key = issuer.issue(name)
    domain.set_credentials(str(certificate), str(key), None)
    return domain


def test_a_certificate_made_as_documented_is_good_for_the_names_in_it_and_for_no_address(
    authority: Authority, tmp_path: Path
) -> None:
    for name in ("pem", "key"):
        shutil.copy(authority.certificate.with_suffix(f".{name}"), tmp_path / f"ca.{name.replace('pem', 'crt')}")
    blocks = titled_blocks("runbooks/certificates.md", "sh")
    made = subprocess.run(["sh", "-ec", blocks["certificate"]], cwd=tmp_path, capture_output=True, timeout=30)
    assert made.returncode == 0, made.stderr
    settings = {"tls.certificate": tmp_path / "node1.crt", "tls.key": tmp_path / "node1.key"}
    with RunningBroker({"listen": "amqps://127.0.0.1:0", **settings}) as broker:
        assert works(broker, authority)
        address = f"amqps://127.0.0.1:{broker.port}"
        with pytest.raises(proton.ProtonException, match="certificate verify failed"):
            BlockingConnection(address, timeout=60, ssl_domain=trusting(authority))
        here = {"node1.example.com:5671": f"localhost:{broker.port}", "/etc/qpid-ha/ca.crt": str(authority.certificate)}
        for name, verdict in (("qpid.example.com", "Verification: OK"), ("qpid.example.org", "hostname mismatch")):
            check = blocks["certificate-check"].replace("qpid.example.com", name)
            for documented, real in here.items():
                check = check.replace(documented, real)
            shown = subprocess.run(["sh", "-c", check], cwd=tmp_path, capture_output=True, text=True, timeout=30)
            assert "DNS:node1.example.com, DNS:localhost, DNS:qpid.example.com" in shown.stdout
            assert verdict in shown.stdout


@peers_differ
def test_external_logs_in_with_the_clients_certificate(demanding: Served, authority: Authority) -> None:
    domain = showing(authority, authority, "alice")

    with BlockingClient(by_name(demanding), ssl_domain=domain, allowed_mechs="EXTERNAL") as client:
        client.send("external", "signed")
        assert client.connection.conn.transport.sasl().mech == "EXTERNAL"
        assert bodies(client.consume("external")) == ["signed"]


@pytest.mark.direct_only("the rules are those of the broker that is asked")
def test_the_subject_of_a_certificate_is_a_user_of_the_access_control_list(
    authority: Authority, tmp_path: Path
) -> None:
    rules = tmp_path / "rules"
    rules.write_text("group writers CN=alice\nallow @writers publish,create orders\nallow CN=bob consume orders\n")
    certificate, key = authority.issue("server")
    settings = {
        "tls.certificate": certificate,
        "tls.key": key,
        "tls.ca": authority.certificate,
        "tls.require-client-certificate": True,
        "sasl.allow-anonymous": False,
        "acl.file": rules,
        "listen": "amqps://127.0.0.1:0",
    }

    def log_in(broker: RunningBroker, name: str) -> BlockingClient:
        domain = showing(authority, authority, name)
        return BlockingClient(f"amqps://localhost:{broker.port}", ssl_domain=domain, allowed_mechs="EXTERNAL")

    with RunningBroker(settings) as broker, log_in(broker, "alice") as alice, log_in(broker, "bob") as bob:
        alice.send("orders", "signed")
        assert bodies(bob.consume("orders")) == ["signed"]
        with pytest.raises(LinkDetached, match=r"CN=alice may not consume orders.*allow 'CN=alice' consume orders"):
            alice.consume("orders")
        with pytest.raises(LinkDetached, match="CN=bob may not publish orders"):
            bob.send("orders", "forged")


def test_external_is_not_offered_where_no_certificate_is_asked_for(secure: Served, authority: Authority) -> None:
    domain = showing(authority, authority, "carol")

    with pytest.raises(proton.ProtonException) as refused:
        BlockingConnection(by_name(secure), timeout=60, ssl_domain=domain, allowed_mechs="EXTERNAL")

    assert "amqp:unauthorized-access" in str(refused.value)
    assert works(secure, authority)


@peers_differ
def test_a_certificate_can_be_demanded(demanding: Served, authority: Authority, tmp_path: Path) -> None:
    for domain in (trusting(authority), showing(authority, Authority(tmp_path), "mallory")):
        with pytest.raises(proton.ProtonException):
            BlockingConnection(by_name(demanding), timeout=60, ssl_domain=domain)

    with BlockingClient(by_name(demanding), ssl_domain=showing(authority, authority, "bob")) as client:
        client.send("q", "x")
    assert demanding.await_log("dropped in the handshake of TLS"), "of what happens more often, a line a second"


def lines_after(broker: Served, length: int) -> list[str]:
    """What the broker has logged after the first `length` characters; waits for the first line."""
    deadline = time.monotonic() + 10
    while "\n" not in (text := broker.log()[length:]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return text.splitlines()


NO_TLS = {"plain AMQP": AMQP_HEADER, "HTTP": b"GET / HTTP/1.1\r\n\r\n", "noise": bytes(range(256)) * 4}


@pytest.mark.parametrize("data", NO_TLS.values(), ids=NO_TLS.keys())
def test_what_is_no_tls_costs_the_peer_its_socket_and_one_line(
    secure: Served, authority: Authority, data: bytes
) -> None:
    before = len(secure.log())
    with RawPeer(secure.port) as peer:
        peer.send(data)
        peer.read_to_end()

    (line,) = lines_after(secure, before)
    assert "dropped in the handshake of TLS: it speaks no TLS" in line
    assert works(secure, authority)


def test_a_peer_that_stops_in_the_middle_of_its_hello_is_dropped(secure: Served, authority: Authority) -> None:
    with RawPeer(secure.port) as peer:
        peer.send(b"\x16\x03\x01\x00\xa5\x01\x00")
        assert peer.read_to_end() == b""
    assert works(secure, authority)


def test_a_peer_that_encrypts_and_then_talks_nonsense_loses_its_socket(secure: Served, authority: Authority) -> None:
    """It hears why, as one that does not encrypt does; and the log says it."""
    before = len(secure.log())
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        socket.create_connection(("127.0.0.1", secure.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        encrypted.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with encrypted.makefile("rb") as answer:
            assert b"amqp:connection:framing-error" in answer.read()
    (line,) = lines_after(secure, before)
    assert "amqp:connection:framing-error" in line
    assert works(secure, authority)


def test_who_connects_and_says_nothing_of_tls_makes_room_for_who_does(authority: Authority) -> None:
    settings = {
        **settings_with(authority, *authority.issue("localhost")),
        "max-unopened-connections": 4,
        "handshake-timeout": "60s",
    }
    with RunningBroker(settings) as broker, ExitStack() as silent:
        peers = [silent.enter_context(RawPeer(broker.port)) for _ in range(8)]
        assert works(broker, authority)
        assert peers[0].read_to_end() == b""


def test_a_slow_consumer_over_tls_gets_everything(secure: Served, authority: Authority) -> None:
    """Encryption has buffers of its own; nothing may stay in them."""
    with BlockingClient(by_name(secure), ssl_domain=trusting(authority)) as client:
        client.send("large", *["y" * 200_000] * 40)
        time.sleep(0.1)
        assert sum(len(body) for body in bodies(client.consume("large"))) == 40 * 200_000


def test_the_tool_checks_a_listed_brokers_certificate_with_the_authorities_of_the_configuration(
    authority: Authority, tmp_path: Path
) -> None:
    certificate, key = authority.issue("broker")
    settings = {"listen": "amqps://127.0.0.1:0", "tls.certificate": str(certificate), "tls.key": str(key)}
    with RunningBroker({**settings, "sasl.mechanisms": "ANONYMOUS"}) as broker:
        config = tmp_path / "qpid-ha.yaml"
        listed_url = f"amqps://localhost:{broker.port}"  # Proton looks at a certificate's names, not at addresses in it
        config.write_text(f"ha: {{brokers-url: '{listed_url}'}}\ntls: {{ca: {authority.certificate}}}\n")
        listed = qpid_ha("ping", "-b", broker.url, QPID_HA_CONFIG=str(config))
        stranger = qpid_ha("ping", "-b", broker.url, QPID_HA_CONFIG="/dev/null")
    assert (listed.exit_code, listed.stdout) == (0, "test is alive\n"), listed.stderr
    assert stranger.exit_code != 0
    assert "certificate" in stranger.stderr


# --- versions, ciphers, and certificates that change


def settings_with(authority: Authority, certificate: Path, key: Path) -> dict[str, object]:
    return {
        "listen": "amqps://127.0.0.1:0",
        "tls.certificate": certificate,
        "tls.key": key,
        "tls.ca": authority.certificate,
    }


def handshake(broker: Served, authority: Authority, *versions: ssl.TLSVersion) -> tuple[str, str]:
    """The version and the cipher that a client gets which speaks `versions` only, and any cipher there is."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    with (
        socket.create_connection(("127.0.0.1", broker.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        cipher = encrypted.cipher()
        return encrypted.version() or "", cipher[0] if cipher else ""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")  # old versions are what is tried
def test_tls_1_1_is_refused_even_where_the_ciphers_would_allow_it(authority: Authority) -> None:
    settings = {**settings_with(authority, *authority.issue("localhost")), "tls.ciphers": "ALL:@SECLEVEL=0"}
    with RunningBroker(settings) as broker:
        with pytest.raises(ssl.SSLError):
            handshake(broker, authority, ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1)
        assert handshake(broker, authority, ssl.TLSVersion.TLSv1_2)[0] == "TLSv1.2"
        assert handshake(broker, authority, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)[0] == "TLSv1.3"


def test_versions_and_ciphers_are_those_of_the_settings(authority: Authority) -> None:
    settings = settings_with(authority, *authority.issue("localhost"))
    with RunningBroker({**settings, "tls.versions": "TLSv1.3"}) as newest, pytest.raises(ssl.SSLError):
        handshake(newest, authority, ssl.TLSVersion.TLSv1_2)
    cipher = "ECDHE-ECDSA-AES256-GCM-SHA384"
    with RunningBroker({**settings, "tls.versions": "TLSv1.2", "tls.ciphers": cipher}) as one_cipher:
        assert handshake(one_cipher, authority, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3) == ("TLSv1.2", cipher)


def shown_certificate(broker: Served, authority: Authority) -> bytes:
    """What the broker shows a new client."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with (
        socket.create_connection(("127.0.0.1", broker.port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as encrypted,
    ):
        return encrypted.getpeercert(binary_form=True) or b""


def signal_and_wait(broker: Served) -> str:
    """SIGHUP, and what the broker logs about it."""
    before = len(broker.log())
    os.kill(broker.pid, signal.SIGHUP)
    return "\n".join(lines_after(broker, before))


@pytest.mark.parametrize("how", ["SIGHUP", "qpid-ha tls reload"])
def test_a_renewed_certificate_is_shown_to_new_clients_and_old_ones_stay(
    authority: Authority, tmp_path: Path, how: str
) -> None:
    certificate, key = tmp_path / "broker.pem", tmp_path / "broker.key"

    def renew() -> None:
        for made, used in zip(authority.issue("localhost"), (certificate, key), strict=True):
            shutil.copy(made, used)

    def reload(broker: Served) -> bool:
        if how == "SIGHUP":
            return "were read again" in signal_and_wait(broker)
        return qpid_ha("-b", broker.control_socket, "tls", "reload").exit_code == 0

    renew()
    with RunningBroker(settings_with(authority, certificate, key)) as broker:
        first = shown_certificate(broker, authority)
        with BlockingClient(by_name(broker), ssl_domain=trusting(authority)) as connected:
            renew()
            assert shown_certificate(broker, authority) == first
            assert reload(broker)
            second = shown_certificate(broker, authority)
            assert second != first
            connected.send("q", "still here")
            assert bodies(connected.consume("q")) == ["still here"]
            certificate.write_text("no certificate", encoding="ascii")
            assert not reload(broker)
        assert "tls.certificate" in broker.log()
        assert shown_certificate(broker, authority) == second


def test_a_certificate_and_a_key_that_do_not_belong_together_are_refused(authority: Authority) -> None:
    (certificate, key), (_, other_key) = authority.issue("a"), authority.issue("b")
    flags = {**settings_with(authority, certificate, key), "tls.require-client-certificate": True}
    settings = load_settings(None, flags, {})
    assert settings.mechanisms_for(settings.listen[0]) == ("EXTERNAL", "ANONYMOUS")
    with pytest.raises(ConfigError, match=r"tls\.certificate: .*a\.pem and .*b\.key"):
        load_settings(None, {**flags, "tls.key": other_key}, {})
