"""Five brokers, twelve resource sets, and trouble: `python -m bench.sets_soak --minutes 10`.

Every few seconds a broker is killed (its agent starts it again), drained and let in again, a set is handed over, the
number of replicas is changed by a policy, or primaries are rebalanced; each set has a publisher and a consumer all the
time. In the end everything that was confirmed has to have arrived, in order, and no copy without its mark.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed, LocalCluster
from qpid_ha_demo.sets import ZONES, SetsDemo, cluster_settings, own_settings
from qpid_ha_demo.stage import Stage

PAUSES_S = (1.0, 6.0)
DRAIN_S = 30.0


class Trouble:
    """What is done to a cluster, at random."""

    def __init__(self, demo: SetsDemo, cluster: LocalCluster, random_: random.Random) -> None:
        self._demo = demo
        self._cluster = cluster
        self._random = random_
        self.done: Counter[str] = Counter()
        self._kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "kill ": self._kill,
            "transfer": self._transfer,
            "transfer ": self._transfer,
            "drain": self._drain,
            "policy": self._change_policy,
            "rebalance": lambda: self._ask("rebalance"),
        }

    def make(self) -> None:
        """One of them. What is refused counts as that."""
        kind = self._random.choice(list(self._kinds))
        try:
            self._kinds[kind]()
            self.done[kind.strip()] += 1
        except (ControlFailure, ClusterFailed):
            self.done[f"{kind.strip()} refused"] += 1

    def end(self) -> None:
        """As it was in the beginning, but for where things are."""
        for broker in self._cluster.brokers:
            self._ask("brokers", action="undrain", name=broker.name)
        self._ask("replicas", action="policies", policies=[["*", 3]])

    def _ask(self, method: str, **params: Any) -> None:
        controller = self._cluster.primary()
        if controller is None:
            raise ClusterFailed("default has no primary")
        controller.ask(method, timeout_s=15.0, **params)

    def _kill(self) -> None:
        self._random.choice(self._cluster.brokers).kill()

    def _transfer(self) -> None:
        row = self._random.choice(self._demo.sets() or [{"name": "none", "replicas": {"none": ""}}])
        self._ask("sets", action="transfer", name=row["name"], to=self._random.choice(list(row["replicas"])))

    def _change_policy(self) -> None:
        self._ask("replicas", action="policies", policies=[["*", self._random.choice((2, 3, 4))]])

    def _drain(self) -> None:
        name = self._random.choice(self._cluster.brokers).name
        self._ask("brokers", action="drain", name=name)
        time.sleep(self._random.uniform(1.0, 10.0))
        self._ask("brokers", action="undrain", name=name)


@click.command()
@click.option("--minutes", type=float, default=10.0, show_default=True)
@click.option("--seed", type=int, default=lambda: int(time.time()))
@click.option("--stores/--memory", default=False, help="With stores, on disk.")
def main(minutes: float, seed: int, stores: bool) -> None:
    """Run it, and say what became of every message."""
    stage = Stage()
    stage.step(f"seed {seed}")
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-soak-")))
        cluster = stack.enter_context(
            LocalCluster(
                directory, len(ZONES), settings=cluster_settings(), own_settings=own_settings(),
                stores=directory / "stores" if stores else None,
            )
        )  # fmt: skip
        demo = SetsDemo(stage, cluster)
        stack.callback(demo.stop)
        demo.start()
        trouble, random_ = Trouble(demo, cluster, random.Random(seed)), random.Random(seed + 1)
        end_s = time.monotonic() + 60 * minutes
        while time.monotonic() < end_s:
            trouble.make()
            time.sleep(random_.uniform(*PAUSES_S))
        stage.step("trouble", ", ".join(f"{kind} {count}" for kind, count in sorted(trouble.done.items())))
        cluster.wait_until(lambda: cluster.primary() is not None, "default has a primary", 60.0)
        trouble.end()
        demo.wait_whole("each set has its replicas again")
        if not demo.settle():
            sys.exit(1)


if __name__ == "__main__":
    main()
