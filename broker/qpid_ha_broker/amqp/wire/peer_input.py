"""Bytes from the peer on their way into Proton, which does not know two things that come in them.

Formats of messages: see `message_format`. And a link's name that comes again in its session: Proton takes that for an
error of the whole connection, though it is one link's, and the newer one wins (AMQP 1.0 section 2.6.1). So once our
attach has been said, what Proton compares is made a name that no peer can say, for it is not UTF-8; a `named_link`
knows it all the same. For that, links that came before have to be answered when another attach comes: bytes are pushed
up to the next one, and the rest when all is told that was pushed.

Nor does Proton know what TLS has found out, which is not its own here (`Security`). It takes what its own says when it
has read the other end's header, and looks at it when there is more to be done: ours is put in its place between the
two.

And it knows nothing of users whom a cluster keeps: their logins are not for it (`SaslServer`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import cproton_ffi
import proton
from cproton_ffi import ffi, lib

from qpid_ha_broker.amqp.wire.batches import frame_walk
from qpid_ha_broker.amqp.wire.frame_stream import HEADER, FrameStream
from qpid_ha_broker.amqp.wire.message_format import FormatReader
from qpid_ha_broker.amqp.wire.sasl_server import HEADER as SASL_HEADER
from qpid_ha_broker.amqp.wire.sasl_server import PasswordAsked, SaslServer, SaslState

_ATTACH: Final = bytes((0, 0x53, 0x12))
"""How an attach begins, behind the header of its frame. Where it is found in other bytes, nothing is lost by a cut."""
_HIDDEN: Final = 0x80
"""Turned over in the first byte of a name: of what was UTF-8, no UTF-8 comes of that."""
_HEADER_BYTES: Final = 8
_REFUSED: Final = b"\0\0\0\x16\2\1\0\0" + b"\0SA\xc0\x09\1\xa3\x06$wrong"
"""A login by which nobody gets in, with a mechanism that is never offered: so Proton refuses it, and ends all."""
_peek = lib.pn_collector_peek


def _still_there() -> bool:
    return False


def _over() -> bool:
    return True


class Security(NamedTuple):
    """Of what carries a connection's bytes: SASL offers some ways to log in only where others cannot read along."""

    bits: int
    """Of the key with which they are encrypted."""
    subject: str | None
    """The other end's certificate's, who logs in by `EXTERNAL` as that; None: it has shown none."""


