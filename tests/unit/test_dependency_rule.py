"""Arrows between packages point one way, and the pure ones reach for nothing outside their arguments.

Imports are read from the source, not by importing: one inside a function or under TYPE_CHECKING is an arrow too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVENTS, MODEL = "qpid_ha_broker.events", "qpid_ha_broker.model"
CLUSTER = "qpid_ha_broker.cluster"
MAP = "qpid_ha_broker.cluster_map"  # state of the set `default`
METRICS = "qpid_ha_broker.metrics"
STATES = "qpid_ha_broker.ha.states"  # what a broker can be, for those who ask whether it is that
GROUP = "qpid_ha_broker.group"
HA, COORDINATION = "qpid_ha_broker.ha", "qpid_ha_broker.coordination"
STORE = "qpid_ha_broker.store"
HISTORY = ("qpid_ha_broker.ha.history", "qpid_ha_broker.ha.frames")  # where two logs part, and of what that is said
RECORD = "qpid_ha_broker.ha.cluster_record"  # one value: what a coordinator remembers, to judge stores beside it
VERSION = "qpid_ha_broker.__version__"
DEFINITIONS = "qpid_ha_broker.definitions"  # what is set up in a cluster, as a file
DIAGNOSIS = "qpid_ha_broker.diagnosis"  # what is wrong, by what is told
AMQP, SERVER = "qpid_ha_broker.amqp", "qpid_ha_broker.server"
AGENT = "qpid_ha_agent"
CLIENT, CLIENT_CORE = "qpid_ha_client", "qpid_ha_client.core"
PIPELINE = "qpid_ha_pipeline"
WIRE = "qpid_ha_broker.amqp.wire"
SECTIONS = (f"{WIRE}.sections", f"{WIRE}.conditions")  # what is in a message, without links
SHOWN = (f"{WIRE}.values", f"{WIRE}.message_facts")  # ... as people and JSON have it
CLIENT_END = (f"{WIRE}.engine", f"{WIRE}.values", f"{WIRE}.conditions")
CONFIG = "qpid_ha_config"
VERSION = "qpid_ha_broker.__version__"  # of the release, whichever distribution it came with
KERNEL = "qpid_ha_kernel"  # C, or the word that there is none
DEMO = "qpid_ha_demo"  # is not installed
ARGUMENTS = (f"{MODEL}.queues.queue_arguments", f"{MODEL}.errors")  # what can be said of a queue
ACCESS = "qpid_ha_broker.access"  # what a rule of an acl is, and what a limit
FOREIGN = f"{MODEL}.queues.foreign_arguments"  # what other brokers call that
SET_NAMES = "qpid_ha_broker.events.set_names"  # how a resource set may be called

# A package may import itself and these of ours. A package without a row here is an error.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "qpid_ha_broker": (),
    EVENTS: (),
    MAP: (EVENTS,),
    CLUSTER: (EVENTS, MAP, MODEL),
    MODEL: (EVENTS, MAP),
    ACCESS: (EVENTS, MODEL),
    AMQP: (EVENTS, MODEL, ACCESS, KERNEL),
    HA: (EVENTS, MODEL, MAP),
    GROUP: (EVENTS, MODEL, HA),
    CONFIG: (*ARGUMENTS, SET_NAMES, ACCESS),
    METRICS: (EVENTS, MODEL, STATES),
    COORDINATION: (EVENTS, HA, CONFIG),
    STORE: (EVENTS, MODEL, *HISTORY, RECORD),
    DEFINITIONS: (EVENTS, CONFIG, FOREIGN),
    DIAGNOSIS: (EVENTS, HA, COORDINATION, STORE, CONFIG),
    SERVER: (
        EVENTS,
        MAP,
        CLUSTER,
        MODEL,
        ACCESS,
        HA,
        GROUP,
        METRICS,
        AMQP,
        COORDINATION,
        STORE,
        DIAGNOSIS,
        DEFINITIONS,
        CONFIG,
        KERNEL,
        VERSION,
    ),
    CLIENT: (CLIENT_CORE,),
    CLIENT_CORE: (),
    KERNEL: (),
    AGENT: (EVENTS, MODEL, HA, COORDINATION, STORE, DEFINITIONS, DIAGNOSIS, *SECTIONS, *SHOWN, CONFIG, VERSION),
    PIPELINE: (EVENTS, MODEL, STORE, *HISTORY, *SECTIONS, *CLIENT_END, CONFIG, KERNEL, VERSION),
}

# The parts of a package, each of which may import those before it.
PARTS: dict[str, tuple[str, ...]] = {
    MODEL: (
        "errors",
        "message_reader",
        "budget",
        "work",
        "logs",
        "queues",
        "exchanges",
        "transactions",
        "replication",
        "sessions",
        "sets",
        "paging",
        "commands",
    ),
    AMQP: ("wire", "selectors", "nodes", "relaying", "connections", "links"),
    SERVER: (
        "runtime",
        "control",
        "stores",
        "peers",
        "clients",
        "controller",
        "proxies",
        "sets",
        "broker",
        "http",
        "main",
    ),
}

PURE = (EVENTS, MAP, CLUSTER, MODEL, ACCESS, HA, GROUP, METRICS, AMQP, CLIENT_CORE)
# fmt: off
IMPURE = frozenset({
    "argparse", "asyncio", "click", "configparser", "logging", "os", "pathlib", "random", "secrets", "selectors",
    "socket", "ssl", "subprocess", "threading", "time", "uuid", "uvloop", "yaml",
})
# fmt: on

# Proton's compiled engine is reached through three modules, so that what its calls cost and own is known in one place.
ENGINE_BINDINGS = frozenset({"cproton", "cproton_ffi"})
ENGINE = tuple(f"{WIRE}.{name}" for name in ("engine", "batches", "peer_input"))


def imports(source: str, module: str, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of everything that `source`, living at `module`, imports."""
    here = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            for name in node.names:
                yield node.lineno, f"{origin}.{name.name}"


