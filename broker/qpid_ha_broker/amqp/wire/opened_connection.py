"""A connection that this broker opens to another one, without a socket: what its driver does, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import proton

from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, AmqpError, as_told
from qpid_ha_broker.amqp.wire.engine import Engine, Handler

_PIECE_BYTES: Final = 16 * 1024
"""Taken up at once: what came with it is still in the processor's cache then."""


class OpenedConnection(Handler):
    """The promise: `on_ended` is called once, after everything else, however it ends; unless we closed it ourselves.

    Whoever drives it carries bytes: everything may leave some for `take_output`.
    """

    def __init__(
        self,
        engine: Engine,
        container: str,
        hostname: str,
        on_ended: Callable[[str], None],
        properties: dict[Any, Any],
        desired: tuple[str, ...] = (),
    ) -> None:
        """`container`: the container id of our open; `desired`: the capabilities that it asks for."""
        self.engine = engine
        self.is_open = False
        """Both ends have opened, and neither has ended it."""
        self.error: AmqpError | None = None
        """Why it has ended, where one of the two ends has said so."""
        self._deadline_ms = 0
        self._has_ended = False
        self._on_ended = on_ended
        connection = engine.connection
        connection.container = container
        connection.hostname = hostname
        connection.properties = properties
        if desired:
            connection.desired_capabilities = [proton.symbol(name) for name in desired]
        connection.open()

    # --- the driver's calls

    def receive(self, data: bytes) -> None:
        """Bytes came; without any, what is known by now is told: a login that was refused, once its end was written."""
        view = memoryview(data)
        for start in range(0, max(len(view), 1), _PIECE_BYTES):
            self.engine.push(view[start : start + _PIECE_BYTES])
            self.engine.process(self)

    def take_output(self) -> bytes:
        """What is to be written."""
        return self.engine.take_output()

    @property
    def finished(self) -> bool:
        """Nothing more will be written: the socket can be closed."""
        return self.engine.finished

    def heartbeat(self, now_ms: int) -> None:
        """Keep the idle time-outs of both sides, by a clock that never jumps; several times in the shortest of them."""
        deadline_ms, self._deadline_ms = self._deadline_ms, self.engine.tick(now_ms)
        if 0 < deadline_ms <= now_ms:
            self.engine.process(self)

    def lost(self, reason: str) -> None:
        """The socket is gone, or could not be opened."""
        self.engine.process(self)  # what the peer said last may be a better reason
        self._end(reason)

    def close(self, reason: str) -> None:
        """Say goodbye once all was sent; `on_ended` is not called."""
        if not self._has_ended:
            self._on_ended = _nobody
            self._say_goodbye(self._farewell(reason))
            self._end(reason)

    # --- what the peer did: see engine.Handler

    def closed(self) -> None:
        self.error = as_told(self.engine.connection.remote_condition, CONNECTION_FORCED, "the connection was closed")
        self.engine.connection.close()
        self._end(str(self.error))

    def failed(self, name: str, description: str) -> None:
        self.error = self.error or AmqpError(name, description)
        self._end(f"{name}: {description}")

    def malformed(self, name: str, description: str) -> None:
        self._fail(AmqpError(name, description))

    # --- the end

    def _fail(self, error: AmqpError, reason: str = "") -> None:
        """The connection cannot go on, as the peer is told. `reason`: what is better known here than there."""
        if not self._has_ended:
            self.error = error
            self._say_goodbye(error)
            self._end(reason or str(error))

    def _farewell(self, reason: str) -> AmqpError | None:
        """What the peer is told where it has done nothing wrong."""
        return AmqpError(CONNECTION_FORCED, reason)

    def _say_goodbye(self, error: AmqpError | None) -> None:
        connection = self.engine.connection
        if error is not None:
            connection.condition = error.as_condition(self.engine.peer_frame_bytes)
        connection.close()

    def _end(self, reason: str) -> None:
        if not self._has_ended:
            self._has_ended = True
            self.is_open = False
            self._let_go(reason)
            self._on_ended(reason)

    def _let_go(self, reason: str) -> None:
        """Tell whoever counts on it that it is no more."""


def _nobody(_reason: str) -> None:
    """There is nobody to tell."""
