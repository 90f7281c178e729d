"""Proton's engine, called directly: the one module that knows `cproton_ffi`.

Proton's Python classes make an object for each event and each delivery. On the message path there are none: one C call
per step. What happens once per connection or link (open, attach, conditions, filters) goes through the classes, handed
out as `proton` objects.

An `Engine` is one connection, without a socket: bytes in by `push`, bytes out by `take_output`, and in between
`process`, which tells a `Handler` what the peer did.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, Protocol, TypeAlias

import cproton_ffi
import proton
from cproton_ffi import ffi, lib

from qpid_ha_broker.amqp.wire import batches
from qpid_ha_broker.amqp.wire.batches import NUMBER_LENGTH, RECEIVE_BUFFER, BatchReader, batch_reader, batch_writer
from qpid_ha_broker.amqp.wire.conditions import (
    BUG,
    CONDITION_BYTES,
    DECODE_ERROR,
    FRAMING_ERROR,
    INTERNAL_ERROR,
    NOT_IMPLEMENTED,
    UNLIMITED_BYTES,
    cut,
    encoded_bytes,
)
from qpid_ha_broker.amqp.wire.message_format import FormatWriter
from qpid_ha_broker.amqp.wire.peer_input import PeerInput, named_link
from qpid_ha_broker.amqp.wire.values import value_of
from qpid_ha_broker.events.payloads import FORMAT_STARTS, without_format
from qpid_ha_broker.model.budget import UNLIMITED, Budget

ACCEPTED: int = lib.PN_ACCEPTED
REJECTED: int = lib.PN_REJECTED
RELEASED: int = lib.PN_RELEASED
MODIFIED: int = lib.PN_MODIFIED
DECLARED, TRANSACTIONAL = 0x33, 0x34
"""AMQP 1.0 part 4: the delivery states of a coordinator and of transactional work."""

_UINT_MOST = (1 << 32) - 1
_PROBE_CREDIT, _PROBE_MESSAGES, _LINK_WORDS = 0x1234567, 3, 512
"""See `_place_of_counts`."""
OUTPUT_CHUNK = 64 * 1024
TRANSFER_BYTES = 64
"""Of a frame with a message, all that is not the message, at most: its header, and a transfer with a tag of ours."""
ATTACH_BYTES = 128
"""Of a frame with an attach, all that has a fixed length, at most."""
CREDIT_MOST = (1 << 31) - 1
"""Of the messages that a peer takes, as many as Proton counts."""

# Found once: to look a function up in `lib` costs more than half of what it costs to call it.
_peek, _pop = lib.pn_collector_peek, lib.pn_collector_pop
_type_of, _delivery_of, _link_of = lib.pn_event_type, lib.pn_event_delivery, lib.pn_delivery_link
_pending, _is_partial, _is_settled = lib.pn_delivery_pending, lib.pn_delivery_partial, lib.pn_delivery_settled
_state_of, _tag_of, _credit = lib.pn_delivery_remote_state, lib.pn_delivery_tag, lib.pn_link_credit
_receive, _advance, _unpack = lib.pn_link_recv, lib.pn_link_advance, ffi.unpack
_new_delivery, _write = lib.pn_delivery, lib.pn_link_send
_update, _settle = lib.pn_delivery_update, lib.pn_delivery_settle
_DELIVERY: int = lib.PN_DELIVERY


_window_of = ctypes.CDLL(cproton_ffi.__file__).pn_session_remote_incoming_window
"""Proton exports it, but its Python module does not declare it."""
_window_of.argtypes, _window_of.restype = (ctypes.c_void_p,), ctypes.c_uint32

_beyond: dict[Any, int] = {}
"""By the link of a consumer that has given credit beyond CREDIT_MOST: how much there is of that since its last flow.
Below 0, of one that has taken back credit for what was on its way: how much was missing at its last flow."""

_second: dict[Any, Callable[[], object]] = {}
"""Links on which the peer sends messages and wants to settle before we do (AMQP 1.0 section 2.7.3,
receiver-settle-mode second): what is said of a message there stays unsettled until the peer has settled it. With whom
is to hear that it has."""

OnFault = Callable[[Exception], None]
"""Who counts and logs a bug of ours."""

EVENTS_LENGTH = batches.EVENTS_LENGTH
Delivery: TypeAlias = batches.Delivery
Transfer: TypeAlias = batches.Transfer
Disposition: TypeAlias = batches.Disposition
"""What links are told, and in how many at most."""
AnswerLate = Callable[[Delivery, bytes], object]
"""Answers a request that came whole when its link had ended: settles it."""


class Receiving(Protocol):
    """A link on which the peer sends messages."""

    def transfers(self, batch: list[Transfer]) -> None:
        """Whole messages came, one after the other: at most EVENTS_LENGTH. The link may end at any of them."""

    def partial(self, delivery: Delivery, data: bytes) -> None:
        """A part of a message came; more will."""

    def aborted(self, delivery: Delivery) -> None:
        """The peer took back a message of which parts had come."""


class Consuming(Receiving, Protocol):
    """A link on which the peer sends messages for somebody else, who says what becomes of each."""

    def settlements(self, batch: list[Disposition]) -> None:
        """The peer has settled messages that came, of those in `transfers` before."""

    def drained(self) -> None:
        """The peer may have used its credit, or given up what was left of it."""


class Sending(Protocol):
    """A link on which the peer gets messages."""

    def dispositions(self, batch: list[Disposition]) -> None:
        """The peer said what became of messages: at most EVENTS_LENGTH."""

    def flow(self) -> None:
        """The peer changed its credit."""


class EachTransfer:
    """For a link that takes its messages one by one."""

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        """A whole message came: see `Transfer`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to do with a message")

    def transfers(self, batch: list[Transfer]) -> None:
        """Each of them; see `Receiving`."""
        transfer = self.transfer
        for delivery, payload, settled, state in batch:
            transfer(delivery, payload, settled, state)


class EachDisposition:
    """For a link that takes what the peer says of messages one by one."""

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        """The peer said what became of a message: see `Disposition`."""
        raise NotImplementedError(f"{type(self).__name__} does not say what to do with an answer")

    def dispositions(self, batch: list[Disposition]) -> None:
        """Each of them; see `Sending`."""
        disposition = self.disposition
        for delivery, state, settled in batch:
            disposition(delivery, state, settled)


