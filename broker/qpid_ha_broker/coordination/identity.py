"""Which coordinator this is: a UUID in the note `identity`, which brokers tell each other.

Two brokers whose settings lead to two records make two clusters, and no URL shows it: `file:/shared/orders` is another
place where the mount is missing. Whoever uses a coordinator first writes its identity, by compare-and-set; a record of
a release without one gets it by the first broker that knows of it. A move to another coordinator takes the note along:
it is the same cluster's record. Nobody puts back one that was lost, although he remembers it: a directory that is empty
because its mount is gone would pass for the one that was mounted.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError

IDENTITY_NOTE: Final = "identity"
_IDENTITY: Final = re.compile(r"[0-9a-f]{32}")


def identity_of(coordinator: Coordinator, note: str = IDENTITY_NOTE) -> str:
    """The identity that is there, or that was written now because none was. Raises CoordinatorError."""
    there = coordinator.read_note(note)
    if not there:
        wanted = uuid.uuid4().hex
        there = wanted if coordinator.replace_note(note, "", wanted) else coordinator.read_note(note)
    if not _IDENTITY.fullmatch(there):
        raise CoordinatorError(f"the coordinator's note `{note}` is no UUID: remove it, and a broker writes one")
    return there
