"""The login of a client who may be a user of the cluster (AMQP 1.0, part 5 section 3), before Proton hears of him.

Proton and Cyrus know the users in files, and nothing of those whom the cluster keeps. So a client's first frames are
read here. Who turns out to be somebody else is left to Proton, as if it had said all that.

| what the client says | users of the cluster | what comes of it |
| --- | --- | --- |
| no SASL, or what is none | any | OTHERS: Proton is given all of it |
| another mechanism than SCRAM-SHA-512, SCRAM-SHA-256, PLAIN | any | OTHERS |
| one of these, and a user who is among them | any | a proof is asked for, or what was said is computed: IN, or FAILED |
| one of these, and another user | all are known | OTHERS where there is a file of users; else as for a wrong password |
| | not all yet | OTHERS where there is a file, and who fails there is turned away; else TURNED_AWAY |
| what is no frame, no mechanism that was offered, no SCRAM | any | FAILED |

Turned away is whose socket just ends: every client tries again after that, and gives up after a refused login.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.access.logins import Logins
from qpid_ha_broker.access.scram import (
    DIGESTS,
    ScramError,
    ScramExchange,
    UserLogin,
    Verifier,
    nobodys_verifier,
    read_plain,
)
from qpid_ha_broker.amqp.wire.conditions import DecodeError
from qpid_ha_broker.amqp.wire.values import value_of

HEADER: Final = b"AMQP\x03\x01\x00\x00"
FRAME_BYTES_MOST: Final = 4096
"""Of a frame of a login; the standard lets a server take 512."""
AHEAD_BYTES_MOST: Final = 64 * 1024
"""Of what a client says behind its password, before it has been told that it is in."""
PLAIN: Final = "PLAIN"
MECHANISMS: Final = (*DIGESTS, PLAIN)
"""By which a user of the cluster logs in, the strongest first."""
_FRAME: Final = struct.Struct(">IBBH")
_SASL_TYPE: Final = 1
_OFFER, _INIT, _CHALLENGE, _RESPONSE, _OUTCOME = 0x40, 0x41, 0x42, 0x43, 0x44
_NAMES: Final = {"amqp:sasl-init:list": _INIT, "amqp:sasl-response:list": _RESPONSE}
_OK, _WRONG = 0, 1


class SaslState(Enum):
    """How far a login has come. All from IN on are ends."""

    HEADER = "the client has said nothing"
    INIT = "mechanisms are offered"
    PROOF = "SCRAM: the challenge is sent"
    CHECK = "PLAIN: somebody computes whether that is the password"
    LAST = "SCRAM: the client has proved that it knows the password, and is told that we do"
    IN = "the client is a user of the cluster"
    OTHERS = "Proton is to do it"
    FAILED = "the login is refused"
    TURNED_AWAY = "nobody can know yet"


ENDS: Final = (SaslState.IN, SaslState.OTHERS, SaslState.FAILED, SaslState.TURNED_AWAY)


class PasswordAsked(NamedTuple):
    """What a client has said, and whoever drives its login is to compute."""

    verifier: Verifier
    password: str

    def __repr__(self) -> str:
        """Not for logs."""
        return f"PasswordAsked({self.verifier!r})"

    def is_right(self) -> bool:
        """Whether it is the password. Takes long: not on the loop."""
        return self.verifier.knows(self.password)


class SaslServer:
    """The promise: IN is reached by who has proved a password that is in force at that moment, and by nobody else."""

    def __init__(
        self,
        logins: Logins,
        own: tuple[str, ...],
        others: tuple[str, ...],
        nonce: Callable[[], str],
        secret: bytes,
        *,
        has_file: bool,
    ) -> None:
        """`own`: which of MECHANISMS are offered here to users of the cluster; `others`: what Proton offers.

        `secret`: this process's, by which nobody learns who is a user. `has_file`: Proton knows users, too.
        """
        self._logins, self._nonce, self._secret, self._has_file = logins, nonce, secret, has_file
        self._own = own
        certified = (name for name in others if name == "EXTERNAL")
        self.offered = tuple(dict.fromkeys((*certified, *own, *others)))
        self.state = SaslState.HEADER
        self.is_certain = True
        """That the client is none of the users of the cluster, where it is left to Proton."""
        self.mechanism = ""
        """Of `own`, by that the client logs in; empty: it has not said it, or another one."""
        self.login: UserLogin | None = None
        """Who has logged in; None: nobody yet, or not by a password of the cluster."""
        self.rest = b""
        """What came behind the login, or, where that is OTHERS', all that came."""
        self._came = b""
        self._said: list[bytes] = []
        self._exchange: ScramExchange | None = None
        self._candidate: UserLogin | None = None
        self._asked: PasswordAsked | None = None

    @property
    def is_in_force(self) -> bool:
        """Whether what the client has logged in by, if it has by a password of the cluster, still counts."""
        return self.login is None or self._logins.is_current(self.login)

    def feed(self, data: bytes) -> SaslState:
        """Bytes came; how far it has come then."""
        self._came += data
        while self.state not in ENDS and self.state is not SaslState.CHECK:
            if self.state is SaslState.HEADER:
                if not self._read_header():
                    return self.state
                continue
            frame = self._next_frame()
            if frame is None:
                return self.state
            if self.state not in ENDS:
                self._take(*frame)
        if self.state is SaslState.CHECK and len(self._came) > AHEAD_BYTES_MOST:
            self._fail()
        self._hand_over_rest()
        return self.state

    def take_asked(self) -> PasswordAsked | None:
        """What is to be computed, once; then `checked` is to be called."""
        asked, self._asked = self._asked, None
        return asked

    def checked(self, asked: PasswordAsked, is_right: bool) -> None:
        """What `take_asked` gave was computed."""
        if self.state is not SaslState.CHECK:
            return
        if is_right:
            self._let_in()
        else:
            self._fail()
        if self.login is not None:
            self._logins.remember(self.login, asked.password, self._secret)
        self._hand_over_rest()

    def _hand_over_rest(self) -> None:
        if self.state is SaslState.IN:
            self.rest, self._came = self._came, b""

    def take_said(self) -> bytes:
        """What the client is to be sent."""
        said, self._said = self._said, []
        return b"".join(said)

    def _read_header(self) -> bool:
        """Whether it is known what the client begins with."""
        header = self._came[: len(HEADER)]
        if header != HEADER[: len(header)]:
            self._leave_to_others(self._came)
        elif len(header) < len(HEADER):
            return False
        else:
            self._came = self._came[len(HEADER) :]
            self._said.append(HEADER)
            offer = proton.Array(proton.UNDESCRIBED, proton.Data.SYMBOL, *self.offered)  # type: ignore[arg-type]
            self._say(_OFFER, [offer])
            self.state = SaslState.INIT
        return True

    def _next_frame(self) -> tuple[int, list[Any], bytes] | None:
        """Descriptor, fields, and the frame as it came; None: it has not come as a whole."""
        if len(self._came) < _FRAME.size:
            return None
        size, offset, kind, _ = _FRAME.unpack_from(self._came)
        if not _FRAME.size <= size <= FRAME_BYTES_MOST or kind != _SASL_TYPE or not 2 <= offset <= size // 4:
            self._fail()
            return 0, [], b""
        if len(self._came) < size:
            return None
        frame, self._came = self._came[:size], self._came[size:]
        try:
            code, fields = _decoded(frame[offset * 4 :])
        except DecodeError:
            self._fail()
            return 0, [], b""
        return code, fields, frame

    def _take(self, code: int, fields: list[Any], frame: bytes) -> None:
        payload = fields[1 if code == _INIT else 0] if len(fields) > (code == _INIT) else None
        response = payload if isinstance(payload, bytes) else b""
        try:
            if code != (_INIT if self.state is SaslState.INIT else _RESPONSE):
                self._fail()
            elif self.state is SaslState.INIT:
                self._begin(str(fields[0]) if fields else "", response, frame)
            elif self.state is SaslState.PROOF:
                self._check_proof(response)
            else:
                self._let_in()
        except ScramError:
            self._fail()

    def _begin(self, mechanism: str, response: bytes, frame: bytes) -> None:
        if mechanism not in self._own:
            self._leave_to_others(HEADER + frame + self._came)
            return
        self.mechanism, password = mechanism, ""
        if mechanism == PLAIN:
            user, password = read_plain(response)
        else:
            self._exchange = ScramExchange(response, self._nonce())
            user = self._exchange.user
        candidate = self._candidate = self._logins.by_name.get(user)
        self.is_certain = user == self._logins.never_kept or self._logins.is_complete()
        if candidate is None and self._has_file:
            self._leave_to_others(HEADER + frame + self._came)
        elif candidate is None and not self.is_certain:
            self.state = SaslState.TURNED_AWAY
        else:
            somebody = self._nobody(user) if candidate is None else candidate
            if self._exchange is not None:
                self.state = SaslState.PROOF
                self._say(_CHALLENGE, [self._exchange.challenge(somebody.verifier(mechanism))])
            elif self._logins.remembers(somebody, password, self._secret):
                self._let_in()
            else:
                self.state, self._asked = SaslState.CHECK, PasswordAsked(somebody.verifiers[-1], password)

    def _nobody(self, user: str) -> UserLogin:
        """Answers as a user does who is there."""
        return UserLogin(user, tuple(nobodys_verifier(mechanism, user, self._secret) for mechanism in DIGESTS))

    def _check_proof(self, response: bytes) -> None:
        answer = None if self._exchange is None else self._exchange.finish(response)
        if answer is None or self._candidate is None:
            self._fail()
        else:
            self.state = SaslState.LAST
            self._say(_CHALLENGE, [answer])

    def _let_in(self) -> None:
        if self._candidate is None or not self._logins.is_current(self._candidate):
            self._fail()
            return
        self.login, self.state = self._candidate, SaslState.IN
        self._say(_OUTCOME, [proton.ubyte(_OK)])

    def _fail(self) -> None:
        self.state = SaslState.FAILED
        self._say(_OUTCOME, [proton.ubyte(_WRONG)])

    def _leave_to_others(self, came: bytes) -> None:
        self.state, self.rest, self._came = SaslState.OTHERS, came, b""

    def _say(self, code: int, fields: list[Any]) -> None:
        data = proton.Data()
        data.put_object(proton.Described(proton.ulong(code), fields))
        body = bytes(data.encode())
        self._said.append(_FRAME.pack(len(body) + _FRAME.size, 2, _SASL_TYPE, 0) + body)


