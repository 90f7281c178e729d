"""Admission control of writes: whether anything may be written to a resource set just now, and if not, why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qpid_ha_broker.model.errors import ModelError, NotPrimary, QueueLocked
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.replication import has_replicated_messages


class WriteAdmission:
    """Nothing is refused unless somebody says why. Where every message passes, `is_restricted` is looked at first."""

    def __init__(self) -> None:
        self._refusal: ModelError | None = None
        self._read_only = ""
        self.is_restricted = False
        """There is a `refusal`, or it is `read_only`."""
        self.not_primary: Callable[[str], ModelError] = NotPrimary
        """Makes the error for who wants to write where it is `read_only`, of that text."""
        self.became_read_only: Callable[[], None] = _nothing
        """Called when nothing may be written from now on: to end what was to be written in portions."""

    @property
    def refusal(self) -> ModelError | None:
        """Why nothing may be published to replicated queues now; None: it may."""
        return self._refusal

    @refusal.setter
    def refusal(self, refusal: ModelError | None) -> None:
        self._refusal = refusal
        self.is_restricted = bool(refusal or self._read_only)

    @property
    def read_only(self) -> str:
        """Why nothing may be written here, naming the state and the primary; empty: it may."""
        return self._read_only

    @read_only.setter
    def read_only(self, text: str) -> None:
        self._read_only = text
        self.is_restricted = bool(text or self._refusal)
        if text:
            self.became_read_only()

    def check_writable(self) -> None:
        """Raises NotPrimary, or what `not_primary` makes."""
        if self._read_only:
            raise self.not_primary(self._read_only)

    def check_publish(self, queues: Iterable[Queue]) -> None:
        """Raises NotPrimary, and the `refusal` if one of `queues` is replicated."""
        self.check_writable()
        refusal = self._refusal
        if refusal is not None and any(map(has_replicated_messages, queues)):
            raise type(refusal)(str(refusal))  # a new one each time: an error that is raised again keeps all its traces


def check_unlocked(queue: Queue) -> None:
    """Raises QueueLocked."""
    if queue.locked:
        raise QueueLocked(queue.locked)


def _nothing() -> None:
    pass