class Handler(Protocol):
    """What `Engine.process` tells, apart from messages.

    `malformed`: what came makes no sense, or a bug of ours came up at it: close the connection, saying so.
    """

    def opened(self) -> None: ...
    def closed(self) -> None: ...
    def failed(self, name: str, description: str) -> None: ...
    def malformed(self, name: str, description: str) -> None: ...
    def session_opened(self, session: proton.Session) -> None: ...
    def session_closed(self, session: proton.Session) -> None: ...
    def link_attached(self, link: proton.Link) -> None: ...
    def link_detached(self, link: proton.Link, closed: bool) -> None: ...


class Workspace:
    """Room for bytes on their way between C and Python. Engines that run in one thread share it: 64 KiB once."""

    def __init__(self) -> None:
        self.buffer = ffi.new("char[]", max(RECEIVE_BUFFER, OUTPUT_CHUNK))
        self._reader: BatchReader | None = None

    @property
    def reader(self) -> BatchReader:
        """What takes messages and answers from engines, by way of the buffer."""
        if self._reader is None:
            self._reader = batch_reader(self.buffer)
        return self._reader


class _EndedLinks:
    """Links on which messages came and that have ended on our side: what is said of what still comes."""

    __slots__ = ("requests", "unanswered")

    def __init__(self) -> None:
        self.unanswered: dict[Any, bool] = {}
        """True: nothing."""
        self.requests: dict[Any, AnswerLate] = {}
        """Also of links that are there: those on which messages are requests, to which `released` is no answer."""

    def answering(self, pointer: Any) -> AnswerLate | None:
        """Who answers what still comes; None: it is answered as a message, or not at all."""
        return self.requests.get(pointer) if self.unanswered.get(pointer) is False else None

    def forget(self, pointer: Any) -> None:
        """There is a new link at the same place."""
        self.unanswered.pop(pointer, None)
        self.requests.pop(pointer, None)


def _nobody(_: Any) -> bool:
    """There is nobody to tell, or to ask."""
    return False


def _do_nothing() -> None:
    """There is nobody to tell."""


