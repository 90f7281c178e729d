"""Drives the controller of a cluster of many resource sets while this broker leads `default`.

It decides nothing. Brokers come by control channels (`controller_client`), this one too, and operators by requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, Protocol

from qpid_ha_broker.access.audit import AuditedAct, AuditResult, Caller, audited
from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.placement import Placement
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.model.commands.administration import Outcome
from qpid_ha_broker.model.errors import REASONS, ModelError, NotPrimary, OtherSet, Unavailable, reason_of
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.queue_arguments import without_creator
from qpid_ha_broker.model.sets.resource_set import ResourceSet
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.control.control import ControlError
from qpid_ha_broker.server.controller.leader_questions import LeaderQuestions
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.due_parties import nobody_asks
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_config.addresses import Address

log = logging.getLogger("controller")

_LEVELS: Final = logging.getLevelNamesMapping()
RETRY_S: Final = 1.0
RETRY_MOST_S: Final = 60.0
"""Until a controller that was given up is begun anew: the first pause and the longest; it doubles, and begins with the
first again after one that has gone well for the longest."""
LATE_S: Final = 0.002
"""After a broker's time is over the core is told that time has passed: the next tick may be much later."""
PROBES: Final = 3
"""Connections to a broker whose own one is lost: a process that ends loses them first, and listens to the last."""
_PROBED_AT_ONCE: Final = 16
"""Brokers: each takes a thread for `GONE_AFTER_S`, unless it is gone."""
_LEAST_S: Final = 0.001
"""A socket takes 0 for not waiting at all."""
Answer = Callable[[ms.AnswerRequest], None]
AUDITED: Final = (
    *("name", "set", "broker", "to", "force", "lost", "why", "preferred", "replicas", "min_replicas", "min_in_sync"),
    *("strategy", "policies", "begin_only", "key"),
)
"""What the audit log has of the params of a request that another broker passes on for somebody."""


