"""Passwords as verifiers of SCRAM (RFC 5802, RFC 7677), and the server's part of such a login.

A verifier lets the broker find out whether somebody knows the password, by SCRAM or by PLAIN, and cannot be used to log
in. It is written as PostgreSQL writes it, `SCRAM-SHA-256$ITERATIONS:SALT$STOREDKEY:SERVERKEY`; a login has one for each
mechanism of `DIGESTS`, with a space between them. Salts and nonces are arguments.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import unicodedata
from base64 import b64decode, b64encode
from typing import Final, NamedTuple

DIGESTS: Final = {"SCRAM-SHA-512": "sha512", "SCRAM-SHA-256": "sha256"}
"""By mechanism, the strongest first. SCRAM-SHA-1 is left to users in files."""
ITERATIONS: Final = 8192
"""Of PBKDF2: a few milliseconds. A client does them at each login, the broker for who says the password (PLAIN)."""
ITERATIONS_LEAST: Final = 4096
ITERATIONS_MOST: Final = 1_000_000
SALT_BYTES: Final = 16
NAME_LENGTH: Final = 64
PASSWORD_BYTES_MOST: Final = 1024
LOGIN_LENGTH_MOST: Final = 1024
"""Of a login as text."""
NO_BINDING: Final = "n"
"""The `gs2-cbind-flag` of who knows no channel binding; `y` says that the server knows none, which is true."""


class ScramError(ValueError):
    """What a client says is no SCRAM, or not the one that was begun. The text is for the log, and quotes nothing."""


class Verifier(NamedTuple):
    """Of a password, for one mechanism."""

    mechanism: str
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(cls, mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
        """That of a password (RFC 5802, section 3)."""
        digest = DIGESTS[mechanism]
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", digest)
        stored_key = hashlib.new(digest, client_key).digest()
        return cls(mechanism, iterations, salt, stored_key, hmac.digest(salted, b"Server Key", digest))

    @classmethod
    def read(cls, text: str) -> Verifier:
        """Raises ValueError, which quotes nothing."""
        try:
            mechanism, salted, keys = text.split("$")
            iterations, salt = salted.split(":")
            stored_key, server_key = keys.split(":")
            read = cls(mechanism, int(iterations), _bytes(salt), _bytes(stored_key), _bytes(server_key))
        except ValueError:
            raise ValueError("a verifier is MECHANISM$ITERATIONS:SALT$STOREDKEY:SERVERKEY") from None
        if mechanism not in DIGESTS or str(read.iterations) != iterations:
            raise ValueError(f"a verifier is of {' or '.join(DIGESTS)}")
        size = hashlib.new(DIGESTS[mechanism]).digest_size
        if (len(read.stored_key), len(read.server_key)) != (size, size) or not 8 <= len(read.salt) <= 64:
            raise ValueError(f"the keys of {mechanism} have {size} bytes, and a salt has 8 to 64")
        if not ITERATIONS_LEAST <= read.iterations <= ITERATIONS_MOST:
            raise ValueError(f"there are {ITERATIONS_LEAST} to {ITERATIONS_MOST} iterations")
        return read

    def __str__(self) -> str:
        salt, stored_key, server_key = (b64encode(part).decode() for part in self[2:])
        return f"{self.mechanism}${self.iterations}:{salt}${stored_key}:{server_key}"

    def __repr__(self) -> str:
        """Not for logs: what it is made of can be tried out."""
        return f"Verifier({self.mechanism})"

    def knows(self, password: str) -> bool:
        """Whether it is that password."""
        if password_problem(password):
            return False
        other = Verifier.of(self.mechanism, password, self.salt, self.iterations)
        return hmac.compare_digest(other.stored_key, self.stored_key)


class UserLogin(NamedTuple):
    """A user with a password, as the cluster keeps it."""

    name: str
    verifiers: tuple[Verifier, ...]

    @classmethod
    def of(cls, name: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> UserLogin:
        """Raises ValueError, which does not quote the password."""
        for problem in filter(None, (name_problem(name), password_problem(password))):
            raise ValueError(problem)
        return cls(name, tuple(Verifier.of(mechanism, password, salt, iterations) for mechanism in DIGESTS))

    @classmethod
    def read(cls, name: str, text: str) -> UserLogin:
        """Raises ValueError, which quotes nothing."""
        if problem := name_problem(name):
            raise ValueError(problem)
        verifiers = tuple(Verifier.read(word) for word in text[: LOGIN_LENGTH_MOST + 1].split(" "))
        if len(text) > LOGIN_LENGTH_MOST or [verifier.mechanism for verifier in verifiers] != list(DIGESTS):
            raise ValueError(f"a user has a verifier of each of {', '.join(DIGESTS)}, in this order")
        return cls(name, verifiers)

    @property
    def text(self) -> str:
        """What `read` reads."""
        return " ".join(map(str, self.verifiers))

    def verifier(self, mechanism: str) -> Verifier:
        """That of a mechanism of `DIGESTS`."""
        return next(verifier for verifier in self.verifiers if verifier.mechanism == mechanism)


def name_problem(name: str) -> str:
    """Why a user cannot be called that; empty: there is no reason."""
    if not 0 < len(name) <= NAME_LENGTH or not name.isprintable() or name != name.strip() or name.startswith("-"):
        return f"a name has 1 to {NAME_LENGTH} printable characters, the first no -, and no spaces around it"
    if set(name) & set("@/:") or unicodedata.normalize("NFKC", name) != name or name in ("anonymous", "all"):
        return "a name has no @, / or :, and is neither `anonymous` nor `all`; letters are written in one way (NFKC)"
    return ""


def password_problem(password: str) -> str:
    """Why that can be no password; empty: there is no reason. It is what all clients send alike: those that prepare
    strings (RFC 4013) and those that do not."""
    if not 0 < len(password.encode("utf-8", "surrogatepass")) <= PASSWORD_BYTES_MOST:
        return f"a password has 1 to {PASSWORD_BYTES_MOST} bytes"
    if not password.isprintable() or unicodedata.normalize("NFKC", password) != password:
        return "a password has printable characters, and letters that are written in one way (Unicode's NFKC)"
    return ""


class ScramExchange:
    """The promise: `finish` comes to an answer for who has proved the password, and for nobody else.

    For a user who is not there the verifier is one that nobody can meet, so that the exchange does not tell.
    """

    def __init__(self, first: bytes, nonce: str) -> None:
        """`first`: the client-first-message. Raises ScramError."""
        parts = _text(first).split(",", 2)
        if len(parts) != 3:
            raise ScramError("a first message of SCRAM begins with its channel binding")
        binding, authorized, rest = parts
        if binding not in (NO_BINDING, "y"):
            raise ScramError("no channel binding was offered")
        header = f"{binding},{authorized},"
        fields = rest.split(",")
        if len(fields) < 2 or not fields[0].startswith("n=") or not fields[1].startswith("r=") or len(fields[1]) < 10:
            raise ScramError("a first message of SCRAM has a name and a nonce")
        self.user = _name(fields[0][2:])
        if authorized and _name(authorized.removeprefix("a=")) != self.user:
            raise ScramError("nobody acts for somebody else here")
        self._header = header
        self._first_bare = rest
        self._nonce = fields[1][2:] + nonce
        self._server_first = ""
        self._verifier: Verifier | None = None

    def challenge(self, verifier: Verifier) -> bytes:
        """The server-first-message."""
        self._verifier = verifier
        salt = b64encode(verifier.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={verifier.iterations}"
        return self._server_first.encode()

    def finish(self, final: bytes) -> bytes | None:
        """The server-final-message for a client-final-message; None: it proves nothing. Raises ScramError."""
        without_proof, separator, proof_text = _text(final).rpartition(",p=")
        fields = without_proof.split(",")
        binding = b64encode(self._header.encode()).decode()
        if not separator or self._verifier is None or fields[:1] != [f"c={binding}"]:
            raise ScramError("a last message of SCRAM repeats the channel binding, and has a proof")
        if fields[1:2] != [f"r={self._nonce}"]:
            raise ScramError("the nonce is not the one that was agreed on")
        verifier, digest = self._verifier, DIGESTS[self._verifier.mechanism]
        message = ",".join((self._first_bare, self._server_first, without_proof)).encode()
        signature = hmac.digest(verifier.stored_key, message, digest)
        try:
            proof = _bytes(proof_text)
        except ValueError:
            raise ScramError("the proof is no base64") from None
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=False))
        is_proved = hmac.compare_digest(hashlib.new(digest, client_key).digest(), verifier.stored_key)
        if not is_proved or len(proof) != len(signature):
            return None
        return b"v=" + b64encode(hmac.digest(verifier.server_key, message, digest))


def nobodys_verifier(mechanism: str, user: str, secret: bytes) -> Verifier:
    """For a user who is not there: the same each time, and such that there is no password to it."""
    size = hashlib.new(DIGESTS[mechanism]).digest_size
    seed = hmac.digest(secret, user.encode("utf-8", "surrogatepass"), "sha512")
    return Verifier(
        mechanism, ITERATIONS, seed[:SALT_BYTES], hashlib.sha512(secret + seed).digest()[:size], bytes(size)
    )


def read_plain(response: bytes) -> tuple[str, str]:
    """User and password of a response of PLAIN (RFC 4616). Raises ScramError."""
    parts = _text(response).split("\0")
    if len(parts) != 3:
        raise ScramError("a response of PLAIN has two zeros")
    authorized, user, password = parts
    if authorized not in ("", user):
        raise ScramError("nobody acts for somebody else here")
    return user, password


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message is not UTF-8") from None


def _name(text: str) -> str:
    """A name as SCRAM writes it, in which `,` and `=` are escaped."""
    name = text.replace("=2C", ",").replace("=3D", "=")
    if name.replace("=", "=3D").replace(",", "=2C") != text:
        raise ScramError("a name has an escape that SCRAM does not know")
    return name


def _bytes(text: str) -> bytes:
    try:
        return b64decode(text.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise ValueError("no base64") from None
