"""Which figures there are: names, kinds, units and labels by Prometheus' conventions, in tables.

A name ends with its unit, seconds or bytes, and that of a counter with `_total`. docs/monitoring.md is for operators,
and a test compares it with these tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple


class FamilyKind(StrEnum):
    """As Prometheus calls them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """All samples of one name."""

    name: str
    kind: FamilyKind
    help: str
    labels: tuple[str, ...] = ()


def _table(*rows: Family) -> dict[str, Family]:
    return {row.name: row for row in rows}


_G, _C, _H = FamilyKind.GAUGE, FamilyKind.COUNTER, FamilyKind.HISTOGRAM
_SET, _BACKUP = ("set",), ("set", "backup")

PROCESS: Final = _table(
    Family("process_cpu_seconds_total", _C, "Processor time that the process has used."),
    Family("process_resident_memory_bytes", _G, "Memory of the process that is in RAM."),
    Family("process_start_time_seconds", _G, "When the process began, since the Unix epoch."),
    Family("process_open_fds", _G, "File descriptors that are open."),
    Family("process_max_fds", _G, "File descriptors that may be open."),
)
"""Under the names that they have everywhere."""

BROKER: Final = _table(
    Family("qpid_ha_build_info", _G, "Always 1; the label says which version runs.", ("version",)),
    Family("qpid_ha_state", _G, "1 for the state that the broker is in for the set default.", ("state",)),
    Family("qpid_ha_paused", _G, "1 while an operator has all agents pause."),
    Family("qpid_ha_agent_silent_seconds", _G, "Since the agent asked this broker last; only where one ever did."),
    Family("qpid_ha_connections", _G, "Connections of clients and of other brokers."),
    Family("qpid_ha_unopened_connections", _G, "Connections on which no AMQP open has come yet."),
    Family("qpid_ha_sessions", _G, "Sessions of clients, with those that wait for theirs."),
    Family("qpid_ha_relayed_links", _G, "Links of clients that are relayed to other brokers."),
    Family("qpid_ha_exchanges", _G, "Exchanges, with those that are always there."),
    Family("qpid_ha_message_memory_bytes", _G, "What the messages of all sets take in memory, roughly."),
    Family("qpid_ha_memory_limit_bytes", _G, "From so much on publishers get no credit."),
    Family("qpid_ha_loop_lag_seconds", _H, "How late the broker's loop came to something that was due."),
    Family("qpid_ha_confirm_latency_seconds", _H, "From writing an event to its commit, in sets that are led here."),
    Family("qpid_ha_store_sync_seconds", _H, "How long a write to a journal and its sync took."),
    Family("qpid_ha_promotions_total", _C, "How often this broker became primary of the set default."),
    Family("qpid_ha_step_downs_total", _C, "How often this broker ceased to be primary of the set default."),
    Family("qpid_ha_catch_ups_total", _C, "How often this broker began to catch up with a primary of default."),
    Family("qpid_ha_controller_broker_failures_total", _C, "Brokers that failed, counted by this controller."),
    Family("qpid_ha_controller_orders_total", _C, "Orders that this controller has given."),
    Family(
        "qpid_ha_requests_refused_total",
        _C,
        "Requests of operators and agents that were refused.",
        ("method", "reason"),
    ),
    Family("qpid_ha_access_denied_total", _C, "What access control has denied, by action.", ("action",)),
    Family("qpid_ha_limits_refused_total", _C, "What limits of users have refused, by kind of limit.", ("limit",)),
    Family("qpid_ha_bugs_total", _C, "Bugs that came up on what a peer sent, and ended its link or connection."),
    Family("qpid_ha_audit_lines_lost_total", _C, "Lines that could not be written to the audit log."),
    Family("qpid_ha_http_requests_total", _C, "Answers of the HTTP port.", ("path", "status")),
    Family("qpid_ha_http_wrong_tokens_total", _C, "Requests with a token that nobody has."),
    Family("qpid_ha_http_refused_connections_total", _C, "HTTP connections for which there was no room."),
    Family("qpid_ha_scrape_duration_seconds", _G, "How long the last scrape took, with what was done beside it."),
)
"""Once for each broker."""

