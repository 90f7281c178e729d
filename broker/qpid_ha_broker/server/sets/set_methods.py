"""The control socket's methods about many resource sets: any broker takes them, and asks the controller."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from qpid_ha_broker.access.operations import OPERATIONS, Effect
from qpid_ha_broker.cluster.control_frames import Told
from qpid_ha_broker.cluster.overview import map_facts
from qpid_ha_broker.cluster.reports import FOLLOWING, LEADING
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.types import GROUP
from qpid_ha_broker.server.control.administration import Params, check_known, check_parameters
from qpid_ha_broker.server.control.control import CALLER, INVALID_PARAMS, REFUSED, ControlError, Method
from qpid_ha_broker.server.controller.controller_client import ControllerGone
from qpid_ha_broker.server.sets.cluster_control import read_flags
from qpid_ha_broker.server.sets.forwarded_commands import CommandPlace, ForwardedCommands, is_passed_on
from qpid_ha_broker.server.sets.set_cluster import SetCluster
from qpid_ha_config.errors import nearest

log = logging.getLogger("controller")

LOOKS: Final = ("cluster-show", "cluster-history", "replicas-plan")
"""What is asked of the controller that changes nothing."""
REQUEST_LIMIT_S: Final = 25.0
"""After so long nobody waits for the controller any more."""


class SetMethods:
    """Each public method but `methods` is one of the control socket."""

    def __init__(self, cluster: SetCluster, queues: Method, passing_on: ForwardedCommands) -> None:
        """`queues`: the method of that name, on all sets of the cluster, whatever this broker leads."""
        self._cluster = cluster
        self._passing_on = passing_on
        self._queues_of_all = queues
        self._queues: Method
        self._status: Method
        self._history: Method
        self._shutdown: Method

    def methods(self, others: Mapping[str, Method]) -> dict[str, Method]:
        """By name; `others` are those of a broker that knows of one set."""
        self._queues, self._status, self._history = others["queues"], others["status"], others["history"]
        self._shutdown = others["shutdown"]
        return {
            **others,
            "status": self.status,
            "queues": self.queues,
            "history": self.history,
            "sets": self.sets,
            "brokers": self.brokers,
            "replicas": self.replicas,
            "rebalance": self.rebalance,
            "map": self.map,
            "shutdown": self.shutdown,
        }

    async def status(self, params: Params) -> object:
        """As without other sets; of this broker also what it knows of those by itself.

        Of the controller also what it has done, in numbers, or `controller_problem` where it decides nothing. `groups`:
        those of which this broker is a member, and has something to tell an operator.
        """
        told = await _result(self._status(params))
        known = {**map_facts(self._cluster.map, self._cluster.name), **self._cluster.service.facts}
        now_s = time.monotonic()
        troubles = [member.facts.trouble(now_s) for member in self._cluster.hosts.members.values()]
        if any(troubles):
            known["groups"] = [trouble for trouble in troubles if trouble]
        for row in told if isinstance(told, list) else [told]:
            if isinstance(row, dict) and row.get("name") == self._cluster.name:
                row.update(known)
        return told

    async def queues(self, params: Params) -> object:
        """As without other sets; where there are any, a broker that does not lead `default` has queues made, too, and
        what is for the primary of a queue's set is passed on to that."""
        row = OPERATIONS.find("queues", params)
        is_of_set = row is not None and row.effect is Effect.WRITES and params.get("action") != "create"
        name = params.get("name")
        is_known = isinstance(name, str) and name in self._cluster.map.queues  # what is no text is refused as anywhere
        if not self._cluster.map.sets or (is_of_set and not is_known):
            return await _result(self._queues(params))
        place = self._place(str(name)) if is_of_set and not is_passed_on() else None
        if place is not None:
            return await self._passing_on.pass_on("queues", params, place)
        return await _result(self._queues_of_all(params))

    def _place(self, queue_name: str) -> CommandPlace | None:
        """Who leads the set of a queue, if that is another broker and known; of a group any member does."""
        there = self._cluster.map
        entry = there.sets[there.queues[queue_name].set]
        is_here = self._cluster.name in entry.replicas if entry.is_group else entry.record.primary == self._cluster.name
        leader = there.brokers.get(next(iter(entry.staying), "") if entry.is_group else entry.record.primary)
        return None if is_here or leader is None else CommandPlace(leader.name, leader.address)

    async def history(self, params: Params) -> object:
        """As without other sets; with `sets` or `about` what the controller has done about those, and why."""
        if not params.get("sets") and not params.get("about"):
            return await _result(self._history(params))
        check_known(params, ("sets", "about"))
        about = {"about": params["about"]} if params.get("about") else {}
        return (await self.ask("cluster-history", about)).result.get("entries", [])

    async def sets(self, params: Params) -> object:
        """`list`, `show`, or a change of a set."""
        check_parameters("sets", params)
        action = params.get("action", "list")
        if action == "list":
            return (await self._shown())["sets"]
        if action == "show":
            return _named((await self._shown())["sets"], params.get("name"))
        return await self._change("sets", params)

    async def brokers(self, params: Params) -> object:
        """`list`, or a change of what a broker is to do."""
        check_parameters("brokers", params)
        if params.get("action", "list") == "list":
            return (await self._shown())["brokers"]
        return await self._change("brokers", params)

    async def replicas(self, params: Params) -> object:
        """`plan`: what would be done about replicas, and why; `list-policies`: how many are wanted; or a change."""
        check_parameters("replicas", params)
        if params.get("action", "plan") == "plan":
            return (await self.ask("replicas-plan")).result.get("actions", [])
        if params["action"] == "list-policies":
            return (await self._shown())["policies"]
        return await self._change("replicas", params)

    async def rebalance(self, params: Params) -> object:
        """Move primaries, or with `plan` say which would be moved, and why.

        With `begin` it is answered with those that will be moved, with `left` with how many of them are left.
        """
        flags = read_flags("rebalance", params)
        if flags["left"]:
            return {"left": (await self._shown())["balancing"]}
        if flags["plan"]:
            return (await self.ask("rebalance", {"plan_only": True})).result.get("moves", [])
        begun = {"begin_only": True} if flags["begin"] else {}
        return self._told(await self.ask("rebalance", begun, cause=params.get("cause")))

    async def shutdown(self, params: Params) -> object:
        """As without other sets; those end before `default` does."""
        problems: Mapping[str, str] = {}
        if read_flags("shutdown", params)["cluster"] and self._cluster.map.sets and self._cluster.service.is_active:
            problems = (await self.ask("sets-shutdown", {"uuid": uuid.uuid4().hex})).result["problems"]
        for name, why in problems.items():
            log.warning("set %s is not shut down in order, its stores will be as after a crash: %s", name, why)
        answer = self._shutdown(params)
        told = await answer if isinstance(answer, Awaitable) else answer
        if not problems or not isinstance(told, dict):
            return told
        names = ", ".join(list(problems)[:5])
        ends = counted(len(problems), "set ends", "sets end")
        return {**told, "text": f"{told['text']}; {ends} as after a crash, see the log ({names})"}

    async def map(self, params: Params) -> object:
        """Brokers, sets, and which queue is in which."""
        check_parameters("map", params)
        queues = [{"queue": queue.name, "set": queue.set} for queue in self._cluster.map.queues.values()]
        return {**await self._shown(), "queues": sorted(queues, key=lambda row: row["queue"])}

    async def _shown(self) -> dict[str, Any]:
        shown = dict((await self.ask("cluster-show")).result)
        shown["sets"] = [{**row, "state": _set_state(row)} for row in shown.get("sets", [])]
        shown["brokers"] = [{**row, "state": _broker_state(row)} for row in shown.get("brokers", [])]
        return shown

    async def _change(self, method: str, params: Params) -> object:
        row = OPERATIONS.find(method, params)
        if row is None or row.controller is None:
            wanted, known = params.get("action"), OPERATIONS.by_method[method]
            raise ControlError(INVALID_PARAMS, f"no action {wanted!r:.80}; {nearest(f'{wanted!s:.80}', known)}")
        given = row.controller.params(params, row.parameters)
        return self._told(await self.ask(row.controller.method, given, params.get("cause")))

    @staticmethod
    def _told(told: Told) -> object:
        return {**told.result, "text": told.text}

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, cause: object = None) -> Told:
        """Raises ControlError when it was refused."""
        who = CALLER.get()
        caller = who.facts() if who is not None and method not in LOOKS else {}
        if cause is not None:
            log.info("%s %s %.100s", method, dict(params or {}), cause)
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                told = await self._cluster.client.ask(method, params or {}, caller)
        except (ControllerGone, TimeoutError) as error:
            raise _no_controller(error) from None
        if not told.done:
            raise ControlError(REFUSED, told.text, {"reason": "refused", **told.result})
        return told


