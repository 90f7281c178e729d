"""What a queue of a group cannot be, because it would have to know what only one broker at a time knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues.queue_arguments import FullPolicy, QueueArguments

_REFUSED: Final[Mapping[str, tuple[Callable[[QueueArguments], object], str]]] = {
    "exclusive": (lambda wanted: wanted.exclusive, "who came first is not known where somebody attaches"),
    "qpid.auto_delete": (lambda wanted: wanted.auto_delete, "who uses it at other brokers is not known"),
    "qpid.policy_type": (
        lambda wanted: wanted.policy_type is not FullPolicy.REJECT,
        "what is on its way from other brokers is not known where room is to be made",
    ),
    "qpid.last_value_queue_key": (
        lambda wanted: wanted.last_value_queue_key,
        "what is outdated by messages on their way from other brokers is not known",
    ),
    "qpid.cluster_source": (lambda wanted: wanted.cluster_source, "one broker alone can fetch messages"),
    "qpid.cluster_proxy": (lambda wanted: wanted.cluster_proxy, "one broker alone can hand messages on"),
    "qpid.subscription": (lambda wanted: wanted.subscription, "a subscription is used by one client at a time"),
}
"""By argument: whether it is asked for, and why a group cannot have it."""


def check_for_group(wanted: QueueArguments, set_name: str) -> None:
    """Raises InvalidArgument."""
    for argument, (is_asked, why) in _REFUSED.items():
        if is_asked(wanted):
            raise InvalidArgument(
                f"{argument} is not for queues of a group, and {set_name} is one: {why}; use a set with a primary"
            )
