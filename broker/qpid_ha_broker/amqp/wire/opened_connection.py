"""A connection that this broker opens to another one, without a socket: what its driver does with it."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.amqp.wire.engine import Engine, Handler

_PIECE_BYTES: Final = 16 * 1024
"""Taken up at once: what came with it is still in the processor's cache then."""


class OpenedConnection(Handler):
    """Whoever drives it carries bytes: everything may leave some for `take_output`."""

    engine: Engine
    _deadline_ms = 0
    _has_ended = False

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

    def _end(self, reason: str) -> None:
        """Tell everybody, once."""
        raise NotImplementedError(f"{type(self).__name__} does not say whom its end concerns")
