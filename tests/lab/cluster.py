"""The cluster on a lab's machines: what it says, waiting for it, and what an administrator does to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from lab.cluster_view import ClusterView, read_view
from lab.machines import Lab, MachineError
from lab.plan import VIRTUAL_ADDRESS
from qpid_ha_agent.control import ControlClient, ControlFailure

_GLANCE_S: Final = 0.1
_FORMED_GLANCE_S: Final = 0.3
"""It takes seconds, and each look takes a process."""
_ANSWER_LIMIT_S: Final = 3.0
_ADMIN: Final = ("qpid-ha", "--timeout", f"{_ANSWER_LIMIT_S:g}", "--format", "json")
_COMMANDS: Final = {"status": ["status"], "query": ["query"], "queues": ["queue", "list"], "history": ["history"]}
"""Of the admin tool, for a method of the control socket."""
_CRM_MON: Final = ("crm_mon", "--one-shot", "--output-as=xml", "--fence-history=3")
"""3: all of the history. `stonith_admin --history` tells one of each kind, and that need not be the last."""
CLONE: Final = "broker-clone"
BROKER: Final = "broker"


class NotInTime(Exception):
    """What was waited for did not come; the message shows how things are instead."""


class Cluster:
    """One Pacemaker cluster and the brokers that it runs."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    # --- what it says

    def view(self, node: str | None = None) -> ClusterView:
        """As that node sees it; else as the first one does that takes part with quorum, else as any. Raises
        MachineError when no node can say."""
        found: ClusterView | None = None
        problem: Exception = MachineError("no node is on")
        for member in [node] if node else self.lab.members_on():
            try:
                seen = read_view(self.lab.output(member, *_CRM_MON, timeout_s=5))
            except (MachineError, ValueError) as complaint:
                problem = complaint
                continue
            if seen.has_quorum:
                return seen
            found = found or seen
        if found is None:
            raise MachineError(f"no node tells how the cluster is: {problem}")
        return found

    def text(self) -> str:
        """crm_mon, for people."""
        for member in self.lab.members_on():
            with suppress(MachineError):
                return self.lab.output(member, "crm_mon", "-1Arf", timeout_s=5)
        return "no node answers\n"

    def primary(self) -> str:
        """The node where the broker is promoted. Raises NotInTime unless it is exactly one."""
        promoted = self.view().promoted()
        if len(promoted) != 1:
            raise NotInTime(f"one node should be promoted, not {promoted or 'none'}\n{self.text()}")
        return promoted[0]

    def backups(self) -> list[str]:
        """The nodes where it runs and is not promoted."""
        return self.view().unpromoted()

    def holders(self, address: str = VIRTUAL_ADDRESS) -> list[str]:
        """The machines that have this address on an interface."""
        return [machine for machine in self.lab.members_on() if self.has_address(machine, address)]

    def has_address(self, machine: str, address: str = VIRTUAL_ADDRESS) -> bool:
        """Does the machine hold it?"""
        with suppress(MachineError):
            return address in self.lab.addresses(machine)
        return False

    def ask(self, machine: str, method: str, **params: object) -> Any:
        """What that machine's broker answers on its control socket, as `qpid-ha --format json` would print it.
        Raises MachineError.

        Asked from this host where it can be: a process for each question is half of all that a lab computes.
        """
        socket = self.lab.control_socket(machine)
        if socket is None:
            return json.loads(self.lab.output(machine, *_ADMIN, *_COMMANDS[method]))
        try:
            with ControlClient(socket, _ANSWER_LIMIT_S) as client:
                return client.call(method, **params)
        except ControlFailure as problem:
            raise MachineError(f"{machine}: {problem}") from problem

    def broker(self, machine: str) -> dict[str, Any]:
        """What its broker says in answer to `query`; {"state": "down"} when it does not answer."""
        with suppress(MachineError):
            return dict(self.ask(machine, "query"))
        return {"state": "down"}

    def states(self) -> dict[str, str]:
        """Each broker's own word: primary, ready, catchup, connecting, down."""
        return {machine: self.state(machine) for machine in self.lab.members_on()}

    def state(self, machine: str) -> str:
        """One broker's own word."""
        with suppress(MachineError):
            return str(self.ask(machine, "status")["state"])
        return "down"

    def queue_depths(self, machine: str) -> dict[str, int]:
        """How many messages each queue of that machine's broker holds. Raises MachineError."""
        return {str(queue["name"]): int(queue["messages"]) for queue in self.ask(machine, "queues", action="list")}

    # --- waiting

    def wait(
        self, holds: Callable[[], object], what: str, timeout_s: float = 90.0, *, glance_s: float = _GLANCE_S
    ) -> float:
        """Until it does; the seconds that took. Raises NotInTime, with the state of everything."""
        began = time.monotonic()
        problem = ""
        while True:
            try:
                if holds():
                    return time.monotonic() - began
                problem = ""
            except MachineError as complaint:
                problem = f" ({complaint})"
            if time.monotonic() - began > timeout_s:
                raise NotInTime(f"not in {timeout_s:g} s: {what}{problem}\n{self.diagnosis()}")
            time.sleep(glance_s)

    def wait_formed(self, nodes: Sequence[str] | None = None, timeout_s: float = 120.0) -> float:
        """Until these nodes (default: all) take part, with quorum."""
        wanted = set(nodes or self.lab.plan.members)

        def has_formed() -> bool:
            view = self.view(next(iter(wanted & set(self.lab.members_on())), None))
            return view.has_quorum and wanted <= set(view.online())

        what = f"{', '.join(sorted(wanted))} form a cluster with quorum"
        return self.wait(has_formed, what, timeout_s, glance_s=_FORMED_GLANCE_S)

    def wait_promoted(self, *nodes: str, timeout_s: float = 120.0) -> str:
        """Until the broker is promoted on exactly one node, and on one of these if some are named; which."""
        self.wait(lambda: self._only_promoted(nodes), f"promoted on {' or '.join(nodes) or 'one node'}", timeout_s)
        return self.primary()

    def _only_promoted(self, nodes: Sequence[str]) -> bool:
        """Pacemaker is asked last, because that takes a process."""
        leading = [node for node in nodes or self.lab.plan.members if self.state(node) == "primary"]
        if not leading:
            return False
        promoted = self.view().promoted()
        return len(promoted) == 1 and promoted[0] in leading

    def wait_well(self, timeout_s: float = 180.0) -> float:
        """Until one node is promoted, every other member is unpromoted and ready, and the address is in its place."""
        return self.wait(self.is_well, "one primary with its address, all others ready", timeout_s)

    def is_well(self) -> bool:
        """See `wait_well`. What takes a process is asked last."""
        states = {node: self.state(node) for node in self.lab.plan.members}
        primaries = [node for node, state in states.items() if state == "primary"]
        backups = sorted(node for node, state in states.items() if state == "ready")
        if len(primaries) != 1 or len(primaries + backups) != len(states) or self.holders() != primaries:
            return False
        view = self.view()
        return view.promoted() == primaries and view.unpromoted() == backups

    def is_idle(self) -> bool:
        """Does Pacemaker see nothing that it may do?"""
        dc = self.view().dc
        return "S_IDLE" in self.lab.output(dc, "crmadmin", f"--status={dc}", timeout_s=10)

    # --- what an administrator does

    def cleanup(self, resource: str = "") -> None:
        """Forget failures, so that Pacemaker tries again."""
        self.administer("crm_resource", "--cleanup", *(["--resource", resource] if resource else []))

    def stop_brokers(self) -> None:
        """All of them, until `start_brokers`."""
        self.administer("crm", "resource", "stop", CLONE)
        self.wait(lambda: set(self.states().values()) == {"down"}, "all brokers are stopped")

    def start_brokers(self) -> None:
        """Let Pacemaker run them again."""
        self.administer("crm", "resource", "start", CLONE)

    def refresh(self) -> None:
        """Forget what is known of resources, and probe again."""
        self.administer("crm_resource", "--refresh", "--force")

    def standby(self, node: str) -> None:
        """Let it run nothing."""
        self.administer("crm_standby", "--node", node, "--update", "on")

    def unstandby(self, node: str) -> None:
        """Let it run resources again."""
        self.administer("crm_standby", "--node", node, "--delete")

    def set_property(self, name: str, value: str) -> None:
        """Of the cluster, such as maintenance-mode."""
        self.administer("crm_attribute", "--type", "crm_config", "--name", name, "--update", value)

    def delete_property(self, name: str) -> None:
        """Back to its default."""
        self.administer("crm_attribute", "--type", "crm_config", "--name", name, "--delete")

    def move(self, node: str) -> None:
        """Ask for the primary on that node; `unmove` lets it be anywhere again."""
        self.administer("crm_resource", "--move", "--promoted", "--resource", CLONE, "--node", node)

    def unmove(self) -> None:
        """Forget where it was asked for."""
        self.administer("crm_resource", "--clear", "--resource", CLONE)

    def administer(self, *command: str) -> str:
        """What a command on a node that takes part prints. Raises MachineError."""
        view = self.view()
        return self.lab.output(next(iter(view.online()), self.lab.members_on()[0]), *command, timeout_s=60)

    # --- what befalls a broker

    def kill_broker(self, machine: str) -> float:
        """SIGKILL; when that was, of this host's monotonic clock."""
        return self._signal_broker(machine, "KILL")

    def freeze_broker(self, machine: str) -> float:
        """SIGSTOP: it keeps its sockets, and answers nobody."""
        return self._signal_broker(machine, "STOP")

    def thaw_broker(self, machine: str) -> float:
        """SIGCONT."""
        return self._signal_broker(machine, "CONT")

    def _signal_broker(self, machine: str, name: str) -> float:
        at_s = time.monotonic()
        self.lab.output(machine, "pkill", f"-{name}", "-x", "qpidd")
        return at_s

    # --- when something went wrong

    def diagnosis(self) -> str:
        """All that a person would ask for next."""
        parts = [self.text()]
        for member in self.lab.plan.members:
            state = self.state(member) if self.lab.is_on(member) else "off"
            parts.append(f"--- {member}: broker is {state}; end of its log, and of Pacemaker's errors")
            parts.append(tail(self.lab.log(member, f"/var/log/qpid-ha/{member}.log"), 15))
            pacemaker = self.lab.log(member, "/var/log/pacemaker/pacemaker.log")
            notable = [line for line in pacemaker.splitlines() if "error:" in line or "warning:" in line]
            parts.append(tail("\n".join(notable), 15))
        return "\n".join(parts)


def tail(text: str, lines: int) -> str:
    """Its last lines."""
    return "\n".join(text.splitlines()[-lines:])
