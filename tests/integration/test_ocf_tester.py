"""The real `ocf-tester` of the package resource-agents, on the real agent with a real broker, outside any cluster."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cluster_in_process import free_ports
from qpid_ha_agent.ocf.memory import DIRECTORY_VARIABLE
from running_broker import RunningBroker
from scripted_broker import ScriptedBroker

ROOT = Path(__file__).parents[2]
TESTER = shutil.which("ocf-tester", path=f"{os.environ['PATH']}:/usr/sbin")
TIMEOUT_S = 120.0


def why_not_here() -> str:
    """Empty where it can run."""
    if os.geteuid() != 0:
        return "ocf-tester and the agent want to be root"
    if TESTER is None:
        return "there is no ocf-tester: install resource-agents"
    return "" if shutil.which("crm_attribute") else "there is no crm_attribute: install pacemaker-cli-utils"


WHY_NOT_HERE = why_not_here()
pytestmark = pytest.mark.skipif(bool(WHY_NOT_HERE), reason=WHY_NOT_HERE)


@pytest.fixture
def place() -> Iterator[ScriptedBroker]:
    """A directory and a configuration; whatever process of it is left over is ended."""
    with ScriptedBroker("tested") as scripted:
        yield scripted


@pytest.fixture
def peer(place: ScriptedBroker) -> Iterator[RunningBroker]:
    """The other broker of the cluster: an empty one is promoted only where all can be asked. Writes the files."""
    urls = [f"amqp://127.0.0.1:{port}" for port in free_ports(2)]
    cluster = {"cluster": True, "brokers-url": ",".join(urls), "coordinator": f"file:{place.directory}"}
    document = {"name": "tested", "listen": urls[0], "control-socket": str(place.control_socket), "ha": cluster}
    place.config.write_text(yaml.safe_dump(document), encoding="utf-8")
    settings = {"name": "peer", "listen": urls[1], **{f"ha.{key}": value for key, value in cluster.items()}}
    with RunningBroker(settings) as broker:
        yield broker


def install(place: ScriptedBroker) -> str:
    """A PATH with `qpid-ha-agent`. ocf-tester runs it as `nobody` too, who may not have this interpreter: for the
    description, the only thing that `nobody` asks for, any Python will do."""
    tools = place.directory / "tools"
    tools.mkdir()
    place.directory.chmod(0o755)
    program = "import sys; from qpid_ha_agent.cli.quick import main; main()"
    packages = f"{ROOT}/agent:{ROOT}/broker:{ROOT}/config"
    script = tools / "qpid-ha-agent"
    script.write_text(
        f"#!/bin/sh\nexport PYTHONPATH={packages} PYTHONDONTWRITEBYTECODE=1\npython={sys.executable}\n"
        f"test -x $python || python=python3\nexec $python -c '{program}' \"$@\"\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return f"{tools}:{os.environ['PATH']}:/usr/sbin"


@pytest.mark.usefixtures("peer")
def test_ocf_tester_has_nothing_to_complain_about(place: ScriptedBroker) -> None:
    parameters = {
        "config": place.config,
        "log_file": place.log_file,
        "user": pwd.getpwuid(os.geteuid()).pw_name,
    }
    options = [word for name, value in parameters.items() for word in ("-o", f"{name}={value}")]
    state = place.directory / "state"
    found = subprocess.run(
        [str(TESTER), "-n", "tested", *options, str(ROOT / "ocf" / "qpid-ha")],
        env={"PATH": install(place), "OCF_ROOT": "/usr/lib/ocf", "LC_ALL": "C", DIRECTORY_VARIABLE: str(state)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    said = found.stdout + found.stderr
    assert found.returncode == 0, said
    assert "passed all tests" in said
    assert "rc=" not in said, said
    assert not place.pid
