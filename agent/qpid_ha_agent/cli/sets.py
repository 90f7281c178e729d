"""`qpid-ha set`, `brokers`, `map`, `replicas`, `rebalance`, `drain`: a cluster of many resource sets.

Any broker of the cluster can be asked: it passes on to the controller, the primary of `default`, what is for that one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from qpid_ha_agent.cli.cluster import CHANGE_TIMEOUT_S, NAMED_SETS, operator_text
from qpid_ha_agent.cli.command_groups import ListedGroup
from qpid_ha_agent.cli.invocation import (
    NO,
    UNREACHABLE,
    CliFailure,
    Invocation,
    common_options,
    completed,
    facts_of,
    rows_of,
)
from qpid_ha_agent.cli.output import cell, print_document, print_facts, print_outcome, print_rows
from qpid_ha_agent.cli.parameters import duration, policy
from qpid_ha_agent.cli.questions import ask_first, yes_option
from qpid_ha_agent.cli.refreshing import watchable
from qpid_ha_agent.cli.set_tables import BROKER_COLUMNS, SET_COLUMNS, WHOLE, print_problems, print_sets, set_rows
from qpid_ha_agent.cli.settings import set_of_qpid
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.types import STRATEGIES

PLAN_COLUMNS = ("set", "step", "broker", "why")
MOVE_COLUMNS = ("set", "source", "to", "why")
POLICY_COLUMNS = ("pattern", "replicas", "origin")
DRAIN_STEP_S = 0.5
REBALANCE_STEP_S = 0.1
LEVEL = ("primary", "ready")
"""States of a replica that lacks nothing."""


class _SetGroup(ListedGroup):
    """`qpid-ha set` was there before resource sets were: what names no command of this group is a setting."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in self.commands:
            return super().resolve_command(context, args)
        return set_of_qpid.name, set_of_qpid, args


@click.group("set", cls=_SetGroup, context_settings={"ignore_unknown_options": True})
@common_options
def resource_set() -> None:
    """Resource sets of the cluster."""


@resource_set.command("list")
@click.option(
    "--wait",
    "wait_s",
    type=duration,
    metavar="DURATION",
    help="Until each set is ok, with all its replicas, for so long at most, such as 10m; else 1, and it says which"
    " are not.",
)
@common_options
@watchable("wait_s")
@click.pass_obj
def list_sets(invocation: Invocation, wait_s: float | None) -> None:
    """All sets, one per line."""
    if wait_s is not None:
        _await_ok(invocation, wait_s)
        return
    sets = rows_of(invocation.call("sets", action="list"))
    print_rows(set_rows(sets) if invocation.format == "table" else sets, SET_COLUMNS, invocation.format)
    print_problems(sets)


def _await_ok(invocation: Invocation, wait_s: float) -> None:
    """Come back when no set wants anything.

    Raises CliFailure: after `wait_s`, or for what no waiting mends.
    """
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            sets = rows_of(invocation.call("sets", action="list"))
        except CliFailure as failure:  # a controller, or the broker, may come
            if failure.exit_code not in (NO, UNREACHABLE) or time.monotonic() >= deadline_s:
                raise
        else:
            lacking = [f"{row.get('name')} ({why})" for row in sets if (why := why_not_whole(row))]
            if not lacking:
                return
            if time.monotonic() >= deadline_s:
                named = ", ".join(lacking[:NAMED_SETS]) + (", ..." if len(lacking) > NAMED_SETS else "")
                raise CliFailure(f"{len(lacking)} of {len(sets)} sets are not ok after {wait_s:g} s: {named}", NO)
        time.sleep(min(DRAIN_STEP_S, max(0.0, deadline_s - time.monotonic())))


def why_not_whole(row: Mapping[str, Any]) -> str:
    """Empty: any one of its replicas could be lost now, and the rest is what it was."""
    if row.get("state") != WHOLE:
        return str(row.get("state"))
    replicas = row.get("replicas")
    states = replicas.items() if isinstance(replicas, Mapping) else ()
    return next((f"{name} is {state or 'not there yet'}" for name, state in states if state not in LEVEL), "")


