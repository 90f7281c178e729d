"""`qpid-ha restart` and `upgrade`: brokers and their agents, one after the other, and each only when that is safe.

Whose turn it is, `rolling_restart` says; here is what it needs: what brokers say, and the coordinator, by which the
broker's own agent is asked. This command restarts nothing itself, so whoever ends it leaves no broker half restarted.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from qpid_ha_agent.cli.cluster import operator_text, pause_text
from qpid_ha_agent.cli.coordinator import coordinator_failures
from qpid_ha_agent.cli.invocation import NO, UNREACHABLE, CliFailure, Invocation, common_options, rows_of
from qpid_ha_agent.cli.output import cell, print_outcome, utc_time_of_day
from qpid_ha_agent.cli.parameters import duration
from qpid_ha_agent.cli.pause_note import written_coordinator
from qpid_ha_agent.cli.sets import why_not_whole
from qpid_ha_agent.planned_restart import RESTART_NOTE, RestartRequest, Stage, decode_request, encode_request
from qpid_ha_agent.rolling_restart import (
    Awaited,
    BrokerFacts,
    ClusterFacts,
    Plan,
    RestartStep,
    SetFacts,
    StepKind,
    brokers_left,
    next_step,
)
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.ha.states import State

if TYPE_CHECKING:
    from qpid_ha_broker.coordination.coordinator import Coordinator
    from qpid_ha_config.settings import CoordinatorSettings

ANSWER_S = 5.0
"""For each broker that is asked about the cluster."""
LOOK_S = 0.5
TAKEN_WITHIN_S = 30.0
"""An agent looks every half second, and then finds out whether its broker would start again."""
SETTLE_S = 2.0
"""So long a cluster may look wrong after a change, made by whomever, before it is said to be."""


def _node_command(name: str, summary: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command about brokers that are named, or all of them."""

    def decorate(function: Callable[..., None]) -> click.Command:
        wrapped = click.pass_obj(function)
        for option in (
            common_options,
            click.option(
                "--dry-run", is_flag=True, help="Say what would be done, and do nothing; 1 if it is not safe now."
            ),
            click.option(
                "--wait",
                "wait_s",
                type=duration,
                default="10m",
                metavar="DURATION",
                help="For what mends itself, and for each broker to be back, for so long at most.  [default: 10m]",
            ),
            click.option(
                "--force",
                is_flag=True,
                help="Even if another broker is away, a set is not whole, or too few are left to confirm anything"
                " meanwhile: publishers may wait. Nothing that is confirmed is given up.",
            ),
            click.option(
                "--all", "everyone", is_flag=True, help="Every broker of the cluster; the primary is the last."
            ),
            click.argument("nodes", metavar="[NODE]...", nargs=-1),
        ):
            wrapped = option(wrapped)
        return click.command(name, short_help=summary)(wrapped)

    return decorate


@_node_command("restart", "Restart brokers and their agents, one by one, safely.")
def restart(invocation: Invocation, nodes: tuple[str, ...], **options: Any) -> None:
    """Restart the broker of each NODE and its agent, one after the other, and each only when that is safe.

    For clusters whose brokers run under qpid-ha-agent. The broker's own agent is asked by way of the coordinator: it
    has the broker hand over what it leads, stops it, and begins anew, with the programs and the configuration that are
    there then. The next one follows when it is in sync again, and all sets are whole. The primary is the last.

    Refused, with the reason: while another broker is away, while agents are paused, where one broker alone holds what
    is confirmed, where its new configuration would not start. It stops at the first broker that does not come back.
    """
    _run(invocation, nodes, version="", **options)


@_node_command("upgrade", "Have brokers and agents run the version that is installed, one by one.")
def upgrade(invocation: Invocation, nodes: tuple[str, ...], **options: Any) -> None:
    """Have the broker of each NODE and its agent run the version of this command: install it on all machines first.

    As `qpid-ha restart`, but for brokers that run this version already, which are left alone: asked again, it goes on
    where it was. Refused where another version is installed. This installs nothing.
    """
    from qpid_ha_broker import __version__

    _run(invocation, nodes, version=__version__, **options)


