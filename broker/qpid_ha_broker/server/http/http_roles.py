"""Which role of a token a request of JSON-RPC needs: what its row says. What has no row needs `admin`."""

from __future__ import annotations

from collections.abc import Mapping

from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.access.token_roles import TokenRole


def needed_role(method: str, params: Mapping[str, object]) -> TokenRole:
    """The least role that may ask for this. By force something may be lost: that takes `admin`, whatever it is."""
    row = OPERATIONS.find(method, params)
    if row is None or row.control is None or params.get("force", False) is not False:
        return TokenRole.ADMIN
    reads_now = row.control.reads_with is not None and row.control.reads_with(params)
    return TokenRole.VIEWER if reads_now else row.control.role
