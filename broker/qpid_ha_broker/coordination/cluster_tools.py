"""Pacemaker's program `cibadmin`, asked for what the coordinator needs; its failures as `CoordinatorError`.

Its exit codes are read (those of Pacemaker 2 and newer, crm/common/results.h), never the text on stderr. No other
program is needed, and others would not do: `crm_node` waits up to a second after each change when this node coordinates
the cluster, and Corosync's programs refuse users that are in the group haclient only as a further group.
"""

from __future__ import annotations

import grp
import math
import os
import shutil
import subprocess

from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.deadline import Deadline

GROUP = "haclient"
_MAY_NOT = 4
_DISCONNECTED = 102
_NO_MATCH = 105
_TIMED_OUT = 124
_SYSTEM_DIRECTORIES = "/usr/sbin:/sbin"
"""Where the programs are, and where a user's PATH often does not lead."""


def query(path: str, deadline: Deadline, node: str = "") -> str:
    """What `path` selects in the copy of `node` (empty: of this node), as XML. Raises CoordinatorError."""
    command = ["cibadmin", "--query", "--no-children", "--xpath", path, *(["--node", node] if node else ())]
    code, output = _run_cibadmin(command, deadline)
    if code != 0:
        raise CoordinatorError(f"cibadmin cannot read the cluster's configuration (exit code {code})")
    return output


def modify(path: str, xml: str, deadline: Deadline) -> bool:
    """Merge `xml` into what `path` selects, on all nodes of the partition at once; False when it selects nothing.

    Raises CoordinatorError, and then nobody knows whether it was done.
    """
    code, _output = _run_cibadmin(["cibadmin", "--modify", "--xpath", path, "--xml-pipe"], deadline, xml)
    if code not in (0, _NO_MATCH):
        raise CoordinatorError(f"cibadmin cannot change the cluster's configuration (exit code {code})")
    return code == 0


def _run_cibadmin(command: list[str], deadline: Deadline, text: str = "") -> tuple[int, str]:
    """Exit codes that mean the same for every request are raised."""
    wait_s = max(1, math.ceil(deadline.left_s()))  # the end is ours; this one is for a tool that is left behind
    code, output = _run([*command, "--timeout", str(wait_s)], deadline, text)
    if code in (_MAY_NOT, _DISCONNECTED, _TIMED_OUT):
        raise CoordinatorError(_why_not(code, "cibadmin"))
    return code, output


def _run(command: list[str], deadline: Deadline, text: str) -> tuple[int, str]:
    path = f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_DIRECTORIES}"
    program = shutil.which(command[0], path=path)
    if program is None:
        raise CoordinatorError(f"{command[0]} is not installed: install pacemaker-cli-utils (RHEL: pacemaker-cli)")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=deadline.left_s(),
            check=False,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        raise CoordinatorError(_why_not(_TIMED_OUT, command[0])) from None
    except OSError as error:
        raise CoordinatorError(f"cannot run {program}: {error.strerror or error}") from None
    return done.returncode, done.stdout


def _why_not(code: int, tool: str) -> str:
    if code == _TIMED_OUT:
        return f"Pacemaker gave {tool} no answer in time: see `crm_mon`, and whether the nodes reach each other"
    if code in (_MAY_NOT, _DISCONNECTED) and not _is_in_group():
        return f"{tool} may not ask Pacemaker: add the broker's user to the group {GROUP}, and start the broker again"
    if code == _MAY_NOT:
        return f"{tool} may not do that: Pacemaker's access rules (acls) forbid it to the broker's user"
    return f"{tool} cannot reach Pacemaker (exit code {code}): is it running on this node?"


def _is_in_group() -> bool:
    if os.geteuid() == 0:
        return True
    try:
        return grp.getgrnam(GROUP).gr_gid in {os.getegid(), *os.getgroups()}
    except KeyError:
        return False