@resource_set.command("show")
@click.argument("name", metavar="SET")
@common_options
@watchable()
@click.pass_obj
def show_set(invocation: Invocation, name: str) -> None:
    """One set: its replicas, its record, and what it waits for."""
    print_facts(facts_of(invocation.call("sets", action="show", name=name)), invocation.format)


@resource_set.command("create")
@click.argument("name", metavar="SET")
@click.option("--replica", "replicas", multiple=True, metavar="BROKER", help="Where; repeatable. Default: placed.")
@click.option("--min-replicas", type=click.IntRange(min=1), help="How many it wants. Default: as the policies say.")
@click.option("--min-in-sync", type=click.IntRange(min=1), help="That must hold a message. Default: ha.min-in-sync.")
@click.option("--preferred", metavar="BROKER", help="Who should be its primary.")
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    help="group: each of its brokers serves it, and there is no failover. Default: primary, with backups.",
)
@common_options
@click.pass_obj
def create_set(invocation: Invocation, /, name: str, replicas: tuple[str, ...], **wanted: Any) -> None:
    """Make a set; it is there once its primary, or a member of the group, serves."""
    _do(invocation, "sets", action="create", name=name, replicas=list(replicas) or None, **wanted)


@resource_set.command("delete")
@click.argument("name", metavar="SET")
@click.option("--lost", is_flag=True, help="And its queues: nobody leads it, and who could will never come back.")
@yes_option
@common_options
@click.pass_obj
def delete_set(invocation: Invocation, name: str, lost: bool, is_sure: bool) -> None:
    """Delete a set that has no queues."""
    if lost:
        ask_first(f"All that is in the queues of set {name} is given up.", "Delete it with them?", is_sure=is_sure)
    _do(invocation, "sets", action="delete", name=name, lost=lost or None)


@resource_set.command("transfer")
@click.argument("name", metavar="SET")
@click.argument("to", metavar="BROKER", required=False)
@common_options
@click.pass_obj
def transfer(invocation: Invocation, name: str, to: str | None) -> None:
    """Let another replica be the primary of SET: nothing is lost."""
    with _interruptible(f"the transfer goes on; `qpid-ha set show {name}` shows it"):
        _do(invocation, "sets", action="transfer", name=name, to=to)


@resource_set.command("promote")
@click.argument("name", metavar="SET")
@click.argument("at", metavar="BROKER")
@click.option("--force", is_flag=True, help="Whatever that costs: what only others have confirmed is given up.")
@yes_option
@common_options
@click.pass_obj
def promote_replica(invocation: Invocation, name: str, at: str, force: bool, is_sure: bool) -> None:
    """Have BROKER lead SET, which nobody leads.

    Without --force it is refused where confirmed messages may be lost, and the answer says which and who has them.

    A group goes on by itself. If all brokers that were in sync in it are lost for good, --force has it begin again with
    the older copy that BROKER has.
    """
    if force:
        lost = f"What brokers other than {at} alone have confirmed in set {name} is given up."
        ask_first(lost, f"Have {at} lead it all the same?", is_sure=is_sure)
    _do(invocation, "sets", action="promote", name=name, broker=at, force=force or None)


@resource_set.command("add-replica")
@click.argument("name", metavar="SET")
@click.argument("at", metavar="[BROKER]", required=False)
@common_options
@click.pass_obj
def add_replica(invocation: Invocation, name: str, at: str | None) -> None:
    """Have one more replica of SET, at BROKER or where it is best."""
    _do(invocation, "sets", action="add-replica", name=name, broker=at)


@resource_set.command("remove-replica")
@click.argument("name", metavar="SET")
@click.argument("at", metavar="BROKER")
@click.option("--force", is_flag=True, help="Even if fewer are left than SET wants; the last one stays.")
@common_options
@click.pass_obj
def remove_replica(invocation: Invocation, name: str, at: str, force: bool) -> None:
    """Have no replica of SET at BROKER; the rest must be enough."""
    _do(invocation, "sets", action="remove-replica", name=name, broker=at, force=force or None)


