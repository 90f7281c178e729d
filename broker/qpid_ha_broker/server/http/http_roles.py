"""Which role a request of JSON-RPC needs: a table. What is not in it needs `admin`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from qpid_ha_broker.server.control.audited_requests import ALL, DEFAULT_ACTIONS, LOOKING
from qpid_ha_config.tokens import TokenRole

_V, _O = TokenRole.VIEWER, TokenRole.OPERATOR

NEEDED: Final[Mapping[str, Mapping[str, TokenRole]]] = {
    "ping": {ALL: _V},
    "status": {ALL: _V},
    "query": {ALL: _V},
    "get": {ALL: _V},
    "backups": {ALL: _V},
    "history": {ALL: _V},
    "events": {ALL: _V},
    "map": {ALL: _V},
    "queues": {
        "list": _V, "read": _V, "create": _O, "update": _O, "delete": _O, "purge": _O,
        "peek": _O, "payload": _O, "move": _O,  # a viewer sees figures; what is in messages is their owners' business
    },
    "exchanges": {"list": _V, "read": _V, "create": _O, "delete": _O, "bind": _O, "unbind": _O},
    "sessions": {"list": _V, "end": _O},
    "connections": {"list": _V, "close": _O},
    "sets": {
        "list": _V, "show": _V, "create": _O, "transfer": _O, "add-replica": _O, "remove-replica": _O,
    },
    "brokers": {"list": _V, "drain": _O, "undrain": _O},
    "replicas": {"plan": _V, "list-policies": _V, "trim": _O, "policies": _O},
    "pause": {"show": _V, "begin": _O, "end": _O},
    "remote-nodes": {ALL: _V},
    "rebalance": {ALL: _O},
    "replicate": {ALL: _O},
    "promote": {ALL: _O},
    "demote": {ALL: _O},
    "switchover": {ALL: _O},
    "reload-tls": {ALL: _O},
}  # fmt: skip
"""By method, and by `action` among its params."""


def needed_role(method: str, params: Mapping[str, object]) -> TokenRole:
    """The least role that may ask for this. By force something may be lost: that takes `admin`, whatever it is."""
    rows = NEEDED.get(method)
    if rows is None or params.get("force", False) is not False:
        return TokenRole.ADMIN
    if method in LOOKING and LOOKING[method](params):
        return TokenRole.VIEWER
    if ALL in rows:
        return rows[ALL]
    action = params.get("action", DEFAULT_ACTIONS.get(method, "list"))
    return rows.get(action, TokenRole.ADMIN) if isinstance(action, str) else TokenRole.ADMIN
