"""Settings of the cluster, at any of its brokers: asked for, shown, and put in force as the map changes.

A change counts once it is committed in `default`. Before that each broker that answers is asked whether it can put the
value in force, and one that cannot has it refused. Who does not answer is named: it puts the value in force when it is
back, or says why it cannot (`SettingLayers.problems`, which `qpid-ha diagnose` shows).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Final, Protocol

from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.cluster_map import Changes, ClusterMap, is_secret
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.frames import Answer, Topic
from qpid_ha_broker.model.exchanges.broker_events import BrokerEvents, EventSubject
from qpid_ha_broker.server.control.administration import Params, SettingsHolder, check_parameters
from qpid_ha_broker.server.control.control import CALLER, INVALID_PARAMS, REFUSED, ControlError, Method
from qpid_ha_broker.server.control.setting_layers import check_of_cluster, shown_value
from qpid_ha_broker.server.peers.peer_asker import Outcome
from qpid_ha_broker.server.sets.cluster_logins import AskController, ClusterLogins
from qpid_ha_config.errors import SettingsError, nearest
from qpid_ha_config.kinds import HIDDEN
from qpid_ha_config.settings import canonical_key, find

log = logging.getLogger("settings")

ANSWER: Final = "setting_problem"
"""What is asked for, in the facts of a broker: why it cannot put the value in force, empty if it can. An older release
does not say it."""


class OthersAsked(Protocol):
    """See `peer_questions.PeerQuestions`."""

    async def ask_others(self, topic: Topic, request: str = "") -> Outcome:
        """What each address answered."""


class ClusterSettings:
    """See above. Each change of the map puts all layers in force anew, a round of the loop later: the event may come in
    the midst of what depends on them."""

    def __init__(
        self,
        holder: SettingsHolder,
        cluster_map: ClusterMap,
        others: OthersAsked,
        ask_controller: AskController,
        events: BrokerEvents,
        logins: ClusterLogins,
    ) -> None:
        self._logins = logins
        self._holder = holder
        self._layers = holder.layers
        self._map = cluster_map
        self._others = others
        self._ask_controller = ask_controller
        self._events = events
        self._told = dict(cluster_map.settings)
        """As events have it."""
        self._is_due = False
        cluster_map.listeners.append(self._map_changed)

    def methods(self) -> dict[str, Method]:
        """Of the control socket."""
        return {"settings": self.settings}

    # --- what the map says

    def _map_changed(self, changes: Changes) -> None:
        if not changes.settings:
            return
        users = {change.key: change.user for change in self._map.setting_changes}
        for key in changes.settings:
            value = self._map.settings.get(key, "")
            if value != self._told.get(key, ""):  # of a map that was replaced as a whole most are as before
                self._events.tell(EventSubject.SETTING_CHANGED, key=key, unset=not value, user=users.get(key, ""))
                self._told[key] = value
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self.put_in_force)

    def put_in_force(self) -> None:
        """All layers, as they are now."""
        self._is_due = False
        before = self._layers.problems
        self._layers.shared = self._map.plain_settings
        self._logins.put_in_force()
        self._holder.replace(self._layers.own)
        for key, problem in self._layers.problems.items():
            if before.get(key) != problem:
                text = "the cluster's value of %s is not in force here: %s; see `qpid-ha config diff`"
                log.error(text, key, problem)

    def facts(self, request: str) -> Mapping[str, object]:
        """What another broker gets that asks about a change; see `ANSWER`."""
        if not request:
            return {}
        try:
            asked = json.loads(request)
            self._check(asked["key"], asked["value"])
        except SettingsError as error:
            return {ANSWER: str(error)}
        except (ValueError, TypeError, KeyError):
            return {ANSWER: "the question cannot be understood"}
        return {ANSWER: ""}

    def _check(self, key: str, value: object) -> None:
        if is_secret(key):
            self._logins.check(key, value)
        elif value is None:
            self._layers.check_unset(key)
        else:
            self._layers.check(key, value)

    # --- what is asked for

    async def settings(self, params: Params) -> object:
        """`list`: what is not as by default, by layers; `history`: the last changes; `set` and `unset`."""
        check_parameters("settings", params)
        match params.get("action", "list"):
            case "list":
                return [row._asdict() for row in self._layers.rows()]
            case "history":
                return [
                    {"at_ms": change.at_ms, "key": change.key, "value": _shown(change), "user": change.user}
                    for change in self._map.setting_changes
                ]
            case "set":
                if params.get("value") is None:
                    raise ControlError(INVALID_PARAMS, "set it to what? Give a value")
                return await self._change(params, params["value"])
            case "unset":
                return await self._change(params, None)
            case other:
                known = OPERATIONS.by_method["settings"]
                raise ControlError(INVALID_PARAMS, f"no action {other!r:.80}; {nearest(f'{other!s:.80}', known)}")

    async def _change(self, params: Params, value: object) -> object:
        """`value` None: what the files say counts again."""
        key = params.get("key")
        if not isinstance(key, str) or len(key) > 200:
            raise ControlError(INVALID_PARAMS, "key is the name of a setting, such as max-connections")
        key = canonical_key(key)
        try:
            find(key)
            check_of_cluster(key)
            text = "" if value is None else shown_value(key, value)
            self._check(key, value)
        except SettingsError as error:
            raise ControlError(INVALID_PARAMS, str(error), {"key": key}) from None
        notes = await self.ask_others(key, value)
        caller = CALLER.get()
        wanted = {"key": key, "value": text, "user": "" if caller is None else caller.user}
        told = await self._ask_controller("setting-change", wanted)
        old = self._layers.own.get(key) if told.result["old"] == "" else _value(str(told.result["old"]))
        new = self._layers.own.get(key) if value is None else _value(text)
        return {"key": key, "old": old, "new": new, **({"notes": notes} if notes else {})}

    async def ask_others(self, key: str, value: object) -> list[str]:
        """Who has not answered, in an operator's words. `value` None: it is to be taken away. Raises ControlError where
        somebody cannot have it."""
        found = await self._others.ask_others(Topic.QUERY, json.dumps({"key": key, "value": value}))
        notes = []
        for address, answer in sorted(found.items()):
            if not isinstance(answer, Answer):
                notes.append(f"{address} does not answer: it puts this in force when it is back, if it can")
            elif problem := _problem(answer):
                raise ControlError(
                    REFUSED, f"{answer.name} cannot put it in force, nothing is changed: {problem}", {"key": key}
                )
        return notes


def _problem(answer: Answer) -> str:
    try:
        facts = json.loads(answer.text)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        return "its answer cannot be understood"
    return str(facts.get(ANSWER, "it is of a release that knows no settings of a cluster: upgrade it first"))


def _shown(change: ev.SettingChanged) -> object:
    """The value, but of users and tokens only whether there is one."""
    return HIDDEN if is_secret(change.key) and change.value else _value(change.value)


def _value(text: str) -> object:
    """As JSON can carry it; None: it was taken away."""
    return json.loads(text) if text else None
