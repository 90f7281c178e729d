"""`qpid-ha queue peek|move|copy|retry|redirect|export|import`: what is in a queue, and how it gets elsewhere."""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from qpid_ha_agent.broker_address import find_broker
from qpid_ha_agent.cli.invocation import (
    NO,
    UNREACHABLE,
    USAGE,
    CliFailure,
    Command,
    Invocation,
    common_options,
    facts_of,
)
from qpid_ha_agent.cli.output import cell, print_document, print_outcome, print_rows
from qpid_ha_agent.message_file import FileDamaged, MessageFile, end_line, header_line, message_line
from qpid_ha_broker.events.counted import counted
from qpid_ha_config.addresses import ADMIN_PORTS, Address, parse_broker

if TYPE_CHECKING:
    from qpid_ha_agent.login import Login

COLUMNS = ("id", "state", "age_s", "size", "deliveries", "subject", "body")
BODY_SHOWN = 40
"""Characters of a body in a table."""
BODY_BYTES, WHOLE_BODY_BYTES = 200, 64 * 1024
PEEK_MOST = 100
TAKING_OVER = (
    "there may be more: the broker has begun to lead, and has not committed yet all that it took over; ask again"
)
TAKES_OVER_MOST_S, TAKES_OVER_PAUSE_S = 10.0, 0.1
MOVE_TIMEOUT_S = 300.0
IMPORT_TIMEOUT_S = 60.0
"""For one message: a failover may come in between."""


@click.command()
@click.argument("name")
@click.option("--count", type=click.IntRange(1, PEEK_MOST), default=10, show_default=True, help="Messages.")
@click.option("--after", metavar="ID", help="Begin behind this message.")
@click.option("--id", "message_id", metavar="ID", help="This message alone, with all that is known of it.")
@click.option("--body", "shows_body", is_flag=True, help="Bodies up to 64 KiB.")
@common_options
@click.pass_obj
def peek(
    invocation: Invocation, name: str, count: int, after: str | None, message_id: str | None, shows_body: bool
) -> None:
    """Look at messages, the oldest first, also those that somebody has acquired. Nothing is taken."""
    body_bytes = WHOLE_BODY_BYTES if shows_body else BODY_BYTES
    asked: dict[str, Any] = {"count": count, "after": after} if message_id is None else {"id": message_id}
    answer = facts_of(
        invocation.call("queues", action="peek", name=name, body_bytes=body_bytes, bytes=1024 * 1024, **asked)
    )
    if invocation.format != "table":
        print_document(answer, invocation.format)
        return
    rows = answer["messages"]
    if message_id is not None or shows_body:
        for row in rows:
            _print_message(row)
        return
    print_rows([_summary(row, time.time()) for row in rows], COLUMNS, invocation.format)
    if answer.get("replica"):
        click.echo("this is what a backup holds; the primary may be ahead of it", err=True)
    if answer.get("taking_over"):
        click.echo(TAKING_OVER, err=True)
    elif rows and not answer["whole"]:
        click.echo(f"there are more: --after {answer['last']}", err=True)


def _summary(row: dict[str, Any], now_s: float) -> dict[str, Any]:
    came_ms, body = row["enqueued_ms"], row.get("body")
    text = row.get("unreadable") or ("" if body is None else str(body["content"]))
    return {
        **row,
        "age_s": None if came_ms is None else max(round(now_s - came_ms / 1000), 0),
        "deliveries": row["delivery_count"],
        "subject": row.get("properties", {}).get("subject", ""),
        "body": text if len(text) <= BODY_SHOWN else f"{text[:BODY_SHOWN]}...",
    }


def _print_message(row: dict[str, Any]) -> None:
    """A line for each thing that is known, and then the body."""
    body = row.pop("body", None)
    for name, value in row.items():
        if value not in (None, {}):
            click.echo(f"{name}: {cell(value)}")
    if body is not None:
        cut = ", cut" if body["truncated"] else ""
        click.echo(f"body ({body['kind']}, {body['bytes']} bytes, {body['encoding']}{cut}):")
        for line in str(body["content"]).splitlines():
            click.echo(f"  {cell(line)}")
    click.echo()


