"""qpidd with a planted bug: a primary counts what it holds itself as held by its whole in-sync set, and confirms it.

Started by a test that shows that the tests of failovers would find it. Nothing in the product knows of this.
"""

from __future__ import annotations

from qpid_ha_broker.ha.in_sync import InSyncSet
from qpid_ha_broker.server.main import main

_acknowledge = InSyncSet.acknowledge


def _acknowledge_for_all(in_sync: InSyncSet, name: str, lsn: int) -> None:
    for member in in_sync.members if name == in_sync.primary else (name,):
        _acknowledge(in_sync, member, lsn)


if __name__ == "__main__":
    InSyncSet.acknowledge = _acknowledge_for_all  # type: ignore[assignment, method-assign]
    main()
