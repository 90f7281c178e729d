"""What an agent does next: a table over what it knows of its broker and of the lock. Pure.

Every row says why. The brokers keep the safety property whatever agents do (a promotion that could lose something is
refused); what this table adds is that there is a primary again soon, that one agent at a time tries, and that a broker
which no longer answers cannot wake up as a primary.

The record is the authority on who is primary; the lock only chooses who tries. So a primary that the record names stays
it whoever has the lock, and a lock whose holder does not renew it is in nobody's way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_broker.ha.states import UNWRITABLE_S, State


class Action(StrEnum):
    """What an agent can do."""

    WAIT = "wait"
    START_BROKER = "start the broker"
    STOP_BROKER = "stop the broker"
    KILL_BROKER = "kill the broker"
    TRY_LOCK = "try the lock"
    """Take it if it is free now, but stand in nobody's way."""
    ACQUIRE_LOCK = "wait for the lock"
    RELEASE_LOCK = "release the lock"
    PROMOTE = "promote"
    DEMOTE = "demote"
    HAND_OVER = "hand over"
    """Ask the broker to make its best backup the primary."""
    FAIL_BACK = "fail back"
    """Ask the broker to make a preferred backup the primary."""
    MAKE_WAY = "make way"
    """Ask the broker, which cannot write, to make its best backup the primary, if that can be recorded."""
    STOP_AGENT = "stop this agent"
    """With its broker, and begin anew, as an operator wants it."""
    EXIT = "exit"


class LockView(StrEnum):
    """How the agent stands to the lock."""

    NONE = "none"
    WAITING = "waiting"
    HELD = "held"
    LOST = "lost"
    """It was held, and what it rests on was taken away."""


class Unwritable(NamedTuple):
    """A broker's store takes nothing, as on a full disk. A backup that cannot write is in sync no more: who is in sync
    can."""

    for_s: float = 0.0
    """How long it has taken nothing; 0: it does."""
    why: str = ""
    is_alone: bool = False
    """Nobody else is in sync, so nobody could take over."""


class Disowned(NamedTuple):
    """A broker is primary although the record names another one, with a newer generation."""

    for_s: float = 0.0
    """How long that has been so; 0: it is not."""
    recorded: str = ""
    """Whom the record names as primary, in any case."""


class OperatorOrders(NamedTuple):
    """What an operator wants, and not of this agent alone or not for good."""

    shut_down: bool = False
    """The whole cluster was shut down: the broker has ended because of that."""
    restart: str = ""
    """This agent is to begin anew, and its broker with it; the words say who wants that. A hand-over that comes to
    nothing ends it."""


NOTHING_ORDERED: Final = OperatorOrders()
WRITABLE: Final = Unwritable()
OWNED: Final = Disowned()


