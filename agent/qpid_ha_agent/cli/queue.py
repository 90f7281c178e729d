"""`qpid-ha queue`: list, show, create, set, delete, purge; for their messages see `queue_messages`."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import Command, Invocation, common_options, facts_of, unexpected
from qpid_ha_agent.cli.output import (
    print_creation,
    print_facts,
    print_outcome,
    print_rows,
    value_text,
)
from qpid_ha_agent.cli.parameters import duration, read_arguments, size
from qpid_ha_agent.cli.questions import ask_first, known_before, yes_option
from qpid_ha_agent.cli.queue_messages import copy, export_queue, import_queue, move, peek, redirect, retry
from qpid_ha_agent.cli.refreshing import watchable
from qpid_ha_broker.events.counted import counted

COLUMNS = ("name", "messages", "bytes", "acquired", "consumers", "enqueued", "dequeued")

LEVELS = ["none", "configuration", "messages", "all"]

# Option, the queue argument that it stands for, how it is read, and what it does.
_OPTIONS: tuple[tuple[str, str, Any, str], ...] = (
    ("--max-messages", "qpid.max_count", click.IntRange(min=0), "Most messages."),
    ("--max-bytes", "qpid.max_size", size, "Most bytes, such as 100MiB."),
    (
        "--policy",
        "qpid.policy_type",
        click.Choice(["reject", "ring", "self-destruct"]),
        "When full: refuse, drop the oldest, or delete the queue.",
    ),
    ("--ttl", "qpid.message_ttl_ms", duration, "How long a message lives, such as 30s."),
    ("--priorities", "qpid.priorities", click.IntRange(1, 10), "Levels of priority."),
    ("--fairshare", "qpid.fairshare", click.IntRange(min=0), "Messages of a level in a row."),
    ("--last-value-key", "qpid.last_value_queue_key", str, "Keep the last message for each value of this."),
    ("--alternate-exchange", "qpid.alternate_exchange", str, "Where dead messages go."),
    ("--delivery-limit", "qpid.delivery_limit", click.IntRange(min=0), "Deliveries before a message is dead."),
    ("--redelivery-delay", "qpid.redelivery_delay_ms", duration, "How long a failed message waits, doubled each time."),
    ("--redelivery-delay-max", "qpid.redelivery_delay_max_ms", duration, "The longest of these delays."),
    ("--exclusive", "qpid.exclusive", bool, "For one connection only."),
    ("--auto-delete", "qpid.auto_delete", bool, "Delete when unused."),
    ("--auto-delete-delay", "qpid.auto_delete_delay_s", duration, "How long unused before that, such as 10s."),
    ("--durable", "qpid.durable", bool, "Kept and shown; with a store every queue survives."),
    ("--replicate", "qpid.replicate", click.Choice(LEVELS), "What backups get of it; all: messages."),
)


@click.group(cls=ListedGroup)
def queue() -> None:
    """Queues of the broker."""


for of_messages in (peek, move, copy, retry, redirect, export_queue, import_queue):
    queue.add_command(of_messages)


@queue.command("list")
@click.option("--sort", "column", type=click.Choice([*COLUMNS, "set"]), default="name", help="Figures: largest first.")
@click.option("--filter", "pattern", metavar="PATTERN", help="Only names that match, as in 'orders.*'.")
@common_options
@watchable()
@click.pass_obj
def list_queues(invocation: Invocation, column: str, pattern: str | None) -> None:
    """All queues, one per line."""
    print_rows(*_queue_table(invocation, column, pattern), invocation.format)


def _queue_table(
    invocation: Invocation, column: str, pattern: str | None
) -> tuple[Sequence[dict[str, Any]], Sequence[str]]:
    """The queues, sorted, and the columns to show."""
    rows = invocation.rows("queues")
    if pattern is not None:
        rows = [row for row in rows if fnmatchcase(str(row.get("name")), pattern)]
    columns: tuple[str, ...] = COLUMNS
    if any(row.get("scheduled") for row in rows):
        columns += ("scheduled", "next_due_ms")
    if any(row.get("set", "default") != "default" for row in rows):
        columns += ("set",)
    rows = [{**row, "bridge": bridge} if (bridge := _bridge(row)) else row for row in rows]
    if any("bridge" in row for row in rows):
        columns += ("bridge",)
    rows.sort(key=lambda row: str(row.get("name")))
    if column == "set":
        rows.sort(key=lambda row: str(row.get("set")))
    elif column != "name":
        rows.sort(key=lambda row: row.get(column) or 0, reverse=True)
    return rows, columns


def _bridge(row: dict[str, Any]) -> str:
    """Of which node of another broker a queue is filled, or for which it stands; empty: of none."""
    arguments = row.get("arguments") or {}
    if source := arguments.get("qpid.cluster.source"):
        return f"from {source}"
    target = arguments.get("qpid.cluster.proxy")
    return f"to {target}" if target else ""


@queue.command()
@click.argument("name")
@common_options
@click.pass_obj
def show(invocation: Invocation, name: str) -> None:
    """One queue: its figures and arguments."""
    facts = invocation.call("queues", action="read", name=name)
    if not isinstance(facts, dict):
        raise unexpected(facts)
    if invocation.format == "table" and isinstance(arguments := facts.pop("arguments", {}), dict):
        facts.update(arguments)
    print_facts(facts, invocation.format)


def _queue_options(command: Command) -> Command:
    for option, argument, kind, text in reversed(_OPTIONS):
        how: dict[str, Any] = {"is_flag": True, "default": None} if kind is bool else {"type": kind}
        metavar = {size: "SIZE", duration: "DURATION"}.get(kind) if kind in (size, duration) else None
        command = click.option(option, _parameter(argument), help=text, metavar=metavar, **how)(command)
    return command


def _parameter(argument: str) -> str:
    """The queue argument's name as Python can write it."""
    return argument.replace(".", "_")


