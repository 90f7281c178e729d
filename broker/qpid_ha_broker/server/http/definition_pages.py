"""Definitions for the web page: what is defined as one document, and what a file would make of it.

What is to be done is said, and not done: the page asks for each step as for anything else, so that the rights of who
asks, the audit log and other brokers are as for a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qpid_ha_broker.server.control.control import METHOD_NOT_FOUND, ControlError
from qpid_ha_broker.server.http.own_methods import ask_own
from qpid_ha_broker.server.http.refusals import RETRY, HttpRefusal
from qpid_ha_config.errors import ConfigError

if TYPE_CHECKING:  # with PyYAML, which who has no page does without
    from qpid_ha_broker.definitions.document import Definitions
    from qpid_ha_broker.definitions.plan import ImportPlan
    from qpid_ha_broker.server.broker import Broker


class DefinitionPages:
    """The promise: nothing is changed, one file is looked at at a time, and no message waits for it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._one_at_a_time = asyncio.Lock()

    async def export(self) -> Mapping[str, object]:
        """As `qpid-ha definitions export --format json`, without users and tokens. Raises HttpRefusal."""
        return (await self._there()).as_document()

    async def plan(self, text: str, *, update: bool) -> Mapping[str, object]:
        """What `qpid-ha definitions import --dry-run` says of a file with that text. `steps`: requests of JSON-RPC, in
        an operator's words, too; `conflicts`; `unchanged`, and `left_out`, users and tokens, are numbers.

        Raises HttpRefusal."""
        async with self._one_at_a_time:
            there = await self._there()
            try:
                plan, left_out = await asyncio.to_thread(_planned, there, text, update)
            except ConfigError as error:
                raise HttpRefusal(400, str(error)) from None
            conflicts = [{"thing": conflict.thing, "problem": conflict.problem} for conflict in plan.conflicts]
            for step in plan.steps:
                if step.method == "queues" and step.action == "create":
                    try:
                        await ask_own(self._broker, "queues", **{**step.params, "action": "check"})
                    except ControlError as error:
                        conflicts.append({"thing": step.thing, "problem": error.message})
        steps = [
            {"action": step.action, "thing": step.thing, "details": step.details, "method": step.method,
             "params": dict(step.params)}
            for step in plan.steps
        ]  # fmt: skip
        return {"steps": steps, "conflicts": conflicts, "unchanged": plan.unchanged, "left_out": left_out}

    async def _there(self) -> Definitions:
        from qpid_ha_broker.definitions.document import definitions_of

        if not self._broker.is_loaded:
            raise HttpRefusal(503, "the broker loads its store yet: try again", RETRY)
        queues, exchanges = (
            await ask_own(self._broker, "queues", action="list"),
            await ask_own(self._broker, "exchanges", action="list"),
        )
        sets: Any = ()
        policies: Any = ()
        settings: Any = ()
        try:
            sets = await ask_own(self._broker, "sets", action="list")
            policies = await ask_own(self._broker, "replicas", action="list-policies")
            settings = await ask_own(self._broker, "settings", action="list")
        except ControlError as error:
            if error.code != METHOD_NOT_FOUND:  # else a standalone broker, which has none
                raise HttpRefusal(503, error.message, RETRY) from None
        return await asyncio.to_thread(definitions_of, queues, exchanges, sets, policies, settings)


def _planned(there: Definitions, text: str, update: bool) -> tuple[ImportPlan, int]:
    """With how many users and tokens were left out. Raises ConfigError. Takes long: not on the loop."""
    from qpid_ha_broker.definitions.document import read_definitions
    from qpid_ha_broker.definitions.plan import plan_import

    wanted = read_definitions("the file", text)
    left_out = len(wanted.users) + len(wanted.tokens)
    return plan_import(there, wanted.without_users, update=update), left_out
