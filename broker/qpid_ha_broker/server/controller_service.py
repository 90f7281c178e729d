"""Drives the controller of a cluster of many resource sets while this broker leads `default`.

It decides nothing. Brokers come by control channels (`controller_client`), this one too, and operators by requests.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from qpid_ha_broker.amqp.peer_frames import Channel
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.model.resource_set import ResourceSet
from qpid_ha_broker.server.host import Host

log = logging.getLogger("controller")

_LEVELS: Final = logging.getLevelNamesMapping()
Answer = Callable[[ms.AnswerRequest], None]


class ControllerCore(Protocol):
    """What is driven: see `cluster.controller.Controller`."""

    def handle(self, happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
        """One input, and what is to be done because of it, in this order."""


class ControllerService:
    """The promise: inputs reach the core in the order in which they happen, and effects are carried out in theirs.

    For the listener's methods see `peer_frames.PeerListener`. Who waits for an answer of a controller that has ended
    asks the next one.
    """

    def __init__(self, broker: Host, name: str, core: ControllerCore, default: ResourceSet) -> None:
        self._broker = broker
        self._name = name
        self._core = core
        self._default = default
        self.is_active = False
        self._uncommitted_lsn = 0
        """Of the last write of which the core has not heard that it is committed; 0: it has of all."""
        self._committed_lsn = 0
        """As the core has heard."""
        self._channels: dict[str, Channel] = {}
        """By the name of the broker at the other end, which has reported."""
        self._brokers: dict[Channel, ms.BrokerIdentity] = {}
        self._waiting: dict[int, Answer] = {}
        self._complaints: set[str] = set()
        """Names of queues about which it was said that they cannot be placed."""
        self._numbers = itertools.count(1)
        self._inputs: list[ms.ControllerInput] = []
        self._is_feeding = False
        self._actions: dict[type, Callable[[Any], None]] = {
            ms.WriteMap: self._write_map,
            ms.GiveOrder: self._give_order,
            ms.AskReport: lambda effect: self._send(effect.broker, cf.ReportAsked()),
            ms.RefuseBroker: self._dismiss,
            ms.AnswerRecord: self._answer_record,
            ms.AnswerRequest: self._answer_request,
            ms.ControllerNote: lambda effect: log.log(_LEVELS[effect.level.upper()], "%s", effect.text),
        }

    # --- begin and end

    def begin(self, generation: int) -> None:
        """This broker leads `default`, and clients are served."""
        if not self.is_active:
            self.is_active = True
            wall_ms = int(time.time() * 1000)
            self._feed(ms.ControllerBegan(self._default.state.map, self._name, generation, wall_ms))

    def end(self, reason: str) -> None:
        """It leads no more."""
        if not self.is_active:
            return
        self._feed(ms.ControllerEnded())
        self.is_active = False
        self._uncommitted_lsn = self._committed_lsn = 0
        self._waiting.clear()
        self._brokers.clear()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close(reason)

    # --- what happens

    def tick(self) -> None:
        """At least every 0.1 s."""
        if self.is_active:
            self._feed(ms.TimePassed())

    def turn_ended(self) -> None:
        """Something may have been committed."""
        if self._uncommitted_lsn:
            committed_lsn = self._default.log.whole_lsn()
            if committed_lsn >= self._uncommitted_lsn:
                self._uncommitted_lsn = 0
            if committed_lsn != self._committed_lsn:
                self._committed_lsn = committed_lsn
                self._feed(ms.MapCommitted(committed_lsn))

    def request(self, request: ms.ClusterRequest, answer: Answer) -> None:
        """Somebody wants something; `answer` is called once, unless this broker leads no more before that."""
        number = next(self._numbers)
        taken = self._of_default(request.name) if isinstance(request, ms.SettleQueue) else ""
        if taken:
            answer(ms.AnswerRequest(number, False, f"{taken}: queues and exchanges share their names"))
            return
        self._waiting[number] = answer
        self._feed(ms.RequestReceived(number, request))

    # --- what the channels tell

    def opened(self, channel: Channel) -> None:
        """A broker has opened it; its first frame says who it is."""
        if not self.is_active:
            channel.close(f"broker {self._name} does not lead")

    def received(self, channel: Channel, data: bytes) -> None:
        """A frame came."""
        if not self.is_active:
            return
        try:
            frame = cf.decode(data)
            if isinstance(frame, cf.Reported):
                self._reported(channel, frame.report)
                return
            identity = self._brokers.get(channel)
            if identity is None:
                raise cf.ControlFrameError("expected a report first")
            self._heard(identity.name, frame)
        except cf.ControlFrameError as error:
            log.warning("%s: a damaged frame came, and the channel is given up: %s", channel.peer, error)
            channel.close(str(error))
            self.closed(channel, str(error))

    def _reported(self, channel: Channel, report: ms.BrokerReport) -> None:
        identity = report.broker
        if report.unplaced_queues:
            report = report._replace(unplaced_queues=tuple(filter(self._may_be_placed, report.unplaced_queues)))
        self._brokers[channel] = identity
        if self._channels.get(identity.name) is not channel:
            self._channels[identity.name] = channel
        self._feed(ms.ReportReceived(report))

    def _may_be_placed(self, queue: ms.UnplacedQueue) -> bool:
        """Not under a name that something in `default` has: no event of the map may say so."""
        there = self._of_default(queue.name)
        if there and queue.name not in self._complaints:
            self._complaints.add(queue.name)
            log.error("set %s has a queue %s, and %s: delete one of them", queue.set, queue.name, there)
        return not there

    def _of_default(self, name: str) -> str:
        """What `default` has under that name; empty: nothing."""
        catalog = self._default.catalog
        kinds = (("queue", catalog.queues), ("exchange", catalog.exchanges))
        return next((f"default has the {kind} {name}" for kind, there in kinds if name in there), "")

    def _heard(self, name: str, frame: cf.ControlFrame) -> None:
        match frame:
            case cf.RecordAsked(number, set_name, expected, wanted):
                self._feed(ms.RecordRequested(name, number, set_name, expected, wanted))
            case cf.OrderDone(number, done, text):
                self._feed(ms.OrderAnswered(name, number, done, text))
            case cf.Asked(number, method, params):
                self._asked(name, number, method, params)
            case _:
                raise cf.ControlFrameError(f"{type(frame).__name__} is for brokers")

    def _asked(self, name: str, number: int, method: str, params: Mapping[str, Any]) -> None:
        kind = ms.REQUESTS.get(method)
        if kind is None:
            self._send(name, cf.Told(number, False, f"this release knows no {method}"))
            return
        try:
            request = cf.read_request(kind, params)
        except cf.ControlFrameError as error:
            self._send(name, cf.Told(number, False, str(error)))
            return
        self.request(request, lambda told: self._send(name, cf.Told(number, told.done, told.text, told.result)))

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone."""
        identity = self._brokers.pop(channel, None)
        if identity is None:
            return
        if self._channels.get(identity.name) is channel:
            del self._channels[identity.name]
        if self.is_active:
            self._feed(ms.BrokerDisconnected(identity.name, identity.instance))

    # --- the core

    def _feed(self, happened: ms.ControllerInput) -> None:
        self._inputs.append(happened)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._inputs:
                for effect in self._core.handle(self._inputs.pop(0), time.monotonic()):
                    self._actions[type(effect)](effect)
        except Exception as error:  # whatever state it is in now, it must not decide for the cluster any more
            log.exception("a bug: %s", error)
            self._broker.fail(f"a bug in the controller ({type(error).__name__}); the log has it")
        finally:
            self._inputs.clear()
            self._is_feeding = False

    def _write_map(self, effect: ms.WriteMap) -> None:
        if len(effect.events) == 1:
            self._default.write(effect.events[0])
        else:
            self._default.write_unit(effect.events)
        self._uncommitted_lsn = self._default.log.last_lsn
        self._inputs.insert(0, ms.MapWritten(effect.number, self._uncommitted_lsn))
        self._broker.schedule_turn()

    def _send(self, name: str, frame: cf.ControlFrame) -> None:
        """To a broker that is not there nothing is sent: it will report, or be missed."""
        channel = self._channels.get(name)
        if channel is not None:
            channel.send(cf.encode(frame))
            self._broker.schedule_turn()

    def _give_order(self, effect: ms.GiveOrder) -> None:
        self._send(effect.broker, cf.Ordered(effect.number, effect.set, effect.kind, effect.to, effect.cause))

    def _answer_record(self, effect: ms.AnswerRecord) -> None:
        self._send(effect.broker, cf.RecordTold(effect.number, effect.written, effect.record, effect.problem))

    def _answer_request(self, effect: ms.AnswerRequest) -> None:
        answer = self._waiting.pop(effect.number, None)
        if answer is not None:
            answer(effect)

    def _dismiss(self, effect: ms.RefuseBroker) -> None:
        log.error("broker %s is refused: %s", effect.name, effect.text)
        for channel, identity in list(self._brokers.items()):
            if (identity.name, identity.instance) == (effect.name, effect.instance):
                del self._brokers[channel]
                channel.send(cf.encode(cf.Dismissed(effect.text)))
                channel.close(effect.text)
        self._channels.pop(effect.name, None)
        self._channels |= {each.name: channel for channel, each in self._brokers.items() if each.name == effect.name}
