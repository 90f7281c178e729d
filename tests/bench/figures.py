"""What was measured, beside what was wanted: figures, targets, the table and the JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Measurement:
    """One value of one run. `key` names it in the JSON file and among the targets."""

    key: str
    label: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True)
class Target:
    """What the value is wanted to be: at least `value`, or at most."""

    value: float
    at_least: bool

    def is_met_by(self, value: float) -> bool:
        """Whether `value` is good enough."""
        return value >= self.value if self.at_least else value <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {shown(self.value)}"


_WAYS = ("enqueue", "dequeue")
_COORDINATOR_TARGETS: Mapping[str, float] = {
    "kill": 0.3, "crash": 4.5, "leader": 4.5, "away_default": 5.0, "away_set": 5.0, "away_beyond": 1.0,
    "pause": 3.0, "record": 15.0, "idle": 1.0, "fleet": 1.0,
}  # fmt: skip
"""4.5 s: `ha.coordinator-timeout`, and half a second for the promotion."""
TARGETS: Mapping[str, Target] = {
    "enqueue_100": Target(100_000, at_least=True),
    "enqueue_1024": Target(80_000, at_least=True),
    "dequeue_100": Target(120_000, at_least=True),
    "dequeue_1024": Target(120_000, at_least=True),
    "latency_delivery_p50": Target(0.3, at_least=False),
    "latency_delivery_p99": Target(2.0, at_least=False),
    "latency_confirmation_p50": Target(0.3, at_least=False),
    "latency_confirmation_p99": Target(2.0, at_least=False),
    "session_resume": Target(0.2, at_least=False),
    "memory_overhead": Target(400, at_least=False),
    "start": Target(0.5, at_least=False),
    "scrape_1k": Target(50, at_least=False),
    **{f"{asked}_stall": Target(10, at_least=False) for asked in ("scrape", "list", "figures", "sorted")},
    **{
        f"watched_{way}": Target(3, at_least=False) for way in ("acl", "metrics", "page", "metrics_share", "page_share")
    },
    "queues_memory": Target(150, at_least=False),
    "replicated_enqueue_100": Target(90_000, at_least=True),
    "replicated_enqueue_1024": Target(60_000, at_least=True),
    "replicated_dequeue_100": Target(150_000, at_least=True),
    "replicated_dequeue_1024": Target(150_000, at_least=True),
    "replicated_latency_p50": Target(0.5, at_least=False),
    "replicated_latency_p99": Target(3.0, at_least=False),
    "replicated_memory_few": Target(110, at_least=False),
    "replicated_memory_many": Target(110, at_least=False),
    "one_at_a_time_p50": Target(0.5, at_least=False),
    "one_at_a_time_processor": Target(45, at_least=False),
    "one_at_a_time_durable_p50": Target(1.5, at_least=False),
    "one_at_a_time_durable_p99": Target(8, at_least=False),
    "one_at_a_time_durable_processor": Target(90, at_least=False),
    "catch_up": Target(150_000, at_least=True),
    "catch_up_share": Target(70, at_least=True),
    "rejoin": Target(0.5, at_least=False),
    "promote_shallow": Target(50, at_least=False),
    "promote_deep": Target(50, at_least=False),
    "promote_queues": Target(0.3, at_least=False),
    "promote_many_queues": Target(1.5, at_least=False),
    **{f"group_enqueue_share_{size}": Target(60, at_least=True) for size in (100, 1024)},
    **{f"group_confirmation_{word}_ratio": Target(1.5, at_least=False) for word in ("p50", "p99")},
    "message_groups_share_groups": Target(60, at_least=True),
    "group_three_of_at_its_primary": Target(80, at_least=True),
    "group_three_of_through_proxies": Target(150, at_least=True),
    "group_shared_rate": Target(50, at_least=True),
    "group_shared_least": Target(70, at_least=True),
    "group_move": Target(3, at_least=False),
    "group_join_least": Target(50, at_least=True),
    "group_join_stall": Target(50, at_least=False),
    **{
        f"group_kill_{who}_{word}": Target(limit_ms, at_least=False)
        for who in ("publishers", "consumers", "leader_publishers", "leader_consumers")
        for word, limit_ms in (("median", 60), ("worst", 200))
    },
    "kill": Target(0.3, at_least=False),
    "pause": Target(3.0, at_least=False),
    "agent_stop_left": Target(0, at_least=False),
    "agent_stop_backup": Target(1.0, at_least=False),
    "agent_stop_primary": Target(1.0, at_least=False),
    "sets_three_cost": Target(1.1, at_least=False),
    "sets_memory": Target(100, at_least=False),
    "sets_idle": Target(5, at_least=False),
    "sets_in_turn": Target(50, at_least=True),
    "sets_map": Target(1.0, at_least=False),
    "durable_sets_ratio": Target(80, at_least=True),
    **{f"proxied_{what}_share_{size}": Target(60, at_least=True) for what in _WAYS for size in (100, 1024)},
    **{f"proxy_{what}_cpu_{size}": Target(6, at_least=False) for what in _WAYS for size in (100, 1024)},
    "proxy_added_delivery_p50": Target(0.2, at_least=False),
    "proxy_added_confirmation_p50": Target(0.2, at_least=False),
    **{f"workers_ratio_{size}": Target(1.15, at_least=False) for size in (100, 1024)},
    "proxied_link_memory": Target(40, at_least=False),
    "proxy_added_kill_confirmed": Target(50, at_least=False),
    "proxy_added_kill_delivered": Target(50, at_least=False),
    "sets_kill_first": Target(0.3, at_least=False),
    "sets_kill_last": Target(1.0, at_least=False),
    "sets_kill_controller_last": Target(0.3, at_least=False),
    "sets_kill_controller_most": Target(6, at_least=False),
    "sets_kill_stored_first": Target(0.3, at_least=False),
    "sets_kill_stored_last": Target(1.0, at_least=False),
    "store_sets_load": Target(5, at_least=False),
    "store_sets_idle": Target(5, at_least=False),
    "store_sets_memory": Target(100, at_least=False),
    "durable_single_enqueue_100": Target(80_000, at_least=True),
    "durable_single_enqueue_1024": Target(80_000, at_least=True),
    "durable_enqueue_100": Target(66_000, at_least=True),
    "durable_enqueue_1024": Target(50_000, at_least=True),
    "durable_latency_p99": Target(10.0, at_least=False),
    "recover_snapshot": Target(500_000, at_least=True),
    "recover_journal": Target(300_000, at_least=True),
    "fold": Target(200, at_least=True),
    "folding_cost": Target(10, at_least=False),
    "durable_start": Target(1, at_least=False),
    "module_changes": Target(300, at_least=False),
    "total_crash": Target(5, at_least=False),
    "total_crash_brokers": Target(5, at_least=False),
    "crashes_lost": Target(0, at_least=False),
    "crashes_unmarked": Target(0, at_least=False),
    "journal_count_1024": Target(600, at_least=True),
    "journal_count_1024_share": Target(60, at_least=True),
    "journal_bodies_1024_share": Target(50, at_least=True),
    "journal_count_100": Target(150, at_least=True),
    "journal_count_100_share": Target(60, at_least=True),
    "journal_bodies_100_share": Target(50, at_least=True),
    "pipeline_consolidate": Target(150, at_least=True),
    "pipeline_plan": Target(10, at_least=False),
    "pipeline_audit": Target(180, at_least=False),
    "amqp_stream_rate": Target(19_000, at_least=True),
    "amqp_stream_lag": Target(2.0, at_least=False),
    "pacemaker_monitor_cpu": Target(60, at_least=False),
    "pacemaker_monitor": Target(100, at_least=False),
    "pacemaker_kill": Target(1.0, at_least=False),
    "pacemaker_power_off": Target(3.0, at_least=False),
    "pacemaker_backup_power_off": Target(3.2, at_least=False),
    "pacemaker_move": Target(0.5, at_least=False),
    "pacemaker_move_errors": Target(0, at_least=False),
    **{
        f"{name}_{key}": Target(value, at_least=False)
        for name in ("zookeeper", "etcd")
        for key, value in _COORDINATOR_TARGETS.items()
    },
}
"""By the key of a measurement."""


@dataclass(frozen=True)
class Figure:
    """The values that one measurement had in all runs; never empty."""

    measurements: tuple[Measurement, ...]

    @property
    def first(self) -> Measurement:
        """Name and unit are the same in all."""
        return self.measurements[0]

    @property
    def values(self) -> list[float]:
        """One for each run."""
        return [measurement.value for measurement in self.measurements]

    @property
    def median(self) -> float:
        """The value to quote."""
        return statistics.median(self.values)

    @property
    def typical(self) -> Measurement:
        """The run whose value is nearest to the median: its note goes with it."""
        return min(self.measurements, key=lambda measurement: abs(measurement.value - self.median))

    @property
    def target(self) -> Target | None:
        """What is wanted; None when nobody said."""
        return TARGETS.get(self.first.key)

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or nothing without a target."""
        if self.target is None:
            return ""
        return "met" if self.target.is_met_by(self.median) else "missed"

    def as_json(self) -> dict[str, object]:
        """All of it, for the file."""
        return {
            "key": self.first.key,
            "label": self.first.label,
            "unit": self.first.unit,
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "values": self.values,
            "target": str(self.target) if self.target else None,
            "verdict": self.verdict or None,
            "notes": [measurement.note for measurement in self.measurements if measurement.note],
        }