async def _result(answer: object) -> object:
    return await answer if isinstance(answer, Awaitable) else answer


def _no_controller(error: ControllerGone | TimeoutError) -> ControlError:
    if isinstance(error, ControllerGone):
        return ControlError(REFUSED, f"{error}; see `qpid-ha diagnose`", {"reason": "no-controller"})
    text = f"no outcome within {REQUEST_LIMIT_S:g} s: it may go on; look at `qpid-ha map` and at the logs"
    return ControlError(REFUSED, text, {"reason": "timeout"})


def _set_state(row: Mapping[str, Any]) -> str:
    """In a word or two; `ok`: it wants nothing."""
    if not row["primary"]:
        if row.get("strategy") != GROUP:
            return "no primary"
        return "changing" if {LEADING, FOLLOWING} & set(row["replicas"].values()) else "no member serves"
    if row["moving_to"]:
        return f"moving to {row['moving_to']}"
    if len(row["in_sync"]) < row["wanted"]:
        return "too few in sync"
    return "ok"


def _broker_state(row: Mapping[str, Any]) -> str:
    if row["draining"]:
        return "drained" if row["safe_to_stop"] else "draining"
    return "up" if row["up"] else "down"


def _named(rows: object, name: object) -> object:
    for row in rows if isinstance(rows, list) else []:
        if row.get("name") == name:
            return row
    raise ControlError(REFUSED, f"there is no set {name!s:.80}: see `qpid-ha set list`", {"reason": "not-found"})
