"""The options of the suite, for `pytest -p`: a conftest.py in an installed package would come too late for them.

No entry point of pytest names it: whoever installs a broker beside a program of their own has no plugin in their tests.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Called by pytest."""
    group = parser.getgroup("qpid-ha coordinators", "qpid_ha_broker.coordination.conformance")
    group.addoption("--coordinator", metavar="URL", help="The coordinator to check; nobody else may use it.")
    group.addoption(
        "--coordinator-setting",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="How it is reached, as in a broker's configuration: ha.coordinator-username=NAME. May be repeated.",
    )
    group.addoption(
        "--coordinator-faults",
        metavar="MODULE:NAME",
        help="An object whose cut() makes the coordinator unreachable, and whose restore() brings it back.",
    )
