"""`./dev soak --sets`: five brokers that relay, four resource sets beside `default`, load in which features meet
(`crossing_traffic`), and faults (`crossing_trouble`).

As root each broker has a machine of its own (a network namespace) and a small disk, so that the cluster can be split
and a disk can fill; an ensemble of ZooKeeper is the coordinator, so that it can be away. What this machine has not is
left out, and said. In the end each book has to balance: nothing that was confirmed is lost, no copy came without its
mark, each producer's messages came in order out of each queue; nobody with a session was told that it is lost; no
producer is stuck; and no log has a traceback.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from bench.crossing_traffic import EXCHANGE, EXCLUSIVE, MOVED, NEWS, QUEUES, SETS, CrossingTraffic, Finding
from bench.crossing_trouble import BALLAST, CrossingTrouble, small_disks
from bench.soak_report import (
    account,
    kind_of,
    pauses_of,
    read_logs,
    show_kinds,
    show_pauses,
    show_steps,
    stuck,
    write_steps,
)
from cluster_on_machines import ClusterOnMachines
from network_namespaces import why_not_here
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed, LocalCluster
from qpid_ha_demo.stage import Stage
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble
from qpid_ha_demo.zookeeper_ensemble import why_not_here as why_no_ensemble

PATIENCE_S: Final = 90.0
"""Without any progress, in the end."""
_MOVE_AGAIN_S: Final = 1.0
_HA: Final[dict[str, object]] = {
    "clients": "proxy",
    "failure-recovery-interval": "15s",
    "replica-check-interval": "2s",
}
_SETTINGS: Final[dict[str, object]] = {"store.segment-size": "1MiB"}


class CrossingSoak:
    """One run, and what it showed."""

    broker_count = 5

    def __init__(self, stage: Stage, directory: Path, seed: int) -> None:
        self._stage, self._directory, self._seed = stage, directory, seed
        self._stores = directory / "disks"
        self._findings: list[Finding] = []
        self._began_s = self._ended_s = 0.0

    def run(self, minutes: float) -> bool:
        """Make trouble for so long; whether all promises were kept."""
        with ExitStack() as stack:
            names = [f"broker{number}" for number in range(1, self.broker_count + 1)]
            disks = stack.enter_context(small_disks(self._stores, names))
            stack.callback(self._keep_stores)
            cluster, ensemble = stack.enter_context(self._cluster())
            self._say_what_is_left_out(cluster, ensemble, disks)
            trouble = CrossingTrouble(
                cluster, SETS, self._stores, self._seed, ensemble=ensemble, disks=disks, moves=MOVED
            )
            stack.callback(write_steps, trouble, self._directory)
            traffic = CrossingTraffic(cluster.urls)
            stack.callback(traffic.stop)
            self._make_sets(cluster, trouble)
            with cluster.hub.inside() if isinstance(cluster, ClusterOnMachines) else nullcontext():
                traffic.start()
            cluster.wait_until(lambda: traffic.is_at_work, "something of each producer has come")
            self._stage.step(
                f"{len(SETS)} sets and default: {len(traffic.producers)} producers, {len(traffic.consumers)} consumers",
                f"{len(traffic.books.of)} books",
            )
            self._began_s = time.monotonic()
            trouble.begin()
            self._disturb(cluster, trouble, 60 * minutes)
            self._come_to_rest(cluster, trouble, traffic)
            self._show(cluster, trouble, traffic)
        return not self._findings

    def _disturb(self, cluster: LocalCluster, trouble: CrossingTrouble, for_s: float) -> None:
        """What it is run for."""
        while time.monotonic() < self._began_s + for_s:
            step = trouble.draw()
            trouble.make(step)
            trouble.rest(step.pause_s)

    @contextmanager
    def _cluster(self) -> Iterator[tuple[LocalCluster, ZookeeperEnsemble | None]]:
        """The best that can be had here."""
        if not why_not_here() and not why_no_ensemble():
            with ClusterOnMachines(
                self._directory, self.broker_count, ha=_HA, settings=_SETTINGS, stores=self._stores
            ) as on_machines:
                yield on_machines, on_machines.ensemble
            return
        with ExitStack() as stack:
            ha, ensemble = _HA, None
            if not why_no_ensemble():
                (self._directory / "ensemble").mkdir()
                ensemble = stack.enter_context(ZookeeperEnsemble(self._directory / "ensemble"))
                ha = {**_HA, "coordinator": ensemble.url("clusters/one")}
            settings = {**_SETTINGS, "ha": ha}
            local = LocalCluster(self._directory, self.broker_count, settings=settings, stores=self._stores)
            yield stack.enter_context(local), ensemble

    def _say_what_is_left_out(
        self, cluster: LocalCluster, ensemble: ZookeeperEnsemble | None, disks: Path | None
    ) -> None:
        missing = []
        if not isinstance(cluster, ClusterOnMachines):
            missing.append(f"NOTHING IS SPLIT: {why_not_here() or why_no_ensemble()}")
        if ensemble is None:
            missing.append(f"THE COORDINATOR IS NEVER AWAY: {why_no_ensemble()}")
        if disks is None:
            missing.append("NO DISK IS EVER FULL: nobody but root can make small file systems")
        for text in missing:
            self._stage.console.print(f"   {text}", style="bold yellow", markup=False, highlight=False)

    def _make_sets(self, cluster: LocalCluster, trouble: CrossingTrouble) -> None:
        cluster.wait_whole()
        for name, broker in zip(SETS, itertools.cycle(cluster.brokers), strict=False):
            trouble.ask("sets", action="create", name=name, preferred=broker.name)
        self._wait_whole(cluster, trouble)
        for queue, name in QUEUES.items():
            arguments: dict[str, object] = {} if name == "default" else {"qpid.resource-set": name}
            if queue in EXCLUSIVE:
                arguments["qpid.exclusive"] = True
            trouble.ask("queues", action="create", name=queue, arguments=arguments)
        trouble.ask("exchanges", action="create", name=EXCHANGE, kind="fanout")
        for queue in NEWS:
            trouble.ask("exchanges", action="bind", name=EXCHANGE, queue=queue)

    def _wait_whole(self, cluster: LocalCluster, trouble: CrossingTrouble) -> None:
        def is_whole() -> bool:
            rows = trouble.rows()
            return len(rows) == len(SETS) and all(row["state"] == "ok" for row in rows)

        cluster.wait_until(is_whole, "each set is whole", PATIENCE_S)

    def _come_to_rest(self, cluster: LocalCluster, trouble: CrossingTrouble, traffic: CrossingTraffic) -> None:
        """Everything is mended, nothing new is published, and what was confirmed has time to arrive."""
        try:
            trouble.end()
            self._wait_whole(cluster, trouble)
        except ClusterFailed as error:
            self._findings.append(Finding("the cluster", str(error)))
        self._ended_s = time.monotonic()
        traffic.pause()
        progress, moved_on_s = -1, time.monotonic()
        while not traffic.is_settled and time.monotonic() < moved_on_s + PATIENCE_S:
            if traffic.progress != progress:
                progress, moved_on_s = traffic.progress, time.monotonic()
            with suppress(ControlFailure, ClusterFailed):
                trouble.move_rest()
            time.sleep(_MOVE_AGAIN_S)

    def _show(self, cluster: LocalCluster, trouble: CrossingTrouble, traffic: CrossingTraffic) -> None:
        console = self._stage.console
        show_steps(console, trouble, self._seed)
        show_kinds(console, "Clients were told", Counter(kind_of(problem.text) for problem in traffic.problems()))
        logs = read_logs(broker.log() for broker in cluster.brokers)
        show_kinds(console, "Warnings in the logs", logs.warnings)
        show_kinds(console, "Errors in the logs", logs.errors)
        pauses = sorted(
            pause
            for producer in traffic.producers
            for pause in pauses_of(producer.name, producer.ledger, self._began_s, self._ended_s)
        )
        show_pauses(self._stage, pauses)
        self._stage.step(account([book.audit() for book in traffic.books.of.values()]))
        self._findings += traffic.findings(self._began_s)
        self._findings += self._other_findings(traffic)
        if text := stuck(pauses, trouble.last_disturbed_s - self._began_s):
            self._findings.append(Finding("producers", text))
        if logs.tracebacks:
            self._findings.append(Finding("logs", f"there are {logs.tracebacks} tracebacks"))
        left = {queue: self._left_in(cluster, trouble, queue) for queue in QUEUES}
        lines = [f"{finding.where}: {finding.text}" for finding in self._findings]
        lines += [f"{queue}: {text}" for queue, text in left.items() if text]
        (self._directory / "findings.log").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        for line in lines:
            console.print(f"   {line}", style="bold red", markup=False, highlight=False, soft_wrap=True)
        if not lines:
            self._stage.step("all books balance")

    def _other_findings(self, traffic: CrossingTraffic) -> list[Finding]:
        """What this kind of run looks at besides."""
        return []

    @staticmethod
    def _left_in(cluster: LocalCluster, trouble: CrossingTrouble, queue: str) -> str:
        """Messages that nobody took, as the broker says that leads their set: what a book misses may be there. Empty:
        none, or nobody says."""
        leaders = {row["name"]: row["primary"] for row in trouble.rows()}
        controller = cluster.primary()
        leaders["default"] = controller.name if controller else ""
        for broker in cluster.brokers:
            if broker.name == leaders.get(QUEUES[queue]):
                with suppress(ControlFailure):
                    count = broker.ask("queues", timeout_s=5.0, action="read", name=queue).get("messages")
                    return f"{count} messages are left in it" if count else ""
        return ""

    def _keep_stores(self) -> None:
        """Of a run that failed: small disks go away with it."""
        if self._findings:
            shutil.copytree(self._stores, self._directory / "stores", ignore=shutil.ignore_patterns(BALLAST))