class Engine:
    """One AMQP connection. Not thread-safe; after `close` nothing may be called."""

    def __init__(
        self, transport: proton.Transport, connection: proton.Connection, workspace: Workspace | None = None
    ) -> None:
        self.transport = transport
        self.connection = connection
        self._transport = transport._impl
        self._collector = lib.pn_collector()
        lib.pn_connection_collect(connection._impl, self._collector)
        self._receiving: dict[Any, Receiving] = {}
        self._costly: set[Any] = set()
        """Links on which messages are requests."""
        self._sending: dict[Any, Sending] = {}
        self._consuming: dict[Any, Consuming] = {}
        """Those of `_receiving` that hear what becomes of messages, too."""
        self._ended = _EndedLinks()
        self.answers_late = True
        """What publishers send on a link that has ended is answered as released. False: they send again what was not
        answered, and one of these may have been taken before."""
        self.proof = ""
        """Of a connection to another broker of the cluster: by what that one knows us; empty: by our login."""
        self.dropped: Callable[[Delivery], object] = _nobody
        """Told of what comes in a transaction for a link that has ended on our side: a message, or an answer to one."""
        self.encryption: object = None
        """What a socket that is opened for it has to speak, of `server.runtime.tls`; None: its bytes go as they are."""
        self.on_fault: OnFault | None = None
        """Who counts and logs bugs that come up while the peer's bytes are worked on: they end the link, or the
        connection, and nobody else hears of them. None: they are raised, as tests want it."""
        self.end_failed: Callable[[Any], bool] = _nobody
        """Asked to end the link with that key, on which a bug came up; False: only together with the connection."""
        self._is_broken = False
        """A bug has come up: nothing but the end of the connection is told."""
        self._workspace = workspace or Workspace()
        self.input = PeerInput(self._transport, self._collector)
        self._format_writer = FormatWriter()
        transport.bind(connection)

    def close(self) -> None:
        """Let go of everything that C holds."""
        for pointer in self._sending if _beyond else ():
            _beyond.pop(pointer, None)
        for pointer in self._receiving if _second else ():
            _second.pop(pointer, None)
        self._receiving.clear()
        self._sending.clear()
        self._consuming.clear()
        self.dropped = self.end_failed = _nobody  # they lead back here, and nobody collects circles
        self.input.close()
        self.transport.unbind()
        lib.pn_connection_collect(self.connection._impl, ffi.NULL)
        lib.pn_collector_free(self._collector)

    # --- bytes

    def push(self, data: bytes | memoryview) -> None:
        """Bytes from the peer, of which `process` tells. What the transport no longer takes (after an error) is
        dropped."""
        self.input.push(data)

    def take_output(self) -> bytes:
        """Bytes for the peer; empty when there are none now."""
        stream = self.input.stream
        if stream is not None and stream.is_writing:
            connection = self.connection._impl
            is_over = lib.pn_connection_state(connection) & lib.PN_LOCAL_CLOSED
            return stream.take_output(_condition_text(lib.pn_connection_condition(connection)) if is_over else None)
        transport, buffer = self._transport, self._workspace.buffer
        login = self.input.login
        said = b"" if login is None else login.take_said()
        chunks = [said] if said else []  # one alone is not copied
        while (pending := lib.pn_transport_pending(transport)) > 0:
            size = lib.pn_transport_peek(transport, buffer, min(pending, OUTPUT_CHUNK))
            chunks.append(ffi.unpack(buffer, size))
            lib.pn_transport_pop(transport, size)
        return self._format_writer.rewrite(chunks[0] if len(chunks) == 1 else b"".join(chunks))

    @property
    def formats(self) -> FormatWriter:
        """What a `Sender` of messages with a format is to be given."""
        return self._format_writer

    @property
    def peer_frame_bytes(self) -> int:
        """Of a frame for the peer, at most (AMQP 1.0 section 2.7.1, max-frame-size); of what its open has said."""
        return _frame_limit(self._transport)

    def encode(self) -> None:
        """Put what was said so far into frames: Proton would send answers behind messages that are sent after them."""
        lib.pn_transport_pending(self._transport)

    @property
    def finished(self) -> bool:
        """Nothing more will come out: our last word was said, or there is nobody to say it to."""
        stream = self.input.stream
        if stream is not None and stream.is_writing:
            return stream.finished
        return bool(lib.pn_transport_pending(self._transport) < 0)

    @property
    def remote_properties(self) -> object:
        """The properties of the peer's open, None when it has none. Raises AmqpError."""
        return read_data(lib.pn_connection_remote_properties(self.connection._impl))

    @property
    def remote_desired_capabilities(self) -> object:
        """What the peer's open wishes for, as it was sent: None, a symbol, or an array of symbols. Raises AmqpError."""
        return read_data(lib.pn_connection_remote_desired_capabilities(self.connection._impl))

    @property
    def remote_offered_capabilities(self) -> object:
        """What the peer's open offers, in the same form. Raises AmqpError."""
        return read_data(lib.pn_connection_remote_offered_capabilities(self.connection._impl))

    def reason_of_end(self, link: proton.Link) -> str:
        """Why `link` is no more: what the peer has said before what we have, of the link before of the connection."""
        if self.input.stream is not None and self.input.stream.reason:
            return self.input.stream.reason
        pointer, connection = link._impl, self.connection._impl
        remote = (lib.pn_link_remote_condition(pointer), lib.pn_connection_remote_condition(connection))
        local = (lib.pn_link_condition(pointer), lib.pn_connection_condition(connection))
        texts = map(_condition_text, (*remote, lib.pn_transport_condition(self._transport), *local))
        return next(filter(None, texts), "the connection was lost")

    @property
    def reason_of_close(self) -> str:
        """The error with which the peer has closed the connection; empty for none."""
        if self.input.stream is not None and self.input.stream.reason:
            return self.input.stream.reason
        return _condition_text(lib.pn_connection_remote_condition(self.connection._impl))

    def tick(self, now_ms: int) -> int:
        """Keep idle time-outs; returns when to call again (the same clock, milliseconds), 0: no need to."""
        stream = self.input.stream
        if stream is not None and stream.is_writing:
            return stream.tick(now_ms)
        return int(lib.pn_transport_tick(self._transport, now_ms))

    # --- events

    def process(self, handler: Handler, budget: Budget = UNLIMITED) -> bool:
        """Tell `handler` and the links what happened since the last call; whether that was all.

        Stops when `budget` is spent: a few bytes may settle a hundred thousand deliveries, or ask for much. A bug ends
        the link that it came up on, or the connection: see `on_fault`.
        """
        while True:
            try:
                if not self._tell(handler, budget):
                    return False
                stream = self.input.stream
                if stream is not None and not self._is_broken:
                    stream.tell(handler)
                return True
            except Exception as error:
                if self.on_fault is None:
                    raise
                self._break(handler, error)

    def _tell(self, handler: Handler, budget: Budget) -> bool:
        collector, left = self._collector, EVENTS_LENGTH
        while event := _peek(collector) or self.input.push_rest():
            kind = _type_of(event)
            if kind == _DELIVERY:
                count, is_costly = self._tell_deliveries(_delivery_of(event), left)
                left -= count
            else:
                left -= 1
                tell = (_LAST_EVENTS if self._is_broken else _EVENTS).get(kind)
                is_costly = tell is not None
                try:
                    if tell is not None:
                        tell(self, event, handler)
                except UnicodeError as error:  # from Proton, where the standard wants UTF-8
                    handler.malformed(DECODE_ERROR, str(error))
                finally:  # also when it is a bug: it would come up again and again
                    _pop(collector)
            if (is_costly or left <= 0) and budget.is_spent:
                return False
            if left <= 0:
                left = EVENTS_LENGTH
        return True

    def guard(self, act: Callable[[], object]) -> None:
        """Do `act`, whose bug must not keep others from what is theirs: see `on_fault`."""
        try:
            act()
        except Exception as error:
            if self.on_fault is None:
                raise
            self.on_fault(error)

    def _break(self, handler: Handler, error: Exception) -> None:
        """A bug that is no single link's: the connection ends, and its links hear nothing more from here."""
        if self.on_fault is not None:
            self.on_fault(error)
        if self._is_broken:
            return
        self._is_broken = True
        for pointer in self._receiving if _second else ():
            _second.pop(pointer, None)
        for links in (self._receiving, self._sending, self._consuming):
            links.clear()
        self.guard(partial(handler.malformed, INTERNAL_ERROR, BUG))
        connection = self.connection
        if connection.state & proton.Endpoint.LOCAL_ACTIVE:  # whoever was to say it has failed, too
            connection.condition = proton.Condition(INTERNAL_ERROR, BUG)
            connection.close()

    def link_failed(self, pointer: Any, error: Exception) -> None:
        """A bug came up on one link: the others go on, if that one can be ended. Raises `error` if not."""
        if self.on_fault is None or not self.end_failed(pointer):
            raise error
        for links in (self._receiving, self._sending, self._consuming, _second):
            links.pop(pointer, None)
        self.on_fault(error)

    def _tell_deliveries(self, delivery: Delivery, most: int) -> tuple[int, bool]:
        """Take the event of `delivery`, and those right behind it of the same link, and tell the link.

        Returns how many events it were, and whether they are requests.
        """
        if self._is_broken:  # nobody has looked at it, and what is settled counts as queued with some clients
            _pop(self._collector)
            return 1, False
        pointer = _link_of(delivery)
        try:
            receiving = self._receiving.get(pointer)
            if receiving is not None:
                is_costly = pointer in self._costly
                return self._tell_received(pointer, receiving, 1 if is_costly else most), is_costly
            sending = self._sending.get(pointer)
            if sending is not None:
                return self._tell_answered(pointer, sending, most), False
        except Exception as error:  # noqa: BLE001 # see `on_fault`; the event, if it is still there, is then discarded
            self.link_failed(pointer, error)
            return 1, True
        self._discard(pointer, delivery)
        _pop(self._collector)
        return 1, False

    def _tell_answered(self, pointer: Any, link: Sending, most: int) -> int:
        batch = self._workspace.reader.answers(self._collector, pointer, most)
        link.dispositions(batch)
        return len(batch)

    def _tell_received(self, pointer: Any, link: Receiving, most: int) -> int:
        collector, receive, count, goes_on = self._collector, self._workspace.reader.receive, 0, True
        settlements: list[Disposition] = []
        while goes_on and count < most:
            transfers, settled, events, has_unusual, goes_on = receive(collector, pointer, most - count)
            count += events
            settlements += settled
            if transfers:
                link.transfers(transfers)
                if pointer not in self._receiving:  # it has ended: what is left is for nobody
                    return count
            if has_unusual:
                self._tell_unusual(pointer, _delivery_of(_peek(collector)), link)
                _pop(collector)
                count, goes_on = count + 1, True
                if pointer not in self._receiving:
                    return count
        if settlements and (consuming := self._consuming.get(pointer)) is not None:
            consuming.settlements(settlements)
        elif settlements and pointer in _second:
            _finish([delivery for delivery, _, _ in settlements])
            _second[pointer]()
        return count

    def _tell_unusual(self, pointer: Any, delivery: Delivery, link: Receiving) -> None:
        """A message that is large, empty, not whole, or taken back (AMQP 1.0 section 2.7.5, `aborted`)."""
        if lib.pn_delivery_aborted(delivery):
            _advance(pointer)
            _settle(delivery)
            link.aborted(delivery)
            return
        data = _read(pointer, _pending(delivery))
        if _is_partial(delivery):
            if data:
                link.partial(delivery, data)
        else:
            _advance(pointer)
            link.transfers([(delivery, data, _is_settled(delivery), _state_of(delivery))])

    def _discard(self, pointer: Any, delivery: Delivery) -> None:
        """For a link that has ended on our side. What comes is read to its end: once settled, Proton would keep it."""
        if lib.pn_link_is_receiver(pointer):
            is_whole = lib.pn_delivery_readable(delivery) and not lib.pn_delivery_partial(delivery)
            if is_whole and not lib.pn_delivery_aborted(delivery) and _state_of(delivery) == TRANSACTIONAL:
                self.dropped(delivery)
            is_unanswered = self._ended.unanswered.get(pointer)
            answer_late = self._ended.answering(pointer)
            if answer_late is not None and is_whole and not _is_settled(delivery):
                payload = _read(pointer, _pending(delivery))
                _advance(pointer)
                answer_late(delivery, payload)
                return
            if is_unanswered and not _is_settled(delivery):
                while lib.pn_link_recv(pointer, self._workspace.buffer, RECEIVE_BUFFER) > 0:
                    pass
                if not lib.pn_delivery_partial(delivery) and lib.pn_link_current(pointer) == delivery:
                    _advance(pointer)
                return  # the detach gives it back: settled before that it would be a failed delivery, or one not taken
            if is_unanswered is False and lib.pn_delivery_readable(delivery):
                _update(delivery, RELEASED)  # settled without a word it counts as queued with some clients
            while lib.pn_link_recv(pointer, self._workspace.buffer, RECEIVE_BUFFER) > 0:
                pass
            if lib.pn_delivery_partial(delivery):
                return
            lib.pn_delivery_settle(delivery)
            return
        if _state_of(delivery) == TRANSACTIONAL:
            self.dropped(delivery)
        if not _is_settled(delivery):
            return  # to settle would be to confirm an answer that does not count any more, as the detach says
        lib.pn_delivery_settle(delivery)

    def _tell_flow(self, event: Any, handler: Handler) -> None:
        pointer = lib.pn_event_link(event)
        if _credit(pointer) < 0 or pointer in _beyond:
            _read_credit(pointer, handler)
        try:
            sending = self._sending.get(pointer)
            if sending is not None:
                sending.flow()
            elif pointer in self._consuming:
                self._consuming[pointer].drained()
        except Exception as error:  # noqa: BLE001 # see `on_fault`
            self.link_failed(pointer, error)

    def attach_receiving(
        self,
        link: proton.Link,
        handler: Receiving,
        *,
        is_costly: bool = False,
        answer_late: AnswerLate | None = None,
        on_settled: Callable[[], object] | None = None,
    ) -> None:
        """From now on `handler` gets the messages that come on `link`. `is_costly`: each may mean much work.

        If our answer says receiver-settle-mode second, what is settled here is so when the peer has settled it:
        `on_settled` is told then.

        `answer_late`: who answers what comes when the link has ended on our side; None: it is released.
        """
        self._receiving[link._impl] = handler
        self._ended.forget(link._impl)
        if lib.pn_link_rcv_settle_mode(link._impl) == lib.PN_RCV_SECOND:
            _second[link._impl] = on_settled or _do_nothing
        if answer_late is not None:
            self._ended.requests[link._impl] = answer_late
        if is_costly:
            self._costly.add(link._impl)

    def attach_consuming(self, link: proton.Link, handler: Consuming) -> None:
        """As `attach_receiving`, for one who also hears what the peer says of messages that came."""
        self._receiving[link._impl] = self._consuming[link._impl] = handler
        self._ended.forget(link._impl)

    def attach_sending(self, link: proton.Link, handler: Sending) -> None:
        """From now on `handler` is told of credit and of answers on `link`."""
        self._sending[link._impl] = handler
        self._ended.forget(link._impl)

    def tell_credit(self, link: proton.Link) -> None:
        """Tell the handler of `link` what credit came before it was attached."""
        sending = self._sending.get(link._impl)
        if sending is not None:
            sending.flow()

    def detach(self, link: proton.Link) -> None:
        """Nobody is told any more. What still comes on `link` is dropped, and settled; as released, if it published.

        Of a link that we consumed from it is not settled, nor without `answers_late`: that it ends says what becomes of
        it.
        """
        is_told = self._receiving.pop(link._impl, None) is not None
        if self._consuming.pop(link._impl, None) is not None:
            self._ended.unanswered[link._impl] = True
        elif is_told:
            self._ended.unanswered[link._impl] = not self.answers_late
        self._costly.discard(link._impl)
        self._sending.pop(link._impl, None)
        _beyond.pop(link._impl, None)
        _second.pop(link._impl, None)


