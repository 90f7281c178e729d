"""What every part of a member shares: settings, the log and state, the time, and the effects of the current input."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.ha.effects import (
    NO_COORDINATOR_SEEN,
    Answered,
    Ask,
    Close,
    Committed,
    Effect,
    Notice,
    Send,
    TurnDue,
)
from qpid_ha_broker.ha.frames import WITH_CLOCK, WITH_IDENTITY, Answer, Frame, Question, StoreOrigin, Topic
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.sets.resource_set import ResourceSet
from qpid_ha_broker.model.sets.strategies import HotStandby

_STEP_MAX_S = 0.5
"""A process that was stopped for ten seconds must not hold it against its peers that it heard nothing from them."""
_WAKING_S = 0.5
"""After it goes on, what was sent meanwhile has been read within this."""


class MemberContext:
    """`now_s` never goes back; `clock_s` is the same without the time in which this process did not run."""

    def __init__(
        self,
        settings: MemberSettings,
        resource_set: ResourceSet,
        random: Callable[[], float],
        wall_ms: Callable[[], int],
        steady_ms: Callable[[], int] | None = None,
    ) -> None:
        self.settings = settings
        self.resource_set = resource_set
        replication = resource_set.replication
        if not isinstance(replication, HotStandby):
            raise TypeError(f"{resource_set.name} has a copy at this broker alone: no member can follow or lead it")
        self.replication = replication
        self.random = random
        self.wall_ms = wall_ms
        """The time of day, for time stamps only."""
        self.steady_ms = steady_ms or wall_ms
        """See `model.message_clock`."""
        self.now_s = 0.0
        self.clock_s = 0.0
        self.effects: list[Effect] = []
        self.is_status_stale = True
        """Something that `MemberStatus` shows may have changed since it was made."""
        self.store_problem = ""
        """Why the store takes nothing now, such as that its disk is full; empty: it does, or there is none."""
        self.coordinator = NO_COORDINATOR_SEEN
        """Which one this broker goes by, as it was read last."""
        self.was_asked_by_stranger = False
        """Somebody of another cluster has asked this broker since it asked its peers: it may lead that."""
        self._last_number = 0
        self._stopped_s = self._woke_s = 0.0
        """How long this process was stopped the last time, and when it went on."""

    def set_time(self, now_s: float) -> None:
        """Let time go on."""
        if now_s > self.now_s:
            if self.now_s:
                step_s = now_s - self.now_s
                self.clock_s += min(step_s, _STEP_MAX_S)
                if step_s > _STEP_MAX_S:
                    self._stopped_s, self._woke_s = step_s, now_s
            self.now_s = now_s

    def ran_until(self, now_s: float) -> None:
        """This process was not stopped before `now_s`, however long nothing has happened here."""
        if self.now_s and now_s > self.now_s:
            self.clock_s += now_s - self.now_s
            self.now_s = now_s

    def unread_s(self) -> float:
        """How long what is read now may have been lying there, because this process was stopped."""
        return self._stopped_s if self.now_s - self._woke_s < _WAKING_S else 0.0

    def message_time_ms(self) -> int:
        """By that messages expire; of one that follows, as far as it was told."""
        return self.resource_set.catalog.clock.now_ms(self.steady_ms())

    @property
    def needs_clock(self) -> bool:
        """Whether this broker has messages, and nothing but its store and the time of day to say when they expire."""
        return bool(self.resource_set.state.generations) and not self.resource_set.catalog.clock.is_settled

    def number(self) -> int:
        """For a request whose answer comes back later."""
        self._last_number += 1
        return self._last_number

    def send(self, link: int, frame: Frame) -> None:
        """Send on a channel."""
        self.effects.append(Send(link, frame))

    def ask(self, topic: Topic, own: Answer, generation: int = 0, *, patient: bool = False, wanted: str = "") -> int:
        """Ask all other brokers; the number of the question. `own`: what this broker would answer itself.

        `patient`: whoever is slow to answer counts, too. `wanted`: see `Question.request`.
        """
        settings, number = self.settings, self.number()
        self.was_asked_by_stranger = False
        is_look = topic is Topic.STATUS and not patient
        has_lost_memory = own.store is StoreOrigin.DIRTY or not own.generation
        limit_s = settings.status_limit_s(has_lost_memory) if is_look else settings.ask_limit_s
        request = WITH_CLOCK if is_look and self.needs_clock else wanted
        if topic is Topic.STATUS and self.coordinator.identity and not request:
            request = WITH_IDENTITY
        question = Question(
            number, topic, settings.name, settings.instance, own.cluster, generation or own.generation, own.lsn,
            settings.own_address, self.resource_set.name, request,
        )  # fmt: skip
        addresses = tuple(address for address in settings.addresses if address != settings.own_address)
        self.effects.append(Ask(question, addresses, limit_s))
        return number

    def close(self, link: int, reason: str) -> None:
        """End a channel."""
        self.effects.append(Close(link, reason))

    def note(self, level: str, text: str) -> None:
        """A line for the log."""
        self.effects.append(Notice(level, text))

    def answer(self, request: int, done: bool, text: str) -> None:
        """Tell the operator what came of a request. Nobody waits for request 0, which a primary makes of its backup."""
        if request:
            self.effects.append(Answered(request, done, text))

    def tell_committed(self) -> None:
        """More is committed."""
        self.effects.append(Committed())

    def want_turn(self) -> None:
        """Something was written."""
        self.effects.append(TurnDue())
