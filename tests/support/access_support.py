"""Access control for tests: none, and rules written as in a file."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.access.rules import AccessControl, Subject
from qpid_ha_config.access_rules import parse_entries

LOCAL: Final = Subject("", is_local=True)
"""A client of this machine that has not logged in."""


def open_to_all() -> AccessControl:
    """No rules: LOCAL may do everything."""
    return AccessControl(lambda level, text: None, lambda: 0)


def controlled(*rules: str, cluster_user: str = "") -> AccessControl:
    """With rules in force."""
    access = open_to_all()
    access.change(parse_entries(rules).rules, cluster_user)
    return access
