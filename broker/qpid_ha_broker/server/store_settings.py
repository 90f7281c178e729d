"""What an operator can decide about a broker's store."""

from __future__ import annotations

from dataclasses import dataclass, field

from qpid_ha_broker.server.defaults import memory_limit_bytes
from qpid_ha_broker.server.setting_fields import described
from qpid_ha_broker.server.setting_kinds import BOOLEAN, size

KIB, MIB, TIB = 1024, 1024**2, 1024**4


def _memory_bytes() -> int:
    """Half of what the broker may have in messages by default."""
    return memory_limit_bytes() // 2


@dataclass(frozen=True)
class StoreSettings:
    """The section `store`. Without a data-dir there is none, whatever it says."""

    enabled: bool = field(default=True, metadata=described("store.enabled", BOOLEAN))
    segment_bytes: int = field(
        default=64 * MIB, metadata=described("store.segment-size", size(64 * KIB, 4 * 1024 * MIB))
    )
    """Of a journal file; its room is taken when it is made."""
    consolidate_bytes: int = field(
        default=256 * MIB, metadata=described("store.consolidate-at", size(64 * KIB, TIB), changeable=True)
    )
    """So much in closed journal files, and at least as much as the last snapshot has, is folded into a new one."""
    memory_bytes: int = field(
        default_factory=_memory_bytes, metadata=described("store.memory", size(1 * MIB, 1024 * TIB), changeable=True)
    )
    """Beyond this, payloads of durable messages are on disk alone until their consumers come near."""
