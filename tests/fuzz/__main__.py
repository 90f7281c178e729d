"""`python -m fuzz`: send random requests to the HTTP port of a broker, and show what broke a promise."""

from __future__ import annotations

import random
import sys
import time

import click

from fuzz.http_cases import CaseMaker
from fuzz.http_target import Finding, HttpTarget, http_target

BATCH = 300
CLIENT_EACH = 10
"""Batches, after each so many of which a client of AMQP has to be served."""
SHOWN_FINDINGS = 20
SHOWN_BYTES = 600


@click.command()
@click.option("--seed", default=None, type=int, help="Repeat these cases; drawn, and printed, if left out.")
@click.option("--cases", default=10_000, show_default=True, type=click.IntRange(1), help="How many.")
@click.option("--case", default=None, type=int, help="This one alone.")
def main(seed: int | None, cases: int, case: int | None) -> None:
    """Send bytes, requests and bodies of JSON-RPC that are wrong in some way or other, and look what comes of it."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    click.echo(f"seed {seed}")
    numbers = range(cases) if case is None else range(case, case + 1)
    began_s = time.monotonic()
    with http_target() as target:
        methods = sorted({each.method for each in target.requests})
        click.echo(f"{len(target.requests)} requests of JSON-RPC, of the methods {', '.join(methods)}")
        findings = _try_all(target, CaseMaker(seed, target.requests, target.port.tokens), numbers, began_s)
        for kind, number in sorted(target.answers.items()):
            click.echo(f"{number:8} {kind}")
        click.echo(f"{target.memory_bytes / 1e6:.0f} MB in the end")
    for finding in findings[:SHOWN_FINDINGS]:
        click.echo(
            f"seed {seed} case {finding.number} ({finding.kind}): {finding.problem}\n    {finding.sent[:SHOWN_BYTES]!r}"
        )
    click.echo(f"{len(numbers)} cases, {len(findings)} findings, {time.monotonic() - began_s:.0f} s")
    sys.exit(1 if findings else 0)


def _try_all(target: HttpTarget, maker: CaseMaker, numbers: range, began_s: float) -> list[Finding]:
    findings: list[Finding] = []
    for batch in range(0, len(numbers), BATCH):
        some = numbers[batch : batch + BATCH]
        found = target.try_cases(maker, some)
        if any(finding.number < 0 for finding in found):  # which of them it was is seen one by one
            found += [each._replace(number=number) for number in some for each in target.try_cases(maker, [number])]
        findings += found
        if batch // BATCH % CLIENT_EACH == 0 or batch + BATCH >= len(numbers):
            target.serve_a_client()
        if batch // BATCH % 50 == 49:
            click.echo(f"{batch + BATCH} cases, {len(findings)} findings, {time.monotonic() - began_s:.0f} s", err=True)
        if len(findings) > SHOWN_FINDINGS:
            break
    return findings


if __name__ == "__main__":
    main()