def _given_arguments(options: dict[str, Any], texts: tuple[str, ...]) -> dict[str, object]:
    arguments = read_arguments(texts)
    for option, argument, kind, _text in _OPTIONS:
        value = options[_parameter(argument)]
        if value is None:
            continue
        if argument in arguments:
            raise click.UsageError(f"{option} and --argument {argument}=... say the same thing; give one of them")
        if kind is duration:
            value = round(value * 1000) if argument.endswith("_ms") else _whole(value)
        arguments[argument] = value
    return arguments


def _whole(seconds: float) -> float:
    return int(seconds) if seconds == int(seconds) else seconds


@queue.command()
@click.argument("name")
@click.option("--argument", "texts", multiple=True, metavar="NAME=VALUE", help="Any queue argument, by its own name.")
@_queue_options
@common_options
@click.pass_obj
def create(invocation: Invocation, /, name: str, texts: tuple[str, ...], **options: Any) -> None:
    """Create a queue. It may exist already only with the same arguments."""
    answer = facts_of(invocation.call("queues", action="create", name=name, arguments=_given_arguments(options, texts)))
    print_creation(f"queue {name}", answer, invocation.format)


@queue.command("set")
@click.argument("name")
@click.argument("texts", nargs=-1, metavar="[ARGUMENT=VALUE]...")
@click.option("--remove", "gone", multiple=True, metavar="ARGUMENT", help="Take this one away; repeatable.")
@_queue_options
@common_options
@click.pass_obj
def set_arguments(
    invocation: Invocation, /, name: str, texts: tuple[str, ...], gone: tuple[str, ...], **options: Any
) -> None:
    """Change arguments of a queue: those that are given, and no others.

    What fixes the order of messages (priorities, fairshare, the key of last values) cannot change.
    """
    changes: dict[str, object] = {**dict.fromkeys(gone), **_given_arguments(options, texts)}
    if not changes:
        raise click.UsageError("what should change? Give ARGUMENT=VALUE, an option, or --remove ARGUMENT")
    answer = facts_of(invocation.call("queues", action="update", name=name, arguments=changes))
    print_outcome(
        answer, f"queue {name} has {value_text(answer.get('arguments') or {}) or 'no arguments'}", invocation.format
    )


@queue.command()
@click.argument("name")
@click.option("--if-empty", is_flag=True, help="Refuse when there are messages in it.")
@click.option("--if-unused", is_flag=True, help="Refuse when somebody consumes from it.")
@yes_option
@common_options
@click.pass_obj
def delete(invocation: Invocation, name: str, if_empty: bool, if_unused: bool, is_sure: bool) -> None:
    """Delete a queue, with its messages."""
    if not if_empty:
        _ask_about_messages(invocation, name, "Delete the queue with them?", is_sure=is_sure)
    answer = facts_of(invocation.call("queues", action="delete", name=name, if_empty=if_empty, if_unused=if_unused))
    text = str(answer["text"]) if answer.get("pending") else f"queue {name} deleted"
    print_outcome(answer, text, invocation.format)


def _ask_about_messages(invocation: Invocation, name: str, question: str, *, is_sure: bool) -> None:
    def look() -> str:
        count = facts_of(invocation.call("queues", action="read", name=name)).get("messages") or 0
        return f"Queue {name} has {counted(count, 'message')}." if count else ""

    ask_first(known_before(look, is_sure), question, is_sure=is_sure)


@queue.command()
@click.argument("name")
@yes_option
@common_options
@click.pass_obj
def purge(invocation: Invocation, name: str, is_sure: bool) -> None:
    """Drop all messages that nobody has acquired."""
    _ask_about_messages(invocation, name, "Drop those that nobody has acquired?", is_sure=is_sure)
    answer = facts_of(invocation.call("queues", action="purge", name=name))
    print_outcome(answer, f"{counted(answer.get('purged'), 'message')} purged from queue {name}", invocation.format)
