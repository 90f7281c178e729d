"""What nodes say to each other through Pacemaker's tools, as those behave when an agent runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_agent.pacemaker.attributes import ClusterAttributes

PRIVATE_TO_AN_ACTION = "OCF_RESKEY_CRM_meta_on_node"
ATTRD_UPDATER = f"""#!/bin/sh
# As Pacemaker 2.1.5 does: whoever is told where an action runs, tells of that node alone, whatever was asked for.
for node in ${{{PRIVATE_TO_AN_ACTION}:-n1 n2 n3}}; do
    printf 'name="qpid-ha-position-broker" host="%s" value="1:2:3:ready:in-sync "\\n' "$node"
done
"""


def test_an_action_sees_the_positions_of_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "attrd_updater").write_text(ATTRD_UPDATER, encoding="utf-8")
    (tmp_path / "attrd_updater").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv(PRIVATE_TO_AN_ACTION, "n2")

    published = ClusterAttributes("broker", "n2").published("position")

    assert published.keys() == {"n1", "n2", "n3"}
