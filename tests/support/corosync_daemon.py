"""A Corosync daemon on loopback, of one node: enough for process groups of this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from polling import wait_until
from qpid_ha_broker.server.peers.libcpg import CpgHandle, CpgLibrary, GroupTransportError

_CONFIGURATION = """
totem {{
    version: 2
    cluster_name: qpid-ha-test
    transport: udpu
    crypto_cipher: none
    crypto_hash: none
    token: 1000
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


class CorosyncDaemon:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._configuration = directory / "corosync.conf"
        self._configuration.write_text(_CONFIGURATION.format(directory=directory))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it lets processes in."""
        command = ["corosync", "-f", "-c", str(self._configuration)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, lambda: f"{command} does not answer")

    def _answers(self) -> bool:
        try:
            CpgHandle(CpgLibrary(), "qpid-ha-probe").close()
        except GroupTransportError:
            return False
        return True

    def kill(self) -> None:
        """As kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
