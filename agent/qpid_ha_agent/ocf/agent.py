"""The actions as Pacemaker asks for them: each ends in one code, and one sentence when it is not what was hoped for."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import TextIO

from qpid_ha_agent import actions
from qpid_ha_agent.actions import ActionFailed, Trouble
from qpid_ha_agent.control import ControlClient, ControlFailure
from qpid_ha_agent.ocf.codes import OcfCode, exit_reason
from qpid_ha_agent.ocf.memory import MemoryFile, state_directory
from qpid_ha_agent.ocf.parameters import Parameters
from qpid_ha_agent.ocf.patience import Limit, Patience
from qpid_ha_agent.ocf.probe_ahead import ProbeAhead
from qpid_ha_agent.ocf.record_reader import RecordReader
from qpid_ha_agent.ocf.starting import is_starting
from qpid_ha_agent.ocf.validation import Invalid, check_everywhere, check_here, service_of
from qpid_ha_agent.pacemaker.attributes import ClusterAttributes, ClusterUnreachable, local_node
from qpid_ha_agent.pacemaker.controller_notices import ControllerNotices, has_many_sets
from qpid_ha_agent.pacemaker.election import MakeWay
from qpid_ha_agent.pacemaker.hindrance import Hindrance
from qpid_ha_agent.pacemaker.positions import Positions
from qpid_ha_agent.pacemaker.rivals import Rivals
from qpid_ha_agent.pacemaker.scores import Scores, cannot_write, is_held_back, needs_company, should_make_way
from qpid_ha_agent.service import Service
from qpid_ha_agent.sight import Life, Sight, await_company, look
from qpid_ha_agent.vip_action import VirtualIp, VirtualIpInUse, VirtualIpProblem
from qpid_ha_broker.events.counted import counted

META = "OCF_RESKEY_CRM_meta_"
PROMOTED = ("Promoted", "Master")
LAST_CHANCE_S = 0.2
COMPANY_S = 5.0
"""For brokers that were started just before, on machines that are busy with starting."""
LEAVING_LOOK_S = 0.5
"""A broker that does not answer is not cleared before it is stopped: that would only take longer."""
NEVER_STARTED = "nothing was started here since the machine was"


class OcfAgent:
    """One resource on this node. Each public method is an action, raises nothing but what `main` turns into a code."""

    def __init__(self, parameters: Parameters, environment: Mapping[str, str] = os.environ) -> None:
        self._parameters = parameters
        self._environment = environment
        self.resource = environment.get("OCF_RESOURCE_INSTANCE", "qpid-ha").partition(":")[0]
        self._memory = MemoryFile(self.resource, state_directory(environment))
        self._patience = Patience(environment)
        self._virtual_ip = VirtualIp(parameters.virtual_ip, parameters.virtual_ip_nic)
        self._last_members: frozenset[str] = frozenset()
        """The in-sync set, as the watcher saw it last behind this primary; empty behind another one."""

    @cached_property
    def _cluster(self) -> ClusterAttributes:
        return ClusterAttributes(self.resource, local_node(self._environment))

    @cached_property
    def _record(self) -> RecordReader:
        return RecordReader(Path(self._parameters.config), self._inform)

    @cached_property
    def _scores(self) -> Scores:
        return Scores(self._cluster, self._memory, self._record.is_first_start, self._record.read)

    @cached_property
    def _rivals(self) -> Rivals:
        return Rivals(lambda: self._cluster, self._environment)

    @cached_property
    def _positions(self) -> Positions:
        return Positions(lambda: self._cluster, self._memory)

    @cached_property
    def _hindrance(self) -> Hindrance:
        return Hindrance(self._cluster, self._memory, self._record.read)

    @cached_property
    def _controller(self) -> ControllerNotices:
        return ControllerNotices(lambda: self._control_socket, lambda: self._cluster, self._memory)

    @cached_property
    def _control_socket(self) -> Path:
        remembered = self._parameters.control_socket or self._memory.read().control_socket
        return Path(remembered) if remembered else service_of(self._parameters).control_socket  # raises Invalid

    @cached_property
    def _log_file(self) -> Path | None:
        """Where the broker's last words are; None: nobody knows, because the configuration is wrong."""
        try:
            return service_of(self._parameters).log_file
        except Invalid:
            return None

    # --- actions

    def start(self) -> OcfCode:
        """A broker that runs as a backup, or will once it has loaded its store."""
        service = check_here(self._parameters)
        self._remember(control_socket=str(service.control_socket), is_hanging=False)
        try:
            sight = actions.start(service, self._limit_s("start_timeout"))
        except ActionFailed as failure:
            return self._failed(failure)
        if sight.is_primary:  # somebody promoted it by hand; a start means: not yet
            sight = actions.demote(service, self._cause("started"), self._limit_s("start_timeout"))
        if sight.life is Life.GONE:
            return self._no(OcfCode.ERR_GENERIC, f"the broker was primary without Pacemaker, and is gone: {sight.how}")
        self._virtual_ip.take_down()
        self._remember(is_started=True, failure="")
        self._tell(lambda: self._scores.refresh(sight, always=True))
        self.ensure_companions()
        return OcfCode.SUCCESS

    def stop(self) -> OcfCode:
        """No broker, no virtual IP, no score; whatever the configuration says by now, because a stop that fails is
        a reason to fence the machine."""
        from qpid_ha_agent.pacemaker.companions import end_server

        self._note_stop()
        service, limit_s = self._running_service(), self._hasty_limit_s("stop_timeout")
        try:
            how = actions.stop(service, limit_s, self._last_chance_s()) if service is not None else NEVER_STARTED
        except ActionFailed as failure:
            return self._failed(failure)
        self._virtual_ip.take_down()
        self._tell(self._say_nothing)
        self._tell(lambda: end_server(self._memory))
        self._inform(f"the broker is stopped: {how}")
        return OcfCode.SUCCESS

    def monitor(self) -> OcfCode:
        """How it is. Level 10 also knocks at the AMQP port, level 20 also asks the other brokers."""
        try:
            sight = self._look()
        except Invalid as invalid:  # a probe: to call this a failure would have it stopped, and perhaps fenced
            self._inform(f"{invalid}; {NEVER_STARTED}")
            return OcfCode.NOT_RUNNING
        if sight.life is Life.GONE:
            return self._gone()
        if sight.life is Life.SILENT:
            return self._silent(sight)
        if sight.is_loading:
            self._inform(f"the broker is loading its store: {sight.progress}")
        code = self._promoted(sight) if sight.is_primary else self._unpromoted()
        if code in (OcfCode.SUCCESS, OcfCode.RUNNING_PROMOTED) and self._level() > 0:
            code = self._look_closer(code)
        if "OCF_RESOURCE_INSTANCE" not in self._environment:  # a person wants to know, of whatever resource
            return code
        is_to_be_moved = self._is_promoted_to_pacemaker and not sight.is_primary
        self._tell(lambda: self._scores.refresh(sight, always=self._is_probe() or is_to_be_moved))
        self._tell(lambda: self._hindrance.refresh(sight))
        self._tell(lambda: self._controller.come_back(sight))
        if self._is_probe():  # somebody has cleaned up
            self._tell(self._forget_failure)
        self.ensure_companions()
        return code

    def promote(self) -> OcfCode:
        """A primary, with the virtual IP; or the sentence that says why another one shall be it."""
        self._virtual_ip.prepare(ProbeAhead(self._memory).has_found_it_free)
        sight = self._look()
        if sight.is_loading:
            self._tell(lambda: self._scores.refresh(sight, always=True))
            return self._no(OcfCode.ERR_GENERIC, f"the broker is still loading its store: {sight.progress}")
        if sight.life is Life.ANSWERS and not sight.is_primary and not self._memory.read().is_forced:
            verdict = self._rivals.judge(sight, self._parameters.max_lag)
            if isinstance(verdict, MakeWay):
                return self._make_way(verdict)
            self._inform(f"promoting this broker: {verdict.why}")
        deadline_s = time.monotonic() + self._limit_s("promote_timeout")
        company = self._await_company(sight, deadline_s)
        service = self._running_service()
        if service is None:
            return self._no(OcfCode.NOT_RUNNING, NEVER_STARTED)
        try:
            self._virtual_ip.bring_up()
        except VirtualIpProblem as problem:
            return self._no(OcfCode.ERR_GENERIC, str(problem))
        self._tell(lambda: self._virtual_ip.announce(count=1))  # or who connects now asks where it was, and waits
        try:
            sight = self._promote_broker(service, deadline_s - time.monotonic())
        except ActionFailed as failure:
            self._virtual_ip.take_down()
            if failure.trouble is Trouble.REFUSED:  # the next monitor may think better of it, but not before
                self._refuse(str(failure), company)
            elif failure.trouble is Trouble.NOT_RUNNING:  # a dead primary would be chosen again, for its score
                self._tell(self._scores.rule_out)
            return self._failed(failure)
        self._tell(self._virtual_ip.announce)
        self._remember(is_forced=False, handed_over="", refused_at_s=0.0)
        self._tell(lambda: self._scores.refresh(sight))
        self._tell_gone(self._rivals.absent_nodes(), "Pacemaker has stopped it, or fenced its node")
        self.ensure_companions()
        return OcfCode.SUCCESS

    def demote(self) -> OcfCode:
        """A backup, without the virtual IP. A broker that is dead, or had to be killed, is no primary either."""
        service, limit_s = self._running_service(), self._hasty_limit_s("promote_timeout")
        try:
            look_s = self._last_chance_s()
            sight = Sight(Life.GONE, NEVER_STARTED)
            if service is not None:
                sight = actions.demote(service, self._cause("demoted"), limit_s, look_s)
        except ActionFailed as failure:
            return self._failed(failure)
        self._virtual_ip.take_down()
        if sight.life is Life.GONE:
            self._inform(f"there is no broker to demote: {sight.how}")
            return OcfCode.SUCCESS
        if self._memory.read().may_lead:  # else Pacemaker clears up after a promotion that was refused
            handed_over = f"{sight.number('generation')}:{sight.number('lsn')}"
            self._remember(may_lead=False, handed_over=handed_over)
        return OcfCode.SUCCESS

    def notify(self) -> OcfCode:
        """What the instances of the clone tell each other around what is done with one of them. Never fails."""
        about = tuple(self._environment.get(f"{META}notify_{name}") for name in ("type", "operation"))
        if about == ("pre", "promote"):
            self._publish_position()
        elif about == ("post", "stop"):
            self._drop_stopped()
        elif about in (("pre", "demote"), ("pre", "stop")):
            self._leave(str(about[1]))
        return OcfCode.SUCCESS

    def _publish_position(self) -> None:
        """Tell everybody how far this broker is; who is about to be promoted also asks for the virtual IP. Nobody shall
        make way for one that has just been refused: two could send each other ahead for ever."""
        if self._virtual_ip.is_wanted and self._rivals.is_chosen_node(self._environment.get(f"{META}on_node", "")):
            self._tell(lambda: ProbeAhead(self._memory).begin(self._virtual_ip.answers_nowhere))
        sight, memory = self._look(), self._memory.read()
        if sight.life is Life.ANSWERS and not sight.is_loading and not is_held_back(sight, memory):
            self._tell(lambda: self._positions.tell(sight))
        else:
            self._tell(self._positions.take_back)

    def _drop_stopped(self) -> None:
        """A backup that Pacemaker has stopped, or whose node it has fenced, need not be waited for. Without this a
        primary waits `ha.backup-timeout` for one whose machine is off, and confirms nothing meanwhile."""
        stopped = sorted(self._rivals.stopped_nodes() - {self._environment.get(f"{META}on_node", "")})
        if not stopped or not self._look().is_primary:
            return
        is_fenced = self._environment.get(f"{META}notify_key_operation") == "stonith"
        reason = f"Pacemaker has {'fenced its node' if is_fenced else 'stopped it'}"
        try:
            with ControlClient(self._control_socket, LAST_CHANCE_S + actions.LOOK_S) as client:
                for node in stopped:
                    client.call("drop", backup=node, reason=reason)
        except ControlFailure as failure:
            self._inform(f"the primary was not told that {', '.join(stopped)} is gone: {failure}")
        self._tell_gone(stopped, reason)

    def _tell_gone(self, nodes: Collection[str], reason: str) -> None:
        """The controller of many resource sets counts brokers as failed whose nodes were fenced, or that were stopped.
        After a promotion it is a new one, which would wait for them first."""
        if nodes and has_many_sets(self._look()):
            self._tell(lambda: self._controller.tell_gone(nodes, reason))

    def _leave(self, operation: str) -> None:
        """Before this node's broker is stopped for longer others lead the resource sets that it leads."""
        node, memory = self._environment.get(f"{META}on_node", ""), self._memory.read()
        if not self._rivals.is_leaving(node, operation) or memory.is_hanging or memory.failure:
            return
        sight = look(self._control_socket, LEAVING_LOOK_S)
        if has_many_sets(sight):
            self._tell(lambda: self._controller.leave(sight))

    def validate_all(self) -> OcfCode:
        """Level 0: the parameters by themselves. Level 10: whether this node fits them, and whether the broker would
        start with its configuration; to ask before a restart."""
        if self._level() > 0:
            service = check_here(self._parameters)
            try:
                actions.check(service)
            except ActionFailed as failure:
                return self._no(OcfCode.ERR_ARGS, str(failure))
        else:
            check_everywhere(self._parameters)
        return OcfCode.SUCCESS

    def reload_agent(self) -> OcfCode:
        """Reloadable parameters are read by each action anew; only the watcher keeps them.

        A wrong one is said, and its default is used: a failure would make Pacemaker restart the broker.
        """
        from qpid_ha_agent.pacemaker.companions import watch_of

        watch_of(self._memory).end()
        self.ensure_companions()
        return OcfCode.SUCCESS

    # --- monitoring

    @property
    def _is_promoted_to_pacemaker(self) -> bool:
        return self._environment.get(f"{META}role") in PROMOTED

    def _gone(self) -> OcfCode:
        """Nobody is surprised by that where nothing was started, or where it was stopped."""
        memory = self._memory.read()
        if not memory.is_started:
            return OcfCode.NOT_RUNNING
        return self._no(OcfCode.NOT_RUNNING, memory.failure or f"the broker's process is gone{self._last_words()}")

    def _last_words(self) -> str:
        """Of a broker that has ended by itself, as the end of a sentence; empty when it did not say why."""
        words = actions.last_words(self._log_file) if self._log_file is not None else ""
        return f": {words}" if words else ""

    def _silent(self, sight: Sight) -> OcfCode:
        was_promoted = self._is_promoted_to_pacemaker
        if not was_promoted and is_starting(self._control_socket, self._parameters.start_timeout_s):
            self._inform("the broker is being started")
            return OcfCode.SUCCESS
        return self._no(
            OcfCode.FAILED_PROMOTED if was_promoted else OcfCode.ERR_GENERIC, f"the broker is silent: {sight.how}"
        )

    def _unpromoted(self) -> OcfCode:
        self._virtual_ip.take_down()  # only a primary may have it
        return OcfCode.SUCCESS

    def _promoted(self, sight: Sight) -> OcfCode:
        try:
            if repaired := self._virtual_ip.repair(lambda: self._record.names(sight)):
                self._inform(repaired)
        except VirtualIpInUse as problem:  # no other primary would have it either
            return self._no(OcfCode.DEGRADED_PROMOTED, str(problem))
        except VirtualIpProblem as problem:
            alone = len(sight.names("members")) < 2
            code = OcfCode.DEGRADED_PROMOTED if alone else OcfCode.FAILED_PROMOTED
            return self._no(code, f"{problem}{', and no backup could take over' if alone else ''}")
        members, wanted = len(sight.names("members")), sight.number("min_in_sync")
        if members < wanted:
            return self._no(
                OcfCode.DEGRADED_PROMOTED,
                f"{members} of ha.min-in-sync={wanted} brokers are in sync: publishers are refused",
            )
        if cannot_write(sight):
            heir = "another broker shall be primary" if should_make_way(sight) else "nobody else is in sync"
            why = f"its store cannot be written ({sight.text('store_problem')}): publishers wait, and {heir}"
            return self._no(OcfCode.DEGRADED_PROMOTED, why)
        return OcfCode.RUNNING_PROMOTED

    def _look_closer(self, code: OcfCode) -> OcfCode:
        from qpid_ha_agent.ocf.deeper import closer_look

        problem = closer_look(self._control_socket, self._parameters.hang_timeout_s, with_peers=self._level() >= 20)
        if not problem:
            return code
        return self._no(OcfCode.FAILED_PROMOTED if code is OcfCode.RUNNING_PROMOTED else OcfCode.ERR_GENERIC, problem)

    # --- promoting

    def _make_way(self, rival: MakeWay) -> OcfCode:
        self._scores.make_way(rival.node)
        return self._no(OcfCode.ERR_GENERIC, f"{rival.node} is the better choice: {rival.why}; its score is raised")

    def _await_company(self, sight: Sight, deadline_s: float) -> frozenset[str]:
        """Who answers, when a promotion may depend on that. Pacemaker says which brokers run; those that it has just
        started may not answer the others yet, and a refusal would have this one restarted."""
        running = self._rivals.running_nodes()
        if not running or not needs_company(sight) or self._memory.read().is_forced:
            return frozenset()
        limit_s = min(COMPANY_S, (deadline_s - time.monotonic()) / 2)
        company = await_company(self._control_socket, len(running), limit_s)
        if len(company) < len(running):
            run = counted(len(running), "broker runs", "brokers run")
            self._inform(f"{run}, and after {limit_s:g} s {len(company)} of them answer")
        return company

    def _refuse(self, why: str, company: Collection[str]) -> None:
        if not company:  # nobody was waited for
            company = await_company(self._control_socket, 0, self._parameters.hang_timeout_s)
        self._tell(lambda: self._scores.refuse(why, company))

    def _cause(self, what_was_done: str) -> str:
        """Who wants a change of roles, for the broker's log and its history."""
        return f"Pacemaker {what_was_done} {self.resource} on {self._environment.get(f'{META}on_node', 'this node')}"

    def _promote_broker(self, service: Service, limit_s: float) -> Sight:
        cause = self._cause("promoted")
        force = self._memory.read().is_forced
        problem = self._remember(may_lead=True)
        if force and problem:  # every later promotion would be forced, too
            raise ActionFailed(Trouble.MACHINE, problem)
        try:
            return actions.promote(service, cause, max(LAST_CHANCE_S, limit_s), force)
        except ActionFailed as failure:
            if failure.trouble is Trouble.REFUSED:
                self._remember(may_lead=False)
            raise

    # --- for the watcher

    def status_changed(self, sight: Sight) -> None:
        """Better news is told at once: without a candidate there is nothing to promote.

        Nor do those who come back behind a primary wait for its next monitor: they may have been cut off when the
        virtual IP moved, and clients with them.
        """
        self._tell(lambda: self._positions.expect(sight, was_primary=bool(self._last_members)))
        members = frozenset(sight.names("members")) if sight.is_primary else frozenset()
        if members - self._last_members and self._last_members:
            self._tell(self._virtual_ip.announce)
        self._last_members = members
        self._tell(lambda: self._scores.raise_to(sight))
        self._tell(lambda: self._hindrance.refresh(sight))
        self._tell(lambda: self._controller.come_back(sight))

    def try_again(self, sight: Sight) -> None:
        """The broker would not be promoted; it might now."""
        self._inform("somebody answers who did not when a promotion was refused: it may be tried again")
        self._tell(lambda: self._scores.try_again(sight))

    def status_lasts(self, sight: Sight) -> None:
        """What the broker is worth less may be told now."""
        self._tell(lambda: self._scores.refresh(sight))

    def note_failure(self, problem: str) -> None:
        """The broker has ended, or hangs. Raises OSError."""
        with self._memory.changed() as memory:
            memory.failure = f"{problem}{self._last_words()}"

    def note_hang(self) -> None:
        """A broker that hangs was waited for. Raises OSError."""
        with self._memory.changed() as memory:
            memory.is_hanging = True

    def rule_out(self) -> None:
        """Another one shall be promoted, now. Raises ClusterUnreachable, OSError."""
        self._scores.rule_out()
        self._tell(self._positions.take_back)

    def report_failure(self) -> None:
        """This one shall be recovered. Raises ClusterUnreachable, OSError."""
        with self._memory.changed() as memory:
            memory.is_failure_shown, failure = True, memory.failure
        self._tell(lambda: self._cluster.explain_failure(f"{time.strftime('%H:%M:%SZ', time.gmtime())} {failure}"))
        self._cluster.report_failure()

    def _forget_failure(self) -> None:
        """Raises ClusterUnreachable, OSError."""
        if self._memory.read().is_failure_shown:
            self._cluster.explain_failure("")
            with self._memory.changed() as memory:
                memory.is_failure_shown = False

    def open_log(self) -> None:
        """The watcher writes where the broker's output goes."""
        import logging

        form = "%(asctime)s %(levelname)s watch: %(message)s"
        output: TextIO = sys.stderr
        if self._log_file is not None:
            with contextlib.suppress(OSError):  # it watches all the same
                output = os.fdopen(actions.open_log(self._log_file), "a", buffering=1)
        logging.basicConfig(stream=output, level=logging.INFO, format=form, datefmt="%Y-%m-%dT%H:%M:%S%z")

    # --- surroundings

    def ensure_companions(self) -> None:
        """A watcher and an action server, if they are wanted, and Pacemaker is there for them."""
        from qpid_ha_agent.pacemaker.companions import end_server, start_server, watch_of

        if f"{META}timeout" not in self._environment:
            return
        try:
            if self._parameters.watch:
                watch_of(self._memory).start(str(self._control_socket), str(self._parameters.hang_timeout_s))
        except OSError as error:
            self._inform(f"nobody watches the broker but the monitors: {error}")
        try:
            (start_server if self._parameters.action_server else end_server)(self._memory)
        except OSError as error:
            self._inform(f"each action takes a process that begins anew: {error}")

    def _running_service(self) -> Service | None:
        """Enough to find the broker and talk with it; None: it never was here.

        What was remembered comes first: it is true even when the configuration is another one by now, or cannot be
        read, and to read it takes longer than all the rest.
        """
        remembered = self._memory.read().control_socket
        if remembered:
            return Service(Path(self._parameters.config), Path(remembered), Path(os.devnull), ())
        try:
            return service_of(self._parameters)
        except Invalid as invalid:
            self._inform(str(invalid))
            return None

    def _note_stop(self) -> None:
        """The watcher is told first: this death is wanted."""
        stops = self._memory.read().stops + 1
        self._remember(stops=stops, is_started=False, is_forced=False, may_lead=False, handed_over="")

    def _remember(self, **fields: object) -> str:
        """For the next action. What was asked for does not depend on that: a full disk is no reason to call a demotion
        failed, and to fence a machine. What was not written; empty: nothing."""
        problem = self._memory.note(**fields)
        if problem:
            self._inform(problem)
        return problem

    def _say_nothing(self) -> None:
        """Neither a score nor a position of a broker that is not there. Raises ClusterUnreachable, OSError."""
        self._scores.drop()
        self._hindrance.drop()
        self._positions.take_back()

    def _limit_s(self, name: str) -> float:
        """Of an action with a parameter. Raises Invalid when Pacemaker gives it no time at all."""
        return self._shortest(name, self._patience.limit(getattr(self._parameters, f"{name}_s")))

    def _hasty_limit_s(self, name: str) -> float:
        """Of an action that must succeed whatever time it is given: a failure of it means fencing."""
        return self._shortest(name, self._patience.hasty_limit(getattr(self._parameters, f"{name}_s")))

    def _shortest(self, name: str, limit: Limit) -> float:
        if limit.shortened_by_s:
            self._inform(f"the action's timeout of {limit.shortened_by_s:g} s leaves less than {name} allows")
        return limit.limit_s

    def _last_chance_s(self) -> float:
        """How long a broker that may hang has to answer before it is killed."""
        return LAST_CHANCE_S if self._memory.read().is_hanging else actions.LOOK_S

    def _look(self) -> Sight:
        """One look at the broker. Raises Invalid when it is not known where it would be."""
        return look(self._control_socket, self._patience.look_s(self._parameters.hang_timeout_s))

    def _level(self) -> int:
        level = self._environment.get("OCF_CHECK_LEVEL", "0")
        return int(level) if level.isdigit() else 0

    def _is_probe(self) -> bool:
        return self._environment.get(f"{META}interval", "0") == "0"

    def _tell(self, telling: Callable[[], None]) -> None:
        """What the cluster should hear, but what was asked for does not depend on."""
        try:
            telling()
        except (ClusterUnreachable, ControlFailure, VirtualIpProblem, OSError) as error:
            self._inform(f"not told: {error}")

    def _failed(self, failure: ActionFailed) -> OcfCode:
        codes = {Trouble.NOT_RUNNING: OcfCode.NOT_RUNNING, Trouble.FORBIDDEN: OcfCode.ERR_PERM}
        code = codes.get(failure.trouble, OcfCode.ERR_GENERIC)
        return self._no(code, str(failure))

    def _no(self, code: OcfCode, reason: str) -> OcfCode:
        exit_reason(reason)
        return code

    def _inform(self, text: str) -> None:
        print(f"{self.resource}: {text}", file=sys.stderr)
