"""The channel to the primary: which address is tried next and when, and whether anything comes on it."""

from __future__ import annotations

from typing import Final, NamedTuple

from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.effects import Connect
from qpid_ha_broker.ha.link_ends import LinkEnd

_REFUSALS: Final = {
    LinkEnd.NOT_LET_IN: ("cannot log in to", "; are ha.username and its password the same on all brokers?"),
    LinkEnd.NO_PLACE: ("there is no place for this one at", ""),
}
"""What an operator is told of it, and in the log besides."""


class GreetingForm(NamedTuple):
    """What a broker is greeted with. `additions`: releases with which fields of the greeting came, the oldest first."""

    additions: int

    @property
    def is_full(self) -> bool:
        """With what came with a later release than the protocol."""
        return self.additions > 0

    @property
    def has_marks(self) -> bool:
        """With what came after that, too: marks, and why a store takes nothing."""
        return self.additions > 1

    @property
    def has_schedules(self) -> bool:
        """With what came then: messages that are due later."""
        return self.additions > 2

    @property
    def has_annotations(self) -> bool:
        """With what came then: what consumers say of messages that they give back."""
        return self.additions > 3

    @property
    def is_newest(self) -> bool:
        """With what came last: when and why generations began."""
        return self.additions > 4


class Greetings:
    """How brokers are greeted of which the release is not known; by address, as in a rolling upgrade they differ.

    The promise: the greeting is the newest, unless the broker there has said that it cannot read that.

    1. It could not read the greeting: the next one there leaves out what came last, and after the barest, which every
       release reads, the newest comes again.
    2. The channel came to another end, or there was none: the next process there may be newer, so it is greeted anew.
    3. Somebody has welcomed this broker: by the time that it looks for a primary again, all may be newer.
    """

    def __init__(self, additions: int = 1) -> None:
        self._newest = GreetingForm(additions)
        self._older: dict[str, GreetingForm] = {}

    def at(self, address: str) -> GreetingForm:
        """For the broker there."""
        return self._older.get(address, self._newest)

    def ended(self, address: str, end: LinkEnd) -> None:
        """The channel to that address is gone."""
        additions = self.at(address).additions
        if end is LinkEnd.UNREADABLE and additions:
            self._older[address] = GreetingForm(additions - 1)
        else:
            self._older.pop(address, None)

    def welcomed(self) -> None:
        """The primary is there."""
        self._older.clear()


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
        self.stream_problem = ""
        """Why this broker has given up a primary, what it sends not fitting; empty once it is level with one."""
        self._refusals: dict[str, str] = {}
        """By address: what was logged last of those that do not want this broker, since it had a primary."""
        self._heard_s = 0.0
        self._next_try_s = 0.0
        self._pause_s = ctx.settings.reconnect_s
        self._tries = 0
        self._welcomed_s = float("-inf")
        self._short_in_a_row = 0
        """Times that a primary was lost shortly after its welcome."""
        self._greetings = Greetings(additions=5)
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
        self._heard_s = self._ctx.clock_s

    def heard(self) -> None:
        """Something came."""
        self._heard_s = self._ctx.clock_s

    def welcomed(self) -> None:
        """The primary is found."""
        self.heard()
        self._greetings.welcomed()
        self._welcomed_s = self._ctx.clock_s
        if self.login_problem:
            self._ctx.is_status_stale = True
        self._refused_at, self.login_problem = "", ""
        self._refusals.clear()

    def stream_refused(self, sent: str, error: Exception) -> None:
        """The primary's `sent` does not fit what this broker holds. It connects anew, which need not mend it."""
        self.stream_problem = f"the {sent} of the primary at {self.address} does not fit: {error}"
        self._ctx.is_status_stale = True

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

    @property
    def greeting(self) -> GreetingForm:
        """For the broker at `address`."""
        return self._greetings.at(self.address)

    def note_end(self, end: LinkEnd) -> None:
        """The other side is gone, or never was there."""
        self._greetings.ended(self.address, end)

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
