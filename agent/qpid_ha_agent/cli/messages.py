"""`qpid-ha send|receive|perf`: messages from a shell, to and from any broker that speaks AMQP 1.0."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from qpid_ha_agent.cli.invocation import MAY_NOT, NO, UNREACHABLE, USAGE, CliFailure, Invocation, common_options
from qpid_ha_agent.cli.output import cell, print_document
from qpid_ha_agent.cli.queue_messages import amqp_place
from qpid_ha_agent.control import Forbidden, Unreachable
from qpid_ha_broker.events.counted import counted

if TYPE_CHECKING:
    from qpid_ha_agent.login import Login
    from qpid_ha_agent.messaging.exchange import MessageLine, SendResult
    from qpid_ha_agent.messaging.perf import PerfFigures, PerfPlan
    from qpid_ha_config.addresses import Address

USUAL_TIMEOUT_S = 30.0
BARS = 40
"""Characters of the longest bar of a histogram."""
NEAREST = 3
"""Names that may have been meant where there is nothing."""
NAMES_TIMEOUT_S = 3.0
"""To ask for the names that there are: only to say them."""
Command = TypeVar("Command", bound=Callable[..., Any])


def tls_option(command: Command) -> Command:
    """Whom to believe where TLS is spoken."""
    return click.option(
        "--ca",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Who signs the broker's certificate (PEM); default: tls.ca of this machine's configuration where that"
        " lists the broker, else the system's authorities.",
    )(command)


def create_option(command: Command) -> Command:
    """Whether an address at which nothing is may be made: without it, it is taken for a typing error."""
    text = "Where nothing is at ADDRESS, let the broker make a queue, as its auto-create says; else it is refused."
    return click.option("--create", is_flag=True, help=text)(command)


@click.command()
@click.argument("address")
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@click.option("--file", "path", type=click.Path(dir_okay=False, path_type=Path), help="The body is what is in there.")
@click.option("--lines", is_flag=True, help="A message for each line of the standard input, as it comes.")
@click.option("--count", type=click.IntRange(min=1), default=1, show_default=True, help="Each body so many times.")
@click.option("--durable/--transient", default=True, show_default=True, help="Kept on disk, where the broker has one.")
@click.option("--priority", type=click.IntRange(0, 9), help="Left out: 4.")
@click.option(
    "--ttl", "ttl_s", type=click.FloatRange(min=0.001), metavar="SECONDS", help="After which nobody needs it."
)
@click.option("--subject", help="At an exchange the routing key.")
@click.option("--reply-to", metavar="ADDRESS", help="Where an answer goes.")
@click.option("--correlation-id", metavar="ID", help="As text.")
@click.option("--content-type", metavar="TYPE", help="Such as application/json.")
@click.option("--group-id", metavar="GROUP", help="As text.")
@click.option("-p", "--property", "properties", metavar="NAME=VALUE", multiple=True, help="An application property.")
@click.option("-a", "--annotation", "annotations", metavar="NAME=VALUE", multiple=True, help="Of the message.")
@click.option("--binary", is_flag=True, help="Bodies are binary, not text.")
@click.option("--at-most-once", is_flag=True, help="Do not wait for what becomes of them.")
@create_option
@tls_option
@common_options
@click.pass_obj
def send(
    invocation: Invocation, /, address: str, ca: str | None, at_most_once: bool, create: bool, **asked: Any
) -> None:
    """Send messages to ADDRESS: a queue, an exchange, or EXCHANGE/KEY. Without BODY, --file and --lines an empty one.

    VALUE is a number, true or false where it looks like one, and else text; in double quotes it is text in any case.
    The password of a user in -b amqps://USER@HOST is in --password-file or QPID_HA_PASSWORD, never in the command.
    Exit code 1: the broker did not take all of them.
    """
    messages = _messages(**asked)
    with _line(invocation, ca) as line, _at(invocation, address):
        try:
            result = line.send(address, messages, settled=at_most_once, is_slow=asked["lines"], create=create)
        except UnicodeDecodeError as error:
            raise CliFailure(f"a line is no text in UTF-8 ({error}); those before it were sent", NO) from None
    _tell_sent(result, invocation.format, "sent" if at_most_once else "accepted")


def _messages(
    bodies: tuple[str, ...], path: Path | None, lines: bool, count: int, binary: bool, **fields: Any
) -> Iterator[Any]:
    """What is to be sent, as it is asked for. Raises UsageError or CliFailure before anything is."""
    from qpid_ha_agent.messaging.making import MakingError, MessageOptions, lines_of, make_message, read_pairs

    if sum((bool(bodies), path is not None, lines)) > 1:
        raise click.UsageError("give bodies, --file or --lines, one of the three")
    try:
        for name in ("properties", "annotations"):
            fields[name] = read_pairs(fields[name], name)
    except MakingError as error:
        raise click.UsageError(str(error)) from None
    options = MessageOptions(**fields)
    texts: Iterable[Any] = lines_of(sys.stdin) if lines else [_read(path, binary)] if path else bodies or [""]
    encoded = (text.encode() if binary and isinstance(text, str) else text for text in texts)
    return (make_message(body, options) for body in encoded for _ in range(count))


def _read(path: Path, binary: bool) -> str | bytes:
    try:
        data = path.read_bytes()
        return data if binary else data.decode("utf-8")
    except UnicodeDecodeError:
        raise CliFailure(f"{path} is no text in UTF-8: give --binary", USAGE) from None
    except OSError as error:
        raise CliFailure(f"cannot read {path}: {error.strerror or error}", NO) from None


def _tell_sent(result: SendResult, format_name: str, done: str) -> None:
    facts = {"sent": result.sent, **dict(result.outcomes), "problem": result.reason or None}
    if format_name != "table":
        print_document(facts, format_name)
    else:
        click.echo(f"{counted(result.sent, 'message')} sent, {result.outcomes['accepted']} {done}", err=True)
    if not result.is_accepted:
        others = ", ".join(f"{number} {name}" for name, number in result.outcomes.items() if name != "accepted")
        raise CliFailure(f"not all were accepted: {others}; the first: {result.reason}", NO)


@click.command()
@click.argument("address")
@click.option("--count", type=click.IntRange(min=1), help="So many; left out: all that come.")
@click.option(
    "--wait", "wait_s", type=click.FloatRange(min=0), metavar="SECONDS", help="End if none comes for so long."
)
@click.option("--browse", is_flag=True, help="Look at them, and leave them there.")
@click.option("--selector", metavar="TEXT", help="Those alone, such as \"color = 'red' AND JMSPriority > 4\".")
@create_option
@tls_option
@common_options
@click.pass_obj
def receive(invocation: Invocation, /, address: str, ca: str | None, count: int | None, **asked: Any) -> None:
    """Receive messages from ADDRESS: a queue, an exchange, or EXCHANGE/KEY. Each is accepted once it was printed.

    With --format json a line of JSON for each, with header, properties, annotations and body; else a line with the
    body. Exit code 1: --count was given, and not so many came.
    """
    from qpid_ha_agent.messaging.making import body_text, message_facts

    came = 0
    with _line(invocation, ca) as line, _at(invocation, address):
        try:
            for message in line.receive(address, count=count, **asked):
                if invocation.format == "table":
                    click.echo(body_text(message))
                elif invocation.format == "json":
                    click.echo(json.dumps(message_facts(message), ensure_ascii=False))
                else:
                    click.echo("---")
                    print_document(message_facts(message), invocation.format)
                sys.stdout.flush()
                came += 1
        except KeyboardInterrupt:
            click.echo(f"{counted(came, 'message')} received", err=True)
            return
    click.echo(f"{counted(came, 'message')} received", err=True)
    if count is not None and came < count:
        raise CliFailure(f"{count} were to come, and {came} came", NO)


@click.command()
@click.argument("address")
@click.option("--producers", type=click.IntRange(0, 100), default=1, show_default=True, help="Each a connection.")
@click.option("--consumers", type=click.IntRange(0, 100), default=1, show_default=True, help="Each a connection.")
@click.option("--count", type=click.IntRange(min=1), help="Messages of all producers together.")
@click.option(
    "--duration", "duration_s", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Without a count: 10."
)
@click.option("--size", type=click.IntRange(0, 100_000_000), default=100, show_default=True, help="Bytes of a body.")
@click.option("--rate", type=click.FloatRange(min=0), default=0.0, help="Messages a second of all; 0: no limit.")
@click.option("--durable/--transient", default=False, show_default=True, help="Kept on disk, where the broker has one.")
@click.option("--window", type=click.IntRange(1, 100_000), default=500, show_default=True, help="Unconfirmed of each.")
@click.option("--prefetch", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Credit of each.")
@click.option("--histogram/--no-histogram", default=True, help="How many took how long.")
@create_option
@tls_option
@common_options
@click.pass_obj
def perf(invocation: Invocation, /, ca: str | None, histogram: bool, **asked: Any) -> None:
    """Measure producers and consumers of ADDRESS: rates, and how long confirmations and messages take.

    They are all in this process, on one core: what it says of a broker ends where this process does (its processor time
    is told). ADDRESS should be a queue that nobody else uses, and empty. Ctrl-C ends it with what there is so far.
    Exit code 1: a message or a link was refused.
    """
    from qpid_ha_agent.messaging.perf import PerfPlan

    if not asked["producers"] and not asked["consumers"]:
        raise click.UsageError("with neither producers nor consumers there is nothing to measure")
    if asked["count"] is None and asked["duration_s"] is None:
        asked["duration_s"] = 10.0
    figures = _measure(invocation, PerfPlan(**asked), ca)
    if invocation.format != "table":
        print_document(figures.document(), invocation.format)
    else:
        _print_figures(figures, histogram)
    if figures.is_missing:
        raise _nothing_at(invocation, asked["address"], figures.reason)
    if figures.refused or figures.reason:
        raise CliFailure(f"{counted(figures.refused, 'message was', 'messages were')} refused; {figures.reason}", NO)


def _measure(invocation: Invocation, plan: PerfPlan, ca: str | None) -> PerfFigures:
    """Raises CliFailure where there is nobody to measure."""
    from proton.reactor import Container

    from qpid_ha_agent.messaging.perf import Measurement
    from qpid_ha_agent.remote_control import connect_options

    broker, login = _place(invocation, ca)
    with _line(invocation, ca):  # a wrong login, or nobody there, is told as of every command
        pass
    measurement = Measurement(plan)
    container = Container(measurement)
    connections = [
        container.connect(str(broker), reconnect=False, **connect_options(broker, login))
        for _ in range(plan.producers + plan.consumers)
    ]
    measurement.attach(container, connections)
    try:
        container.run()
    except KeyboardInterrupt:
        measurement.note_times()
    return measurement.figures


def _print_figures(figures: PerfFigures, histogram: bool) -> None:
    document = figures.document()
    for name in ("sent", "confirmed", "refused", "received", "seconds", "sent_per_s", "received_per_s", "processor_s"):
        click.echo(f"{name:<16}{document[name]:>14}")
    for title, latencies in (("send to confirmation", figures.confirm), ("send to receipt", figures.transit)):
        if not latencies.count:
            continue
        quantiles = "  ".join(f"{name} {value:g}" for name, value in latencies.summary_ms().items())
        click.echo(f"\n{title}, ms:  {quantiles}")
        rows = latencies.histogram() if histogram else []
        most = max((count for _, count in rows), default=1)
        for end_ms, count in rows:
            click.echo(f"  < {end_ms:>12.3f} {count:>10} {'#' * round(BARS * count / most)}".rstrip())


def _place(invocation: Invocation, ca: str | None) -> tuple[Address, Login]:
    with _failures():
        broker, login = amqp_place(invocation)
        return broker, login if ca is None else login._replace(tls=login.tls._replace(ca=ca))


@contextmanager
def _line(invocation: Invocation, ca: str | None) -> Iterator[MessageLine]:
    """A connection, whose failures end the command."""
    from qpid_ha_agent.messaging.exchange import MessageLine

    broker, login = _place(invocation, ca)
    with _failures():
        line = MessageLine(broker, login, invocation.timeout_s or USUAL_TIMEOUT_S)
        try:
            yield line
        finally:
            line.close()


@contextmanager
def _at(invocation: Invocation, address: str) -> Iterator[None]:
    """What is asked of an address at which there may be nothing."""
    from qpid_ha_agent.messaging.exchange import NoSuchAddress

    try:
        yield
    except NoSuchAddress as refusal:
        raise _nothing_at(invocation, address, str(refusal)) from None


def _nothing_at(invocation: Invocation, address: str, refusal: str) -> CliFailure:
    """With what is called nearly so, as far as we may ask for names."""
    names = [str(row.get("name")) for kind in ("queues", "exchanges") for row in _quietly(invocation, kind)]
    near = get_close_matches(address, names, NEAREST) or get_close_matches(address.partition("/")[0], names, NEAREST)
    meant = f"; nearest: {', '.join(map(cell, near))}" if near else ""
    return CliFailure(f"{refusal}{meant}; --create has the broker make a queue where its auto-create is on", NO)


def _quietly(invocation: Invocation, method: str) -> list[Any]:
    try:
        return replace(invocation, timeout_s=NAMES_TIMEOUT_S).rows(method)
    except CliFailure:  # a broker that has no such method, or does not tell us
        return []


@contextmanager
def _failures() -> Iterator[None]:
    """What comes of a broker, as an exit code."""
    from qpid_ha_agent.broker_address import AddressError
    from qpid_ha_agent.messaging.exchange import RefusedByBroker
    from qpid_ha_config.errors import ConfigError

    try:
        yield
    except RefusedByBroker as refusal:
        raise CliFailure(str(refusal), NO) from None
    except Forbidden as problem:
        raise CliFailure(str(problem), MAY_NOT) from None
    except Unreachable as error:
        raise CliFailure(str(error), UNREACHABLE) from None
    except (AddressError, ConfigError) as error:
        raise CliFailure(str(error), USAGE) from None


message_commands = (send, receive, perf)
