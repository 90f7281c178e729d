"""Calls of a coordinator, whatever kind it is of: what is written with them, and what they say when they fail."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from qpid_ha_broker.coordination.conformance.watcher import Watcher
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.ha.cluster_record import ClusterRecord

Open = Callable[..., Coordinator]
"""See `opened` in the integration tests' conftest, and `watching`."""
Watch = Callable[[Coordinator], Watcher]

RECORD = ClusterRecord("c1", 3, "broker1", 5, ("broker1", "broker2"))
NEXT = RECORD._replace(epoch=6, members=("broker1",))
CALL_LIMIT_S = 15.0
"""A call ends by itself after two seconds; the rest is for a machine that is busy."""


def complaint(call: Callable[[], object]) -> str:
    """What it says when it raises CoordinatorError, which it does in time."""
    began_s = time.monotonic()
    with pytest.raises(CoordinatorError) as caught:
        call()
    assert time.monotonic() - began_s < CALL_LIMIT_S
    return str(caught.value)
