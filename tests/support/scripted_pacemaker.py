"""Pacemaker's command line tools as small programs that keep what they are told in files, or fail, or hang."""

from __future__ import annotations

import os
from pathlib import Path

TOOLS = ("crm_attribute", "attrd_updater", "crm_resource", "crm_node", "crmadmin")
NODE = "n1"
SCRIPT = """#!/bin/sh
place=@PLACE@ tool=${0##*/} name= node=@NODE@ change= value= quiet=
echo "$tool $*" >>"$place/calls"
[ ! -e "$place/hangs" ] || exec sleep 60
[ ! -e "$place/fails" ] || { echo "$tool: Could not connect to the CIB: refused" >&2; exit 102; }
[ "$tool" != crm_node ] || { echo @NODE@; exit 0; }
[ "$tool" != crmadmin ] || { [ "$1" = --quiet ] && echo @NODE@ || echo "@NODE@ in state S_IDLE: ok"; exit; }
while [ $# -gt 0 ]; do
    case $1 in
        --name) name=$2; shift ;;
        --promotion) name=master-$2; shift ;;
        --resource) name=fail-$2 change=update value=1; shift ;;
        --node) node=$2; shift ;;
        --update) change=update value=$2; shift ;;
        --update=*) change=update value=${1#*=} ;;
        --delete) change=delete ;;
        --query) change=query ;;
        --quiet) quiet=yes ;;
    esac
    shift
done
case $change in
    update) mkdir -p "$place/$name"; printf %s "$value" >"$place/$name/$node" ;;
    delete) rm -f "$place/$name/$node" ;;
    query)
        [ -d "$place/$name" ] || exit 105
        [ -z "$quiet" ] || { cat "$place/$name/$node" 2>/dev/null || exit 105; exit; }
        for each in "$place/$name"/*; do
            echo "name=\\"$name\\" host=\\"${each##*/}\\" value=\\"$(cat "$each")\\""
        done
        ;;
esac
"""


class ScriptedPacemaker:
    """`path` is a PATH on which these tools come first; this node is `NODE`."""

    def __init__(self, directory: Path, resource: str) -> None:
        self._place = directory / "pacemaker"
        self._tools = directory / "tools"
        self._resource = resource
        for each in (self._place, self._tools):
            each.mkdir()
        for tool in TOOLS:
            script = self._tools / tool
            script.write_text(SCRIPT.replace("@PLACE@", str(self._place)).replace("@NODE@", NODE), encoding="utf-8")
            script.chmod(0o755)

    @property
    def path(self) -> str:
        """For the environment."""
        return f"{self._tools}{os.pathsep}{os.environ['PATH']}"

    def calls(self, tool: str) -> list[str]:
        """How it was called, the oldest first."""
        log = self._place / "calls"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [line for line in lines if line.startswith(f"{tool} ")]

    def forget_calls(self) -> None:
        """Count anew."""
        (self._place / "calls").unlink(missing_ok=True)

    def fail(self) -> None:
        """The CIB cannot be reached, from now on."""
        (self._place / "fails").touch()

    def hang(self) -> None:
        """No tool answers, from now on."""
        (self._place / "hangs").touch()

    def score(self, node: str = NODE) -> str:
        """The promotion score; empty when there is none."""
        return self._read(f"master-{self._resource}", node)

    def position(self, node: str = NODE) -> str:
        """What was published before a promotion."""
        return self._read(f"qpid-ha-position-{self._resource}", node)

    def failure(self) -> str:
        """What is told of the broker's end on this node."""
        return self._read(f"{self._resource}-failure", NODE)

    def standby(self, value: str) -> None:
        """Of this node."""
        place = self._place / "standby"
        place.mkdir(exist_ok=True)
        (place / NODE).write_text(value, encoding="utf-8")

    def drained(self) -> str:
        """What is noted of this node's broker."""
        return self._read(f"{self._resource}-drained", NODE)

    def publish(self, node: str, position: str) -> None:
        """As another node would."""
        place = self._place / f"qpid-ha-position-{self._resource}"
        place.mkdir(exist_ok=True)
        (place / node).write_text(position, encoding="utf-8")

    def _read(self, name: str, node: str) -> str:
        path = self._place / name / node
        return path.read_text(encoding="utf-8") if path.exists() else ""