def unsettled_on(link: proton.Link) -> int:
    """How many deliveries on it we have not settled: Proton does, and says so, when the link is freed."""
    return int(lib.pn_link_unsettled(link._impl))


def _read(pointer: Any, size: int) -> bytes:
    """So many bytes of the message that is being read on that link, if there are so many."""
    large = bytearray(size)
    received = _receive(pointer, ffi.from_buffer(large), size) if size else 0
    return bytes(large[: max(received, 0)])


def _tell_failed(engine: Engine, event: Any, handler: Handler) -> None:
    condition = engine.transport.condition
    if condition is not None:
        handler.failed(condition.name or "amqp:internal-error", condition.description or "")


def _tell_ended(engine: Engine, event: Any, handler: Handler) -> None:
    if engine.transport.condition is None:  # Proton gives up without a word on a TLS hello, or on noise in a frame
        handler.malformed(FRAMING_ERROR, "what came is no frame; does the peer speak TLS, or another protocol?")


def _read_credit(pointer: Any, handler: Handler) -> None:
    """Credit of 2^31 and more, which is a uint in a flow (AMQP 1.0 section 2.7.4), and below 0 to Proton.

    Below 0 is also what is left for a consumer that takes back credit for messages which are on their way to it. It
    can take back no more than these: what it has not answered, or, of a settled link, what was ever sent. When it has
    got them, and answered them, it gives credit again, but maybe less than is missing.
    """
    if not lib.pn_link_is_sender(pointer):
        return
    place = _place_of_counts()
    counts = None if place is None else ffi.cast("int32_t *", pointer) + place
    credit = _credit(pointer) if counts is None else counts[1]
    owed = max(-_beyond.get(pointer, 0), 0)
    if credit >= 0:
        if owed:
            del _beyond[pointer]
        elif pointer in _beyond:
            _beyond[pointer] = 0
        return
    if owed or pointer not in _beyond:
        under_way = lib.pn_link_unsettled(pointer)
        if lib.pn_link_snd_settle_mode(pointer) == lib.PN_SND_SETTLED:
            under_way = CREDIT_MOST if counts is None else counts[0] & _UINT_MOST
        if -credit <= max(under_way, owed):
            _beyond[pointer] = credit
            return
    if counts is None:
        handler.malformed(NOT_IMPLEMENTED, f"a link-credit of more than {CREDIT_MOST} cannot be counted here")
        return
    _beyond[pointer] = (credit & _UINT_MOST) - CREDIT_MOST
    missing, counts[1] = CREDIT_MOST - credit, CREDIT_MOST
    while missing:  # to a sender this is no more than its other count
        step = min(missing, CREDIT_MOST)
        lib.pn_link_flow(pointer, step)
        missing -= step


