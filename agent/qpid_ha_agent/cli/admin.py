"""`qpid-ha`: asking and administering a broker from the command line."""

from __future__ import annotations

import click

from qpid_ha_agent.cli.exchange import exchange
from qpid_ha_agent.cli.invocation import NO, Invocation, common_options, unexpected
from qpid_ha_agent.cli.output import print_document, print_facts
from qpid_ha_agent.cli.parameters import read_changes
from qpid_ha_agent.cli.queue import queue

STATES = ("standalone", "connecting", "catchup", "ready", "primary", "stopping")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@common_options
@click.pass_context
def admin(context: click.Context) -> None:
    """Ask and administer a qpid-ha broker.

    Exit codes: 0 yes or done, 1 no or refused, 2 usage, 3 the broker cannot be reached.
    """
    context.ensure_object(Invocation)


@admin.command()
@common_options
@click.pass_obj
def ping(invocation: Invocation) -> None:
    """Is the broker there?"""
    answer = _facts(invocation.call("ping"))
    if invocation.format == "table":
        click.echo(f"{answer.get('name')} is alive")
    else:
        print_document(answer, invocation.format)


@admin.command()
@click.option("--expect", type=click.Choice(STATES), metavar="STATE", help="Say nothing; 0 if it is in STATE, else 1.")
@click.option("--is-primary", is_flag=True, help="Say nothing; 0 if it is the primary, else 1.")
@common_options
@click.pass_context
def status(context: click.Context, expect: str | None, is_primary: bool) -> None:
    """The state of the broker, on one line."""
    if expect is not None and is_primary:
        raise click.UsageError("--is-primary is --expect primary: give one of them")
    invocation: Invocation = context.obj
    facts = _facts(invocation.call("status"))
    wanted = "primary" if is_primary else expect
    if wanted is not None:
        context.exit(0 if facts.get("state") == wanted else NO)
    if invocation.format == "table":
        click.echo(facts.get("state"))
    else:
        print_document(facts, invocation.format)


@admin.command()
@common_options
@click.pass_obj
def query(invocation: Invocation) -> None:
    """Facts and figures of the broker."""
    print_facts(_facts(invocation.call("query")), invocation.format)


@admin.command()
@click.argument("key", required=False)
@common_options
@click.pass_obj
def get(invocation: Invocation, key: str | None) -> None:
    """Settings of the running broker: all of them, or the bare value of KEY."""
    settings = _facts(invocation.call("get", key=key))
    if key is not None and invocation.format == "table":
        value = settings.get(key)
        click.echo(str(value).lower() if isinstance(value, bool) else value)
    else:
        print_facts(settings, invocation.format)


@admin.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="KEY VALUE | KEY=VALUE ...")
@common_options
@click.pass_obj
def set_settings(invocation: Invocation, words: tuple[str, ...]) -> None:
    """Change settings of the running broker, until it restarts. `--KEY VALUE` works too."""
    for key, value in read_changes(words):
        change = _facts(invocation.call("set", key=key, value=value))
        if invocation.format == "table":
            click.echo(f"{change.get('key')}: {change.get('old')} -> {change.get('new')}")
        else:
            print_document(change, invocation.format)


admin.add_command(queue)
admin.add_command(exchange)


def _facts(result: object) -> dict[str, object]:
    if not isinstance(result, dict):
        raise unexpected(result)
    return result


def main() -> None:
    """The console script."""
    admin(prog_name="qpid-ha")


if __name__ == "__main__":
    main()