@click.group("brokers", cls=ListedGroup, invoke_without_command=True)
@common_options
@watchable()
@click.pass_context
def brokers(context: click.Context) -> None:
    """Brokers of the cluster, one per line."""
    if context.invoked_subcommand is None:
        invocation: Invocation = context.obj
        rows = rows_of(invocation.call("brokers", action="list"))
        print_rows(rows, BROKER_COLUMNS, invocation.format)
        print_problems(rows)


@brokers.command()
@click.argument("name", metavar="BROKER")
@common_options
@click.pass_obj
def fail(invocation: Invocation, name: str) -> None:
    """BROKER is dead for certain, such as fenced: do not wait for its time-out."""
    _do(invocation, "brokers", action="fail", name=name)


@brokers.command()
@click.argument("name", metavar="BROKER")
@common_options
@click.pass_obj
def forget(invocation: Invocation, name: str) -> None:
    """BROKER is gone for good: it is of the cluster no more, and its replicas are made elsewhere."""
    _do(invocation, "brokers", action="forget", name=name)


@click.command()
@click.argument("name", metavar="BROKER")
@click.option("--force", is_flag=True, help="Even if sets have too few replicas then.")
@click.option("--no-wait", is_flag=True, help="Begin it, and do not wait until the broker may be stopped.")
@click.option("--wait", "wait_s", type=duration, default="10m", metavar="DURATION", help="So long at most.")
@common_options
@click.pass_obj
def drain(invocation: Invocation, name: str, force: bool, no_wait: bool, wait_s: float) -> None:
    """Empty BROKER, so that it may be stopped: its primaries go elsewhere, its replicas are made up for."""
    _do(invocation, "brokers", action="drain", name=name, force=force or None)
    if not no_wait:
        with _interruptible(f"{name} is drained all the same: `qpid-ha brokers` shows it, `undrain` takes it back"):
            _await_drained(invocation, name, wait_s)


def _await_drained(invocation: Invocation, name: str, wait_s: float) -> None:
    deadline_s, shown = time.monotonic() + wait_s, ""
    while True:
        row = next((row for row in rows_of(invocation.call("brokers", action="list")) if row.get("name") == name), None)
        if row is None:
            raise CliFailure(f"{name} is no broker of the cluster any more", NO)
        if row.get("state") == "drained":
            _tell(invocation, f"{name} is drained: it may be stopped")
            return
        reasons = row.get("why_not_to_stop")
        why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
        primaries = counted(row.get("primaries"), "primary", "primaries")
        text = f"{name}: {primaries} and {counted(row.get('replicas'), 'replica')} left"
        if why and not row.get("primaries") and not row.get("replicas"):
            text = f"{name}: {why}"
        if text != shown:
            shown = text
            _tell(invocation, text)
        if row.get("state") != "draining":
            raise CliFailure(f"{name} is {row.get('state')}, and is not drained any more", NO)
        if time.monotonic() >= deadline_s:
            raise CliFailure(f"{name} is not drained after {wait_s:g} s: {why}. It goes on meanwhile", NO)
        time.sleep(DRAIN_STEP_S)


@click.command()
@click.argument("name", metavar="BROKER")
@common_options
@click.pass_obj
def undrain(invocation: Invocation, name: str) -> None:
    """Let BROKER have replicas again."""
    _do(invocation, "brokers", action="undrain", name=name)


@click.command()
@click.option("--plan", is_flag=True, help="Say what would move, and why; move nothing.")
@common_options
@click.pass_obj
def rebalance(invocation: Invocation, plan: bool) -> None:
    """Move primaries to the brokers that they prefer, evenly else, one at a time."""
    if plan:
        print_rows(rows_of(invocation.call("rebalance", plan=True)), MOVE_COLUMNS, invocation.format)
        return
    begun = facts_of(invocation.call("rebalance", begin=True, cause=f"by {operator_text()}"))
    with _interruptible("the rest moves all the same; `qpid-ha rebalance --plan` shows what is left"):
        _show_moves(invocation, rows_of(begun.get("moves")))