@dataclass(frozen=True)
class Known:
    """All that an agent knows. Times in seconds, and how long ago or for how long."""

    alive: bool = True
    """The broker's process is there."""
    deaths: int = 0
    """How often it died in a row, without a good while of answers between."""
    dead_for_s: float = 0.0
    ordered: OperatorOrders = NOTHING_ORDERED
    state: State | None = None
    """What it answered last; None: nothing yet."""
    has_data: bool = False
    """Its log is not empty."""
    adopted: bool = False
    """It ran already when this agent came, so it may be primary before it ever answered us."""
    unwritable: Unwritable = WRITABLE
    silent_s: float = 0.0
    """How long the oldest question has been without an answer."""
    is_working: bool = False
    """Meanwhile its process had a processor most of the time, or waited for one: it is slow, and not dead."""
    lock: LockView = LockView.NONE
    held_for_s: float = 0.0
    """How long we have had the lock."""
    demoted_for_s: float | None = None
    """It was primary while we had the lock, and ceased to be so long ago; None: it was not, or still is."""
    lease_silent_s: float = 0.0
    """How long whoever else has the lock has not renewed it, as far as we have looked."""
    disowned: Disowned = OWNED
    recordless_s: float = 0.0
    """How long the record could not be read."""
    is_informed: bool = True
    """The coordinator has answered since this agent began, or slept: before, it may have missed that all are paused."""
    paused: str = ""
    """All agents are to leave their brokers alone, as an operator wants it; the sentence says who, and until when."""
    failback_to: str = ""
    """The backup that is preferred to our primary, and has been ready for long enough."""
    is_asked: bool = False
    """A promotion, demotion or hand-over is under way."""
    refusal: str | None = None
    """Why a promotion was refused since we have had the lock."""
    pause_s: float = 0.0
    """What is left of the pause after we let the lock go, or did not get it, which is drawn anew each time; of the
    one for a broker that observed when it lost its primary; or of the time in which the primary's agent goes first."""
    stopping: bool = False
    """This agent is to end, and its broker with it."""
    hand_over_tried: bool = False
    """One came to nothing: a moment ago or, if this agent is stopping, since it is."""
    stop_asked_s: float | None = None
    """How long ago the broker was told to stop."""

    @property
    def may_be_primary(self) -> bool:
        """Whether the broker could confirm something if it woke up now."""
        if self.state is None:
            return self.adopted
        return self.state is State.PRIMARY

    @property
    def is_candidate(self) -> bool:
        """Whether a promotion has a good chance; the verdict on it is the broker's."""
        return self.state is State.READY or (self.state is State.CONNECTING and self.has_data)

    @property
    def is_empty(self) -> bool:
        """New, or restarted without a store: primary only where nobody has more, as at a cluster's first start."""
        return self.state is State.CONNECTING and not self.has_data


@dataclass(frozen=True)
class Limits:
    """When an agent loses patience."""

    fence_after_s: float = 1.2
    """A silent broker that may be primary is killed: its clients cannot work, and others cannot take over safely."""
    overload_s: float = 5.0
    """One that works, on a machine that has too much to do, answers late; killing it would add to that."""
    promotion_s: float = 5.0
    """A broker that we may have asked to be primary has a lot to do before it answers again."""
    give_up_after_s: float = 15.0
    """Any other silent broker is of no use, but does no harm either."""
    start_s: float = 120.0
    """From the start of a process to its first answer, on a machine that starts much at once. It answers while it loads
    its store."""
    stop_s: float = 20.0
    lease_s: float = 3.0
    """Whoever has the lock renews it twice a second; one that does not for so long hangs."""
    disowned_s: float = 1.0
    """A broker that is primary against the record finds out itself, sooner than we."""
    demote_s: float = 10.0
    unwritable_s: float = UNWRITABLE_S
    """A store that takes nothing for so long does not have a moment: a broker that can write shall be primary."""
    recordless_s: float = 5.0
    """So long a primary may be without the record, in which it could not drop a backup."""
    serves_recordless: bool = True
    """Then it goes on, unless another one can read it (`ha.coordinator-loss: continue`); False: it is demoted."""
    settle_s: float = 0.3
    """How long a backup with the lock waits for its broker to notice that the primary is gone."""
    follow_s: float = 1.0
    """After a demotion: until the other backups have found the new primary, or there is none."""
    rejoin_s: float = 2.0
    """After a demotion, before a stop: until the broker follows the new primary."""
    first_restart_s: float = 0.5
    """A dead primary's agent leaves the processors to those who take over."""
    last_restart_s: float = 10.0

    def silence_s(self, is_working: bool) -> float:
        """How long a broker that may be primary may be silent."""
        return self.overload_s if is_working else self.fence_after_s

    def restart_after_s(self, deaths: int) -> float:
        """The pause before the next start: none at first, then doubling."""
        if deaths == 0:
            return 0.0
        return min(self.first_restart_s * 2.0 ** min(deaths - 1, 10), self.last_restart_s)


class Decision(NamedTuple):
    """What to do, and why."""

    action: Action
    why: str


