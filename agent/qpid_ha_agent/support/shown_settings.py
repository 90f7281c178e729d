"""Which settings a support bundle shows: a list, so that a new one is not shown before somebody has thought about it.

Of all others it says whether they are set. Those are secrets and where they lie, who may do what, logins elsewhere, and
programs with their arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SHOWN: Final = """
    name data-dir listen control-socket log-level log-file kernel
    max-connections max-connections-per-address max-unopened-connections max-sessions-per-connection
    max-links-per-connection max-unsettled-per-connection max-frame-size max-message-size max-transaction-messages
    memory-limit publisher-credit temporary-queue-size idle-timeout handshake-timeout stop-timeout
    link-heartbeat-interval auto-create auto-create-arguments jms-priorities address-rules
    tls.certificate tls.ca tls.require-client-certificate tls.versions tls.ciphers
    store.enabled store.segment-size store.consolidate-at store.memory store.io-uring
    deduplication.producers sessions.max-timeout sessions.max
    admin.listen admin.amqp admin.amqp-origins metrics.queues metrics.max-queues
    ha.cluster ha.brokers-url ha.public-url ha.replicate replication-rules ha.backup-timeout ha.min-in-sync
    ha.confirm-dequeue ha.clients ha.sole-connections ha.mechanism ha.queue-replication ha.store-error ha.dirty-store
    ha.auto-recover ha.frame-stream
    ha.tail-size ha.proxy-idle resource-sets resource-sets.spread remote-check-interval
    ha.coordinator ha.coordinator-tls ha.coordinator-ca ha.coordinator-certificate ha.coordinator-timeout
    ha.coordinator-loss ha.failback ha.priority ha.failback-delay ha.virtual-ip ha.hook-timeout
    workers workers.listen worker
    ha.zone ha.min-replicas ha.default-replicas replica-policies ha.placement ha.failure-timeout
    ha.failure-recovery-interval ha.replica-check-interval ha.replica-additions ha.auto-trim
    group.transport group.window group.ownership-slice
"""
_WITHHELD: Final = """
    sasl.mechanisms sasl.users-db sasl.allow-anonymous sasl.allow-insecure-plain acl.rules acl.file tls.key admin.tokens
    audit.file
    ha.username ha.password ha.password-file remote-nodes remote-brokers
    ha.coordinator-username ha.coordinator-password-file ha.coordinator-key ha.on-promoted ha.on-demoted
"""
SHOWN: Final = frozenset(_SHOWN.split())
WITHHELD: Final = frozenset(_WITHHELD.split())
"""Known, and not shown. What is in neither list is not shown either; a test wants it in one of them."""


def shown_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """What may be shown of settings by dotted key, and the names of the others that have a value."""
    shown = {key: value for key, value in settings.items() if key in SHOWN}
    withheld = sorted(key for key, value in settings.items() if key not in SHOWN and value not in (None, [], {}, ""))
    return {"settings": shown, "set_and_not_shown": withheld}
