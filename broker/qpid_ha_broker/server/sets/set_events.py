"""What becomes of a broker's part in a resource set, for who watches: see `model.exchanges.broker_events`."""

from __future__ import annotations

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import LEADING
from qpid_ha_broker.model.exchanges.broker_events import BrokerEvents, EventSubject
from qpid_ha_broker.model.logs.log import DEFAULT_SET

STORE_ALARM = "store"


class SetEvents:
    """Of one set. Each change is told once; of the in-sync set by the broker alone that leads."""

    def __init__(self, events: BrokerEvents, set_name: str, status: fx.MemberStatus) -> None:
        self._events = events
        self._set = set_name
        self._status = status
        """As it was told last."""

    def state_changed(self, change: fx.StateChanged) -> None:
        """The broker is in another state. That of `default` is what the broker is to its cluster."""
        self._tell_state(state=change.after.value, before=change.before.value, reason=change.reason)

    def status_changed(self, status: fx.MemberStatus) -> None:
        """Something else is known of it."""
        before, self._status = self._status, status
        if status.phase is not before.phase and status.phase is not None:
            self._tell_state(state=status.state.value, phase=status.phase.value)
        if status.primary != before.primary:
            facts = {"primary": status.primary, "address": status.primary_address}
            self._events.tell(EventSubject.PRIMARY_CHANGED, set=self._set, **facts)
        if status.state in LEADING and (status.epoch, status.members) != (before.epoch, before.members):
            self._tell_in_sync(before.members, status)
        if status.store_problem and not before.store_problem:
            self._events.tell(EventSubject.ALARM_RAISED, alarm=STORE_ALARM, set=self._set, reason=status.store_problem)
        elif before.store_problem and not status.store_problem:
            self._events.tell(EventSubject.ALARM_CLEARED, alarm=STORE_ALARM, set=self._set)

    def _tell_state(self, **facts: str) -> None:
        subject = EventSubject.BROKER_STATE if self._set == DEFAULT_SET else EventSubject.SET_STATE
        self._events.tell(subject, set=self._set, **facts)

    def _tell_in_sync(self, before: tuple[str, ...], status: fx.MemberStatus) -> None:
        joined = [name for name in status.members if name not in before]
        left = [name for name in before if name not in status.members]
        self._events.tell(
            EventSubject.IN_SYNC_CHANGED,
            set=self._set,
            epoch=status.epoch,
            members=",".join(status.members),
            joined=",".join(joined),
            left=",".join(left),
        )