class Rule(NamedTuple):
    """`action` if `applies`; `why` may name fields of Known and of Limits."""

    applies: Callable[[Known, Limits], bool]
    action: Action
    why: str


def _waits_for_new_primary(known: Known, limits: Limits) -> bool:
    """After a demotion the lock is kept for a moment, so that no other backup takes it while it sees no primary yet."""
    if known.lock is not LockView.HELD or known.demoted_for_s is None:
        return False
    return known.state is State.CONNECTING and known.demoted_for_s < limits.follow_s


def _follows_soon(known: Known, limits: Limits) -> bool:
    """The broker has handed over, and is about to be in sync with the new primary, which commits nothing before it is,
    or was given up: 2 s that all publishers would wait if it stopped now. Once it follows, its stop costs nobody
    anything."""
    if known.lock is not LockView.HELD or known.demoted_for_s is None:
        return False
    return known.state in (State.CONNECTING, State.CATCHUP) and known.demoted_for_s < limits.rejoin_s


def _is_lease_expired(known: Known, limits: Limits) -> bool:
    """Another one has the lock, and hangs. Whoever tries without the lock is judged by the record."""
    return known.lock is not LockView.HELD and known.lease_silent_s >= limits.lease_s


def _should_make_way(known: Known, limits: Limits) -> bool:
    """Whether its publishers wait for its disk, and need not."""
    return known.unwritable.for_s >= limits.unwritable_s and not known.unwritable.is_alone


WITHOUT_BROKER: Final = (
    Rule(
        lambda k, _: k.lock is not LockView.NONE, Action.RELEASE_LOCK, "the broker is dead: let another one take over"
    ),
    Rule(lambda k, _: k.stopping, Action.EXIT, "the broker has stopped"),
    Rule(lambda k, _: k.ordered.restart != "", Action.STOP_AGENT, "{ordered.restart}, and the broker is dead"),
    Rule(
        lambda k, _: k.ordered.shut_down,
        Action.EXIT,
        "the whole cluster was shut down: start this agent to start it again",
    ),
    Rule(lambda k, _: k.paused != "" and k.deaths > 0, Action.WAIT, "the broker is dead, and {paused}"),
    Rule(lambda k, m: k.dead_for_s < m.restart_after_s(k.deaths), Action.WAIT, "it died {deaths} times: not at once"),
    Rule(lambda k, _: k.deaths == 0, Action.START_BROKER, "it does not run"),
    Rule(lambda k, _: True, Action.START_BROKER, "it died ({deaths} in a row)"),
)

SILENT: Final = (
    Rule(
        lambda k, m: k.may_be_primary and k.silent_s >= m.silence_s(k.is_working),
        Action.KILL_BROKER,
        "silent for {silent_s:.1f} s, and it may be primary: it must not wake up while another one serves",
    ),
    Rule(
        lambda k, m: k.state is not None and (k.lock is LockView.HELD or k.is_asked) and k.silent_s >= m.promotion_s,
        Action.KILL_BROKER,
        "silent for {silent_s:.1f} s since we may have asked for a promotion: it may have become primary",
    ),
    Rule(
        lambda k, m: k.state is None and k.silent_s >= m.start_s,
        Action.KILL_BROKER,
        "not one answer {silent_s:.0f} s after its start",
    ),
    Rule(
        lambda k, m: k.state is not None and k.silent_s >= m.give_up_after_s,
        Action.KILL_BROKER,
        "silent for {silent_s:.0f} s: a broker that does not answer is of no use",
    ),
)

