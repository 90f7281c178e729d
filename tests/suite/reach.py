"""What a change reaches: test modules by way of imports, and by a table for files that nobody imports.

A module reaches whoever imports it, and whoever imports those. What a test starts as a process, or names in a string,
reaches it from far: nearly every process is a broker, so what only starts one says little of what it is about. The same
holds for a `conftest.py`, which imports what some tests of its directory need.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Final

from suite.gate import ROOT

HOMES: Final = (
    "agent",
    "broker",
    "client",
    "config",
    "kernel",
    "pipeline",
    "demo",
    "packaging",
    "tests/support",
    "tests",
)
"""Where imports are looked up, as `pythonpath` in setup.cfg."""
TESTS: Final = ("tests/unit", "tests/simulation", "tests/integration", "tests/pipeline", "tests/lab")

NEAR: Final = 1
FAR: Final = 1000
"""Steps that a reach by a process counts for: more than any chain of imports has."""

EVERYTHING: Final = "tests"
READ: Final[Mapping[str, tuple[str, ...]]] = {
    "LICENSE": (),
    "*/LICENSE": (),
    "*.gitignore": (),
    "*/py.typed": ("tests/unit/test_packaging.py",),
    "README.md": ("tests/unit/test_typed_pages.py", "tests/unit/test_links.py"),
    "vagrant/README.md": ("tests/unit/test_typed_pages.py", "tests/unit/test_links.py"),
    "tests/*/README.md": (),
    "agent/*": ("tests/unit/test_packaging.py",),
    "broker/*/page/*": ("tests/integration/test_web_page.py", "tests/integration/test_page_groups.py",
                        "tests/integration/test_page_proxies.py", "tests/unit/test_page*.py",
                        "tests/unit/test_http*.py"),
    "client/*": ("tests/unit/test_packaging.py", "tests/integration/test_client_wheel.py"),
    "pipeline/*": ("tests/unit/test_packaging.py", "tests/pipeline/test_slim_wheel.py",
                   "tests/pipeline/test_session.py"),
    "kernel/*": ("tests/unit/test_packaging.py", "tests/unit/test_kernel.py"),
    "config/*": ("tests/unit/test_packaging.py",),
    "contrib/*": ("tests/integration/test_contrib_monitoring.py",),
    "dev": ("tests/unit/test_suite.py",),
    ".ci/run": ("tests/unit/test_suite.py",),
    "docs/examples/*": ("tests/integration/test_client_wheel.py", "tests/pipeline/test_notebook.py"),
    "docs/images/*": (),
    "docs/pipeline.md": ("tests/pipeline/test_pipeline_doc.py", "tests/unit"),
    "docs/pacemaker.md": ("tests/integration/test_pacemaker_doc.py", "tests/unit", "tests/lab/test_configurations.py"),
    "docs/monitoring.md": ("tests/unit", "tests/integration/test_http_fuzz.py"),
    "docs/*": ("tests/unit",),
    "ocf/*": ("tests/integration/test_ocf*.py", "tests/integration/test_provisioning.py", "tests/unit/test_ocf*.py",
              "tests/lab"),
    "packaging/*": ("tests/integration/test_debian_package.py", "tests/integration/test_provisioning.py",
                    "tests/unit/test_kubernetes_files.py", "tests/unit/test_packaging.py"),
    "rgmanager/*": ("tests/integration/test_rgmanager*.py", "tests/unit/test_rgmanager*.py"),
    "systemd/*": ("tests/integration/test_provisioning.py", "tests/integration/test_debian_package.py"),
    "vagrant/*": ("tests/integration/test_provisioning.py",),
    "pyproject.toml": ("tests/unit/test_packaging.py",),
    "ruff.toml": (),
    "setup.cfg": (EVERYTHING,),
    "setup.py": ("tests/unit/test_packaging.py", "tests/unit/test_kernel.py"),
    "tests/golden/*": ("tests/unit",),
    "tests/integration/cpp/*": ("tests/integration/test_numbered_messages.py",),
    "tests/integration/node/*": ("tests/integration/test_rhea.py",),
    "tests/integration/standalone_stores/*": ("tests/integration/test_standalone_store.py",),
    "tests/lab/netns/*": ("tests/lab",),
    "tests/suite/*": ("tests/unit/test_suite.py",),
    "tests/unit/*": ("tests/unit",),
}  # fmt: skip
"""Files that are read rather than imported, by a pattern of their paths, and the test modules or directories that read
them. The first pattern counts that fits."""

COMMANDS: Final[Mapping[str, str]] = {
    "qpidd": "qpid_ha_broker.server.main",
    "qpid-ha": "qpid_ha_agent.cli.admin",
    "qpid-ha-agent": "qpid_ha_agent.cli.quick",
    "qpid-ha-pipeline": "qpid_ha_pipeline.main",
}
"""Commands of setup.cfg, and the modules in which they begin."""
_NAMED: Final = re.compile(r"\bqpid_ha_\w+(?:\.\w+)+")
_COMMAND: Final = re.compile(rf"""["']({"|".join(COMMANDS)})["']""")
_IMPORT: Final = re.compile(r"^[ \t]*(?:from (\.*)([\w.]*) import (\([^)]*\)|.*)|import (.*))", re.MULTILINE)
_FOR_TYPE_CHECKERS: Final = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)*", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")
_MODULE: Final = re.compile(r"[\w.]+")


