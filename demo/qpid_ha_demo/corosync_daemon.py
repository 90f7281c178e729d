"""A Corosync daemon on loopback, of one node: enough for groups of brokers on this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final

from qpid_ha_broker.server.peers.libcpg import CpgHandle, CpgLibrary, GroupTransportError
from qpid_ha_demo.cluster import ClusterFailed
from qpid_ha_demo.running import RunsWhileUsed

START_LIMIT_S: Final = 20.0
STEP_S: Final = 0.02
_CONFIGURATION: Final = """
totem {{
    version: 2
    cluster_name: qpid-ha-loopback
    transport: udpu
    crypto_cipher: none
    crypto_hash: none
    token: 1000
    seqno_unchanged_const: 2
}}
nodelist {{
    node {{
        ring0_addr: 127.0.0.1
        name: n1
        nodeid: 1
    }}
}}
system {{
    state_dir: {directory}
}}
logging {{
    to_logfile: yes
    logfile: {directory}/corosync.log
    to_syslog: no
    to_stderr: no
}}
"""


def what_is_missing() -> str:
    """Why no daemon can be started here; empty: one can."""
    if os.geteuid() != 0:
        return "Corosync runs as root"
    if shutil.which("corosync") is None:
        return "there is no Corosync: ./dev lab installs it, or apt-get install corosync libcpg4"
    return ""


class CorosyncDaemon(RunsWhileUsed):
    """`with CorosyncDaemon(directory):` runs one; a machine has one at a time, and this one takes no other's place."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._configuration = directory / "corosync.conf"
        self._configuration.write_text(_CONFIGURATION.format(directory=directory))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it lets processes in. Raises ClusterFailed."""
        if _answers():
            raise ClusterFailed("a Corosync runs here already, which belongs to somebody else: stop it first")
        command = ["corosync", "-f", "-c", str(self._configuration)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline_s = time.monotonic() + START_LIMIT_S
        while not _answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.kill()
                raise ClusterFailed(f"{' '.join(command)} does not answer; see {self._directory}/corosync.log")
            time.sleep(STEP_S)

    @property
    def pid(self) -> int:
        """Of the daemon that runs. Raises ClusterFailed."""
        if self._process is None:
            raise ClusterFailed("no Corosync runs")
        return self._process.pid

    def kill(self) -> None:
        """As kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """It has nothing to end with."""
        self.kill()


def _answers() -> bool:
    try:
        CpgHandle(CpgLibrary(), "qpid-ha-probe").close()
    except GroupTransportError:
        return False
    return True
