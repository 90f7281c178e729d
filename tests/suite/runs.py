"""Stages of a run: a part of some modules, beside each other, then what runs alone; and what failed once more."""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from suite.gate import ROOT, Part, file_of
from suite.times import expected_s

PROCESSES: Final = 2
PROCESSES_BESIDE_LABS: Final = 4
"""Two of them make a lab each, which waits for its cluster half of the time."""
FAILED_BY_CHANCE: Final = 10
"""With processes by the hundred on two processors, some tests may be starved beyond any limit that they have. Up to so
many that failed run once more, alone: what fails again is broken, what does not is named at the end, for somebody to
find out why."""
NO_TESTS: Final = 5
"""What pytest exits with when it has run none."""
HUNG: Final = 6
"""What a run of pytest counts as that had to be ended; pytest itself exits with 0 to 5."""
FAREWELL_S: Final = 60.0
"""How long pytest may take to say what it knows when it is interrupted."""


@dataclass(frozen=True)
class Stage:
    """Tests of `part` in `files`, which are paths from the root. A title begins with a verb."""

    title: str
    part: Part
    files: Sequence[str]
    until: float | None = None
    """When no further test begins, as `time.time()` tells it; None: all of them run."""


@dataclass
class Report:
    """What became of the stages so far."""

    code: int = 0
    """What the whole run exits with."""
    passed_alone: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class Runner:
    """Runs stages one after the other. `options` go to pytest as they are.

    What still runs at `given_up_at`, as `time.time()` tells it, hangs although each test has its limit (setup.cfg), and
    is ended.
    """

    def __init__(
        self, options: Sequence[str] = (), new_seeds: int | None = None, given_up_at: float = math.inf
    ) -> None:
        self._options = [*options, *([] if new_seeds is None else [f"--new-seeds={new_seeds}"])]
        self._given_up_at = given_up_at
        self._slowness = 1.0
        self.report = Report()

    def run(self, stage: Stage) -> None:
        """A stage without files is over at once."""
        if not stage.files:
            return
        say(f"{stage.title}: {len(stage.files)} modules")
        began_s, processor_s = time.monotonic(), _processor_s()
        processes = PROCESSES_BESIDE_LABS if any(file.startswith("tests/lab/") for file in stage.files) else PROCESSES
        self._run(stage, stage.files, ["-n", str(processes), "-m", "not alone"])
        if alone := [file for file in stage.files if _has_tests_that_run_alone(file)]:
            self._run(stage, alone, ["-m", "alone"])
        took_s = time.monotonic() - began_s
        say(f"{stage.title}: took {took_s:.0f} s, and {_processor_s() - processor_s:.0f} s of processors")
        if stage.part is Part.GATE:
            wanted_s = sum(expected_s(file, Part.GATE) for file in stage.files) / processes
            self._slowness = max(1.0, took_s / max(wanted_s, 1.0))

    def _run(self, stage: Stage, files: Sequence[str], options: Sequence[str]) -> None:
        box = []
        if stage.until is not None:
            box = [f"--until={stage.until}", f"--slowness={self._slowness:.2f}", "--no-loadscope-reorder"]
        code, failed, left_out = self._pytest(stage.part, [*box, "--durations=10", *options, *files])
        self.report.left_out += left_out
        if code == 1 and 0 < len(failed) <= FAILED_BY_CHANCE:
            code = self._again(stage.part, failed)
        if code != NO_TESTS:
            self.report.code = self.report.code or code

    def _again(self, part: Part, failed: Sequence[str]) -> int:
        """Run them alone: the exit code of that, and 1 where none of them was found again."""
        say("these failed, and run once more, with nothing beside them:", *failed)
        files = sorted({file_of(node_id) for node_id in failed})
        code, again, _ = self._pytest(part, ["--last-failed", "--last-failed-no-failures=none", *files])
        if code == NO_TESTS:
            return 1
        self.report.passed_alone += [node_id for node_id in failed if node_id not in again]
        return code

    def _pytest(self, part: Part, arguments: Sequence[str]) -> tuple[int, list[str], list[str]]:
        """Its exit code, what failed, and what was left out."""
        with tempfile.TemporaryDirectory(prefix="qpid-ha-suite-") as directory:
            results = Path(directory) / "results.json"
            command = [sys.executable, "-m", "pytest", f"--part={part}", f"--results={results}"]
            process = subprocess.Popen([*command, *arguments, *self._options], cwd=ROOT)
            code = self._end_of(process)
            outcome = json.loads(results.read_text(encoding="utf-8")) if results.exists() else {}
        return code, outcome.get("failed", []), outcome.get("left_out", [])

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code."""
        left_s = None if self._given_up_at == math.inf else max(0.0, self._given_up_at - time.time())
        with suppress(subprocess.TimeoutExpired):
            return process.wait(left_s)
        say("IT HANGS, AND IS ENDED")
        process.send_signal(signal.SIGINT)
        try:
            process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return HUNG


def _processor_s() -> float:
    """Of all processes that this one has started and seen the end of, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _has_tests_that_run_alone(file: str) -> bool:
    return "mark.alone(" in (ROOT / file).read_text(encoding="utf-8")


class Linting:
    """`./dev lint` beside the tests, which come first; what it says is shown at the end."""

    def __init__(self) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 # `finish` closes it
        command = ["nice", "-n", "10", str(ROOT / "dev"), "lint"]
        self._process = subprocess.Popen(
            command, stdout=self._output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )

    def finish(self) -> int:
        """Wait for it, show what it said, and give its exit code."""
        code = self._process.wait()
        self._output.seek(0)
        sys.stderr.flush()
        print(self._output.read().decode(errors="replace"), end="", flush=True)
        self._output.close()
        say("lint: ok" if code == 0 else "LINT FAILED: see above")
        return code


def say(*lines: str) -> None:
    """To whoever reads the run."""
    sys.stdout.flush()
    print("test: " + "\n    ".join(lines), file=sys.stderr, flush=True)
