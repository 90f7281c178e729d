"""`qpid-ha coordinator`: what it holds, whether it does what brokers and agents need, and moving to another one."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import NO, UNREACHABLE, USAGE, CliFailure, Invocation, common_options
from qpid_ha_agent.cli.output import cell, print_facts, print_rows
from qpid_ha_agent.planned_restart import RESTART_NOTE, decode_request
from qpid_ha_broker.coordination.identity import IDENTITY_NOTE
from qpid_ha_broker.coordination.pause import PAUSE_NOTE, decode_pause

if TYPE_CHECKING:
    from qpid_ha_broker.coordination.coordinator import Coordinator
    from qpid_ha_config.settings import CoordinatorSettings

NOTES: Final = ("pause", "restart", "priorities", "history", IDENTITY_NOTE)
"""That a cluster may have. A move takes all of them along."""
SCRATCH: Final = "check"
"""The note and the lease with which it is tried whether both work."""
WATCH_S: Final = 5.0
CHECK_COLUMNS: Final = ("what", "ms", "found")

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The configuration of a broker of the cluster.  [default: the one of this machine]",
)
url_option = click.option(
    "--url", metavar="URL", help="Another coordinator than the configuration's, with the same login and TLS."
)


@click.group(cls=ListedGroup)
def coordinator() -> None:
    """What keeps the cluster's record and chooses who may promote: see docs/coordinators.md."""


@coordinator.command()
@config_option
@url_option
@common_options
@click.pass_obj
def show(invocation: Invocation, config: Path | None, url: str | None) -> None:
    """What it holds: the record, who has the lock, and the notes."""
    from qpid_ha_broker.coordination.moved import decode_pointer
    from qpid_ha_broker.coordination.registry import open_place

    invocation.config = str(config or "")
    settings = _settings(config, url)
    with coordinator_failures(), closing(open_place(settings)) as opened:
        record = opened.read()
        pointer = decode_pointer(record)
        facts: dict[str, object] = {"coordinator": str(settings.url)}
        if pointer is not None:
            facts["moved to"] = pointer.url
            record = pointer.record
        facts |= record._asdict()
        facts["members"] = list(record.members)
        facts["lock"] = _holder(opened)
        notes = {name: text for name in NOTES if (text := opened.read_note(name))}
        facts["identity"] = notes.pop(IDENTITY_NOTE, None)
        facts["notes"] = {name: text for name, text in notes.items() if not _is_over(name, text)}
    print_facts(facts, invocation.format)
    if pointer is not None:
        raise CliFailure(f"it has moved: set ha.coordinator to {pointer.url}", NO)


@coordinator.command()
@config_option
@url_option
@common_options
@click.pass_obj
def check(invocation: Invocation, config: Path | None, url: str | None) -> None:
    """Try what brokers and agents need of it, from this machine, beside what the cluster has there.

    0: all is well, 1: something is not, 3: it cannot be reached.
    """
    from qpid_ha_broker.coordination.registry import open_coordinator

    invocation.config = str(config or "")
    settings = _settings(config, url)
    with (
        coordinator_failures(),
        closing(open_coordinator(settings)) as opened,
        closing(open_coordinator(settings)) as other,
    ):
        opened.read()  # connects; whoever cannot be reached at all says why
        rows = [_timed("read the record", lambda: _read(opened))]
        rows += [_timed(name, call) for name, call in _calls(opened, other)]
    print_rows(rows, CHECK_COLUMNS, invocation.format)
    wrong = [str(row["what"]) for row in rows if not str(row["found"]).startswith("ok")]
    if wrong:
        raise CliFailure(f"not as it should be: {', '.join(wrong)}", NO)


@coordinator.command()
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@config_option
@common_options
def migrate(source: str, target: str, config: Path | None) -> None:
    """Move the cluster's record and notes from the coordinator FROM to TO, while the cluster runs.

    Brokers and agents follow by themselves, and go on at TO; those that are started with FROM find the way, as long as
    it is there. TO takes the login and TLS settings of the configuration. First run `check --url TO` on each machine.
    Interrupted, it is repeated with the same words. Afterwards set ha.coordinator to TO on all machines.
    """
    from qpid_ha_agent.coordinator_migration import CannotMigrate, Place
    from qpid_ha_agent.coordinator_migration import migrate as move
    from qpid_ha_broker.coordination.registry import NEVER_MOVE, open_place

    settings = [_settings(config, url) for url in (source, target)]
    for setting in settings:
        if setting.url.scheme in NEVER_MOVE:
            raise CliFailure(
                f"{setting.url.scheme}: is no coordinator that agents run with, so changing it changes who starts and "
                "promotes brokers; docs/coordinators.md says how",
                USAGE,
            )
    if settings[0].url == settings[1].url:
        raise CliFailure(f"FROM and TO are the same: {settings[0].url}", USAGE)
    with coordinator_failures(), closing(open_place(settings[0])) as one, closing(open_place(settings[1])) as other:
        origin, goal = Place(str(settings[0].url), one), Place(str(settings[1].url), other)
        try:
            other.read()  # whoever cannot be reached at all says why
            wrong = [name for name, call in _calls(other, other) if _timed(name, call)["found"] != "ok"]
            if wrong:
                raise CliFailure(f"{goal.url}: not as it should be: {', '.join(wrong)}; see `check --url`", NO)
            for step in move(origin, goal, NOTES):
                click.echo(cell(step))
        except CannotMigrate as error:
            raise CliFailure(str(error), NO) from None
    click.echo(f"Then set ha.coordinator to {goal.url} on all machines; {origin.url} stays until all have it.")


