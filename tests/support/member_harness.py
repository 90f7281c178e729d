"""One process of a broker in a test: a member, its resource set, and the one place where an effect becomes a call.

What carries effects out (a network in memory, a virtual clock, nothing at all) says so by overriding the methods that
it needs; an effect that nobody cares about does nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Frame
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.sets.resources import Resources

StoreRequest = fx.Persist | fx.TruncateLog | fx.BeginCheckpoint | fx.WriteCheckpoint | fx.PersistVote


class ProcessClocks(ABC):
    """What time it is for a process."""

    @abstractmethod
    def monotonic_s(self) -> float:
        """A clock that never goes back."""

    @abstractmethod
    def wall_ms(self) -> int:
        """The time of day."""

    def steady_ms(self) -> int:
        """As `model.message_clock` wants it: unless somebody sets the time of day, that is as good."""
        return self.wall_ms()


class MemberHarness(ProcessClocks):
    """The promise: effects are carried out in their order, and those of one input before the next input."""

    resources: Resources
    configuration: Configuration
    member: Member

    # --- the process

    def prepare(self, resources: Resources) -> None:
        """An empty memory, or what a store filled."""
        self.resources = resources
        self.configuration = Configuration(resources)

    def begin(self, settings: MemberSettings, draw: Callable[[], float], restored: Restored | None = None) -> None:
        """A member over `resources`; `restored`: what the process before left on disk."""
        self.member = Member(settings, self.resources.replicated, draw, self.wall_ms, restored, self.steady_ms)

    @property
    def has_catch_up_work(self) -> bool:
        """Whether another turn would bring a backup of this primary further."""
        primary = self.member.primary
        return primary is not None and primary.has_work

    @property
    def goes_on(self) -> bool:
        """Whether the process is there for the next effect."""
        return True

    def apply(self, what: fx.Input) -> list[fx.Effect] | None:
        """Feed one input and carry its effects out, which are returned; None: one of them has ended the process."""
        effects = self.member.handle(what, self.monotonic_s())
        self.note_handled(what, effects)
        for effect in effects:
            self.carry_out(effect)
            if not self.goes_on:
                return None
        return effects

    # --- effects, the frequent ones first

    def carry_out(self, effect: fx.Effect) -> None:
        """Do what a driver would."""
        match effect:
            case fx.Send(link, frame):
                self.send_frame(link, frame)
            case fx.TurnDue() | fx.Committed():
                self.want_turn()
            case fx.Connect(link, address):
                self.open_link(link, address)
            case fx.Close(link, reason):
                self.close_link(link, reason)
            case fx.Ask():
                self.ask_peers(effect)
            case fx.ReadRecord(number):
                self.read_record(number)
            case fx.WriteRecord(number, expected, wanted):
                self.write_record(number, expected, wanted)
            case fx.Persist() | fx.TruncateLog() | fx.BeginCheckpoint() | fx.WriteCheckpoint() | fx.PersistVote():
                self.give_to_store(effect)
            case _:
                self._tell(effect)

    def _tell(self, effect: fx.Effect) -> None:
        match effect:
            case fx.StateChanged():
                self.note_state(effect)
            case fx.StatusChanged(status):
                self.note_status(status)
            case fx.EndClients():
                self.end_clients()
            case fx.Answered():
                self.note_answer(effect)
            case fx.Discarded():
                self.note_discarded(effect)
            case fx.Notice(_, text):
                self.note_line(text)
            case fx.CleanEnd(uuid):
                self.end_in_order(uuid)
            case fx.Stop(reason):
                self.end_for_good(reason)

    def note_handled(self, what: fx.Input, effects: list[fx.Effect]) -> None:
        """The member has handled `what`; nothing is carried out yet."""

    def send_frame(self, link: int, frame: Frame) -> None:
        """See `Send`."""

    def want_turn(self) -> None:
        """See `TurnDue`."""

    def open_link(self, link: int, address: str) -> None:
        """See `Connect`."""

    def close_link(self, link: int, reason: str) -> None:
        """See `Close`."""

    def ask_peers(self, asked: fx.Ask) -> None:
        """See `Ask`."""

    def read_record(self, number: int) -> None:
        """See `ReadRecord`."""

    def write_record(self, number: int, expected: ClusterRecord, wanted: ClusterRecord) -> None:
        """See `WriteRecord`."""

    def give_to_store(self, request: StoreRequest) -> None:
        """See each of them."""

    def note_state(self, change: fx.StateChanged) -> None:
        """See `StateChanged`."""

    def note_status(self, status: fx.MemberStatus) -> None:
        """See `StatusChanged`."""

    def end_clients(self) -> None:
        """See `EndClients`."""

    def note_answer(self, answer: fx.Answered) -> None:
        """See `Answered`."""

    def note_discarded(self, discarded: fx.Discarded) -> None:
        """See `Discarded`."""

    def note_line(self, text: str) -> None:
        """See `Notice`."""

    def end_in_order(self, uuid: str) -> None:
        """See `CleanEnd`."""

    def end_for_good(self, reason: str) -> None:
        """See `Stop`."""
