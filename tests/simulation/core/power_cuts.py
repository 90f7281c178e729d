"""The power goes at a certain write: on one node, or on all nodes when one of them has come so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from simulation.core.cluster import Cluster, Outcome, outcome_of
from simulation.core.node import Node
from simulation.core.plan import Fault, Kind, Plan

BACK_AFTER_S = 0.3
DOWN_S = 1.2

SCENARIO = Plan(
    seed=5,
    nodes=2,
    min_in_sync=1,
    has_coordinator=True,
    knows_own_address=True,
    backup_timeout_s=1.5,
    heartbeat_interval_s=0.5,
    tail_bytes=1,
    chunk_messages=3,
    chunks_ahead=2,
    delay_s=0.0005,
    channel_frames=1000,
    use_codec=False,
    check_every=20,
    is_fenced=False,
    faults=(
        Fault(Kind.CRASH, 1.61, DOWN_S, 1, 0, 1),
        Fault(Kind.SHUTDOWN, 3.6, 0.0, 0, 1, 0),
    ),
    has_store=True,
    segment_bytes=2_048,
    transient=0.1,
    faults_end_s=4.2,
)
"""Queues, messages, transactions, consumers; segments that fill; a backup that was away; an end in good order.

It crashes while it writes nothing: of a write that a process dies in, no operation can be struck once more.
"""


class Cut(NamedTuple):
    """The power of `node` goes at its `operation`-th write-like operation. `everywhere`: that of all others, too."""

    node: int
    operation: int
    everywhere: bool


class CutCluster(Cluster):
    """A cluster with one power cut that is not in its plan."""

    def __init__(self, plan: Plan, cut: Cut | None, with_trace: bool = False) -> None:
        super().__init__(plan, with_trace)
        self._cut = cut
        if cut is not None:
            machine = self.nodes[cut.node].machine
            if machine is None:
                raise ValueError("a node without a store has no writes")
            machine.cut_at = cut.operation
            machine.disk.crash_at(cut.operation)
        self.has_struck = False

    def process_ended(self, node: Node, in_order: bool) -> None:
        if in_order:
            super().process_ended(node, in_order)
            return
        is_first, self.has_struck = not self.has_struck, True
        self.faults.start_later(node, BACK_AFTER_S)
        if is_first and self._cut is not None and self._cut.everywhere:
            for other in self.nodes:
                if other.is_up:
                    self.faults.crash(other, BACK_AFTER_S, has_power=False)


def count_operations(plan: Plan) -> tuple[Outcome, list[int], Counter[str]]:
    """The run without a cut: what came of it, each node's write-like operations, and of which kinds they were."""
    cluster = CutCluster(plan, None)
    kinds: Counter[str] = Counter()
    outcome = outcome_of(cluster)
    counts = []
    for node in cluster.nodes:
        if node.machine is not None:
            counts.append(node.machine.operations_total)
            kinds.update(node.machine.kinds)
            kinds.update(node.machine.disk.trace)
    return outcome, counts, kinds


def cuts_of(counts: list[int]) -> Iterator[Cut]:
    """One at each operation of each node, alone and with all others in turn: both at each would take twice the time."""
    for node, count in enumerate(counts):
        for operation in range(1, count + 1):
            yield Cut(node, operation, operation % 2 == 0)


def problem_of(cut: Cut) -> str:
    """What broke a promise in the scenario with `cut`; empty: nothing, and it did strike."""
    cluster = CutCluster(SCENARIO, cut)
    problem = outcome_of(cluster).problem
    return problem if problem or cluster.has_struck else "the power was not cut"
