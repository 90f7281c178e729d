"""`python -m simulation`: run clusters on a virtual clock, and show what broke a promise."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

import click

from simulation.brokers.world import BrokersOutcome
from simulation.core.cluster import Outcome
from simulation.runs import (
    DRAWS,
    SHARES,
    AnyOutcome,
    AnyPlan,
    collect_garbage_rarely,
    kind_of,
    kind_of_plan,
    replay_command,
    run_drawn,
    run_many,
    run_plan,
)
from simulation.sets.plan import SetsPlan
from simulation.shrink import shrink

SHOWN_FAILURES = 3


def read_weights(_: click.Context, __: click.Parameter, text: str) -> dict[str, int]:
    """`KIND=N,KIND=N`: how often each kind of cluster is drawn; those that are not named never are."""
    weights = dict.fromkeys(DRAWS, 0)
    for part in map(str.strip, text.split(",")):
        kind, _equals, number = part.partition("=")
        if kind not in weights:
            raise click.BadParameter(f"{kind!r} is none of {', '.join(weights)}")
        if weights[kind]:
            raise click.BadParameter(f"{kind} comes twice")
        if not (number.isascii() and number.isdecimal()):
            raise click.BadParameter(f"{part!r} should be {kind}=N")
        weights[kind] = int(number)
    if not any(weights.values()):
        raise click.BadParameter("at least one kind has to be drawn")
    return weights


@click.command()
@click.option("--seeds", default=100, show_default=True, type=click.IntRange(1), help="How many clusters.")
@click.option("--seed", default=None, type=int, help="The first seed; without --seeds, this one alone.")
@click.option("--only", type=click.Choice(list(DRAWS)), help="Clusters of this kind, one for each seed.")
@click.option(
    "--weights", callback=read_weights, metavar="KIND=N,...", show_default=True,
    default=",".join(f"{kind}={share}" for kind, share in SHARES.items()),
    help="How often each kind is drawn, in relation to the others.",
)  # fmt: skip
@click.option("--trace", is_flag=True, help="Show everything that happened (in one run; with many, of the failures).")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1), help="Processes.")
@click.option("--shrink/--no-shrink", "wants_shrinking", default=True, help="Look for the faults that matter.")
@click.pass_context
def main(
    context: click.Context,
    seeds: int,
    seed: int | None,
    only: str | None,
    weights: dict[str, int],
    trace: bool,
    jobs: int,
    wants_shrinking: bool,
) -> None:
    """Simulate whole clusters under seeded faults, and check that every promise was kept."""
    if only is not None and context.get_parameter_source("weights") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--only and --weights both say which kinds are drawn: give one of them")
    is_single = seed is not None and context.get_parameter_source("seeds") is click.core.ParameterSource.DEFAULT
    first = seed if seed is not None else 0
    count = 1 if is_single else seeds
    collect_garbage_rarely()
    began_s = time.monotonic()
    drawn = [(number, only or kind_of(number, weights)) for number in range(first, first + count)]
    outcomes = _run_with_progress(drawn, 1 if is_single else jobs, began_s)
    failures = [outcome for outcome in outcomes if outcome.problem]
    for outcome in failures[:SHOWN_FAILURES]:
        _show_failure(outcome, wants_shrinking, trace)
    if is_single and trace and not failures:
        click.echo("\n".join(run_plan(outcomes[0].plan, with_trace=True).trace))
    _show_summary(outcomes, failures, time.monotonic() - began_s)
    sys.exit(1 if failures else 0)


def _run_with_progress(drawn: Sequence[tuple[int, str]], jobs: int, began_s: float) -> list[AnyOutcome]:
    """`drawn`: seeds, each with its kind."""
    outcomes = []
    for outcome in run_many(run_drawn, drawn, jobs):
        outcomes.append(outcome)
        if outcome.problem:
            click.echo(f"seed {outcome.plan.seed} FAILED: {outcome.problem.strip().splitlines()[-1][:300]}")
        if len(outcomes) % 500 == 0:
            click.echo(f"{len(outcomes)} of {len(drawn)} clusters, {time.monotonic() - began_s:.0f} s", err=True)
    return outcomes


def _fails_like(problem: str, plan: AnyPlan) -> bool:
    found = run_plan(plan).problem
    return bool(found) and _kind(found) == _kind(problem)


def _kind(problem: str) -> str:
    """Problems of one kind: promises broken in the same words, or exceptions of one sort."""
    last = problem.strip().splitlines()[-1]
    return re.sub(r"\d+", "", last.split(":")[0].split("(")[0])


def _shrunk(outcome: AnyOutcome) -> AnyPlan:
    fails = partial(_fails_like, outcome.problem)
    if isinstance(outcome, BrokersOutcome):
        return shrink(outcome.plan, fails)
    return shrink(outcome.plan, fails)


def _show_failure(outcome: AnyOutcome, wants_shrinking: bool, trace: bool) -> None:
    plan = _shrunk(outcome) if wants_shrinking else outcome.plan
    again = run_plan(plan, with_trace=True)
    click.echo(f"\nseed {plan.seed}: {outcome.problem}")
    if wants_shrinking:
        click.echo(f"with {len(plan.faults)} of {len(outcome.plan.faults)} faults it still fails: {again.problem}")
    click.echo(plan.describe())
    if trace:
        click.echo("\n".join(again.trace))
    click.echo(f"replay: {replay_command(plan)}")


def _show_summary(all_outcomes: list[AnyOutcome], failures: list[AnyOutcome], took_s: float) -> None:
    outcomes = [outcome for outcome in all_outcomes if isinstance(outcome, Outcome)]
    of_real = [outcome for outcome in all_outcomes if isinstance(outcome, BrokersOutcome)]
    plans = [outcome.plan for outcome in of_real if isinstance(outcome.plan, SetsPlan)]
    of_sets = [outcome for outcome in of_real if isinstance(outcome.plan, SetsPlan)]
    counts = Counter(kind_of_plan(outcome.plan) for outcome in all_outcomes)
    drawn = ", ".join(f"{counts[kind]} {kind}" for kind in DRAWS)
    rate = len(all_outcomes) / took_s
    click.echo(f"{len(all_outcomes)} clusters ({drawn}) in {took_s:.1f} s ({rate:.1f}/s): {len(failures)} failed")
    if outcomes:
        click.echo(
            f"{len(outcomes)} of one set: {sum(outcome.confirmed for outcome in outcomes)} messages confirmed,"
            f" {sum(outcome.delivered for outcome in outcomes)} delivered,"
            f" {sum(outcome.duplicates for outcome in outcomes)} duplicates dropped,"
            f" {sum(outcome.generations for outcome in outcomes)} generations,"
            f" {sum(bool(outcome.forced) for outcome in outcomes)} clusters needed an operator,"
            f" {sum(len(outcome.excuses) for outcome in outcomes)} losses excused"
        )
    if of_sets:
        click.echo(
            f"{len(of_sets)} of many: {sum(len(plan.wanted) for plan in plans)} sets and more that were made on the"
            f" way, {sum(outcome.confirmed for outcome in of_sets)} messages confirmed,"
            f" {sum(outcome.generations for outcome in of_sets)} generations"
        )
    of_proxies = [outcome for outcome in of_real if not isinstance(outcome.plan, SetsPlan)]
    if of_proxies:
        click.echo(
            f"{len(of_proxies)} of real brokers:"
            f" {sum(outcome.confirmed for outcome in of_proxies)} messages confirmed,"
            f" {sum(outcome.handed_out for outcome in of_proxies)} delivered,"
            f" {sum(outcome.generations for outcome in of_proxies)} generations; again came"
            f" {sum(outcome.ended for outcome in of_proxies)} of links that had ended, and"
            f" {sum(outcome.late for outcome in of_proxies)} of proxies that were late;"
            f" {sum(outcome.plan.sessions for outcome in of_proxies)} clients with sessions in"
            f" {sum(outcome.plan.sessions > 0 for outcome in of_proxies)} clusters came back"
            f" {sum(outcome.resumed for outcome in of_proxies)} times, and"
            f" {sum(outcome.lost for outcome in of_proxies)} times too late"
        )


if __name__ == "__main__":
    main()
