"""Which requests of JSON-RPC change something, and which of their parameters the audit log has: a table.

A request that is not in the table is taken to change something, and nothing of its parameters is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from qpid_ha_broker.access.audit import AuditedParameters, audited
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import SECRETS, find

LOOK: Final = None
"""It changes nothing."""
ALL: Final = ""
"""Stands for every action that has no row of its own."""

AUDITED: Final[Mapping[str, Mapping[str, AuditedParameters | None]]] = {
    "ping": {ALL: LOOK},
    "status": {ALL: LOOK},
    "query": {ALL: LOOK},
    "get": {ALL: LOOK},
    "backups": {ALL: LOOK},
    "history": {ALL: LOOK},
    "events": {ALL: LOOK},
    "map": {ALL: LOOK},
    "remote-nodes": {ALL: LOOK},
    "check-acl": {ALL: LOOK},
    "user-limits": {ALL: LOOK},
    "queues": {
        "list": LOOK,
        "read": LOOK,
        "create": ("name", "arguments"),
        "update": ("name", "arguments"),
        "delete": ("name", "if_empty", "if_unused"),
        "purge": ("name",),
        "peek": LOOK,
        "payload": LOOK,
        "move": ("name", "to", "count", "id"),
    },
    "exchanges": {
        "list": LOOK,
        "read": LOOK,
        "create": ("name", "kind", "arguments"),
        "delete": ("name", "if_unused"),
        "bind": ("name", "queue", "key"),
        "unbind": ("name", "queue", "key"),
    },
    "sessions": {"list": LOOK, "end": ("name",)},
    "connections": {"list": LOOK, "close": ("id", "broker", "reason", "cause")},
    "sets": {
        "list": LOOK,
        "show": LOOK,
        "create": ("name", "replicas", "preferred", "min_replicas", "min_in_sync", "cause"),
        "delete": ("name", "lost", "cause"),
        "transfer": ("name", "to", "cause"),
        "promote": ("name", "broker", "force", "cause"),
        "add-replica": ("name", "broker", "cause"),
        "remove-replica": ("name", "broker", "force", "cause"),
    },
    "brokers": {
        "list": LOOK,
        "drain": ("name", "force", "cause"),
        "undrain": ("name", "cause"),
        "leave": ("name", "cause"),
        "fail": ("name", "reason", "cause"),
        "forget": ("name", "cause"),
    },
    "replicas": {"plan": LOOK, "list-policies": LOOK, "trim": ("name", "cause"), "policies": ("policies", "cause")},
    "pause": {"show": LOOK, "begin": ("for_s", "reason", "by"), "end": ("by",)},
    "rebalance": {ALL: ("begin", "cause")},
    "replicate": {ALL: ("queue", "address", "stop")},
    "set": {ALL: ("key", "value")},
    "promote": {ALL: ("force", "failover", "cause")},
    "demote": {ALL: ("cause",)},
    "switchover": {ALL: ("to", "cause", "within_s")},
    "drop": {ALL: ("backup", "reason")},
    "shutdown": {ALL: ("cluster",)},
    "reload-tls": {ALL: ()},
    "reload-acl": {ALL: ()},
}
"""By method, and by `action` among its params."""
LOOKING: Final[Mapping[str, Callable[[Mapping[str, object]], bool]]] = {
    "rebalance": lambda params: params.get("plan") is True or params.get("left") is True,
    "replicate": lambda params: not params,
}
"""Methods without actions that change nothing with such params."""
DEFAULT_ACTIONS: Final[Mapping[str, str]] = {"replicas": "plan", "pause": "show"}
"""What a method does without `action`; of the others that have one: `list`."""


def audited_request(method: str, params: Mapping[str, object]) -> tuple[str, dict[str, object]] | None:
    """How the audit log calls the act, and the parameters that it has of it; None: the request changes nothing."""
    rows = AUDITED.get(method)
    if rows is None:
        return method[:80], {}
    if method in LOOKING and LOOKING[method](params):
        return None
    if ALL in rows:
        names = rows[ALL]
        return None if names is None else (method, _told(method, params, names))
    action = params.get("action", DEFAULT_ACTIONS.get(method, "list"))
    if not isinstance(action, str):
        return method, {}
    names = rows.get(action, ())
    return None if names is None else (f"{method} {action[:80]}", audited(params, names))


def only_looks(method: str, params: Mapping[str, object]) -> bool:
    """Whether the request changes nothing: who has asked may go, and then nobody needs the answer."""
    return audited_request(method, params) is None


def _told(method: str, params: Mapping[str, object], names: AuditedParameters) -> dict[str, object]:
    parameters = audited(params, names)
    if method == "set" and "value" in parameters and not _may_be_told(params.get("key")):
        del parameters["value"]
    return parameters


def _may_be_told(key: object) -> bool:
    """Whether `key` is a setting whose value is no secret."""
    try:
        return isinstance(key, str) and find(key).setting.key not in SECRETS
    except SettingsError:
        return False
