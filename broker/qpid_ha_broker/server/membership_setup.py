"""How a broker's settings become a member of a cluster with its coordinator and its way to the other brokers."""

from __future__ import annotations

import random
import uuid
from typing import TYPE_CHECKING

from qpid_ha_broker.coordination.choice import make_coordinator
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.server.discarded import DiscardedMessages
from qpid_ha_broker.server.engines import PeerEngines
from qpid_ha_broker.server.member_settings import member_settings
from qpid_ha_broker.server.membership import Membership
from qpid_ha_broker.server.peer_channels import Dialler

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker


def make_membership(broker: Broker) -> Membership:
    """The part of `broker` in the cluster that its settings describe. Raises SettingsError."""
    settings = broker.current()
    member = Member(member_settings(settings, uuid.uuid4().hex), broker.container.resources, random.random)
    dialler = Dialler(settings.name, PeerEngines(broker.current))
    discarded = DiscardedMessages(settings.data_dir)
    return Membership(broker, member, dialler, make_coordinator(settings.ha.coordinator), discarded)
