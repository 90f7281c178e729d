"""The console script `qpid-ha-agent`: an OCF action at once, anything else through click, which is slower to load."""

from __future__ import annotations

import sys

from qpid_ha_agent.ocf.main import ACTIONS


def main() -> None:
    """One argument that is an action is Pacemaker's."""
    if len(sys.argv) == 2 and sys.argv[1] in ACTIONS:
        from qpid_ha_agent.ocf.main import run_action

        sys.exit(run_action(sys.argv[1]))
    from qpid_ha_agent.cli.agent import main as command_line

    command_line()


if __name__ == "__main__":
    main()
