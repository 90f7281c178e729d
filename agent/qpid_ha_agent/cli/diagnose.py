"""`qpid-ha diagnose`: what is wrong, in order of urgency, each with the command that helps."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from qpid_ha_agent.cli.invocation import (
    NO,
    UNREACHABLE,
    USAGE,
    USUAL_TIMEOUT_S,
    CliFailure,
    Invocation,
    common_options,
    completed,
    completed_commands,
)
from qpid_ha_agent.cli.output import cell, print_document
from qpid_ha_agent.cli.refreshing import watchable

if TYPE_CHECKING:
    from qpid_ha_agent.diagnosis.gathering import Gathered
    from qpid_ha_agent.diagnosis.questions import ClosableClient
    from qpid_ha_broker.diagnosis.findings import Finding

WIDTH = 80


@click.command("diagnose")
@common_options
@watchable()
@click.pass_context
def diagnose_command(context: click.Context) -> None:
    """What is wrong with the cluster, the most urgent first, each with the command that helps.

    Asks all brokers, the coordinator and this machine at the same time, and goes by what answers within --timeout.

    0: nothing is wrong, 1: something is, 3: nothing could be asked.
    """
    from qpid_ha_broker.diagnosis.checks import diagnose

    invocation: Invocation = context.obj
    gathered = gather_facts(invocation)
    findings = diagnose(gathered.facts)
    if not gathered.has_anything:
        why = next((answers.silence for answers in gathered.answers if answers.silence), "nobody answers")
        raise CliFailure(f"nothing could be asked: {why}; {WHERE_TO_LOOK}", UNREACHABLE)
    if invocation.format != "table":
        print_document(diagnosis_document(gathered, findings), invocation.format)
    else:
        click.echo(diagnosis_text(gathered, findings), nl=False)
    context.exit(NO if findings else 0)


WHERE_TO_LOOK = (
    "run this on a machine of the cluster, as root; there, `systemctl status qpid-ha` and "
    "`journalctl -u qpidd -u qpid-ha-agent -n 50` tell why no broker runs"
)


def gather_facts(invocation: Invocation, environment: Mapping[str, str] = os.environ) -> Gathered:
    """All that can be found out within the invocation's timeout."""
    from qpid_ha_agent.broker_address import AddressError, find_broker
    from qpid_ha_agent.control import ControlFailure
    from qpid_ha_agent.diagnosis.gathering import gather

    try:
        with suppress(ControlFailure):  # that it cannot be reached is what is to be told
            find_broker(invocation.broker, environment)
    except AddressError as error:
        if invocation.broker is not None:
            raise CliFailure(str(error), USAGE) from None

    def make_client(broker: str | None, timeout_s: float) -> ClosableClient:
        return replace(invocation, broker=broker, timeout_s=timeout_s).client(timeout_s)

    gathered = gather(make_client, invocation.broker, invocation.timeout_s or USUAL_TIMEOUT_S, environment)
    invocation.config = gathered.started_with
    return gathered


def diagnosis_document(gathered: Gathered, findings: list[Finding]) -> dict[str, object]:
    """For programs."""
    return {
        "findings": [
            {**finding.as_document(), "commands": completed_commands(finding.commands)} for finding in findings
        ],
        "asked": sorted(broker.name for broker in gathered.facts.brokers),
        "not_asked": [{"what": subject, "why": why} for subject, why in gathered.not_asked.items()],
    }


def diagnosis_text(gathered: Gathered, findings: list[Finding]) -> str:
    """For people, within 80 columns but for commands, which stay on one line."""
    lines: list[str] = []
    for finding in findings:
        lines += _filled(f"{finding.kind.severity}: {completed(finding.text)} ({finding.key})")
        lines += _filled(f"  {finding.kind.meaning[0].upper()}{finding.kind.meaning[1:]}.")
        commands = completed_commands(finding.commands)
        lines += [*(f"    {cell(command)}" for command in commands), f"  {finding.page}", ""]
    asked = ", ".join(broker.name for broker in gathered.facts.brokers)
    outcome = f"{len(findings)} findings" if findings else "nothing is wrong"
    lines += _filled(f"{outcome}; asked: {asked or 'no broker'}")
    for subject, why in gathered.not_asked.items():
        lines += _filled(f"not looked at: {subject}: {why}")
    return "\n".join(lines) + "\n"


def _filled(text: str) -> list[str]:
    """Wrapped; what others wrote must not steer the terminal."""
    return textwrap.wrap(cell(text), WIDTH, subsequent_indent="  ", break_on_hyphens=False)
