"""`qpid-ha support-bundle`: logs, status, history, settings without secrets and facts of stores, as one archive."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import click

from qpid_ha_agent.cli.diagnose import diagnosis_document, diagnosis_text, gather_facts
from qpid_ha_agent.cli.invocation import NO, USUAL_TIMEOUT_S, CliFailure, Invocation, common_options
from qpid_ha_agent.cli.output import cell, print_outcome
from qpid_ha_broker.events.counted import counted


@click.command("support-bundle")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE|DIR",
    help="The archive, or where to put it.  [default: qpid-ha-support-HOST-TIME.tar.gz here]",
)
@common_options
@click.pass_obj
def support_bundle(invocation: Invocation, output: Path | None) -> None:
    """Logs, status, history, settings, facts of the stores and the diagnosis, for whoever helps you.

    No messages, passwords, tokens or keys are in it; names of queues, brokers and users, addresses and log lines are:
    look through it before you hand it on. Only you may read the file. What could not be had is in its index, with the
    reason.
    """
    from qpid_ha_agent.support.archive import BundleFiles, write_archive
    from qpid_ha_agent.support.contents import collect, known_secrets
    from qpid_ha_agent.support.redaction import Redaction
    from qpid_ha_broker.diagnosis.checks import diagnose

    path, now_s = _path(output), time.time()
    gathered = gather_facts(invocation)
    findings = diagnose(gathered.facts)
    bundle = BundleFiles(Redaction(known_secrets(gathered.machine.written, os.environ, invocation.password_file)))
    bundle.add_text("diagnosis.txt", diagnosis_text(gathered, findings))
    bundle.add_document("diagnosis.json", diagnosis_document(gathered, findings))
    for subject, why in gathered.not_asked.items():
        bundle.lack(subject, why)
    collect(bundle, gathered, os.environ, invocation.timeout_s or USUAL_TIMEOUT_S)
    about = {"host": socket.gethostname(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))}
    try:
        write_archive(path, bundle, about, now_s)
    except OSError as error:
        raise CliFailure(f"cannot write {path}: {error.strerror or error}", NO) from None
    lacking = f"; {len(bundle.missing)} things could not be had, see index.json in it" if bundle.missing else ""
    document = {"file": str(path), "files": len(bundle.files), "missing": bundle.missing}
    print_outcome(document, f"{cell(path)}: {counted(len(bundle.files), 'file')}{lacking}", invocation.format)


def _path(output: Path | None) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    host = "".join(char if char.isalnum() or char in "-_" else "-" for char in socket.gethostname()) or "host"
    name = f"qpid-ha-support-{host}-{stamp}.tar.gz"
    if output is None:
        return Path(name)
    output = output.expanduser()
    return output / name if output.is_dir() else output
