"""`qpid-ha store`: stores at rest. Which one is best after a crash of everything, and what is wrong with one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.discarded import discarded
from qpid_ha_agent.cli.invocation import (
    NO,
    UNREACHABLE,
    USAGE,
    CliFailure,
    Invocation,
    common_options,
    source_failure,
)
from qpid_ha_agent.cli.output import cell, print_document, print_rows

if TYPE_CHECKING:
    from qpid_ha_agent.store_sources import Found
    from qpid_ha_broker.ha.cluster_record import ClusterRecord
    from qpid_ha_broker.store.best_sets import SetVerdict
    from qpid_ha_broker.store.facts import StoreFacts

LIST_COLUMNS = ("store", "broker", "state", "generation", "lsn", "epoch", "in-sync", "messages", "bytes", "written")
SETS_COLUMNS = ("store", "set", *LIST_COLUMNS[1:])
CHECK_COLUMNS = ("store", "what", "file", "offset", "found")
_SAFE = "safe: every member of the in-sync set is here"
_SLOW_S = 1.0
"""After so long people want to see that something happens."""


@click.group(cls=ListedGroup)
def store() -> None:
    """Stores of brokers at rest: after a crash of everything, or when a disk is doubtful.

    DIR is a data directory, or its default/; HOST is host:/directory, looked at through your ssh. Of a data directory
    with several resource sets all are meant, unless --set names one.
    """


def _check_set(_context: click.Context, _option: click.Parameter, name: str | None) -> str | None:
    from qpid_ha_broker.events.set_names import set_name_problem

    problem = None if name is None else set_name_problem(name)
    if problem is not None:
        raise CliFailure(problem, USAGE)
    return name


_set_option = click.option("--set", "set_name", metavar="NAME", callback=_check_set, help="Of this resource set only.")


store.add_command(discarded)


@store.command("list")
@click.argument("sources", metavar="DIR|HOST...", nargs=-1, required=True)
@_set_option
@common_options
@click.pass_obj
def list_stores(invocation: Invocation, sources: tuple[str, ...], set_name: str | None) -> None:
    """What each store is: whose, how far, in which in-sync set, clean or not."""
    stores, problems = _find(invocation, sources, set_name)
    if invocation.format == "table":
        from qpid_ha_agent.cli.store_tables import row_of
        from qpid_ha_broker.store.facts import by_set

        columns = SETS_COLUMNS if len(by_set(stores)) > 1 else LIST_COLUMNS
        print_rows([row_of(store) for store in stores], columns, invocation.format)
    else:
        from qpid_ha_agent.cli.store_tables import facts_document

        print_document([facts_document(store) for store in stores], invocation.format)
    if problems:
        raise source_failure(problems)


@store.command(hidden=True)
@click.argument("directory", metavar="DIR")
@_set_option
@common_options
def facts(directory: str, set_name: str | None) -> None:
    """What `list` and `best` ask another machine for: one JSON object for each resource set, on a line of its own."""
    from qpid_ha_agent.store_sources import SourceError, facts_of_source

    try:
        for store in facts_of_source(directory, set_name):
            click.echo(json.dumps(store.to_json(), ensure_ascii=False))
    except SourceError as error:
        raise source_failure([error]) from None


@store.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@_set_option
@common_options
@click.pass_obj
def check(invocation: Invocation, directories: tuple[str, ...], set_name: str | None) -> None:
    """Read every record of every file. 1 if anything is not as it was written.

    A torn tail is what a crash leaves: it is shown, and is no damage.
    """
    from qpid_ha_agent.store_sources import SourceError, source_error, store_directories
    from qpid_ha_broker.store.checking import check as check_store
    from qpid_ha_broker.store.facts import Integrity
    from qpid_ha_broker.store.files import LocalDisk

    rows = []
    for text in directories:
        try:
            flaws = [
                (path, flaw)
                for path in store_directories(text, set_name)
                for flaw in check_store(LocalDisk(path), _progress(text))
            ]
        except SourceError as error:
            raise source_failure([error]) from None
        except OSError as error:
            raise source_failure([source_error(error.filename or text, error)]) from None
        rows += [
            {
                "store": str(path),
                "what": str(flaw.integrity),
                "file": flaw.file,
                "offset": flaw.offset,
                "found": flaw.text,
            }
            for path, flaw in flaws
        ]
    if invocation.format != "table" or rows:
        print_rows(rows, CHECK_COLUMNS, invocation.format)
    else:
        click.echo("ok")
    if any(row["what"] != Integrity.TORN for row in rows):
        damaged = " ".join(dict.fromkeys(str(row["store"]) for row in rows if row["what"] != Integrity.TORN))
        raise CliFailure(f"a broker refuses this store. Once its cluster runs: `qpid-ha store set-aside {damaged}`", NO)


@store.command()
@click.argument("sources", metavar="DIR|HOST...", nargs=-1, required=True)
@_set_option
@click.option("--each", "is_each", is_flag=True, help="A line for each resource set, however many there are.")
@common_options
@click.pass_context
def best(context: click.Context, sources: tuple[str, ...], set_name: str | None, is_each: bool) -> None:
    """Which store a cluster may begin with again, why, and the next command.

    0: a winner, or several that are equal, and nothing that was confirmed is lost. 1: somebody has to decide, of one
    resource set at least.
    """
    invocation: Invocation = context.obj
    from qpid_ha_agent.cli.store_sets import print_each, print_verdicts
    from qpid_ha_agent.cli.store_tables import print_verdict
    from qpid_ha_broker.store.best import Admin

    stores, verdicts = _judge(invocation, sources, set_name)
    if is_each and invocation.format == "table":
        print_each(verdicts)
    elif len(verdicts) == 1:
        (verdict,) = verdicts.values()
        print_verdict(verdict, stores, invocation.format)
    else:
        print_verdicts(verdicts, sources, invocation.format)
    context.exit(NO if any(isinstance(set_verdict.verdict, Admin) for set_verdict in verdicts.values()) else 0)


@store.command("set-aside")
@click.argument("directory", metavar="DIR")
@_set_option
@common_options
def set_store_aside(directory: str, set_name: str | None) -> None:
    """Rename a store, so that its broker starts empty and joins its cluster anew. Nothing is deleted."""
    from qpid_ha_agent.store_sources import SourceError, StoreBusy, locked, set_aside, store_directory

    try:
        path = store_directory(directory, set_name)
        with locked(path):
            click.echo(f"{path} is now {set_aside(path)}")
    except StoreBusy as error:
        raise CliFailure(str(error), NO) from None
    except SourceError as error:
        raise source_failure([error]) from None


@store.command()
@click.argument("sources", metavar="DIR|HOST...", nargs=-1, required=True)
@click.option("--winner", metavar="NAME", help="The broker whose store it shall be.")
@click.option("--position", metavar="GENERATION:LSN", help="Of the winner, as `best` printed it for all stores.")
@click.option("--force", is_flag=True, help="--winner it is, even if confirmed messages may be lost.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--erase-others", is_flag=True, help="Set the other stores named here aside (renamed, not deleted).")
@_set_option
@common_options
@click.pass_obj
def recover(
    invocation: Invocation, sources: tuple[str, ...], winner: str | None, position: str | None, force: bool,
    dry_run: bool, erase_others: bool, set_name: str | None,
) -> None:  # fmt: skip
    """Mark the store with which the cluster shall begin again: its broker may then be promoted.

    The winner has to be on this machine; others are only looked at. Without --winner it is the one that `best` finds.
    Of several resource sets each has its own; those whose winner is elsewhere, or in doubt, stay as they are.
    """
    if (force or position is not None) and winner is None:
        raise CliFailure("--force and --position are about a --winner: name it", USAGE)
    stores, verdicts = _judge(invocation, sources, set_name)
    if len(verdicts) > 1:
        if winner is not None:
            raise CliFailure("these are stores of several resource sets: name the one of --winner with --set", USAGE)
        _recover_sets(stores, verdicts, sources, dry_run, erase_others)
        return
    (set_verdict,) = verdicts.values()
    chosen, reason = _choose(stores, set_verdict, winner, position, force, invocation.format)
    others = [store for store in stores if store is not chosen] if erase_others else []
    _act(chosen, reason, others, dry_run)
    from qpid_ha_agent.cli.store_tables import print_commands
    from qpid_ha_broker.store.advice import start_commands
    from qpid_ha_broker.store.best import Admin, Doubt

    is_objected = isinstance(set_verdict.verdict, Admin) and set_verdict.verdict.doubt is not Doubt.MISSING
    print_commands("Then:", start_commands(stores, chosen, force=is_objected))


def _judge(
    invocation: Invocation, sources: Sequence[str], set_name: str | None
) -> tuple[list[StoreFacts], dict[str, SetVerdict]]:
    """The stores that were looked at, and what is said of each set, or of the one that is named.

    Of a set that is named, the stores of `default` are looked at for its record. Ends the program when there is nothing
    to be judged.
    """
    from qpid_ha_agent.store_sources import find_all, is_store
    from qpid_ha_broker.model.logs.log import DEFAULT_SET
    from qpid_ha_broker.store.best_sets import best_of_sets

    stores, problems = find_all(sources, invocation.timeout_s, _progress, set_name)
    for problem in problems:
        click.echo(str(problem), err=True)
    beside: list[StoreFacts] = []
    if set_name not in (None, DEFAULT_SET):
        beside = find_all(sources, invocation.timeout_s, _progress, DEFAULT_SET).stores
    has_all = not any(is_store(source, stores) for source in sources)
    verdicts = best_of_sets([*stores, *beside], _find_record(), has_all=has_all)
    if set_name is not None:
        verdicts = {name: verdict for name, verdict in verdicts.items() if name == set_name}
    if not verdicts and not problems:
        raise CliFailure(f"there is no store of the resource set {set_name} in {', '.join(sources)}", UNREACHABLE)
    if not verdicts:
        raise source_failure(problems, "no store could be looked at")
    return stores, verdicts


def _recover_sets(
    stores: Sequence[StoreFacts],
    verdicts: Mapping[str, SetVerdict],
    sources: Sequence[str],
    dry_run: bool,
    erase_others: bool,
) -> None:
    """Mark in each set the store that is safe to begin with, if it is here. Ends the program with 1 if one is not."""
    from qpid_ha_broker.store.best import Admin, Equal
    from qpid_ha_broker.store.best_sets import Nothing
    from qpid_ha_broker.store.facts import by_set

    groups = by_set(stores)
    doubtful = []
    for name, set_verdict in verdicts.items():
        verdict = set_verdict.verdict
        if isinstance(verdict, Admin):
            doubtful.append(name)
            continue
        if isinstance(verdict, Nothing):
            click.echo(f"{name}: stays as it is. {verdict.text}")
            continue
        level = verdict.stores if isinstance(verdict, Equal) else (verdict.store,)
        safe = [store for store in level if not store.is_empty]
        here = [store for store in safe if _is_here(store)]
        if here:
            others = [store for store in groups[name] if store is not here[0]] if erase_others else []
            _act(here[0], _SAFE, others, dry_run)
        elif safe:
            click.echo(f"{name}: the store of {safe[0].broker} is elsewhere, and is marked there: {safe[0].where}")
    if doubtful:
        from qpid_ha_agent.cli.store_sets import shortened

        ask = f"`qpid-ha store best {' '.join(sources)}`"
        names = shortened(doubtful, 60)
        text = f"{len(doubtful)} of {len(verdicts)} sets need a decision and stay as they are ({names}): {ask}"
        raise CliFailure(text, NO)


def _choose(
    stores: list[StoreFacts],
    set_verdict: SetVerdict,
    winner: str | None,
    position: str | None,
    force: bool,
    format_name: str,
) -> tuple[StoreFacts, str]:
    """The store to mark, and what to write beside the mark. Ends the program when there is none."""
    from qpid_ha_agent.cli.store_tables import print_verdict
    from qpid_ha_broker.store.best import Equal, Winner, choose

    verdict = set_verdict.verdict
    safe = verdict.stores if isinstance(verdict, Equal) else (verdict.store,) if isinstance(verdict, Winner) else ()
    named = [store for store in safe if winner in (None, store.broker) and not store.is_empty]
    if named:
        return next((store for store in named if _is_here(store)), named[0]), _SAFE
    forced = choose(stores, winner, "") if winner is not None else None
    if forced is None and winner is not None:
        raise CliFailure(f"none of these is a store of {winner} that a broker could load", NO)
    if forced is not None and position is not None:
        there = f"{forced.store.generation}:{forced.store.last_lsn}"
        if there != position:
            raise CliFailure(
                f"the store of {winner} is at {there}, not at {position}: ask `qpid-ha store best` again", NO
            )
        return forced.store, "found best among all stores elsewhere"
    if forced is not None and force:
        return forced.store, "an operator chose it by force"
    print_verdict(set_verdict, stores, format_name)
    raise CliFailure("nothing was changed: these stores alone do not say that it is safe", NO)


def _find_record() -> ClusterRecord | None:
    """What the coordinator says that this machine's broker is configured with; None: there is none to be asked."""
    import os

    from qpid_ha_agent.broker_address import read_config
    from qpid_ha_broker.coordination.coordinator import CoordinatorError
    from qpid_ha_broker.coordination.registry import open_coordinator
    from qpid_ha_config.errors import SettingsError

    try:
        config = read_config(os.environ)
        settings = None if config is None else config.coordinator_settings()
        if settings is None or settings.url.is_none:
            return None
        with closing(open_coordinator(settings)) as coordinator:
            return coordinator.read()
    except (SettingsError, CoordinatorError) as error:
        click.echo(f"{error}; the stores are judged without the coordinator's record", err=True)
        return None