def collected(runs: Iterable[Iterable[Measurement]]) -> list[Figure]:
    """Figures in the order in which their keys came first."""
    by_key: dict[str, list[Measurement]] = {}
    for run in runs:
        for measurement in run:
            by_key.setdefault(measurement.key, []).append(measurement)
    return [Figure(tuple(measurements)) for measurements in by_key.values()]


def shown(value: float) -> str:
    """Three digits at least, and no more than mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def show_table(console: Console, figures: Iterable[Figure]) -> None:
    """One line for each figure."""
    table = Table(title="qpid-ha benchmark")
    for name in ("figure", "median", "unit", "min .. max", "target", "verdict", "note"):
        table.add_column(name, justify="right" if name in ("median", "min .. max") else "left")
    for figure in figures:
        spread = f"{shown(min(figure.values))} .. {shown(max(figure.values))}" if len(figure.values) > 1 else ""
        colour = {"met": "green", "missed": "red"}.get(figure.verdict, "default")
        table.add_row(
            figure.first.label,
            shown(figure.median),
            figure.first.unit,
            spread,
            str(figure.target or ""),
            f"[{colour}]{figure.verdict}[/]",
            figure.typical.note,
        )
    console.print(table)


def write_json(path: Path, machine: Mapping[str, object], figures: Iterable[Figure], failures: list[str]) -> None:
    """The same for programs."""
    content = {
        "machine": dict(machine),
        "figures": [figure.as_json() for figure in figures],
        "failures": failures,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
