"""What can be seen of a member: for operators, for the driver, and for other brokers that ask."""

from __future__ import annotations

from collections.abc import Callable

from qpid_ha_broker.events.types import InSyncChanged
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup import Backup
from qpid_ha_broker.ha.claims import Claims
from qpid_ha_broker.ha.closing import Closing
from qpid_ha_broker.ha.departure import Departure
from qpid_ha_broker.ha.filing import Filing
from qpid_ha_broker.ha.keeping import Keeping, Restored
from qpid_ha_broker.ha.primary import WITNESS, Primary
from qpid_ha_broker.ha.promotion import Own, Promotion
from qpid_ha_broker.ha.reports import backup_facts, history_facts
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import Cause, Phase, State, StateMachine
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.ha.uncertain_write import UncertainWrite
from qpid_ha_broker.model.resource_set import ResourceSet


class MemberView:
    """A member's parts, and every question about them; nothing here changes anything but the settings and the time."""

    def __init__(
        self, settings: MemberSettings, resources: ResourceSet, random: Callable[[], float], restored: Restored
    ) -> None:
        self._around = Surroundings(settings, resources, random)
        self._resources = resources
        self.is_standalone = settings.is_standalone
        """It is in no cluster, for as long as the process lives."""
        if settings.has_witness:
            resources.log.add_witness(WITNESS)
        held_lsn = restored.held[-1].last_lsn if restored.held else resources.log.last_lsn
        self._tail = restored.tail or Tail(settings.tail_bytes, held_lsn)
        if self._tail.last_lsn != held_lsn:
            self._tail.reset(held_lsn)
        self._machine = StateMachine(State.LOADING)
        if not settings.is_standalone:
            self._machine.move(Cause.LOADED)
        self._keeping = Keeping(self._around, held_lsn)
        self._backup = Backup(self._around, self._tail, self._keeping, restored)
        self._primary: Primary | None = None
        self._promotion: Promotion | None = None
        self._claims = Claims(self._around, restored)
        self._uncertain = UncertainWrite(self._around, self._claims)
        self._filing = Filing(self._around)
        self._phase: Phase | None = None
        self._departure = Departure(self._around)
        self._closing = Closing(self._around)
        self._stopped = False
        self._refusal = ""
        """Of the last promotion, until this broker has a primary or is one."""

    @property
    def wall_ms(self) -> int:
        """The time of day, for time stamps only; the driver sets it."""
        return self._around.wall_ms

    @wall_ms.setter
    def wall_ms(self, value: int) -> None:
        self._around.wall_ms = value

    @property
    def settings(self) -> MemberSettings:
        """The settings in force; others may be put in their place at any time."""
        return self._around.settings

    @settings.setter
    def settings(self, value: MemberSettings) -> None:
        self._around.settings = value
        if self._primary is not None:
            self._primary.settings_changed()

    @property
    def state(self) -> State:
        """Connecting, catchup, ready, primary or stopping; standalone in no cluster, and loading until it has begun."""
        return self._machine.state

    @property
    def phase(self) -> Phase | None:
        """Of a primary."""
        return self._primary.phase if self._primary is not None else None

    @property
    def generation(self) -> int:
        """The newest in this broker's log; 0 for an empty one."""
        newest = self._backup.newest_generation()
        return newest.generation if newest is not None else 0

    @property
    def epoch(self) -> int:
        """Of the in-sync set that this broker knows of."""
        return self._in_sync().epoch

    @property
    def members(self) -> tuple[str, ...]:
        """The in-sync set that this broker knows of."""
        return self._in_sync().members

    @property
    def position(self) -> fr.Position:
        """The end of this broker's log."""
        return fr.Position(self.generation, self._backup.held_lsn)

    @property
    def primary_name(self) -> str:
        """Who is primary, as far as this broker knows; empty: nobody."""
        return self._around.settings.name if self._primary is not None else self._backup.primary

    @property
    def login_problem(self) -> str:
        """Why another broker does not let this one in; empty: none says so, or nobody has to."""
        return "" if self._primary is not None else self._backup.login_problem

    @property
    def primary_address(self) -> str:
        """Where clients find the primary; empty when this broker does not know, or is it."""
        if self._primary is not None or not self._backup.primary:
            return ""
        return self._backup.clients_url or self._backup.address

    @property
    def cluster(self) -> str:
        """The UUID of this broker's log; empty for an empty one."""
        newest = self._backup.newest_generation()
        return newest.cluster if newest is not None else ""

    @property
    def committed_lsn(self) -> int:
        """Up to there nobody can take anything back, as far as this broker knows."""
        return self._resources.log.committed_lsn if self._primary is not None else self._backup.committed_lsn

    @property
    def store(self) -> fr.Store:
        """Where what this broker holds comes from."""
        return self._backup.store

    @property
    def is_chosen(self) -> bool:
        """All stores were compared, and the one with which this broker came back is the one to begin with."""
        return self._backup.is_chosen

    @property
    def problem(self) -> str:
        """What keeps a primary from recording changes of the in-sync set, or whoever has no primary from following one
        or from being it.

        With what to do; empty: nothing that is known.
        """
        return self._filing.problem if self._primary is not None else self.login_problem or self._refusal

    @property
    def is_closing(self) -> bool:
        """Whether clients are not served any more, because the whole cluster ends."""
        return self._closing.is_under_way

    @property
    def has_work(self) -> bool:
        """Whether another turn would bring a backup further at once."""
        return self._primary is not None and self._primary.has_work

    def backups(self) -> list[dict[str, object]]:
        """Of a primary: each backup with its lag."""
        return [] if self._primary is None else backup_facts(self._primary, self._tail.last_lsn, self._around.clock_s)

    def history(self) -> list[dict[str, object]]:
        """The generations of this broker's log."""
        return history_facts(self._backup.generations())

    def status(self, number: int = 0, granted: bool = True, text: str = "") -> fr.Answer:
        """What this broker answers to another one."""
        settings, in_sync = self._around.settings, self._in_sync()
        promised, promised_to = self._claims.promised
        return fr.Answer(
            number, settings.name, settings.instance, self.cluster, self.state.value, self.generation, in_sync.epoch,
            in_sync.members, self._backup.newest_in_sync().members, self._backup.held_lsn, self._backup.complete,
            promised, promised_to, granted, text, settings.min_in_sync, self._backup.store,
        )  # fmt: skip

    def _in_sync(self) -> InSyncChanged:
        return self._backup.in_sync()

    def _own(self) -> Own:
        newest = self._backup.newest_generation()
        primary = newest.primary if newest is not None else ""
        return Own(
            self.status(), primary, self._backup.is_chosen, self._claims.own_claim, self._backup.committed_in_sync(),
            self._filing.confirmed,
        )  # fmt: skip