def _decoded(body: bytes) -> tuple[int, list[Any]]:
    """Raises DecodeError."""
    data = proton.Data()
    try:
        data.decode(body)
    except (proton.ProtonException, ValueError) as error:
        raise DecodeError(f"no frame of SASL: {error}") from error
    value = value_of(data)
    if not isinstance(value, proton.Described) or not isinstance(value.value, list):
        raise DecodeError("no frame of SASL")
    # Proton's binaries lie in `data`, and go with it.
    fields = [bytes(field) if isinstance(field, memoryview) else field for field in value.value]
    code = value.descriptor
    return (code if isinstance(code, int) else _NAMES.get(str(code), 0)), fields


def offered_mechanisms(output: bytes) -> tuple[str, ...]:
    """Of what a server says first: its header, and a frame with mechanisms. Raises DecodeError."""
    if len(output) < len(HEADER) + _FRAME.size:
        raise DecodeError("no frame with mechanisms")
    size, offset, _, _ = _FRAME.unpack_from(output, len(HEADER))
    code, fields = _decoded(output[len(HEADER) + offset * 4 : len(HEADER) + size])
    if code != _OFFER or not fields:
        raise DecodeError("no frame with mechanisms")
    names = fields[0].elements if isinstance(fields[0], proton.Array) else [fields[0]]
    return tuple(str(name) for name in names)
