"""PID 1 of a machine of the lab: `python -m lab.netns.node_boot STATE MACHINE`.

Like a real init it makes the file systems, waits for its network cable, starts the services that the disk names, and
then buries the dead. It ends with the machine: killing it makes the kernel end every process of the machine at once,
which is what pulling the plug does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from lab.netns.commands import ENVIRONMENT, run
from lab.netns.places import IN_MACHINE, SERVICES, Places
from lab.plan import Plan

_GLANCE_S = 0.02
_IDLE_GLANCE_S = 0.1
"""Of a machine on which nothing of init's own runs: the client."""
_RUN_DIRECTORIES = (("crm", "hacluster", "haclient", 0o750), ("resource-agents", "root", "root", 0o1755))
"""What tmpfiles.d makes in /run where there is a systemd."""


def main(state: str, machine: str) -> None:
    """Boot, and reap for ever."""
    places = Places(Path(state))
    plan = Plan.from_json(places.plan.read_text(encoding="utf-8"))
    _mount_disk(places, machine)
    _name(plan, machine)
    _wait_for_cable(plan.address(machine))
    (IN_MACHINE / places.booted(machine).name).touch()
    services = SERVICES.read_text(encoding="utf-8").split() if SERVICES.exists() else []
    _start(services)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        _reap()


def _mount_disk(places: Places, machine: str) -> None:
    """This machine's `/`: the host's, below what was installed for the lab, below what this machine wrote."""
    disk = places.disk(machine)
    root = disk / "root"
    for name in ("upper", "work", "root"):
        (disk / name).mkdir(parents=True, exist_ok=True)
    lower = f"{places.image}:/" if places.image.is_dir() else "/"
    run("mount --make-rprivate /")
    run(f"mount -t overlay {machine} -o lowerdir={lower},upperdir={disk}/upper,workdir={disk}/work {root}")
    run(f"mount --rbind /dev {root}/dev")
    run(f"mount -t tmpfs -o mode=1777 shm {root}/dev/shm")
    run(f"mount -t proc proc {root}/proc")
    run(f"mount -t sysfs sysfs {root}/sys")
    run(f"mount -t tmpfs -o mode=755 run {root}/run")
    run(f"mount -t tmpfs -o mode=1777 tmp {root}/tmp")
    inside = root / IN_MACHINE.relative_to("/")
    inside.mkdir(exist_ok=True)
    run(f"mount --bind {places.state} {inside}")
    old = root / ".old"
    old.mkdir(exist_ok=True)
    os.chdir(root)
    run("pivot_root . .old")
    os.chdir("/")
    run("umount -l /.old")
    Path("/.old").rmdir()


def _name(plan: Plan, machine: str) -> None:
    socket.sethostname(machine)
    Path("/etc/hostname").write_text(f"{machine}\n", encoding="utf-8")
    hosts = "".join(f"{plan.address(name)} {name}\n" for name in plan.machines)
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{hosts}", encoding="utf-8")


def _wait_for_cable(address: str) -> None:
    """The switch plugs it in, and gives the address with it."""
    while f" {address}/" not in run("ip -4 addr show dev eth0", check=False):
        time.sleep(_GLANCE_S)


def _start(services: list[str]) -> None:
    Path("/run/lock").mkdir(exist_ok=True)
    run("systemd-tmpfiles --create --prefix=/run/qpid-ha", check=False)
    for name, user, group, mode in _RUN_DIRECTORIES:
        directory = Path("/run", name)
        directory.mkdir(mode=mode, exist_ok=True)
        shutil.chown(directory, user, group)
        directory.chmod(mode)
    if "corosync" in services:
        _start_service("corosync", "-f")
        while not _has_corosync():  # pacemakerd gives up when it is not there yet
            time.sleep(_GLANCE_S)
    if "pacemaker" in services:
        _start_service("pacemakerd")


def _has_corosync() -> bool:
    asked = subprocess.run(["corosync-cfgtool", "-s"], env=ENVIRONMENT, check=False, capture_output=True)
    return asked.returncode == 0


def _start_service(*command: str) -> None:
    environment = {
        **ENVIRONMENT,
        "PCMK_logfacility": "none",
        "PCMK_logfile": "/var/log/pacemaker/pacemaker.log",
        "PCMK_fail_fast": "no",
    }
    with Path("/var/log/console.log").open("ab") as log:
        subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _reap() -> None:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(_IDLE_GLANCE_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
