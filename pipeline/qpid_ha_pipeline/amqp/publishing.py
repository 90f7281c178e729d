"""Messages to a queue or an exchange, from wherever the primary is, until it has confirmed each of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import proton

from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.engine import Delivery, EachDisposition, RemoteOutcome, Sender
from qpid_ha_pipeline.amqp.connection import BrokerConnection, BrokerLost, LinkRefused
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.errors import PipelineError

DEDUPLICATION: Final = "qpid.producer-deduplication"
"""The capability of a broker that drops what a producer has sent before."""
_PASSING: Final = ("amqp:resource-limit-exceeded", "qpid-ha:not-enough-replicas", "amqp:transaction:rollback")
"""Reasons that may be gone in a moment."""
_ACCEPTED: Final = ("amqp:accepted:list", engine.ACCEPTED)
_DECLARE, _DISCHARGE = 0x31, 0x32
_PAUSE_S: Final = 0.1
_CHUNK: Final = 1000
_CHUNK_BYTES: Final = 4 * 1024 * 1024


def chunks_of(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """As many as a `Publisher` delivers well at once."""
    chunk: list[bytes] = []
    size = 0
    for message in messages:
        chunk.append(message)
        size += len(message)
        if len(chunk) >= _CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class Publisher:
    """Sends lists of messages. `together`: all of a list, or none, in a transaction, where the broker de-duplicates.

    That matters where messages are numbered: were a later one accepted and an earlier one refused, the earlier could
    never be sent again, because its number is behind.
    """

    def __init__(self, primary: PrimaryConnection, address: str | None, *, together: bool) -> None:
        self._primary = primary if address is None else primary.of(address)
        self._address = address
        self._together = together
        self._attached: _Attached | None = None

    def deliver(self, payloads: Sequence[bytes]) -> None:
        """Come back when each was accepted, at least once. Raises PipelineError when one is refused for good."""
        missing = list(payloads)
        limit_s = self._primary.cluster.failover_timeout_s
        deadline = time.monotonic() + limit_s
        while missing:
            before = len(missing)
            try:
                link = self._link()
                refusal = link.send_together(missing) if link.is_transactional else link.send(missing)
            except BrokerLost as error:
                self._primary.lost(error)
                self.detach()
                refusal = ""
            except LinkRefused as error:
                raise PipelineError(f"cannot publish to {self._target}: {error}") from None
            if refusal and not refusal.startswith(_PASSING):
                raise PipelineError(f"a message to {self._target} was refused: {refusal}")
            if len(missing) < before:
                deadline = time.monotonic() + limit_s
            elif time.monotonic() > deadline:
                if refusal:
                    raise PipelineError(f"messages to {self._target} were refused for {limit_s:g} s: {refusal}")
                raise self._primary.unreachable()
            if missing:
                time.sleep(_PAUSE_S)

    def check(self) -> BrokerConnection:
        """Attach once, to find out now what is wrong. Raises PipelineError."""
        try:
            return self._primary.run(self._attach).connection
        except LinkRefused as error:
            raise PipelineError(f"cannot publish to {self._target}: {error}") from None

    def detach(self) -> None:
        """Give up the link, if the broker is still there; it is attached again when it is needed."""
        attached, self._attached = self._attached, None
        if attached is not None and self._primary.is_open(attached.connection):
            attached.end()

    @property
    def _target(self) -> str:
        return self._address or "the addresses in the column `to`"

    def _link(self) -> _Attached:
        return self._attach(self._primary.connection())

    def _attach(self, connection: BrokerConnection) -> _Attached:
        if self._attached is None or self._attached.connection is not connection:
            together = self._together and DEDUPLICATION in connection.offered
            self._attached = _Attached(connection, self._address, is_transactional=together)
        return self._attached


class _Attached(EachDisposition):
    """A link at one broker, and one to its transaction coordinator where that is needed."""

    def __init__(self, connection: BrokerConnection, address: str | None, *, is_transactional: bool) -> None:
        self.connection = connection
        self.is_transactional = is_transactional
        self._link = connection.sender(address, self)
        self._sender = Sender(self._link)
        self._commands = _Coordinator(connection) if is_transactional else None
        self._waiting: dict[Delivery, tuple[int, Any]] = {}
        self._accepted: set[int] = set()
        self._refusal = ""

    def end(self) -> None:
        """Close its links."""
        self.connection.end(self._link)
        if self._commands is not None:
            self._commands.end()

    def send(self, missing: list[bytes]) -> str:
        """Takes what was accepted out of `missing`, also when the broker is lost; returns why the rest was refused."""
        try:
            self._send_all(missing, b"")
        finally:
            missing[:] = [payload for at, payload in enumerate(missing) if at not in self._accepted]
        return self._refusal

    def send_together(self, missing: list[bytes]) -> str:
        """Empties `missing`, or returns why nothing of it was taken."""
        commands = self._commands
        if commands is None:
            raise TypeError("a link without a coordinator")
        transaction = commands.declare()
        self._send_all(missing, transaction)
        refusal = commands.discharge(transaction, fail=bool(self._refusal))
        if not self._refusal and not refusal:
            missing.clear()
        return self._refusal or refusal

    def _send_all(self, payloads: list[bytes], transaction: bytes) -> None:
        self._accepted, self._refusal = set(), ""
        self._waiting.clear()
        sent = 0
        while sent < len(payloads) or self._waiting:
            room = min(self._sender.credit, len(payloads) - sent)
            for at in range(sent, sent + max(room, 0)):
                delivery, tag = self._sender.send(payloads[at])
                if transaction:
                    engine.set_local_data(delivery, engine.TRANSACTIONAL, [transaction], settle_now=False)
                self._waiting[delivery] = at, tag
            sent += max(room, 0)
            answered = len(self._waiting)
            self.connection.wait(
                lambda sent=sent, answered=answered: (  # type: ignore[misc]
                    len(self._waiting) < answered or (sent < len(payloads) and self._sender.credit > 0)
                ),
                self._link,
            )

    # --- see engine.Sending

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        at, tag = self._waiting.pop(delivery, (-1, None))
        if at < 0:
            return
        if _is_accepted(delivery, state):
            self._accepted.add(at)
        else:
            self._refusal = self._refusal or RemoteOutcome(delivery).reason or f"released, or state {state:#x}"
        engine.forget(delivery)
        self._sender.free(tag)

    def flow(self) -> None:
        """The credit is looked at when it is needed."""


class _Coordinator(EachDisposition):
    """AMQP 1.0 part 4: declare and discharge."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        self._link = connection.sender(None, self, coordinator=True)
        self._sender = Sender(self._link)
        self._outcome: RemoteOutcome | None = None
        self._state = 0
        self._answer: tuple[bytes, str] | None = None

    def end(self) -> None:
        """Close its link."""
        self._connection.end(self._link)

    def declare(self) -> bytes:
        """A new transaction's id."""
        transaction, refusal = self._command(_DECLARE, [None])
        if not transaction:
            raise LinkRefused("amqp:not-implemented", refusal or "the broker declares no transaction")
        return transaction

    def discharge(self, transaction: bytes, *, fail: bool) -> str:
        """Commit, or roll back; why it was refused, else empty."""
        return self._command(_DISCHARGE, [transaction, fail])[1]

    def _command(self, code: int, fields: list[Any]) -> tuple[bytes, str]:
        self._answer = None
        self._connection.wait(lambda: self._sender.credit > 0)
        message: Any = proton.Message(body=proton.Described(proton.ulong(code), fields))
        self._sender.send(bytes(message.encode()))
        self._connection.wait(lambda: self._answer is not None)
        return self._answer or (b"", "")

    def disposition(self, delivery: Delivery, state: int, settled: bool) -> None:
        outcome = RemoteOutcome(delivery)
        if state == engine.DECLARED:
            self._answer = outcome.transaction()[0], ""
        else:
            self._answer = b"", "" if state == engine.ACCEPTED else outcome.reason or f"state {state:#x}"
        engine.forget(delivery)

    def flow(self) -> None:
        """The credit is looked at when it is needed."""


def _is_accepted(delivery: Delivery, state: int) -> bool:
    if state != engine.TRANSACTIONAL:
        return state == engine.ACCEPTED
    outcome = RemoteOutcome(delivery).transaction()[1]
    return isinstance(outcome, proton.Described) and outcome.descriptor in _ACCEPTED
