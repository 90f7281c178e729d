"""What the audit log has of a request of JSON-RPC: the parameters that the operation's row names.

A request without a row is taken to change something, and nothing of its parameters is told.
"""

from __future__ import annotations

from collections.abc import Mapping

from qpid_ha_broker.access.audit import audited
from qpid_ha_broker.access.operations import ALL, OPERATIONS, ParameterKind
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import SECRETS, find


def audited_request(method: str, params: Mapping[str, object]) -> tuple[str, dict[str, object]] | None:
    """How the audit log calls the act, and the parameters that it has of it; None: the request changes nothing."""
    if OPERATIONS.reads(method, params):
        return None
    row = OPERATIONS.find(method, params)
    if row is not None and row.control is not None:
        act = method if row.control.action == ALL else f"{method} {row.control.action}"
        secret = {name for name, kind in row.parameters.items() if kind is ParameterKind.SETTING}
        parameters = audited(params, row.control.audited or ())
        if not _may_be_told(params.get("key")):
            parameters = {name: value for name, value in parameters.items() if name not in secret}
        return act, parameters
    action = params.get("action")
    is_method = method in OPERATIONS.by_method
    return (f"{method} {action[:80]}" if is_method and isinstance(action, str) else method[:80]), {}


def _may_be_told(key: object) -> bool:
    """Whether `key` is a setting whose value is no secret."""
    try:
        return isinstance(key, str) and find(key).setting.key not in SECRETS
    except SettingsError:
        return False
