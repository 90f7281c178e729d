"""Sending and receiving over one connection, step by step, as a command of a shell does it."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import proton
import proton.handlers
import proton.reactor
import proton.utils

from qpid_ha_agent.control import Forbidden, TimedOut, Unreachable
from qpid_ha_agent.login import Login
from qpid_ha_agent.remote_control import open_connection
from qpid_ha_broker.amqp.wire.conditions import NOT_FOUND
from qpid_ha_config.addresses import Address

WINDOW: Final = 500
"""Messages that are sent and not answered, at most."""
PREFETCH: Final = 100
LOOK_S: Final = 0.1
"""So often somebody looks whether there is another line to send."""
HEARTBEAT_S: Final = 20.0
NO_CREATE: Final = "qpid.no-create"
"""A capability of a source or target: see docs/protocol.md, "From and to brokers outside"."""
_OUTCOMES: Final = {
    proton.Delivery.ACCEPTED: "accepted",
    proton.Delivery.REJECTED: "rejected",
    proton.Delivery.RELEASED: "released",
    proton.Delivery.MODIFIED: "modified",
}


class RefusedByBroker(Exception):
    """The broker does not want what was asked for: a link, or a message. The text is its reason."""


class NoSuchAddress(RefusedByBroker):
    """Nothing is at the address, and nothing was made."""


class NoCreate(proton.reactor.LinkOption):
    """A broker of ours makes no queue for the link where none is: the address may be a typing error."""

    def apply(self, link: Any) -> None:
        """Ask for it, as docs/protocol.md says; another broker ignores what it does not know."""
        terminus = link.target if link.is_sender else link.source
        terminus.capabilities.put_object(proton.symbol(NO_CREATE))


class SendResult(NamedTuple):
    """What became of messages: how many by outcome, and why the first was not accepted; empty: all were."""

    sent: int
    outcomes: Counter[str]
    reason: str

    @property
    def is_accepted(self) -> bool:
        """All of them."""
        return self.outcomes["accepted"] == self.sent


class MessageLine:
    """A connection to a broker, for one command. Methods raise RefusedByBroker, Unreachable, TimedOut or Forbidden."""

    def __init__(self, broker: Address, login: Login, timeout_s: float) -> None:
        self._broker, self._timeout_s = broker, timeout_s
        named = str(broker).replace("://", "://USER@")
        self._who = "us" if login.user else f"anybody without a login (give -b {named})"
        with self._told():
            self._connection = open_connection(broker, login, timeout_s, heartbeat=HEARTBEAT_S)

    def close(self) -> None:
        """Say goodbye, as far as there is somebody who hears it."""
        with suppress(proton.ProtonException, OSError):
            self._connection.close()

    def send(
        self, address: str, messages: Iterable[Any], *, settled: bool = False, is_slow: bool = False,
        create: bool = False,
    ) -> SendResult:  # fmt: skip
        """Send all of them, and wait for what becomes of each, but where they are sent `settled`. `is_slow`: it may
        take long until the next one is there. `create`: a queue may be made. Raises also what `messages` raises."""
        outcomes: Counter[str] = Counter()
        reasons: list[str] = []
        pending: deque[Any] = deque()
        sent = 0

        def is_answered() -> bool:
            while pending and (pending[0].settled or pending[0].remote_state in _OUTCOMES):
                delivery = pending.popleft()
                outcome = _OUTCOMES.get(delivery.remote_state, "settled without an outcome")
                outcomes[outcome] += 1
                if outcome != "accepted":
                    reasons.append(text_of(delivery.remote.condition) or outcome)
                delivery.settle()
            return len(pending) < WINDOW

        with self._told(), suppress(KeyboardInterrupt):
            options: list[Any] = [] if create else [NoCreate()]
            options += [proton.reactor.AtMostOnce()] if settled else []
            sender = self._connection.create_sender(address, options=options)
            link: Any = sender.link
            for message in _patiently(messages, self._breathe) if is_slow else messages:
                self._connection.wait(lambda: link.credit > 0 and is_answered(), timeout=self._timeout_s)
                delivery = link.send(message)
                sent += 1
                if settled:
                    outcomes["accepted"] += 1
                else:
                    pending.append(delivery)
            self._connection.wait(lambda: is_answered() and not pending, timeout=self._timeout_s)
            sender.close()
        if pending:
            outcomes["not answered"] += len(pending)
            reasons.append("you interrupted it: these may be there or not")
        return SendResult(sent, outcomes, reasons[0] if reasons else "")

    def receive(
        self,
        address: str,
        *,
        count: int | None = None,
        wait_s: float | None = None,
        browse: bool = False,
        selector: str | None = None,
        create: bool = False,
    ) -> Iterator[Any]:
        """Messages as they come, each accepted when the next one is asked for: `count` of them, None: without an end;
        and no more once none has come for `wait_s`. `create`: a queue may be made."""
        options: list[Any] = [] if create else [NoCreate()]
        options += [proton.reactor.Copy()] if browse else []
        if selector is not None:
            options.append(proton.reactor.Selector(selector))
        with self._told():
            first = PREFETCH if count is None else min(count, PREFETCH)
            receiver = self._connection.create_receiver(address, credit=first, options=options)
            asked, taken = first, 0
            while count is None or taken < count:
                if wait_s is None:
                    self._connection.wait(lambda: receiver.fetcher.has_message)
                else:
                    try:
                        self._connection.wait(lambda: receiver.fetcher.has_message, timeout=wait_s)
                    except proton.Timeout:
                        break
                message = receiver.receive(timeout=0)
                taken += 1
                yield message
                receiver.accept()
                if (count is None or asked < count) and asked - taken <= PREFETCH // 2:
                    more = PREFETCH // 2 if count is None else min(PREFETCH // 2, count - asked)
                    receiver.link.flow(more)
                    asked += more
            receiver.close()

    def _breathe(self, seconds: float) -> None:
        """Let the connection live while nothing is to be sent."""
        with suppress(proton.Timeout):
            self._connection.wait(lambda: False, timeout=seconds)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What Proton says, in our terms."""
        try:
            yield
        except proton.Timeout:
            raise TimedOut(f"no answer from {self._broker} within {self._timeout_s:g} s") from None
        except proton.utils.LinkDetached as detached:
            condition = detached.link.remote_condition
            raise refusal_of(condition) from None
        except (proton.ProtonException, OSError) as error:
            text = str(error)
            if "unauthorized" in text or "uthentication failed" in text:
                raise Forbidden(f"{self._broker} does not let {self._who} in: {text}") from None
            turned_away = "; one that is not primary turns clients away: -b names the primary, see status --all"
            hint = turned_away if "framing-error" in text else ""
            raise Unreachable(f"the broker at {self._broker} cannot be reached, or was lost: {text}{hint}") from None


