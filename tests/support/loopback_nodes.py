"""Three brokers on loopback, which only the scripts of rgmanager/ start and stop, as they would on three nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from qpid_ha_agent.broker_process import find_pid
from qpid_ha_agent.control import ControlFailure
from qpid_ha_demo.cluster import LocalBroker, LocalCluster

SCRIPTS = Path(__file__).resolve().parents[2] / "rgmanager"
TIMEOUT_S = 60.0
ScriptResult = subprocess.CompletedProcess[str]


class LoopbackNodes:
    """`node1` is the node of the first broker.

    Leaves no process behind. What a script sees is what rgmanager's script.sh gives it, but for a PATH that leads to
    this installation, and for the places of files.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        self._directory = directory
        self._sockets = tempfile.TemporaryDirectory(prefix="qpid-ha-test-")
        self.cluster = LocalCluster(directory, agents=False, settings=settings, sockets=Path(self._sockets.name))
        self.said: list[str] = []

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(f"node{number}" for number in range(1, len(self.cluster.brokers) + 1))

    def broker(self, node: str) -> LocalBroker:
        """The one of this node."""
        return self.cluster.brokers[int(node.removeprefix("node")) - 1]

    def state(self, node: str) -> str:
        """One word; "down" when nobody answers."""
        return str(self.broker(node).status().get("state"))

    def states(self) -> list[str]:
        """Of each node."""
        return [self.state(node) for node in self.nodes]

    def pid(self, node: str) -> int:
        """Of the broker; 0 when there is none."""
        return find_pid(self.broker(node).control_socket)

    def kill(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        """A signal to the broker, if there is one."""
        if pid := self.pid(node):
            os.kill(pid, number)

    # --- running scripts

    def environment(self, node: str, service: str = "", **more: str) -> dict[str, str]:
        """What script.sh gives, and what makes it this node."""
        managed = {"OCF_RESKEY_name": "qpidd", "OCF_RESKEY_service_name": service, "OCF_CHECK_LEVEL": "0"}
        return {
            "LC_ALL": "C",
            "LANG": "C",
            "PATH": f"{Path(sys.executable).parent}:/bin:/sbin:/usr/bin:/usr/sbin",
            "PYTHONPATH": os.environ["PYTHONPATH"],
            "QPID_HA_CONFIG": str(self.broker(node).config),
            "QPID_HA_LOG_FILE": str(self.broker(node).log_path),
            "QPID_HA_AGENT_DIRECTORY": str(self._directory / "agent"),
            "QPID_HA_USER": "" if os.geteuid() else "root",
            **(managed if service else {}),
            **more,
        }

    def script(self, node: str, script: str, *arguments: str, service: str = "", **more: str) -> ScriptResult:
        """`qpidd start` and the like; output is read to its end, as long as anybody has it open."""
        command = [str(SCRIPTS / script), *arguments]
        environment = self.environment(node, service, **more)
        done = subprocess.run(
            command, env=environment, cwd="/", capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        self.said.append(f"{node} {script} {' '.join(arguments)}: {done.returncode} {done.stdout}{done.stderr}".strip())
        return done

    # --- the end

    def close(self) -> None:
        """End every broker."""
        for broker in self.cluster.brokers:
            if pid := find_pid(broker.control_socket):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.cluster.stop()
        self._sockets.cleanup()


@contextmanager
def loopback_nodes(directory: Path, **settings: object) -> Iterator[LoopbackNodes]:
    """`ha__backup_timeout="2s"` is ha.backup-timeout. What was said is told when the test fails."""
    given = {name.replace("__", ".").replace("_", "-"): value for name, value in settings.items()}
    nodes = LoopbackNodes(directory, given)
    try:
        yield nodes
    except (AssertionError, ControlFailure) as error:
        error.add_note("\n".join([*nodes.said, *(f"{node}: {nodes.state(node)}" for node in nodes.nodes)]))
        raise
    finally:
        nodes.close()
