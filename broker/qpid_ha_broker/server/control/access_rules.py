"""The access control list of a running broker: put in force, read again, and asked about by an operator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from qpid_ha_broker.access.rules import AccessControl, Permission, Subject
from qpid_ha_broker.access.user_limits import LimitKind
from qpid_ha_broker.amqp.connections.connection import Connections
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.server.control.administration import SettingsHolder, check_parameters
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError, Method
from qpid_ha_broker.server.control.setting_layers import shown_text
from qpid_ha_config.access_rules import AccessList, parse_entries, read_file
from qpid_ha_config.errors import ConfigError, SettingsError, nearest
from qpid_ha_config.loading import check_unchangeable
from qpid_ha_config.settings import AccessSettings

log = logging.getLogger("access")


FOR_APPLICATIONS: Final = "allow authenticated all"
"""The rule by which who has logged in may do with queues what applications do, and does not administer."""
Reread = Callable[[], AccessSettings]
"""Reads the configuration again. Raises SettingsError or OSError."""


class AccessRules:
    """The promise: a list that cannot be read never replaces the one that is in force."""

    def __init__(
        self, holder: SettingsHolder, access: AccessControl, connections: Connections, reread: Reread | None
    ) -> None:
        """`reread`: what the configuration says of it by now; None: that cannot change.

        Raises SettingsError where the list cannot be read.
        """
        self._holder = holder
        self._access = access
        self._connections = connections
        self._reread = reread
        settings = holder.current()
        self._list: AccessList | None = None
        """What is in force."""
        self._limits = connections.container.limits
        self._cluster_user = settings.ha.username or ""
        self._put_in_force(_read(settings.access))
        outside = [address for address in settings.listen if not address.is_loopback]
        if access.rules is None and outside:
            text = "there is no acl: clients that do not connect from this machine are refused everything at %s; to let"
            log.warning(f"{text} all who log in use all queues, set acl.rules to [{FOR_APPLICATIONS}]", outside[0])

    def _put_in_force(self, read: AccessList | None) -> None:
        self._list = read
        self._access.change(None if read is None else read.rules, self._cluster_user)
        self._limits.change(() if read is None else read.limits, self._cluster_user)
        rule = self._access.for_everybody(Permission.ADMINISTER)
        if rule:
            text = "everybody may administer this broker, by %s: name who may, and for applications write `%s`"
            log.warning(text, rule, FOR_APPLICATIONS)

    def methods(self) -> dict[str, Method]:
        """Of the control socket."""
        return {
            "reload-acl": self.reload,
            "list-acl": self.listed,
            "check-acl": self.check,
            "user-limits": self.limits,
        }

    def reload(self, params: dict[str, object]) -> object:
        """Read the list again, and end what is not allowed any more. Raises ControlError: the rules in force stay."""
        check_parameters("reload-acl", params)
        layers = self._holder.layers
        wanted = layers.own.access
        try:
            if self._reread is not None:
                wanted = self._reread()
            read = _read(wanted)
            if read is None and self._access.rules is not None and "acl.rules" not in layers.shared:
                raise SettingsError(
                    "acl.rules", "the configuration has no acl any more: to do without, restart the broker"
                )
        except (SettingsError, OSError) as error:
            log.error("the acl was not read again, and the rules in force stay: %s", error)
            key = "acl.rules" if wanted.file is None else "acl.file"
            raise ControlError(REFUSED, f"{error}; the rules in force stay", {"key": key}) from None
        in_force = layers.change(replace(layers.own, access=wanted)).access
        ended = self._put_anew(read if in_force == wanted else _read(in_force))
        rules, limits = len(self._access.rules or ()), len(self._limits.rules)
        file = None if in_force.file is None else str(in_force.file)
        return {"file": file, "rules": rules, "limits": limits, "ended": ended}

    def settings_changed(self) -> None:
        """Of this broker, or of its cluster: the rules in force are others, and what they do not allow ends."""
        self._put_anew(_read(self._holder.current().access))

    def _put_anew(self, read: AccessList | None) -> int:
        """How many links and connections that has ended."""
        self._put_in_force(read)
        ended = self._connections.check_access()
        rules = counted(len(self._access.rules or ()), "rule")
        links = counted(ended, "link or connection was", "links and connections were")
        text = "the acl was read again: %s, %s; %s ended by the rules"
        log.info(text, rules, counted(len(self._limits.rules), "limit"), links)
        return ended

    def listed(self, params: dict[str, object]) -> object:
        """The rules of the cluster, and under them those of this broker's files, as far as there are any. One layer is
        in force, whole. Raises ControlError."""
        check_parameters("list-acl", params)
        layers, key = self._holder.layers, "acl.rules"
        own, problem = layers.own.access, layers.problems.get(key, "")
        has_shared = key in layers.shared
        shown = []
        if has_shared:
            shown.append(_layer_facts("cluster", key, shown_text(layers.shared[key]), None, problem))
        if own.file is not None:
            shown.append(_layer_facts("file", str(own.file), None, self._list, ""))
        elif own.rules is not None:
            shown.append(_layer_facts("file", key, own.rules, None, ""))
        is_cluster = has_shared and not problem
        return [{**layer, "in_force": (layer["layer"] == "cluster") is is_cluster} for layer in shown]

    def check(self, params: dict[str, object]) -> object:
        """Which rule decides for `user` (empty or `anonymous`: nobody), `action`, `node`, and a client from elsewhere
        unless `local`. Raises ControlError."""
        check_parameters("check-acl", params)
        user, name, node = params.get("user"), params.get("action"), params.get("node", "")
        local = params.get("local", False)
        if not isinstance(user, str) or not isinstance(node, str) or not isinstance(local, bool):
            raise ControlError(INVALID_PARAMS, "user and node are texts, local is true or false")
        names = [action.value for action in Permission]
        if not isinstance(name, str) or name not in names:
            raise ControlError(INVALID_PARAMS, f"there is no action {name!r:.80}; {nearest(str(name)[:80], names)}")
        subject = Subject.logged_in(user, is_local=local)
        decision = self._access.decide(
            subject, Permission(name), *self._connections.container.nodes.access_by_name(node)
        )
        return {"allowed": decision.is_allowed, "reason": decision.reason}

    def limits(self, params: dict[str, object]) -> object:
        """What `user` (empty or `anonymous`: who has not logged in) may have, of each kind, by which line, and what the
        user has here now. Raises ControlError."""
        check_parameters("user-limits", params)
        user = params.get("user")
        if not isinstance(user, str):
            raise ControlError(INVALID_PARAMS, "user is a text")
        name = Subject.logged_in(user, is_local=False).user
        use = self._limits.used(name)
        container = self._connections.container
        used = {
            LimitKind.CONNECTIONS: use.connections,
            LimitKind.LINKS: use.links,
            LimitKind.QUEUES: container.nodes.count_created_by(name),
            LimitKind.SESSIONS: container.sessions.count_of(name),
        }
        return [self._limit_facts(name, kind, used.get(kind)) for kind in LimitKind]

    def _limit_facts(self, user: str, kind: LimitKind, used: int | None) -> dict[str, object]:
        limit = self._limits.limit(user, kind)
        value, reason = (None, None) if limit is None else limit
        return {"kind": kind.value, "limit": value, "used": used, "reason": reason}


def _layer_facts(layer: str, source: str, entries: object, read: AccessList | None, problem: str) -> dict[str, object]:
    """`entries`: of acl.rules; None: it is a file, of which `read` is in force."""
    if entries is not None:
        entries = [str(entry) for entry in entries] if isinstance(entries, list | tuple) else [str(entries)]
        try:
            read = parse_entries(entries)
        except ConfigError as error:
            problem = problem or str(error)
    lines = [
        {"number": line.number, "place": line.place, "text": line.text, **line.parts}
        for line in (() if read is None else read.lines)
    ]
    return {"layer": layer, "from": source, "problem": problem, "entries": entries, "lines": lines}


def _read(settings: AccessSettings) -> AccessList | None:
    """None: there is no list. Raises SettingsError."""
    if settings.file is not None:
        check_unchangeable("acl.file", settings.file)
        return read_file(settings.file)
    return None if settings.rules is None else parse_entries(settings.rules)
