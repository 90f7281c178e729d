"""Who keeps the record of a resource set, and what an operator can do about it: the words of what members refuse.

The rules are the same for each set; what is in the way is mended elsewhere.

| set | who has its record | who says who leads | an operator has |
| --- | --- | --- | --- |
| `default` | a coordinator (`ha.coordinator`), or nobody | an agent, Pacemaker, an operator | `qpid-ha promote` |
| any other | the controller, in the cluster map | the controller | `qpid-ha set` |
"""

from __future__ import annotations

from typing import Final, NamedTuple

FORCE: Final = "--force"
"""In each command that gives up what only others have."""


class RecordKeeper(NamedTuple):
    """Parts of sentences. `{theirs}` and `{ours}` are UUIDs of logs, `{broker}` is a name."""

    name: str
    """The subject: "the coordinator"."""
    look_around: str
    """What to do first where whoever is here may not be enough."""
    promote: str
    """What becomes of a better candidate, who follows in the sentence."""
    force: str
    """The command that gives up what only others have, for this broker."""
    force_on: str
    """The same for `{broker}`."""
    if_lost: str
    """What to do, in short, if what others held is lost for good."""
    foreign_log: str
    """Another broker, `{broker}`, has a log of another cluster."""
    foreign_backup: str
    """A backup has."""
    foreign_record: str
    """The record is of another cluster."""
    foreign_primary: str
    """Who leads, and what, with `brokers`, `ours`."""
    same_record: str
    """What to do where brokers go by two records."""
    foreign_candidate: str
    """What to do about that besides, for who would lead."""
    rewrite: str
    """How a record that was lost is made up for."""
    rewrite_leading: str
    """The same if who leads knows it."""
    alone: str
    """The addresses reach nobody else."""
    backups: str
    """The command that shows how far backups are."""


_PLACES: Final = "record.json, the node or key `record` of the namespace, or the property in the CIB"

COORDINATOR: Final = RecordKeeper(
    name="the coordinator",
    look_around="`qpid-ha activation list` shows what each one has",
    promote="promote",
    force="`qpid-ha promote --force`",
    force_on="`qpid-ha promote --force` on {broker}",
    if_lost="use --force",
    foreign_log=(
        "{broker} belongs to the cluster {theirs}, this broker to {ours}: take one of them out of ha.brokers-url"
    ),
    foreign_backup=(
        "it belongs to the cluster {theirs}, the primary to {ours}: set aside the store of the one that is not wanted"
        " (`qpid-ha store set-aside`), or correct its URL"
    ),
    foreign_record=(
        "the coordinator is of the cluster {theirs}, this broker of {ours}: correct ha.coordinator; if no such cluster"
        f" is there any more, delete its record ({_PLACES})"
    ),
    foreign_primary=(
        "{brokers} leads another cluster than this broker, of the same addresses ({ours} here): is ha.coordinator the"
        " same on all brokers? Stop the one that was not to begin, set its store aside (`qpid-ha store set-aside`), and"
        " start it again"
    ),
    same_record=(
        "make ha.coordinator the same on all brokers (the same place, too: `qpid-ha coordinator show` has its"
        " identity), and restart those that had another one"
    ),
    foreign_candidate=", and use `qpid-ha promote --force` on the broker that is furthest",
    rewrite=(
        "Have all brokers started, and use `qpid-ha promote --force` on the one that is furthest: it writes the record"
        " anew, and gives up what only others have confirmed"
    ),
    rewrite_leading="use `qpid-ha promote --force` on this one",
    alone="ha.brokers-url reaches only this broker: add the addresses of the others",
    backups="`qpid-ha backups`",
)
"""Of `default`. The words are the same where there is no coordinator: then there is no record to speak of."""


def controller_of(set_name: str) -> RecordKeeper:
    """Of a set other than `default`."""
    force_on = f"`qpid-ha set promote {set_name} {{broker}} --force`"
    by_itself = "the older one is set aside by itself once its broker knows all of the cluster map"
    return RecordKeeper(
        name="the controller",
        look_around=f"`qpid-ha store best --set {set_name}`, with all data directories, shows what each one has",
        promote="the controller asks",
        force=force_on,
        force_on=force_on,
        if_lost=f"use {force_on}",
        foreign_log=(
            f"{{broker}} has a replica of another set {set_name} ({{theirs}}), this broker of {{ours}}: {by_itself}"
        ),
        foreign_backup=(
            f"it has a replica of another set {set_name} ({{theirs}}), the primary of {{ours}}: put the store of the"
            f" older one out of the way (`qpid-ha store set-aside DIR/{set_name}`), and start that broker again"
        ),
        foreign_record=(
            f"the cluster map has another set {set_name} ({{theirs}}), this broker a replica of {{ours}}: {by_itself}"
        ),
        foreign_primary=f"{{brokers}} leads another set {set_name} than this broker ({{ours}} here): {by_itself}",
        same_record=by_itself,
        foreign_candidate="",
        rewrite=f"Have all brokers started; {force_on} gives up what only others have confirmed",
        rewrite_leading=f"{force_on} says that it is this one",
        alone="the addresses of the other replicas reach only this broker: see `qpid-ha brokers`",
        backups=f"`qpid-ha set show {set_name}`",
    )