STOPPING: Final = (
    Rule(
        lambda k, m: k.stop_asked_s is not None and k.stop_asked_s >= m.stop_s,
        Action.KILL_BROKER,
        "told to stop {stop_asked_s:.0f} s ago, and still there",
    ),
    Rule(lambda k, _: k.is_asked, Action.WAIT, "the broker is busy with what we asked"),
    Rule(
        lambda k, _: k.state is State.PRIMARY and not k.hand_over_tried and k.stop_asked_s is None,
        Action.HAND_OVER,
        "this agent stops, and its broker is primary",
    ),
    Rule(
        lambda k, m: _follows_soon(k, m) and k.stop_asked_s is None,
        Action.WAIT,
        "handed over; the new primary waits until this broker follows it",
    ),
    Rule(
        lambda k, _: k.lock is not LockView.NONE and k.state is not State.PRIMARY,
        Action.RELEASE_LOCK,
        "this agent stops, and its broker is not primary",
    ),
    Rule(lambda k, _: k.stop_asked_s is None, Action.STOP_BROKER, "this agent stops"),
    Rule(lambda k, _: True, Action.WAIT, "the broker is stopping"),
)

RESTARTING: Final = (
    Rule(lambda k, _: k.is_asked, Action.WAIT, "the broker is busy with what we asked"),
    Rule(lambda k, _: k.state is State.PRIMARY, Action.HAND_OVER, "{ordered.restart}, and the broker is primary"),
    Rule(
        lambda k, m: _follows_soon(k, m),
        Action.WAIT,
        "handed over; the new primary waits until this broker follows it",
    ),
    Rule(lambda k, _: True, Action.STOP_AGENT, "{ordered.restart}"),
)
"""Nobody is stopped while he is primary: then nobody else can be, and the restart is refused."""

LOCK_OF_PRIMARY: Final = (
    Rule(lambda k, _: k.lock is LockView.HELD, Action.WAIT, "primary, with the lock"),
    Rule(lambda k, _: k.lock is LockView.LOST, Action.RELEASE_LOCK, "the lock was taken away from us"),
    Rule(lambda k, _: k.lock is LockView.NONE and k.pause_s > 0, Action.WAIT, "a pause before the lock is tried again"),
    Rule(lambda k, _: k.lock is LockView.NONE, Action.ACQUIRE_LOCK, "primary, and the lock has to follow"),
    Rule(lambda k, _: True, Action.WAIT, "primary by the record; the lock has yet to follow"),
)

PRIMARY: Final = (
    Rule(
        lambda k, m: k.disowned.for_s >= m.demote_s,
        Action.KILL_BROKER,
        "primary for {disowned.for_s:.1f} s although the record names {disowned.recorded}, and a demotion did not help",
    ),
    Rule(
        lambda k, m: k.disowned.for_s >= m.disowned_s,
        Action.DEMOTE,
        "the record names {disowned.recorded} as primary of a newer generation",
    ),
    Rule(
        lambda k, m: k.recordless_s >= m.recordless_s and not m.serves_recordless,
        Action.DEMOTE,
        "the coordinator has been out of reach for {recordless_s:.0f} s, and ha.coordinator-loss is stop",
    ),
    Rule(
        lambda k, m: k.recordless_s >= m.recordless_s and not k.hand_over_tried,
        Action.HAND_OVER,
        "the record cannot be read here: a broker that can read it shall be primary, if there is one",
    ),
    Rule(
        lambda k, m: _should_make_way(k, m) and k.recordless_s <= 0 and not k.hand_over_tried,
        Action.MAKE_WAY,
        "its store cannot be written ({unwritable.why}): a broker that can shall be primary",
    ),
    Rule(
        lambda k, _: k.failback_to != "" and k.lock is LockView.HELD and k.recordless_s <= 0 and not k.hand_over_tried,
        Action.FAIL_BACK,
        "{failback_to} is preferred, and ready for long enough",
    ),
    *LOCK_OF_PRIMARY,
)

PAUSED: Final = (
    Rule(lambda k, _: k.lock is not LockView.NONE, Action.RELEASE_LOCK, "{state}, and {paused}"),
    Rule(lambda k, _: True, Action.WAIT, "{state}, and {paused}"),
)
"""Nobody queues for the lock: whoever got it could only give it back."""

