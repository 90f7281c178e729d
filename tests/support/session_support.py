"""Sessions of clients in a test's hands: consumers on the bare core, and events of the registry."""

from __future__ import annotations

from random import Random

from model_support import NOW_MS, Core
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import SessionOwner
from qpid_ha_broker.model.sessions import SessionRegistry

FIRST, SECOND = "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "00000000-0000-0000-0000-000000000002"
NAMES = (FIRST, SECOND)


class SessionTaker(Consumer):
    """A consumer of a session's link."""

    def __init__(self, name: str = FIRST, link: str = "link", session: int = 1) -> None:
        super().__init__()
        self.session_owner = SessionOwner(session, name, link)


def taker(core: Core, queue: Queue, name: str = FIRST, link: str = "link", session: int = 1) -> SessionTaker:
    """A subscribed one, with no credit yet."""
    return core.add_consumer(queue, SessionTaker(name, link, session))


def session_event(random: Random, sessions: SessionRegistry) -> ev.SessionEvent:
    """One that fits."""
    absent = [name for name in NAMES if name not in sessions.by_name]
    there = list(sessions.by_id.values())
    since_ms = NOW_MS + random.randint(0, 1000)
    if absent and (not there or random.random() < 0.4):
        return ev.SessionStarted(random.choice(absent), random.choice(["", "zoë"]), 60_000, since_ms)
    session = random.choice(there)
    events: list[ev.SessionEvent] = [
        ev.SessionResumed(session.id, session.epoch + 1, random.randint(0, 1000), since_ms),
        ev.SessionDetached(session.id, since_ms),
        ev.SessionEnded(session.id, random.random() < 0.5),
    ]
    return random.choice(events)
