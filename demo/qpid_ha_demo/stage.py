"""How the demo looks: the live table, the report, and what to try next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import Facts, LocalCluster
from qpid_ha_demo.failover import Failover
from qpid_ha_demo.ledger import Ledger, LedgerAudit
from qpid_ha_demo.outages import OUTAGE_S, SESSION_S, Outage

WIDTH_IN_A_FILE = 100
_STYLES = {
    "primary": "bold green",
    "ready": "green",
    "observer": "cyan",
    "catchup": "yellow",
    "connecting": "yellow",
    "down": "bold red",
}
_RATE_WINDOW_S = 0.5


class _Sample(NamedTuple):
    at_s: float
    value: int


class _Rate:
    """Something a second, over the last half second or so."""

    def __init__(self) -> None:
        self._samples: list[_Sample] = []

    def of(self, value: int) -> float:
        """Take a new value; 0 after it went back."""
        now_s = time.monotonic()
        if self._samples and value < self._samples[-1].value:
            self._samples.clear()
        self._samples.append(_Sample(now_s, value))
        while len(self._samples) > 2 and self._samples[1].at_s < now_s - _RATE_WINDOW_S:
            self._samples.pop(0)
        first = self._samples[0]
        return (value - first.value) / (now_s - first.at_s) if now_s > first.at_s else 0.0


class LiveTable:
    """Who is what and how fast, for `rich.live.Live`."""

    def __init__(self, cluster: LocalCluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._rates = {broker.name: _Rate() for broker in cluster.brokers}
        self._confirmed, self._received = _Rate(), _Rate()
        self.headline = ""

    def __call__(self) -> RenderableType:
        """As it is now."""
        table = Table(min_width=72)
        for name in ("broker", "state", "phase", "generation", "lsn", "lag", "events/s"):
            table.add_column(name, justify="left" if name in ("broker", "state", "phase") else "right")
        lags = self._lags()
        for broker in self._cluster.brokers:
            facts = broker.status()
            state, lsn = str(facts["state"]), int(facts.get("lsn") or 0)
            table.add_row(
                broker.name,
                Text(state, style=_STYLES.get(state, "")),
                str(facts.get("phase") or ""),
                str(facts.get("generation") or ""),
                f"{lsn:,}" if lsn else "",
                lags.get(broker.name, ""),
                f"{self._rates[broker.name].of(lsn):,.0f}" if lsn else "",
            )
        return Group(table, self._counts(), Text(self.headline, style="bold"))

    def _lags(self) -> dict[str, str]:
        """In messages, as the primary sees it."""
        primary = self._cluster.primary()
        try:
            answer = primary.ask("backups").get("answer") if primary else None
        except ControlFailure:
            return {}
        rows: Sequence[Facts] = answer if isinstance(answer, list) else []
        return {str(row.get("name")): f"{row.get('lag_messages', 0):,}" for row in rows}

    def _counts(self) -> Text:
        confirmed, received = len(self._ledger.confirmed_at_s), len(self._ledger.arrived)
        return Text(
            f" confirmed {confirmed:,} ({self._confirmed.of(confirmed):,.0f}/s)"
            f"   received {received:,} ({self._received.of(received):,.0f}/s)",
            style="dim",
        )


class Stage:
    """Where the demo is shown: a terminal, a pipe or a file."""

    def __init__(self) -> None:
        narrow = Console()
        # A pipe has no width; what goes into a file should not be cut at 80 columns.
        self.console = narrow if narrow.is_terminal else Console(width=WIDTH_IN_A_FILE)
        self._tick = "✓" if "utf" in self.console.encoding.lower() else "*"

    def step(self, what: str, detail: str = "") -> None:
        """One thing is done."""
        line = Text.assemble((f" {self._tick} ", "bold green"), what)
        if detail:
            line.append(f"  {detail}", style="dim")
        self.console.print(line)

    def show_failover(self, number: int, failover: Failover) -> None:
        """One line."""
        self.step(
            f"killed {failover.killed} (round {number}): {failover.promoted} serves after {failover.total_s:.3f} s",
            f"generation {failover.generation}, all ready again after {failover.whole_again_s:.1f} s",
        )

    def announce(self, what: str) -> None:
        """What is about to be done."""
        self.console.print(f"   {what}", style="bold", highlight=False)

    def show_outage(self, outage: Outage) -> None:
        """One line of what came of it."""
        is_same = outage.led_before == outage.led_after
        leads = f"{outage.led_after} {'goes on' if is_same else 'took over'}"
        self.step(
            f"{outage.event}: {leads}",
            f"longest gap {outage.longest_gap_s:.3f} s, all back after {outage.back_after_s:.1f} s",
        )

    def show_failovers(self, failovers: Sequence[Failover]) -> None:
        """The times of each."""
        self.console.print(_times(failovers))

    def show_outages(self, outages: Sequence[Outage]) -> None:
        """What clients saw of each."""
        self.console.print(_outages(outages))

    def show_account(self, audit: LedgerAudit) -> None:
        """What became of all messages."""
        self.console.print(_account(audit))
        text, style = "Nothing that was confirmed was lost, no copy came without its mark, all came in order.", "green"
        if not audit.is_flawless:
            text, style = "A PROMISE WAS BROKEN: see the red figures above.", "bold red"
        self.console.print(Panel(Text(text, style=style, justify="center"), border_style=style))

    def show_next(self, cluster: LocalCluster) -> None:
        """What to try while it stays up: lines to copy, so they are not folded into a frame."""
        now = cluster.primary() or cluster.brokers[0]
        backup = next(broker for broker in cluster.brokers if broker is not now)
        at_primary, at_backup = (f".venv/bin/qpid-ha -b {broker.control_socket}" for broker in (now, backup))
        self.console.print("\n Try, in a second terminal:", style="bold")
        for command, purpose in (
            (f"{at_primary} status --all", "who is what"),
            (f"{at_primary} watch", "the same, kept up to date"),
            (f"{at_primary} backups", "asked of the primary: how far behind are they"),
            (f"{at_primary} history", "who was primary, and why"),
            (f".venv/bin/qpid-ha coordinator show --config {now.config}", "the record, and who has the lock"),
            (f"kill -9 {now.pid}", "what the demo does: the primary is dead, and its agent starts it again"),
            (f"{at_backup} promote", "make this one the primary"),
            (f"{at_backup} switchover", "asked of the new primary: let it hand over"),
        ):
            line = Text.assemble((command, "cyan"), (f"   # {purpose}", "dim"))
            self.console.print(line, soft_wrap=True)
        self.console.print(f"\n Brokers: {', '.join(cluster.urls)}. Ctrl-C ends them.", style="dim", highlight=False)


def _times(failovers: Sequence[Failover]) -> Table:
    table = Table(title="From SIGKILL of the primary to the first confirmed publish", title_style="bold", min_width=72)
    for name in ("killed", "promoted", "detection", "promotion", "client recovery", "together"):
        table.add_column(name, justify="left" if name in ("killed", "promoted") else "right")
    for failover in failovers:
        parts = (failover.detection_s, failover.promotion_s, failover.client_recovery_s, failover.total_s)
        table.add_row(failover.killed, failover.promoted, *(f"{part * 1000:,.0f} ms" for part in parts))
    return table


def _outages(outages: Sequence[Outage]) -> Table:
    caption = (
        f"cut off: agent and broker are stopped (SIGSTOP) for {OUTAGE_S:g} s or longer, and a session ends after "
        f"{SESSION_S:g} s; no network is cut. gap: without a confirmation. unmarked: the consumer was not warned."
    )
    table = Table(title="What was broken, and what clients saw of it", title_style="bold", caption=caption)
    for name in ("event", "led before", "led after"):
        table.add_column(name, overflow="fold")  # an ellipsis is not in every encoding
    for name in ("longest gap", "back", "lost", "duplicates", "unmarked"):
        table.add_column(name, justify="right", overflow="fold")
    for outage in outages:
        table.add_row(
            outage.event, outage.led_before, outage.led_after,
            f"{outage.longest_gap_s * 1000:,.0f} ms", f"{outage.back_after_s:.1f} s",
            _alarming(outage.lost), f"{outage.duplicates:,}", _alarming(outage.unmarked),
        )  # fmt: skip
    return table


def _account(audit: LedgerAudit) -> Table:
    table = Table(title="Messages", title_style="bold", min_width=72)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("", style="dim")
    table.add_row("confirmed", f"{audit.confirmed:,}", "the publisher was told: safe")
    table.add_row("received", f"{audit.received:,}", "each counted once")
    table.add_row("lost", _alarming(len(audit.lost)), "confirmed, and never received")
    table.add_section()
    table.add_row("duplicated, marked", f"{audit.duplicates_marked:,}", "the broker said: perhaps a copy")
    table.add_row("sent again", f"{audit.duplicates_sent_again:,}", "by the publisher, which had heard nothing")
    table.add_row("duplicated, unmarked", _alarming(len(audit.duplicates_unmarked)), "nobody warned the consumer")
    table.add_row("out of order", _alarming(len(audit.out_of_order)), "")
    return table


def _alarming(count: int) -> str:
    return f"[green]{count}[/]" if count == 0 else f"[bold red]{count:,}[/]"
