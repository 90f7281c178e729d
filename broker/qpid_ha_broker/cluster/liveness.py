"""Which brokers have failed, as far as the controller can know: gone, or silent.

Nothing that is confirmed rests on this: a broker that is taken for lost and lives finds its generation outdated, and
who is taken for alive and is gone costs time. So it is quick where there is proof, and patient where there is none.

A primary that is passed over while it lives costs its clients copies that nobody could mark. So who has not reported
is asked itself before it counts as lost, and whoever is to lead in its place asks it once more. Who asks whom, and what
comes of it:

| what comes of it | the controller asks who leads (`to_ask`) | who is to lead asks all replicas (`ha.promotion`) |
| --- | --- | --- |
| the connection is refused | nobody is there: lost at once | nobody leads: it goes on |
| it is closed, and nothing comes of the question | lost after `gone_after_s` | nobody leads: it goes on |
| no answer: frozen, or cut off | lost after `failure_timeout_s`, and may live | nobody leads: it goes on |
| it leads, and confirms | it lives, for ANSWERS_COUNT times as long | it is left alone |
| it leads, and waits for its record | the same | it hands over if it counts as silent, else it is left alone |
| another one follows it | is not asked | who has no channel to it leaves it to that one, once |
| it does not lead | as if it had not answered | nobody leads: it goes on |
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

FIRST_REPORTS_S: Final = 0.2
"""So long a new controller waits for the first reports of those that should lead some of what the one before it led: if
whoever is heard of first led all of it, one broker would have twice as much to do as another from then on."""
ASK_SHARE: Final = 0.5
"""Of `failure_timeout_s`: of whom nothing was heard for so long is asked, and has the rest of it for an answer."""
ASK_AGAIN_SHARE: Final = 0.25
"""The same between two questions: one may be lost, or be the first on a connection that has to be made."""
ANSWERS_COUNT: Final = 5
"""For so many `failure_timeout_s` answers stand for reports. Who leads and cannot report cannot change its record
either: once it would have to, its sets are to go to one who can."""


class BrokerLife(StrEnum):
    """What is known of a broker."""

    AWAITED = "awaited"
    """The controller is new, and has not heard of it yet."""
    ALIVE = "alive"
    LOST = "lost"


class Loss(NamedTuple):
    """A broker has failed."""

    name: str
    why: str
    since_s: float
    """When it was last known to be there."""


class Liveness:
    """The promise: each loss is told once, and what this table says is all that changes what a broker is.

    | it was | and since then | it is | why |
    | --- | --- | --- | --- |
    | alive, awaited | a reset connection, and another one is refused where it listened | lost | nobody is there |
    | awaited | looked for when the controller began: it is refused where it listens | lost | nobody is there |
    | alive, awaited | a reset or refused connection, and nothing for `gone_after_s` | lost | who lives is back |
    | alive, awaited | the same, and a question to it is under way | as without that | its answer may be far away |
    | alive, awaited | the same, and it has answered that it leads | as without that | it lives |
    | alive, awaited | the same as the controller woke, and nothing for `failure_timeout_s` | lost | who lives is back |
    | alive | nothing for `failure_timeout_s` | lost | it hangs, or nobody can reach it |
    | awaited | nothing for `failure_timeout_s` since the controller began | lost | it was lost before |
    | alive, awaited | an answer that it leads, which counts for ANSWERS_COUNT times as long | the same | it lives |
    | alive, awaited | somebody said so | lost | it was fenced |
    | any | a report | alive | |

    A controller that slept itself has heard of nobody meanwhile: all are given their time anew. That others have ended
    their connections to it is what it would have done in their place; they are about to come again.
    """

    def __init__(self) -> None:
        self.own = ""
        self._life: dict[str, BrokerLife] = {}
        self._since_s: dict[str, float] = {}
        """When it was heard of last; of one that is awaited: since when; of one that is lost: since when."""
        self._reset_s: dict[str, float] = {}
        self._refusing: set[str] = set()
        """Those of the ones with a reset connection, or of which nothing was heard yet, that take no other one."""
        self._asked_s: dict[str, float] = {}
        """When it was asked last, of one that has not reported since."""
        self._answered_s: dict[str, float] = {}
        """The same of its last answer: it leads."""
        self._questions: Counter[str] = Counter()
        """How many questions to it are under way."""
        self._silent: set[str] = set()
        """Of those that are lost: nothing says that they are gone, but that nothing was heard of them."""
        self._gone: set[str] = set()
        """Of those that are lost: their connections were reset, so that who had one knows it, too."""
        self._looked_s = 0.0
        self._woke_s = -inf
        """When the controller did, after it had slept."""

    def began(self, own: str, names: tuple[str, ...], now_s: float) -> None:
        """A new controller, on the broker `own`, knows these."""
        self.own = own
        self._life = dict.fromkeys(names, BrokerLife.AWAITED)
        self._since_s = dict.fromkeys(names, now_s)
        self._reset_s, self._looked_s, self._woke_s = {}, now_s, -inf
        self._asked_s, self._answered_s = {}, {}
        self._questions.clear()
        self._refusing.clear()
        self._silent.clear()
        self._gone.clear()
        self._life[own] = BrokerLife.ALIVE

    def heard(self, name: str, now_s: float) -> bool:
        """Something came from it; whether it was not known to be alive."""
        before = self._life.get(name)
        self._life[name], self._since_s[name] = BrokerLife.ALIVE, now_s
        self._forget_doubt(name)
        return before is not BrokerLife.ALIVE

    def disconnected(self, name: str, now_s: float) -> None:
        """Its connection was reset or refused."""
        if name in self._life and self._life[name] is not BrokerLife.LOST:
            self._reset_s.setdefault(name, now_s)

    def refuses(self, name: str, now_s: float) -> None:
        """Nobody listens where it did: it counts if its connection was reset, and nothing came from it since, or if
        nothing was heard of it yet."""
        if self.life(name) is BrokerLife.AWAITED:
            self._reset_s.setdefault(name, now_s)
        if name in self._reset_s:
            self._refusing.add(name)

    def asked(self, name: str) -> None:
        """A question to it is under way, after `to_ask`."""
        self._questions[name] += 1

    def question_ended(self, name: str) -> None:
        """One was answered, or nothing will come of it."""
        if name in self._questions:
            self._questions[name] -= 1

    def answered(self, name: str, now_s: float) -> None:
        """It says itself that it leads a set."""
        if name in self._life and self._life[name] is not BrokerLife.LOST:
            self._answered_s[name] = now_s

    def fail(self, name: str, now_s: float) -> None:
        """Somebody knows that it is gone; `losses` does not tell it again."""
        if self.life(name) is not BrokerLife.LOST:
            self._since_s[name] = now_s
        self._life[name] = BrokerLife.LOST
        self._forget_doubt(name)

    def forget(self, name: str) -> None:
        """It is of the cluster no more."""
        self._forget_doubt(name)
        for table in (self._life, self._since_s):
            table.pop(name, None)

    def _forget_doubt(self, name: str) -> None:
        for table in (self._reset_s, self._asked_s, self._answered_s, self._questions):
            table.pop(name, None)
        for names in (self._refusing, self._silent, self._gone):
            names.discard(name)

    def life(self, name: str) -> BrokerLife:
        """Of one that nobody knows: lost."""
        return self._life.get(name, BrokerLife.LOST)

    def is_alive(self, name: str) -> bool:
        """Whether it was heard of, and is not lost since."""
        return self.life(name) is BrokerLife.ALIVE

    def is_expected(self, name: str, now_s: float) -> bool:
        """Whether a new controller hears of it in a moment, if it lives."""
        return self.life(name) is BrokerLife.AWAITED and now_s - self._since_s[name] < FIRST_REPORTS_S

    def is_in_doubt(self, name: str) -> bool:
        """Whether it is about to be known if it lives: it was not heard of yet, or its connection was reset."""
        return self.life(name) is BrokerLife.AWAITED or name in self._reset_s

    def may_live(self, name: str) -> bool:
        """Whether it counts as lost only because nothing was heard of it."""
        return name in self._silent

    def is_gone(self, name: str) -> bool:
        """Whether it counts as lost because its process has ended: whoever had a connection to it was told."""
        return name in self._gone

    def to_ask(self, now_s: float, failure_timeout_s: float) -> list[str]:
        """Who is to be asked now whether it leads: nothing was heard of it for a while, or its connection is lost."""
        names = []
        for name, life in self._life.items():
            if life is BrokerLife.LOST or name == self.own or name in self._refusing:
                continue
            heard_s = max(self._since_s[name], self._answered_s.get(name, -inf))
            asked_s = self._asked_s.get(name, -inf)
            is_just_reset = asked_s < self._reset_s.get(name, -inf)
            is_silent = now_s - heard_s >= ASK_SHARE * failure_timeout_s
            if is_just_reset or (is_silent and now_s - asked_s >= ASK_AGAIN_SHARE * failure_timeout_s):
                self._asked_s[name] = now_s
                names.append(name)
        return names

    def lost_since_s(self, name: str) -> float | None:
        """When that was; None if this controller has not seen it, or it is not lost."""
        return self._since_s.get(name) if self.life(name) is BrokerLife.LOST else None

    def losses(self, now_s: float, gone_after_s: float, failure_timeout_s: float) -> list[Loss]:
        """Who has failed since the last call."""
        slept = now_s - self._looked_s > failure_timeout_s / 2
        self._looked_s = now_s
        if slept:
            self._reset_s = dict.fromkeys(self._reset_s, now_s)
            self._refusing.clear()
            self._asked_s, self._answered_s, self._woke_s = {}, {}, now_s
            self._questions.clear()
            self._since_s |= {name: now_s for name, life in self._life.items() if life is not BrokerLife.LOST}
            return []
        lost: list[Loss] = []
        silent: set[str] = set()
        gone: set[str] = set()
        for name, life in self._life.items():
            if life is BrokerLife.LOST or name == self.own:
                continue
            heard_s = self._since_s[name]
            last_answer_counts_s = heard_s + ANSWERS_COUNT * failure_timeout_s
            answered_s = min(self._answered_s.get(name, -inf), last_answer_counts_s)
            there_s = max(heard_s, answered_s)
            reset_s = self._reset_s.get(name, now_s)
            just_woke = reset_s - self._woke_s <= gone_after_s
            back_after_s = failure_timeout_s if just_woke else gone_after_s
            is_away = now_s - reset_s >= back_after_s and answered_s < reset_s and self._questions[name] <= 0
            if name in self._refusing or is_away:
                lost.append(Loss(name, "its process is gone", self._reset_s[name]))
                gone.add(name)
            elif now_s - there_s >= failure_timeout_s:
                why = f"nothing was heard of it for {failure_timeout_s:g} s"
                lost.append(Loss(name, f"{why}, but answers" if answered_s > heard_s else why, there_s))
                silent.add(name)
        for loss in lost:
            self.fail(loss.name, now_s)
        self._silent |= silent
        self._gone |= gone
        return lost
