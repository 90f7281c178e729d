"""All that a diagnosis can find, in one table: how urgent it is, when it is found, and what it means for users.

docs/operations.md shows the table, and a test compares. The alert is the one of contrib/prometheus/alerts.yml for the
same condition, and the page says what to do (`PAGES`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple


class Severity(StrEnum):
    """The most urgent first."""

    CRITICAL = "critical"
    """Users notice it now, or messages are in danger."""
    WARNING = "warning"
    """The next failure would be noticed."""
    NOTICE = "notice"
    """Somebody should know."""


class FindingKind(NamedTuple):
    """`when`, `meaning`: a sentence each, without its full stop."""

    severity: Severity
    when: str
    meaning: str
    alert: str = ""
    """Empty: figures alone do not show it."""


_C, _W, _N = Severity.CRITICAL, Severity.WARNING, Severity.NOTICE

KINDS: Final[Mapping[str, FindingKind]] = MappingProxyType(
    {
        "nobody-answers": FindingKind(
            _C,
            "no broker of `ha.brokers-url` answers here",
            "either no client is served, or this machine is cut off from those that serve",
        ),
        "no-primary": FindingKind(
            _C,
            "none of the brokers that answer is primary",
            "no client is served; while brokers fail over this is so for some seconds",
            "QpidHaNoPrimary",
        ),
        "promotion-refused": FindingKind(
            _C,
            "nobody is primary, and a broker may not lead, or said why it was not promoted",
            "that broker may lack what was confirmed, and waits for others or for an operator",
        ),
        "two-primaries": FindingKind(
            _C,
            "more than one broker says that it is primary, of one cluster",
            "with one coordinator the one of the older generation confirms nothing; with two, or none, both may until"
            " they hear of each other, and then that one steps down",
            "QpidHaTwoPrimaries",
        ),
        "two-clusters": FindingKind(
            _C,
            "more than one broker says that it is primary, each of another cluster",
            "once they hear of each other only one that has more than half of all brokers in sync confirms; what is"
            " written to the one is not in the other",
        ),
        "two-coordinators": FindingKind(
            _C,
            "brokers go by different coordinators: their identities differ, whatever `ha.coordinator` says",
            "a broker whose record the cluster did not go by is not promoted, by force neither; two that lead are two"
            " clusters",
        ),
        "name-twice": FindingKind(
            _C,
            "two brokers have one name",
            "one of them can never follow, and when the primary dies nobody may lead",
        ),
        "commits-wait": FindingKind(
            _C,
            "a primary has committed nothing for more than a second, though something waits for it",
            "publishers get no confirmation; of `default`: nothing about resource sets can change either",
        ),
        "too-few-in-sync": FindingKind(
            _C,
            "fewer brokers are in sync than a write needs, of `default` or of another set",
            "publishers are refused or wait: nothing is confirmed",
            "QpidHaTooFewInSync",
        ),
        "set-without-primary": FindingKind(
            _C,
            "a resource set has no primary, or no member of a group serves",
            "clients of its queues are not served",
            "QpidHaSetWithoutPrimary",
        ),
        "group-withheld": FindingKind(
            _C,
            "a member of a group has waited for more than three seconds for others whom the record names, or for the"
            " record",
            "clients of its queues there get no confirmation and no message: there is no majority, or what should go on"
            " cannot be recorded",
        ),
        "store-cannot-write": FindingKind(
            _C,
            "the store of a broker is full or has failed",
            "what is published there is not confirmed",
            "QpidHaStoreCannotWrite",
        ),
        "messages-unreadable": FindingKind(
            _C,
            "a broker cannot read messages from its disk",
            "consumers do not get them, nor what comes after them in the same queue",
            "QpidHaMessagesUnreadable",
        ),
        "store-damaged": FindingKind(
            _C,
            "a store of this machine, whose broker does not run, is damaged or of a newer release",
            "the broker does not start with it, or only without that set",
        ),
        "data-dir-read-only": FindingKind(
            _C,
            "the file system of `data-dir` takes no writes",
            "the broker of this machine ends, or cannot start",
        ),
        "certificate-expired": FindingKind(
            _C,
            "a certificate of the configuration is valid no more, or not yet",
            "new TLS connections fail, of clients and between brokers",
        ),
        "login-refused": FindingKind(
            _W,
            "a broker is there, and does not let another one in",
            "those two cannot follow each other; the one that is refused can neither lead nor follow",
        ),
        "broker-silent": FindingKind(
            _W,
            "a broker answers nobody, neither here nor another broker",
            "the cluster has one less to fail over to",
            "QpidHaBrokerDown",
        ),
        "broker-not-running": FindingKind(
            _W,
            "the broker of this machine does not run",
            "the cluster has one less to fail over to; alone, it serves nobody",
            "QpidHaBrokerDown",
        ),
        "broker-hangs": FindingKind(
            _W,
            "the process of this machine's broker is there, and does not answer or was stopped by a signal",
            "its clients wait; a primary that hangs is replaced by its agents or by Pacemaker",
            "QpidHaBrokerDown",
        ),
        "link-broken": FindingKind(
            _W,
            "a broker answers here, and another broker cannot reach it",
            "those two cannot follow each other, and a promotion may lack an answer",
        ),
        "no-backup": FindingKind(
            _W,
            "the primary is alone in the in-sync set of a cluster",
            "its loss would lose the service until it is back, and without its disk the messages",
            "QpidHaNoBackup",
        ),
        "backup-not-following": FindingKind(
            _W,
            "there is a primary, and a broker follows nobody",
            "it is not there for a failover; its log names every address that it tried",
        ),
        "backup-expected": FindingKind(
            _W,
            "a broker of the in-sync set is not connected to the primary",
            "publishers wait for it, for `ha.backup-timeout` at most",
        ),
        "backup-lags": FindingKind(
            _W,
            "a backup has owed an acknowledgement for more than five seconds",
            "publishers wait for it, or it is not there for a failover",
            "QpidHaBackupLags",
        ),
        "paused": FindingKind(
            _W,
            "an operator has all agents pause",
            "no agent promotes, restarts or kills a broker: a primary that dies is not replaced",
            "QpidHaPaused",
        ),
        "set-below-replicas": FindingKind(
            _W,
            "a resource set has fewer replicas in sync than it wants, or one that has a problem",
            "the next failure costs more than it should",
        ),
        "group-transport": FindingKind(
            _W,
            "the Corosync of a broker that is a member of a group does not answer",
            "that broker has no part in its groups: clients are sent to others",
        ),
        "group-member-outside": FindingKind(
            _W,
            "a broker has been outside of a group that it is a member of for more than half a minute",
            "the next failure costs more than it should; what it lacks grows",
        ),
        "group-queue-stuck": FindingKind(
            _W,
            "a member of a group keeps a queue for which another one has waited for more than ten seconds",
            "consumers at the others get nothing of that queue",
        ),
        "sets-not-known": FindingKind(
            _W,
            "there are resource sets, and no controller tells of them",
            "sets go on where they are, and nobody is made primary of one whose broker fails",
        ),
        "controller-stopped": FindingKind(
            _W,
            "the controller has met a bug and decides nothing for a while",
            "sets go on where they are, and nobody is made primary of one whose broker fails",
        ),
        "coordinator-unusable": FindingKind(
            _W,
            "the coordinator cannot be reached from here, or its record is damaged",
            "nobody can be promoted, and no dead backup be dropped, by who cannot read it either",
        ),
        "coordinators-differ": FindingKind(
            _W,
            "brokers have another `ha.coordinator` than others",
            "each of them may have a primary of its own",
        ),
        "addresses-differ": FindingKind(
            _W,
            "brokers have another `ha.brokers-url` than others",
            "who is not named by all is not asked by all before a promotion",
        ),
        "agent-not-running": FindingKind(
            _W,
            "the configuration has a coordinator for agents, and no agent runs on this machine",
            "the broker of this machine is neither promoted nor started again when it must",
        ),
        "agent-silent": FindingKind(
            _W,
            "the agent of a broker has not asked it for its status for more than five seconds: it was stopped by a"
            " signal, hangs, or has died",
            "if that broker leads and dies, nobody starts it again, and others wait until the agent's lock runs out",
            "QpidHaAgentSilent",
        ),
        "fails-over-often": FindingKind(
            _W,
            "there were more than three failovers within an hour; what an operator or a switchover did, is none",
            "clients reconnect each time; something is wrong with a machine or the network",
            "QpidHaFailsOverOften",
        ),
        "memory-near-limit": FindingKind(
            _W,
            "a broker holds more than nine tenths of `memory-limit`",
            "beyond it publishers get no credit",
            "QpidHaMemoryNearLimit",
        ),
        "disk-nearly-full": FindingKind(
            _W,
            "less than a tenth of the disk of `data-dir` is free, and less than 20 GiB",
            "when it is full, what is published is not confirmed",
        ),
        "certificate-expires": FindingKind(
            _W,
            "a certificate of the configuration is valid for less than 30 days",
            "then new TLS connections fail",
        ),
        "configuration-invalid": FindingKind(
            _W,
            "the configuration file of this machine has a mistake",
            "a broker that runs goes on, and does not start again",
        ),
        "acl-file-invalid": FindingKind(
            _W,
            "the file of `acl.file` has a mistake",
            "the rules in force stay, and the broker does not start again",
        ),
        "everybody-administers": FindingKind(
            _W,
            "a rule of `acl` has everybody administer a broker",
            "any client may delete everything, and stop the broker: name who may in the rule, then reload",
        ),
        "acl-missing": FindingKind(
            _W,
            "a broker listens beyond loopback and has no `acl`",
            "clients of other machines are refused everything",
        ),
        "setting-not-in-force": FindingKind(
            _W,
            "a broker cannot put a setting of the cluster in force",
            "it goes by its own file in that: brokers differ, and so does what a failover brings",
        ),
        "audit-lines-lost": FindingKind(
            _W,
            "a broker could not write lines of its audit log since it was started",
            "acts were carried out that nobody can read of there",
        ),
        "backup-catches-up": FindingKind(
            _N,
            "a broker is in `catchup`",
            "it is not there for a failover until it is level",
        ),
        "broker-draining": FindingKind(
            _N,
            "a broker is being drained, or is drained",
            "it gets no replicas of resource sets",
        ),
        "coordinator-moved": FindingKind(
            _N,
            "the coordinator has moved, and this machine's configuration names the old one",
            "brokers and agents find the way as long as the old one is there",
        ),
        "versions-differ": FindingKind(
            _N,
            "brokers run different versions",
            "an upgrade is under way, or was left half done",
        ),
        "clock-differs": FindingKind(
            _N,
            "the clock of a broker differs from this machine's by more than two seconds",
            "times in logs do not compare, and a pause ends at different moments; messages expire by the time that"
            " passes, but where the clock was set while a machine was off",
        ),
        "message-clock-differs": FindingKind(
            _N,
            "the clock by which messages of `default` expire is more than two seconds off a broker's time of day",
            "the time of day was set: messages live as long as they were given; `expires_at` in journals is off by it",
        ),
        "messages-discarded": FindingKind(
            _N,
            "a broker has set messages aside that the cluster went on without",
            "some were perhaps confirmed: only somebody who knows the application can tell",
            "QpidHaMessagesDiscarded",
        ),
        "queue-is-full": FindingKind(
            _N,
            "a queue has reached its limit, and refuses what is published",
            "its publishers are refused until somebody consumes",
        ),
        "queue-is-not-read": FindingKind(
            _N,
            "a queue has messages and no consumer, and grew during the look",
            "what is in it reaches nobody, and takes room",
            "QpidHaQueueIsNotRead",
        ),
    }
)
"""By key; of the same severity, what comes first is to be mended first."""
PAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "nobody-answers": "runbooks/nobody-is-primary.md",
        "no-primary": "runbooks/nobody-is-primary.md",
        "promotion-refused": "runbooks/promote-was-refused.md",
        "two-primaries": "runbooks/two-primaries.md",
        "two-clusters": "runbooks/two-primaries.md",
        "two-coordinators": "runbooks/two-primaries.md",
        "name-twice": "runbooks/two-primaries.md",
        "commits-wait": "runbooks/publishers-hang.md",
        "too-few-in-sync": "runbooks/publishers-hang.md",
        "set-without-primary": "runbooks/set-without-primary.md",
        "group-withheld": "groups.md#when-something-fails",
        "store-cannot-write": "runbooks/full-disk.md",
        "messages-unreadable": "runbooks/lost-disk.md",
        "store-damaged": "runbooks/lost-disk.md",
        "data-dir-read-only": "runbooks/full-disk.md",
        "certificate-expired": "runbooks/certificates.md",
        "login-refused": "runbooks/broker-is-away.md",
        "broker-silent": "runbooks/broker-is-away.md",
        "broker-not-running": "runbooks/broker-is-away.md",
        "broker-hangs": "runbooks/broker-is-away.md",
        "link-broken": "runbooks/broker-is-away.md",
        "no-backup": "runbooks/broker-is-away.md",
        "backup-not-following": "runbooks/broker-is-away.md",
        "backup-expected": "runbooks/publishers-hang.md",
        "backup-lags": "runbooks/publishers-hang.md",
        "paused": "runbooks/maintenance.md",
        "set-below-replicas": "cluster.md#how-many-replicas",
        "group-transport": "groups.md#corosync",
        "group-member-outside": "groups.md#when-something-fails",
        "group-queue-stuck": "groups.md#when-something-fails",
        "sets-not-known": "runbooks/set-without-primary.md",
        "controller-stopped": "runbooks/set-without-primary.md",
        "coordinator-unusable": "runbooks/coordinator-out-of-reach.md",
        "coordinators-differ": "runbooks/two-primaries.md",
        "addresses-differ": "runbooks/two-primaries.md",
        "agent-not-running": "runbooks/broker-is-away.md",
        "agent-silent": "runbooks/broker-is-away.md",
        "fails-over-often": "runbooks/failover.md",
        "memory-near-limit": "runbooks/publishers-hang.md",
        "disk-nearly-full": "runbooks/full-disk.md",
        "certificate-expires": "runbooks/certificates.md",
        "configuration-invalid": "settings.md",
        "acl-file-invalid": "security.md#access-control",
        "everybody-administers": "security.md#access-control",
        "acl-missing": "security.md#without-rules",
        "setting-not-in-force": "operations.md#settings-of-the-cluster",
        "audit-lines-lost": "security.md#audit-log",
        "backup-catches-up": "states.md#catchup",
        "broker-draining": "runbooks/stop-a-broker-with-sets.md",
        "coordinator-moved": "coordinators.md#move-to-another-one",
        "versions-differ": "runbooks/rolling-upgrade.md",
        "clock-differs": "architecture.md#by-what-time-a-message-expires",
        "message-clock-differs": "architecture.md#by-what-time-a-message-expires",
        "messages-discarded": "runbooks/discarded-messages.md",
        "queue-is-full": "queues.md",
        "queue-is-not-read": "queues.md",
    }
)
"""What to read of each, below docs/: a runbook, or where the subject is."""
_ORDER: Final = {key: place for place, key in enumerate(KINDS)}
_URGENCY: Final = {severity: place for place, severity in enumerate(Severity)}


def table_in_markdown() -> str:
    """The table, as docs/operations.md shows it."""
    heading = "| finding | severity | when | what it means | alert |\n| --- | --- | --- | --- | --- |"
    rows = [
        f"| [`{key}`]({_from_operations(PAGES[key])}) | {kind.severity} | {kind.when} | {kind.meaning}"
        f" | {f'`{kind.alert}`' if kind.alert else ''} |"
        for key, kind in KINDS.items()
    ]
    return "\n".join([heading, *rows])


def _from_operations(page: str) -> str:
    """As a link on docs/operations.md."""
    return page.removeprefix("operations.md")


class Finding(NamedTuple):
    """One thing that is wrong. `about`: which broker, set, queue or file; empty: the cluster.

    `text`: what is wrong, with names and numbers. `commands`: what helps, to be typed as they are.
    """

    key: str
    about: str
    text: str
    commands: tuple[str, ...]

    @property
    def kind(self) -> FindingKind:
        """Its row of the table."""
        return KINDS[self.key]

    @property
    def page(self) -> str:
        """Where it is said what to do."""
        return f"docs/{PAGES[self.key]}"

    @property
    def urgency(self) -> tuple[int, int, str]:
        """To sort by."""
        return _URGENCY[self.kind.severity], _ORDER[self.key], self.about

    def as_document(self) -> dict[str, object]:
        """For programs."""
        return {
            "key": self.key, "severity": self.kind.severity.value, "about": self.about, "text": self.text,
            "meaning": self.kind.meaning, "commands": list(self.commands), "alert": self.kind.alert or None,
            "page": self.page,
        }  # fmt: skip
