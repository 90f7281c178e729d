"""`./dev demo`: three brokers, a producer and a consumer, and a primary that is killed again and again.

Everything shown is measured in this run. `--once` ends after one failover, with exit code 0 if nothing that was
confirmed was lost, nothing came twice without its mark and all came in order, else 1. With `--zookeeper` a round breaks
more (outages.py), and all of it has to come back, too.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed, LocalCluster
from qpid_ha_demo.corosync_daemon import what_is_missing
from qpid_ha_demo.failover import Failover, fail_over
from qpid_ha_demo.groups import show_groups
from qpid_ha_demo.history import write_history
from qpid_ha_demo.ledger import Ledger, LedgerAudit
from qpid_ha_demo.load import DemoConsumer, DemoPublisher
from qpid_ha_demo.outages import FAULTS, NAMESPACE, SESSION_S, Outage, Scene, inject
from qpid_ha_demo.proxies import show_proxies
from qpid_ha_demo.sets import show_sets
from qpid_ha_demo.stage import LiveTable, Stage
from qpid_ha_demo.zookeeper_ensemble import EnsembleFailed, ZookeeperEnsemble, why_not_here

QUEUE = "orders"
CALM_S = 2.0
"""Between two failovers, so that one can see the cluster work."""
DRAIN_S = 15.0
"""So long after the last sign of progress, what has not come is lost."""
REFRESH_S = 0.1


class _Ended(Exception):
    """Somebody wants the demo to end."""


class Demo:
    """The brokers and both clients, on a stage."""

    def __init__(self, stage: Stage, cluster: LocalCluster, rate: int, *, durable: bool = False) -> None:
        self._stage = stage
        self._cluster = cluster
        self.ledger = Ledger()
        self._publisher = DemoPublisher(cluster.urls, QUEUE, self.ledger, rate=rate, durable=durable)
        self._consumer = DemoConsumer(cluster.urls, QUEUE, self.ledger)
        self._table = LiveTable(cluster, self.ledger)
        self._shown_at_s = 0.0

    def start(self) -> None:
        """Wait for the cluster to be whole, then begin to work."""
        self._cluster.wait_whole()
        primary = self._cluster.primary()
        self._stage.step("three brokers, each with its agent", f"{primary.name if primary else 'nobody'} is primary")
        self._publisher.start()
        self._consumer.start()
        self._wait_until(lambda: len(self.ledger.arrived) > 0, "the first message arrived")

    def stop(self) -> None:
        """End both clients."""
        self._publisher.stop()
        self._consumer.stop()

    def play(self, rounds: int) -> list[Failover]:
        """That many failovers, one after the other."""
        failovers: list[Failover] = []
        with self._live() as live:
            for number in range(1, rounds + 1):
                self._table.headline = f" round {number} of {rounds}: all is well"
                self._watch(live, CALM_S)
                self._table.headline = f" round {number} of {rounds}: kill -9 of the primary"
                failovers.append(fail_over(self._cluster, self._publisher, lambda: self._refresh(live)))
                self._stage.show_failover(number, failovers[-1])
            self._table.headline = " waiting for the last messages"
            self._settle()
        return failovers

    def play_outages(self, rounds: int, ensemble: ZookeeperEnsemble) -> list[Outage]:
        """That many rounds in which everything is broken that outages.py names."""
        outages: list[Outage] = []
        with self._live() as live:
            scene = Scene(self._cluster, ensemble, self.ledger, lambda: self._refresh(live))
            for number in range(1, rounds + 1):
                for name, fault in FAULTS:
                    before = self._settle()
                    self._publisher.resume()
                    self._table.headline = f" round {number} of {rounds}: all is well"
                    self._watch(live, CALM_S)
                    scene.wait_confirmed()
                    self._table.headline = f" round {number} of {rounds}: {name}"
                    self._stage.announce(name)
                    outages.append(inject(fault, scene, before, self._settle))
                    self._stage.show_outage(outages[-1])
        return outages

    def audit(self) -> LedgerAudit:
        """The account of all that was sent so far."""
        return self.ledger.audit()

    def stay(self) -> None:
        """Go on until somebody ends it, and have everything settled then."""
        self._publisher.resume()
        self._table.headline = " Ctrl-C ends it"
        try:
            with self._live() as live:
                while True:
                    self._watch(live, 1.0)
        except (KeyboardInterrupt, _Ended):
            self._stage.step("stopping")
        self._settle()

    def _settle(self) -> LedgerAudit:
        """Publish no more, and let what is under way arrive; what does not is lost, and the account says so."""
        self._publisher.pause()
        progress, deadline = -1, 0.0
        while not (self._publisher.is_settled and self.ledger.missing == 0):
            done = len(self.ledger.confirmed_at_s) + len(self.ledger.arrivals)
            if done != progress:
                progress, deadline = done, time.monotonic() + DRAIN_S
            if time.monotonic() > deadline:
                break
            time.sleep(REFRESH_S / 10)
        return self.audit()

    # --- the live table

    def _live(self) -> Live:
        # Into a file only the last word goes, and that is the report.
        return Live(console=self._stage.console, auto_refresh=False, transient=True)

    def _watch(self, live: Live, for_s: float) -> None:
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            self._refresh(live)
            time.sleep(REFRESH_S / 4)

    def _refresh(self, live: Live) -> None:
        if self._stage.console.is_terminal and time.monotonic() - self._shown_at_s > REFRESH_S:
            live.update(self._table(), refresh=True)
            self._shown_at_s = time.monotonic()

    def _wait_until(self, is_reached: Callable[[], bool], what: str) -> None:
        try:
            self._cluster.wait_until(is_reached, what)
        except ClusterFailed as error:
            problems = [*self._publisher.problems, *self._consumer.problems]
            raise ClusterFailed(f"{error}; what brokers told the clients: {problems[-3:]}") from None


def _end(number: int, frame: FrameType | None) -> None:
    raise _Ended(signal.Signals(number).name)


def _show(stage: Stage, rounds: int, rate: int, *, ends: bool, zookeeper: bool, keep: Path | None) -> bool:
    """The whole story; whether all went well."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-demo-")))
        stores = keep / "stores" if keep is not None else None
        ensemble = stack.enter_context(ZookeeperEnsemble(directory)) if zookeeper else None
        if ensemble is not None:
            stage.step("three ZooKeeper servers", ensemble.hosts)
        cluster = stack.enter_context(LocalCluster(directory, stores=stores, settings=_settings(ensemble)))
        demo = Demo(stage, cluster, rate, durable=stores is not None)
        if keep is not None:
            stack.callback(lambda: write_history(demo.ledger, QUEUE, keep / "history.json"))
        stack.callback(demo.stop)
        demo.start()
        if ensemble is not None:
            stage.show_outages(demo.play_outages(rounds, ensemble))
        else:
            stage.show_failovers(demo.play(rounds))
        stage.show_account(demo.audit())
        if not ends:
            stage.show_next(cluster)
            demo.stay()
        return demo.audit().is_flawless


