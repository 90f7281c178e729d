"""What the core of a cluster's member needs to know, out of a broker's settings."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.ha.settings import SILENCE_SHARE, MemberSettings
from qpid_ha_config.addresses import show_addresses
from qpid_ha_config.settings import BrokerSettings

REPLACE_HEARTBEATS = 2
"""Nobody replaces a primary that was silent for less."""
HEARTBEATS = 3
"""A channel on which nothing came for so many heartbeat intervals is lost."""
HOLD_SILENCES: Final = 4
"""In the time for which a container id is held without a primary."""
RELAY_SILENCE_LEAST_S: Final = 1.0
"""Brokers look four times a second whether they have to say that they are there."""


def member_settings(settings: BrokerSettings, instance: str, own_address: str = "") -> MemberSettings:
    """What the core needs to know. `own_address`: as far as it was found out.

    What the settings say of a cluster counts for a member of one only; no backup will ever ask for the tail of the log.
    """
    ha = settings.ha
    if not ha.cluster:
        return MemberSettings(settings.name, instance, (), tail_bytes=0, has_store=settings.has_store)
    addresses = tuple(str(address) for address in ha.brokers_url)
    own = [str(address) for address in ha.brokers_url if address in settings.listen]
    return MemberSettings(
        name=settings.name,
        instance=instance,
        addresses=addresses,
        own_address=own[0] if own else own_address if own_address in addresses else "",
        clients_url=show_addresses(ha.public_url),
        backup_timeout_s=ha.waits_for_backup_s,
        min_in_sync=ha.min_in_sync,
        most_in_sync=max(settings.replicas.of_default, ha.min_in_sync),
        heartbeat_interval_s=ha.link_heartbeat_interval_s,
        link_timeout_s=HEARTBEATS * ha.link_heartbeat_interval_s,
        replace_s=_replace_s(settings),
        tail_bytes=ha.tail_bytes,
        has_coordinator=not settings.coordinator.url.is_none,
        has_store=settings.has_store,
        auto_recover=ha.auto_recover,
    )


def _replace_s(settings: BrokerSettings) -> float:
    """Others need at least so long to replace a primary of which they hear nothing."""
    return min(REPLACE_HEARTBEATS * settings.ha.link_heartbeat_interval_s, settings.replicas.failure_timeout_s)


def reservation_hold_ms(settings: BrokerSettings) -> int:
    """So long a connection that alone has its container id goes on without a sign of who leads `default`. In it a
    primary is missed, replaced, and found: see `amqp.nodes.reservations`."""
    return int(HOLD_SILENCES * relay_silence_s(settings) * 1000)


def relay_silence_s(settings: BrokerSettings) -> float:
    """After so long without a sign of a primary, nothing that comes of it is passed on: see `amqp.relaying.silence`."""
    return max(SILENCE_SHARE * _replace_s(settings), RELAY_SILENCE_LEAST_S)
