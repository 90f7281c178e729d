"""Logins of users whom a cluster keeps: a client's engine and ours, with no socket between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest

from qpid_ha_broker.access.logins import Logins
from qpid_ha_broker.access.scram import UserLogin
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.peer_input import PeerInput, Security
from qpid_ha_broker.amqp.wire.sasl_server import AHEAD_BYTES_MOST, HEADER, SaslServer, SaslState, offered_mechanisms
from qpid_ha_broker.server.runtime.engines import EngineFactory, SaslConfiguration, client_engine
from qpid_ha_config.addresses import Address
from qpid_ha_config.settings import BrokerSettings
from raw_peer import AMQP_HEADER, OPEN, described, encoded, frame

OLGA = UserLogin.of("olga", "geheim", bytes(16), 4096)
ADDRESS = Address.parse("amqp://127.0.0.1:0")
needs_cyrus = pytest.mark.skipif(not proton.SASL.extended(), reason="a client needs Cyrus SASL in Proton for SCRAM")


class Seen:
    """What a handler is told, by name."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: self.told.append(name)


def logins(*users: UserLogin, is_complete: bool = True) -> Logins:
    there = Logins(lambda: is_complete)
    there.by_name = {login.name: login for login in users}
    return there


def settings(**values: object) -> BrokerSettings:
    given = {key.replace("__", ".").replace("_", "-"): value for key, value in values.items()}
    return BrokerSettings.from_values(
        {
            "name": "a",
            "listen": str(ADDRESS),
            "ha.cluster": True,
            "ha.brokers-url": "amqp://127.0.0.1:1,127.0.0.1:2",
            **given,
        }
    )


def server(there: Logins, sasl: SaslConfiguration | None = None, **values: object) -> Engine:
    own = settings(**values)
    return EngineFactory(lambda: own, ADDRESS, sasl, logins=there).make()


def compute(login: PeerInput | SaslServer) -> None:
    """As a broker does, beside its loop."""
    asked = login.take_asked()
    if asked is not None:
        tell = login.checked if isinstance(login, SaslServer) else login.password_checked
        tell(asked, asked.is_right())


def meet(client: Engine, ours: Engine) -> list[str]:
    """Both talk until nothing more is said; what our handler was told."""
    seen, of_client = Seen(), Seen()
    client.connection.open()
    for _ in range(20):
        for one, other in ((client, ours), (ours, client)):
            output = one.take_output()
            if output:
                other.push(output)
                compute(other.input)
            other.process(seen if other is ours else of_client)
    return seen.told


def who(ours: Engine) -> str:
    transport = ours.transport
    return ours.input.user or (transport.authenticated and transport.user) or ""


def client(user: str, password: str, mechanism: str = "") -> Engine:
    return client_engine(user=user, password=password, mechanism=mechanism, insecure_plain=True)


