"""Becoming the one who writes: everything that is held counts from now on.

In a cluster the log says so: a generation begins. A standalone broker goes on with the log as it is, and begins none:
nobody else has to know, and a generation is evidence. Where a coordinator has no record yet it would prove that the
record was lost, and to other brokers that there was a cluster without them; so a standalone broker that is made a
member of a cluster later would be refused with what is in its store.
"""

from __future__ import annotations

from qpid_ha_broker.events.types import GenerationStarted, InSyncChanged, TransientsLost
from qpid_ha_broker.ha.backup import Backup
from qpid_ha_broker.ha.in_sync import Change
from qpid_ha_broker.ha.keeping import Keeping
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.promotion import Granted, Promotion
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.model.configuration import Configuration


def take_command(
    around: Surroundings, tail: Tail, keeping: Keeping, backup: Backup, promotion: Promotion, granted: Granted
) -> Primary:
    """Apply what is held, and begin the generation: its first events say who commands, and who is in sync."""
    committed, lacks_transient = backup.committed_lsn, backup.lacks_transient
    _apply_all(around, tail, backup)
    resources = around.resources
    accept, name = granted.accept, around.settings.name
    change = Change(accept.epoch, accept.members)
    primary = Primary(around, tail, keeping, accept.generation, change, min(committed, resources.log.last_lsn))
    start_lsn = _begin_generation(around, promotion, granted)
    primary.began(start_lsn, resources.log.last_lsn)
    if lacks_transient:  # who was not restarted still has them: from here on nobody does
        resources.write(TransientsLost(start_lsn))
    _open(around)
    around.note("info", f"Promoted to primary: generation {accept.generation} from LSN {start_lsn}; {accept.text}")
    if accept.is_forced:
        around.note("warning", "promoted by force: messages that only other brokers hold are given up")
    recovering = [member for member in accept.members if member != name]
    if recovering:
        around.note("info", f"Recovering backups: {', '.join(recovering)}")
    around.want_turn()
    return primary


def lead_alone(around: Surroundings, tail: Tail, keeping: Keeping, backup: Backup) -> Primary:
    """Apply what is held, and go on: of a standalone broker, which is the whole in-sync set."""
    _apply_all(around, tail, backup)
    resources, newest = around.resources, backup.newest_generation()
    generation = 0 if newest is None else newest.generation
    change = Change(resources.state.in_sync.epoch, (around.settings.name,))
    primary = Primary(around, tail, keeping, generation, change, resources.log.last_lsn)
    _open(around)
    around.want_turn()
    return primary


def _apply_all(around: Surroundings, tail: Tail, backup: Backup) -> None:
    backup.promoted()
    last_lsn = around.resources.log.last_lsn
    if tail.last_lsn != last_lsn:
        tail.reset(last_lsn)


def _open(around: Surroundings) -> None:
    """For clients: what each of them relies on is there, and what was theirs waits for them."""
    Configuration(around.resources).declare_standard_exchanges()
    around.resources.take_over(around.wall_ms, int(around.settings.backup_timeout_s * 1000))


def _begin_generation(around: Surroundings, promotion: Promotion, granted: Granted) -> int:
    accept, settings = granted.accept, around.settings
    cluster = granted.cluster or settings.instance  # the first primary's UUID names the cluster
    started = GenerationStarted(
        accept.generation, settings.name, cluster, around.wall_ms, accept.is_forced, promotion.cause
    )
    start_lsn = around.resources.write(started)
    around.resources.write(InSyncChanged(accept.epoch, accept.members))
    return start_lsn
