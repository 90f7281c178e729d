"""`qpid-ha store` on directories of this machine and of others, which are directories too."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from admin_tool import qpid_ha
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.status import read_status

Run = Callable[..., Result]
# Runs the command here, as if this were that host; a host called `away` does not answer.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ "$2" = away ] && { echo "ssh: connect to host away port 22: No route to host" >&2; exit 255; }
cd "$STORES_OF_HOSTS/$2" && shift 2 && exec sh -c "$*"
"""
QPID_HA = '#!/bin/sh\nexec "$PYTHON" -m qpid_ha_agent.cli.admin "$@"\n'


def store_tool(directory: Path) -> Run:
    """Runs `qpid-ha store WORDS`. `ssh HOST` runs in the directory hosts/HOST below `directory`, from bin/ssh."""
    programs, hosts = directory / "bin", directory / "hosts"
    programs.mkdir()
    hosts.mkdir()
    for name, text in (("ssh", SSH), ("qpid-ha", QPID_HA)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o700)
    (directory / "broker.yaml").touch()
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "STORES_OF_HOSTS": str(hosts), "PYTHON": sys.executable,
        "TZ": "UTC", "QPID_HA_CONFIG": str(directory / "broker.yaml"),
    }  # fmt: skip

    def run(*words: object, answer: str = "") -> Result:
        return qpid_ha("store", *words, answer=answer, **environment)

    return run


def done(result: Result) -> str:
    """What it printed; nothing went wrong."""
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


def chosen(store: Path) -> tuple[int, int, str] | None:
    """The mark of an operator who has chosen that store: generation, LSN and why."""
    status = read_status(LocalDisk(store))
    assert status is not None
    return status.chosen
