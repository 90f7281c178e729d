"""How a broker's settings become a member, of a cluster or of none, with its coordinator and its way to the others."""

from __future__ import annotations

import random
import time
import uuid

from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.frames import StoreOrigin as StoreState
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.server.peers.peer_channels import Dialler
from qpid_ha_broker.server.runtime.engines import PeerEngines
from qpid_ha_broker.server.runtime.member_settings import member_settings
from qpid_ha_broker.server.sets.membership import MemberHost, Membership
from qpid_ha_broker.server.stores.discarded import DiscardedMessages
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_config.settings import BrokerSettings


def make_membership(broker: MemberHost, store: Store | None, restored: Restored | None) -> Membership:
    """The part of `broker` in the cluster that its settings describe; `restored` is what it has from its store.

    Without `ha.cluster` it is a member that leads alone: see `ha.member`.

    Raises SettingsError, and StoreError for a store that the settings do not let in.
    """
    settings = broker.current()
    if restored is not None:
        check_dirty(settings, restored.store, DEFAULT_SET)
    resource_set = broker.container.default.resources.replicated

    def wall_ms() -> int:
        return int(time.time() * 1000)

    member = Member(
        member_settings(settings, uuid.uuid4().hex), resource_set, random.random, wall_ms, restored,
        broker.container.steady.now_ms,
    )  # fmt: skip
    dialler = Dialler(settings.name, PeerEngines(broker.current, broker.notices.fault))
    discarded = DiscardedMessages(settings.data_dir)
    coordinator = open_coordinator(settings.coordinator)
    return Membership(broker, member, dialler, coordinator, discarded, store)


def check_dirty(settings: BrokerSettings, found: StoreState, set_name: str) -> None:
    """Raises StoreError for the store of a set that `ha.dirty-store` does not let in."""
    if not settings.ha.cluster or found is not StoreState.DIRTY or settings.ha.dirty_store != "refuse":
        return
    where, best = f"{settings.data_dir}", "qpid-ha store best"
    if set_name != DEFAULT_SET:
        where, best = f"{settings.data_dir}/{set_name}", f"{best} --set {set_name}"
    raise StoreError(
        f"the store in {where} was not closed in order, and ha.dirty-store is refuse: compare it with"
        f" the others (`{best}`), then start this broker with ha.dirty-store=rejoin, or set it aside"
    )