class PeerInput:
    """The promise: Proton is given all that came, in order, and an attach when all is told that came before."""

    def __init__(self, transport: Any, collector: Any) -> None:
        self._transport = transport
        self._collector = collector
        self._formats = FormatReader(lib.pn_transport_get_max_frame(transport), frame_walk())
        self._rest = b""
        self._rest_at = 0
        """What of `_rest` is still to be pushed begins there."""
        self._answered: list[Any] = []
        """Links whose name is to be hidden before more comes."""
        self.may_stream = False
        """Frames of another broker may come by a `FrameStream`, if both ends say so."""
        self.stream: FrameStream | None = None
        """None: what comes is AMQP to the end."""
        self.security: Security | None = None
        """Until SASL has been told; None: nothing is encrypted, or it has been."""
        self._header_left = _HEADER_BYTES
        self.login: SaslServer | None = None
        """Of who may be a user of the cluster; None: Proton does it. It stays where it has come to a user."""
        self.is_turned_away = False
        """The socket is to end without a word: nobody can know yet whether the login is right."""
        self.heard_ms = 0
        """When something came last, by the clock of whoever pushes it."""
        self.has_hung_up: Callable[[], bool] = _still_there
        """Whether the other end has closed, though some of what came before that may not be read yet; whoever has the
        socket says so."""

    def expect_stream(self) -> None:
        """The other end may leave AMQP, as soon as its end of the channel is open."""
        self.stream = FrameStream()
        self._formats.last_header = HEADER

    def expect_amqp(self) -> None:
        """The other end speaks nothing else: the header of a stream would be no frame."""
        self.stream = None
        self._formats.last_header = b""

    def push(self, data: bytes | memoryview) -> None:
        """Bytes came. What the transport no longer takes (after an error) is dropped."""
        if self.login is not None and self.login.state is not SaslState.IN:
            self._push_login(self.login, bytes(data))
        else:
            self._push_amqp(data)

    def _push_login(self, login: SaslServer, data: bytes) -> None:
        state = login.state
        if state is SaslState.OTHERS:
            self._push_amqp(data)
        else:
            state = self._take_login(login, data)
        if state is SaslState.OTHERS:
            outcome = lib.pn_sasl_outcome(lib.pn_sasl(self._transport))
            self.is_turned_away = outcome == lib.PN_SASL_AUTH and not login.is_certain
            if outcome != lib.PN_SASL_NONE or login.is_certain:
                self.login = None

    def _take_login(self, login: SaslServer, data: bytes) -> SaslState:
        """What has become of it."""
        state = login.feed(data)
        rest, login.rest = login.rest, b""
        match state:
            case SaslState.TURNED_AWAY:
                self.is_turned_away = True
            case SaslState.FAILED:
                self._push_amqp(SASL_HEADER)
                self._push_amqp(_REFUSED)
                self._drop_output()
                why = f"Authentication failed [mech={login.mechanism or 'none'}]"  # as Proton says it
                lib.pn_condition_set_description(lib.pn_transport_condition(self._transport), why.encode())
            case SaslState.OTHERS if rest.startswith(SASL_HEADER):
                self._push_amqp(SASL_HEADER)
                self._drop_output()  # what is offered has been said
                self._push_amqp(rest[len(SASL_HEADER) :])
            case SaslState.IN:
                lib.pn_transport_require_auth(self._transport, False)
                self._push_amqp(rest)
            case SaslState.OTHERS:
                self._push_amqp(rest)
        return state

    def _drop_output(self) -> None:
        while (pending := lib.pn_transport_pending(self._transport)) > 0:
            lib.pn_transport_pop(self._transport, pending)

    def _push_amqp(self, data: bytes | memoryview) -> None:
        stream = self.stream
        if stream is not None:
            if stream.is_reading:
                stream.feed(data)
                return
            stream.heard()
        data = self._formats.feed(data)
        if stream is not None and self._formats.beyond is not None:
            stream.begin_reading(self._formats.beyond)
        if self._rest:
            self._rest, self._rest_at = self._rest[self._rest_at :] + bytes(data), 0
            return
        whole = bytes(data)
        second = whole.find(_ATTACH, len(_ATTACH)) if self._formats.may_have_attach else -1
        if second >= 0:
            self._rest, self._rest_at, whole = whole, second, whole[:second]
        self._push(whole)

    def push_rest(self) -> Any:
        """Push more of what has come, up to an attach, until there is an event: returns that, None: nothing is left."""
        event = None
        while self._rest and not event:
            at, end = self._rest_at, self._rest.find(_ATTACH, self._rest_at + len(_ATTACH))
            piece = self._rest[at:] if end < 0 else self._rest[at:end]
            self._rest, self._rest_at = (b"", 0) if end < 0 else (self._rest, end)
            self._push(piece)
            event = _peek(self._collector)
        return event

    @property
    def user(self) -> str:
        """Who of the users of the cluster the peer has logged in as; empty: as none of them."""
        return "" if self.login is None or self.login.login is None else self.login.login.name

    def take_asked(self) -> PasswordAsked | None:
        """A password that the peer has said, for somebody to compute whether it is right; None: there is none, or it
        has been taken."""
        return None if self.login is None else self.login.take_asked()

    def password_checked(self, asked: PasswordAsked, is_right: bool) -> None:
        """That was computed; what the peer has said behind its password goes on."""
        if self.login is not None:
            self.login.checked(asked, is_right)
            self._push_login(self.login, b"")

    def answered(self, link: proton.Link) -> None:
        """Our attach of `link` has been said, and its name is not needed any more."""
        self._answered.append(link)

    def close(self) -> None:
        """Let go of all."""
        self._answered.clear()
        self._rest, self.login = b"", None
        self.has_hung_up = _over
        if self.stream is not None:
            self.stream.stop()

    def _push(self, data: bytes) -> None:
        if self._answered:
            self._hide_names()
        if self.security is not None:
            data = self._push_header(data, self.security)
        start, size, offset = ffi.from_buffer(data), len(data), 0
        while offset < size:  # Proton takes what its buffer holds, a few KiB, and makes room by reading it
            taken = lib.pn_transport_push(self._transport, start + offset, size - offset)
            if taken <= 0:
                return
            offset += taken

    def _push_header(self, data: bytes, security: Security) -> bytes:
        """Returns what comes after it."""
        header, rest = data[: self._header_left], data[self._header_left :]
        lib.pn_transport_push(self._transport, header, len(header))
        self._header_left -= len(header)
        if not self._header_left:
            self.security = None
            declarations, sasl = _sasl()
            transport = declarations.cast("void *", int(ffi.cast("uintptr_t", self._transport)))
            subject = declarations.NULL if security.subject is None else security.subject.encode()
            sasl.pni_sasl_set_external_security(transport, security.bits, subject)
        return rest

    def _hide_names(self) -> None:
        lib.pn_transport_pending(self._transport)  # our attaches are encoded with the names
        for link in self._answered:
            if link.state & proton.Endpoint.LOCAL_ACTIVE and link.name:
                link.true_name = link.name
                name = lib.pn_link_name(link._impl)
                name[0] = bytes((name[0][0] ^ _HIDDEN,))
        self._answered.clear()


@cache
def _sasl() -> tuple[Any, Any]:
    """What Proton's own TLS calls, and the binding does not know. Raises OSError or AttributeError in a Proton that is
    none of those that setup.cfg names."""
    from cffi import FFI  # who speaks no TLS does without

    declarations = FFI()
    declarations.cdef("void pni_sasl_set_external_security(void *transport, int bits, const char *subject);")
    return declarations, declarations.dlopen(cproton_ffi.__file__)


class _NamedLink(proton.Link):
    """Proton's, of which `PeerInput` may have hidden the name."""

    true_name: str

    @property
    def name(self) -> Any:
        # Attributes are kept beside what Proton has of the link: all objects that stand for it have them.
        return self._attrs.get("true_name") or super().name


class _NamedSender(_NamedLink, proton.Sender): ...


class _NamedReceiver(_NamedLink, proton.Receiver): ...


def named_link(pointer: Any) -> proton.Link:
    """What stands for a link of the peer's: it knows its name, hidden or not."""
    return (_NamedSender if lib.pn_link_is_sender(pointer) else _NamedReceiver)(pointer)
