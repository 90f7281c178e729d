"""`qpid-ha token`: who may use the HTTP port: of the brokers of a cluster, or of those that read a file of tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import (
    NO,
    USAGE,
    CliFailure,
    Invocation,
    call_cluster,
    common_options,
    configured_file,
    facts_of,
    here_option,
    rows_of,
)
from qpid_ha_agent.cli.output import print_change, print_document, print_notes, print_rows, utc_time
from qpid_ha_config.errors import ConfigError
from qpid_ha_config.tokens import TokenEntry, TokenRole, make_token, read_tokens

Command = TypeVar("Command", bound=Callable[..., Any])


def _file_option(command: Command) -> Command:
    return click.option(
        "--file",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The file of tokens; default: admin.tokens of this machine's configuration.",
    )(command)


def _role_option(command: Command) -> Command:
    roles = click.Choice([role.value for role in TokenRole])
    return click.option("--role", type=roles, required=True, help="What it lets one do.")(command)


@click.group(cls=ListedGroup)
def token() -> None:
    """Tokens for the HTTP port, of the cluster or in a broker's file.

    The cluster keeps those that are made at any of its brokers, and all of them know it at once; a broker reads its
    file again within a second or two of a change. Of a token only its digest is kept. In no cluster, and with --here or
    --file, the file of this machine's broker is meant (admin.tokens). A token of the cluster counts above one of the
    same name in a file.
    """


@token.command()
@click.argument("name")
@_role_option
@click.option("--replace", is_flag=True, help="There may be such a token already: it counts no more.")
@here_option
@_file_option
@common_options
@click.pass_obj
def add(invocation: Invocation, name: str, role: str, replace: bool, here: bool, path: Path | None) -> None:
    """Make a token under NAME, and print it: it can be read nowhere else afterwards."""
    if here or path or call_cluster(invocation, "tokens") is None:
        _create(name, role, path)
        return
    text, entry = _made(name, role)
    wanted: dict[str, object] = {
        "name": name,
        "role": role,
        "digest": entry.digest,
        "is_new": None if replace else True,
    }
    answer = facts_of(call_cluster(invocation, "tokens", action="set", **wanted))
    if invocation.format == "table":
        click.echo(text)
        print_notes(answer)
    else:
        print_document({"token": text, **answer}, invocation.format)


@token.command()
@click.argument("name")
@_role_option
@_file_option
def create(name: str, role: str, path: Path | None) -> None:
    """Make a token in the file of this machine's broker: as `add --here`, and before a first start."""
    _create(name, role, path)


def _made(name: str, role: str) -> tuple[str, TokenEntry]:
    try:
        return make_token(name, TokenRole(role))
    except ValueError as error:
        raise CliFailure(str(error), USAGE) from None


def _create(name: str, role: str, path: Path | None) -> None:
    file = _file(path)
    entries = _read(file) if file.exists() else ()
    if name in [entry.name for entry in entries]:
        raise CliFailure(f"{file} has a token {name} already: `qpid-ha token remove {name} --here` first", NO)
    text, entry = _made(name, role)
    before = _text(file) if file.exists() else "# NAME ROLE SHA-256, made by qpid-ha token create\n"
    _replace(file, f"{before.rstrip()}\n{entry}\n")
    click.echo(text)


@token.command("list")
@here_option
@_file_option
@common_options
@click.pass_obj
def list_tokens(invocation: Invocation, here: bool, path: Path | None) -> None:
    """Names and roles; nobody can tell the tokens."""
    answer = None if here or path else call_cluster(invocation, "tokens")
    if answer is not None:
        rows = [{**row, "at": utc_time(row.get("at_ms"))} for row in rows_of(answer)]
        print_rows(rows, ("name", "role", "at", "by"), invocation.format)
        return
    rows = [{"name": entry.name, "role": entry.role.value} for entry in _read(_file(path))]
    print_rows(rows, ("name", "role"), invocation.format)


@token.command()
@click.argument("name")
@here_option
@_file_option
@common_options
@click.pass_obj
def remove(invocation: Invocation, name: str, here: bool, path: Path | None) -> None:
    """Take the token NAME away: whoever has it is refused from then on."""
    answer = None if here or path else call_cluster(invocation, "tokens", action="remove", name=name)
    if answer is not None:
        print_change(facts_of(answer), f"token {name} removed, at all brokers", invocation.format)
        return
    file = _file(path)
    if name not in [entry.name for entry in _read(file)]:
        raise CliFailure(f"{file} has no token {name}", NO)
    _replace(file, "".join(_without(_text(file).splitlines(keepends=True), name)))
    click.echo(f"token {name} removed")


def _without(lines: Iterable[str], name: str) -> Iterable[str]:
    return (line for line in lines if line.partition("#")[0].split()[:1] != [name])


def _file(path: Path | None) -> Path:
    return path or configured_file("admin.tokens", "which file? Give --file, or set admin.tokens in the configuration")


def _read(file: Path) -> tuple[TokenEntry, ...]:
    try:
        return read_tokens(file)
    except ConfigError as error:
        raise CliFailure(str(error), NO) from None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="surrogateescape")


def _replace(file: Path, text: str) -> None:
    """All or nothing, for the same user and group as before, and never for a moment open to others."""
    beside = file.with_name(f".{file.name}.new")
    try:
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as opened:
            if file.exists():
                status = file.stat()
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, status.st_mode & 0o770)
            opened.write(text)
            opened.flush()
            os.fsync(descriptor)
        beside.replace(file)
    except OSError as error:
        raise CliFailure(f"cannot write {file}: {error.strerror}", NO) from None
