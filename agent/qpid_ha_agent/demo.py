"""`./dev demo`: a broker of its own, a real client at both ends, and the figures, in about ten seconds.

Everything shown is measured in this run. The exit code is 0 when every message that was sent was confirmed and came
once, in order, and the broker stopped cleanly; otherwise 1.
"""

from __future__ import annotations

import statistics
import sys
from threading import Thread

import click
from proton import ProtonException
from proton.reactor import Container
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from qpid_ha_agent import demo_load
from qpid_ha_agent.control import ControlFailure
from qpid_ha_agent.demo_broker import BrokerFailed, DemoBroker
from qpid_ha_agent.demo_load import ProducerAndConsumer, Tally

QUEUE, GREETINGS = "orders", "greetings"
PACE = 1000
"""Messages per second while latency is measured: a broker that is busy, not flooded."""
PACED_MESSAGES = 2000
CALLS = 200

NEXT = (
    (".venv/bin/qpidd --listen amqp://127.0.0.1:5672", "a broker that stays"),
    (".venv/bin/qpid-ha status", "in a second terminal"),
    (".venv/bin/qpid-ha queue create orders", "make a queue"),
    (".venv/bin/qpid-ha queue list", "what is queued?"),
    ("./dev test", "lint, and all tests"),
    ("./dev bench", "measure this machine"),
    ("README.md, docs/architecture.md", "how it works"),
)


class Stage:
    """Where the demo is shown: a terminal, a pipe or a file."""

    def __init__(self) -> None:
        narrow = Console()
        # A pipe has no width; what goes into a file should not be cut at 80 columns.
        self.console = narrow if narrow.is_terminal else Console(width=100)
        self._tick = "✓" if "utf" in self.console.encoding.lower() else "*"

    def step(self, what: str, detail: str = "") -> None:
        """One thing is done."""
        line = Text.assemble((f" {self._tick} ", "bold green"), what)
        if detail:
            line.append(f"  {detail}", style="dim")
        self.console.print(line)

    def produce_and_consume(self, url: str, count: int, size: int, rate: int, label: str) -> Tally:
        """Run the two, with a bar for who watches."""
        columns = (TextColumn(f"   {label}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bar:
            task = bar.add_task("", total=count)
            return demo_load.run(
                ProducerAndConsumer(
                    url, QUEUE, count, size, rate=rate, progress=lambda arrived: bar.update(task, completed=arrived)
                )
            )

    def show(self, load: Tally, paced: Tally) -> None:
        """The figures."""
        table = Table(title="One producer and one consumer at the same time", title_style="bold", min_width=60)
        table.add_column("")
        table.add_column("at full speed", justify="right")
        table.add_column(f"at {PACE:,} messages/s", justify="right")
        for name in ("sent", "confirmed", "received"):
            table.add_row(name, *(f"{getattr(tally, name):,}" for tally in (load, paced)))
        for name in ("lost", "refused", "duplicated", "out_of_order"):
            table.add_row(name.replace("_", " "), *(_alarming(getattr(tally, name)) for tally in (load, paced)))
        table.add_section()
        table.add_row("messages/s", f"[bold]{load.rate:,.0f}[/]", f"{paced.rate:,.0f}")
        for percent in (50, 90, 99):
            table.add_row(f"latency, {percent} % within", "", f"{paced.latency_ms(percent):.2f} ms")
        self.console.print(table)
        self.console.print(
            "   Both ends are Proton's plain Python client, in one process, and that sets this pace.\n"
            "   ./dev bench measures what the broker can do.\n",
            style="dim",
            highlight=False,
        )

    def show_verdict(self, flawless: bool, stopped_cleanly: bool) -> None:
        """The last word."""
        text, style = "Nothing was lost, nothing came twice, and all came in order.", "green"
        if not stopped_cleanly:
            text, style = "THE BROKER DID NOT END AS IT SHOULD: see what it left and its exit code above.", "bold red"
        if not flawless:
            text, style = "NOT EVERY MESSAGE CAME, ONCE AND IN ORDER: see the figures above.", "bold red"
        self.console.print(Panel(Text(text, style=style, justify="center"), border_style=style))

    def show_next(self) -> None:
        """What to try."""
        table = Table.grid(padding=(0, 2))
        for command, purpose in NEXT:
            table.add_row(Text(command, style="cyan"), Text(purpose, style="dim"))
        self.console.print(Panel(table, title="try next", title_align="left", border_style="dim"))


def _alarming(count: int) -> str:
    return f"[green]{count}[/]" if count == 0 else f"[bold red]{count:,}[/]"


def _greet(stage: Stage, url: str) -> None:
    service = Thread(target=Container(demo_load.Greeter(url, GREETINGS)).run, daemon=True)
    service.start()
    times_ms = demo_load.call(url, GREETINGS, CALLS)
    service.join(demo_load.STALL_S)
    median_ms = statistics.median(times_ms)
    stage.step(f"{CALLS} requests answered, each through two queues", f"half of them within {median_ms:.2f} ms")


def _ask_management(stage: Stage, url: str) -> int:
    """Show what the broker itself counted; how many messages it still holds."""
    facts = demo_load.read_queue(url, QUEUE)
    left = int(facts["messages"])
    stage.step(
        f"asked $management about the queue {QUEUE}",
        f"enqueued {facts['enqueued']:,}, dequeued {facts['dequeued']:,}, left {left:,}",
    )
    return left


def _play(stage: Stage, broker: DemoBroker, messages: int, size: int) -> bool:
    """The whole story; whether all went well."""
    facts = broker.facts()
    stage.step(f"started qpidd {facts['version']} in {broker.start_s:.2f} s", f"{facts['state']}, {broker.address}")
    load = stage.produce_and_consume(broker.address, messages, size, 0, "full speed ")
    stage.step(f"sent and received {load.received:,} messages of {size} bytes", f"in {load.elapsed_s:.1f} s")
    paced = stage.produce_and_consume(broker.address, PACED_MESSAGES, size, PACE, "steady pace")
    stage.step(f"sent and received {paced.received:,} more, {PACE:,} a second", f"in {paced.elapsed_s:.1f} s")
    _greet(stage, broker.address)
    left = _ask_management(stage, broker.address)
    code = broker.stop()
    stage.step(f"stopped qpidd in {broker.stop_s:.2f} s", f"exit code {code}")
    stage.console.print()
    stage.show(load, paced)
    flawless, stopped_cleanly = load.is_flawless and paced.is_flawless, left == 0 and code == 0
    stage.show_verdict(flawless, stopped_cleanly)
    return flawless and stopped_cleanly


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--messages", type=click.IntRange(1, 10_000_000), default=50_000, show_default=True, help="How many.")
@click.option(
    "--size", type=click.IntRange(demo_load.SMALLEST_BODY, 1 << 20), default=100, show_default=True, help="Bytes."
)
def main(messages: int, size: int) -> None:
    """Start a broker, send and receive through it with a real client, and show the figures."""
    stage = Stage()
    stage.console.print(Panel(Text("qpid-ha: one broker, a producer, a consumer", justify="center"), style="bold"))
    try:
        with DemoBroker() as broker:
            good = _play(stage, broker, messages, size)
    except BrokerFailed as error:
        sys.exit(f"demo: the broker did not start: {error}")
    except (ProtonException, ControlFailure, ValueError) as error:
        sys.exit(f"demo: {error}")
    stage.show_next()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