@cache
def _place_of_counts() -> int | None:
    """Where Proton has the `delivery_count` of a link, in steps of 4 bytes from its pointer; then comes `link_credit`.

    It has no call that changes them. So a link is made here for which they are numbers that nothing else is. None: they
    are not found.
    """
    transports = proton.Transport(), proton.Transport(proton.Transport.SERVER)
    connections = proton.Connection(), proton.Connection()
    for transport, connection in zip(transports, connections, strict=True):
        transport.bind(connection)
        connection.open()
    local_session: Any = connections[0].session()
    sender: Any = local_session.sender("probe")
    local_session.open()
    sender.open()
    _exchange(*transports)
    remote_session: Any = connections[1].session_head(0)
    receiver: Any = connections[1].link_head(0)
    remote_session.open()
    receiver.open()
    receiver.flow(_PROBE_CREDIT)
    _exchange(*transports)
    for number in range(_PROBE_MESSAGES):
        sender.delivery(str(number))
        sender.stream(b"x")
        sender.advance()
    _exchange(*transports)
    words, wanted = ffi.cast("int32_t *", sender._impl), (_PROBE_MESSAGES, _PROBE_CREDIT - _PROBE_MESSAGES)
    return next((at for at in range(_LINK_WORDS) if (words[at], words[at + 1]) == wanted), None)


def _exchange(*transports: proton.Transport) -> None:
    """Carry what both have to say to the other one, once there and once back."""
    for source, target in (transports, transports[::-1], transports, transports[::-1]):
        while (pending := source.pending()) > 0:
            target.push(source.peek(pending) or b"")
            source.pop(pending)


def _condition_text(condition: Any) -> str:
    """Name and description, whatever bytes the peer has put there; empty for no condition."""
    parts = (lib.pn_condition_get_name(condition), lib.pn_condition_get_description(condition))
    return ": ".join(ffi.string(part).decode("utf-8", "replace") for part in parts if part != ffi.NULL)


def _session(event: Any) -> proton.Session:
    session: proton.Session = proton.Session.wrap(lib.pn_event_session(event))  # type: ignore[no-untyped-call]
    return session


def _link(event: Any) -> proton.Link:
    return named_link(lib.pn_event_link(event))


def _new_link(event: Any) -> proton.Link:
    pointer = lib.pn_event_link(event)
    _beyond.pop(pointer, None)  # of a link that is no more, and was at the same place
    _second.pop(pointer, None)
    return _link(event)


_EVENTS: dict[int, Callable[[Engine, Any, Handler], None]] = {
    lib.PN_CONNECTION_REMOTE_OPEN: lambda engine, event, handler: handler.opened(),
    lib.PN_CONNECTION_REMOTE_CLOSE: lambda engine, event, handler: handler.closed(),
    lib.PN_SESSION_REMOTE_OPEN: lambda engine, event, handler: handler.session_opened(_session(event)),
    lib.PN_SESSION_REMOTE_CLOSE: lambda engine, event, handler: handler.session_closed(_session(event)),
    lib.PN_LINK_REMOTE_OPEN: lambda engine, event, handler: handler.link_attached(_new_link(event)),
    lib.PN_LINK_REMOTE_CLOSE: lambda engine, event, handler: handler.link_detached(_link(event), True),
    lib.PN_LINK_REMOTE_DETACH: lambda engine, event, handler: handler.link_detached(_link(event), False),
    lib.PN_LINK_FLOW: Engine._tell_flow,
    lib.PN_TRANSPORT_ERROR: _tell_failed,
    lib.PN_TRANSPORT_TAIL_CLOSED: _tell_ended,
}
_LAST_EVENTS = {kind: _EVENTS[kind] for kind in (lib.PN_CONNECTION_REMOTE_CLOSE, lib.PN_TRANSPORT_ERROR)}
"""What is still told once a bug has come up."""


def settle(delivery: Delivery, state: int) -> None:
    """Tell the peer what became of a message, and forget the delivery."""
    _update(delivery, state)
    _settle_said(delivery)


def _settle_said(delivery: Delivery) -> None:
    """Forget a delivery of which we have said what became of it; where the peer settles first, once it has."""
    if not _second or _link_of(delivery) not in _second or _is_settled(delivery):
        _settle(delivery)


def _finish(deliveries: Sequence[Delivery]) -> None:
    """The peer has settled these. Those of which we have said something are forgotten. (Of the others, which it gives
    up, something will be said: they are settled then.)"""
    forget_all([delivery for delivery in deliveries if lib.pn_delivery_local_state(delivery)])


def return_with(delivery: Delivery, name: str) -> None:
    """Settle as modified, not failed, with a message annotation of that name, which is true."""
    local = lib.pn_delivery_local(delivery)
    proton.Data(lib.pn_disposition_annotations(local)).decode(_annotation(name))
    settle(delivery, MODIFIED)