@cache
def imports_of(path: Path, module: str, is_package: bool) -> tuple[tuple[int, str], ...]:
    """The same of a file, which is read once for all rules."""
    return tuple(imports(path.read_text(encoding="utf-8"), module, is_package))


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def package_of(module: str) -> str:
    """The unit the rule speaks of: the agent as a whole, the broker package by package."""
    parts = module.split(".")
    return ".".join(parts[:2]) if ".".join(parts[:2]) in MAY_IMPORT else parts[0]


def why_forbidden(module: str, package: str, name: str) -> str | None:
    """What is wrong with `module`, which belongs to `package`, importing `name`; None when it may."""
    top = name.split(".")[0]
    if top in ("qpid_ha_broker", "qpid_ha_agent", "qpid_ha_client", "qpid_ha_config", KERNEL, "qpid_ha_pipeline", DEMO):
        reachable = MAY_IMPORT[package] if package == "qpid_ha_broker" else (package, *MAY_IMPORT[package])
        if not any(is_within(name, allowed) for allowed in reachable):
            return f"{package} may not import {name}"
    if package in PURE and top in IMPURE:
        return f"{package} is pure and may not import {name}"
    if top in ENGINE_BINDINGS and module not in ENGINE:
        return f"only {' and '.join(ENGINE)} may import {name}"
    return None


def violations(source: str, module: str, is_package: bool = False) -> list[str]:
    return wrong_imports(imports(source, module, is_package), module, is_package)


def wrong_imports(arrows: Iterable[tuple[int, str]], module: str, is_package: bool) -> list[str]:
    package = package_of(module)
    if package == "qpid_ha_broker" and not (is_package and module == package):
        return [f"{module}: its package has no row in MAY_IMPORT"]
    return [
        f"{module}:{line}: {reason}"
        for line, name in arrows
        if (reason := why_forbidden(module, package, name)) is not None
    ]


def source_files() -> Iterator[tuple[Path, str, bool]]:
    """Path, dotted module name and whether it is a package, for each file that is packaged."""
    for top in (ROOT / "agent", ROOT / "broker", ROOT / "client", ROOT / "config", ROOT / "kernel", ROOT / "pipeline"):
        for path in sorted(top.rglob("*.py")):
            parts = path.relative_to(top).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            yield path, ".".join(parts[:-1] if is_package else parts), is_package


def test_imports_follow_the_rule() -> None:
    found = [
        violation
        for path, module, is_package in source_files()
        for violation in wrong_imports(imports_of(path, module, is_package), module, is_package)
    ]
    assert found == []


def part_of(name: str, package: str) -> str:
    """Of the package, in which `name` is; empty: in none."""
    rest = name.removeprefix(f"{package}.").split(".")
    return rest[0] if is_within(name, package) and rest[0] in PARTS[package] else ""


@pytest.mark.parametrize("package", PARTS)
def test_a_part_of_a_package_imports_none_behind_it(package: str) -> None:
    parts, seen, wrong = PARTS[package], set(), []
    for path, module, is_package in source_files():
        if not (part := part_of(module, package)):
            continue
        seen.add(part)
        for line, name in imports_of(path, module, is_package):
            imported = part_of(name, package)
            if imported and parts.index(imported) > parts.index(part):
                wrong.append(f"{module}:{line}: {part} may not import {name}")
    assert wrong == []
    assert seen == set(parts)