def _run(
    invocation: Invocation,
    nodes: tuple[str, ...],
    *,
    version: str,
    everyone: bool,
    force: bool,
    wait_s: float,
    dry_run: bool,
) -> None:
    from qpid_ha_broker.coordination.registry import open_coordinator

    verb = "upgrade" if version else "restart"
    if everyone == bool(nodes):
        raise click.UsageError(f"{verb} whom? Name brokers, as `qpid-ha status --all` does, or give --all")
    if invocation.broker is not None:
        raise click.UsageError("the coordinator carries the request, no broker does: leave -b out, and name the NODE")
    unreachable = "nobody is restarted while the coordinator does not answer: "
    with (
        coordinator_failures(unreachable),
        closing(open_coordinator(_agents_coordinator(verb, nodes))) as coordinator,
    ):
        rolling = _Rolling(invocation, coordinator, Plan(nodes, version, force), wait_s, verb)
        if dry_run:
            rolling.show_plan()
        else:
            rolling.run()


def _agents_coordinator(verb: str, nodes: tuple[str, ...]) -> CoordinatorSettings:
    """By which agents can be asked. Raises CliFailure, with what to do where there are none."""
    from qpid_ha_broker.coordination.pause import is_heeded_with

    settings = written_coordinator(None)
    if is_heeded_with(settings.url):
        return settings
    node = nodes[0] if nodes else "NODE"
    if settings.url.property_set is not None:
        raise CliFailure(
            f"Pacemaker starts and stops brokers here, so ask it, for one node after the other, the primary's last: "
            f"crm node standby {node}; crm node online {node} (pcs node standby {node}; pcs node unstandby {node}); "
            f"then qpid-ha -b amqp://{node}:5672 status --expect ready --wait 10m; docs/pacemaker.md#rolling-upgrade",
            NO,
        )
    raise CliFailure(
        f"ha.coordinator is none: no agent runs brokers here that could be asked. On {node}: systemctl restart qpid-ha;"
        " docs/runbooks/rolling-upgrade.md#by-hand",
        NO,
    )


