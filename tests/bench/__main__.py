"""`python -m bench`: measure, print a table, write JSON."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from proton import ProtonException
from rich.console import Console

from bench import (
    agent_stops,
    attack,
    capacity,
    client_messages,
    crashes,
    delayed,
    durable_sets,
    engine_batches,
    failover,
    full_disks,
    groups,
    idle_stores,
    journals,
    latency,
    live_streams,
    many_sets,
    message_groups,
    metrics,
    module_changes,
    one_at_a_time,
    paging,
    proton_client,
    proxies,
    replication,
    sessions,
    set_failover,
    shared_subscribers,
    store,
    store_files,
    throughput,
    watched,
    workers,
)
from bench.coordinators import COORDINATOR_MEASURES
from bench.figures import Measurement, collected, show_table, write_json
from bench.load_client import BenchError
from bench.machine import facts
from bench.pacemaker import LAB_MEASURES
from bench.scenario import Measure, Scenario
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import ClusterFailed

MEASURES: Mapping[str, Measure] = {
    "enqueue": throughput.measure_enqueue,
    "dequeue": throughput.measure_dequeue,
    "both": throughput.measure_both,
    "latency": latency.measure_latency,
    "memory": capacity.measure_memory,
    "delayed": delayed.measure_delayed,
    "idle": capacity.measure_idle,
    "queues": capacity.measure_queues,
    "connections": capacity.measure_connections,
    "start": capacity.measure_start,
    "proton": proton_client.measure_proton,
    "replicated-enqueue": replication.measure_enqueue,
    "replicated-dequeue": replication.measure_dequeue,
    "replicated-latency": replication.measure_latency,
    "catch-up": replication.measure_catch_up,
    "replay": replication.measure_replay,
    "silent-backup": replication.measure_silent_backup,
    "rejoin": replication.measure_rejoin,
    "promote": failover.measure_promote,
    "promote-queues": failover.measure_queues,
    "kill": failover.measure_kill,
    "pause": failover.measure_pause,
    "sessions": sessions.measure_sessions,
    "metrics": metrics.measure_metrics,
    "watched": watched.measure_watched,
}
STORE_MEASURES: Mapping[str, Measure] = {
    "durable": store.measure_cluster,
    "durable-single": store.measure_single,
    "durable-latency": store.measure_latency,
    "durable-start": store.measure_start,
    "recovery": store_files.measure_recovery,
    "consolidation": store_files.measure_folding,
    "consolidation-cost": store.measure_folding_beside,
    "killed-together": store.measure_crash,
    "total-crash": crashes.measure_crashes,
    "idle-stores": idle_stores.measure_idle,
    "three-sets": many_sets.measure_three,
    "many-sets": many_sets.measure_many,
    "sets-map": many_sets.measure_map,
    "durable-sets": durable_sets.measure_durable_sets,
    "sets-kill": set_failover.measure_kill_primaries,
    "agent-stop": agent_stops.measure_agent_stops,
    "sets-kill-controller": set_failover.measure_kill_controller,
    "full-disk": full_disks.measure_full_disks,
    "proxy": proxies.measure_proxy,
    "workers": workers.measure_workers,
    "groups": groups.measure_groups,
    "client-messages": client_messages.measure_client_messages,
    "message-groups": message_groups.measure_message_groups,
    "shared-subscribers": shared_subscribers.measure_shared_subscribers,
    "paging": paging.measure_paging,
    "replicated-memory": capacity.measure_replicated_memory,
    "one-at-a-time": one_at_a_time.measure_memory,
    "one-at-a-time-durable": one_at_a_time.measure_durable,
    "module-changes": module_changes.measure_module_changes,
    "engine": engine_batches.measure_engines,
}
ATTACK_MEASURES: Mapping[str, Measure] = {"attack": attack.measure_attack}
PIPELINE_MEASURES: Mapping[str, Measure] = {**journals.PIPELINE_MEASURES, **live_streams.LIVE_MEASURES}
ON_DEMAND: Mapping[str, Measure] = {
    **MEASURES, **STORE_MEASURES, **ATTACK_MEASURES, **PIPELINE_MEASURES, **LAB_MEASURES,
    **COORDINATOR_MEASURES,
}  # fmt: skip
"""With --only: those with a store write gigabytes, those of the lab take root and a Pacemaker, those of
coordinators the servers of ZooKeeper or etcd."""
WIDTH_IN_A_FILE = 160


@click.command()
@click.option("--only", multiple=True, type=click.Choice(list(ON_DEMAND)), help="Measure this alone; may be repeated.")
@click.option("--repeat", default=1, type=click.IntRange(1), help="Runs; the table shows medians, and min and max.")
@click.option("--messages", type=click.IntRange(1), help="Messages of each throughput, or queued at a start.")
@click.option("--minutes", type=click.FloatRange(0.05), help="How long the attack lasts.")
@click.option("--quick", is_flag=True, help="Small numbers: shows that everything runs, the figures mean nothing.")
@click.option("--profile", type=click.Path(file_okay=False, path_type=Path), help="Record the broker with py-spy here.")
@click.option(
    "--json", "json_path", default="bench-results.json", type=click.Path(dir_okay=False, path_type=Path),
    help="Where the figures go.",
)  # fmt: skip
def main(
    only: tuple[str, ...],
    repeat: int,
    messages: int | None,
    minutes: float | None,
    quick: bool,
    profile: Path | None,
    json_path: Path,
) -> None:
    """Measure the broker on this machine. Targets are for 2 cores that do nothing else."""
    scenario = dataclasses.replace(Scenario.quick() if quick else Scenario(), profile_directory=profile)
    if messages is not None:
        scenario = dataclasses.replace(scenario, messages=messages, queued_messages=messages)
    if minutes is not None:
        scenario = dataclasses.replace(scenario, attack_s=minutes * 60)
    console, machine = Console(), facts()
    if not console.is_terminal:
        console = Console(width=WIDTH_IN_A_FILE)
    console.print(", ".join(f"{name} {value}" for name, value in machine.items()))
    failures: list[str] = []
    measures = {name: ON_DEMAND[name] for name in only or MEASURES}
    runs = [list(measure_all(console, scenario, measures, failures)) for _ in range(repeat)]
    figures = collected(runs)
    show_table(console, figures)
    write_json(json_path, machine, figures, failures)
    if failures:
        sys.exit(1)


def measure_all(
    console: Console, scenario: Scenario, measures: Mapping[str, Measure], failures: list[str]
) -> Iterator[Measurement]:
    """Each measurement once. One that fails is told and put into `failures`, and the next begins."""
    for name, measure in measures.items():
        try:
            with console.status(f"measuring {name}"):
                yield from measure(scenario)
        except (
            BenchError,
            ClusterFailed,
            ControlFailure,
            OSError,
            ProtonException,
            RuntimeError,
            subprocess.SubprocessError,
        ) as error:
            failures.append("\n".join([f"{name} failed: {error}", *getattr(error, "__notes__", [])]))
            console.print(failures[-1], style="red", markup=False)


if __name__ == "__main__":
    main()
