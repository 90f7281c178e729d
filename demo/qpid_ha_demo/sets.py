"""`./dev demo --sets`: five brokers in three zones, twelve resource sets, one broker that is killed.

Each set has a queue, a publisher and a consumer, who are told nothing but the addresses of all brokers: redirects lead
them to their set's primary. What is shown: how the sets that the killed broker led get other primaries, how replicas
are made up for on brokers of the right zone, and what became of every message.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed, LocalBroker, LocalCluster
from qpid_ha_demo.load import DemoTraffic
from qpid_ha_demo.stage import Stage
from qpid_ha_demo.story import Story

ZONES: Final = ("north", "north", "south", "south", "west")
SETS: Final = 12
RATE: Final = 40
"""Messages a second of each set."""
RECOVERY_S: Final = 3.0
"""Less than an operator would want: so that one sees replicas made up for."""
CALM_S: Final = 2.0

Row = dict[str, Any]


class SetTraffic(DemoTraffic):
    """A publisher and a consumer of one set's queue."""

    def __init__(self, name: str, urls: list[str], *, durable: bool) -> None:
        super().__init__(f"queue-{name}", urls, urls, rate=RATE, durable=durable)
        self.name = name


class SetsOutcome(NamedTuple):
    """Of one killed broker; times in seconds since then."""

    killed: str
    led: int
    """Sets."""
    shortest_s: float
    """For how long nothing was confirmed in the first of them that went on; without any: 0."""
    longest_s: float
    """In the last."""
    whole_s: float
    """Until each set had as many replicas in sync as it wants."""


class SetsDemo(Story[SetTraffic]):
    """The story, on a stage."""

    patience_s = 60.0

    def __init__(self, stage: Stage, cluster: LocalCluster, *, durable: bool = False) -> None:
        names = [f"set-{number:02}" for number in range(1, SETS + 1)]
        super().__init__(stage, cluster, [SetTraffic(name, cluster.urls, durable=durable) for name in names])

    def start(self) -> None:
        """Make the sets, and begin to work."""
        self._cluster.wait_whole()
        controller = self._leader()
        self._stage.step("five brokers in three zones, each with its agent", f"{controller.name} is the controller")
        brokers = [broker.name for broker in self._cluster.brokers]
        for number, traffic in enumerate(self.traffic):
            self._ask("sets", action="create", name=traffic.name, preferred=brokers[number % len(brokers)])
        self.wait_whole("the sets are there")
        for traffic in self.traffic:
            self._ask("queues", action="create", name=traffic.queue, arguments={"qpid.resource-set": traffic.name})
            traffic.start()
        self._wait(lambda: all(each.ledger.arrived for each in self.traffic), "a message arrived in each set")
        self._stage.step(f"{SETS} sets with a queue, a publisher and a consumer each", self._primaries())

    def kill_one(self) -> SetsOutcome:
        """A broker that is not the controller, with its agent, and for good."""
        time.sleep(CALM_S)
        controller = self._leader()
        led = Counter(str(row["primary"]) for row in self.sets())
        victim = max(
            [broker for broker in self._cluster.brokers if broker is not controller], key=lambda each: led[each.name]
        )
        lost = {str(row["name"]) for row in self.sets() if row["primary"] == victim.name}
        killed_at_s = victim.kill_all()
        self._stage.step(f"killed {victim.name}, for good", f"it led {len(lost)} sets: {', '.join(sorted(lost))}")
        gaps_s = self._await_others([each for each in self.traffic if each.name in lost], victim, killed_at_s)
        self._stage.step("all sets confirm again", self._primaries())
        self.wait_whole("each set has its replicas again")
        whole_s = time.monotonic() - killed_at_s
        self._stage.step("replicas were made up for", self._replicas())
        return SetsOutcome(victim.name, len(lost), min(gaps_s, default=0.0), max(gaps_s, default=0.0), whole_s)

    def _await_others(self, lost: list[SetTraffic], victim: LocalBroker, killed_at_s: float) -> list[float]:
        """Until other brokers lead these sets, and confirm; for how long each confirmed nothing, in seconds."""
        names = {each.name for each in lost}

        def are_led() -> bool:
            led = {str(row["name"]) for row in self.sets() if row["primary"] not in ("", victim.name)}
            return names <= led

        self._wait(are_led, "other brokers lead the sets")
        marks = [(each, len(each.ledger.confirmed_at_s)) for each in lost]
        self._wait(
            lambda: all(len(each.ledger.confirmed_at_s) > before for each, before in marks), "all sets confirm again"
        )
        return [each.ledger.longest_gap_s(killed_at_s, time.monotonic()) for each in lost]

    # --- what there is

    def sets(self) -> list[Row]:
        """As the controller tells; empty while there is none."""
        try:
            rows = self._leader().ask("sets", timeout_s=5.0, action="list").get("answer")
        except (ControlFailure, ClusterFailed):
            return []
        return rows if isinstance(rows, list) else []

    def _primaries(self) -> str:
        led = Counter(str(row["primary"]) for row in self.sets())
        return "primaries: " + ", ".join(f"{name} {count}" for name, count in sorted(led.items()))

    def _replicas(self) -> str:
        held = Counter(name for row in self.sets() for name in row["replicas"])
        return "replicas: " + ", ".join(f"{name} {count}" for name, count in sorted(held.items()))

    def wait_whole(self, what: str) -> None:
        """Until each set wants nothing."""

        def is_whole() -> bool:
            rows = self.sets()
            return len(rows) == SETS and all(row["state"] == "ok" for row in rows)

        self._wait(is_whole, what)


def own_settings() -> list[dict[str, object]]:
    """Of each broker: its zone."""
    return [{"ha.zone": zone} for zone in ZONES]


def cluster_settings() -> dict[str, object]:
    """Of all of them."""
    return {"ha": {"failure-recovery-interval": f"{RECOVERY_S:g}s", "replica-check-interval": "1s"}}


def show_sets(stage: Stage, directory: Path) -> bool:
    """The whole story; whether all went well."""
    with ExitStack() as stack:
        cluster = stack.enter_context(
            LocalCluster(directory, len(ZONES), settings=cluster_settings(), own_settings=own_settings())
        )
        demo = SetsDemo(stage, cluster)
        stack.callback(demo.stop)
        demo.start()
        outcome = demo.kill_one()
        stage.console.print(
            f"   {outcome.killed} led {outcome.led} sets, which confirmed nothing for {outcome.shortest_s:.3f} to"
            f" {outcome.longest_s:.3f} s; all replicas in sync again after {outcome.whole_s:.1f} s",
            highlight=False,
        )
        return demo.settle()
