"""Leaving the command in good order: clients first, then the last word of the log, then whoever takes over."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.ha.effects import Answered, DemoteAsked, EndClients, SwitchoverAsked
from qpid_ha_broker.ha.frames import Answer, Question, TakeOver
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.surroundings import Surroundings

SWITCHOVER_LIMITS = 5
"""A backup that was asked to take over has so many ask limits for it."""


class Departure:
    """At most one at a time: for an operator, or for a candidate that asks."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._is_under_way = False
        self._demotion: DemoteAsked | None = None
        self._handover: tuple[int, Question] | None = None
        self._switchover: tuple[int, str, float] | None = None
        """Request, to whom, since when."""
        self._cause = ""
        """Of the switchover; empty when the one that takes over was not asked to from here."""

    @property
    def reason(self) -> str:
        """Why the state changes."""
        if self._demotion is not None:
            return self._demotion.cause
        to = self._handover[1].asker if self._handover else "another broker"
        return f"handed over to {to}{f': {self._cause}' if self._cause else ''}"

    def demote(self, what: DemoteAsked) -> None:
        """Somebody on this side wants it."""
        if self._is_under_way:
            self._answer(what.request, False, "this broker is being demoted already: wait for that")
            return
        self._around.note("info", f"{what.cause}: clients are sent away")
        self._demotion = what
        self._begin()

    def hand_over(self, link: int, question: Question) -> str:
        """A candidate asks; returns why not, if not. The answer follows once clients are gone."""
        if self._is_under_way:
            return "this broker is handing over already"
        self._around.note("info", f"{question.asker} takes over: clients are sent away")
        self._handover = link, question
        self._begin()
        return ""

    def switch_over(self, primary: Primary, what: SwitchoverAsked) -> None:
        """Have a backup ask; the best one unless the operator names another."""
        fit = [each for each in primary.links.values() if each.name in primary.in_sync and each.is_level]
        chosen = [each for each in fit if not what.to or each.name == what.to]
        if not chosen:
            names = ", ".join(each.name for each in fit) or "no backup"
            self._answer(what.request, False, f"{what.to or 'nobody'} is not ready to take over; ready: {names}")
            return
        best = max(chosen, key=lambda each: each.acknowledged)
        self._around.note("info", f"{what.cause}: {best.name} is asked to take over")
        self._switchover, self._cause = (what.request, best.name, self._around.now_s), what.cause
        self._around.send(best.link, TakeOver(primary.generation))

    def tick(self) -> None:
        """A backup that does not take over in time will not."""
        if self._switchover is not None:
            request, to, since_s = self._switchover
            if self._around.now_s - since_s > SWITCHOVER_LIMITS * self._around.settings.ask_limit_s:
                self._switchover, self._cause = None, ""
                self._answer(request, False, f"{to} did not take over in time: see its log")

    def left(self, status: Callable[[int, bool, str], Answer]) -> None:
        """This broker is primary no more, whatever made it so: tell everybody who asked."""
        if self._handover is not None:
            link, question = self._handover
            self._around.send(link, status(question.number, True, "handed over"))
        if self._demotion is not None:
            self._answer(self._demotion.request, True, "demoted; promote another broker")
        if self._switchover is not None:
            request, to, _ = self._switchover
            self._answer(request, True, f"{to} takes over")
        self._is_under_way, self._demotion, self._handover, self._switchover = False, None, None, None
        self._cause = ""

    def _begin(self) -> None:
        self._is_under_way = True
        self._around.effects.append(EndClients())

    def _answer(self, request: int, done: bool, text: str) -> None:
        self._around.effects.append(Answered(request, done, text))