def _is_here(facts: StoreFacts) -> bool:
    from qpid_ha_broker.store.advice import host_of

    return not host_of(facts.where)[0]


def _act(chosen: StoreFacts, reason: str, others: Sequence[StoreFacts], dry_run: bool) -> None:
    """Mark one, set others aside; all locks first, so that all of it happens or nothing."""
    from qpid_ha_agent.store_sources import SourceError, StoreBusy, locked, mark_chosen, set_aside
    from qpid_ha_broker.model.logs.log import DEFAULT_SET
    from qpid_ha_broker.store.advice import choose_commands

    if not _is_here(chosen):
        raise CliFailure(f"the store of {chosen.broker} is elsewhere: {choose_commands((chosen,), chosen)[0]}", NO)
    here = [store for store in others if _is_here(store) and Path(store.where).exists()]
    would = "would be " if dry_run else ""
    try:
        with ExitStack() as locks:
            for data_directory in dict.fromkeys(Path(store.where).parent for store in (chosen, *here)):
                locks.enter_context(locked(data_directory / DEFAULT_SET))
            for store in here:
                aside = "set aside" if dry_run else f"now {set_aside(Path(store.where))}"
                click.echo(f"{store.where} ({store.label}) {would or 'is '}{aside}")
            if not dry_run:
                mark_chosen(Path(chosen.where), chosen, reason)
    except StoreBusy as error:
        raise CliFailure(str(error), NO) from None
    except SourceError as error:
        raise source_failure([error]) from None
    text = f"at generation {chosen.generation}, LSN {chosen.last_lsn} ({reason})"
    click.echo(f"{chosen.where} ({chosen.label}) {would or 'is '}marked as the one to begin with, {text}.")
    for store in others:
        if not _is_here(store):
            click.echo(f"{store.where} is elsewhere and stays as it is")


# --- asking and printing


def _find(invocation: Invocation, sources: Sequence[str], set_name: str | None) -> Found:
    from qpid_ha_agent.store_sources import find_all

    sought = find_all(sources, invocation.timeout_s, _progress, set_name)
    if not sought.stores and not sought.problems:
        raise CliFailure(f"there is no store of the resource set {set_name} in {', '.join(sources)}", UNREACHABLE)
    return sought


def _progress(name: str) -> Callable[[int, int], None]:
    """A line on the terminal, for what takes long; nothing for programs."""
    from qpid_ha_broker.store.inspection import nobody_watches

    if not sys.stderr.isatty():
        return nobody_watches
    began = shown_at_s = time.monotonic()

    def tell(done: int, total: int) -> None:
        nonlocal shown_at_s
        now = time.monotonic()
        if now - began > _SLOW_S and (now - shown_at_s > 0.1 or done >= total):
            shown_at_s = now
            end = "\n" if done >= total else ""
            click.echo(f"\rreading {cell(name)}: {done * 100 // max(total, 1)} %{end}", err=True, nl=False)

    return tell
