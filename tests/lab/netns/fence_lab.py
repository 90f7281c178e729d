#!/usr/bin/python3
"""fence_lab: the power switch of the lab's machines, as a fence agent. Installed as /usr/sbin/fence_lab.

It reaches the switch through a file, as a real one does through a network of its own: a node that is cut off from the
others can still be fenced, and can still fence. It stands alone: a machine of the lab has none of the test's modules.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

SOCKET = "/lab/switch.sock"
ON, OFF = 0, 2
METADATA = """<?xml version="1.0"?>
<resource-agent name="fence_lab" shortdesc="Power switch of the lab">
<longdesc>Switches the machines of the test lab off and on.</longdesc>
<vendor-url>none</vendor-url>
<parameters>
<parameter name="action" required="1"><getopt mixed="-o, --action=[action]"/>
<content type="string" default="reboot"/><shortdesc lang="en">What to do</shortdesc></parameter>
<parameter name="port" required="1" deprecated="1"><getopt mixed="-n, --plug=[id]"/>
<content type="string"/><shortdesc lang="en">The machine</shortdesc></parameter>
<parameter name="plug" required="1" obsoletes="port"><getopt mixed="-n, --plug=[id]"/>
<content type="string"/><shortdesc lang="en">The machine</shortdesc></parameter>
</parameters>
<actions><action name="on" automatic="0"/><action name="off"/><action name="reboot"/><action name="status"/>
<action name="list"/><action name="list-status"/><action name="monitor"/><action name="metadata"/></actions>
</resource-agent>"""


def options() -> dict[str, str]:
    """From the command line, else `name=value` lines on the standard input, which is how Pacemaker gives them."""
    if len(sys.argv) == 1:
        pairs = (line.strip().partition("=") for line in sys.stdin)
        return {name: value for name, _, value in pairs if value}
    words = {"-o": "action", "-n": "plug"}
    found = {words[word]: value for word, value in zip(sys.argv[1:], sys.argv[2:], strict=False) if word in words}
    long = (word[2:].partition("=") for word in sys.argv[1:] if word.startswith("--"))
    return found | {name: value for name, _, value in long}


def ask(**request: str) -> dict[str, Any]:
    """The switch's state after that request. Raises OSError, ValueError, RuntimeError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(15)
        connection.connect(SOCKET)
        connection.sendall(json.dumps(request).encode() + b"\n")
        reply: dict[str, Any] = json.loads(connection.makefile(encoding="utf-8").readline())
    if not reply["ok"]:
        raise RuntimeError(reply["error"])
    return reply


def act(action: str, machine: str) -> int:
    """The exit code."""
    if action == "metadata":
        print(METADATA)
        return 0
    if action in ("on", "off", "reboot"):
        ask(op="power", machine=machine, action=action)
        return 0
    power: dict[str, str] = ask(op="status")["power"]
    if action == "status":
        return ON if power[machine] == "on" else OFF
    if action in ("list", "list-status"):
        for name, state in sorted(power.items()):
            print(f"{name},,{state}" if action == "list-status" else f"{name},")
    return 0


def main() -> int:
    """Do what the options say."""
    given = options()
    machine = given.get("plug") or given.get("port") or given.get("nodename") or ""
    try:
        return act(given.get("action") or given.get("option") or "reboot", machine)
    except (OSError, ValueError, KeyError, RuntimeError) as problem:
        print(f"fence_lab: {problem!r}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
