"""`qpid-ha user`: the users with passwords whom brokers let in: of the cluster, or of one broker, in its database of
Cyrus SASL (`sasl.users-db`)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
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
from qpid_ha_agent.cli.output import print_change, print_rows, utc_time
from qpid_ha_config.settings import read_password_file

Command = TypeVar("Command", bound=Callable[..., Any])
SETTER, LISTER = "saslpasswd2", "sasldblistusers2"
PATHS = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Where those are, whatever PATH a user has."""
PACKAGES = "sasl2-bin (Debian) or cyrus-sasl-lib (Fedora, RHEL)"
TIMEOUT_S = 30.0


def _file_option(command: Command) -> Command:
    return click.option(
        "--sasldb",
        "path",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The database; default: sasl.users-db of this machine's configuration.",
    )(command)


def _realm_option(command: Command) -> Command:
    return click.option("--realm", metavar="REALM", help="Default: the broker's, this machine's name.")(command)


def _password_option(command: Command) -> Command:
    return click.option(
        "--password-from",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A file with the password in its first line; default: asked for, or a line from a pipe.",
    )(command)


@click.group(cls=ListedGroup)
def user() -> None:
    """Users with passwords, of the cluster or in a broker's file. Nothing has to be restarted.

    The cluster keeps what is set at any of its brokers, and all of them know it; of a password it has only what it can
    be checked by. In no cluster, and with --here, --sasldb or --realm, the file of this machine's broker is meant
    (sasl.users-db). A user of the cluster counts above one of the same name in a file.
    """


@user.command()
@click.argument("name")
@_password_option
@click.option("--replace", is_flag=True, help="There may be such a user already: give it this password.")
@here_option
@_realm_option
@_file_option
@common_options
@click.pass_obj
def add(
    invocation: Invocation, name: str, password_from: Path | None, replace: bool, here: bool, realm: str | None,
    path: Path | None,
) -> None:  # fmt: skip
    """Make a user, or with --replace change its password."""
    if here or realm or path:
        _add_here(name, password_from, replace=replace, realm=realm, path=path)
    elif not _set_for_cluster(invocation, name, password_from, is_new=not replace):
        _say_no_cluster()
        _add_here(name, password_from, replace=replace, realm=realm, path=path)


@user.command()
@click.argument("name")
@_password_option
@here_option
@_realm_option
@_file_option
@common_options
@click.pass_obj
def password(
    invocation: Invocation, name: str, password_from: Path | None, here: bool, realm: str | None, path: Path | None
) -> None:
    """Give a user another password. Connections of a user of the cluster end, who logged in by the old one."""
    if not (here or realm or path):
        if _set_for_cluster(invocation, name, password_from, replaces=True):
            return
        _say_no_cluster()
    file = _file(path)
    _check_there(file, name, realm)
    _add_here(name, password_from, replace=True, realm=realm, path=file)


def _check_there(file: Path, name: str, realm: str | None) -> None:
    if not file.exists() or not any(_is_meant(row, name, realm) for row in _users(file)):
        raise CliFailure(f"{file} has no user {name}", NO)


def _say_no_cluster() -> None:
    click.echo("the broker is in no cluster, or older: this is about the file of this machine", err=True)


def _set_for_cluster(
    invocation: Invocation, name: str, password_from: Path | None, *, is_new: bool = False, replaces: bool = False
) -> bool:
    """Whether there is a cluster."""
    from qpid_ha_config.users import make_user, name_problem

    if call_cluster(invocation, "users") is None:  # before somebody types a password for nothing
        return False
    if problem := name_problem(name):
        raise CliFailure(f"{name!r:.80} is no name of a user: {problem}", USAGE)
    try:
        verifiers = make_user(name, _password(password_from))
    except ValueError as error:
        raise CliFailure(str(error), USAGE) from None
    wanted: dict[str, object] = {
        "name": name,
        "verifiers": verifiers,
        "is_new": is_new or None,
        "replaces": replaces or None,
    }
    answer = facts_of(call_cluster(invocation, "users", action="set", **wanted))
    text = f"user {name} {'has this password' if answer.get('was_there') else 'added'}, at all brokers"
    print_change(answer, text, invocation.format)
    return True


def _add_here(name: str, password_from: Path | None, *, replace: bool, realm: str | None, path: Path | None) -> None:
    file = _file(path)
    _check_name(name)
    realm = realm or broker_realm()
    if not replace and file.exists() and any(_is_meant(row, name, realm) for row in _users(file)):
        raise CliFailure(f"{file} has a user {name} already: give --replace to change the password", NO)
    is_new = not file.exists()
    _run(SETTER, "-p", "-c", "-f", str(file), "-u", realm, name, stdin=_password(password_from))
    if is_new:
        file.chmod(0o600)
        click.echo(f"{file} is new: let the broker's user read it, as with chown root:qpid-ha and chmod 0640", err=True)
    click.echo(f"user {name} {'has this password' if replace else 'added'}")


