"""The daemon of a lab: `python -m lab.netns.switch STATE`, PID 1 of namespaces of its own.

Its network namespace is the switch that all machines are plugged into, its mount namespace holds their disks, and its
process namespace holds every process of the lab: whatever happens to it, the kernel clears all of that away. It owns
the power of the machines and the cables between them, and answers on a socket, a JSON object per line. It ends when
its standard input does, so that a lab never outlives the test run that it belongs to, however that ends.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lab.netns.cables import Cables
from lab.netns.commands import run
from lab.netns.places import Places
from lab.netns.power import Power
from lab.plan import Plan

Request = Mapping[str, Any]
Reply = dict[str, Any]


class Switch:
    """Answers requests, one at a time."""

    def __init__(self, places: Places, plan: Plan) -> None:
        self._places = places
        self._plan = plan
        self._lock = threading.RLock()
        self._cables = Cables(plan)
        self._power = Power(places, plan, self._cables, self._lock)
        self._operations: Mapping[str, Callable[[Request], None]] = {
            "status": lambda _: None,
            "power": self._switch_power,
            "cut": lambda request: self._cables.cut([(source, target) for source, target in request["pairs"]]),
            "heal": lambda _: self._cables.heal(),
            "wipe": lambda request: self._power.wipe(request["machine"]),
            "bake": lambda request: self._power.bake(request["machine"]),
        }

    def serve(self) -> None:
        """For ever."""
        run("mount --make-rprivate /")
        self._places.disks.mkdir(exist_ok=True)
        run(f"mount -t tmpfs -o mode=755,size=8g disks {self._places.disks}")
        self._cables.lay()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self._places.socket))
            listener.listen(64)
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def end_with(self, file_descriptor: int) -> None:
        """When nobody holds the other end any more: everything off, nothing left in the file system, and exit."""
        while os.read(file_descriptor, 1024):
            pass
        with self._lock:
            for machine in self._plan.machines:
                self._power.off(machine)
            run(f"umount -l {self._places.disks}", check=False)
            shutil.rmtree(self._places.state, ignore_errors=True)
            os._exit(0)

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # who asked may be gone
            with connection.makefile(encoding="utf-8") as lines:
                line = lines.readline()
            connection.sendall(json.dumps(self._answer(line)).encode() + b"\n")

    def _answer(self, line: str) -> Reply:
        try:
            request: Request = json.loads(line)
            with self._lock:
                self._operations[request["op"]](request)
                self._note(request)
                return {"ok": True, **self._state()}
        except Exception as problem:  # noqa: BLE001 - whoever asked is told, whatever it is; the lab goes on
            self._note({"problem": repr(problem), "line": line})
            return {"ok": False, "error": repr(problem)}

    def _switch_power(self, request: Request) -> None:
        machine, action = request["machine"], request["action"]
        actions = {"on": self._power.on, "off": self._power.off, "reboot": self._power.reboot}
        actions[action](machine)

    def _state(self) -> Reply:
        processes = self._power.processes()
        power = {machine: "on" if machine in processes else "off" for machine in self._plan.machines}
        return {"power": power, "init": processes, "cuts": sorted(self._cables.cuts)}

    @staticmethod
    def _note(request: Request) -> None:
        if request.get("op") != "status":
            print(f"{time.time():.3f} {json.dumps(dict(request))}", file=sys.stderr, flush=True)


def main(state: str) -> None:
    """Serve until stdin ends."""
    places = Places(Path(state))
    switch = Switch(places, Plan.from_json(places.plan.read_text(encoding="utf-8")))
    threading.Thread(target=switch.end_with, args=(sys.stdin.fileno(),), daemon=True).start()
    switch.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
