"""Asks the action server for an action; does it the plain way where nobody takes it. The steps are in action_server.py.

    python -I -S action_client.py SOCKET PROGRAM ACTION

Pacemaker waits for this program in each action, so it imports next to nothing: with the start of the interpreter that
takes 7 ms of processor time.
"""

from __future__ import annotations

import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_SEQPACKET, SOL_SOCKET, socket
from posix import _exit, environ, execv, unlink

TAKEN_S = 0.5
"""Within that a server that lives has forked, even on a busy machine."""
MOST_BYTES = 131072
"""Of a request. An environment that is larger is none of Pacemaker's."""
READY, GO = b"r", b"g"
OUTPUT = (1, 2)


def ask(path: str, action: str) -> int | None:
    """The exit code of the action; None when nobody carries it out."""
    words = [action.encode(), *[name + b"=" + value for name, value in environ.items()]]
    descriptors = b"".join([number.to_bytes(4, sys.byteorder) for number in OUTPUT])
    connection = socket(AF_UNIX, SOCK_SEQPACKET)
    connection.settimeout(TAKEN_S)
    try:
        connection.connect(path)
        connection.send(b"\0".join(words))
        if connection.recv(1) != READY:
            return None
        connection.settimeout(None)
        connection.sendmsg([GO], [(SOL_SOCKET, SCM_RIGHTS, descriptors)])
        code = connection.recv(16)
    except TimeoutError:
        connection.close()
        unlink(path)  # the server hangs: nobody else shall wait for it
        return None
    except OSError:
        return None
    return int(code) if code.isdigit() else None


def main(path: str, program: str, action: str) -> None:
    """Ends this process, or becomes the program."""
    code = None
    try:
        code = ask(path, action)
    finally:
        if code is None:
            execv(program, [program, action])
    _exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