OTHERWISE: Final = (
    Rule(lambda k, _: k.lock is LockView.LOST, Action.RELEASE_LOCK, "the lock was taken away from us"),
    Rule(
        lambda k, m: _waits_for_new_primary(k, m),
        Action.WAIT,
        "primary no more; the others are looking for the new one",
    ),
    Rule(
        lambda k, _: k.lock is LockView.HELD and k.demoted_for_s is not None,
        Action.RELEASE_LOCK,
        "primary no more: whoever is, or can be, shall have it",
    ),
    Rule(
        lambda k, _: k.lock is LockView.HELD and k.refusal is not None,
        Action.RELEASE_LOCK,
        "promotion refused, let others try: {refusal}",
    ),
    Rule(
        lambda k, _: k.unwritable.for_s > 0 and k.lock is not LockView.NONE,
        Action.RELEASE_LOCK,
        "{state}, and its store cannot be written ({unwritable.why}): whoever can shall lead",
    ),
    Rule(
        lambda k, _: k.unwritable.for_s > 0,
        Action.WAIT,
        "{state}, and its store cannot be written ({unwritable.why}): it can lead nothing before it can",
    ),
    Rule(lambda k, _: not k.is_informed, Action.WAIT, "{state}; the coordinator has not answered yet"),
    Rule(
        lambda k, _: k.lock is LockView.HELD and k.state is State.CONNECTING,
        Action.PROMOTE,
        "we have the lock, and our broker sees no primary",
    ),
    Rule(
        lambda k, m: k.lock is LockView.HELD and k.state is State.READY and k.held_for_s < m.settle_s,
        Action.WAIT,
        "we have the lock, but our broker still has a primary",
    ),
    Rule(
        lambda k, _: k.lock is LockView.HELD and k.state is State.READY,
        Action.RELEASE_LOCK,
        "our broker has a primary: that one's agent shall have it",
    ),
    Rule(
        lambda k, _: k.lock is not LockView.NONE and not k.is_candidate,
        Action.RELEASE_LOCK,
        "the broker is {state} and cannot be promoted",
    ),
    Rule(lambda k, _: k.pause_s > 0, Action.WAIT, "a pause before the next attempt"),
    Rule(
        lambda k, m: k.state is State.CONNECTING and _is_lease_expired(k, m),
        Action.PROMOTE,
        "our broker sees no primary, and whoever has the lock has not renewed it for {lease_silent_s:.1f} s",
    ),
    Rule(lambda k, _: k.lock is LockView.WAITING, Action.WAIT, "{state}; another one has the lock"),
    Rule(
        lambda k, _: k.is_candidate, Action.ACQUIRE_LOCK, "{state}: it can take over when the primary's agent lets go"
    ),
    Rule(lambda k, _: k.is_empty, Action.TRY_LOCK, "new and empty: perhaps everybody is"),
    Rule(lambda k, _: True, Action.WAIT, "the broker is {state}"),
)

BUSY: Final = (Rule(lambda k, _: k.is_asked, Action.WAIT, "the broker is busy with what we asked"),)
STARTING: Final = (Rule(lambda k, _: k.state is None, Action.WAIT, "the broker is starting"),)


def decide(known: Known, limits: Limits = Limits()) -> Decision:
    """The first row that applies, of the tables that the situation selects."""
    for rule in _rules(known):
        if rule.applies(known, limits):
            return Decision(rule.action, rule.why.format(**vars(known)))
    raise LookupError(f"no row of the decision table fits {known}")


def _rules(known: Known) -> tuple[Rule, ...]:
    if not known.alive:
        return WITHOUT_BROKER
    if known.stopping:  # by whoever stops this agent, a pause or not
        return STOPPING if known.stop_asked_s is not None or known.paused else SILENT + STOPPING
    if known.ordered.restart:  # an operator's work, too
        return RESTARTING if known.paused else SILENT + RESTARTING
    if known.paused:
        return BUSY + STARTING + (LOCK_OF_PRIMARY if known.state is State.PRIMARY else PAUSED)
    return SILENT + BUSY + STARTING + (PRIMARY if known.state is State.PRIMARY else OTHERWISE)
