"""Three brokers under attack: the short form of `./dev bench --only attack --minutes 10`."""

from __future__ import annotations

from pathlib import Path

from bench.attack import endure
from running_cluster import RunningCluster

DURATION_S = 20.0
KILL_AFTER_S = 10.0
GAP_MAX_S = 30.0
"""Of service, with a kill in it; generous, because the machine may be busy. A broker that falls and comes back into the
same attack, again and again, never serves."""


def test_a_cluster_serves_while_it_is_attacked_and_its_primary_is_killed(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, stores=tmp_path / "stores") as cluster:
        cluster.wait_whole()
        verdict = endure(cluster, DURATION_S, KILL_AFTER_S)
    assert verdict.audit.is_flawless, verdict.audit
    assert verdict.kills >= 1
    assert verdict.longest_gap_s < GAP_MAX_S
    # The flood keeps attackers out, too: in so short a time not each of them may have had its turn at the primary.
    rounds = dict(verdict.rounds)
    assert rounds.pop("silence") > 0
    assert sum(rounds.values()) > 0, f"an attack that was never carried out shows nothing: {verdict.rounds}"
