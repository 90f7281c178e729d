"""Links of a `PairedClient` whose attach says more than an address, and what the broker makes of them."""

from __future__ import annotations

from typing import Any

import proton

from paired_engines import PairedClient

UNDESCRIBED: Any = proton.UNDESCRIBED


def symbols(*names: str) -> proton.Array:
    return proton.Array(UNDESCRIBED, proton.Data.SYMBOL, *map(proton.symbol, names))


def subscribe(
    client: PairedClient,
    address: str | None,
    name: str = "link",
    *,
    capabilities: tuple[str, ...] = (),
    filters: dict[str, Any] | None = None,
    properties: dict[str, Any] | None = None,
    durable: bool = False,
    dynamic: bool = False,
    browse: bool = False,
    timeout_s: int = 0,
) -> Any:
    """A consumer's link whose attach has been answered."""
    link = client.session.receiver(name)
    if address is not None:
        link.source.address = address
    link.source.dynamic = dynamic
    if browse:
        link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
    if durable:
        link.source.durability = proton.Terminus.DELIVERIES
        link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
    link.source.timeout = timeout_s
    if capabilities:
        link.source.capabilities.put_object(symbols(*capabilities))
    if filters:
        described = {
            proton.symbol(each): proton.Described(proton.symbol(kind), value) for each, (kind, value) in filters.items()
        }
        link.source.filter.put_object(described)
    if properties:
        link.source.properties.put_object({proton.symbol(each): value for each, value in properties.items()})
    return client.attach(link)


def condition(link: Any) -> str | None:
    return link.remote_condition.name if link.remote_condition else None


def ask(client: PairedClient, operation: str, body: Any, **properties: Any) -> Any:
    """What `$management` answers."""
    replies, requests = client.receiver("$management", 10), client.sender("$management")
    request: Any = proton.Message(reply_to="$management", correlation_id=1, body=body)
    request.properties = {"operation": operation, **properties}
    client.send_all(requests, request)
    ((_, reply),) = client.received(replies)
    replies.close()
    requests.close()
    client.broker.settle_down()
    return reply


def status(client: PairedClient, operation: str, body: Any, **properties: Any) -> int:
    """The number with which `$management` answers."""
    return int(ask(client, operation, body, **properties).properties["statusCode"])
