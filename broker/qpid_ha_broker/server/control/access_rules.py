"""The access control list of a running broker: put in force, read again, and asked about by an operator."""

from __future__ import annotations

import logging

from qpid_ha_broker.amqp.connections.connection import Connections
from qpid_ha_broker.model.access import AccessControl, AccessRule, Permission, Subject
from qpid_ha_broker.server.control.administration import check_known
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError, Method
from qpid_ha_config.access_rules import parse_entries, read_file
from qpid_ha_config.errors import SettingsError, nearest
from qpid_ha_config.loading import check_unchangeable
from qpid_ha_config.settings import BrokerSettings

log = logging.getLogger("access")


class AccessRules:
    """The promise: a list that cannot be read never replaces the one that is in force."""

    def __init__(self, settings: BrokerSettings, access: AccessControl, connections: Connections) -> None:
        """Raises SettingsError where the list cannot be read."""
        self._settings = settings.access
        self._access = access
        self._connections = connections
        access.change(self._read(), settings.ha.username or "")
        outside = [address for address in settings.listen if not address.is_loopback]
        if access.rules is None and outside:
            text = "there is no acl: clients that do not connect from this machine are refused everything at %s; to"
            log.warning(f"{text} allow it to all who log in, set acl.rules to [allow authenticated all]", outside[0])

    def _read(self) -> tuple[AccessRule, ...] | None:
        """None: there is no list. Raises SettingsError."""
        if self._settings.file is not None:
            check_unchangeable("acl.file", self._settings.file)
            return read_file(self._settings.file)
        return None if self._settings.rules is None else parse_entries(self._settings.rules)

    def methods(self) -> dict[str, Method]:
        """Of the control socket."""
        return {"reload-acl": self.reload, "check-acl": self.check}

    def reload(self, params: dict[str, object]) -> object:
        """Read the file again, and end what is not allowed any more. Raises ControlError: the rules in force stay."""
        check_known(params, ())
        if self._settings.file is None:
            return {"file": None, "rules": len(self._access.rules or ()), "ended": 0}
        try:
            rules = self._read()
        except SettingsError as error:
            log.error("the acl was not read again, and the rules in force stay: %s", error)
            raise ControlError(REFUSED, f"{error}; the rules in force stay", {"key": "acl.file"}) from None
        self._access.change(rules, self._access.cluster_user)
        ended = self._connections.check_access()
        count = len(rules or ())
        log.info("the acl was read again: %d rules; %d links and connections were ended by them", count, ended)
        return {"file": str(self._settings.file), "rules": count, "ended": ended}

    def check(self, params: dict[str, object]) -> object:
        """Which rule decides for `user` (empty or `anonymous`: nobody), `action`, `node`, and a client from elsewhere
        unless `local`. Raises ControlError."""
        check_known(params, ("user", "action", "node", "local"))
        user, name, node = params.get("user"), params.get("action"), params.get("node", "")
        local = params.get("local", False)
        if not isinstance(user, str) or not isinstance(node, str) or not isinstance(local, bool):
            raise ControlError(INVALID_PARAMS, "user and node are texts, local is true or false")
        names = [action.value for action in Permission]
        if not isinstance(name, str) or name not in names:
            raise ControlError(INVALID_PARAMS, f"there is no action {name!r:.80}; {nearest(str(name)[:80], names)}")
        subject = Subject.logged_in(user, is_local=local)
        decision = self._access.decide(subject, Permission(name), node)
        return {"allowed": decision.is_allowed, "reason": decision.reason}