class Reach:
    """The imports of one checkout, read when they are asked for."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root

    @cached_property
    def sources(self) -> frozenset[str]:
        """Each Python file, by its path from the root."""
        places = {home.partition("/")[0] for home in HOMES}
        paths = (path for place in places for path in (self._root / place).rglob("*.py"))
        return frozenset(str(path.relative_to(self._root)) for path in paths if "node_modules" not in path.parts)

    @cached_property
    def test_modules(self) -> list[str]:
        """All of them, in the order of `TESTS`."""
        return sorted(
            (path for path in self.sources if path.startswith(TESTS) and Path(path).name.startswith("test_")),
            key=lambda path: (next(place for place, home in enumerate(TESTS) if path.startswith(f"{home}/")), path),
        )

    @cached_property
    def _modules(self) -> dict[str, str]:
        """Paths by the names under which they are imported."""
        names = {}
        for path in self.sources:
            for home in HOMES:
                if path.startswith(f"{home}/"):
                    parts = path.removeprefix(f"{home}/").removesuffix(".py").split("/")
                    names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
        return names

    @cached_property
    def _importers(self) -> dict[str, dict[str, int]]:
        """Who imports or names a file, and how far it is to there."""
        importers: dict[str, dict[str, int]] = defaultdict(dict)
        for path in self.sources:
            for name, steps in self._uses(path):
                if name in self._modules and self._modules[name] != path:
                    used = importers[self._modules[name]]
                    used[path] = min(steps, used.get(path, steps))
        for conftest in (path for path in self.sources if path.endswith("/conftest.py")):
            for path in self.test_modules:
                if path.startswith(conftest.removesuffix("conftest.py")):
                    importers[conftest][path] = FAR
        return importers

    def _uses(self, path: str) -> Iterator[tuple[str, int]]:
        """Names that may be modules, and how far it is to them.

        The text is searched: parsing it takes ten times longer.
        """
        package = self._package_of(path)
        text = _FOR_TYPE_CHECKERS.sub("", (self._root / path).read_text(encoding="utf-8"))
        for dots, module, names, plain in _IMPORT.findall(text):
            above = package[: len(package) - len(dots) + 1] if dots else []
            base = ".".join([*above, *([module] if module else [])])
            imported = [f"{base}.{name}" for name in _WORD.findall(names)] if base else _MODULE.findall(plain)
            for name in [base, *imported]:
                yield from ((within, NEAR) for within in _with_packages(name))
        yield from ((name, FAR) for name in _NAMED.findall(text))
        yield from ((COMMANDS[command], FAR) for command in _COMMAND.findall(text))

    @staticmethod
    def _package_of(path: str) -> list[str]:
        home = next(home for home in HOMES if path.startswith(f"{home}/"))
        return path.removeprefix(f"{home}/").split("/")[:-1]

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Test modules that these files reach, and in how many steps: below `FAR` by imports alone."""
        distances: dict[str, int] = {}
        ahead = [(steps, path) for path in changed for steps, path in self._starts(path)]
        heapq.heapify(ahead)
        while ahead:
            steps, path = heapq.heappop(ahead)
            if path in distances:
                continue
            distances[path] = steps
            for importer, further in self._importers.get(path, {}).items():
                heapq.heappush(ahead, (steps + further, importer))
        return {path: distances[path] for path in self.test_modules if path in distances}

    def _starts(self, path: str) -> list[tuple[int, str]]:
        if path.endswith(".py") and not path.startswith("docs/"):
            return [(0, path)] if path in self.sources else []
        return [
            (NEAR, test)
            for test in self.test_modules
            if any(_is_below(test, place) for place in readers_of(path) or ())
        ]


def readers_of(path: str) -> tuple[str, ...] | None:
    """The row of `READ` for a file; None: there is none."""
    return next((readers for pattern, readers in READ.items() if fnmatchcase(path, pattern)), None)


def _is_below(test: str, place: str) -> bool:
    return test.startswith(f"{place}/") or fnmatchcase(test, place)


def _with_packages(name: str) -> list[str]:
    """A module and the packages that it is in: importing it imports those."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