@cache
def _annotation(name: str) -> bytes:
    """Encoded, as Proton does it: that name, and true."""
    data = proton.Data()
    data.put_object({proton.symbol(name): True})
    return bytes(data.encode())


class Outcome(NamedTuple):
    """What somebody says of a message (AMQP 1.0 section 3.4); the flags are those of modified, the texts of rejected.

    `state` 0: nothing.
    """

    state: int
    failed: bool = False
    undeliverable: bool = False
    condition: str = ""
    description: str = ""
    annotations: bytes = b""
    """`message-annotations` of modified, encoded; empty: there are none. See `amqp.wire.outcome_annotations`."""

    @property
    def is_return(self) -> bool:
        """Whether the message goes back to where it was, for somebody to get it again."""
        return self.state in (RELEASED, MODIFIED)

    def without_annotations(self) -> Outcome:
        """As it is confirmed to who has said it."""
        return self._replace(annotations=b"") if self.annotations else self

    def put(self, delivery: Delivery) -> None:
        """Say so of `delivery`, which stays unsettled."""
        local = lib.pn_delivery_local(delivery)
        if self.state == MODIFIED:
            lib.pn_disposition_set_failed(local, self.failed)
            lib.pn_disposition_set_undeliverable(local, self.undeliverable)
            _put_annotations(delivery, self.annotations)
        elif self.state == REJECTED and self.condition:
            _put_condition(delivery, self.condition, self.description)
        if self.state:
            _update(delivery, self.state)

    def settle(self, delivery: Delivery) -> None:
        """Say so of `delivery`, and forget it."""
        self.put(delivery)
        _settle_said(delivery)


def _put_annotations(delivery: Delivery, annotations: bytes) -> None:
    """Into what is said of `delivery`, unless they do not fit into the one frame that it goes in."""
    if annotations and len(annotations) <= _frame_limit(_transport_of(_link_of(delivery))) - CONDITION_BYTES:
        data = proton.Data(lib.pn_disposition_annotations(lib.pn_delivery_local(delivery)))
        data.clear()
        data.decode(annotations)


def _put_condition(delivery: Delivery, name: str, description: str, info: Mapping[Any, object] | None = None) -> None:
    """Into what is said of `delivery`: in one frame, so the description is cut, and information that is too long is not
    there."""
    condition = lib.pn_disposition_condition(lib.pn_delivery_local(delivery))
    room = _frame_limit(_transport_of(_link_of(delivery))) - CONDITION_BYTES
    if info:
        size = encoded_bytes(dict(info))
        if size <= room:
            proton.Data(lib.pn_condition_info(condition)).put_object(dict(info))
            room -= size
    lib.pn_condition_set_name(condition, name.encode("ascii", "replace"))
    lib.pn_condition_set_description(condition, cut(description, room).encode("utf-8", "replace"))


def _transport_of(link: Any) -> Any:
    return lib.pn_connection_transport(lib.pn_session_connection(lib.pn_link_session(link)))


def _frame_limit(transport: Any) -> int:
    return int(lib.pn_transport_get_remote_max_frame(transport)) or UNLIMITED_BYTES


def answer_bytes(link: proton.Link) -> int:
    """How long the frame with our attach is, at most: a peer may take no frame that has all that it asked for."""
    size = ATTACH_BYTES + len(link.name.encode("utf-8", "replace"))
    for terminus in (link.source, link.target):
        if terminus.type == proton.Terminus.UNSPECIFIED:
            continue
        size += len((terminus.address or "").encode("utf-8", "replace"))
        parts = terminus.properties, terminus.capabilities, terminus.filter, terminus.outcomes
        size += sum([len(part.encode()) for part in parts])
    return size + len(proton.Data(lib.pn_link_properties(link._impl)).encode())


def clear_answer(link: proton.Link) -> None:
    """Have an attach of ours that is not written yet say nothing but the name of the link."""
    link.properties = None
    lib.pn_data_clear(lib.pn_link_properties(link._impl))
    for terminus in (link.source, link.target):
        terminus.type = proton.Terminus.UNSPECIFIED


def accept_all(deliveries: Sequence[Delivery]) -> None:
    """Settle each as accepted, all of one link; Proton tells the peer of neighbours in one frame."""
    if _second and deliveries and _link_of(deliveries[0]) in _second:
        for delivery in deliveries:
            settle(delivery, ACCEPTED)
    else:
        batch_writer().update(deliveries, ACCEPTED, True)


def say_accepted(deliveries: Sequence[Delivery]) -> None:
    """Say that each is accepted, and leave it unsettled."""
    batch_writer().update(deliveries, ACCEPTED, False)


def number_of(delivery: Delivery) -> int:
    """The tag, where it is a number as `Sender.send` makes it."""
    tag = _tag_of(delivery)
    return number_of_tag(_unpack(tag.start, tag.size))


def number_of_tag(tag: bytes) -> int:
    """Sixteen hexadecimal digits; or, from a broker of release 0.1.0, the number's eight bytes. Raises ValueError."""
    return int.from_bytes(tag, "big") if len(tag) == 8 else int(tag, 16)


def forget(delivery: Delivery) -> None:
    """Settle without saying anything of our own."""
    _settle(delivery)


def forget_all(deliveries: Sequence[Delivery]) -> None:
    """Settle each without saying anything of our own."""
    batch_writer().update(deliveries, 0, True)


def reject(delivery: Delivery, name: str, description: str, info: Mapping[Any, object] | None = None) -> None:
    """Settle as rejected, with the reason (AMQP 1.0 section 3.4.3); `info` is the error's, with symbols for keys."""
    _put_condition(delivery, name, description, info)
    settle(delivery, REJECTED)