def test_the_rule_is_read_from_real_files() -> None:
    """An empty walk would make the rule hold for nothing."""
    modules = {module for _, module, _ in source_files()}
    assert modules >= set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("qpid_ha_broker.events.codec", "from qpid_ha_broker.model import queue"),
        ("qpid_ha_agent.cli.admin", "from qpid_ha_demo.ledger import Ledger"),
        ("qpid_ha_broker.events.codec", "from ..model.queue import Queue"),
        ("qpid_ha_broker.events.codec", "from .. import model"),
        ("qpid_ha_broker.events.codec", "import qpid_ha_broker.server.main as m"),
        ("qpid_ha_broker.events.codec", "import qpid_ha_broker"),
        ("qpid_ha_broker.model.queue", "from qpid_ha_broker import amqp"),
        ("qpid_ha_broker.model.queue", "def now() -> float:\n    import time\n    return time.time()"),
        ("qpid_ha_broker.model.queue", "if TYPE_CHECKING:\n    from asyncio.events import AbstractEventLoop"),
        ("qpid_ha_broker.model.queue", "import heapq, random"),
        ("qpid_ha_broker.amqp.link", "from os import path"),
        ("qpid_ha_broker.amqp.link", "from ..server import limits"),
        ("qpid_ha_broker.amqp.link", "from cproton_ffi import lib"),
        ("qpid_ha_broker.store.journal", "from qpid_ha_broker.ha.member import Member"),
        ("qpid_ha_broker.ha.member", "from qpid_ha_broker.store import journal"),
        ("qpid_ha_broker.server.main", "import cproton_ffi"),
        ("qpid_ha_broker.server.main", "import qpid_ha_agent.control"),
        ("qpid_ha_agent.control", "from qpid_ha_broker.server.broker import Broker"),
        ("qpid_ha_agent.cli.admin", "import qpid_ha_broker.amqp"),
        ("qpid_ha_agent.cli.admin", "import qpid_ha_pipeline.main"),
        ("qpid_ha_pipeline.main", "import qpid_ha_agent.control"),
        ("qpid_ha_pipeline.main", "from qpid_ha_broker.amqp import connection"),
        ("qpid_ha_broker.newcomer.module", "import heapq"),
        ("qpid_ha_broker.stray_module", "import heapq"),
        ("qpid_ha_client.blocking", "from qpid_ha_broker.amqp import values"),
        ("qpid_ha_client.blocking", "from qpid_ha_config.addresses import Address"),
        ("qpid_ha_client.core.publishing", "import time"),
        ("qpid_ha_client.core.publishing", "from qpid_ha_client import blocking"),
        ("qpid_ha_broker.server.main", "from qpid_ha_client import blocking"),
        ("qpid_ha_config.settings", "from qpid_ha_broker.server import broker"),
        ("qpid_ha_config.settings", "from qpid_ha_broker.model import state"),
        ("qpid_ha_broker.model.queue", "from qpid_ha_config import settings"),
    ],
)
def test_a_planted_violation_is_caught(module: str, source: str) -> None:
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("qpid_ha_broker.events.codec", "import struct\nfrom .types import Enqueued\nfrom . import types"),
        ("qpid_ha_broker.model.queue", "from ..events.types import Enqueued\nfrom qpid_ha_broker import events"),
        ("qpid_ha_broker.model.queue", "import timeit_like_name, ossify"),
        ("qpid_ha_broker.amqp.wire.engine", "from cproton_ffi import ffi, lib\nfrom qpid_ha_broker.model import queue"),
        ("qpid_ha_broker.server.main", "import asyncio\nfrom ..amqp.engine import Engine"),
        (
            "qpid_ha_agent.cli.admin",
            "import click\nfrom ..control import call\nfrom qpid_ha_broker.events import types",
        ),
    ],
)
def test_what_the_rule_allows_is_left_alone(module: str, source: str) -> None:
    assert violations(source, module) == []


def test_the_root_package_reaches_for_none_of_its_own() -> None:
    """Otherwise whoever imports `events` would load the server with it."""
    assert len(violations("from .server import main", "qpid_ha_broker", is_package=True)) == 1
    assert violations("from importlib import metadata", "qpid_ha_broker", is_package=True) == []


def test_a_package_resolves_its_relative_imports_from_itself() -> None:
    source = "from .types import Enqueued\nfrom ..model import queue"
    assert list(imports(source, "qpid_ha_broker.events", is_package=True)) == [
        (1, "qpid_ha_broker.events.types.Enqueued"),
        (2, "qpid_ha_broker.model.queue"),
    ]
