"""The console script `qpid-ha-agent`: what a resource manager asks is done at once, the rest through click, slower."""

from __future__ import annotations

import sys

from qpid_ha_agent.ocf.main import ACTIONS

SCRIPTS = ("service", "primary")


def main() -> None:
    """One argument that is an action is Pacemaker's; `service` or `primary` with one is an init script's."""
    if len(sys.argv) == 2 and sys.argv[1] in ACTIONS:
        from qpid_ha_agent.ocf.main import run_action

        sys.exit(run_action(sys.argv[1]))
    if len(sys.argv) == 3 and sys.argv[1] in SCRIPTS and not sys.argv[2].startswith("-"):
        from qpid_ha_agent.cli import lsb

        sys.exit(lsb.run_action(sys.argv[1], sys.argv[2]))
    from qpid_ha_agent.cli.agent import main as command_line

    command_line()


if __name__ == "__main__":
    main()
