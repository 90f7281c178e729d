"""`qpid-ha-pipeline JOB`: jobs over journals, on this machine or on a Spark cluster."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from rich.console import Console
from rich.table import Table

from qpid_ha_broker import __version__
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.set_names import set_name_problem

from .errors import PipelineError, in_words_of_commands, reason_of
from .requirements import check_requirements

if TYPE_CHECKING:  # a user without PySpark is told so, by check_requirements
    from pyspark.sql import DataFrame, SparkSession

    from qpid_ha_broker.store.best import Verdict
    from qpid_ha_broker.store.best_sets import Nothing

    from .jobs.client_gaps import ClientGap
    from .jobs.overview import SetOverview
    from .jobs.state_changes import StateChange
    from .jobs.timeline import Timeline

F = TypeVar("F", bound=Callable[..., Any])

NO, FAILED = 1, 3
_TIMES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S")


class JobFailure(click.ClickException):
    """Told on one line."""

    exit_code = FAILED

    def show(self, file: Any = None) -> None:
        """As the admin tool does."""
        click.echo(f"qpid-ha-pipeline: {self.message}", err=True)


class Where(NamedTuple):
    """Where Spark is; neither: as its configuration says."""

    master: str | None
    remote: str | None


def _valid_sets(_context: click.Context, _option: click.Parameter, sets: tuple[str, ...]) -> tuple[str, ...]:
    """The same. Ends the job, before it begins, for what no set can be called."""
    for name in sets:
        if (problem := set_name_problem(name)) is not None:
            raise JobFailure(f"--set: {problem}")
    return sets


class Journals(NamedTuple):
    """What a job reads."""

    stores: tuple[str, ...]
    sets: tuple[str, ...]
    """Empty: all."""


def job_options(command: Callable[..., None]) -> Callable[..., None]:
    """What every job takes. Ends it, with a reason, where Spark cannot run."""

    @wraps(command)
    def run(
        stores: tuple[str, ...], sets: tuple[str, ...], master: str | None, remote: str | None, **given: Any
    ) -> None:  # fmt: skip
        try:
            check_requirements(is_remote=remote is not None)
        except PipelineError as error:
            raise JobFailure(error.reason) from None
        command(journals=Journals(stores, sets), where=Where(master, remote), **given)

    for option in reversed((
        click.argument("stores", metavar="DATA_DIR...", nargs=-1, required=True),
        click.option(
            "--set", "sets", multiple=True, callback=_valid_sets,
            help="Only this resource set; may be repeated. Without it: all that there are.",
        ),
        click.option("--master", help="Spark's master; without it what Spark's configuration says, else local[*]."),
        click.option("--remote", help="A Spark Connect server, sc://HOST:PORT, instead; else SPARK_REMOTE."),
        click.option("--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True),
    )):  # fmt: skip
        run = option(run)
    return run


mode_option = click.option(
    "--mode", type=click.Choice(["strict", "permissive"]), default="strict", show_default=True,
    help="What damage means: an error, or rows that are left out and counted.",
)  # fmt: skip


def _writable(_context: click.Context, _option: click.Parameter, output: Path | None) -> Path | None:
    """The same. Ends the job, before it begins, where that file cannot be written."""
    from .outputs import check_file

    if output is not None:
        try:
            check_file(output)
        except PipelineError as error:
            raise JobFailure(error.reason) from None
    return output


def file_option(text: str, *, required: bool = False) -> Callable[[F], F]:
    """`--output`, one file, which this process writes in the end."""
    kind = click.Path(dir_okay=False, path_type=Path)
    return click.option("--output", type=kind, required=required, callback=_writable, help=text)


summary_option = file_option("The outcome as JSON, in a file.")


def seen_options(command: F) -> F:
    """What brokers and clients saw themselves, beside their journals."""
    for option in reversed((
        click.option(
            "--events", multiple=True, type=click.Path(dir_okay=False),
            help="What `qpid-ha events --format json` printed, or a broker's log; may be repeated.",
        ),
        click.option("--history", multiple=True, help="What clients did and saw, as for audit; may be repeated."),
        click.option("--history-format", default="json", show_default=True, help="As Spark calls it."),
        click.option(
            "--link-timeout", type=click.FloatRange(0), default=3.0, show_default=True,
            help="Seconds: three times link-heartbeat-interval of the brokers.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qpid-ha-pipeline")
def main() -> None:
    """Read what brokers have written. DATA_DIR is a broker's data directory, or a pattern of some.

    Exit: 0 all is well; 1 it is not, and the output says what; 2 usage; 3 the job could not run.
    """
    # Jobs were checked with both; docs/pipeline.md, "Versions", says how.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)


@main.command()
@job_options
@summary_option
def stores(journals: Journals, where: Where, form: str, output: Path | None) -> None:
    """Which store each resource set may begin with again, and why: as `qpid-ha store best`."""
    from qpid_ha_broker.store.best import Admin

    from .jobs.stores import verdicts

    with _job("looking at stores", where) as spark:
        set_verdicts = verdicts(spark, journals.stores, journals.sets)
    documents = {
        name: {"verdict": type(verdict).__name__.lower(), **_plain(verdict)} for name, verdict in set_verdicts.items()
    }
    document = json.dumps(
        *documents.values() if len(documents) == 1 else [{"sets": documents}], indent=2, default=str
    )  # fmt: skip
    if output is not None:
        _write(output, document + "\n")
    if form == "json":
        click.echo(document)
    else:
        for name, verdict in set_verdicts.items():
            if len(set_verdicts) > 1:
                click.echo(f"set {name}")
            _print_verdict(verdict)
    sys.exit(NO if any(isinstance(verdict, Admin) for verdict in set_verdicts.values()) else 0)


def _print_verdict(verdict: Verdict | Nothing) -> None:
    from qpid_ha_broker.store.best import Admin

    _print_rows([reason._asdict() for reason in verdict.reasons], ("broker", "where", "standing", "text"))
    click.echo(f"{type(verdict).__name__.upper()}: {verdict.question if isinstance(verdict, Admin) else verdict.text}")
    for command in () if isinstance(verdict, Admin) else verdict.next_commands:
        click.echo(f"  {command}")


@main.command()
@job_options
@click.option(
    "--mode", type=click.Choice(["strict", "permissive"]), default="strict", show_default=True,
    help="permissive: what is good of damaged journals, as a new table to which nothing can be added.",
)  # fmt: skip
@click.option("--output", required=True, type=click.Path(file_okay=False), help="Where snapshots and rows go.")
@click.option("--what", "parts", type=click.Choice(["both", "snapshots", "rows"]), default="both", show_default=True)
@click.option(
    "--fail-on-data-loss/--no-fail-on-data-loss", default=True, show_default=True,
    help="Whether it ends when events are gone that no run before this one has read.",
)  # fmt: skip
def consolidate(
    journals: Journals, where: Where, form: str, mode: str, output: str, parts: str, fail_on_data_loss: bool
) -> None:
    """Fold journals into snapshots that brokers load, and add what is new to Parquet by cluster, set and day.

    Exit code 1: a store was left out.
    """
    from .jobs.consolidate import Consolidated, check_apart, check_rows, good_rows, rows, snapshots
    from .journal.remote import joined
    from .outputs import check_directory

    events = joined(output, "events")
    with _job("consolidating", where) as spark:
        check_apart(spark, journals.stores, output)
        check_directory(spark, output)
        if parts != "snapshots":
            check_rows(spark, events, is_new=mode == "permissive")
        folded = snapshots(spark, journals.stores, joined(output, "stores"), journals.sets) if parts != "rows" else []
        if parts == "snapshots":
            count = 0
        elif mode == "permissive":
            count = good_rows(spark, journals.stores, events, journals.sets)
        else:
            count = rows(spark, journals.stores, events, journals.sets, fail_on_data_loss=fail_on_data_loss)
    if form == "json":
        click.echo(json.dumps({"snapshots": [store._asdict() for store in folded], "rows": count}, indent=2))
    else:
        _print_rows([store._asdict() for store in folded], Consolidated._fields)
        click.echo(f"{counted(count, 'row')} added to {events}")
    sys.exit(NO if any(store.why_not for store in folded) else 0)


@main.command()
@job_options
@mode_option
@file_option("An HTML page with plots.")
@seen_options
def failovers(
    journals: Journals, where: Where, form: str, mode: str, output: Path | None, **seen: Any
) -> None:  # fmt: skip
    """Who led when, how long nobody did, and how far backups lagged behind."""
    from .jobs.failover_report import page
    from .jobs.failovers import COLUMNS, timelines
    from .jobs.overview import overview

    with _job("reading journals", where) as spark:
        changes, gaps = _seen(spark, **seen)
        clusters = timelines(_journal(spark, journals, mode, COLUMNS, replicas="all"), changes, seen["link_timeout"])
    if output is not None:
        _write(output, page(clusters, gaps))
    sets = overview(clusters)
    if form == "json":
        document = {
            "clusters": _plain(clusters),
            "client_gaps": _plain(gaps),
            **({"sets": _plain(sets)} if sets else {}),
        }
        click.echo(json.dumps(document, indent=2))
        return
    for timeline in clusters:
        _print_timeline(timeline)
    _print_sets(sets)
    if gaps is not None:
        click.echo("what clients saw: the longest times in which messages were sent, and none was confirmed")
        _print_rows([{**gap._asdict(), "seconds": gap.seconds} for gap in gaps], ("begin_s", "end_s", "seconds"))
    if output is not None:
        click.echo(f"report: {output.absolute()}")


@main.command()
@job_options
@mode_option
@file_option("The HTML page.", required=True)
@click.option("--since", type=click.DateTime(_TIMES), help="UTC: what was before counts to the depth at the beginning.")
@click.option("--until", type=click.DateTime(_TIMES), help="UTC.")
@seen_options
def report(
    journals: Journals, where: Where, form: str, mode: str, output: Path, since: datetime | None,
    until: datetime | None, **seen: Any,
) -> None:  # fmt: skip
    """What went through queues over time, how long it took, and who led meanwhile: one page for people."""
    from .jobs import activity, failovers
    from .jobs.activity_report import report as page
    from .jobs.overview import overview

    limits = (_moment(since, -math.inf), _moment(until, math.inf))
    with _job("reading journals", where) as spark:
        changes, gaps = _seen(spark, **seen)
        activities = activity.activities(_journal(spark, journals, mode, activity.COLUMNS), *limits)
        all_copies = _journal(spark, journals, mode, failovers.COLUMNS, replicas="all")
        led = failovers.timelines(all_copies, changes, seen["link_timeout"])
    _write(output, page(activities, led, gaps))
    sets = overview(led, activities)
    if form == "json":
        document = {"activities": _plain(activities), "clusters": _plain(led), "client_gaps": _plain(gaps)}
        click.echo(json.dumps({**document, **({"sets": _plain(sets)} if sets else {})}))
    else:
        _print_sets(sets)
        click.echo(f"report: {output.absolute()}")


def _moment(at: datetime | None, default: float) -> float:
    return default if at is None else at.replace(tzinfo=UTC).timestamp()


def _seen(
    spark: SparkSession, events: Sequence[str], history: Sequence[str], history_format: str, link_timeout: float
) -> tuple[list[StateChange], list[ClientGap] | None]:
    """What brokers and clients saw themselves; None: no history was given."""
    from .jobs.client_gaps import client_gaps
    from .jobs.history import read_history
    from .jobs.state_changes import read_state_changes

    gaps = client_gaps(read_history(spark, history, history_format)) if history else None
    return read_state_changes(events), gaps


def _print_sets(sets: Sequence[SetOverview]) -> None:
    """Nothing where there is one set."""
    if sets:
        columns = (
            "set", "queues", "messages_in", "messages_out", "waiting", "generations", "outage_at_least_s",
            "outage_at_most_s", "availability",
        )  # fmt: skip
        availability = [f"{line.availability_at_least:.4%} to {line.availability_at_most:.4%}" for line in sets]
        rows = [{**line._asdict(), "availability": text} for line, text in zip(sets, availability, strict=True)]
        _print_rows(rows, columns)


def _print_timeline(timeline: Timeline) -> None:
    from .jobs.failover_report import NO_GENERATION, availability_text, title_of
    from .jobs.timeline import GroupChange, Lag, Outage, TimeInStates

    text = f"availability {availability_text(timeline)}" if timeline.generations else NO_GENERATION
    title = title_of(timeline.cluster, timeline.set)
    click.echo(f"{title[:1].lower()}{title[1:]}: {text}")
    if timeline.is_group:
        _print_rows([change._asdict() for change in timeline.group_changes], GroupChange._fields)
        return
    rows = [
        {**generation._asdict(), **(phases._asdict() if phases else {})}
        for generation, phases in zip(timeline.generations, timeline.phases, strict=True)
    ]
    columns = (
        "number", "primary", "cause", "first_lsn", "events", "nobody_at_least_s", "nobody_at_most_s",
        "waiting_at_least_s", "waiting_at_most_s", "work_s", "message_s",
    )  # fmt: skip
    _print_rows(rows, columns)
    _print_rows([outage._asdict() for outage in timeline.outages], Outage._fields)
    _print_rows([times._asdict() for times in timeline.states], TimeInStates._fields)
    _print_rows([lag._asdict() for lag in timeline.lags], Lag._fields)


@main.command()
@job_options
@mode_option
@click.option("--history", required=True, multiple=True, help="What clients did and saw; may be repeated.")
@click.option("--history-format", default="json", show_default=True, help="As Spark calls it.")
@click.option("--output", type=click.Path(file_okay=False), help="The rows that prove it, as Parquet.")
def audit(
    journals: Journals, where: Where, form: str, mode: str, history: tuple[str, ...], history_format: str,
    output: str | None,
) -> None:  # fmt: skip
    """Did every confirmed message arrive, once and in order?"""
    from .jobs.audit import JOURNAL_COLUMNS
    from .jobs.audit import audit as judge
    from .jobs.consolidate import check_apart
    from .jobs.history import read_history
    from .outputs import check_directory

    with _job("auditing", where) as spark:
        if output:
            check_apart(spark, journals.stores, output, histories=history)
            check_directory(spark, output)
        counting, discarded = (
            _journal(spark, journals, mode, JOURNAL_COLUMNS, replicas=which) for which in ("one", "discarded")
        )
        judgement = judge(read_history(spark, history, history_format), counting, discarded)
        shown = [row.asDict() for row in judgement.evidence.limit(20).collect()] if not judgement.is_flawless else []
        if output:
            judgement.evidence.write.mode("overwrite").parquet(output)
    if form == "json":
        click.echo(json.dumps({**judgement.counts(), "evidence": shown}, indent=2, default=str))
    else:
        _print_rows(
            [{"what": name, "messages": count} for name, count in judgement.counts().items()], ("what", "messages")
        )
        if shown:
            _print_rows(shown, tuple(shown[0]))
        click.echo("flawless" if judgement.is_flawless else "A PROMISE WAS BROKEN")
    sys.exit(0 if judgement.is_flawless else NO)


@main.command()
@job_options
@mode_option
@summary_option
@click.option("--broker", "brokers", required=True, multiple=True, help="Where to: an amqp URL; may be repeated.")
@click.option("--queue", default="", help="Only messages of these queues, with commas between them.")
@click.option(
    "--view", type=click.Choice(["events", "state"]), default="events", show_default=True,
    help="All messages that ever came, as far as the store tells of them, or those that are in queues now.",
)  # fmt: skip
@click.option("--from-lsn", type=int, help="The first event.")
@click.option("--to-lsn", type=int, help="The last one.")
@click.option("--address", default="", help="Where to, instead of the queue of the same name.")
@click.option("--password-file", default="", help="Of the user in the URL; else QPID_HA_PASSWORD is read.")
@click.option("--ca-file", default="", help="Who vouches for the brokers of amqps URLs.")
def replay(
    journals: Journals, where: Where, form: str, mode: str, output: Path | None, brokers: tuple[str, ...],
    queue: str, view: str, from_lsn: int | None, to_lsn: int | None, address: str, password_file: str, ca_file: str,
) -> None:  # fmt: skip
    """Send messages of a journal to a broker again: at least once, in order for each queue."""
    from .amqp.options import WriteOptions
    from .jobs.replay import COLUMNS
    from .jobs.replay import replay as send

    to_whom = {"brokers": ",".join(brokers), "target": address, "passwordFile": password_file, "caFile": ca_file}
    limits = {"fromLsn": from_lsn, "toLsn": to_lsn}
    given = {name: str(value) for name, value in limits.items() if value is not None}
    with _job("sending", where) as spark:
        to = WriteOptions.parse(to_whom)
        count = send(_journal(spark, journals, mode, COLUMNS, queue=queue, view=view, **given), to)
    document = json.dumps({"sent": count})
    if output is not None:
        _write(output, document + "\n")
    click.echo(document if form == "json" else f"{counted(count, 'message')} sent")


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise JobFailure(f"--output {output}: {error.strerror}") from None


def _journal(spark: SparkSession, journals: Journals, mode: str, columns: Sequence[str], **options: str) -> DataFrame:
    source = spark.read.format("qpid-journal").option("paths", json.dumps(list(journals.stores))).option("mode", mode)
    source = source.option("set", ",".join(journals.sets))
    return source.option("columns", ",".join(columns)).options(**options).load()


@contextmanager
def _job(title: str, where: Where) -> Iterator[SparkSession]:
    """A session, and a word about how far it is where somebody watches; errors as their reason alone."""
    from pyspark.errors import PySparkException

    from .descriptions import described
    from .progress import watched
    from .session import session

    console = Console(stderr=True)
    try:
        with console.status("starting Spark") if console.is_terminal else _quiet():
            spark = session(where.master, remote=where.remote)
        with described(spark, f"qpid-ha-pipeline: {title}"), watched(spark, title, console):
            yield spark
    except Exception as error:  # ours, Spark's, or those of its Java
        reason = reason_of(error)
        if reason is None and not isinstance(error, PySparkException):
            raise
        text = reason or next(filter(None, str(error).splitlines()), "")
        raise JobFailure(in_words_of_commands(text)) from None


@contextmanager
def _quiet() -> Iterator[None]:
    yield


def _plain(value: Any) -> Any:
    """Named tuples and dataclasses as JSON has them, with what is computed of them."""
    if hasattr(value, "_asdict"):
        computed = [name for name, member in vars(type(value)).items() if isinstance(member, property)]
        return {name: _plain(getattr(value, name)) for name in (*value._fields, *computed)}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, list | tuple):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    return value


def _print_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    if not rows:
        return
    table = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in columns))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, tuple | list):
        return ", ".join(_cell(element) for element in value)
    return "" if value is None else str(value)


if __name__ == "__main__":
    main()