def _settings(ensemble: ZookeeperEnsemble | None) -> dict[str, object]:
    """Of the brokers; without an ensemble they share a directory."""
    if ensemble is None:
        return {}
    return {"ha": {"coordinator": ensemble.url(NAMESPACE), "coordinator-timeout": f"{SESSION_S:g}s"}}


def _show_apart(stage: Stage, title: str, show: Callable[[Stage, Path], bool]) -> NoReturn:
    """A story of its own. Ends the program."""
    stage.console.print(Panel(Text(title, justify="center"), style="bold"))
    try:
        with tempfile.TemporaryDirectory(prefix="qpid-ha-demo-") as directory:
            good = show(stage, Path(directory))
    except (ClusterFailed, ControlFailure) as error:
        sys.exit("\n".join([f"demo: {error}", *getattr(error, "__notes__", [])]))
    except (KeyboardInterrupt, _Ended):
        sys.exit(130)
    sys.exit(0 if good else 1)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--once", is_flag=True, help="One failover, then end: exit code 0 if all went well, else 1.")
@click.option("--leave", is_flag=True, help="End after the last failover, as --once does after the first.")
@click.option(
    "--zookeeper", is_flag=True, help="With three ZooKeeper servers. Each round also kills one, and cuts a broker off."
)
@click.option("--sets", is_flag=True, help="Five brokers in three zones, with twelve resource sets.")
@click.option("--proxy", is_flag=True, help="Three brokers that all serve, clients at each; primary and proxies die.")
@click.option("--group", is_flag=True, help="Three brokers that all write one set; as root.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="How often to kill.")
@click.option("--rate", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Messages a second.")
@click.option(
    "--keep", type=click.Path(file_okay=False, path_type=Path),
    help="Give the brokers stores below this directory, and leave them there with what the clients saw.",
)  # fmt: skip
def main(
    once: bool,
    leave: bool,
    zookeeper: bool,
    sets: bool,
    proxy: bool,
    group: bool,
    rounds: int,
    rate: int,
    keep: Path | None,
) -> None:
    """Run three brokers, kill the primary under load, and show what became of every message."""
    if sets:
        _show_apart(Stage(), "qpid-ha: five brokers, twelve resource sets, kill -9", show_sets)
    if proxy:
        title = "qpid-ha: three brokers that all serve clients, kill -9"
        _show_apart(Stage(), title, partial(show_proxies, rounds=1 if once else rounds))
    if group:
        if problem := what_is_missing():
            sys.exit(f"demo: {problem}")
        title = "qpid-ha: three brokers that all write one resource set, kill -9"
        _show_apart(Stage(), title, partial(show_groups, rounds=1 if once else rounds))
    if zookeeper and (problem := why_not_here()):
        sys.exit(f"demo: {problem}")
    stage = Stage()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    title = f"qpid-ha: three brokers, one primary, {'three ZooKeeper servers, ' if zookeeper else ''}kill -9"
    stage.console.print(Panel(Text(title, justify="center"), style="bold"))
    try:
        good = _show(stage, 1 if once else rounds, rate, ends=once or leave, zookeeper=zookeeper, keep=keep)
    except (ClusterFailed, ControlFailure, EnsembleFailed) as error:
        sys.exit("\n".join([f"demo: {error}", *getattr(error, "__notes__", [])]))
    except (KeyboardInterrupt, _Ended):
        sys.exit(130)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
