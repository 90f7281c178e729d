"""`./dev soak`: five brokers, twelve resource sets, and trouble (`sets_trouble`), under load.

Each set has a publisher and a consumer all the time. In the end everything that was confirmed has to have arrived, in
order, and no copy without its mark; no set may have confirmed nothing for a minute after the last broker was disturbed,
and no broker may have written a traceback. What remains of a run that failed, logs and steps, stays where it says.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console
from rich.table import Table

from bench.session_kills import BROKERS, SessionKills, session_settings
from bench.sets_trouble import Trouble
from qpid_ha_demo.cluster import ClusterFailed, LocalCluster
from qpid_ha_demo.sets import ZONES, SetsDemo, SetTraffic, cluster_settings, own_settings
from qpid_ha_demo.stage import Stage

PAUSE_S: Final = 0.25
"""For less nobody would say that a set paused: a publisher sends every 25 ms, on a machine that is busy."""
STUCK_S: Final = 60.0
"""After the last disturbance. Before it all in sync with a set may be down at once, because of what the soak does."""
WORST: Final = 5
"""Pauses that are shown."""
SHOWN: Final = 20
"""Lines of a table, the most frequent first."""
_VARIABLE: Final = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27,}|[0-9a-f]{32}"), "ID"),
    (re.compile(r"(?:amqp://)?127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"\bset-\d\d\b"), "SET"),
    (re.compile(r"\bbroker\d(?:, broker\d)*\b"), "BROKER"),
    (re.compile(r"\d+(?:\.\d+)?"), "N"),
)
_WHEN: Final = re.compile(r"^\S+Z ")


class Pause(NamedTuple):
    """A set confirmed nothing, for PAUSE_S at least; in seconds."""

    for_s: float
    from_s: float
    """Since the beginning of the trouble."""
    set: str


def pauses_of(traffic: SetTraffic, began_s: float, ended_s: float) -> list[Pause]:
    """From the beginning to the end of the trouble."""
    within = [at_s for at_s in traffic.ledger.confirmed_at_s.values() if began_s <= at_s <= ended_s]
    gaps = pairwise([began_s, *sorted(within), ended_s])
    return [Pause(end_s - at_s, at_s - began_s, traffic.name) for at_s, end_s in gaps if end_s - at_s >= PAUSE_S]


def stuck(pauses: Iterable[Pause], calm_s: float) -> str:
    """Who confirmed nothing for too long since `calm_s` (from the beginning of the trouble); empty: nobody."""
    silent = [(each.from_s + each.for_s - max(each.from_s, calm_s), each.set) for each in pauses]
    for_s, name = max(silent, default=(0.0, ""))
    return f"{name} confirmed nothing for {for_s:.0f} s after the last disturbance" if for_s > STUCK_S else ""


def kind_of(text: str) -> str:
    """What is left when names and numbers are taken out."""
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return text


class LogLines(NamedTuple):
    """What is alarming in the logs of brokers and agents."""

    tracebacks: int
    errors: Counter[str]
    warnings: Counter[str]


def read_logs(logs: Iterable[str]) -> LogLines:
    """Lines of the same kind are counted together."""
    found = LogLines(0, Counter(), Counter())
    for text in logs:
        found = found._replace(tracebacks=found.tracebacks + text.count("Traceback (most recent call last)"))
        for line in text.splitlines():
            level, _, rest = _WHEN.sub("", line).partition(" ")
            if level in ("error", "critical"):
                found.errors[kind_of(rest)] += 1
            elif level == "warning":
                found.warnings[kind_of(rest)] += 1
    return found


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
            stack.callback(lambda: self._write_steps(trouble))
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
            self._show_steps(trouble)
            self._show_clients(demo.traffic)
            logs, calm_s = [broker.log() for broker in cluster.brokers], trouble.last_disturbed_s - self._began_s
            return self._show_logs(logs, demo.traffic, calm_s) and is_flawless

    def _write_steps(self, trouble: Trouble) -> None:
        lines = [f"{at_s:8.2f} {kind}: {target}{' REFUSED ' if text else ''}{text}\n"
                 for at_s, kind, target, text in trouble.outcomes]  # fmt: skip
        (self._directory / "steps.log").write_text("".join(lines), encoding="utf-8")

    def _show_steps(self, trouble: Trouble) -> None:
        table = Table(title=f"Trouble (seed {self._seed})", title_style="bold")
        columns = ("done", "refused", "skipped")
        for name in ("kind", *columns):
            table.add_column(name, justify="left" if name == "kind" else "right")
        for kind, counts in sorted(trouble.counts().items()):
            table.add_row(kind, *(str(counts[column] or "") for column in columns))
        self._stage.console.print(table)
        refused = Counter(f"{kind}: {kind_of(text)}" for _, kind, _, text in trouble.outcomes if text)
        _show_kinds(self._stage.console, "Refused", refused)

    def _show_clients(self, traffic: Sequence[SetTraffic]) -> None:
        problems = Counter(
            f"{who}: {kind_of(text)}"
            for each in traffic
            for who, client in (("publisher", each.publisher), ("consumer", each.consumer))
            for text in client.problems
        )
        _show_kinds(self._stage.console, "Clients were told", problems)

    def _show_logs(self, logs: Sequence[str], traffic: Sequence[SetTraffic], calm_s: float) -> bool:
        lines = read_logs(logs)
        _show_kinds(self._stage.console, "Warnings in the logs", lines.warnings)
        _show_kinds(self._stage.console, "Errors in the logs", lines.errors)
        pauses = sorted(pause for each in traffic for pause in pauses_of(each, self._began_s, self._ended_s))
        self._show_pauses(pauses)
        audits = [each.ledger.audit() for each in traffic]
        self._stage.step(
            f"confirmed {sum(each.confirmed for each in audits):,},"
            f" received {sum(each.received for each in audits):,},"
            f" lost {sum(len(each.lost) for each in audits)};"
            f" copies marked by brokers {sum(each.duplicates_marked for each in audits):,},"
            f" sent again {sum(each.duplicates_sent_again for each in audits):,},"
            f" unmarked {sum(len(each.duplicates_unmarked) for each in audits)};"
            f" out of order {sum(len(each.out_of_order) for each in audits)};"
            f" tracebacks {lines.tracebacks}"
        )
        self._problem = self._problem or stuck(pauses, calm_s)
        if lines.tracebacks:
            self._problem = self._problem or f"there are {lines.tracebacks} tracebacks in the logs"
        if self._problem:
            self._stage.console.print(f"   {self._problem}", style="bold red", markup=False, highlight=False)
        return not self._problem

    def _show_pauses(self, pauses: Sequence[Pause]) -> None:
        """They are in order, the longest last."""
        if not pauses:
            return
        median_s, p99_s = (pauses[int(share * (len(pauses) - 1))].for_s for share in (0.5, 0.99))
        self._stage.step(
            f"{len(pauses)} pauses of sets, longer than {PAUSE_S:g} s: median {median_s:.2f} s, p99 {p99_s:.2f} s,"
            f" longest {pauses[-1].for_s:.2f} s"
        )
        for pause in reversed(pauses[-WORST:]):
            self._stage.console.print(f"   {pause.set} for {pause.for_s:.2f} s from {pause.from_s:.2f} s on")


def _show_kinds(console: Console, title: str, kinds: Counter[str]) -> None:
    if not kinds:
        return
    console.print(f"\n{title}:", style="bold")
    for kind, count in kinds.most_common(SHOWN):
        console.print(f"{count:7,}  {kind}", markup=False, emoji=False, highlight=False, soft_wrap=True)
    if len(kinds) > SHOWN:
        console.print(f"         and {len(kinds) - SHOWN} other kinds")


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
        _show_kinds(stage.console, "Connections ended", reasons)
        _show_kinds(stage.console, "Warnings in the logs", logs.warnings)
        _show_kinds(stage.console, "Errors in the logs", logs.errors)
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
@click.option("--sessions", is_flag=True, help="Kill brokers that relay, under clients with sessions.")
@click.option("--kills", type=click.IntRange(1), default=100, show_default=True, help="So often, with --sessions.")
@click.option("--keep", is_flag=True, help="Leave logs, steps and stores, as after a run that failed.")
def main(minutes: float, seed: int | None, stores: bool, sessions: bool, kills: int, keep: bool) -> None:
    """Trouble a cluster of many resource sets under load; exit code 1 if a promise was broken."""
    stage = Stage()
    seed = int(time.time()) if seed is None else seed
    directory = Path(tempfile.mkdtemp(prefix="qpid-ha-soak-"))
    what = f"{kills} kills" if sessions else f"{minutes:g} minutes, {'with stores' if stores else 'in memory'}"
    stage.step(f"seed {seed}", f"{what}, {directory}")
    good = False
    try:
        if sessions:
            good = kill_under_sessions(stage, directory, seed, kills)
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
