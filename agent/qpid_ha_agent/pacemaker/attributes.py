"""What a node tells the others through Pacemaker: promotion scores, positions, failures; by Pacemaker's own tools."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence

TOOL_TIMEOUT_S = 5.0
READ_BACK_S = 2.0
TRUE = ("true", "on", "yes", "y", "1")
"""Pacemaker's words for it."""
WHERE_IT_RUNS = "OCF_RESKEY_CRM_meta_on_node"
"""With it in the environment `attrd_updater --query --all` tells of this node alone."""
_ROW = re.compile(r'name="([^"]*)" host="([^"]*)" value="([^"]*)"')


class ClusterUnreachable(Exception):
    """Pacemaker cannot be asked or told; the text says which tool failed, and how."""


class ClusterAttributes:
    """The attributes of one resource. All methods raise ClusterUnreachable.

    Positions are private attributes (`attrd_updater --private`): they live in memory, on the nodes that are up, and a
    new one costs the cluster no new plan.
    """

    def __init__(self, resource: str, node: str) -> None:
        self.resource = resource
        self.node = node

    def set_score(self, score: str, node: str = "") -> None:
        """The promotion score of `node`; empty: this one."""
        self._score(f"--update={score}", "--node", node or self.node)  # = or -INFINITY is read as options

    def drop_score(self) -> None:
        """Nothing here can be promoted."""
        self._score("--delete", "--node", self.node)

    def publish(self, name: str, value: str) -> None:
        """Say it, and wait until it can be read back: then whoever is told later reads it too."""
        full_name = f"qpid-ha-{name}-{self.resource}"
        _run(["attrd_updater", "--name", full_name, "--update", value, "--private"])
        deadline_s = time.monotonic() + READ_BACK_S
        while self.published(name).get(self.node) != value:
            if time.monotonic() > deadline_s:
                raise ClusterUnreachable(f"attrd_updater took {full_name}, and does not give it back")
            time.sleep(0.01)

    def published(self, name: str) -> dict[str, str]:
        """What each node has said last."""
        return self._query(f"qpid-ha-{name}-{self.resource}")

    def take_back(self, name: str) -> None:
        """Nothing is said any more."""
        _run(["attrd_updater", "--name", f"qpid-ha-{name}-{self.resource}", "--delete", "--private"])

    def explain(self, text: str) -> None:
        """Why this node's broker cannot be promoted; empty: there is nothing to explain any more."""
        change = ["--update", text] if text else ["--delete"]
        _run(["attrd_updater", "--name", f"{self.resource}-not-promoted", *change])

    def explain_failure(self, text: str) -> None:
        """What became of this node's broker; empty: that is over. A failure that is reported from outside reads
        "Simulated failure" in crm_mon whatever its reason is, so it stands beside the score."""
        change = ["--update", text] if text else ["--delete"]
        _run(["attrd_updater", "--name", f"{self.resource}-failure", *change])

    def is_in_standby(self) -> bool:
        """Whether somebody has put this node into standby, until further notice or its next start."""
        return any(self._own("standby", lifetime, "--query", "--quiet") in TRUE for lifetime in ("forever", "reboot"))

    def note_drained(self) -> None:
        """This node's broker was drained because of the standby. Kept until `forget_drained`, whatever is restarted."""
        self._own(self._drained, "forever", "--update=true")

    def forget_drained(self) -> None:
        """The broker is not drained any more."""
        self._own(self._drained, "forever", "--delete")

    def is_noted_drained(self) -> bool:
        """Whether it was noted that the broker was drained because of the standby."""
        return self._own(self._drained, "forever", "--query", "--quiet") == "true"

    @property
    def _drained(self) -> str:
        return f"{self.resource}-drained"

    def _own(self, name: str, lifetime: str, *arguments: str) -> str:
        """An attribute of this node that is in the CIB; empty: there is none."""
        command = ["crm_attribute", "--node", self.node, "--name", name, "--lifetime", lifetime, *arguments]
        return _run(command, no_such_is_empty=True).strip()

    def is_cluster_idle(self) -> bool:
        """Whether Pacemaker carries out no plan just now, as the node says that makes them."""
        designated = _run(["crmadmin", "--quiet", "--dc_lookup"]).strip()
        planner = designated.rpartition(": ")[2].split()[0] if designated else ""
        return bool(planner) and "S_IDLE" in _run(["crmadmin", f"--status={planner}"])

    def report_failure(self) -> None:
        """The resource has failed on this node: plan now, not at the next monitor."""
        _run(["crm_resource", "--fail", "--resource", self.resource, "--node", self.node])

    def _score(self, *arguments: str) -> None:
        _run(["crm_attribute", "--promotion", self.resource, "--lifetime", "reboot", *arguments])

    def _query(self, full_name: str) -> dict[str, str]:
        output = _run(["attrd_updater", "--name", full_name, "--query", "--all"], no_such_is_empty=True)
        return {host: value for _name, host, value in _ROW.findall(output) if value}


def local_node(environment: Mapping[str, str] = os.environ) -> str:
    """This node's name in the cluster: what Pacemaker tells an agent, else what it answers when asked."""
    node = environment.get(WHERE_IT_RUNS)
    return node or _run(["crm_node", "--name"]).strip()


NO_SUCH = 105
"""CRM_EX_NOSUCH of Pacemaker's tools."""


def _run(command: Sequence[str], no_such_is_empty: bool = False) -> str:
    environment = {name: value for name, value in os.environ.items() if name != WHERE_IT_RUNS} | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, env=environment
        )
    except FileNotFoundError:
        raise ClusterUnreachable(f"{command[0]} is not installed: install Pacemaker's command line tools") from None
    except subprocess.TimeoutExpired:
        raise ClusterUnreachable(f"{command[0]} gave no answer within {TOOL_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise ClusterUnreachable(f"cannot run {command[0]}: {error.strerror}") from None
    if done.returncode == NO_SUCH and no_such_is_empty:
        return ""
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise ClusterUnreachable(f"{command[0]} failed ({done.returncode}): {said[-1] if said else 'without a word'}")
    return done.stdout
