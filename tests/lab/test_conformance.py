"""The suite for coordinators, as anybody calls it, on a node of a real cluster, as the broker's user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lab import node_faults, wheels
from lab.cluster import Cluster
from lab.stage import Stage

NODE: Final = "n1"
PYTHON: Final = "/opt/qpid-ha/bin/python"
WHEELS: Final = "/tmp/wheels"
FAULTS: Final = f"/usr/local/lib/conformance/{Path(node_faults.__file__).name}"
AS_BROKER: Final = (
    "setpriv", "--reuid=qpid-ha", "--regid=qpid-ha", "--init-groups",
    "--inh-caps=+net_admin", "--ambient-caps=+net_admin",
)  # fmt: skip
"""The capability is for what the faults do to the network."""
LIMIT_S: Final = 600.0
"""On a machine that has much else to do."""


@pytest.fixture
def unfenced(stage: Stage) -> Iterator[Cluster]:
    """Runs nothing, and a node that is cut off may live."""
    cluster = stage.empty()
    cluster.set_property("stonith-enabled", "false")
    yield cluster
    stage.distrust()


def test_pacemaker_passes(unfenced: Cluster) -> None:
    lab = unfenced.lab
    lab.push(NODE, wheels.dependencies(), WHEELS)
    lab.output(NODE, PYTHON, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", WHEELS,
               "qpid-ha[conformance]", timeout_s=60)  # fmt: skip
    lab.push(NODE, Path(node_faults.__file__), FAULTS)
    lab.shell(NODE, f"chmod 644 {FAULTS}")

    done = lab.run(
        NODE, *AS_BROKER, "env", f"PYTHONPATH={Path(FAULTS).parent}",
        PYTHON, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short", "--durations=10",
        "-p", "qpid_ha_broker.coordination.conformance.plugin",
        "--pyargs", "qpid_ha_broker.coordination.conformance", "--coordinator", "pacemaker:conformance",
        "--coordinator-setting", "ha.coordinator-timeout=1s", "--coordinator-faults", "node_faults:partition",
        timeout_s=LIMIT_S, check=False,
    )  # fmt: skip

    print(done.stdout)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-1000:]
    skipped = re.findall(r"^SKIPPED \[(\d+)\] .*?: (.*)$", done.stdout, re.MULTILINE)
    assert {reason.partition(":")[0] for _, reason in skipped} == {"it has no leases"}
    assert re.findall(r"^PASSED .*test_faults", done.stdout, re.MULTILINE)