@dataclass
class _Rolling:
    """One run of the command, over all its brokers."""

    invocation: Invocation
    coordinator: Coordinator
    plan: Plan
    wait_s: float
    verb: str
    _identity: str = ""
    """Of our last request."""
    _asked_at_s: float = 0.0
    _names: dict[str, str] = field(default_factory=dict)
    """{address: name} of all that were ever seen: a broker that is away does not say how it is called."""
    _shown: str = ""
    _facts: ClusterFacts = field(default_factory=lambda: ClusterFacts(()))
    _sources: list[Invocation] = field(default_factory=list)
    """Whom to ask about the cluster; who answered last is the first."""

    # --- the run

    def show_plan(self) -> None:
        """What `run` would do, as things are."""
        _note, facts = self._look()
        left = brokers_left(facts, self.plan)
        steps = [{"node": broker.name, "state": broker.state, "version": broker.version} for broker in left]
        step = next_step(facts, self.plan)
        hand_over = " and hands over first"
        lines = [f"would {self.verb}:" if left else f"nobody is left to {self.verb}"]
        for broker in left:
            standing = f"{broker.state or 'away'}{hand_over if broker.state is State.PRIMARY else ''}"
            version = f", version {broker.version}" if broker.version else ""
            lines.append(f"  {broker.name}  ({standing}{version}{_leads_text(facts, broker.name)})")
        document = {"steps": steps, "now": step.kind.value, "why": step.why, "advice": step.advice}
        if self.invocation.format == "table":
            for line in lines:
                click.echo(cell(line))
        else:
            print_outcome(document, "", self.invocation.format)
        if step.kind in (StepKind.REFUSE, StepKind.WAIT):
            raise CliFailure(f"not now: {_sentence(step)}", NO)

    def run(self) -> None:
        """Step by step. Raises CliFailure."""
        from qpid_ha_broker.coordination.coordinator import CoordinatorError

        try:
            try:
                self._run()
            finally:
                with suppress(CoordinatorError):
                    self._withdraw()
        except KeyboardInterrupt:
            raise CliFailure(f"interrupted{self._what_goes_on()}", NO) from None
        except CoordinatorError as error:
            raise CliFailure(f"the coordinator does not answer: {error}{self._what_goes_on()}", UNREACHABLE) from None

    def _what_goes_on(self) -> str:
        awaited = self.plan.awaited
        return f"{'' if awaited is None else f'; {awaited.name} goes on by itself'}. {self._how_to_go_on()}"

    def _withdraw(self) -> None:
        """A request that nobody has taken yet."""
        note = self.coordinator.read_note(RESTART_NOTE)
        request = self._own(note)
        if request is not None and request.stage is Stage.ASKED:
            self.coordinator.replace_note(RESTART_NOTE, note, "")

    def _run(self) -> None:
        self._say(self._title())
        began_s = refused_since_s = time.monotonic()
        while True:
            note, facts = self._look()
            step = next_step(facts, self.plan)
            now_s = time.monotonic()
            if step.kind is StepKind.DONE:
                return self._finish()
            if step.kind is StepKind.RESTART:
                self._note_back()
                if self._ask(step.node, note) and self._await_answer(step.node):
                    began_s = time.monotonic()
            elif step.kind is StepKind.REFUSE:
                if now_s - refused_since_s >= SETTLE_S:
                    raise self._failure(step)
            else:
                self._say(f"waits: {step.why}")
                if now_s - began_s >= self.wait_s:
                    raise self._failure(step, f" after {self.wait_s:g} s")
            if step.kind is not StepKind.REFUSE:
                refused_since_s = now_s
            time.sleep(LOOK_S)

    def _title(self) -> str:
        whom = ", ".join(self.plan.wanted) or "all brokers"
        return f"{self.verb} of {whom}" + (f" to {self.plan.version}" if self.plan.version else "")

    def _finish(self) -> None:
        self._note_back()
        done = sorted(self.plan.done)
        primary = ", ".join(self._facts.primaries)
        text = f"{', '.join(done)} restarted; {primary} is primary" if done else "nothing to do"
        if self.plan.version:
            text += f"; {'all run' if not self.plan.wanted else 'they run'} {self.plan.version}"
        if self._facts.sets and done:
            text += "; `qpid-ha rebalance` brings primaries of sets back to where they should be"
        print_outcome(
            {"restarted": done, "primary": primary, "version": self.plan.version}, text, self.invocation.format
        )

    def _failure(self, step: RestartStep, after: str = "") -> CliFailure:
        text = f"{_sentence(step, after)}"
        if self.plan.done:
            text += f". The cluster: {self._standing()}. {self._how_to_go_on()}"
        return CliFailure(text, NO)

    def _standing(self) -> str:
        return ", ".join(f"{broker.name} {broker.state or 'away'}" for broker in self._facts.brokers)

    def _how_to_go_on(self) -> str:
        if self.plan.version:
            return f"To go on: `qpid-ha upgrade {' '.join(self.plan.wanted) or '--all'}`"
        left = [broker.name for broker in brokers_left(self._facts, self.plan)]
        return f"To go on: `qpid-ha restart {' '.join(left)}`" if left else "Nobody else is left to restart"

    # --- asking an agent

    def _ask(self, node: str, note: str) -> bool:
        """Whether the node is asked now; not if somebody has asked for something since we looked."""
        until = datetime.now(UTC) + timedelta(seconds=TAKEN_WITHIN_S)
        request = RestartRequest(secrets.token_hex(8), node, operator_text(), until, self.plan.version)
        if not self.coordinator.replace_note(RESTART_NOTE, note, encode_request(request)):
            return False
        self._identity, self._asked_at_s = request.identity, time.monotonic()
        self._say(f"{node}: its agent is asked{_leads_text(self._facts, node)}")
        return True

    def _await_answer(self, node: str) -> bool:
        """Whether the agent has taken it; not if it is safe no more, and was taken back. Raises CliFailure."""
        deadline_s = time.monotonic() + TAKEN_WITHIN_S
        while True:
            note = self.coordinator.read_note(RESTART_NOTE)
            request = self._own(note)
            if request is None:
                raise CliFailure(f"somebody else has asked for a restart meanwhile: {self._how_to_go_on()}", NO)
            if request.stage is Stage.REFUSED:
                raise CliFailure(f"the agent of {node} refuses: {request.text}. {self._how_to_go_on()}", NO)
            if request.stage is not Stage.ASKED:
                break
            if time.monotonic() >= deadline_s and self.coordinator.replace_note(RESTART_NOTE, note, ""):
                raise CliFailure(
                    f"the agent of {node} did not answer within {TAKEN_WITHIN_S:g} s, and the request is taken back:"
                    f" does an agent of this release run there (systemctl status qpid-ha), with this coordinator, and"
                    f" is its clock right? By hand, on {node}: systemctl restart qpid-ha. {self._how_to_go_on()}",
                    NO,
                )
            step = next_step(self._gather(request), self.plan)
            if (step.kind, step.node) != (StepKind.RESTART, node):
                if self.coordinator.replace_note(RESTART_NOTE, note, ""):
                    self._say(f"{node}: the request is taken back: {step.why or 'it is the turn of another one'}")
                    return False
            else:
                time.sleep(LOOK_S / 5)
        self.plan = replace(self.plan, done=self.plan.done | {node}, awaited=Awaited(node, 0.0))
        self._say(f"{node}: its agent hands over, stops it, and begins anew")
        return True

    def _own(self, note: str) -> RestartRequest | None:
        """Our request as it stands; None: another one has its place."""
        request = decode_request(note)
        return request if request is not None and request.identity == self._identity else None

    def _note_back(self) -> None:
        awaited = self.plan.awaited
        broker = None if awaited is None else self._facts.broker(awaited.name)
        if awaited is not None and broker is not None:
            after_s = time.monotonic() - self._asked_at_s
            self._say(f"{awaited.name}: {broker.state} again after {after_s:.1f} s, version {broker.version}")
            self.plan = replace(self.plan, awaited=None)

    # --- looking

    def _look(self) -> tuple[str, ClusterFacts]:
        """The note, read before anything else, so that whoever acts in between is noticed; and the cluster."""
        note = self.coordinator.read_note(RESTART_NOTE)
        request, own = decode_request(note), self._own(note)
        if own is not None and own.stage is Stage.REFUSED and self.plan.awaited is not None:
            raise CliFailure(f"{own.node} was not restarted: {own.text}. {self._how_to_go_on()}", NO)
        if self.plan.awaited is not None:
            is_back = own is None or own.stage is Stage.BACK
            asked_s = time.monotonic() - self._asked_at_s
            self.plan = replace(self.plan, awaited=Awaited(self.plan.awaited.name, asked_s, is_back))
        facts = self._gather(request)
        if request is not None and own is None and request.is_under_way(datetime.now(UTC)):
            text = f"{request.cause}, of {request.node}, is {request.stage}"
            broker = facts.broker(request.node)
            if request.stage is Stage.TAKEN and broker is not None and broker.state is None:
                away = broker._replace(why_away=text)
                facts = facts._replace(brokers=tuple(away if b is broker else b for b in facts.brokers))
            else:
                facts = facts._replace(under_way=text)
        self._facts = facts
        return note, facts

    def _gather(self, request: RestartRequest | None) -> ClusterFacts:
        """Nobody answers: all are away. `request`: the last one."""
        for source in self._asked_in_turn():
            try:
                status = rows_of(source.call("status", all=True))
                self._learn_names(status, source, request)
                figures = {row.get("name"): row for row in rows_of(source.call("query", all=True))}
                facts = self._facts_of(status, figures)
                return self._with_sets(facts, source) if any(row.get("sets") for row in status) else facts
            except CliFailure as failure:
                if failure.exit_code not in (UNREACHABLE, NO):
                    raise
        if not self.plan.done:
            raise CliFailure("no broker of this machine's configuration answers", UNREACHABLE)
        return ClusterFacts(tuple(broker._replace(state=None) for broker in self._facts.brokers))

    def _asked_in_turn(self) -> Iterator[Invocation]:
        """The broker of this machine first, then the others that its configuration names."""
        from qpid_ha_agent.login import listed_brokers

        if not self._sources:
            timed = replace(self.invocation, timeout_s=self.invocation.timeout_s or ANSWER_S)
            listed = [replace(timed, broker=str(address)) for address in listed_brokers(os.environ)]
            self._sources = [timed, *listed]
        for source in list(self._sources):
            yield source
            self._sources.append(self._sources.pop(0))  # it did not answer

    def _learn_names(self, status: list[dict[str, Any]], source: Invocation, request: RestartRequest | None) -> None:
        """A broker that is away does not say how it is called: the controller may, or whoever asked for its restart."""
        self._names |= {str(row.get("address")): str(row["name"]) for row in status if row.get("name")}
        if not self._nameless(status):
            return
        with suppress(CliFailure):
            rows = rows_of(source.call("brokers", action="list"))
            self._names |= {str(row.get("address")): str(row["name"]) for row in rows if row.get("name")}
        nameless = self._nameless(status)
        if len(nameless) == 1 and request is not None and request.node not in self._names.values():
            self._names[nameless[0]] = request.node

    def _nameless(self, status: list[dict[str, Any]]) -> list[str]:
        addresses = [str(row.get("address") or "") for row in status if not row.get("name")]
        return [address for address in addresses if address not in self._names]

    def _facts_of(self, status: list[dict[str, Any]], figures: Mapping[Any, Mapping[str, Any]]) -> ClusterFacts:
        brokers = []
        for row in status:
            address = str(row.get("address") or "")
            name = str(row.get("name") or self._names.get(address) or address)
            state = State(row["state"]) if row.get("state") in list(State) else None
            figure = figures.get(name, {})
            uptime_s = figure.get("uptime_s")
            if not isinstance(uptime_s, int | float):  # it came or went between the two questions
                state = None
            brokers.append(BrokerFacts(name, address, state, str(figure.get("version") or ""), float(uptime_s or 0.0)))
        leading = next((row for row in status if row.get("state") == State.PRIMARY), status[0] if status else {})
        paused = next((pause_text(row) for row in status if pause_text(row)), "")
        needed = next((row["min_in_sync"] for row in status if isinstance(row.get("min_in_sync"), int)), 1)
        return ClusterFacts(tuple(brokers), frozenset(leading.get("members") or ()), needed, paused=paused)

    def _with_sets(self, facts: ClusterFacts, source: Invocation) -> ClusterFacts:
        try:
            rows = rows_of(source.call("sets", action="list"))
        except CliFailure as failure:
            return facts._replace(sets_problem=failure.message)
        sets = [
            SetFacts(
                str(row.get("name")),
                str(row.get("primary") or ""),
                frozenset(row.get("in_sync") or ()),
                int(row.get("min_in_sync") or 0),
                why_not_whole(row),
            )
            for row in rows
        ]
        return facts._replace(sets=tuple(sets))

    # --- telling

    def _say(self, line: str) -> None:
        """Progress, once; for programs it is not part of the answer."""
        if line != self._shown:
            self._shown = line
            click.echo(cell(f"{utc_time_of_day(time.time())} {line}"), err=self.invocation.format != "table")


def _leads_text(facts: ClusterFacts, node: str) -> str:
    """What else a broker has to hand over."""
    count = sum(entry.primary == node for entry in facts.sets)
    return f"; it leads {counted(count, 'set')}" if count else ""


def _sentence(step: RestartStep, after: str = "") -> str:
    return f"{step.why}{after}" + (f": {step.advice}" if step.advice else "")
