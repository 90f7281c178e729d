"""Names of arguments that other brokers have, and what is their counterpart here.

Definitions are translated by it, and who gives such a name here is told ours: it would be kept as an argument of the
application's own, and do nothing. docs/migrating.md has the same for people.

Source: RabbitMQ's documentation ("Queues", optional arguments; "Quorum Queues"; "Dead Letter Exchanges"), that of
ActiveMQ Artemis ("Address Settings"), and qpidd's.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Counterpart(NamedTuple):
    """Of one argument of another broker. `own` empty: there is none."""

    broker: str
    own: str = ""
    how: str = ""
    """What a value becomes, or what to do instead; empty: the value is the same."""
    is_needless: bool = False
    """Leaving it out changes nothing of what is promised here."""

    def advice(self, name: str) -> str:
        """For who has given `name`."""
        if self.own:
            return (
                f"{name} is an argument of {self.broker}: here it is {self.own}{f' ({self.how})' if self.how else ''}"
            )
        return f"{name} is an argument of {self.broker}, which does nothing here: {self.how or 'leave it out'}"


_RABBITMQ, _ARTEMIS, _QPIDD = "RabbitMQ", "ActiveMQ Artemis", "qpidd"
_BY_SET: Final = Counterpart(
    _RABBITMQ, how="every queue is replicated as its resource set is; leave it out", is_needless=True
)
RABBITMQ: Final = {
    "x-max-length": Counterpart(_RABBITMQ, "qpid.max_count"),
    "x-max-length-bytes": Counterpart(_RABBITMQ, "qpid.max_size"),
    "x-overflow": Counterpart(
        _RABBITMQ, "qpid.policy_type", "ring for drop-head, which is the default there, and reject for reject-publish"
    ),
    "x-message-ttl": Counterpart(_RABBITMQ, "qpid.message_ttl_ms"),
    "x-expires": Counterpart(_RABBITMQ, "qpid.auto_delete", "true, with qpid.auto_delete_delay_s in seconds"),
    "x-max-priority": Counterpart(_RABBITMQ, "qpid.priorities", "one more, 10 at most"),
    "x-delivery-limit": Counterpart(_RABBITMQ, "qpid.delivery_limit"),
    "x-dead-letter-exchange": Counterpart(_RABBITMQ, "qpid.alternate_exchange"),
    "x-single-active-consumer": Counterpart(_RABBITMQ, "qpid.single_active_consumer"),
    "x-dead-letter-routing-key": Counterpart(
        _RABBITMQ, how="dead letters keep their subject: bind to qpid.alternate_exchange by that"
    ),
    "x-dead-letter-strategy": Counterpart(
        _RABBITMQ, how="a dead letter leaves a queue in the transaction in which it comes into the next; leave it out"
    ),
    "x-queue-type": _BY_SET,
    "x-quorum-initial-group-size": _BY_SET,
    "x-quorum-target-group-size": _BY_SET,
    "x-queue-leader-locator": _BY_SET,
    "x-queue-master-locator": _BY_SET,
    "x-queue-mode": Counterpart(
        _RABBITMQ, how="store.memory bounds for all queues what is in memory; leave it out", is_needless=True
    ),
    "x-max-in-memory-length": Counterpart(_RABBITMQ, how="store.memory bounds for all queues what is in memory"),
    "x-max-in-memory-bytes": Counterpart(_RABBITMQ, how="store.memory bounds for all queues what is in memory"),
    "x-max-age": Counterpart(_RABBITMQ, how="there are no streams; leave it out"),
}
"""Of its queues."""
_ALTERNATE: Final = Counterpart(_RABBITMQ, "qpid.alternate_exchange")
OF_EXCHANGES: Final = {"alternate-exchange": _ALTERNATE, "x-alternate-exchange": _ALTERNATE}
"""Of exchanges, of which there are no others."""
FOREIGN: Final = {
    **RABBITMQ,
    **OF_EXCHANGES,
    "max-size-messages": Counterpart(_ARTEMIS, "qpid.max_count"),
    "max-size-bytes": Counterpart(_ARTEMIS, "qpid.max_size"),
    "address-full-policy": Counterpart(_ARTEMIS, "qpid.policy_type", "reject or ring"),
    "max-delivery-attempts": Counterpart(_ARTEMIS, "qpid.delivery_limit"),
    "dead-letter-address": Counterpart(_ARTEMIS, "qpid.alternate_exchange", "an exchange"),
    "redelivery-delay": Counterpart(_ARTEMIS, "qpid.redelivery_delay_ms"),
    "max-redelivery-delay": Counterpart(_ARTEMIS, "qpid.redelivery_delay_max_ms"),
    "last-value-key": Counterpart(_ARTEMIS, "qpid.last_value_queue_key"),
    "ring-size": Counterpart(_ARTEMIS, "qpid.max_count", "with qpid.policy_type ring"),
    "qpid.auto_delete_timeout": Counterpart(_QPIDD, "qpid.auto_delete_delay_s"),
    "qpid.browse-only": Counterpart(_QPIDD, how="browse it, with the distribution-mode copy"),
    "qpid.queue_msg_sequence": Counterpart(_QPIDD, how="each message has its id in qpid.message-id"),
    **{
        f"qpid.{name}": Counterpart(_QPIDD, how="publishers are slowed down by their credit; leave it out")
        for name in ("flow_stop_size", "flow_stop_count", "flow_resume_size", "flow_resume_count")
    },
    **{
        f"qpid.{name}": Counterpart(_QPIDD, how="alert by the metrics of the queue; leave it out")
        for name in ("alert_count", "alert_size", "alert_count_up", "alert_count_down", "alert_repeat_gap")
    },
}
"""Whatever they are of there."""