@needs_cyrus
@pytest.mark.parametrize("mechanism", ["", "SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize(
    ("user", "password", "gets_in"), [("olga", "geheim", True), ("olga", "wrong", False), ("eve", "geheim", False)]
)
def test_who_knows_the_password_is_in_and_nobody_else(mechanism: str, user: str, password: str, gets_in: bool) -> None:
    ours = server(logins(OLGA))
    theirs = client(user, password, mechanism)
    told = meet(theirs, ours)
    assert ("opened" in told, who(ours)) == (gets_in, "olga" if gets_in else "")
    if not gets_in:
        assert "amqp:unauthorized-access" in str(theirs.transport.condition)
        assert (theirs.finished, ours.finished) == (True, True)
        why = f"Authentication failed [mech={mechanism or 'SCRAM-SHA-512'}]"
        assert why in str(ours.transport.condition)


@needs_cyrus
def test_who_logs_in_as_nobody_is_nobody_where_that_is_allowed_and_refused_where_not() -> None:
    ours = server(logins(OLGA))
    assert "opened" in meet(client_engine(), ours)
    assert who(ours) in ("", "anonymous")
    ours = server(logins(OLGA), sasl__allow_anonymous=False, sasl__users_db="/nowhere")
    assert "opened" not in meet(client_engine(), ours)


@needs_cyrus
def test_nobody_gets_around_the_login_by_leaving_it_out() -> None:
    ours = server(logins(OLGA), sasl__allow_anonymous=False, sasl__users_db="/nowhere")
    ours.push(AMQP_HEADER + frame(OPEN, ["sneaky", "localhost"]))
    seen = Seen()
    ours.process(seen)
    assert "opened" not in seen.told


@needs_cyrus
def test_where_not_all_users_are_known_who_is_not_known_is_turned_away_and_not_refused() -> None:
    ours = server(logins(is_complete=False))
    meet(theirs := client("olga", "geheim"), ours)
    assert ours.input.is_turned_away
    assert theirs.transport.condition is None
    ours = server(logins(OLGA, is_complete=False))
    assert "opened" in meet(client("olga", "geheim"), ours)


def test_the_brokers_own_user_is_refused_also_where_not_all_users_are_known() -> None:
    there = Logins(lambda: False, "replicator")
    for user, is_certain in (("replicator", True), ("olga", False)):
        sasl = sasl_of(there, has_file=True)
        sasl.feed(HEADER + init("PLAIN", f"\0{user}\0wrong".encode()))
        assert (sasl.state, sasl.is_certain) == (SaslState.OTHERS, is_certain)
    sasl = sasl_of(there, has_file=True)
    sasl.feed(HEADER + init("SCRAM-SHA-1", b""))
    assert (sasl.state, sasl.is_certain) == (SaslState.OTHERS, True)


def test_without_users_and_without_a_cluster_a_login_is_protons_alone() -> None:
    assert server(logins()).input.login is None
    assert EngineFactory(settings, ADDRESS, None).make().input.login is None


@needs_cyrus
def test_a_user_who_is_removed_while_he_logs_in_does_not_get_in() -> None:
    there = logins(OLGA)
    sasl = sasl_of(there)
    sasl.feed(HEADER + init("PLAIN", b"\0olga\0geheim"))
    compute(sasl)
    assert (sasl.state, sasl.is_in_force) == (SaslState.IN, True)
    there.by_name = {}
    assert not sasl.is_in_force
    there.by_name = {"olga": UserLogin.of("olga", "other", bytes(16), 4096)}
    assert not sasl.is_in_force


def test_a_password_that_was_right_once_is_right_again_at_once_and_no_more_when_it_is_changed() -> None:
    there = logins(OLGA)

    def says(password: str) -> SaslState:
        sasl = sasl_of(there)
        sasl.feed(HEADER + init("PLAIN", f"\0olga\0{password}".encode()))
        return sasl.state

    first = sasl_of(there)
    first.feed(HEADER + init("PLAIN", b"\0olga\0geheim"))
    compute(first)
    assert (says("geheim"), says("wrong")) == (SaslState.IN, SaslState.CHECK)
    there.by_name = {"olga": UserLogin.of("olga", "other", bytes(16), 4096)}
    assert says("geheim") is SaslState.CHECK


def test_what_offers_nothing_is_no_offer() -> None:
    for output in (b"", HEADER, HEADER + b"\0\0\0\x08\2\1\0\0"):
        with pytest.raises(DecodeError):
            offered_mechanisms(output)


def init(mechanism: str, response: bytes) -> bytes:
    return sasl_frame(0x41, [proton.symbol(mechanism), response, "localhost"])


def sasl_frame(code: int, fields: list[Any]) -> bytes:
    body = encoded(described(code, fields))
    return (len(body) + 8).to_bytes(4, "big") + b"\2\1\0\0" + body


def sasl_of(there: Logins, *, has_file: bool = False, others: tuple[str, ...] = ("ANONYMOUS",)) -> SaslServer:
    own = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
    return SaslServer(there, own, others, lambda: "nonce", b"secret", has_file=has_file)


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_login_may_come_in_any_pieces_and_what_is_behind_it_goes_on(cut: int) -> None:
    sasl = sasl_of(logins(OLGA))
    data = HEADER + init("PLAIN", b"\0olga\0geheim") + AMQP_HEADER
    for part in (data[:cut], data[cut:]):
        if sasl.state is not SaslState.IN:
            sasl.feed(part)
            compute(sasl)
            rest = sasl.rest
        else:
            rest += part
    assert (sasl.state, rest) == (SaslState.IN, AMQP_HEADER)
    said = sasl.take_said()
    assert offered_mechanisms(said) == ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "ANONYMOUS")


