"""Stories about the garbage collector of a broker's process."""

from __future__ import annotations

import os
import re
import signal

from running_broker import RunningBroker

QPIDD = """
import gc, signal
from qpid_ha_broker.server import main

def tell(*_):
    print("collector", gc.isenabled(), *gc.get_threshold(), gc.get_freeze_count(), flush=True)

signal.signal(signal.SIGUSR1, tell)
main.main()
"""


def test_the_collector_works_in_a_running_broker_and_leaves_what_was_imported_alone() -> None:
    with RunningBroker(program=["-c", QPIDD]) as broker:
        os.kill(broker.pid, signal.SIGUSR1)
        assert broker.await_log("collector .*\n"), broker.log()
        found = re.search(r"collector (\w+) (\d+) \d+ \d+ (\d+)\n", broker.log())
    assert found is not None
    is_enabled, young_objects, frozen = found.groups()
    assert is_enabled == "True"
    assert int(young_objects) > 0
    assert int(frozen) > 50_000