class ControllerCore(Protocol):
    """What is driven: see `cluster.controller.Controller`."""

    def handle(self, happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
        """One input, and what is to be done because of it, in this order."""

    def change_settings(self, settings: ms.ControllerSettings, placement: Placement) -> None:
        """They count from the next input on."""

    @property
    def facts(self) -> dict[str, object]:
        """What it has done since it began, in numbers."""


class ControllerHost(Host, Protocol):
    """What is needed of the broker."""

    waiters: CommitWaiters


MakeCore = Callable[[], ControllerCore]
"""A new one, with the settings that are in force."""


class ControllerService:
    """The promise: inputs reach the core in the order in which they happen, and effects are carried out in theirs.

    A core that raises is given up, and the broker leads `default` all the same: its next primary would meet the same
    input. What the map has is whole then, as one input's events are written at once or not at all. After a pause a new
    core goes on from the map and the next reports, as on a broker that has just become the controller.

    For the listener's methods see `peer_frames.PeerListener`. Who waits for an answer of a controller that has ended
    asks the next one.
    """

    def __init__(
        self,
        broker: ControllerHost,
        name: str,
        make_core: MakeCore,
        default: ResourceSet,
        leaders: LeaderQuestions,
    ) -> None:
        self._broker = broker
        self._name = name
        self._make_core = make_core
        self.core = make_core()
        self._default = default
        self.is_active = False
        """This broker leads `default`, and decides."""
        self.problem = ""
        """Why it leads, and decides nothing; empty: it decides, or does not lead."""
        self._probes = ThreadPoolExecutor(_PROBED_AT_ONCE, "probe")
        self._generation = 0
        """Of `default`, while this broker leads it."""
        self._began_s = self._again_s = self._pause_s = 0.0
        self.due: Callable[[], None] = nobody_asks
        """Called when it begins to wait for what it wrote: see `turn_ended`."""
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
        self._heard_in_round: list[ms.RecordRequested | ms.OrderAnswered] = []
        """What brokers have said in this round of the loop: the core hears it before anything else, or as it ends."""
        self._is_feeding = False
        self._tasks = BackgroundTasks()
        self._actions: dict[type, Callable[[Any], None]] = {
            ms.WriteMap: self._write_map,
            ms.GiveOrder: self._give_order,
            ms.OrderDeletion: lambda effect: self._send(effect.broker, effect),
            ms.AskReport: lambda effect: self._send(effect.broker, cf.ReportAsked()),
            ms.LookForBroker: self._look_for,
            ms.AskBroker: lambda effect: leaders.ask(effect, self._feed),
            ms.RefuseBroker: self._dismiss,
            ms.AnswerRecord: self._answer_record,
            ms.AnswerRequest: self._answer_request,
            ms.ControllerNote: lambda effect: log.log(_LEVELS[effect.level.upper()], "%s", effect.text),
        }

    # --- begin and end

    def begin(self, generation: int) -> None:
        """This broker leads `default`, and clients are served."""
        if not self.is_active and not self.problem:
            self._generation, self._pause_s = generation, 0.0
            self._begin()

    def _begin(self) -> None:
        self.is_active, self.problem, self._began_s = True, "", time.monotonic()
        now_ms = self._default.catalog.clock.now_ms(self._broker.container.steady.now_ms())
        state = self._default.state
        was_forced = any(generation.forced for _, generation in state.generations)
        self._feed(ms.ControllerBegan(state.map, self._name, self._generation, now_ms, uuid.uuid4().hex, was_forced))

    def end(self, reason: str) -> None:
        """It leads no more."""
        if self.is_active:
            self._feed(ms.ControllerEnded())
        self.problem = ""
        self._waiting.clear()
        self._stop(reason)

    def _stop(self, reason: str) -> None:
        """Nobody is listened to any more; whoever is asked something hears `reason`."""
        self.is_active = False
        self._tasks.cancel()
        self._heard_in_round.clear()
        self._uncommitted_lsn = self._committed_lsn = 0
        self._brokers.clear()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close(reason)

    def _give_up(self, error: Exception) -> None:
        """The core has raised: whatever state it is in now, it must not decide for the cluster any more."""
        now_s = time.monotonic()
        went_well = now_s - self._began_s >= RETRY_MOST_S
        self._pause_s = RETRY_S if went_well or not self._pause_s else min(RETRY_MOST_S, 2 * self._pause_s)
        self._again_s = now_s + self._pause_s
        self.problem = (
            f"the controller, on broker {self._name}, has stopped deciding because of a bug ({type(error).__name__}):"
            " resource sets and clients go on as they are, and what fails meanwhile is not replaced. It tries again by"
            " itself; report what the log of that broker has, and if it goes on, let another broker lead `default`"
            " (`qpid-ha switchover`)"
        )
        log.critical("%s; the next attempt is in %g s", self.problem, self._pause_s, exc_info=error)
        waiting, self._waiting = self._waiting, {}
        self._stop(self.problem)
        for number, answer in waiting.items():
            answer(ms.AnswerRequest(number, False, self.problem))
        self.core = self._make_core()

    @property
    def facts(self) -> dict[str, object]:
        """Of the controller, for `status` and `query`; nothing where this broker is not it."""
        if self.problem:
            return {"controller_problem": self.problem}
        return self.core.facts if self.is_active else {}

    # --- what happens

    def tick(self) -> None:
        """At least every 0.1 s."""
        if self.is_active:
            self._feed(ms.TimePassed())
        elif self.problem and time.monotonic() >= self._again_s:
            log.warning("the controller begins anew, from the cluster map")
            self._begin()

    def turn_ended(self) -> bool:
        """Something may have been committed; whether more is awaited."""
        if self._uncommitted_lsn:
            committed_lsn = self._default.log.whole_lsn()
            if committed_lsn >= self._uncommitted_lsn:
                self._uncommitted_lsn = 0
            if committed_lsn != self._committed_lsn:
                self._committed_lsn = committed_lsn
                self._feed(ms.MapCommitted(committed_lsn))
        return self._uncommitted_lsn > 0

    def request(self, request: ms.ClusterRequest | ms.DeclareQueue, answer: Answer) -> None:
        """Somebody wants something; `answer` is called once, unless this broker leads no more before that."""
        try:
            decided = self._decide_in_default(request, answer)
        except ModelError as error:
            answer(_refusal(error))
            return
        if decided is not None:
            number = next(self._numbers)
            self._waiting[number] = answer
            self._feed(ms.RequestReceived(number, decided))

    def _decide_in_default(
        self, request: ms.ClusterRequest | ms.DeclareQueue, answer: Answer
    ) -> ms.ClusterRequest | None:
        """Carry out what is about a queue of `default`; else what is for the core to decide. Raises ModelError."""
        default = self._broker.container.default
        if isinstance(request, ms.DeclareQueue):
            name, arguments, wait = request
            placed = self._default.state.map.queues.get(name)
            if placed is not None:
                return ms.SettleQueue(name, arguments, placed.set, wait=wait)
            created = not default.administration.has_queue(name)
            try:
                given, created_by = without_creator(arguments)
                outcome = default.administration.create_queue(name, given, created_by)
            except OtherSet:
                naming = default.configuration.set_of(name, arguments)
                return ms.SettleQueue(name, arguments, naming.set, naming.missing, naming.preferred, wait)
            self._tasks.start(self._answer_committed(outcome, {"set": DEFAULT_SET, "created": created}, answer))
            return None
        if isinstance(request, ms.DeleteQueue) and default.administration.has_queue(request.name):
            gone = default.administration.delete_queue(request.name, request.if_empty, request.if_unused)
            self._tasks.start(self._answer_committed(gone, {"set": DEFAULT_SET}, answer))
            return None
        return request

    async def _answer_committed(self, outcome: Outcome[Any], result: Mapping[str, object], answer: Answer) -> None:
        """A command on a queue of `default` goes on, or waits for its backups."""
        try:
            await self._broker.waiters.wait_done(outcome)
        except ModelError as error:
            answer(_refusal(error))
        except ControlError as error:  # another broker leads by then, and decides
            answer(_refusal(NotPrimary(error.message)))
        else:
            answer(ms.AnswerRequest(0, True, "done", result))

    # --- what the channels tell

    def opened(self, channel: Channel) -> None:
        """A broker has opened it; its first frame says who it is."""
        if not self.is_active:
            channel.close(self.problem or f"broker {self._name} does not lead")

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
        if isinstance(frame, cf.Asked):
            self._asked(name, frame)
        else:
            self._heard_in_round.append(_input_of(name, frame))
            self._broker.schedule_turn()

    def _asked(self, name: str, asked: cf.Asked) -> None:
        number, method, params, caller = asked
        kind = ms.REQUESTS.get(method)
        if kind is None:
            self._send(name, cf.Told(number, False, f"this release knows no {method}"))
            return
        try:
            request = cf.read_request(kind, params)
        except cf.ControlFrameError as error:
            self._send(name, cf.Told(number, False, str(error)))
            return

        def answer(told: ms.AnswerRequest) -> None:
            record = self._broker.container.management.record
            if caller and name != self._name and record is not None and params.get("plan_only") is not True:
                result = AuditResult.DONE if told.done else AuditResult.REFUSED
                record(AuditedAct(Caller.through(name, caller), method, audited(params, AUDITED), result))
            self._send(name, cf.Told(number, told.done, told.text, told.result))

        self.request(request, answer)

    def closed(self, channel: Channel, reason: str) -> None:
        """It is gone."""
        identity = self._brokers.pop(channel, None)
        if identity is None:
            return
        if self._channels.get(identity.name) is channel:
            del self._channels[identity.name]
        if self.is_active:
            self._feed(ms.BrokerDisconnected(identity.name, identity.instance))
            asyncio.get_running_loop().call_later(ms.GONE_AFTER_S + LATE_S, self.tick)
            self._tasks.start(self._look_whether_gone(identity.name, identity.instance, identity.address))

    async def _look_whether_gone(self, name: str, instance: str, address: str) -> None:
        """A connection that is refused saves the time in which it could come back."""
        try:
            place = Address.parse(address).place
        except ValueError:
            return  # it is not known: the time decides
        # In a thread: after the loss of a broker the loop is busy with all that replicas lost with it.
        if await asyncio.get_running_loop().run_in_executor(self._probes, _refuses, place) and self.is_active:
            self._feed(ms.BrokerRefuses(name, instance))
            self.tick()

    def _look_for(self, effect: ms.LookForBroker) -> None:
        self._tasks.start(self._look_whether_gone(effect.name, "", effect.address))

    # --- the core

    def turn_begins(self) -> None:
        """The round of the loop is over: what it brought is one input, and written in this turn."""
        if self._heard_in_round:
            self._feed()

    def _feed(self, happened: ms.ControllerInput | None = None) -> None:
        """Put what was heard in this round before the core, then `happened`."""
        heard, self._heard_in_round = self._heard_in_round, []
        if self._default.replication.read_only:
            if not isinstance(happened, ms.ControllerEnded):
                return  # this broker leads no more, and `end` follows with the turn
        elif heard:
            self._inputs.append(heard[0] if len(heard) == 1 else ms.HeardTogether(tuple(heard)))
        if happened is not None:
            self._inputs.append(happened)
        if self._is_feeding:
            return
        self._is_feeding = True
        try:
            while self._inputs:
                for effect in self.core.handle(self._inputs.pop(0), time.monotonic()):
                    self._actions[type(effect)](effect)
        except Exception as error:  # noqa: BLE001 # a bug, whatever it is: see `_give_up`, which logs it
            self._inputs.clear()
            self._give_up(error)
        finally:
            self._is_feeding = False

    def _write_map(self, effect: ms.WriteMap) -> None:
        for event in effect.events:
            encode(0, event)  # raises before anything is written
        self._uncommitted_lsn = self._default.submit(effect.events).lsn
        self._inputs.insert(0, ms.MapWritten(effect.number, self._uncommitted_lsn))
        self.due()
        self._broker.schedule_turn()

    def _send(self, name: str, frame: cf.ControlFrame) -> None:
        """To a broker that is not there nothing is sent: it will report, or be missed."""
        channel = self._channels.get(name)
        if channel is not None:
            channel.send(cf.encode(frame))
            self._broker.schedule_turn()

    def _give_order(self, effect: ms.GiveOrder) -> None:
        self._send(
            effect.broker, cf.Ordered(effect.number, effect.set, effect.kind, effect.to, effect.cause, effect.force)
        )

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


def _input_of(broker: str, frame: cf.ControlFrame) -> ms.RecordRequested | ms.OrderAnswered:
    """What a broker says with it. Raises ControlFrameError."""
    match frame:
        case cf.RecordAsked(number, set_name, expected, wanted):
            return ms.RecordRequested(broker, number, set_name, expected, wanted)
        case cf.OrderDone(number, done, text):
            return ms.OrderAnswered(broker, number, done, text)
        case _:
            raise cf.ControlFrameError(f"{type(frame).__name__} is for brokers")


def _refusal(error: ModelError) -> ms.AnswerRequest:
    """For a broker that has asked: where this one leads no more, another one can be asked soon."""
    reason = REASONS[Unavailable] if isinstance(error, NotPrimary) else reason_of(error)
    return ms.AnswerRequest(0, False, str(error), {"reason": reason})


def _refuses(place: tuple[str, int]) -> bool:
    """Whether nobody takes connections there any more; where one was taken, once it is closed. Blocks for a while."""
    until_s = time.monotonic() + ms.GONE_AFTER_S
    try:
        for _ in range(PROBES):
            with socket.create_connection(place, max(_LEAST_S, until_s - time.monotonic())) as connection:
                connection.settimeout(max(_LEAST_S, until_s - time.monotonic()))
                with suppress(ConnectionResetError):
                    connection.recv(1)
    except ConnectionRefusedError:
        return True
    except OSError:  # a time that is over is one, too
        pass
    return False