def _selection_options(command: Command) -> Command:
    """Add the options that say which messages are meant; the command gets them as a request has them."""
    for option in (
        click.option("--selector", metavar="SELECTOR", help="Those that match only, as \"colour = 'red'\"."),
        click.option("--id", metavar="ID", help="This message alone."),
        click.option("--count", type=click.IntRange(min=1), help="The oldest so many only."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("name", metavar="FROM")
@click.argument("to")
@_selection_options
@common_options
@click.pass_obj
def move(invocation: Invocation, /, **asked: object) -> None:
    """Move messages that nobody has acquired to another queue of the same resource set.

    Each is in one of the two queues at any time, whatever fails. A move that was interrupted can be repeated.
    """
    _go_elsewhere(invocation, "move", asked, "{moved_messages} moved from queue {name} to {to}")


@click.command()
@click.argument("name", metavar="FROM")
@click.argument("to")
@_selection_options
@common_options
@click.pass_obj
def copy(invocation: Invocation, /, **asked: object) -> None:
    """Copy messages to another queue of the same resource set; they stay where they are.

    Copies are messages of their own. A copy that was interrupted and is repeated makes those again that it had made.
    """
    _go_elsewhere(invocation, "copy", asked, "{copied_messages} copied from queue {name} to {to}")


@click.command()
@click.argument("name", metavar="QUEUE")
@click.argument("to", metavar="[TO]", required=False)
@_selection_options
@common_options
@click.pass_obj
def retry(invocation: Invocation, /, **asked: object) -> None:
    """Move dead letters in QUEUE back to where they died, to be delivered again; with TO to that queue only.

    What says of no such queue, or of one that is not there or in another resource set, stays. A message says itself
    where it died: who may publish to QUEUE can say anything.
    """
    _go_elsewhere(invocation, "retry", asked, "{moved_messages} of queue {name} {are} to be delivered again{where}")


@click.command()
@click.argument("name", metavar="QUEUE")
@click.argument("exchange")
@click.option("--key", metavar="KEY", help="The routing key of all of them; default: of each its own subject.")
@_selection_options
@common_options
@click.pass_obj
def redirect(invocation: Invocation, /, **asked: object) -> None:
    """Publish messages in QUEUE that nobody has acquired to EXCHANGE, and take them out of QUEUE.

    Each comes to all queues to which the bindings of EXCHANGE lead with it, or stays in QUEUE: if none does, or if one
    of the queues is full. The queues are of the same resource set as QUEUE; QUEUE itself may be among them. A redirect
    that was interrupted can be repeated.
    """
    _go_elsewhere(invocation, "redirect", asked, "{moved_messages} of queue {name} published to {exchange}{where}")


def _go_elsewhere(invocation: Invocation, action: str, asked: dict[str, object], text: str) -> None:
    """Carry out `action` (move, copy, retry or redirect), which may take as long as there are messages, and say what
    came of it. `text` has the names of what is asked and answered in braces; `moved_messages`: how many; `where`: which
    queues they came to."""
    answer = facts_of(invocation.call("queues", usual_timeout_s=MOVE_TIMEOUT_S, action=action, **asked))
    targets = answer.get("to") or {}
    where = ""
    if isinstance(targets, dict):
        where = ", ".join(f"{count} to {queue}" for queue, count in sorted(targets.items()))
    counts = {f"{how}_messages": counted(answer.get(how), "message") for how in ("moved", "copied")}
    are = "is" if answer.get("moved") == 1 else "are"
    values = {**asked, **counts, "are": are, **answer, "where": f": {where}" if where else ""}
    print_outcome(answer, f"{text.format_map(values)}{_staying(answer)}", invocation.format)


def _staying(answer: dict[str, Any]) -> str:
    reasons = (
        ("held", "which consumers hold"),
        ("passed", "which are not meant"),
        ("unrouted", "which no binding takes"),
        ("full", f"for which there is no room: {answer.get('no_room')}"),
    )
    return "".join(
        f"; {answer[name]} {'stays' if answer[name] == 1 else 'stay'}, {reason}"
        for name, reason in reasons
        if answer.get(name)
    )


@click.command("export")
@click.argument("name", metavar="QUEUE")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="FILE may be there already.")
@common_options
@click.pass_obj
def export_queue(invocation: Invocation, name: str, path: Path, force: bool) -> None:
    """Write a copy of all messages to FILE, as their publishers sent them. Nothing is taken from the queue."""
    if path.exists() and not force:
        raise CliFailure(f"{path} is there already: give --force to write over it", NO)
    beside = path.with_name(f".{path.name}.new")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            count = _write_messages(invocation, name, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise CliFailure(f"cannot write {path}: {error.strerror or error}", NO) from None
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
    print_outcome(
        {"queue": name, "messages": count}, f"{counted(count, 'message')} of queue {name} written", invocation.format
    )


def _write_messages(invocation: Invocation, name: str, file: BinaryIO) -> int:
    count = 0
    file.write(header_line(str(uuid.uuid4()), name, at_ms=int(time.time() * 1000)))
    for message_id, enqueued_ms, payload in _payloads(invocation, name):
        count += 1
        file.write(message_line(count, message_id, enqueued_ms, payload))
    file.write(end_line(count))
    return count


def _payloads(invocation: Invocation, name: str) -> Iterator[tuple[str, int | None, bytes]]:
    """The messages that were there at the beginning; one that leaves before it is read, or while it is, is left out."""
    facts = _whole_facts(invocation, name)
    # Of a queue of which it has no replica the broker knows no figures: asked for messages, it says who has one.
    last, after, parts, part_id = int(facts.get("newest_message", 1 << 64)), "0", bytearray(), ""
    part_of = 0
    while int(after) < last:
        answer = facts_of(
            invocation.call("queues", action="payload", name=name, after=after, offset=len(parts) or None)
        )
        for row in answer["messages"]:
            if int(row["id"]) > last:
                return
            if "unreadable" in row:
                raise CliFailure(f"message {row['id']} cannot be read: {row['unreadable']}", NO)
            if (row["id"], row["size"]) != (part_id, part_of):  # the one before has left, or was annotated, meanwhile
                parts, part_id, part_of = bytearray(), row["id"], row["size"]
            if row["offset"] != len(parts):
                break  # another message is first now: ask for it from its beginning
            parts += base64.b64decode(row["payload"])
            if len(parts) < row["size"]:
                break
            yield row["id"], row["enqueued_ms"], bytes(parts)
            after, parts, part_id = row["id"], bytearray(), ""
        if answer["whole"] and not parts and not part_id:
            return
        if answer.get("taking_over"):  # the primary has changed meanwhile
            time.sleep(TAKES_OVER_PAUSE_S)


def _whole_facts(invocation: Invocation, name: str) -> dict[str, Any]:
    """Of a queue, once its broker knows all of its messages that were confirmed."""
    until_s = time.monotonic() + TAKES_OVER_MOST_S
    while (facts := facts_of(invocation.call("queues", action="read", name=name))).get("taking_over"):
        if time.monotonic() > until_s:
            raise CliFailure(f"queue {name} was not read: {TAKING_OVER}", NO)
        time.sleep(TAKES_OVER_PAUSE_S)
    return facts


@click.command("import")
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("name", metavar="QUEUE")
@click.option(
    "--run",
    metavar="TEXT",
    default="",
    help="A name for this import: with the same one, and the same FILE and QUEUE, a message comes once only.",
)
@common_options
@click.pass_obj
def import_queue(invocation: Invocation, path: Path, name: str, run: str) -> None:
    """Publish the messages of FILE to QUEUE, which has to be there. One that was interrupted can be repeated.

    Nothing is sent before the whole file was read and found whole.
    """
    from qpid_ha_agent.message_import import ImportFailed, QueueImport, producer_name  # Proton takes long to import

    try:
        with path.open("rb") as file:
            count = sum(1 for _ in MessageFile(file).messages())
    except FileDamaged as problem:
        raise CliFailure(f"{path}, {problem}; nothing was sent", NO) from None
    except OSError as error:
        raise CliFailure(f"cannot read {path}: {error.strerror or error}", NO) from None
    place = amqp_place(invocation)
    facts_of(invocation.call("queues", action="read", name=name))
    sent = 0
    try:
        target = QueueImport(*place, name, invocation.timeout_s or IMPORT_TIMEOUT_S)
        try:
            if not target.knows_copies:
                click.echo("this broker knows no copies (deduplication.producers is 0): do not repeat it", err=True)
            with path.open("rb") as file:
                source = MessageFile(file)
                producer = producer_name(source.export, name, run)
                for message in source.messages():
                    target.send(message.payload, producer, message.number)
                    sent += 1
        finally:
            target.close()
    except ImportFailed as problem:
        again = "repeat the same command to go on without copies"
        raise CliFailure(f"{sent} of {count} messages are in queue {name}, and then: {problem}; {again}", NO) from None
    except FileDamaged as problem:
        raise CliFailure(f"{path} was changed meanwhile: {problem}; {sent} of {count} messages were sent", NO) from None
    there = counted(sent, "message is", "messages are")
    text = f"{there} in queue {name}; what an earlier run had brought there is not there twice"
    print_outcome({"queue": name, "messages": sent}, text, invocation.format)


def amqp_place(invocation: Invocation) -> tuple[Address, Login]:
    """Where to publish, and as whom: at the broker's first plain listener where its control socket is meant."""
    from qpid_ha_agent.login import find_login, nobody

    broker = find_broker(invocation.broker)
    if isinstance(broker, Address):
        if broker.scheme in ADMIN_PORTS:
            raise CliFailure("messages are published through AMQP: give -b amqp://[USER@]HOST[:PORT]", USAGE)
        return find_login(broker, invocation.password_file, os.environ)
    listening = str(facts_of(invocation.call("query")).get("listening", "")).split(", ")
    for text in listening:
        with suppress(ValueError):
            address = parse_broker(text)
            if not address.is_tls:
                wild = {"0.0.0.0": "127.0.0.1", "::": "::1"}
                return address._replace(host=wild.get(address.host, address.host)), nobody()
    raise CliFailure(
        f"it listens at no plain AMQP address ({cell(', '.join(listening))}): give -b amqps://USER@HOST", UNREACHABLE
    )
