"""`qpid-ha activation`: who may lead by the coordinator's and every store's sequence, and setting the coordinator's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stderr
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import click

from qpid_ha_agent.cli.cluster import operator_text, status_rows
from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import (
    NO,
    UNREACHABLE,
    USAGE,
    CliFailure,
    Invocation,
    common_options,
    source_failure,
)

if TYPE_CHECKING:
    from qpid_ha_agent.store_sources import SourceError
    from qpid_ha_broker.coordination.changes import RecordChange
    from qpid_ha_broker.coordination.coordinator import Coordinator
    from qpid_ha_broker.diagnosis.activation import ActivationFacts, RunningBroker
    from qpid_ha_broker.ha.cluster_record import ClusterRecord
    from qpid_ha_broker.store.facts import StoreFacts
    from qpid_ha_config.configuration import WrittenSettings

SHOWN_CHANGES = 5
PROMOTED_WITHIN_S = 3.0
_ASK_AGAIN_S = 0.2
_NOTE_ATTEMPTS = 5


@click.group(cls=ListedGroup)
def activation() -> None:
    """Who may lead: the sequence (generation, epoch) that the coordinator and every store have.

    DIR is a data directory, or its default/; HOST is host:/directory, looked at through your ssh. Without one it is the
    data-dir of this machine's configuration.
    """


@activation.command("list")
@click.argument("sources", metavar="DIR|HOST...", nargs=-1)
@common_options
@click.pass_context
def list_activation(context: click.Context, sources: tuple[str, ...]) -> None:
    """Where each broker stands in it, and who may lead, with brokers down or up.

    0: somebody may lead, or does. 1: nobody; then it says why, and the next command.
    """
    from qpid_ha_agent.cli.activation_tables import print_assessment
    from qpid_ha_broker.diagnosis.activation import assess

    invocation: Invocation = context.obj
    config = _config()
    gathered = _gather(invocation, config, sources)
    for problem in gathered.problems:
        click.echo(problem, err=True)
    if not gathered.facts.stores and not gathered.facts.brokers:
        raise source_failure(gathered.refused, "no store could be looked at, and no broker answers")
    assessment = assess(gathered.facts)
    print_assessment(gathered.url, gathered.facts, assessment, gathered.changes[-SHOWN_CHANGES:], invocation.format)
    context.exit(0 if assessment.leaders else NO)


@activation.command("set")
@click.argument("sources", metavar="DIR|HOST...", nargs=-1)
@click.option("--from-store", metavar="DIR|HOST", help="As this store has it.")
@click.option("--generation", type=click.IntRange(1), help="With --epoch, --primary and --members: just that.")
@click.option("--epoch", type=click.IntRange(1))
@click.option("--primary", metavar="NAME", help="Who led that generation.")
@click.option("--members", metavar="NAME,...", help="Who was in sync: who of them is furthest may lead.")
@click.option("--cluster", metavar="UUID", help="Where neither the record nor a store has it.")
@click.option("--reason", default="", metavar="TEXT", help="Kept in the coordinator's history.")
@click.option("--force", is_flag=True, help="Even if confirmed messages may be lost.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@common_options
@click.pass_obj
def set_activation(
    invocation: Invocation, sources: tuple[str, ...], from_store: str | None, generation: int | None,
    epoch: int | None, primary: str | None, members: str | None, cluster: str | None, reason: str, force: bool,
    dry_run: bool,
) -> None:  # fmt: skip
    """Replace the coordinator's sequence, where nobody may lead because it was lost, or because stores were.

    The stores named beside it are what it is judged by: name all that can be had. It changes no store; brokers may run,
    or not. What is replaced is kept in the coordinator's history.
    """
    from qpid_ha_agent.cli.activation_tables import SetOutcome, print_set
    from qpid_ha_broker.diagnosis.activation import assess, objections, record_of, with_record

    explicit = (generation, epoch, primary, members)
    if (from_store is None) == all(option is None for option in explicit):
        raise CliFailure("give either --from-store, or --generation, --epoch, --primary and --members", USAGE)
    config = _config()
    given = sources if from_store is None else (from_store, *sources)
    gathered = _gather(invocation, config, given)
    for problem in gathered.problems:
        click.echo(problem, err=True)
    facts, record = gathered.facts, gathered.facts.record
    if not facts.has_coordinator:
        raise CliFailure(
            "there is no coordinator (ha.coordinator) in this machine's configuration, so no record to set:"
            " `qpid-ha promote --force` decides who leads",
            USAGE,
        )
    if record is None:
        raise CliFailure(facts.problem, UNREACHABLE)
    store = None if from_store is None else _store_at(facts.stores, from_store)
    wanted = record_of(store) if store is not None else _written_record(facts, explicit, cluster)
    reasons = [] if wanted == record else objections(wanted, facts)
    if reasons and force and store is not None:
        wanted = record_of(store, is_alone=True)  # whether the others of its set hold as much, nobody has shown
    change = _change(record, wanted, is_forced=bool(reasons), reason=reason)
    is_done = not dry_run and record != wanted and (force or not reasons)
    if is_done:
        _replace_record(config, change)
    after = with_record(facts, wanted)
    if is_done and facts.brokers:
        after = replace(after, brokers=_await_primary(invocation, facts.brokers))
    outcome = SetOutcome(change, reasons, is_done, assess(after), after.stores)
    print_set(outcome, invocation.format)
    if reasons and not force:
        raise CliFailure("nothing was changed: --force sets it all the same", NO)


# --- finding out


class _Gathered:
    """What could be looked at, and what not."""

    def __init__(
        self,
        url: str,
        facts: ActivationFacts,
        changes: list[RecordChange],
        problems: list[str],
        refused: list[SourceError],
    ) -> None:
        self.url = url
        self.facts = facts
        self.changes = changes
        self.problems = problems
        self.refused = refused
        """Those that are of stores."""


def _config() -> WrittenSettings | None:
    """Of this machine's broker."""
    from qpid_ha_agent.broker_address import read_config
    from qpid_ha_config.errors import ConfigError

    try:
        return read_config(os.environ)
    except ConfigError as error:
        raise CliFailure(str(error), USAGE) from None


