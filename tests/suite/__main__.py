"""`./dev test`: what it runs is one of the verbs below; paths go to pytest as they are, and do not come here."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import click

from suite.gate import ROOT, Part, file_of, files_of_the_gate
from suite.reach import FAR, Reach
from suite.runs import PROCESSES, Linting, Runner, Stage, say
from suite.times import cut, expected_s, read_recorded, write_expected

CHANGED_S: Final = 150.0
"""How long `--changed` may be expected to take, linting apart."""
PORTIONS: Final = 2
PORTIONS_OF_ALL: Final = 8
"""Of new seeds in the simulation; a portion takes seconds."""
CI_BOX_S: Final = 25 * 60.0
CI_HUNG_S: Final = 25 * 60.0
"""So long after the box something hangs: a test may take ten minutes (setup.cfg), and run once more alone."""
CI_SHARES: Final = 8
CI_CHANGE: Final = "6 hours ago"
"""Without CHANGE_BASE, what was committed since then is the change that CI looks at."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--all", "is_all", is_flag=True, help="Every test there is, and more new seeds.")
@click.option("--changed", is_flag=False, flag_value="", metavar="[REV]", help="What a change since REV reaches.")
@click.option("--turn", metavar="N/M", help="Share N of M of the long tests.")
@click.option(
    "--ci", "is_ci", is_flag=True, help="The gate, long tests that the change reaches, and a share of the rest."
)
@click.option("--began", type=float, default=None, hidden=True, help="When it was called, as `date +%s` tells it.")
@click.option("--write-times", is_flag=True, hidden=True, help="Make the expected times of the recorded ones.")
@click.pass_context
def main(
    context: click.Context,
    is_all: bool,
    changed: str | None,
    turn: str | None,
    is_ci: bool,
    began: float | None,
    write_times: bool,
) -> None:
    """Without an option: the gate."""
    if sum([is_all, changed is not None, turn is not None, is_ci, write_times]) > 1:
        raise click.UsageError("one of --all, --changed, --turn and --ci at a time")
    if write_times:
        write_expected(read_recorded())
        return
    new_seeds = random.SystemRandom().randrange(10**7, 10**9)
    portions = PORTIONS_OF_ALL if is_all else PORTIONS
    began_s = began or time.time()
    given_up_at = began_s + CI_BOX_S + CI_HUNG_S if is_ci else math.inf
    runner = Runner([*context.args, f"--new-seed-portions={portions}"], new_seeds, given_up_at)
    reach = Reach()
    if turn is not None:
        number, shares = _share(turn)
        runner.run(Stage(f"run share {turn} of the long tests", Part.LONG, cut(reach.test_modules, shares)[number - 1]))
        sys.exit(_conclude(runner))
    linting = Linting()
    if is_all:
        runner.run(Stage("run all tests", Part.ALL, reach.test_modules))
    elif changed is not None:
        _run_changed(runner, reach, changed)
    else:
        runner.run(Stage("run the gate", Part.GATE, files_of_the_gate(reach.test_modules)))
        if is_ci:
            _run_for_ci(runner, reach, began_s + CI_BOX_S)
    sys.exit(_conclude(runner, linting.finish()))


def _share(turn: str) -> tuple[int, int]:
    number, _, shares = turn.partition("/")
    if not (number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares)):
        raise click.UsageError(f"--turn {turn}: it takes N/M, share N of M, such as 3/8")
    return int(number), int(shares)


def _run_changed(runner: Runner, reach: Reach, since: str) -> None:
    """What the change reaches of the gate, the nearest first, as far as time allows; all of the test modules in it."""
    rev = since or ("HEAD" if _git("status", "--porcelain") else "HEAD~1")
    files = _changed_files(rev)
    distances = reach.distances(files)
    own = [file for file in distances if file in files]
    runner.run(Stage("run the test modules of the change", Part.ALL, own))
    chosen, beyond = _as_time_allows([file for file in _of_the_gate(distances) if file not in own])
    runner.run(Stage(f"run what the change since {rev} reaches of the gate", Part.GATE, chosen))
    if beyond:
        say(f"not run, as it is further from the change, and ./dev test has it: {len(beyond)} modules of the gate")


def _of_the_gate(distances: dict[str, int]) -> list[str]:
    """The nearest first."""
    return sorted(files_of_the_gate(distances), key=lambda file: (distances[file], expected_s(file, Part.GATE)))


def _as_time_allows(files: Iterable[str]) -> tuple[list[str], list[str]]:
    chosen: list[str] = []
    beyond: list[str] = []
    left_s = CHANGED_S * PROCESSES
    for file in files:
        left_s -= expected_s(file, Part.GATE)
        (chosen if left_s >= 0 else beyond).append(file)
    return chosen, beyond


def _run_for_ci(runner: Runner, reach: Reach, until: float) -> None:
    """Long tests that the change reaches by imports, then the commit's share of the others."""
    base = _ci_base()
    distances = reach.distances(_changed_files(base))
    near = [file for file in sorted(distances, key=lambda file: distances[file]) if distances[file] < FAR]
    reached = [file for file in near if expected_s(file, Part.LONG) > 0]
    share = int(_git("rev-parse", "HEAD"), 16) % CI_SHARES
    rest = [file for file in cut(reach.test_modules, CI_SHARES)[share] if file not in reached]
    say(f"the change is what came since {base}; the share of this commit: ./dev test --turn {share + 1}/{CI_SHARES}")
    runner.run(Stage("run the long tests that the change reaches", Part.LONG, reached, until))
    runner.run(Stage("run this commit's share of the other long tests", Part.LONG, rest, until))


def _ci_base() -> str:
    """The commit before the change."""
    if base := os.environ.get("CHANGE_BASE"):
        return base
    older = _git("rev-list", "--first-parent", "-1", f"--before={CI_CHANGE}", "HEAD")
    return older or _git("rev-list", "--max-parents=0", "HEAD").split()[0]


def _changed_files(rev: str) -> set[str]:
    """Paths that differ from `rev`, new ones among them."""
    tracked, new = _git("diff", "--name-only", rev), _git("ls-files", "--others", "--exclude-standard")
    return {*tracked.splitlines(), *new.splitlines()}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _conclude(runner: Runner, lint_code: int = 0) -> int:
    """Say what became of all, lint last; returns what to exit with."""
    report = runner.report
    if report.left_out:
        say("LEFT OUT, AS THE TIME WAS OVER:", *sorted(_counted(report.left_out)))
    if report.passed_alone:
        say("FAILED BESIDE OTHER TESTS, PASSED ALONE. Find out why:", *report.passed_alone)
    say("all tests passed" if report.code == 0 else "TESTS FAILED")
    if lint_code != 0:
        say("LINT FAILED: its lines are above")
    return report.code or lint_code


def _counted(node_ids: Sequence[str]) -> list[str]:
    return [f"{file}: {tests} tests" for file, tests in Counter(map(file_of, node_ids)).items()]


if __name__ == "__main__":
    main()