def _settings(config: Path | None, url: str | None) -> CoordinatorSettings:
    """Raises CliFailure, ConfigError."""
    from qpid_ha_config.configuration import WrittenSettings
    from qpid_ha_config.defaults import find_file
    from qpid_ha_config.errors import ConfigError

    path = config or find_file(None, os.environ)
    if path is None and url is None:
        raise CliFailure("this machine has no configuration of a broker: give --config or --url", USAGE)
    try:
        written = WrittenSettings.of_flags({} if url is None else {"ha.coordinator": url})
        settings = (written if path is None else written.over(WrittenSettings.read(path))).coordinator_settings()
    except ConfigError as error:
        raise CliFailure(str(error), USAGE) from None
    if settings.url.is_none:
        raise CliFailure("ha.coordinator is none: there is nobody to ask; docs/coordinators.md", NO)
    return settings


def _is_over(name: str, note: str) -> bool:
    """Whether the note is a pause or a restart that has ended by itself. Nobody heeds it; the next one replaces it."""
    now = datetime.now(UTC)
    if name == RESTART_NOTE:
        request = decode_request(note)
        return request is None or not request.is_under_way(now)
    pause = decode_pause(note) if name == PAUSE_NOTE else None
    return pause is not None and pause.is_over(now)


@contextmanager
def coordinator_failures(unreachable: str = "") -> Iterator[None]:
    """What can go wrong with a coordinator, as the command's end. `unreachable`: stands before what its client says."""
    from qpid_ha_broker.coordination.coordinator import CoordinatorError
    from qpid_ha_config.errors import SettingsError

    try:
        yield
    except SettingsError as error:
        raise CliFailure(str(error), USAGE) from None
    except CoordinatorError as error:
        raise CliFailure(f"{unreachable}{error}", UNREACHABLE) from None


def _holder(opened: Coordinator) -> str:
    """Raises CoordinatorError."""
    from qpid_ha_broker.coordination.coordinator import CoordinatorError

    try:
        lease = opened.lease("")
    except CoordinatorError as error:
        return str(error)
    return lease.holder() or "nobody has it"


# --- what is tried


def _timed(name: str, call: Callable[[], str]) -> dict[str, object]:
    from qpid_ha_broker.coordination.coordinator import CoordinatorError

    began_s = time.monotonic()
    try:
        finding = call()
    except CoordinatorError as error:
        finding = str(error)
    return {"what": name, "ms": round((time.monotonic() - began_s) * 1000, 1), "found": finding}


def _read(opened: Coordinator) -> str:
    record = opened.read()
    if not record.cluster:
        return "ok: there is none yet"
    return f"ok: cluster {record.cluster}, generation {record.generation}, epoch {record.epoch}"


def _calls(opened: Coordinator, other: Coordinator) -> list[tuple[str, Callable[[], str]]]:
    """`other` is the same coordinator, as another process sees it."""
    text = secrets.token_hex(8)
    return [
        ("write", lambda: _write(opened, text)),
        ("read back", lambda: _read_back(other, text)),
        ("refuse what is outdated", lambda: _refuse(other, text)),
        ("hear of a change", lambda: _hear(opened, other, text)),
        ("hold a lease", lambda: _hold(opened, other)),
    ]


def _write(opened: Coordinator, text: str) -> str:
    before = opened.read_note(SCRATCH)
    return "ok" if opened.replace_note(SCRATCH, before, text) else "another check runs: try again when it is over"


def _read_back(other: Coordinator, text: str) -> str:
    return "ok" if other.read_note(SCRATCH) == text else "what was written is not what is read: do not use it"


def _refuse(other: Coordinator, text: str) -> str:
    is_refused = not other.replace_note(SCRATCH, f"not {text}", "wrong")
    return "ok" if is_refused else "what was changed meanwhile was replaced: do not use it"


def _hear(opened: Coordinator, other: Coordinator, text: str) -> str:
    heard = threading.Event()
    unwatch = opened.watch(heard.set)
    try:
        other.replace_note(SCRATCH, text, "")
        is_heard = heard.wait(WATCH_S)
    finally:
        unwatch()
    return "ok" if is_heard else f"no call within {WATCH_S:g} s: agents would notice changes late"


def _hold(opened: Coordinator, other: Coordinator) -> str:
    from qpid_ha_broker.coordination.coordinator import CoordinatorError

    try:
        lease, second = opened.lease(SCRATCH, SCRATCH), other.lease(f"{SCRATCH}-2", SCRATCH)
    except CoordinatorError as error:  # there are none to have, which is no fault
        return f"ok: {error}"
    if not lease.try_lock():
        return f"{lease.holder() or 'somebody'} has it: another check runs"
    try:
        if opened is not other and second.try_lock():
            second.release()
            return "two had it at once: do not use it"
        return "ok" if lease.is_held() else "it was lost at once"
    finally:
        lease.release()
