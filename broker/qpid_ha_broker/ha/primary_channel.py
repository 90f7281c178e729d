"""The channel to the primary: which address is tried next and when, and whether anything comes on it."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import Connect
from qpid_ha_broker.ha.link_ends import LinkEnd

_REFUSALS: Final = {
    LinkEnd.NOT_LET_IN: ("cannot log in to", "; are ha.username and its password the same on all brokers?"),
    LinkEnd.NO_PLACE: ("there is no place for this one at", ""),
}
"""What an operator is told of it, and in the log besides."""


class GreetingForm:
    """How another broker is greeted whose release is not known: an older one ends the channel at a first word with
    fields that it does not know, and does not say why. So the next greeting after that leaves out what came last, and
    after the barest the fullest comes again."""

    def __init__(self, additions: int = 1) -> None:
        """`additions`: releases with which fields came."""
        self._most = self.additions = additions
        """Those of which the fields are in the greeting, the oldest ones."""
        self._is_open = self._is_answered = self._is_welcome = False

    @property
    def is_full(self) -> bool:
        """With what came with a later release than the protocol."""
        return self.additions > 0

    @property
    def is_newest(self) -> bool:
        """With what came after that, too: marks, and why a store takes nothing."""
        return self.additions > 1

    def opened(self) -> None:
        """A channel is there, and its first word is about to be sent."""
        self._is_open, self._is_answered, self._is_welcome = True, False, False

    def answered(self) -> None:
        """Something came on it."""
        self._is_answered = True

    def welcomed(self) -> None:
        """That was who is looked for. The next one may be newer."""
        self._is_answered = self._is_welcome = True

    def ended(self) -> None:
        """It is gone: before the other side's first word perhaps."""
        if self._is_open:
            self._is_open = False
            if self._is_welcome:
                self.additions = self._most
            elif not self._is_answered:
                self.additions = self.additions - 1 if self.additions else self._most