@user.command("list")
@here_option
@_file_option
@common_options
@click.pass_obj
def list_users(invocation: Invocation, here: bool, path: Path | None) -> None:
    """Names: of the cluster with who changed each last, of a file with realms."""
    answer = None if here or path else call_cluster(invocation, "users")
    if answer is not None:
        rows = [{**row, "at": utc_time(row.get("at_ms"))} for row in rows_of(answer)]
        print_rows(rows, ("user", "at", "by"), invocation.format)
        return
    file = _file(path)
    if not file.exists():
        raise CliFailure(f"there is no {file}: `qpid-ha user add` makes it", NO)
    print_rows(_users(file), ("user", "realm"), invocation.format)


@user.command()
@click.argument("name")
@here_option
@_realm_option
@_file_option
@common_options
@click.pass_obj
def remove(invocation: Invocation, name: str, here: bool, realm: str | None, path: Path | None) -> None:
    """Take a user out. Connections of a user of the cluster end; of one in a file see `qpid-ha connections close`."""
    if not (here or realm or path):
        answer = call_cluster(invocation, "users", action="remove", name=name)
        if answer is not None:
            print_change(facts_of(answer), f"user {name} removed, at all brokers", invocation.format)
            return
        _say_no_cluster()
    file = _file(path)
    _check_there(file, name, realm)
    _run(SETTER, "-d", "-f", str(file), "-u", realm or broker_realm(), name)
    if any(_is_meant(row, name, realm) for row in _users(file)):
        raise CliFailure(f"{name} is there in another realm than this machine's: say which with --realm", NO)
    click.echo(f"user {name} removed")


def _is_meant(row: dict[str, str], name: str, realm: str | None) -> bool:
    return row["user"] == name and realm in (None, row["realm"])


def broker_realm() -> str:
    """Where the broker of this machine looks for a user who names no realm.

    As Cyrus SASL has it (`get_fqhostname`, in its lib/saslutil.c): the name of the machine, with its domain where its
    addresses are known by one. `saslpasswd2` by itself takes the name without the domain, and no broker looks there.
    """
    name = socket.gethostname()
    if "." not in name:
        try:
            addresses = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM, flags=socket.AI_CANONNAME)
        except OSError:  # nobody knows the name: then Cyrus takes it as it is
            addresses = []
        canonical = addresses[0][3] if addresses else ""
        name = canonical if "." in canonical else name
    return name.lower()


def _check_name(name: str) -> None:
    if not name or name.startswith("-") or "@" in name or not name.isprintable():
        raise CliFailure(f"{name!r} is no name of a user: printable text without @ that does not begin with -", USAGE)


def _users(file: Path) -> list[dict[str, str]]:
    """From lines such as `olga@node1: userPassword`; a user has one for each thing that is kept of it."""
    users: dict[tuple[str, str], None] = {}
    for line in _run(LISTER, "-f", str(file)).splitlines():
        who, separator, _kept = line.rpartition(": ")
        if separator:
            name, _, realm = who.rpartition("@")
            users[name, realm] = None
    return [{"user": name, "realm": realm} for name, realm in sorted(users)]


def _password(file: Path | None) -> str:
    """Never from an argument: those are shown to everybody on the machine."""
    if file is not None:
        try:
            return read_password_file(file)
        except (OSError, ValueError) as error:
            raise CliFailure(f"cannot read the password in {file}: {error}", USAGE) from None
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        return typed
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise CliFailure("no password came: type one, pipe a line, or give --password-from FILE", USAGE)
    return line


def _file(path: Path | None) -> Path:
    return path or configured_file(
        "sasl.users-db", "which database? Give --sasldb, or set sasl.users-db in the configuration"
    )


def _run(program: str, *arguments: str, stdin: str | None = None) -> str:
    """What `program` printed. Raises CliFailure with what it complained of."""
    path = shutil.which(program) or shutil.which(program, path=PATHS)
    if path is None:
        raise CliFailure(f"{program} is not installed: it comes with {PACKAGES}", NO)
    command: Sequence[str] = [path, *arguments]
    try:
        done = subprocess.run(
            command, input=stdin, stdin=subprocess.DEVNULL if stdin is None else None, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CliFailure(f"{program} could not be run: {error}", NO) from None
    if done.returncode:
        problem = (done.stderr or done.stdout).strip() or f"it ended with {done.returncode}"
        raise CliFailure(f"{program}: {problem}; may you write the database?", NO)
    return done.stdout