class RemoteOutcome:
    """What the peer said of a delivery, beyond its state: read when a state needs it."""

    def __init__(self, delivery: Delivery) -> None:
        self._remote = lib.pn_delivery_remote(delivery)

    @property
    def state(self) -> int:
        """The outcome's code."""
        return int(lib.pn_disposition_type(self._remote))

    @property
    def failed(self) -> bool:
        """`delivery-failed` of modified."""
        return bool(lib.pn_disposition_is_failed(self._remote))

    @property
    def undeliverable(self) -> bool:
        """`undeliverable-here` of modified."""
        return bool(lib.pn_disposition_is_undeliverable(self._remote))

    def read(self) -> Outcome:
        """All of it."""
        state = self.state
        if state == MODIFIED:
            return Outcome(state, self.failed, self.undeliverable, annotations=self.annotations)
        if state == REJECTED:
            condition = lib.pn_disposition_condition(self._remote)
            texts = (lib.pn_condition_get_name(condition), lib.pn_condition_get_description(condition))
            name, text = ("" if part == ffi.NULL else ffi.string(part).decode("utf-8", "replace") for part in texts)
            return Outcome(state, condition=name, description=text)
        return Outcome(state)

    def says(self, name: str) -> bool:
        """Whether the information in the error of rejected has `name`, and it is true."""
        info = read_data(lib.pn_condition_info(lib.pn_disposition_condition(self._remote)))
        return isinstance(info, dict) and info.get(proton.symbol(name)) is True

    @property
    def annotations(self) -> bytes:
        """`message-annotations` of modified, encoded; empty: there are none."""
        return bytes(proton.Data(lib.pn_disposition_annotations(self._remote)).encode())

    def annotates(self, name: str) -> bool:
        """Whether the message annotations of modified are `name` alone, and it is true: see `return_with`."""
        return self.annotations == _annotation(name)

    @property
    def reason(self) -> str:
        """Condition and description of rejected; empty where there are none."""
        return _condition_text(lib.pn_disposition_condition(self._remote))

    def transaction(self) -> tuple[bytes, object]:
        """Transaction id and described outcome of a transactional state; ValueError or AmqpError for anything else."""
        value = read_data(lib.pn_disposition_data(self._remote))
        if not isinstance(value, list) or not value or not isinstance(value[0], bytes | memoryview):
            raise ValueError("a transactional state without a transaction id")
        return bytes(value[0]), value[1] if len(value) > 1 else None


def set_local_data(delivery: Delivery, state: int, values: list[object], settle_now: bool) -> None:
    """A delivery state with fields: `declared` and the transactional ones."""
    data = proton.Data(lib.pn_disposition_data(lib.pn_delivery_local(delivery)))
    data.clear()  # a message may be accepted in a second transaction when the first has rolled back
    data.put_object(values)
    lib.pn_delivery_update(delivery, state)
    if settle_now:
        _settle_said(delivery)


def read_data(data: Any) -> object:
    """The one value that a `pn_data_t` holds; None when it holds none. Raises AmqpError."""
    return value_of(proton.Data(data))


def remote_properties_of(link: proton.Link) -> object:
    """The properties of the peer's attach, None when it has none. Raises AmqpError."""
    data = lib.pn_link_remote_properties(link._impl)  # NULL for an attach without properties
    return None if data == ffi.NULL else read_data(data)


class Sender:
    """Sends messages on one link. Tags of settled deliveries serve again: they are unique among the unsettled.

    Tags are ASCII: python-proton decodes a tag as UTF-8 as soon as an application reads it.
    """

    __slots__ = ("_formats", "_keep", "_link", "_number", "_number_text", "_tags")

    def __init__(self, link: proton.Link, formats: FormatWriter | None = None) -> None:
        """`formats`: see `Engine.formats`; without it all messages are sent with the format 0."""
        self._link = link._impl
        self._formats = formats
        self._tags: list[Any] = []
        self._keep: list[Any] = []
        self._number: Any = None
        """The tag of the last message with a number, whose text the next one overwrites: Proton copies it."""
        self._number_text: Any = None

    def _new_tag(self) -> Any:
        name = b"%x" % len(self._keep)
        text = ffi.new("char[]", name)
        self._keep.append(text)
        return ffi.new("pn_bytes_t *", {"size": len(name), "start": text})[0]

    def send(self, payload: bytes, number: int | None = None) -> tuple[Delivery, Any]:
        """The unsettled delivery and its tag, for `free` once it is settled. With a `number` the tag is that."""
        if number is None:
            known = tag = self._tags.pop() if self._tags else self._new_tag()
        else:
            known, tag = None, self._number or self._new_number()
            self._number_text[:] = b"%016x" % number
        if payload[:1] in FORMAT_STARTS:
            payload = self._formatted(payload, tag)
        link = self._link
        delivery = _new_delivery(link, tag)
        _write(link, payload, len(payload))
        _advance(link)
        return delivery, known

    def _formatted(self, payload: bytes, tag: Any) -> bytes:
        """A message whose format is not 0, as Proton is to have it."""
        if self._formats is None:
            return without_format(payload)
        self._formats.expect(_unpack(tag.start, tag.size), payload)
        return payload

    def _new_number(self) -> Any:
        text = ffi.new("char[]", NUMBER_LENGTH)
        self._keep.append(text)
        self._number_text = ffi.buffer(text, NUMBER_LENGTH)
        self._number = ffi.new("pn_bytes_t *", {"size": NUMBER_LENGTH, "start": text})[0]
        return self._number

    def send_all(self, payloads: Sequence[bytes]) -> list[tuple[Delivery, Any]]:
        """Each as by `send`, without a number."""
        kept = max(len(self._tags) - len(payloads), 0)
        tags = self._tags[kept:]
        del self._tags[kept:]
        tags += [self._new_tag() for _ in range(len(payloads) - len(tags))]
        ready = [
            self._formatted(payload, tag) if payload[:1] in FORMAT_STARTS else payload
            for payload, tag in zip(payloads, tags, strict=True)
        ]
        return list(zip(batch_writer().send(self._link, tags, ready), tags, strict=True))

    def send_numbered(self, payloads: Sequence[bytes], first: int) -> list[Delivery]:
        """Messages with ascending numbers, from `first` on; the unsettled deliveries."""
        ready = list(payloads)
        for index, payload in enumerate(payloads):
            if payload[:1] in FORMAT_STARTS:
                tag = self._number or self._new_number()
                self._number_text[:] = b"%016x" % (first + index)
                ready[index] = self._formatted(payload, tag)
        return batch_writer().send_numbered(self._link, first, ready)

    def send_settled(self, payload: bytes, number: int | None = None) -> None:
        """At most once: nothing will be heard of it."""
        delivery, tag = self.send(payload, number)
        _settle(delivery)
        self.free(tag)

    def free_all(self, tags: Iterable[Any]) -> None:
        """None of `tags` belongs to a delivery any more."""
        self._tags += [tag for tag in tags if tag is not None]

    def free(self, tag: Any) -> None:
        """`tag` belongs to no delivery any more."""
        if tag is not None:
            self._tags.append(tag)

    def take_tags(self) -> list[Any]:
        """All tags there were, for the caller to let go of; nothing is sent any more."""
        tags, self._keep = self._keep, []
        return tags

    @property
    def credit(self) -> int:
        """How many more messages the peer takes."""
        return int(_credit(self._link))

    @property
    def draining(self) -> bool:
        """The peer wants its credit used or given up now."""
        return bool(lib.pn_link_get_drain(self._link))

    def drained(self) -> bool:
        """Give up the rest of the credit, and tell the peer, which waits for the flow (AMQP 1.0 section 2.6.7).

        False: messages wait for the peer's window, and the flow goes behind them; nothing was done, try again later.
        Where the peer does not drain any more it keeps its credit, and waits for no flow.
        """
        link = self._link
        if not lib.pn_link_get_drain(link):
            return True
        transport = _transport_of(link)
        if lib.pn_link_queued(link):
            lib.pn_transport_pending(transport)
            if lib.pn_link_queued(link):
                # Proton would write the flow behind them, whatever has become of the drain and the credit by then.
                return False
        if (beyond := _beyond.get(link, 0)) > 0:  # the flow says how much is given up: all of it
            counts = ffi.cast("int32_t *", link) + _place_of_counts()
            counts[1] = (counts[1] + beyond + CREDIT_MOST + 1 & _UINT_MOST) - CREDIT_MOST - 1
            _beyond[link] = 0
        if lib.pn_link_credit(link) == 0:
            # Proton writes a flow only for a sender that gives up credit. This raises its count of what may be sent,
            # which the next call puts back to 0, and not what goes into the flow: delivery-count stays as it is.
            lib.pn_link_flow(link, 1)
        lib.pn_link_drained(link)
        # When Proton writes the flow, it tells the peer that all of its credit is given up, also what has come since,
        # which it still counts here: we would send without credit. So the flow is written before anything else comes.
        lib.pn_transport_pending(transport)
        return True

    @property
    def has_unsent(self) -> bool:
        """Whether Proton holds back messages of this link because the peer's window is closed."""
        return bool(lib.pn_link_queued(self._link))

    @property
    def window_frames(self) -> int:
        """How many frames the peer's session takes now (AMQP 1.0 section 2.5.6, remote-incoming-window)."""
        return int(_window_of(int(ffi.cast("uintptr_t", lib.pn_link_session(self._link)))))

    @property
    def frame_bytes(self) -> int:
        """How much of a message goes into a frame for this peer, at least."""
        return max(_frame_limit(_transport_of(self._link)) - TRANSFER_BYTES, 1)

    def count_unsent(self, newest: int) -> int:
        """How many of the messages sent last have not begun to leave, where the `newest` were sent since the output was
        taken: Proton has not yet put them into frames, or the peer's window was closed before they began."""
        queued = int(lib.pn_link_queued(self._link))
        return max(min(newest, queued), queued - 1, 0)

    def take_back(self, deliveries: list[Delivery]) -> bool:
        """Let these, which have not begun to leave, never leave; False: they did, before the peer has heard of an end.

        Proton goes on counting them as unsent, and so would never say that a link ends that the peer has not ended.
        """
        if lib.pn_link_state(self._link) & lib.PN_REMOTE_ACTIVE:
            lib.pn_transport_pending(_transport_of(self._link))
            return False
        for delivery in deliveries:
            lib.pn_delivery_abort(delivery)
        return True

    @property
    def session(self) -> Any:
        """The AMQP session of its link, as a key."""
        return lib.pn_link_session(self._link)

    @property
    def unsent_bytes(self) -> int:
        """What Proton holds back for the session because the peer's window is closed; see `counted_as_unsent`."""
        return int(lib.pn_session_outgoing_bytes(lib.pn_link_session(self._link)))


