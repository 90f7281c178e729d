"""`qpid-ha store discarded`: messages that a broker dropped because its cluster does not have them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qpid_ha_agent.broker_address import AddressError, find_broker, read_config
from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import (
    MAY_NOT,
    NO,
    UNREACHABLE,
    USAGE,
    USUAL_TIMEOUT_S,
    CliFailure,
    Command,
    Invocation,
    common_options,
)  # fmt: skip
from qpid_ha_agent.cli.output import print_rows
from qpid_ha_agent.control import Forbidden
from qpid_ha_config.addresses import Address
from qpid_ha_config.errors import ConfigError

if TYPE_CHECKING:
    from qpid_ha_agent.discarded_messages import DiscardedFile

COLUMNS = ("queue", "messages", "bytes", "first-id", "last-id", "replayed", "file", "problem")


@click.group(cls=ListedGroup)
def discarded() -> None:
    """Messages that this broker held and its cluster does not: kept in files, for you to decide."""


def _common(command: Command) -> Command:
    command = click.option("--queue", metavar="QUEUE", help="Only those of this queue.")(command)
    command = click.option(
        "--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="Default: that of this machine's broker."
    )(command)
    return click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")(command)


@discarded.command("list")
@_common
@common_options
@click.pass_obj
def list_discarded(invocation: Invocation, files: tuple[Path, ...], data_dir: Path | None, queue: str | None) -> None:
    """What there is, a line for each file."""
    from qpid_ha_broker.model.logs.log import DEFAULT_SET

    discarded_files = _read(files, data_dir, queue, replayed=True)
    rows = [_row(file) for file in discarded_files]
    if any(file.set != DEFAULT_SET for file in discarded_files):
        rows = [{"set": file.set, **row} for file, row in zip(discarded_files, rows, strict=True)]
        print_rows(rows, ("set", *COLUMNS), invocation.format)
    else:
        print_rows(rows, COLUMNS, invocation.format)


@discarded.command()
@_common
@click.option("--raw", is_flag=True, help="Whole AMQP messages in base64, instead of their bodies.")
@common_options
def export(files: tuple[Path, ...], data_dir: Path | None, queue: str | None, raw: bool) -> None:
    """Print messages, one JSON object on a line: queue, id, and body (body_base64 if it is no text)."""
    from qpid_ha_agent.discarded_messages import as_document

    discarded_files = _read(files, data_dir, queue, replayed=bool(files))
    for file in discarded_files:
        for message in file.messages:
            click.echo(json.dumps(as_document(message, raw=raw), ensure_ascii=False))
    _complain(discarded_files)


@discarded.command()
@_common
@click.option("--to", metavar="QUEUE", help="Another queue than the one that each message was in.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
@click.pass_obj
def replay(
    invocation: Invocation, files: tuple[Path, ...], data_dir: Path | None, queue: str | None, to: str | None, yes: bool
) -> None:
    """Publish messages to the broker at -b amqp://[USER@]HOST:PORT, the primary. A file that is done is renamed.

    They may have been published again, or consumed elsewhere, since: look at them (export) before.
    """
    from qpid_ha_agent.discarded_messages import DiscardedError, Replay
    from qpid_ha_agent.login import find_login

    broker = _broker(invocation)
    discarded_files = [file for file in _read(files, data_dir, queue, replayed=False) if file.messages]
    total = sum(len(file.messages) for file in discarded_files)
    if not total:
        click.echo("there is nothing to replay")
        return
    question = f"Publish {total} messages of {', '.join(sorted({file.queue for file in discarded_files}))} to {broker}?"
    if not yes and not click.confirm(question):
        raise CliFailure("nothing was sent", NO)
    sent = 0

    def count() -> None:
        nonlocal sent
        sent += 1

    try:
        broker, login = find_login(broker, invocation.password_file, os.environ)
        with Replay(broker, login, invocation.timeout_s or USUAL_TIMEOUT_S) as replaying:
            for file in discarded_files:
                click.echo(f"{len(file.messages)} messages of {file.queue}: {replaying.publish(file, to, count)}")
    except Forbidden as problem:
        raise CliFailure(str(problem), MAY_NOT) from None
    except (DiscardedError, AddressError, ConfigError) as error:
        raise CliFailure(f"{sent} of {total} messages were sent: {error}", UNREACHABLE if not sent else NO) from None
    _complain(discarded_files)


def _broker(invocation: Invocation) -> Address:
    if not invocation.broker or ":" not in invocation.broker:
        raise CliFailure("which broker? Give the AMQP address of the primary: -b amqp://[USER@]HOST:PORT", USAGE)
    try:
        broker = find_broker(invocation.broker)
    except AddressError as error:
        raise CliFailure(str(error), USAGE) from None
    if not isinstance(broker, Address):
        raise CliFailure("messages go to an AMQP address: -b amqp://[USER@]HOST:PORT", USAGE)
    return broker


def _read(files: tuple[Path, ...], data_dir: Path | None, queue: str | None, *, replayed: bool) -> list[DiscardedFile]:
    from qpid_ha_agent.discarded_messages import DiscardedError, discarded_paths, read_all

    try:
        paths = list(files) or discarded_paths(_data_directory(data_dir))
        return [file for file in read_all(paths, queue) if replayed or not file.is_replayed]
    except DiscardedError as error:
        raise CliFailure(str(error), UNREACHABLE) from None


def _data_directory(given: Path | None) -> Path:
    if given is not None:
        return given.expanduser()
    try:
        config = read_config(os.environ)
        configured: Path | None = None if config is None else config.get("data-dir")
    except ConfigError as error:
        raise CliFailure(str(error), USAGE) from None
    if configured is None:
        raise CliFailure("whose? Give --data-dir DIR, the data directory of the broker", USAGE)
    return configured


def _row(file: DiscardedFile) -> dict[str, Any]:
    ids = [message.id for message in file.messages]
    return {
        "queue": file.queue, "messages": len(ids), "bytes": file.bytes, "first-id": min(ids, default=0),
        "last-id": max(ids, default=0), "replayed": file.is_replayed, "file": str(file.path), "problem": file.problem,
    }  # fmt: skip


def _complain(discarded_files: list[DiscardedFile]) -> None:
    """A file that was cut short may have held more."""
    problems = [f"{file.path}: {file.problem}" for file in discarded_files if file.problem]
    if problems:
        raise CliFailure("; ".join(problems), NO)
