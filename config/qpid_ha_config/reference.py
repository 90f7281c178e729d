"""All settings with what each does, as a page and as entries: `python -m qpid_ha_config.reference > docs/settings.md`.

Kind, range, default, and whether a running broker takes a change are those of the table of settings: only what a
setting does is said here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from qpid_ha_config.settings import TABLE, SettingRow

SECTIONS: Final[dict[str, dict[str, str]]] = {
    "The broker": {
        "name": "Of the broker, in the cluster and in logs; no two of a cluster have one name.",
        "data-dir": "A directory of this broker alone. Left out: there is no store, and everything is in memory.",
        "listen": "Where clients and other brokers connect.",
        "control-socket": "Where `qpid-ha` finds the broker on this machine.",
        "log-level": "What is logged.",
        "log-file": "Where to; left out: the standard error.",
        "kernel": "Compiled code is used: `auto`, where it was built; `required`, else the broker does not start.",
        "auto-create": "A queue or topic that a client names and that is not there is made.",
        "address-rules": "What an address means that is no name of anything: a queue, a topic or an exchange.",
        "auto-create-arguments": "Arguments of queues that are made so, under those that the client asks for.",
        "jms-priorities": "Queues that JMS makes so have ten levels of priority; what is there stays as it is.",
        "stop-timeout": "So long a broker that is ended waits for what is under way.",
    },
    "Limits": {
        "memory-limit": "Bytes of messages in memory; publishers get no credit beyond it.",
        "publisher-credit": "Messages that a publisher may have under way.",
        "max-message-size": "Of one message; a longer one is refused.",
        "max-frame-size": "Of a frame of AMQP; messages may be longer.",
        "max-transaction-messages": "Messages of one transaction.",
        "max-connections": "Clients that have opened, without administrators; one more is told so and closed.",
        "max-connections-per-address": "Of those, from one IP address; raise it where all come through one proxy.",
        "max-unopened-connections": "Sockets without an open; beyond it the address that has most of them makes way.",
        "max-sessions-per-connection": "Sessions of AMQP that one connection may begin.",
        "max-links-per-connection": "Links that one connection may attach.",
        "max-unsettled-per-connection": "Messages that clients of one connection may hold without an answer.",
        "temporary-queue-size": "Bytes that wait for the reader of a temporary queue or subscription; 0: no limit."
        " `auto`: a 128th of `memory-limit`, 1 MiB at least.",
        "idle-timeout": "A peer that is silent for so long is gone; 0: never.",
        "handshake-timeout": "From accepting a socket to its open, TLS and login included.",
    },
    "TLS": {
        "tls.certificate": "What the broker shows of itself (PEM).",
        "tls.key": "Its key (PEM), readable by the broker's user alone.",
        "tls.ca": "Who signs certificates of clients and of other brokers; left out: the system's authorities.",
        "tls.require-client-certificate": "A client has to show a certificate: its subject is the user.",
        "tls.versions": "Versions of the protocol.",
        "tls.ciphers": "For TLS 1.2, as `openssl ciphers` writes them; left out: the library's own.",
    },
    "Logins, rules and the audit log": {
        "sasl.mechanisms": "Ways to log in; left out: all that are possible at a listener.",
        "sasl.users-db": "A file of users with passwords, under the cluster's; `qpid-ha user add --here` writes it.",
        "sasl.allow-anonymous": "Clients need no login; left out: only those of this machine.",
        "sasl.allow-insecure-plain": "Passwords may be said without TLS: whoever listens has them.",
        "acl.rules": "Who may do what; docs/security.md has the language.",
        "acl.file": "A file with these rules, which `qpid-ha acl reload` reads again.",
        "audit.file": "A line for each administrative act is added to it; left out: there is none.",
    },
    "The store": {
        "store.enabled": "`false`: no store, although there is a `data-dir`.",
        "store.segment-size": "Of a journal file; its room is taken when it is made.",
        "store.consolidate-at": "So much in closed journal files is folded into a snapshot, beside the broker.",
        "store.memory": "Above it the bodies of durable messages are left on disk. Default: half of `memory-limit`.",
        "store.io-uring": "The kernel writes and syncs by itself, where it has io_uring and allows it.",
    },
    "Producers and sessions of clients": {
        "deduplication.producers": "Producers of each user whose numbers are remembered; 0: numbers mean nothing.",
        "sessions.max-timeout": "So long a session may wait for its client, whatever that asks for.",
        "sessions.max": "Sessions at most, with those that wait; 0: none, and clients are told so.",
    },
    "HTTP and metrics": {
        "admin.listen": "Where the page, the metrics and requests over HTTP are; left out: nowhere.",
        "admin.amqp": "Clients may speak AMQP over WebSockets there, at `/amqp`.",
        "admin.amqp-origins": "Sites whose pages may do so; programs, which name none, may in any case.",
        "admin.tokens": "A file of tokens for it, under those of the cluster; `qpid-ha token add --here` writes it.",
        "metrics.queues": "Patterns of names of the queues that have metrics of their own.",
        "metrics.max-queues": "Of those at most so many, the older ones.",
    },
    "The cluster": {
        "ha.cluster": "The broker is one of a cluster.",
        "ha.brokers-url": "All brokers of the cluster, this one too.",
        "ha.public-url": "Where clients find them, if that is elsewhere.",
        "ha.clients": "What a client gets at a broker that does not lead: `redirect` says where to go, `proxy` relays.",
        "ha.sole-connections": "Where one is the only one with its client id that asks for that: at its `broker`, or"
        " with proxies in the `cluster`, at the price that one that comes after a failover waits for up to 10 s.",
        "ha.replicate": "What backups get of a queue that says nothing itself and matches no rule.",
        "replication-rules": "The same by patterns of names; the first counts.",
        "ha.min-in-sync": "Brokers that have to hold a message before it is confirmed.",
        "ha.confirm-dequeue": "A consumer's answer is confirmed when the backups have it, too.",
        "ha.backup-timeout": "A backup that owes an acknowledgement for so long is waited for no more.",
        "link-heartbeat-interval": "So often brokers say that they are there.",
        "ha.frame-stream": "Brokers talk to each other in frames of their own, where both can.",
        "ha.tail-size": "Bytes of the log that are kept for backups that come back.",
        "ha.queue-replication": "Copies of single queues of other clusters are allowed here (`qpid-ha replicate`).",
        "ha.proxy-idle": "A connection for links of clients to another broker is kept for so long without any.",
        "ha.username": "Who this broker is to the others, and who may administer from elsewhere.",
        "ha.password": "Of `ha.username`; better in a file.",
        "ha.password-file": "A file with the password in its first line.",
        "ha.mechanism": "How it logs in to the others; left out: the strongest that both have.",
        "ha.store-error": "What a backup does whose disk fails: `abort` ends it, `continue` goes on in memory.",
        "ha.dirty-store": "What to do with a store that was not closed in order: `rejoin`, or `refuse` to start.",
        "ha.auto-recover": "After a crash of everybody lead again, once all who may hold more are here.",
    },
    "Who leads": {
        "ha.coordinator": "Who keeps the cluster's record, and gives the right to lead.",
        "ha.coordinator-username": "Who this broker and its agent are to it.",
        "ha.coordinator-password-file": "A file with the password in its first line.",
        "ha.coordinator-tls": "TLS to it.",
        "ha.coordinator-ca": "Who signs its certificate (PEM); left out: the system's authorities.",
        "ha.coordinator-certificate": "What is shown to it (PEM).",
        "ha.coordinator-key": "The key of that (PEM).",
        "ha.coordinator-timeout": "It gives the lock of an agent that was silent for so long to another one.",
        "ha.coordinator-loss": "What a primary does that cannot reach it: `continue`, or `stop`.",
        "ha.failback": "`preferred`: a primary hands over to a backup of higher priority.",
        "ha.priority": "Of this broker, for that.",
        "ha.failback-delay": "The backup has to be ready and in sync for so long.",
        "ha.virtual-ip": "An address that the agent puts on this machine while its broker is primary.",
        "ha.on-promoted": "A program that the agent runs when its broker has become primary.",
        "ha.on-demoted": "A program that it runs when it is primary no more.",
        "ha.hook-timeout": "After so long such a program is killed.",
    },
    "Resource sets": {
        "resource-sets": "Patterns of names of queues, and the set for them; the first counts.",
        "resource-sets.spread": "What no rule fits is in one of so many sets, made when needed; 0: in `default`.",
        "ha.zone": "What fails together with this broker, such as the name of a rack.",
        "ha.min-replicas": "Of a set that neither says it itself nor matches a policy.",
        "ha.default-replicas": "Brokers in sync with `default`, once there is another set; the others observe.",
        "replica-policies": "Patterns of names of sets, and how many replicas they want; the first counts.",
        "ha.placement": "How brokers for replicas are chosen: `spread`, `ring`, `static`, or one that was installed.",
        "ha.failure-timeout": "A broker that was silent for so long has failed.",
        "ha.failure-recovery-interval": "So long a broker may be away before its replicas are made up for.",
        "ha.replica-check-interval": "So often each set is checked for whether it has what it wants.",
        "ha.replica-additions": "New replicas that one broker catches up with at a time.",
        "ha.auto-trim": "Replicas that a set has beyond what it wants are removed.",
    },
    "Groups": {
        "group.transport": "What brings the batches of groups to all in one order.",
        "group.window": "Of a broker's own batches, for each group, so much may be on the way.",
        "group.ownership-slice": "So long a broker hands out from a queue for which others wait.",
    },
    "Workers of one machine": {
        "workers": "Brokers of this machine; `auto`: one for each processor. Read by the agent.",
        "workers.listen": "Where the first of them listens for other brokers; each further one has the next port.",
        "worker": "Which of them a broker is; its agent says so.",
    },
    "Nodes of other brokers": {
        "remote-nodes": "Names here for nodes of brokers outside of the cluster.",
        "remote-brokers": "Brokers of whose nodes there may be declarations, and the login there.",
        "remote-check-interval": "About so often it is looked whether a node that nobody uses is there.",
    },
}
"""By title. Sentences that an operator understands who has not read the rest."""


class SettingEntry(NamedTuple):
    """What there is to say of a setting."""

    key: str
    summary: str
    kind: str
    default: str
    change: str
    """How it is changed."""


def entries() -> Iterator[tuple[str, list[SettingEntry]]]:
    """All settings by section."""
    for title, summaries in SECTIONS.items():
        yield title, [entry(key) for key in summaries]


def entry(key: str) -> SettingEntry:
    """One setting, by its key in the table."""
    row = TABLE[key]
    summary = next(summaries[key] for summaries in SECTIONS.values() if key in summaries)
    return SettingEntry(key, summary, row.setting.kind.expected, _default_text(row), row.setting.change.value)


_OF_THE_MACHINE: Final = {
    "name": "the name of the machine",
    "control-socket": "/run/qpid-ha/NAME.sock",
    "memory-limit": "half of the memory of the machine or control group",
    "store.memory": "half of memory-limit",
}
"""Defaults that differ from machine to machine."""


def _default_text(row: SettingRow) -> str:
    key = row.setting.key
    if key in _OF_THE_MACHINE:
        return _OF_THE_MACHINE[key]
    value = row.setting.show(row.default() if callable(row.default) else row.default)
    if value is None or value in ([], {}, ""):
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


_INTRODUCTION: Final = (
    "Every key of the configuration file. `qpid-ha config describe KEY` says the same of one, and `qpid-ha config get`",
    "shows what is in force. What changes at run time for all brokers `qpid-ha config set` changes in the cluster, and",
    "it keeps that ([operations.md](operations.md#settings-of-the-cluster)); the rest of what changes at run time it",
    "changes in one broker, until that restarts. The pages about a subject say more. This page is made from the table",
    "that the broker reads by: `python -m qpid_ha_config.reference`.",
)
_HEADING: Final = "| key | what it does | value | default | changes |"


def page() -> str:
    """All of it as Markdown."""
    lines = ["# Settings", "", *_INTRODUCTION]
    for title, rows in entries():
        lines += ["", f"## {title}", "", _HEADING, "| --- | --- | --- | --- | --- |"]
        for row in rows:
            cells = f"`{row.key}`", row.summary, row.kind, row.default, row.change
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
