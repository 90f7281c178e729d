"""This broker's channel to the controller of its cluster: reports and requests go there, orders and answers come.

The controller is the primary of `default`, which may be this very broker: then the channel is a `LoopbackChannel`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster.messages import BrokerReport, OrderDeletion
from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.server.runtime.due_parties import nobody_asks

log = logging.getLogger("controller")

REPORT_S: Final = 1.0
"""Between two reports, when nothing happens, at most; two go into the time after which a broker counts as failed."""
RECORD_LIMIT_S: Final = 5.0
"""So long a member waits for an answer about its record; as for a coordinator's."""
RETRY_S: Final = 0.1
"""The first pause between two attempts to reach the controller; it doubles up to REPORT_S."""

RecordAnswer = Callable[[cf.RecordTold], None]
NO_CONTROLLER: Final = "the cluster has no controller (no primary of the set default) that answers"
NOT_INTRODUCED: Final = "this broker cannot say yet who it is: which of ha.brokers-url is its own"


class ControllerGone(Exception):
    """There is no controller, or it went before it answered: whether it did what was asked is not known."""


class ReportSource(Protocol):
    """Who knows what this broker has to report."""

    def report(self, *, full: bool) -> BrokerReport | None:
        """What has changed since the last one, or all of it; None: the broker is not ready to say."""


class OrderTaker(Protocol):
    """Who carries the controller's orders out."""

    def carry_out(self, order: cf.Ordered | OrderDeletion, answer: Callable[[bool, str], None]) -> None:
        """`answer` is called once it is known what came of it, if ever."""


class Dial(Protocol):
    """Opens control channels."""

    def __call__(self, address: str, listener: PeerListener) -> Channel:
        """One that is being opened; the listener hears whether it was."""


class _RecordRequest(NamedTuple):
    """Of a member, about its set's record."""

    until_s: float
    """So long it waits."""
    asked: cf.RecordAsked
    answer: RecordAnswer


