"""The sets of a cluster that is shut down end before `default` does: each level on all its brokers, its stores marked.

A store that is marked is whole: any of a set's may lead when the cluster comes back, and `ha.dirty-store: refuse` lets
it in. A set that cannot end so does not keep the cluster from ending: its stores are as after a crash.

A group has nobody who could end it, and needs it not: each member in sync has on its disk all that was confirmed, and
any of them begins again with that. It ends with its brokers, and confirms nothing once nobody keeps its record.
"""

from __future__ import annotations

from qpid_ha_broker.cluster.context import ControllerContext
from qpid_ha_broker.cluster.leadership import Leadership
from qpid_ha_broker.cluster.messages import AnswerRequest, OrderKind, ShutDownSets
from qpid_ha_broker.events.counted import counted

LIMIT_S = 12.0
"""For all sets together."""
RESUME_S = 30.0
"""A broker that has ended a set and still runs after so long has it again: `default` was not shut down after all."""


class SetsShutdown:
    """The promise: the request is answered once, and nobody is told to lead a set that ends because of it."""

    def __init__(self, ctx: ControllerContext, leadership: Leadership) -> None:
        self._ctx, self._leadership = ctx, leadership
        self._waiting: set[str] = set()
        self._ended = 0
        self._groups = 0
        """They end with their brokers."""
        self._problems: dict[str, str] = {}
        """By set, why its stores are not whole."""
        self._request = 0
        self._until_s = 0.0

    def began(self) -> None:
        """A new controller finds what has ended as it is: it has the sets led again."""
        self._waiting.clear()
        self._until_s = 0.0

    @property
    def is_under_way(self) -> bool:
        """Sets end, or have, and are not to be led again yet."""
        return self._ctx.now_s < self._until_s

    def begin(self, number: int, asked: ShutDownSets) -> None:
        """Have all of them end; a second request takes the place of a first."""
        if self._waiting:
            self._finish("another shutdown was asked for")
        self._request, self._ended, self._groups, self._problems = number, 0, 0, {}
        self._until_s = self._ctx.now_s + LIMIT_S
        for name, entry in self._ctx.draft.sets.items():
            if self._leadership.leads(entry) and entry.is_group:
                self._groups += 1
            elif self._leadership.leads(entry):
                self._waiting.add(name)
                cause = "the cluster is shut down"
                self._ctx.order(entry.record.primary, name, OrderKind.SHUT_DOWN, asked.uuid, cause)
            else:
                self._problems[name] = self._leadership.problems.get(name) or "nobody leads it"
        if not self._waiting:
            self._finish("")

    def answered(self, name: str, done: bool, text: str) -> None:
        """What the set's primary said."""
        if name not in self._waiting:
            return
        self._waiting.remove(name)
        if done:
            self._ended += 1
        else:
            self._problems[name] = text
        if not self._waiting:
            self._finish("")

    def tick(self) -> None:
        """Not for ever."""
        if self._waiting and not self.is_under_way:
            self._finish(f"it did not end within {LIMIT_S:g} s")

    def _finish(self, late: str) -> None:
        self._problems |= dict.fromkeys(sorted(self._waiting), late)
        self._waiting.clear()
        self._until_s = self._ctx.now_s + RESUME_S
        text = f"{counted(self._ended, 'set has', 'sets have')} ended"
        text += f", and {counted(self._groups, 'group ends', 'groups end')} with their brokers" if self._groups else ""
        result = {"ended": self._ended, "problems": self._problems}
        self._ctx.answer(AnswerRequest(self._request, True, text, result))
