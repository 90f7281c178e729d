"""A process that speaks the control protocol of a broker in a cluster, and shares its part with others in a directory.

A cluster of these keeps in a file beside the control sockets who is primary; one whose primary's process is gone is
`connecting`. What is real: the process, its socket, its signals, its silence.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import yaml

PRIMARY_FILE = "primary.json"


class Fake:
    """`data`: whether its log holds something; `refuse`: why it will not be promoted; `deaf`: SIGTERM does not end it.

    What is in NAME.json beside its socket beats what it would say of itself. `others` there are brokers of other
    machines, each with how often this one has to be asked for all before that one answers, or null: it never does.
    Nobody is promoted before all do. NAME.asked has what it was asked, a JSON object on each line.
    With the setting `broken`, a configuration does not pass its check.
    """

    def __init__(self, config: dict[str, Any], control_socket: Path) -> None:
        self.name = str(config["name"])
        self.directory = control_socket.parent
        self.control_socket = control_socket
        self.refuse = str(config.get("refuse", ""))
        self.is_deaf = bool(config.get("deaf"))
        self.has_data = bool(config.get("data"))
        self.listeners: set[asyncio.StreamWriter] = set()
        self.looks = 0

    def primary(self) -> dict[str, Any]:
        """Who is, if its process lives."""
        try:
            found: dict[str, Any] = json.loads((self.directory / PRIMARY_FILE).read_text(encoding="utf-8"))
            pidfd = os.pidfd_open(found["pid"])
        except (OSError, ValueError):
            return {}
        is_dead, _, _ = select.select([pidfd], [], [], 0)  # also when nobody has reaped it yet
        os.close(pidfd)
        return {} if is_dead else found

    def become(self, name: str, pid: int) -> None:
        temporary = self.directory / f"{self.name}.tmp"
        temporary.write_text(json.dumps({"name": name, "pid": pid}), encoding="utf-8")
        temporary.replace(self.directory / PRIMARY_FILE)

    def status(self) -> dict[str, Any]:
        primary = self.primary()
        is_primary = primary.get("pid") == os.getpid()
        state = "primary" if is_primary else "ready" if primary else "connecting"
        self.has_data = self.has_data or bool(primary)
        lsn = 7 if self.has_data else 0
        told = {"name": self.name, "state": state, "lsn": lsn, "generation": 1, "primary": primary.get("name")}
        return {**told, **self.script()}

    def script(self) -> dict[str, Any]:
        path = self.directory / f"{self.name}.json"
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return found

    def all(self) -> list[dict[str, Any]]:
        """A row for each broker; one that gives no answer has no name."""
        self.looks += 1
        others = self.script().get("others", {})
        return [self.status(), *({"name": None if name in self.missing() else name} for name in others)]

    def missing(self) -> list[str]:
        others = self.script().get("others", {})
        return [name for name, looks in others.items() if looks is None or self.looks < looks]

    def do(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        with (self.directory / f"{self.name}.asked").open("a", encoding="utf-8") as asked:
            asked.write(json.dumps({"method": method, "params": params}) + "\n")
        if method == self.script().get("no_such_method"):
            return {"error": {"code": -32601, "message": "no such method"}}
        if method == "status" and params.get("all"):
            return {"result": self.all()}
        refusal = self.refuse or ", ".join(f"{name} cannot be asked" for name in self.missing())
        if method == "brokers" and params.get("action") == "list":
            return {"result": [{"name": name, "up": True} for name in self.script()["brokers"]]}
        if method == "brokers" and "left" in self.script():
            return {"result": {"left": self.script()["left"], "text": "done"}}
        if method == "promote" and refusal:
            return {"error": {"code": -32000, "message": refusal}}
        if method == "promote":
            self.become(self.name, os.getpid())
        elif method == "demote" and self.primary().get("pid") == os.getpid():
            (self.directory / PRIMARY_FILE).unlink()
        elif method == "switchover":
            others = [path for path in self.directory.glob("*.pid") if path.stem != self.name]
            if not others:
                return {"error": {"code": -32000, "message": "there is no backup"}}
            self.become(others[0].stem, int(others[0].read_text(encoding="utf-8")))
        elif method not in ("status", "demote", "drop"):
            return {"error": {"code": -32601, "message": "no such method"}}
        return {"result": self.status()}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.answer(json.loads(line), writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # it went away, or this process stops
        self.listeners.discard(writer)
        writer.close()

    def answer(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if request["method"] == "events":
            self.listeners.add(writer)
            reply = {"result": {"name": self.name}}
        else:
            reply = self.do(request["method"], request.get("params") or {})
        writer.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], **reply}).encode() + b"\n")
        if request["method"] in ("promote", "demote", "switchover"):
            for listener in self.listeners:
                listener.write(json.dumps({"jsonrpc": "2.0", "method": "events", "params": {}}).encode() + b"\n")

    async def run(self) -> None:
        self.control_socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self.serve, self.control_socket)
        pid_file = self.directory / f"{self.name}.pid"
        pid_file.write_text(str(os.getpid()), encoding="utf-8")
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, (lambda: None) if self.is_deaf else stop.set)
        await stop.wait()
        pid_file.unlink()
        server.close()


def main() -> None:
    if sys.argv[-1] == "--version":
        print("qpidd, version 2.0")
        return
    if sys.argv[-1] == "--check":
        written = Path(sys.argv[sys.argv.index("--config") + 1]).read_text(encoding="utf-8")
        sys.exit("qpidd: broken: there is no such setting" if "broken:" in written else 0)
    arguments = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=False))
    config = yaml.safe_load(Path(arguments["--config"]).read_text(encoding="utf-8"))
    asyncio.run(Fake(config, Path(arguments["--control-socket"])).run())


if __name__ == "__main__":
    main()
