"""`./dev soak`: five brokers, twelve resource sets, and trouble (`sets_trouble`), under load.

Each set has a publisher and a consumer all the time. In the end everything that was confirmed has to have arrived, in
order, and no copy without its mark; no set may have confirmed nothing for a minute after the last broker was disturbed,
and no broker may have written a traceback. What remains of a run that failed, logs and steps, stays where it says.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from bench.crossing_soak import CrossingSoak
from bench.group_soak import GroupSoak
from bench.session_kills import BROKERS, SessionKills, session_settings
from bench.sets_trouble import Trouble
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
from bench.upgrade_soak import UpgradeSoak
from qpid_ha_demo.cluster import ClusterFailed, LocalCluster
from qpid_ha_demo.sets import ZONES, SetsDemo, SetTraffic, cluster_settings, own_settings
from qpid_ha_demo.stage import Stage


class Soak:
    """One run, and what it showed."""

    def __init__(self, stage: Stage, directory: Path, seed: int, *, stores: bool) -> None:
        self._stage, self._directory, self._seed = stage, directory, seed
        self._stores = directory / "stores" if stores else None
        self._began_s = self._ended_s = 0.0
        self._problem = ""

    def run(self, minutes: float) -> bool:
        """Make trouble for so long; whether all promises were kept."""
        with ExitStack() as stack:
            cluster = stack.enter_context(
                LocalCluster(
                    self._directory, len(ZONES), settings=cluster_settings(), own_settings=own_settings(),
                    stores=self._stores,
                )
            )  # fmt: skip
            demo = SetsDemo(self._stage, cluster, durable=self._stores is not None)
            stack.callback(demo.stop)
            demo.start()
            trouble = Trouble(cluster, [each.name for each in demo.traffic], self._stores, self._seed)
            stack.callback(lambda: write_steps(trouble, self._directory))
            self._began_s = time.monotonic()
            while time.monotonic() < self._began_s + 60 * minutes:
                step = trouble.draw()
                trouble.make(step)
                trouble.rest(step.pause_s)
            try:
                trouble.end()
                demo.wait_whole("each set has its replicas again")
            except ClusterFailed as error:
                self._problem = str(error)
            self._ended_s = time.monotonic()
            is_flawless = demo.settle()
            show_steps(self._stage.console, trouble, self._seed)
            self._show_clients(demo.traffic)
            logs, calm_s = [broker.log() for broker in cluster.brokers], trouble.last_disturbed_s - self._began_s
            return self._show_logs(logs, demo.traffic, calm_s) and is_flawless

    def _show_clients(self, traffic: Sequence[SetTraffic]) -> None:
        problems = Counter(
            f"{who}: {kind_of(text)}"
            for each in traffic
            for who, client in (("publisher", each.publisher), ("consumer", each.consumer))
            for text in client.problems
        )
        show_kinds(self._stage.console, "Clients were told", problems)

    def _show_logs(self, logs: Sequence[str], traffic: Sequence[SetTraffic], calm_s: float) -> bool:
        lines = read_logs(logs)
        show_kinds(self._stage.console, "Warnings in the logs", lines.warnings)
        show_kinds(self._stage.console, "Errors in the logs", lines.errors)
        pauses = sorted(
            pause for each in traffic for pause in pauses_of(each.name, each.ledger, self._began_s, self._ended_s)
        )
        show_pauses(self._stage, pauses)
        books = account([each.ledger.audit() for each in traffic])
        self._stage.step(f"{books}; tracebacks {lines.tracebacks}")
        self._problem = self._problem or stuck(pauses, calm_s)
        if lines.tracebacks:
            self._problem = self._problem or f"there are {lines.tracebacks} tracebacks in the logs"
        if self._problem:
            self._stage.console.print(f"   {self._problem}", style="bold red", markup=False, highlight=False)
        return not self._problem


def kill_under_sessions(stage: Stage, directory: Path, seed: int, kills: int) -> bool:
    """See `session_kills`; whether all promises were kept."""
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(directory, BROKERS, settings=session_settings()))
        soak = SessionKills(cluster, seed)
        stack.callback(soak.stop)
        soak.start()
        soak.run(kills)
        soak.settle()
        total, problems = soak.total(), soak.problems()
        logs = read_logs(broker.log() for broker in cluster.brokers)
        reasons = Counter(kind_of(reason) for each in soak.traffic for reason in each.reasons)
        show_kinds(stage.console, "Connections ended", reasons)
        show_kinds(stage.console, "Warnings in the logs", logs.warnings)
        show_kinds(stage.console, "Errors in the logs", logs.errors)
        if logs.tracebacks:
            problems.append(f"there are {logs.tracebacks} tracebacks in the logs")
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(soak.kills.items()))
        stage.step(
            f"{soak.kills.total()} kills ({kinds}; the controller {soak.controllers_killed} times),"
            f" {reasons.total()} reconnects; sent {total.sent:,}, lost {total.lost}, twice {total.twice},"
            f" out of order {total.out_of_order}, taken away {total.withdrawn}"
        )
        for problem in problems:
            stage.console.print(f"   {problem}", style="bold red", markup=False, highlight=False)
        return not problems


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--minutes", type=click.FloatRange(0.1), default=10.0, show_default=True)
@click.option("--seed", type=int, help="Of the steps; without it another one each time.")
@click.option("--stores/--memory", default=False, show_default=True, help="With stores, below TMPDIR.")
@click.option(
    "--sets", "crosses_sets", is_flag=True, help="Sets, proxies, exchanges, sessions, and all faults; as root."
)
@click.option("--group", "takes_group", is_flag=True, help="A group, on machines with Corosync and Pacemaker; as root.")
@click.option("--upgrade-from", metavar="REV", help="Upgrade three brokers from that commit under load, and back.")
@click.option("--sessions", is_flag=True, help="Kill brokers that relay, under clients with sessions.")
@click.option("--kills", type=click.IntRange(1), default=100, show_default=True, help="So often, with --sessions.")
@click.option("--keep", is_flag=True, help="Leave logs, steps and stores, as after a run that failed.")
def main(
    minutes: float, seed: int | None, stores: bool, crosses_sets: bool, takes_group: bool, upgrade_from: str | None,
    sessions: bool, kills: int, keep: bool,
) -> None:  # fmt: skip
    """Trouble a cluster of many resource sets under load; exit code 1 if a promise was broken."""
    if crosses_sets + takes_group + sessions + (upgrade_from is not None) > 1:
        raise click.UsageError("--sets, --group, --sessions and --upgrade-from are runs of their own")
    stage = Stage()
    seed = int(time.time()) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="qpid-ha-soak-"))
    has_stores = bool(stores or crosses_sets or takes_group or upgrade_from)
    what = f"{kills} kills" if sessions else f"{minutes:g} minutes, {'with stores' if has_stores else 'in memory'}"
    stage.step(f"seed {seed}", f"{what}, {directory}")
    good = False
    try:
        if sessions:
            good = kill_under_sessions(stage, directory, seed, kills)
        elif upgrade_from is not None:
            good = UpgradeSoak(stage, directory, seed, upgrade_from).run(minutes)
        elif takes_group:
            good = GroupSoak(stage, directory, seed).run(minutes)
        elif crosses_sets:
            good = CrossingSoak(stage, directory, seed).run(minutes)
        else:
            good = Soak(stage, directory, seed, stores=stores).run(minutes)
    except ClusterFailed as error:
        sys.exit("\n".join([f"soak: {error}", *getattr(error, "__notes__", [])]))
    finally:
        if good and not keep:
            shutil.rmtree(directory)
        else:
            stage.console.print(f"   logs and steps are in {directory}", highlight=False)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