def _gather(invocation: Invocation, config: WrittenSettings | None, sources: Sequence[str]) -> _Gathered:
    from qpid_ha_agent.store_sources import find_all
    from qpid_ha_broker.coordination.changes import HISTORY_NOTE, read_changes
    from qpid_ha_broker.coordination.coordinator import CoordinatorError
    from qpid_ha_broker.diagnosis.activation import ActivationFacts
    from qpid_ha_broker.model.logs.log import DEFAULT_SET
    from qpid_ha_config.errors import ConfigError, SettingsError

    brokers = _ask_brokers(invocation)
    try:
        data_dir = None if config is None else config.get("data-dir")
        wanted = sources or (() if data_dir is None else (str(data_dir),))
        if not wanted and not brokers:
            raise CliFailure("which stores? Name a DIR or HOST: this machine's configuration has no data-dir", USAGE)
        min_in_sync = 1 if config is None else config.get("ha.min-in-sync")
        auto_recover = config is None or config.get("ha.auto-recover")
    except ConfigError as error:
        raise CliFailure(str(error), USAGE) from None
    # The records of other sets are in its log: whoever has hundreds of them waits for none of theirs.
    stores, refused = find_all(wanted, invocation.timeout_s, set_name=DEFAULT_SET)
    problems = [str(error) for error in refused]
    record: ClusterRecord | None = None
    changes: list[RecordChange] = []
    url, problem, has_coordinator = "none", "", False
    try:
        with _coordinator(config) as opened:
            has_coordinator = opened is not None
            if config is not None and opened is not None:
                url = str(config.coordinator_settings().url)
                record = opened.read()
                changes = read_changes(opened.read_note(HISTORY_NOTE))
    except (SettingsError, CoordinatorError) as error:
        has_coordinator, problem = True, str(error)
        problems.append(problem)
    except ValueError as error:
        problems.append(str(error))
    facts = ActivationFacts(tuple(stores), tuple(brokers), record, has_coordinator, problem, min_in_sync, auto_recover)
    return _Gathered(url, facts, changes, problems, refused)


def _ask_brokers(invocation: Invocation) -> list[RunningBroker]:
    """The brokers that answer, the one of this machine or of its configuration being asked; none: none does."""
    from qpid_ha_broker.diagnosis.activation import RunningBroker

    try:
        with redirect_stderr(StringIO()):  # which one was asked for the others is no matter here
            rows = status_rows(invocation)
    except CliFailure:
        return []
    return [broker for row in rows if (broker := RunningBroker.from_row(row)) is not None]


