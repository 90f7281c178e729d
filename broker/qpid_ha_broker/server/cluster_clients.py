"""What a client is told about a cluster: where the primary is, or why it is not served here."""

from __future__ import annotations

from qpid_ha_broker.amqp.conditions import CONNECTION_FORCED, AmqpError
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import State
from qpid_ha_config.addresses import Address
from qpid_ha_config.settings import HaSettings


def refusal(member: Member) -> AmqpError:
    """Why this broker, which is not primary, does not serve a client; with the way to the one that does, if known."""
    name, state = member.settings.name, member.status.state
    if state is State.PRIMARY:
        return AmqpError(CONNECTION_FORCED, f"broker {name} hands over: another broker is about to be primary")
    primary = _first_address(member.status.primary_address)
    if primary is None:
        text = f"broker {name} is {state}, not primary, and knows of no primary: try again, or another broker"
        return AmqpError(CONNECTION_FORCED, text)
    text = f"broker {name} is {state}; the primary is {member.status.primary} at {primary}"
    return AmqpError(CONNECTION_FORCED, text, {"network-host": primary.host, "port": primary.port})


def failover_servers(ha: HaSettings, member: Member) -> list[dict[str, object]]:
    """Where clients find the cluster, the primary first; entries as in the open property `failover-server-list`."""
    addresses = list(ha.public_url or ha.brokers_url) if ha.cluster else []
    primary = _first_address(member.status.primary_address or member.settings.own_address)
    if not member.status.primary_address and not member.status.primary:
        primary = None
    if primary in addresses:
        addresses.remove(primary)
        addresses.insert(0, primary)
    return [{"network-host": address.host, "port": address.port, "scheme": address.scheme} for address in addresses]


def _first_address(url: str) -> Address | None:
    try:
        return Address.parse(url.partition(",")[0])
    except ValueError:  # empty, or a peer's invention
        return None
