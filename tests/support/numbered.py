"""Messages of producers that number them, and what a core knows of these."""

from __future__ import annotations

from model_support import Core, message
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message


def numbered(sequence: int, producer: str = "p", *, text: str = "", durable: bool = False) -> Message:
    plain = message(text or f"{producer}{sequence}", durable=durable)
    return plain._replace(producer=producer.encode(), sequence=sequence)


def dropped(core: Core | Resources) -> int:
    resources = core.resources if isinstance(core, Core) else core
    return resources.deduplication.dropped_total


def known(core: Core) -> dict[str, int]:
    """Who is known, and how far each has come; who was idle longest first."""
    return {name.decode(): advance.sequence for name, advance in core.state.producers.items()}