def _show_moves(invocation: Invocation, moves: list[dict[str, Any]]) -> None:
    """Each move when it has ended. They are made one at a time, in this order."""
    ended, moved = 0, 0
    while ended < len(moves):
        left = facts_of(invocation.call("rebalance", left=True)).get("left")
        now_ended = len(moves) - left if isinstance(left, int) else len(moves)
        if now_ended > ended:
            primaries = {row.get("name"): row.get("primary") for row in rows_of(invocation.call("sets", action="list"))}
            for number, move in enumerate(moves[ended:now_ended], ended + 1):
                is_there = primaries.get(move["set"]) == move["to"]
                moved += is_there
                how = f"({move['why']})" if is_there else f"was not moved: {primaries.get(move['set'])} leads it"
                _tell(invocation, f"{number} of {len(moves)}: {move['set']}: {move['source']} -> {move['to']} {how}")
            ended = now_ended
        else:
            time.sleep(REBALANCE_STEP_S)
    text = f"{counted(moved, 'primary was', 'primaries were')} moved" if moves else "no primary has to be moved"
    print_outcome({"moved": moved, "planned": len(moves)}, text, invocation.format)
    if moved < len(moves):
        raise CliFailure(f"{len(moves) - moved} of {len(moves)} primaries were not moved: say it again", NO)


@click.group("replicas", cls=ListedGroup)
def replicas() -> None:
    """How many replicas sets have, and should have."""


@replicas.command("plan")
@common_options
@click.pass_obj
def plan_replicas(invocation: Invocation) -> None:
    """What the controller would add where, and why; also what it waits for."""
    print_rows(rows_of(invocation.call("replicas", action="plan")), PLAN_COLUMNS, invocation.format)


@replicas.command("trim")
@click.argument("name", metavar="SET", required=False)
@common_options
@click.pass_obj
def trim_replicas(invocation: Invocation, name: str | None) -> None:
    """Remove replicas that SET, or any set, has beyond what it wants."""
    _do(invocation, "replicas", action="trim", name=name)


@replicas.command("policies")
@click.argument("wanted", nargs=-1, metavar="[PATTERN=COUNT]...", type=policy)
@click.option("--none", "nothing", is_flag=True, help="Leave it to the settings.")
@common_options
@click.pass_obj
def replica_policies(invocation: Invocation, wanted: tuple[tuple[str, int], ...], nothing: bool) -> None:
    """How many replicas sets want: the first that matches counts.

    PATTERN=COUNT, such as 'audit-*=5' '*=3': these count in the whole cluster from now on, before the setting
    replica-policies of the controller, and in the place of those that were given before.
    """
    if wanted and nothing:
        raise click.UsageError("--none, or PATTERN=COUNT: not both")
    if wanted or nothing:
        _do(invocation, "replicas", action="policies", policies=[list(policy) for policy in wanted])
    else:
        print_rows(rows_of(invocation.call("replicas", action="list-policies")), POLICY_COLUMNS, invocation.format)


@click.command("map")
@common_options
@click.pass_obj
def cluster_map(invocation: Invocation) -> None:
    """The cluster map: brokers, sets, and which queue is in which."""
    facts = facts_of(invocation.call("map"))
    if invocation.format != "table":
        print_document(facts, invocation.format)
        return
    print_rows(rows_of(facts.get("brokers")), BROKER_COLUMNS, invocation.format)
    print_sets(rows_of(facts.get("sets")))
    print_rows(rows_of(facts.get("queues")), ("queue", "set"), invocation.format)


@contextmanager
def _interruptible(what_goes_on: str) -> Iterator[None]:
    """Who interrupts us has to know that the controller goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise CliFailure(f"interrupted; {what_goes_on}", NO) from None


def _do(invocation: Invocation, method: str, **params: Any) -> None:
    """Have it done, and say what came of it."""
    answer = facts_of(
        invocation.call(method, usual_timeout_s=CHANGE_TIMEOUT_S, cause=f"by {operator_text()}", **params)
    )
    if invocation.format != "table":
        print_document(answer, invocation.format)
    else:
        click.echo(completed(cell(answer.get("text", "done"))))


def _tell(invocation: Invocation, text: str) -> None:
    click.echo(cell(text), err=invocation.format != "table")


set_commands: tuple[click.Command, ...] = (resource_set, brokers, drain, undrain, rebalance, replicas, cluster_map)