class ControllerClient:
    """The promise: each request about a record is answered once, within RECORD_LIMIT_S; no answer means: not known. And
    nothing is asked on a channel before a report has said there who asks.

    While there is no controller a request about a record waits. One whose answer was lost with its controller is put to
    the next one: a record is replaced by compare-and-set, so that a write was carried out twice shows in the answer.

    For the listener's methods see `peer_frames.PeerListener`.
    """

    def __init__(self, source: ReportSource, orders: OrderTaker, dial: Dial, failure_timeout_s: float) -> None:
        self._source = source
        self._orders = orders
        self._dial = dial
        self._report_interval_s = min(REPORT_S, failure_timeout_s / 2)
        self._address: str | None = None
        """Where the controller is, as far as is known."""
        self._channel: Channel | None = None
        self._is_open = self._is_introduced = False
        """The channel is there; a report has said on it which broker this is."""
        self._retry_at_s = 0.0
        self._pause_s = RETRY_S
        self._opened_s = 0.0
        self._why_closed = ""
        """What was said when the last channel ended; empty: nothing, or another one has held since."""
        self._report_at_s = 0.0
        self.due: Callable[[], None] = nobody_asks
        """Called when there is something to flush."""
        self._is_report_due = False
        self._numbers = itertools.count(1)
        self._records: dict[int, _RecordRequest] = {}
        """Those without an answer, by number."""
        self._requests: dict[int, asyncio.Future[cf.Told]] = {}

    # --- where the controller is

    def follow(self, address: str | None) -> None:
        """The controller is there now; None: nobody knows of one."""
        if address == self._address:
            return
        self._address = address
        self._retry_at_s, self._pause_s, self._why_closed = 0.0, RETRY_S, ""
        if self._channel is not None:
            channel = self._channel
            self._lost(NO_CONTROLLER)
            channel.close("the controller is elsewhere")
        self._open()

    def tick(self, now_s: float) -> None:
        """At least every 0.1 s."""
        if (
            self._is_open and now_s - self._opened_s >= REPORT_S
        ):  # before that it may be closed at once, as the last one
            self._pause_s, self._why_closed = RETRY_S, ""
        if self._channel is None:
            self._open()
        elif self._is_open and (self._is_report_due or now_s >= self._report_at_s):
            self._report(full=False)
        for number in [number for number, request in self._records.items() if now_s >= request.until_s]:
            self._fail_record(number, f"{self.problem or 'the controller gave no answer'}, within {RECORD_LIMIT_S:g} s")

    def _open(self) -> None:
        now_s = time.monotonic()
        if self._address is not None and now_s >= self._retry_at_s:
            self._retry_at_s = now_s + self._pause_s
            self._pause_s = min(2 * self._pause_s, REPORT_S)
            self._channel = self._dial(self._address, self)

    def changed(self) -> None:
        """Something is to be reported soon."""
        self._is_report_due = True
        self.due()

    def flush(self) -> None:
        """The end of a turn: report what cannot wait for a tick."""
        if self._is_report_due and self._is_open:
            self._report(full=False)

    def _report(self, *, full: bool) -> None:
        report = self._source.report(full=full or not self._is_introduced)
        if report is None:
            return
        self._is_report_due = False
        self._report_at_s = time.monotonic() + self._report_interval_s
        self._send(cf.Reported(report))
        if not self._is_introduced:
            self._is_introduced = True
            for request in tuple(self._records.values()):
                self._send(request.asked)

    # --- what is asked of the controller

    def read_record(self, set_name: str, answer: RecordAnswer) -> None:
        """What the record of a set is."""
        self._ask_record(set_name, None, None, answer)

    def write_record(self, set_name: str, expected: SetRecorded, wanted: SetRecorded, answer: RecordAnswer) -> None:
        """Replace it if it is `expected`."""
        self._ask_record(set_name, expected, wanted, answer)

    def _ask_record(
        self, set_name: str, expected: SetRecorded | None, wanted: SetRecorded | None, answer: RecordAnswer
    ) -> None:
        number = next(self._numbers)
        asked = cf.RecordAsked(number, set_name, expected, wanted)
        self._records[number] = _RecordRequest(time.monotonic() + RECORD_LIMIT_S, asked, answer)
        if self._is_introduced:
            self._send(asked)

    def _fail_record(self, number: int, problem: str) -> None:
        self._records.pop(number).answer(cf.RecordTold(number, False, None, problem))

    @property
    def problem(self) -> str:
        """Why nobody can be asked now; empty: somebody can."""
        if self._is_open:
            return "" if self._is_introduced else NOT_INTRODUCED
        return f"{NO_CONTROLLER}: {self._why_closed}" if self._why_closed else NO_CONTROLLER

    async def ask(self, method: str, params: Mapping[str, Any], caller: Mapping[str, Any] = {}) -> cf.Told:
        """Have the controller do it; `caller`: see `Asked`. Raises ControllerGone."""
        if not self._is_introduced:
            raise ControllerGone(self.problem)
        number = next(self._numbers)
        told: asyncio.Future[cf.Told] = asyncio.get_running_loop().create_future()
        self._requests[number] = told
        self._send(cf.Asked(number, method, params, caller))
        try:
            return await told
        finally:
            self._requests.pop(number, None)

    def _send(self, frame: cf.ControlFrame) -> None:
        if self._channel is not None:
            self._channel.send(cf.encode(frame))

    # --- what the channel tells

    def opened(self, channel: Channel) -> None:
        """It is there."""
        if channel is self._channel:
            self._is_open = True
            self._opened_s = time.monotonic()
            self._report(full=True)

    def received(self, channel: Channel, data: bytes) -> None:
        """A frame came."""
        if channel is not self._channel:
            return
        try:
            self._heard(cf.decode(data))
        except cf.ControlFrameError as error:
            log.warning("%s: a damaged frame came, and the channel is given up: %s", channel.peer, error)
            self._lost(str(error))
            channel.close(str(error))

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone, or could not be opened."""
        if channel is self._channel:
            self._why_closed = reason
            self._lost(reason)

    def _lost(self, reason: str) -> None:
        self._channel, self._is_open, self._is_introduced = None, False, False
        requests, self._requests = self._requests, {}
        for told in requests.values():
            if not told.done():
                told.set_exception(ControllerGone(f"the channel to the controller was lost: {reason}"))

    def _heard(self, frame: cf.ControlFrame) -> None:
        match frame:
            case cf.Ordered(number) | OrderDeletion(number):
                channel = self._channel
                self._orders.carry_out(frame, lambda done, text: self._order_done(channel, number, done, text))
            case cf.ReportAsked():
                self._report(full=True)
            case cf.RecordTold(number):
                request = self._records.pop(number, None)
                if request is not None:
                    request.answer(frame)
            case cf.Told(number):
                told = self._requests.pop(number, None)
                if told is not None and not told.done():
                    told.set_result(frame)
            case cf.Dismissed(text):
                log.error("the controller does not have this broker in its cluster: %s", text)
            case _:
                raise cf.ControlFrameError(f"{type(frame).__name__} is for the controller")

    def _order_done(self, channel: Channel | None, number: int, done: bool, text: str) -> None:
        """To the one who gave it; orders of another controller have other numbers."""
        if channel is self._channel and self._is_open:
            self._send(cf.OrderDone(number, done, text))

    def close(self) -> None:
        """The broker ends."""
        channel = self._channel
        self._address = None
        self._lost("this broker ends")
        for number in list(self._records):
            self._fail_record(number, "this broker ends")
        if channel is not None:
            channel.close("the broker is stopping")