def _await_primary(invocation: Invocation, before: tuple[RunningBroker, ...]) -> tuple[RunningBroker, ...]:
    """How the brokers are once one of them leads, or after a moment: agents wait for the record alone, and are as fast
    as an operator reads."""
    deadline_s = time.monotonic() + PROMOTED_WITHIN_S
    brokers = before
    while time.monotonic() < deadline_s:
        brokers = tuple(_ask_brokers(invocation)) or brokers
        if any(broker.state == "primary" for broker in brokers):
            break
        time.sleep(_ASK_AGAIN_S)
    return brokers


@contextmanager
def _coordinator(config: WrittenSettings | None) -> Iterator[Coordinator | None]:
    """The coordinator of this machine's configuration; None: there is none. Raises SettingsError."""
    from qpid_ha_broker.coordination.registry import open_coordinator

    settings = None if config is None else config.coordinator_settings()
    if settings is None or settings.url.is_none:
        yield None
        return
    with closing(open_coordinator(settings)) as opened:
        yield opened


# --- setting it


def _store_at(stores: Sequence[StoreFacts], source: str) -> StoreFacts:
    """The one that was named first."""
    from qpid_ha_agent.store_sources import SourceError, store_directory
    from qpid_ha_broker.store.advice import host_of

    try:
        host, directory = host_of(source)
        where = source if host else str(store_directory(source))
    except SourceError as error:
        raise source_failure([error]) from None
    candidates = [
        store for store in stores if store.where == where or (host and store.where.startswith(f"{host}:{directory}"))
    ]
    if not candidates:
        raise CliFailure(f"{source}: there is nothing to set the record from", UNREACHABLE)
    store = candidates[0]
    if not store.is_readable or not store.generation or not store.broker:
        flaw = f"is {store.integrity}: {store.detail}" if not store.is_readable else "was in no generation of a cluster"
        raise CliFailure(f"{store.where} {flaw}", NO)
    return store


def _written_record(
    facts: ActivationFacts, explicit: tuple[int | None, int | None, str | None, str | None], cluster: str | None
) -> ClusterRecord:
    from qpid_ha_broker.ha.cluster_record import ClusterRecord

    generation, epoch, primary, members = explicit
    if generation is None or epoch is None or primary is None or members is None:
        raise CliFailure("--generation, --epoch, --primary and --members belong together: give all four", USAGE)
    names = tuple(sorted({name.strip() for name in members.split(",") if name.strip()}))
    if not names or not primary:
        raise CliFailure("--primary and --members: name at least one broker", USAGE)
    recorded = facts.record.cluster if facts.record is not None else ""
    known = cluster or next((store.cluster for store in facts.stores if store.cluster), "") or recorded
    if not known:
        raise CliFailure("of which cluster? Give --cluster UUID, or a store that has it", USAGE)
    return ClusterRecord(known, generation, primary, epoch, names)


def _change(before: ClusterRecord, after: ClusterRecord, *, is_forced: bool, reason: str) -> RecordChange:
    from qpid_ha_broker.coordination.changes import RecordChange

    return RecordChange(int(time.time() * 1000), operator_text(), before, after, is_forced, reason)


def _replace_record(config: WrittenSettings | None, change: RecordChange) -> None:
    """Compare and set, then write it to history. Ends the program where that cannot be done."""
    from qpid_ha_broker.coordination.changes import HISTORY_NOTE, with_change
    from qpid_ha_broker.coordination.coordinator import CoordinatorError
    from qpid_ha_config.errors import SettingsError

    is_set = False
    try:
        with _coordinator(config) as opened:
            if opened is None:
                raise CliFailure("there is no coordinator", USAGE)
            is_set, recorded = opened.compare_and_set(change.before, change.after)
            if not is_set:
                text = f"generation {recorded.generation}, epoch {recorded.epoch} of {recorded.primary or 'nobody'}"
                raise CliFailure(f"the record was changed meanwhile, to {text}: look again", NO)
            for _ in range(_NOTE_ATTEMPTS):
                note = opened.read_note(HISTORY_NOTE)
                if opened.replace_note(HISTORY_NOTE, note, with_change(note, change)):
                    return
    except (SettingsError, CoordinatorError) as error:
        text = "the record is set, but its history could not be written" if is_set else "whether it is set is not known"
        raise CliFailure(f"{text}: {error}", UNREACHABLE) from None
    raise CliFailure("the record is set, but others wrote its history at the same time: it lacks this change", NO)
