"""The tests of the gate, `./dev test`: quick, and one for each promise. All others are long.

All of tests/unit; a fixed choice of simulated clusters, and new ones each time; what clients see of one broker, without
the proxied doubles; clusters in this process; and one story with real processes for each promise. None of them starts
Pacemaker, ZooKeeper or etcd. docs/testing.md says what belongs where.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]


class Part(StrEnum):
    """Of all tests."""

    GATE = "gate"
    LONG = "long"
    ALL = "all"


WHOLE: Final = ("tests/unit/",)
"""Directories of which each test is of the gate."""

SERVED: Final[tuple[str, ...]] = tuple(
    f"tests/integration/test_{name}.py"
    for name in (
        "bad_clients", "bad_peers", "browsing", "exchanges_amqp", "management_amqp", "proton_blocking",
        "proton_reactor", "queue_features", "request_response", "rhea", "sasl", "selectors", "tls", "transactions",
    )
)  # fmt: skip
"""Modules whose tests ask for a broker to be `served_by` something (tests/integration/conftest.py). The gate has them
without the doubles that are served by a proxy."""

_INTEGRATION: Final = "tests/integration/test_"
_PIPELINE: Final = "tests/pipeline/test_"
_SIMULATION: Final = "tests/simulation/test_"
CHOSEN: Final[dict[str, tuple[str, ...]]] = {
    "simulated clusters": (
        f"{_SIMULATION}simulation.py",
        f"{_SIMULATION}sets.py::test_clusters_of_many_sets_keep_their_promises",
        f"{_SIMULATION}agents.py::test_clusters_with_agents_keep_their_promises",
        f"{_SIMULATION}proxies.py::test_clusters_of_proxies_keep_their_promises",
        f"{_SIMULATION}groups.py::test_groups_keep_their_promises",
        f"{_SIMULATION}groups.py::test_groups_that_once_broke_a_promise_keep_it",
        f"{_SIMULATION}groups.py::test_a_run_is_the_same_each_time_and_does_what_it_is_there_for",
        f"{_SIMULATION}power_cuts.py::test_the_power_may_go_at_every_write[one-set-0]",
        f"{_SIMULATION}new_seeds.py",
        f"{_SIMULATION}replica_counts.py",
        f"{_SIMULATION}runs.py",
    ),
    "clusters in this process": tuple(
        f"{_INTEGRATION}{name}.py"
        for name in (
            "cluster_control", "frame_stream", "growth_of_sockets", "hosted_sets", "lost_brokers", "peer_channels",
            "replicate_queue",
        )
    ),
    "failover by kill -9": (f"{_INTEGRATION}failover.py::test_kills_of_the_primary_under_load_lose_nothing[1]",),
    "failover by SIGSTOP": (
        f"{_INTEGRATION}failover.py::test_a_paused_primary_is_replaced_under_load_and_rejoins_as_a_new_backup",
    ),
    "switchover": (
        f"{_INTEGRATION}failover.py::test_a_switchover_under_load_loses_nothing_and_the_old_primary_follows",
    ),
    "durable restart": (
        f"{_INTEGRATION}durable_broker.py::test_killed_again_and_again_under_load_it_loses_nothing_that_it_confirmed",
        f"{_INTEGRATION}durable_broker.py::test_on_a_full_disk_everything_waits_and_goes_on_when_there_is_room",
    ),
    "power cut": (
        f"{_INTEGRATION}total_crash.py::test_crashes_of_everybody_lose_nothing_and_nobody_has_to_help[1]",
    ),
    "several brokers on a machine": (
        f"{_INTEGRATION}workers.py::"
        "test_a_worker_that_is_killed_loses_nothing_and_comes_back_and_the_machine_serves_at_one_port",
    ),
    "a proxy over a failover": (
        f"{_INTEGRATION}proxies.py::test_a_killed_primary_is_a_pause_for_clients_of_the_others",
    ),
    "a session over a failover": (
        f"{_INTEGRATION}client_sessions.py::test_killed_brokers_cost_no_message_and_make_none_twice",
    ),
    "a set fails over": (
        f"{_INTEGRATION}resource_sets.py::test_three_sets_work_on_three_brokers_and_one_that_dies_is_replaced_in_each",
    ),
    "other vendors' clients fail over": (
        f"{_INTEGRATION}clients_fail_over.py"
        "::test_a_client_with_all_addresses_in_any_order_finds_the_primary_by_itself[rhea-kill]",
    ),
    "operators' commands": tuple(
        f"{_INTEGRATION}{name}.py" for name in ("cli_against_broker", "cli", "cli_cluster", "store_cli")
    ),
    "who may do what": (f"{_INTEGRATION}acl.py", f"{_INTEGRATION}http_admin.py"),
    "a clean stop": (
        f"{_INTEGRATION}graceful_stop.py::test_clients_that_read_refusals_are_told_and_the_process_ends_with_success",
    ),
    "a start that cannot be": (f"{_INTEGRATION}bad_start.py",),
    "the OCF agent, and a cluster manager that is not there": (
        f"{_INTEGRATION}ocf_agent.py",
        f"{_INTEGRATION}ocf_promotion.py::test_a_candidate_makes_way_for_a_better_one_and_raises_its_score",
    ),
    "rgmanager's scripts": (f"{_INTEGRATION}rgmanager_scripts.py::test_the_life_of_a_broker_in_exit_codes",),
    "qpid-ha-agent run": (
        f"{_INTEGRATION}agent_run.py::test_when_the_primary_is_killed_another_one_takes_over_at_once",
    ),
    "a coordinator keeps what docs/coordinators.md asks of it": (
        f"{_INTEGRATION}conformance.py::test_file_passes_and_again",
    ),
    "the page in Chromium": (
        f"{_INTEGRATION}web_page.py::test_a_queue_is_purged_once_that_is_confirmed",
        f"{_INTEGRATION}web_page.py::test_a_page_sees_a_failover_and_another_one_that_its_broker_is_gone",
    ),
    "what brokers and agents import": (f"{_INTEGRATION}import_cost.py",),
    "rows of a journal": (
        f"{_PIPELINE}journal_rows.py", f"{_PIPELINE}journal_views.py", f"{_PIPELINE}journal_selection.py",
    ),
    "a Spark job over a journal": (f"{_PIPELINE}journal_spark.py::test_a_journal_is_a_table",),
    "a Spark job over live queues": (
        f"{_PIPELINE}amqp_spark.py::test_a_table_becomes_messages_and_messages_a_table",
    ),
    "the benchmark measures": (f"{_INTEGRATION}bench.py::test_only_what_was_asked_for_is_measured",),
}  # fmt: skip
"""What a promise or a choice is called, and its tests: files, or node ids, which stand for all parameters too."""

_PROXIED: Final = re.compile(r"[\[-]proxy[\]-]")


def part_of(node_id: str) -> Part:
    """`GATE` or `LONG`."""
    file = file_of(node_id)
    if file.startswith(WHOLE) or _is_chosen(node_id):
        return Part.GATE
    return Part.GATE if file in SERVED and not _PROXIED.search(node_id) else Part.LONG


def file_of(node_id: str) -> str:
    """The path of its module, from the root of the checkout."""
    return node_id.partition("::")[0]


def _is_chosen(node_id: str) -> bool:
    file, _, rest = node_id.partition("::")
    whole = f"{file}::{rest.partition('[')[0]}"
    return not _IDS.isdisjoint((node_id, whole, file))


_IDS: Final = frozenset(test for tests in CHOSEN.values() for test in tests)


def files_of_the_gate(all_files: Iterable[str]) -> list[str]:
    """Those of `all_files` (test modules) that have tests of the gate."""
    some = {*SERVED, *map(file_of, _IDS)}
    return [file for file in all_files if file.startswith(WHOLE) or file in some]


def without_a_test(node_ids: Iterable[str]) -> set[str]:
    """Entries of the tables above that stand for no test, though their files were collected.

    `node_ids`: all tests of each of those files.
    """
    collected = set(node_ids)
    files = {file_of(node_id) for node_id in collected}
    known = {*collected, *(node_id.partition("[")[0] for node_id in collected), *files}
    return {entry for entry in (*_IDS, *SERVED) if file_of(entry) in files and entry not in known}
