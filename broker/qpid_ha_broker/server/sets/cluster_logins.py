"""Users with passwords, and tokens of the HTTP port, that a cluster keeps: in force here, and changed for all.

They are kept as its settings are, in the map, with a secret for a value: of a password its verifiers (`access.scram`),
of a token its digest. Who asks has made these: a broker sees neither passwords nor tokens before somebody logs in.
Which users and tokens are in files of a broker is not known here; those of the cluster count above them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.access.scram import UserLogin, name_problem
from qpid_ha_broker.amqp.connections.connection import Connections
from qpid_ha_broker.cluster.control_frames import Told
from qpid_ha_broker.cluster_map import TOKENS, USERS, ClusterMap
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.server.control.administration import Params, check_parameters
from qpid_ha_broker.server.control.control import CALLER, INVALID_PARAMS, ControlError, Method
from qpid_ha_broker.server.runtime.kept_logins import KeptLogins
from qpid_ha_config.errors import SettingsError, nearest
from qpid_ha_config.settings import BrokerSettings

if TYPE_CHECKING:  # who has no tokens does without
    from qpid_ha_config.tokens import TokenEntry

log = logging.getLogger("access")

AskController = Callable[[str, Mapping[str, Any]], Awaitable[Told]]
AskOthers = Callable[[str, object], Awaitable[list[str]]]
"""Whether each other broker can have the value under that key; who did not answer. Raises ControlError."""
MADE_BY_CLIENT: Final = "`qpid-ha` makes it of what is typed: upgrade it, if it did"


class LoggedIn(Protocol):
    """The broker, as far as it has clients who have logged in."""

    connections: Connections

    def current(self) -> BrokerSettings:
        """The settings in force."""

    def schedule_turn(self) -> None:
        """Have a turn at the end of this round of the loop."""


class ClusterLogins:
    """The promise: in force is what the map has, as far as it can be read; what cannot lets nobody in."""

    def __init__(self, broker: LoggedIn, kept: KeptLogins, cluster_map: ClusterMap) -> None:
        """`kept`: by which clients are let in."""
        self._broker = broker
        self._kept = kept
        self._map = cluster_map
        self._read: dict[str, tuple[str, UserLogin | TokenEntry]] = {}
        """Values, and what was made of each, by key: to read all of them again for each change would take long."""
        self.put_in_force()

    def put_in_force(self) -> None:
        """What the map has now."""
        users = self._all(USERS, read_user)
        tokens = self._all(TOKENS, read_token)
        for key in self._read.keys() - self._map.settings.keys():
            del self._read[key]
        if users != self._kept.users.by_name:
            self._kept.users.by_name = MappingProxyType(users)
            ended = self._broker.connections.check_logins()
            self._broker.schedule_turn()
            log.info(
                "the cluster has %s with passwords; %s ended",
                counted(len(users), "user"), counted(ended, "connection was", "connections were"),
            )  # fmt: skip
        if tokens != self._kept.tokens:
            self._kept.tokens = tokens
            log.info("the cluster has %s", counted(len(tokens), "token"))

    def _all(self, prefix: str, read: Callable[[str, str], Any]) -> dict[str, Any]:
        there = {}
        for name, text in self._map.secrets(prefix).items():
            try:
                before, made = self._read.get(prefix + name, ("", None))
                if made is None or before != text:
                    made = read(name, text)
                    self._read[prefix + name] = text, made
                there[name] = made
            except ValueError as error:
                log.error("%s%s of the cluster cannot be used, and lets nobody in: %s", prefix, name, error)
        return there

    def check(self, key: str, value: object) -> None:
        """Whether this broker can put that in force for the cluster; None: nothing. Raises SettingsError."""
        kind, _, name = key.partition("/")
        if value is None:
            return
        try:
            (read_user if kind == "user" else read_token)(name, str(value))
        except ValueError as error:
            raise SettingsError(key, str(error)) from None
        if kind == "user" and name == self._broker.current().ha.username:
            problem = "is ha.username, who the brokers are to each other: each has that one in its own file"
            raise SettingsError(key, problem)


def read_user(name: str, text: str) -> UserLogin:
    """As the map has it. Raises ValueError, which quotes nothing."""
    return UserLogin.read(name, _text(text))


def read_token(name: str, text: str) -> TokenEntry:
    """As the map has it. Raises ValueError, which quotes nothing."""
    from qpid_ha_config.tokens import read_entry

    return read_entry([name, *_text(text).split(" ")])


def _text(value: str) -> str:
    try:
        text = json.loads(value)
    except ValueError:
        text = None
    if not isinstance(text, str):
        raise ValueError("it is no text")
    return text


class LoginMethods:
    """The methods `users` and `tokens` of the control socket."""

    def __init__(
        self, logins: ClusterLogins, cluster_map: ClusterMap, ask_others: AskOthers, ask_controller: AskController
    ) -> None:
        self._logins = logins
        self._map = cluster_map
        self._ask_others = ask_others
        self._ask_controller = ask_controller

    def methods(self) -> dict[str, Method]:
        """Of the control socket."""
        return {"users": self.users, "tokens": self.tokens}

    async def users(self, params: Params) -> object:
        """`list`, `export` (with verifiers, by which passwords can be guessed), `set` and `remove`."""
        check_parameters("users", params)
        match params.get("action", "list"):
            case "list":
                return [{"user": name, **self._change_of(USERS + name)} for name in sorted(self._map.secrets(USERS))]
            case "export":
                there = sorted(self._map.secrets(USERS).items())
                return [{"name": name, "verifiers": json.loads(text)} for name, text in there]
            case "set":
                name = _name(params, name_problem)
                return await self._set(USERS + name, _given(params, "verifiers"), params)
            case "remove":
                return await self._remove(USERS + _name(params, None))
            case other:
                raise _no_action("users", other)

    async def tokens(self, params: Params) -> object:
        """`list`, `export`, `set` and `remove`."""
        check_parameters("tokens", params)
        match params.get("action", "list"):
            case "list" | "export" as action:
                entries = [read_token(name, text) for name, text in sorted(self._map.secrets(TOKENS).items())]
                return [
                    {"name": entry.name, "role": entry.role.value}
                    | ({"digest": entry.digest} if action == "export" else self._change_of(TOKENS + entry.name))
                    for entry in entries
                ]
            case "set":
                name = _name(params, None)
                value = f"{_given(params, 'role')} {_given(params, 'digest')}"
                return await self._set(TOKENS + name, value, params)
            case "remove":
                return await self._remove(TOKENS + _name(params, None))
            case other:
                raise _no_action("tokens", other)

    def _change_of(self, key: str) -> dict[str, object]:
        """The last one, if it is among those that are kept."""
        for change in reversed(self._map.setting_changes):
            if change.key == key:
                return {"at_ms": change.at_ms or None, "by": change.user or None}
        return {"at_ms": None, "by": None}

    async def _set(self, key: str, text: str, params: Params) -> object:
        value = json.dumps(text)
        is_new, replaces = (params.get(name, False) for name in ("is_new", "replaces"))
        if not isinstance(is_new, bool) or not isinstance(replaces, bool):
            raise ControlError(INVALID_PARAMS, "is_new and replaces are true or false")
        try:
            self._logins.check(key, value)
        except SettingsError as error:
            raise ControlError(INVALID_PARAMS, f"{error}; {MADE_BY_CLIENT}", {"key": key}) from None
        notes = await self._ask_others(key, value)
        return await self._change({"key": key, "value": value, "is_new": is_new, "replaces": replaces}, notes)

    async def _remove(self, key: str) -> object:
        notes = await self._ask_others(key, None)
        return await self._change({"key": key, "value": ""}, notes)

    async def _change(self, wanted: dict[str, object], notes: list[str]) -> object:
        caller = CALLER.get()
        told = await self._ask_controller("login-change", {**wanted, "user": "" if caller is None else caller.user})
        name = str(wanted["key"]).partition("/")[2]
        changed = {"name": name, "was_there": bool(told.result.get("was_there"))}
        return {**changed, "notes": notes} if notes else changed


def _name(params: Params, problem: Callable[[str], str] | None) -> str:
    name = params.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise ControlError(INVALID_PARAMS, "name is the name of a user or a token")
    if problem is not None and (why := problem(name)):
        raise ControlError(INVALID_PARAMS, why)
    return name


def _given(params: Params, name: str) -> str:
    """Never quoted: it may be a secret."""
    text = params.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= 1024:
        raise ControlError(INVALID_PARAMS, f"{name} is a text; {MADE_BY_CLIENT}")
    return text


def _no_action(method: str, given: object) -> ControlError:
    known = OPERATIONS.by_method[method]
    return ControlError(INVALID_PARAMS, f"no action {given!r:.80}; {nearest(f'{given!s:.80}', known)}")
