"""`ocf/qpid-ha`, the shell script that Pacemaker calls: what it answers by itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from qpid_ha_agent.ocf.codes import Code

SCRIPT = Path(__file__).parents[2] / "ocf" / "qpid-ha"


def script(action: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """On a node where nothing is installed."""
    return subprocess.run(
        ["/bin/sh", str(SCRIPT), action], env={"PATH": "/no/such/place", **environment},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip


@pytest.mark.skipif(
    any(Path(place, "qpid-ha-agent").exists() for place in ("/usr/local/bin", "/opt/qpid-ha/bin")),
    reason="qpid-ha-agent is installed on this machine: it would answer",
)
@pytest.mark.parametrize(("action", "code"), [("stop", 0), ("monitor", 7), ("start", 5), ("promote", 5), ("notify", 0)])
def test_a_node_where_nothing_is_installed_is_no_reason_to_fence_it(action: str, code: int) -> None:
    assert script(action).returncode == code


def test_an_action_that_there_is_not_is_called_unimplemented() -> None:
    for action in ("reload", "migrate_to", "", "--help"):
        assert script(action).returncode == Code.ERR_UNIMPLEMENTED


def test_notifications_of_no_interest_are_answered_without_the_agent() -> None:
    meta = "OCF_RESKEY_CRM_meta_notify_"
    found = script("notify", **{f"{meta}type": "post", f"{meta}operation": "start"})
    assert (found.returncode, found.stderr) == (0, "")
