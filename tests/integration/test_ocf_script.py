"""`ocf/qpid-ha`, the shell script that Pacemaker calls: what it answers by itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from qpid_ha_agent.ocf.codes import OcfCode
from qpid_ha_agent.ocf.metadata import metadata

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
        assert script(action).returncode == OcfCode.ERR_UNIMPLEMENTED


@pytest.mark.parametrize(
    ("when", "operation", "stop", "start", "comes"),
    [
        ("pre", "promote", "", "", True),
        ("post", "stop", "n2", "", True),
        ("pre", "demote", "n2 n1", "", True),
        ("pre", "stop", "n1", "n2", True),
        ("pre", "demote", " ", "", False),
        ("pre", "stop", "n11 n2", "", False),
        ("pre", "demote", "n1", "n1", False),
    ],
)
def test_a_notification_of_interest_comes_to_the_agent(
    tmp_path: Path, when: str, operation: str, stop: str, start: str, comes: bool
) -> None:
    agent = tmp_path / "qpid-ha-agent"
    agent.write_text("#!/bin/sh\necho agent $1\n", encoding="utf-8")
    agent.chmod(0o755)
    meta = "OCF_RESKEY_CRM_meta_notify_"
    about = {"type": when, "operation": operation, "stop_uname": stop, "start_uname": start}
    found = script(
        "notify",
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        OCF_RESKEY_CRM_meta_on_node="n1",
        **{f"{meta}{name}": text for name, text in about.items()},
    )
    assert found.stdout == ("agent notify\n" if comes else "")


DTD = Path("/usr/share/resource-agents/ra-api-1.dtd")


PCS_SCHEMA = Path("/usr/share/pcs/data/ocf-1.1.rng")


@pytest.mark.skipif(not DTD.exists(), reason=f"{DTD} is not there: install resource-agents and libxml2-utils")
def test_the_metadata_fits_the_schema_that_ocf_tester_uses() -> None:
    check(["xmllint", "--noout", "--valid", "-"], DTD.parent)


@pytest.mark.skipif(not PCS_SCHEMA.exists(), reason=f"{PCS_SCHEMA} is not there: install pcs")
def test_the_metadata_fits_the_schema_of_ocf_1_1() -> None:
    check(["xmllint", "--noout", "--relaxng", str(PCS_SCHEMA), "-"], DTD.parent)


def check(command: list[str], directory: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
    found = subprocess.run(
        command, input=metadata(), cwd=directory if directory.exists() else None, env=environment,
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
