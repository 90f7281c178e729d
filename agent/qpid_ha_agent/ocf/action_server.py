"""The action server: a process that has loaded the agent already, and forks for each action that it is asked for.

Python needs 30 ms to start and to import what a monitor takes, and 250 ms for a demotion or promotion with a virtual
IP, whose netlink library is large; in a failover several actions come one after the other. A fork takes 3 ms. Nothing
else is different: what is forked runs `run_action`, as `qpid-ha-agent ACTION` does, with the environment and the output
of who asked. Who finds nobody here does that (ocf/qpid-ha, action_client.py).

The promise: an action that is asked for is carried out by one process at a time, whatever becomes of this one. The
steps, on a connection of whole messages:

    client                                  server, and the process that it forks
    action, environment               --->  is forked
                                      <---  READY: it lives, and has not begun
    GO, its output                    --->  runs the action
                                      <---  the exit code

1. No READY within `TAKEN_S`: the server is stopped, or the machine is. The client hangs up, so there is no GO, and what
   is forked later ends at once. The client removes the socket, so that nobody else waits; a later monitor ends a server
   without one (`companions.start_server`). The output goes with GO: what waits for a server that is stopped would keep
   it open, and who reads the action's words would wait for more.
2. The server dies after READY: the process that it has forked does not notice, and answers.
3. That process dies before it answers: the connection ends, because nobody else has it. The client does the action
   itself; each is safe to repeat (`actions.py`).
4. The client is killed, because the action took too long: the forked process ends with it.
5. The files of the agent were replaced since the server has loaded them, as by an upgrade: it refuses and ends, and the
   next monitor starts a new one.
6. The power went: /run is empty. A socket that nobody listens at refuses, and the client does the action itself.

A start is not for this process: brokers would be its children. A stop is not either, because a stop that fails is a
reason to fence the machine; and it ends the server.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import socket
import struct
import sys
import threading
from pathlib import Path

from qpid_ha_agent.ocf import action_client
from qpid_ha_agent.ocf.action_client import GO, MOST_BYTES, OUTPUT, READY
from qpid_ha_agent.ocf.main import run_action
from qpid_ha_agent.ocf.memory import MemoryFile, state_directory
from qpid_ha_agent.pacemaker.companions import client_file_of, server_of, socket_of

SERVED = ("monitor", "notify", "promote", "demote")
"""`ocf/qpid-ha` asks for these here."""
LOADED = (
    "concurrent.futures.thread", "pyroute2", "qpid_ha_agent.ocf.agent", "qpid_ha_agent.ocf.deeper",
    "qpid_ha_agent.vip", "qpid_ha_broker.coordination.registry", "qpid_ha_broker.ha.history",
)  # fmt: skip
"""What actions import, with all that these import in turn."""
MOST_AT_ONCE = 8
"""Pacemaker asks for one action of a resource at a time. Who comes when so many are being done does it alone."""
LOOK_EVERY_S = 5.0
"""Whether the server is still wanted as it is."""
_CREDENTIALS = struct.Struct("3i")
_NOBODY_DID_IT = 1


class ActionServer:
    """Of one resource."""

    def __init__(self, memory: MemoryFile, lock: int) -> None:
        self._path = socket_of(memory)
        self._client_file = client_file_of(memory)
        self._lock = lock
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._poll = select.poll()
        self._children: dict[int, int] = {}
        """The process id of each that is at work, by its pidfd."""
        self._loaded = _signature()
        self._socket_file = 0

    def listen(self) -> None:
        """For root alone, and say how to ask. Raises OSError."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._listener.bind(os.fspath(self._path))
        finally:
            os.umask(before)
        self._listener.listen(2 * MOST_AT_ONCE)
        self._socket_file = self._path.stat().st_ino
        self._poll.register(self._listener, select.POLLIN)
        temporary = self._client_file.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(f"{sys.executable}\n{action_client.__file__}\n", encoding="utf-8")
        temporary.replace(self._client_file)

    def run(self) -> None:
        """As long as it is wanted as it is."""
        while self._is_wanted():
            for descriptor, _event in self._poll.poll(LOOK_EVERY_S * 1000):
                if descriptor in self._children:
                    self._forget(descriptor)
                elif self._is_wanted():
                    self._fork(self._listener.accept()[0])
        if self._has_socket():
            self._path.unlink(missing_ok=True)

    def _is_wanted(self) -> bool:
        return self._has_socket() and _signature() == self._loaded

    def _has_socket(self) -> bool:
        try:
            return self._path.stat().st_ino == self._socket_file
        except OSError:
            return False

    def _fork(self, connection: socket.socket) -> None:
        with connection:
            if _user_of(connection) != os.geteuid() or len(self._children) >= MOST_AT_ONCE:
                return
            pid = os.fork()
            if not pid:
                self._listener.close()
                os.close(self._lock)
                _serve(connection)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)

    def _forget(self, pidfd: int) -> None:
        self._poll.unregister(pidfd)
        os.waitpid(self._children.pop(pidfd), 0)
        os.close(pidfd)


def _serve(connection: socket.socket) -> None:
    """One action, in a process of its own, which does not return."""
    try:
        code = _answer(connection)
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(b"%d" % code)
        os._exit(0)
    finally:  # an error of ours: the client does it again, and says what is wrong
        os._exit(_NOBODY_DID_IT)


def _answer(connection: socket.socket) -> int:
    action, *pairs = (os.fsdecode(word) for word in connection.recv(MOST_BYTES).split(b"\0"))
    if action not in SERVED:
        os._exit(_NOBODY_DID_IT)
    connection.send(READY)
    go, descriptors, _flags, _address = socket.recv_fds(connection, 1, len(OUTPUT))
    if go != GO or len(descriptors) != len(OUTPUT):
        os._exit(_NOBODY_DID_IT)
    for number, descriptor in zip(OUTPUT, descriptors, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(pair.partition("=")[::2] for pair in pairs)
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    return run_action(action, dict(os.environ))


def _end_with(connection: socket.socket) -> None:
    """Nobody waits for an answer any more: Pacemaker has given the action up, and will ask for what it wants next."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    poll.poll()
    os._exit(_NOBODY_DID_IT)


def _user_of(connection: socket.socket) -> int:
    return int(_CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1])


def _signature() -> tuple[int, ...]:
    """Of the files that were loaded: an upgrade replaces all of them. Empty while they are not there."""
    try:
        status = Path(__file__).stat()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def load() -> None:
    """All that an action may import."""
    for name in LOADED:
        importlib.import_module(name)


def main(arguments: list[str]) -> int:
    """For the resource that is named."""
    memory = MemoryFile(arguments[0], state_directory())
    lock = server_of(memory).be_it()
    if lock is None:
        return 0
    server = ActionServer(memory, lock)
    load()
    server.listen()
    gc.collect()
    gc.freeze()  # what is forked copies no page for counting what is there
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
