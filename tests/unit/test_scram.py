"""Passwords as verifiers of SCRAM, and the server's part of a login with one."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.access.scram import (
    DIGESTS,
    ScramError,
    ScramExchange,
    UserLogin,
    Verifier,
    name_problem,
    nobodys_verifier,
    password_problem,
    read_plain,
)

SALT = bytes(range(16))
FEW = 4096
"""Iterations, so that tests take no time."""
RFC_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
RFC_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def final_of(exchange: bytes, challenge: bytes, mechanism: str, password: str) -> bytes:
    """What a client with that password says to a challenge (RFC 5802, section 3)."""
    digest = DIGESTS[mechanism]
    fields = dict(field.split("=", 1) for field in challenge.decode().split(","))
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), b64decode(fields["s"]), int(fields["i"]))
    client_key = hmac.digest(salted, b"Client Key", digest)
    header, bare = exchange.decode().split(",,", 1)
    without_proof = f"c={b64encode(f'{header},,'.encode()).decode()},r={fields['r']}"
    message = ",".join((bare, challenge.decode(), without_proof)).encode()
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), message, digest)
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{without_proof},p={b64encode(proof).decode()}".encode()


def test_the_example_of_rfc_7677_comes_out_as_it_is_written_there() -> None:
    verifier = Verifier.of("SCRAM-SHA-256", "pencil", b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    exchange = ScramExchange(RFC_FIRST, RFC_NONCE)
    assert exchange.user == "user"
    assert exchange.challenge(verifier) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert exchange.finish(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("mechanism", DIGESTS)
def test_who_knows_the_password_proves_it_and_nobody_else(mechanism: str) -> None:
    login = UserLogin.of("olga", "geheim", SALT, FEW)
    for password in ("geheim", "geheim ", "Geheim", ""):
        exchange = ScramExchange(b"n,,n=olga,r=abcdefgh", "nonce")
        challenge = exchange.challenge(login.verifier(mechanism))
        final = final_of(b"n,,n=olga,r=abcdefgh", challenge, mechanism, password)
        assert (exchange.finish(final) is not None) is (password == "geheim")


def test_a_user_who_is_not_there_is_answered_as_one_who_is_and_always_alike() -> None:
    one, again = (nobodys_verifier("SCRAM-SHA-256", "nobody", b"secret") for _ in range(2))
    assert one == again
    assert one.salt != nobodys_verifier("SCRAM-SHA-256", "somebody", b"secret").salt
    there = UserLogin.of("olga", "x", SALT).verifier("SCRAM-SHA-256")
    assert [len(part) for part in one[2:]] == [len(part) for part in there[2:]]
    assert one.iterations == there.iterations


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_any_password_that_is_taken_can_be_logged_in_with_and_no_other_text(password: str) -> None:
    if password_problem(password):
        with pytest.raises(ValueError, match="password"):
            UserLogin.of("olga", password, SALT, FEW)
        return
    login = UserLogin.of("olga", password, SALT, FEW)
    assert login.verifiers[0].knows(password)
    assert not login.verifiers[0].knows(password + "x")


def test_a_login_is_read_as_it_was_written_and_shows_nothing_of_itself_in_logs() -> None:
    login = UserLogin.of("olga", "geheim", SALT, FEW)
    assert UserLogin.read("olga", login.text) == login
    assert repr(login) == "UserLogin(name='olga', verifiers=(Verifier(SCRAM-SHA-512), Verifier(SCRAM-SHA-256)))"
    assert "geheim" not in login.text


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[:-1],
        lambda text: text.replace("$4096:", "$4095:"),
        lambda text: text.replace("$4096:", "$04096:"),
        lambda text: text.replace("$4096:", "$9999999:"),
        lambda text: text.replace("SCRAM-SHA-256", "SCRAM-SHA-1"),
        lambda text: text.split(" ")[0],
        lambda text: " ".join(reversed(text.split(" "))),
        lambda text: text.replace(":", "::"),
        lambda text: "geheim",
        lambda text: text * 9,
    ],
)
def test_what_is_no_verifier_is_refused_and_not_quoted(change) -> None:  # type: ignore[no-untyped-def]
    text = change(UserLogin.of("olga", "geheim", SALT, FEW).text)
    with pytest.raises(ValueError, match=r"verifier|keys|iterations") as refused:
        UserLogin.read("olga", text)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    "name", ["", " olga", "-x", "a@b", "a/b", "a:b", "all", "anonymous", "x" * 65, "a\nb", "\ufb01"]
)
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    assert name_problem(name)


@pytest.mark.parametrize("name", ["olga", "CN=admin, O=Example", "søren", "a.b-c_d"])
def test_names_that_rules_and_certificates_have_can_be_names(name: str) -> None:
    assert not name_problem(name)


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,", b"p=tls-unique,,n=a,r=abcdefgh", b"n,a=eve,n=olga,r=abcdefgh", b"n,,n=a,r=short", b"n,,r=abcdefgh",
     b"n,,m=x,n=a,r=abcdefgh", b"n,,n=a=2Xb,r=abcdefgh", b"\xff"],
)  # fmt: skip
def test_what_is_no_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(ScramError):
        ScramExchange(first, "nonce")


def test_a_name_with_a_comma_comes_as_scram_writes_it() -> None:
    assert ScramExchange(b"n,,n=CN=3Dadmin=2C O=3DX,r=abcdefgh", "nonce").user == "CN=admin, O=X"
    assert ScramExchange(b"y,a=b,n=b,r=abcdefgh", "nonce").user == "b"


@given(st.binary(max_size=200))
def test_no_last_message_that_was_made_without_the_password_is_a_proof(final: bytes) -> None:
    exchange = ScramExchange(b"n,,n=olga,r=abcdefgh", "nonce")
    exchange.challenge(UserLogin.of("olga", "geheim", SALT, FEW).verifier("SCRAM-SHA-256"))
    with suppress(ScramError):
        assert exchange.finish(final) is None


def test_a_proof_is_good_for_one_exchange() -> None:
    verifier = UserLogin.of("olga", "geheim", SALT, FEW).verifier("SCRAM-SHA-256")
    first = b"n,,n=olga,r=abcdefgh"
    one, other = ScramExchange(first, "nonce-1"), ScramExchange(first, "nonce-2")
    final = final_of(first, one.challenge(verifier), "SCRAM-SHA-256", "geheim")
    other.challenge(verifier)
    assert one.finish(final) is not None
    with pytest.raises(ScramError, match="nonce"):
        other.finish(final)


def test_a_proof_that_is_cut_is_none() -> None:
    first = b"n,,n=olga,r=abcdefgh"
    exchange = ScramExchange(first, "nonce")
    exchange.challenge(UserLogin.of("olga", "geheim", SALT, FEW).verifier("SCRAM-SHA-256"))
    assert exchange.finish(b"c=biws,r=abcdefghnonce,p=") is None


def test_plain_has_a_name_and_a_password_of_one_person() -> None:
    assert read_plain(b"\0olga\0geheim") == ("olga", "geheim")
    assert read_plain(b"olga\0olga\0geheim") == ("olga", "geheim")
    for wrong in (b"eve\0olga\0geheim", b"olga", b"\0a\0b\0c", b"\xff\0a\0b"):
        with pytest.raises(ScramError):
            read_plain(wrong)