def is_numbered(delivery: Delivery) -> bool:
    """Whether the tag may be a number as `Sender.send` makes it: no other that we make is so long."""
    return bool(_tag_of(delivery).size == NUMBER_LENGTH)


def number_if_any(delivery: Delivery) -> int | None:
    """The tag, where it may be a number as `Sender.send` makes it."""
    tag = _tag_of(delivery)
    return int(_unpack(tag.start, NUMBER_LENGTH), 16) if tag.size == NUMBER_LENGTH else None


def has_error(endpoint: proton.Endpoint) -> bool:
    """Whether the peer has ended it with an error (AMQP 1.0 sections 2.7.7 to 2.7.9)."""
    ended: Any = endpoint  # Proton's own types leave the call out
    return bool(lib.pn_condition_is_set(ended._get_remote_cond_impl()))


def stop_draining(link: proton.Link) -> int:
    """The peer's drain is over; how many messages of the credit it gave up, since the last call."""
    given_up = int(lib.pn_link_drained(link._impl))
    lib.pn_link_set_drain(link._impl, False)
    return given_up


def is_in(link: proton.Link, session: proton.Session) -> bool:
    """Whether `link` belongs to `session`."""
    return bool(lib.pn_link_session(link._impl) == session._impl)


def session_of(link: proton.Link) -> Any:
    """The AMQP session of `link`, as a key."""
    return lib.pn_link_session(link._impl)


def has_peer_ended(link: proton.Link) -> bool:
    """Whether the peer has closed it, or its session or connection: also where that came with what is told just now."""
    session = lib.pn_link_session(link._impl)
    states = (
        lib.pn_link_state(link._impl),
        lib.pn_session_state(session),
        lib.pn_connection_state(lib.pn_session_connection(session)),
    )
    return any(state & lib.PN_REMOTE_CLOSED for state in states)


def has_unsent(link: proton.Link) -> bool:
    """Whether messages that were sent on `link` wait for the peer's window."""
    return bool(lib.pn_link_is_sender(link._impl) and lib.pn_link_queued(link._impl))


def counted_as_unsent(session: Any) -> int:
    """Bytes that Proton says wait for the peer's window, of the session with that key.

    Those of a link that ended before they were sent are among them as long as the session lasts.
    """
    return int(lib.pn_session_outgoing_bytes(session))


def credit(link: proton.Link) -> int:
    """How many messages may still come on `link`; below 0 the peer has sent more than it may."""
    return int(_credit(link._impl))


def write(link: proton.Link) -> None:
    """Put what was said so far on the connection of `link` into frames: what is said from now on comes behind it."""
    lib.pn_transport_pending(_transport_of(link._impl))


def drain(link: proton.Link, count: int) -> None:
    """Let the peer send `count` messages at most, and give the rest of the credit back when it has no more."""
    lib.pn_link_drain(link._impl, count)


def give_credit(link: proton.Link, count: int) -> None:
    """Let the peer send `count` more messages."""
    lib.pn_link_flow(link._impl, count)
