"""Whether a resource set takes anything in just now, and if not, why not."""

from __future__ import annotations

from collections.abc import Iterable

from qpid_ha_broker.model.errors import ModelError, NotPrimary, QueueLocked
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.queue_arguments import Replicate


class Gate:
    """Open unless somebody says otherwise; whoever wants in looks at `_barred` first, which costs next to nothing."""

    def __init__(self) -> None:
        self._refusal: ModelError | None = None
        self._read_only = ""
        self._barred = False

    @property
    def refusal(self) -> ModelError | None:
        """Why nothing may be published to replicated queues now; None: it may."""
        return self._refusal

    @refusal.setter
    def refusal(self, refusal: ModelError | None) -> None:
        self._refusal = refusal
        self._barred = bool(refusal or self._read_only)

    @property
    def read_only(self) -> str:
        """Why nothing may be written here, naming the state and the primary; empty: it may."""
        return self._read_only

    @read_only.setter
    def read_only(self, text: str) -> None:
        self._read_only = text
        self._barred = bool(text or self._refusal)
        if text:
            self._became_read_only()

    def _became_read_only(self) -> None:
        """Nothing may be written from now on: end what was to be written in portions."""

    def check_writable(self) -> None:
        """Raises NotPrimary."""
        if self._read_only:
            raise NotPrimary(self._read_only)

    @staticmethod
    def _check_unlocked(queue: Queue) -> None:
        if queue.locked:
            raise QueueLocked(queue.locked)

    def _check_publish(self, queues: Iterable[Queue]) -> None:
        self.check_writable()
        refusal = self._refusal
        if refusal is not None and any(queue.replication is Replicate.MESSAGES for queue in queues):
            raise type(refusal)(str(refusal))  # a new one each time: an error that is raised again keeps all its traces