def refusal_of(condition: Any) -> RefusedByBroker:
    """What a link was ended with."""
    text = text_of(condition) or "the broker has ended the link, and does not say why"
    return NoSuchAddress(text) if condition is not None and condition.name == NOT_FOUND else RefusedByBroker(text)


def text_of(condition: Any) -> str:
    """An error of AMQP; empty for none."""
    return "" if condition is None else f"{condition.name}: {condition.description or 'no reason given'}"


def _patiently(messages: Iterable[Any], breathe: Callable[[float], None]) -> Iterator[Any]:
    """The messages, from a thread of their own: whoever types them may think for longer than a broker waits."""
    handed: queue.Queue[Any] = queue.Queue(maxsize=WINDOW)
    end = object()

    def read() -> None:
        try:
            for message in messages:
                handed.put(message)
        except Exception as error:  # noqa: BLE001 # it is raised by who takes it
            handed.put(error)
        else:
            handed.put(end)

    threading.Thread(target=read, name="reader", daemon=True).start()
    while True:
        try:
            message = handed.get_nowait()
        except queue.Empty:
            breathe(LOOK_S)
            continue
        if message is end:
            return
        if isinstance(message, Exception):
            raise message
        yield message


def now_us() -> int:
    """By a clock that all processes of this machine share."""
    return time.monotonic_ns() // 1000
