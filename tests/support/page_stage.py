"""A machine on which a page can be followed: its /run, network and processes are nobody else's, and end with it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from doc_blocks import ROOT

PROGRAMS = {
    "qpidd": "qpid_ha_broker.server.main", "qpid-ha": "qpid_ha_agent.cli.admin",
    "qpid-ha-agent": "qpid_ha_agent.cli.quick",
}  # fmt: skip
_NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def why_not_here() -> str:
    """Why there can be none here; empty when there can."""
    if os.geteuid() != 0:
        return "SKIPPED FOR LACK OF ROOT: a page is followed in namespaces of its own, which only root can make"
    found = subprocess.run([*_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"SKIPPED FOR LACK OF NAMESPACES: {found.stderr.strip()}" if found.returncode else ""


def make_clone(directory: Path) -> Path:
    """What is in a clone after `./dev setup`, as far as pages use it: that is the environment of this test."""
    programs = directory / ".venv" / "bin"
    programs.mkdir(parents=True)
    _write_program(directory / "dev", "echo dev: ready")
    _write_program(programs / "python", f'exec {shlex.quote(sys.executable)} "$@"')
    for name, module in PROGRAMS.items():
        _write_program(programs / name, f'exec {shlex.quote(sys.executable)} -m {module} "$@"')
    return directory


def _write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def follow_there(
    page: str, directory: Path, timeout_s: float, module: str = "followed_page", *arguments: str
) -> tuple[int, str]:
    """Exit code and transcript of `followed_page`, or of another module that does the same, for a page of docs/."""
    clone, home = make_clone(directory / "clone"), directory / "home"
    home.mkdir()
    command = shlex.join([sys.executable, "-m", module, str(ROOT / "docs" / page), str(clone), *arguments])
    inside = f"mount -t tmpfs none /run && ip link set lo up && exec {command}"
    done = subprocess.run(
        [*_NAMESPACES, "sh", "-c", inside], env=_environment(home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False, cwd=clone,
    )  # fmt: skip
    return done.returncode, done.stdout


def _environment(home: Path) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QPID_HA_", "XDG_"))}
    return {**kept, "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
