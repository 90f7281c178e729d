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
    "clusters in this process": tuple(
        f"{_INTEGRATION}{name}.py"
        for name in ("cluster_control", "hosted_sets", "lost_brokers", "peer_channels", "replicate_queue")
    ),
    "simulated clusters": (f"{_SIMULATION}simulation.py::test_a_seed_replays_exactly",),
    "what brokers and agents import": (f"{_INTEGRATION}import_cost.py",),
}
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
