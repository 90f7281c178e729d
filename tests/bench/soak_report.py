"""What a soak reads out of its run, and shows: pauses of sets, log lines, steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.steps import DrawnSteps
from qpid_ha_demo.ledger import Ledger, LedgerAudit
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
    (re.compile(r"(?:amqp://)?(?:127\.0\.0\.1|10\.77\.0\.\d+):\d+"), "ADDRESS"),
    (re.compile(r"\bset-\d+\b"), "SET"),
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


def pauses_of(name: str, ledger: Ledger, began_s: float, ended_s: float) -> list[Pause]:
    """From the beginning to the end of the trouble."""
    within = [at_s for at_s in ledger.confirmed_at_s.values() if began_s <= at_s <= ended_s]
    gaps = pairwise([began_s, *sorted(within), ended_s])
    return [Pause(end_s - at_s, at_s - began_s, name) for at_s, end_s in gaps if end_s - at_s >= PAUSE_S]


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


def show_kinds(console: Console, title: str, kinds: Counter[str]) -> None:
    if not kinds:
        return
    console.print(f"\n{title}:", style="bold")
    for kind, count in kinds.most_common(SHOWN):
        console.print(f"{count:7,}  {kind}", markup=False, emoji=False, highlight=False, soft_wrap=True)
    if len(kinds) > SHOWN:
        console.print(f"         and {len(kinds) - SHOWN} other kinds")


def write_steps(trouble: DrawnSteps, directory: Path) -> None:
    """All of them, with their times."""
    lines = [f"{at_s:8.2f} {kind}: {target}{' REFUSED ' if text else ''}{text}\n"
             for at_s, kind, target, text in trouble.outcomes]  # fmt: skip
    (directory / "steps.log").write_text("".join(lines), encoding="utf-8")


def show_steps(console: Console, trouble: DrawnSteps, seed: int) -> None:
    """How many of each kind, and why some were refused."""
    table = Table(title=f"Trouble (seed {seed})", title_style="bold")
    columns = ("done", "refused", "skipped")
    for name in ("kind", *columns):
        table.add_column(name, justify="left" if name == "kind" else "right")
    for kind, counts in sorted(trouble.counts().items()):
        table.add_row(kind, *(str(counts[column] or "") for column in columns))
    console.print(table)
    refused = Counter(f"{kind}: {kind_of(text)}" for _, kind, _, text in trouble.outcomes if text)
    show_kinds(console, "Refused", refused)


def show_pauses(stage: Stage, pauses: Sequence[Pause]) -> None:
    """They are in order, the longest last."""
    if not pauses:
        return
    median_s, p99_s = (pauses[int(share * (len(pauses) - 1))].for_s for share in (0.5, 0.99))
    stage.step(
        f"{len(pauses)} pauses of sets, longer than {PAUSE_S:g} s: median {median_s:.2f} s, p99 {p99_s:.2f} s,"
        f" longest {pauses[-1].for_s:.2f} s"
    )
    for pause in reversed(pauses[-WORST:]):
        stage.console.print(f"   {pause.set} for {pause.for_s:.2f} s from {pause.from_s:.2f} s on")


def account(audits: Sequence[LedgerAudit]) -> str:
    """All books together, in a sentence."""
    return (
        f"confirmed {sum(audit.confirmed for audit in audits):,},"
        f" received {sum(audit.received for audit in audits):,},"
        f" lost {sum(len(audit.lost) for audit in audits)};"
        f" copies marked by brokers {sum(audit.duplicates_marked for audit in audits):,},"
        f" sent again {sum(audit.duplicates_sent_again for audit in audits):,},"
        f" unmarked {sum(len(audit.duplicates_unmarked) for audit in audits)};"
        f" out of order {sum(len(audit.out_of_order) for audit in audits)}"
    )