class PrimaryChannel:
    """At most one at a time. `link` is its number; 0: none, and the next address is tried once the pause is over."""

    def __init__(self, ctx: MemberContext) -> None:
        self._ctx = ctx
        self.link = 0
        self.address = ""
        """Where the channel leads, or led last."""
        self.is_open = False
        """The other side is there, and was greeted."""
        self.is_announced = False
        """It has said since then that it leads. That it does not may be on its way from before."""
        self.login_problem = ""
        """Why another broker does not let this one in; empty as long as none has said so."""
        self._refused_at = ""
        """Its address."""
        self._refusals: dict[str, str] = {}
        """By address: what was logged last of those that do not want this broker, since it had a primary."""
        self._heard_s = 0.0
        self._next_try_s = 0.0
        self._pause_s = ctx.settings.reconnect_s
        self._tries = 0
        self._welcomed_s = float("-inf")
        self._short_in_a_row = 0
        """Times that a primary was lost shortly after its welcome."""
        self.greeting = GreetingForm(additions=2)
        self.told_problem = ""
        """Why the store of this broker took nothing when it greeted, which is told to whoever is not too old for that;
        empty: it took what it was given, then or since."""

    # --- searching

    def search(self, at_once: bool = False) -> None:
        """There is no channel any more: try the next address, after a pause that grows unless `at_once`."""
        self.link, self.is_open = 0, False
        ctx = self._ctx
        if at_once:
            self._pause_s = ctx.settings.reconnect_s
            self._next_try_s = ctx.clock_s
            return
        jitter = 0.5 + ctx.random()
        self._next_try_s = ctx.clock_s + self._pause_s * jitter

    def search_lost(self) -> bool:
        """The primary is lost; whether to look for it at once.

        A loss shortly after a welcome, and again after the next one, has a reason that the third will not mend: what is
        sent does not fit, or the primary gives this broker up each time. Then there is a pause, which doubles.
        """
        settings, clock_s = self._ctx.settings, self._ctx.clock_s
        was_short = clock_s - self._welcomed_s < settings.reconnect_most_s
        self._short_in_a_row = self._short_in_a_row + 1 if was_short else 0
        if self._short_in_a_row < 2:
            self.search(at_once=True)
            return True
        self.search()
        self._pause_s = min(self._pause_s * 2, settings.reconnect_most_s)
        return False

    def try_next(self) -> None:
        """That address does not lead to the primary: the next one of this round may be tried at once. The pause after
        the round is what it was, or it would never grow."""
        self.link, self.is_open = 0, False
        self._next_try_s = self._ctx.clock_s

    def dial_again(self) -> None:
        """Connect once more to the address that was tried last; the next attempt after that begins a round."""
        self._tries = 0
        self.dial(self.address if self.address in self._ctx.settings.addresses else "")

    @property
    def is_due(self) -> bool:
        """Whether there is no channel and the pause is over."""
        return not self.link and self._ctx.clock_s >= self._next_try_s

    @property
    def is_round_over(self) -> bool:
        """Whether every address has been tried since the last pause."""
        settings = self._ctx.settings
        return self._tries % max(len(settings.addresses) - bool(settings.own_address), 1) == 0

    def dial(self, address: str = "") -> None:
        """Connect to `address`, or to the next one."""
        settings = self._ctx.settings
        others = [other for other in settings.addresses if other != settings.own_address] or list(settings.addresses)
        if not address:
            address = others[self._tries % len(others)]
            self._tries += 1
            if self._tries % len(others) == 0:
                self._pause_s = min(self._pause_s * 2, settings.reconnect_most_s)
        self.address, self.is_open, self.is_announced = address, False, False
        self.link = -self._ctx.number()
        self._heard_s = self._ctx.clock_s
        self._ctx.effects.append(Connect(self.link, address))

    # --- what comes on it

    def opened(self) -> None:
        """It is there."""
        self.is_open = True
        self.greeting.opened()
        self._heard_s = self._ctx.clock_s

    def heard(self) -> None:
        """Something came."""
        self.greeting.answered()
        self._heard_s = self._ctx.clock_s

    def welcomed(self) -> None:
        """The primary is found."""
        self.heard()
        self.greeting.welcomed()
        self._welcomed_s = self._ctx.clock_s
        if self.login_problem:
            self._ctx.is_status_stale = True
        self._refused_at, self.login_problem = "", ""
        self._refusals.clear()

    def log_refusal(self, text: str) -> None:
        """The broker there does not want this one as its backup, which it says each time: it is logged once."""
        if self._refusals.get(self.address) != text:
            self._refusals[self.address] = text
            self._ctx.note("error", f"refused by {self.address}: {text}")

    @property
    def heard_s(self) -> float:
        """When something came last, or the channel was opened, by the clock of the inputs."""
        return self._heard_s

    def silence(self, limit_s: float) -> str | None:
        """Why the channel must be given up, if nothing came for longer than `limit_s`."""
        silent_s = self._ctx.clock_s - self._heard_s
        return f"nothing came for {silent_s:.1f} s" if silent_s > limit_s else None

    def note_end(self) -> None:
        """The other side is gone: before its first word perhaps, and then the next greeting is the other one."""
        if self.is_open:
            self.greeting.ended()

    def note_refusal(self, reason: str, end: LinkEnd) -> None:
        """A channel came to its end, because the broker there does not let us in perhaps.

        The first address that refuses stays the one that is told of: its sentence is shown to operators, who are not
        helped by one that changes with each attempt.
        """
        before = self.login_problem
        if end not in _REFUSALS:
            if self._refused_at == self.address:
                self._refused_at, self.login_problem = "", ""
        elif self._refused_at in ("", self.address):
            problem, hint = _REFUSALS[end]
            text = f"{problem} the broker at {self.address}: {reason}"
            if text != before:
                self._ctx.note("error", f"{text}{hint}")
            self._refused_at, self.login_problem = self.address, text
        if self.login_problem != before:
            self._ctx.is_status_stale = True
