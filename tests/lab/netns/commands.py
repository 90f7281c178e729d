"""Running the system's tools, for those who build namespaces."""

from __future__ import annotations

import shlex
import subprocess

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "LANG": "C.UTF-8", "HOME": "/root", "TERM": "dumb"}
"""What a command in a machine gets; nothing of the host's environment."""


class CommandFailed(Exception):
    """A tool of the system did not do what the lab needs."""


def run(command: str, *, check: bool = True) -> str:
    """What it prints, on either stream. Raises CommandFailed."""
    done = subprocess.run(
        shlex.split(command), check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30
    )
    if check and done.returncode != 0:
        raise CommandFailed(f"{command}: exit code {done.returncode}: {done.stdout.strip()}")
    return done.stdout