@pytest.mark.parametrize("is_right", [True, False])
def test_what_is_said_behind_a_password_waits_until_that_is_computed(is_right: bool) -> None:
    sasl = sasl_of(logins(OLGA))
    sasl.feed(HEADER + init("PLAIN", b"\0olga\0geheim") + AMQP_HEADER[:3])
    sasl.feed(AMQP_HEADER[3:])
    assert (sasl.state, sasl.rest, sasl.login) == (SaslState.CHECK, b"", None)
    asked = sasl.take_asked()
    assert asked is not None
    assert sasl.take_asked() is None
    sasl.checked(asked, is_right)
    assert (sasl.state, sasl.rest) == ((SaslState.IN, AMQP_HEADER) if is_right else (SaslState.FAILED, b""))


def test_who_is_removed_while_his_password_is_computed_does_not_get_in() -> None:
    there = logins(OLGA)
    sasl = sasl_of(there)
    sasl.feed(HEADER + init("PLAIN", b"\0olga\0geheim"))
    asked = sasl.take_asked()
    assert asked is not None
    there.by_name = {}
    sasl.checked(asked, True)
    assert (sasl.state, sasl.login) == (SaslState.FAILED, None)


def test_behind_a_password_nobody_says_more_than_is_kept() -> None:
    sasl = sasl_of(logins(OLGA))
    sasl.feed(HEADER + init("PLAIN", b"\0olga\0geheim"))
    asked = sasl.take_asked()
    assert asked is not None
    for _ in range(10):
        sasl.feed(bytes(AHEAD_BYTES_MOST // 8))
    sasl.checked(asked, True)
    assert (sasl.state, sasl.login) == (SaslState.FAILED, None)


@pytest.mark.parametrize(
    "noise",
    [b"\xff" * 64, b"\0\0\0\x10\2\1\0\0\0SA\x45\0\0\0\0", bytes(1000), sasl_frame(0x43, [b"x"]), sasl_frame(0x41, []),
     sasl_frame(0x41, [proton.symbol("SCRAM-SHA-256"), b"\xff"]), b"\0\0\0\x09\2\1\0\0\0"],
)  # fmt: skip
def test_noise_in_a_login_is_a_refused_login_or_left_to_proton(noise: bytes) -> None:
    sasl = sasl_of(logins(OLGA))
    sasl.feed(HEADER + noise)
    assert sasl.state in (SaslState.FAILED, SaslState.OTHERS)
    assert sasl.login is None


@pytest.mark.parametrize("first", [AMQP_HEADER, b"\x16\x03\x01", b"AMQP\2", b"AM\0"])
def test_what_is_no_login_is_left_to_proton_as_it_came(first: bytes) -> None:
    sasl = sasl_of(logins(OLGA))
    for number in range(len(first)):
        if sasl.state is SaslState.HEADER:
            sasl.feed(first[number : number + 1])
    assert sasl.state is SaslState.OTHERS
    assert first.startswith(sasl.rest)
    assert not sasl.take_said()


@pytest.mark.parametrize(
    ("mechanism", "response", "has_file", "state"),
    [
        ("SCRAM-SHA-1", b"n,,n=olga,r=abcdefgh", True, SaslState.OTHERS),
        ("PLAIN", b"\0somebody\0geheim", True, SaslState.OTHERS),
        ("PLAIN", b"\0somebody\0geheim", False, SaslState.FAILED),
        ("PLAIN", b"\0olga\0wrong", True, SaslState.FAILED),
        ("SCRAM-SHA-256", b"n,,n=somebody,r=abcdefgh", True, SaslState.OTHERS),
        ("SCRAM-SHA-256", b"n,,n=somebody,r=abcdefgh", False, SaslState.PROOF),
        ("EXTERNAL", b"", False, SaslState.OTHERS),
    ],
)
def test_who_is_not_among_the_users_is_left_to_proton_where_there_is_a_file(
    mechanism: str, response: bytes, has_file: bool, state: SaslState
) -> None:
    sasl = sasl_of(logins(OLGA), has_file=has_file)
    came = HEADER + init(mechanism, response)
    sasl.feed(came)
    compute(sasl)
    assert sasl.state is state
    if state is SaslState.OTHERS:
        assert sasl.rest == came


@needs_cyrus
def test_a_certificate_is_still_offered_first_and_left_to_proton() -> None:
    own = settings(sasl__allow_anonymous=False, sasl__users_db="/nowhere")
    factory = EngineFactory(lambda: own, ADDRESS, None, logins=logins(OLGA))
    factory._mechanisms = ("EXTERNAL",)
    ours = factory.make(Security(256, "CN=olga"))
    theirs = client_engine(mechanism="EXTERNAL")
    theirs.input.security = Security(256, "CN=a")
    assert "opened" in meet(theirs, ours)
    assert who(ours) == "CN=olga"
