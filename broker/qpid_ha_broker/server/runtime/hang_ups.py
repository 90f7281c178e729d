"""Whether the other end of a connection has hung up: asked before something is begun that somebody wants an answer to.

A broker that was stopped (SIGSTOP, a debugger, a frozen machine) or busy finds old requests in its sockets when it goes
on, and some of their callers have given up. The kernel knows that before the end of the stream is read: it comes behind
all that is unread. It does not know of a caller whose machine has lost its power or its network: that one has not hung
up.
"""

from __future__ import annotations

import asyncio
import select
import socket

_CLOSED = select.POLLHUP | select.POLLERR


def has_hung_up(transport: asyncio.BaseTransport) -> bool:
    """Whether the other end has closed, or this one has.

    On a Unix socket who has only ended what he says may wait for the answer (`nc -N`). TCP tells no difference, and no
    door goes on with a connection of TCP whose other end has ended. What has no socket has not hung up.
    """
    if transport.is_closing():
        return True
    opened = transport.get_extra_info("socket")
    if opened is None:
        return False
    events = _CLOSED if opened.family == socket.AF_UNIX else _CLOSED | select.POLLRDHUP
    poll = select.poll()
    poll.register(opened.fileno(), events)
    return any(seen & events for _, seen in poll.poll(0))
