"""`qpid-ha definitions`: what was set up in a cluster as one file, and a cluster as the file says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qpid_ha_agent.cli.cluster import CHANGE_TIMEOUT_S, operator_text
from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import NO, USAGE, CliFailure, Invocation, common_options, rows_of
from qpid_ha_agent.cli.output import cell, print_document, print_rows, yaml_text
from qpid_ha_agent.control import METHOD_NOT_FOUND
from qpid_ha_broker.events.counted import counted
from qpid_ha_config.errors import ConfigError

if TYPE_CHECKING:  # who asks for something else does not wait for PyYAML
    from qpid_ha_broker.definitions.document import Definitions
    from qpid_ha_broker.definitions.plan import ImportConflict, ImportPlan, ImportStep

STEP_COLUMNS = ("action", "what", "details")
FILE_BYTES_MAX = 64 << 20

_file_argument = click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))


@click.group(cls=ListedGroup)
def definitions() -> None:
    """Queues, exchanges, bindings, sets, policies and settings of the cluster as one file."""


@definitions.command("export")
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--with-users", is_flag=True, help="And users and tokens of the cluster: keep such a file secret.")
@common_options
@click.pass_obj
def export_definitions(invocation: Invocation, path: Path | None, with_users: bool) -> None:
    """Write all that is defined to FILE, or to the standard output, as YAML; with --format json as JSON.

    Messages are not in it (`qpid-ha queue export`), nor what belongs to a client: subscriptions, temporary and
    exclusive queues. Of settings and rules of access those of the cluster are (`qpid-ha config diff`), not what is in
    files of each broker. With --with-users there are users and tokens, too: not their passwords, but by what they are
    checked is in the file, so passwords can be guessed with it. It is made with mode 0600.
    """
    _put(_there(invocation, with_users=with_users).as_document(), path, invocation.format, is_secret=with_users)


def _put(document: dict[str, Any], path: Path | None, format_name: str, *, is_secret: bool = False) -> None:
    """Into the file, or to the standard output."""
    if path is None:
        print_document(document, "yaml" if format_name == "table" else format_name)
        return
    if is_secret:
        path.touch(mode=0o600)
        if path.is_file():
            path.chmod(0o600)
    path.write_text(_text_of(document, format_name), encoding="utf-8")
    counts = ", ".join(f"{len(value)} {name}" for name, value in document.items() if isinstance(value, list))
    click.echo(f"{path}: {counts or 'nothing is defined'}", err=True)


def _text_of(document: dict[str, Any], format_name: str) -> str:
    if format_name == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return yaml_text(document)


@definitions.command("import")
@_file_argument
@click.option("--dry-run", is_flag=True, help="Say what would be made and changed; do nothing.")
@click.option("--update", is_flag=True, help="What is there as something else gets the arguments that FILE has.")
@click.option("--with-users", is_flag=True, help="And users and tokens, if FILE has some.")
@common_options
@click.pass_obj
def import_definitions(invocation: Invocation, path: Path, dry_run: bool, update: bool, with_users: bool) -> None:
    """Make what FILE defines and what is not there yet; the same again does nothing. Nothing is ever deleted.

    All of it is checked before the first thing is made. If something is there as something else, nothing is done.
    """
    from qpid_ha_broker.definitions.document import read_definitions
    from qpid_ha_broker.definitions.plan import plan_import

    wanted = _read(path, read_definitions)
    if not with_users and (count := len(wanted.users) + len(wanted.tokens)):
        text = counted(count, "user or token is", "users and tokens are")
        click.echo(f"{text} left out: --with-users takes them, too", err=True)
        wanted = wanted.without_users
    plan = plan_import(_there(invocation, with_users=with_users), wanted, update=update)
    _check(invocation, plan)
    if dry_run:
        _show(plan, invocation.format)
    if plan.conflicts:
        raise CliFailure(_conflicts_text(path, plan.conflicts), NO)
    if not dry_run:
        _carry_out(invocation, plan)


@definitions.command("convert")
@_file_argument
@click.argument("to", metavar="[TO]", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--from", "source", type=click.Choice(["rabbitmq"]), required=True, help="Whose file it is.")
@click.option("--vhost", default="/", show_default=True, help="Of which virtual host.")
@common_options
@click.pass_obj
def convert_definitions(invocation: Invocation, path: Path, to: Path | None, source: str, vhost: str) -> None:
    """Write the definitions of another broker as ours, to TO or to the standard output.

    What has no counterpart is told on the standard error.

    rabbitmq: a file of `rabbitmqctl export_definitions`.
    """
    from qpid_ha_broker.definitions.rabbitmq import read_rabbitmq

    converted, notes = _read(path, lambda file, text: read_rabbitmq(file, text, vhost))
    for note in notes:
        click.echo(f"note: {cell(note)}", err=True)
    _put(converted.as_document(), to, invocation.format)


def _read(path: Path, read: Any) -> Any:
    try:
        if (size := path.stat().st_size) > FILE_BYTES_MAX:
            raise CliFailure(f"{path}: it has {size} bytes, and {FILE_BYTES_MAX} are the most that are read", USAGE)
        return read(path, path.read_text(encoding="utf-8"))
    except ConfigError as error:
        raise CliFailure(str(error), USAGE) from None
    except UnicodeDecodeError as error:
        raise CliFailure(f"{path}: byte {error.start} is no UTF-8", USAGE) from None


def _there(invocation: Invocation, *, with_users: bool) -> Definitions:
    from qpid_ha_broker.definitions.document import definitions_of

    queues, exchanges = invocation.rows("queues"), invocation.rows("exchanges")
    sets: Sequence[Any] = ()
    policies: Sequence[Any] = ()
    settings: Sequence[Any] = ()
    users: Sequence[Any] = ()
    tokens: Sequence[Any] = ()
    try:
        sets = rows_of(invocation.call("sets", action="list"))
        policies = rows_of(invocation.call("replicas", action="list-policies"))
        settings = rows_of(invocation.call("settings"))
        if with_users:
            users = rows_of(invocation.call("users", action="export"))
            tokens = rows_of(invocation.call("tokens", action="export"))
    except CliFailure as failure:
        if failure.code != METHOD_NOT_FOUND:  # else a standalone broker, which has none
            raise
    return definitions_of(queues, exchanges, sets, policies, settings, users, tokens)


def _check(invocation: Invocation, plan: ImportPlan) -> None:
    """Have the broker look at all queues before one of them is made. Raises CliFailure."""
    for step in plan.steps:
        if step.method == "queues" and step.action == "create":
            try:
                invocation.call("queues", **{**step.params, "action": "check"})
            except CliFailure as failure:
                text = f"{step.thing}: {failure.message}; nothing was done"
                raise CliFailure(text, failure.exit_code, failure.code) from None


def _show(plan: ImportPlan, format_name: str) -> None:
    rows = [{"action": step.action, "what": step.thing, "details": step.details} for step in plan.steps]
    if rows or format_name != "table":
        print_rows(rows, STEP_COLUMNS, format_name)
    if format_name == "table":
        click.echo(f"{len(rows)} to do, {plan.unchanged} are there as defined")


def _conflicts_text(path: Path, conflicts: Sequence[ImportConflict]) -> str:
    lines = [cell(f"{conflict.thing}: {conflict.problem}") for conflict in conflicts]
    return "\n  ".join([f"{path}: nothing was done, for {len(lines)} of it cannot be had as it is:", *lines])


def _carry_out(invocation: Invocation, plan: ImportPlan) -> None:
    done: list[ImportStep] = []
    for step in plan.steps:
        caused = {"cause": f"by {operator_text()}"} if step.method in ("sets", "replicas") else {}
        try:
            invocation.call(step.method, usual_timeout_s=CHANGE_TIMEOUT_S, **step.params, **caused)
        except CliFailure as failure:
            left = len(plan.steps) - len(done)
            so_far = f"{len(done)} things were done before, {left} are left: mend it and run this again"
            text = f"{step.thing}: {failure.message}; {so_far}"
            raise CliFailure(text, failure.exit_code, failure.code) from None
        done.append(step)
        if invocation.format == "table":
            click.echo(cell(f"{step.thing} {'created' if step.action == 'create' else 'changed'}"))
    if invocation.format == "table":
        click.echo(f"{len(done)} done, {plan.unchanged} were there as defined")
    else:
        rows = [{"action": step.action, "what": step.thing} for step in done]
        print_document({"done": rows, "unchanged": plan.unchanged}, invocation.format)