SETS: Final = _table(
    Family("qpid_ha_set_leading", _G, "1 for a set that this broker leads.", _SET),
    Family("qpid_ha_set_generation", _G, "Grows with each new primary of the set.", _SET),
    Family("qpid_ha_set_in_sync_brokers", _G, "Brokers in the in-sync set; only of who leads or follows.", _SET),
    Family("qpid_ha_set_min_in_sync_brokers", _G, "With fewer in sync nothing is confirmed.", _SET),
    Family("qpid_ha_set_last_lsn", _G, "Where the log of the set ends here.", _SET),
    Family("qpid_ha_set_committed_lsn", _G, "Up to where the log is committed, as far as this broker knows.", _SET),
    Family("qpid_ha_set_queues", _G, "Queues of the set.", _SET),
    Family("qpid_ha_set_messages", _G, "Messages in all queues of the set.", _SET),
    Family("qpid_ha_set_message_bytes", _G, "Bytes of payload in all queues of the set.", _SET),
    Family("qpid_ha_set_enqueued_messages_total", _C, "Messages that came into queues of the set.", _SET),
    Family("qpid_ha_set_dequeued_messages_total", _C, "Messages that left queues of the set.", _SET),
    Family("qpid_ha_set_unroutable_messages_total", _C, "Messages for which an exchange had no queue.", _SET),
    Family("qpid_ha_set_duplicate_messages_total", _C, "Messages that were sent again and dropped.", _SET),
    Family("qpid_ha_set_dropped_dead_letters_total", _C, "Dead letters that had nowhere to go.", _SET),
    Family("qpid_ha_set_overrun_queues_total", _C, "Queues that were deleted because nobody read them.", _SET),
    Family("qpid_ha_set_discarded_messages_total", _C, "Messages of a log that the cluster did not go on with.", _SET),
    Family(
        "qpid_ha_set_replica_lag_seconds", _G, "Since the primary was heard here; only where a backup is level.", _SET
    ),
    Family("qpid_ha_set_backup_in_sync", _G, "1 for a backup that is in the in-sync set.", _BACKUP),
    Family(
        "qpid_ha_set_backup_connected", _G, "1 for a backup that is connected; 0: the primary waits for it.", _BACKUP
    ),
    Family("qpid_ha_set_backup_lag_events", _G, "Events that a backup has not acknowledged.", _BACKUP),
    Family("qpid_ha_set_backup_lag_bytes", _G, "Bytes that a backup was sent and has not acknowledged.", _BACKUP),
    Family("qpid_ha_set_backup_lag_seconds", _G, "For how long a backup has owed an acknowledgement.", _BACKUP),
    Family("qpid_ha_set_group_multicasts_total", _C, "Batches that this member of a group has multicast.", _SET),
    Family("qpid_ha_set_group_multicast_bytes_total", _C, "Bytes of those batches.", _SET),
    Family("qpid_ha_set_group_delivered_batches_total", _C, "Batches of all members that were delivered here.", _SET),
    Family("qpid_ha_set_group_views_total", _C, "How often who is in the group changed, as delivered here.", _SET),
    Family("qpid_ha_set_group_queue_moves_total", _C, "How often this member came to hand out from a queue.", _SET),
    Family("qpid_ha_set_store_healthy", _G, "1: the store writes; 0: its disk is full, or it has failed.", _SET),
    Family("qpid_ha_set_journal_written_bytes_total", _C, "Bytes that were given to the journal.", _SET),
    Family(
        "qpid_ha_set_journal_closed_bytes", _G, "Bytes in files of the journal that are closed and not folded.", _SET
    ),
    Family("qpid_ha_set_snapshot_bytes", _G, "Size of the last snapshot.", _SET),
    Family("qpid_ha_set_paged_bytes", _G, "Bytes of payload that are on disk alone.", _SET),
    Family("qpid_ha_set_unreadable_messages", _G, "Messages that cannot be read from disk any more.", _SET),
)
"""Once for each resource set of which this broker has a replica, or for each of its backups."""

_QUEUE = ("queue", "set")
QUEUES: Final = _table(
    Family("qpid_ha_queue_messages", _G, "Messages in the queue, with those that somebody has.", _QUEUE),
    Family("qpid_ha_queue_message_bytes", _G, "Bytes of payload in the queue.", _QUEUE),
    Family("qpid_ha_queue_acquired_messages", _G, "Messages that consumers have and have not answered.", _QUEUE),
    Family("qpid_ha_queue_scheduled_messages", _G, "Messages that wait for their time.", _QUEUE),
    Family("qpid_ha_queue_consumers", _G, "Consumers, with those that only browse.", _QUEUE),
    Family(
        "qpid_ha_queue_oldest_message_age_seconds", _G, "Since the oldest message came; 0: the queue is empty.", _QUEUE
    ),
    Family("qpid_ha_queue_enqueued_messages_total", _C, "Messages that came into the queue.", _QUEUE),
    Family("qpid_ha_queue_dequeued_messages_total", _C, "Messages that left the queue.", _QUEUE),
)
"""Once for each queue that metrics.queues names, in the order of `QueueFigures.values`."""
QUEUES_SHOWN: Final = _table(
    Family("qpid_ha_queues_shown", _G, "Queues with figures of their own here."),
    Family("qpid_ha_queues_left_out", _G, "Queues without: see metrics.queues and metrics.max-queues."),
)


def all_families() -> Iterable[Family]:
    """Each of them."""
    for table in (PROCESS, BROKER, SETS, QUEUES, QUEUES_SHOWN):
        yield from table.values()
