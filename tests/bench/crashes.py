"""Three brokers lose their power at once, fifty times, under load: what was lost, what came twice, how long it took."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Measurement
from bench.latency import percentile
from bench.scenario import Scenario
from total_crash import Account, TotalCrashes

SEED = 1


def measure_crashes(scenario: Scenario) -> Iterator[Measurement]:
    """Every other time the agents live on. Nobody helps."""
    with TemporaryDirectory(prefix="qpid-ha-bench-") as directory, TotalCrashes(Path(directory), seed=SEED) as crashes:
        for number in range(scenario.crashes):
            crashes.round(machines=number % 2 == 0)
        account = crashes.finish()
    yield from measurements(account)


def measurements(account: Account) -> Iterator[Measurement]:
    """The summary."""
    rounds = len(account.served_s)
    note = f"{account.confirmed:,} were confirmed, {account.told:,} were told to be gone; {rounds} crashes"
    yield Measurement("crashes_lost", "total crashes: confirmed and lost", account.total("lost"), "", note)
    note = f"{account.total('duplicates_marked'):,} came twice and said so"
    unmarked = account.total("duplicates_unmarked") + len(account.came_back)
    yield Measurement("crashes_unmarked", "total crashes: came again unmarked, or after the word", unmarked, "", note)
    for name, share in (("p50", 0.5), ("max", 1.0)):
        value = percentile(account.served_s, share)
        yield Measurement(f"crashes_served_{name}", f"total crashes: restart to served, {name}", value, "s")
