"""A planned move: the primary is demoted and stopped, and the next one waits for that."""

from __future__ import annotations

import time
from pathlib import Path

from raw_peer import CLOSE, FLOW, READS_REFUSALS, SENDER, RawPeer, attach, begin
from running_cluster import RunningCluster

STOP_TIMEOUT_S = 30.0
"""So much longer than what is expected that a busy machine cannot blur the difference."""


def test_clients_that_cannot_answer_its_goodbye_do_not_hold_a_broker_that_is_primary_no_more(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, settings={"stop-timeout": f"{STOP_TIMEOUT_S:g}s"}) as cluster:
        cluster.form(0)
        old = cluster.broker(0)
        with RawPeer(int(cluster.urls[0].rpartition(":")[2])) as unreachable:
            unreachable.open(desired=READS_REFUSALS)
            unreachable.send(begin() + attach("publisher", 0, SENDER, "q"))
            unreachable.expect(FLOW)
            cluster.demote(0)
            unreachable.expect(CLOSE)  # and it stays as it is: its answer would have to go to an address that has moved

            began_s = time.monotonic()
            old.terminate()
            code = old.wait(STOP_TIMEOUT_S * 2)

        assert code == 0
        assert time.monotonic() - began_s < STOP_TIMEOUT_S / 2
