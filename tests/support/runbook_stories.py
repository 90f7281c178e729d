"""What goes wrong before each runbook that is followed, and what its reader does besides what he types."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True)
class Story:
    """`begin`: how a line of the page begins, such as a heading, a sentence or a command."""

    prepared: str = ""
    """Is typed at node1 before any broker runs."""
    before: str = ""
    """Breaks what the page mends."""
    besides: Mapping[str, str] = field(default_factory=dict)
    """{begin: commands}: what is typed before the block there, because a sentence of the page says so, or to look
    whether something is as the page says. A command that fails fails the page."""
    may_fail: tuple[str, ...] = ()
    """How commands begin that say no because of what is broken: a backup has no backups."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """{begin: commands}: what is typed in the place of a command that cannot be typed here."""
    at: str = "node1"
    """The machine at which the page is typed."""
    first: str = ""
    """Where its reader begins, if not at the beginning: what stands above comes after the rest."""
    run_on: tuple[str, ...] = ()
    """Titles of blocks that are typed in a terminal of their own, and not waited for."""
    is_started: bool = True
    """The cluster runs, and node1 leads."""


FILE: Final = "/etc/qpid-ha/qpid-ha.yaml"
RECORD: Final = "/shared/qpid-ha/record.json"
NOT_HERE: Final = "# there is none here"


def lines(*commands: str) -> str:
    """Typed one after the other."""
    return "\n".join(commands)


def at(machines: str, command: str) -> str:
    """Typed on each."""
    return f"for node in {machines}; do ssh $node {command}; done"


def started(machines: str) -> str:
    """In this order."""
    return at(machines, "systemctl start qpid-ha")


def stopped(machines: str) -> str:
    """In this order."""
    return at(machines, "systemctl stop qpid-ha")


def sent(machine: str, text: str, count: int = 1) -> str:
    """Messages to the queue `orders` of that primary."""
    return f"QPID_HA_PASSWORD=not-a-secret qpid-ha -b amqp://app@{machine}:5672 send orders --count {count} {text}"


def says(command: str, text: str) -> str:
    """It is refused, or has found something, with these words."""
    return f"({command} 2>&1 || true) | tee /dev/stderr | grep {shlex.quote(text)}"


def until(command: str) -> str:
    """Again and again, until it is so."""
    return f"while ! {command}; do sleep 0.2; done"


THREE: Final = "node1 node2 node3"
FIVE: Final = "10.0.0.3:5672,10.0.0.4:5672,10.0.0.5:5672"
"""What the addresses of five end with."""
KILL: Final = f"kill -9 $(pgrep -f 'qpidd --config {FILE} --control-socket /run/qpid-ha/node1.sock')"
STOP_ALL: Final = stopped("node1 node3 node2")
"""node2 is in sync to the last."""
SERVED: Final = at(THREE, "qpid-ha status --expect primary --expect ready --wait 2m")
CONNECTING: Final = "qpid-ha status --expect connecting --wait 1m"
READY: Final = "qpid-ha status --expect ready --wait 1m"
WITHOUT_AGENT: Final = f"'setsid qpidd --config {FILE} >>/var/log/qpidd.log 2>&1 </dev/null &'"
BY_HAND: Final = lines(at(THREE, WITHOUT_AGENT), at(THREE, CONNECTING))
STOP_WHAT_RUNS: Final = lines(f"kill $(pgrep -f {FILE})", f"while pgrep -f {FILE}; do sleep 0.1; done")
DAMAGE: Final = """\
systemctl stop qpid-ha
file=$(ls /var/lib/qpid-ha/default/journal/*.log | head -n 1)
printf damage | dd of=$file bs=1 seek=100 conv=notrunc status=none
systemctl start qpid-ha
"""
MESSAGES: Final = lines("qpid-ha queue create orders", sent("node1", "one", 5))
NEW_VERSION: Final = r"""
packages=$(python -c 'import qpid_ha_broker; print(*qpid_ha_broker.__path__)')
for node in node1 node2 node3; do
    mkdir /mnt/$node/new /mnt/$node/work
    ssh $node mount -t overlay overlay -o lowerdir=$packages,upperdir=/mnt/$node/new,workdir=/mnt/$node/work $packages
    ssh $node "sed -i 's/^__version__.*/__version__ = \"2.1\"/' $packages/__init__.py"
done
"""
"""What runs goes on with the version that it has."""
CERTIFICATES: Final = r"""
umask 077
cd /mnt
key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
openssl req -x509 $key -keyout ca.key -out ca.crt -days 9 -subj /CN=ca
cat > certify <<END
cd /mnt
openssl req -new $key -keyout \$1.key -out \$1.csr -subj /CN=\$1 -addext subjectAltName=DNS:\$1,DNS:\$1.example.com
openssl x509 -req -in \$1.csr -CA ca.crt -CAkey ca.key -CAcreateserial -copy_extensions copy -days 9 -out \$1.crt
END
for number in 1 2 3; do
    node=node$number
    sh certify $node
    ssh $node cp /mnt/$node.crt /mnt/$node.key /mnt/ca.crt /etc/qpid-ha
    listen="[amqp://10.0.0.$number:5672, amqps://10.0.0.$number:5671]"
    tls="{certificate: /etc/qpid-ha/$node.crt, key: /etc/qpid-ha/$node.key, ca: /etc/qpid-ha/ca.crt}"
    ssh $node "sed -i 's|^listen: .*|listen: $listen|' /etc/qpid-ha/qpid-ha.yaml"
    ssh $node "echo 'tls: $tls' >> /etc/qpid-ha/qpid-ha.yaml"
done
cd
"""
VERIFIED: Final = r"""
for name in qpid.example.com elsewhere.example.com; do
    openssl s_client -connect node1.example.com:5671 -CAfile /etc/qpid-ha/ca.crt -verify_hostname $name </dev/null
done > /mnt/shown 2>&1
grep 'Verification: OK' /mnt/shown
grep 'hostname mismatch' /mnt/shown
"""
FLOOD: Final = r"""
cat > /mnt/flood.py <<'END'
import socket, time
there = [socket.create_connection(("10.0.0.1", 5672)) for _ in range(200)]
print("there", flush=True)
time.sleep(600)
END
python /mnt/flood.py > /mnt/flood.log &
while [ ! -s /mnt/flood.log ]; do sleep 0.05; done
qpid-ha query --format yaml | grep -E 'unopened_connections: 20[0-9]'
while ! grep 'no AMQP open within 3 s' /var/log/agent.log; do sleep 0.1; done
"""
PLANTED_BUG: Final = r"""
packages=$(python -c 'import qpid_ha_broker; print(*qpid_ha_broker.__path__)')
ssh node1 mkdir /mnt/node1/new /mnt/node1/work
ssh node1 mount -t overlay overlay -o lowerdir=$packages,upperdir=/mnt/node1/new,workdir=/mnt/node1/work $packages
cat > /mnt/bug <<'END'
/^    read_header, /i\    if b"planted" in batch[0][1]: raise RuntimeError("planted")
END
ssh node1 "sed -i -f /mnt/bug $packages/amqp/links/plain_messages.py"
"""
SLOW_READER: Final = r"""
export QPID_HA_PASSWORD=not-a-secret
qpid-ha config set temporary-queue-size 64KiB
qpid-ha -b amqp://app@node1:5672 receive amq.topic/news > /mnt/reader.out 2>&1 &
reader=$!
while ! qpid-ha queue list | grep subscription; do sleep 0.2; done
kill -STOP $reader
head -c 50000 /dev/zero > /mnt/large
qpid-ha -b amqp://app@node1:5672 send amq.topic/news --file /mnt/large --count 9
while ! qpid-ha query --format yaml | grep 'overrun_queues: 1'; do sleep 0.2; done
kill -CONT $reader
! wait $reader
grep --text 'resource-limit-exceeded: queue subscription.* is full.*; it is deleted' /mnt/reader.out
"""
ADDRESS: Final = "10.0.0.100/24"
AT_NODE1: Final = "ssh node1 ip -brief address show"
VIRTUAL_IP: Final = rf"""
cat > /mnt/tell <<'END'
#!/bin/sh
echo $QPID_HA_EVENT $QPID_HA_GENERATION $QPID_HA_VIRTUAL_IP >> /mnt/told
END
chmod 755 /mnt/tell
lines='  virtual-ip: {ADDRESS}@eth0\n  on-promoted: /mnt/tell\n  on-demoted: [/mnt/tell]'
for node in node1 node2 node3; do ssh $node "sed -i 's|^ha:|&\n$lines|' {FILE}"; done
"""
FAR: Final = r"""
ssh far cp /mnt/ca.crt /etc/qpid-ha/that-cluster-ca.crt
ssh far cp /mnt/replicator.password /etc/qpid-ha/that-cluster.password
cat > /mnt/far.more <<'END'
ha: {queue-replication: true}
remote-brokers:
  - url: amqps://node1:5671,node2:5671,node3:5671
    user: replicator
    password-file: /etc/qpid-ha/that-cluster.password
    ca: /etc/qpid-ha/that-cluster-ca.crt
END
ssh far 'cat /mnt/far.more >> /etc/qpid-ha/qpid-ha.yaml'
"""

STORIES: Final[Mapping[str, Story]] = {
    "a-bug-came-up": Story(
        prepared=PLANTED_BUG,
        before=lines(
            "qpid-ha queue create orders",
            says(sent("node1", "planted"), "amqp:internal-error"),
            "qpid-ha query --format yaml | grep 'bugs: 1$'",
            "grep -A 99 'error connection a bug ended a link or a connection: ' /var/log/agent.log | grep Traceback",
            sent("node1", "one"),
        ),
        besides={"## Check": "qpid-ha query --format yaml | grep 'bugs: 1$'"},
    ),
    "add-a-broker": Story(
        prepared=f"ssh node4 sed -i 's/10.0.0.3:5672$/10.0.0.3:5672,10.0.0.4:5672/' {FILE}",
        besides={
            "1. Give node4 its file": started("node4"),
            "### Taking a broker out": until("qpid-ha set create orders"),
        },
        instead={"qpid-ha brokers forget node4": lines(stopped("node4"), "qpid-ha brokers forget node4")},
    ),
    "broker-is-away": Story(before="qpid-ha switchover node2", may_fail=("qpid-ha backups",)),
    "certificates": Story(
        prepared=CERTIFICATES,
        besides={
            "A renewed certificate": "sh /mnt/certify node1\ncp /mnt/node1.crt /mnt/node1.key /etc/qpid-ha",
            "A key and a request": "cd; cp /mnt/ca.crt /mnt/ca.key .",
            "## Check": "cp node1.crt node1.key /etc/qpid-ha\nqpid-ha tls reload",
            "## In the configuration": VERIFIED,
        },
    ),
    "coordinator-out-of-reach": Story(),
    "coordinator-record-lost": Story(
        before=f"rm {RECORD}",
        besides={
            "- **There is a primary, and somebody": lines(
                until(f"[ -s {RECORD} ]"),
                SERVED,
                "kill -9 $(ssh node3 cat /run/agent.pid) $(pgrep -f qpid-ha/node3.sock)",
                f"rm {RECORD}",
            ),
            "- **Nobody is primary": lines(started("node3"), SERVED, STOP_ALL, f"rm {RECORD}", BY_HAND),
            "**The record is of another cluster**": lines(
                SERVED,
                STOP_WHAT_RUNS,
                f'sed -i \'s/\\("cluster": *"\\)..../\\1feed/\' {RECORD}',
                BY_HAND,
                says("qpid-ha promote", "the coordinator is of the cluster feed"),
            ),
            "**The stores are older": lines("qpid-ha promote --force", SERVED),
        },
        instead={"crm_attribute": NOT_HERE},
    ),
    "disaster-recovery": Story(
        at="far",
        first="## Preparing for it",
        prepared=lines(CERTIFICATES, FAR, f"ssh far {WITHOUT_AGENT}"),
        before=MESSAGES,
        besides={
            "**When the cluster is gone:**": lines(until("qpid-ha queue show orders | grep 'messages *5$'"), STOP_ALL),
        },
    ),
    "discarded-messages": Story(
        at="node3",
        before=lines(
            MESSAGES,
            "qpid-ha switchover node3",
            stopped("node1 node2"),
            sent("node3", "late", 3),
            stopped("node3"),
            started("node1 node2"),
            CONNECTING,
            "qpid-ha promote --force",
            started("node3"),
            at("node3", READY),
        ),
        besides={"## Check": "grep -c late orders.jsonl | grep 3"},
        instead={
            "qpid-ha store discarded replay": "export QPID_HA_PASSWORD=not-a-secret\n"
            "qpid-ha store discarded replay --queue orders -b amqp://app@node1:5672 <<<y",
        },
    ),
    "failback": Story(
        at="node2",
        before=lines(MESSAGES, "qpid-ha switchover node2"),
        besides={
            "## Failure during failback": lines(
                stopped("node1"),
                f"{sent('node2', 'late')} || {sent('node3', 'late')}",  # whichever of the two leads now
                stopped("node2 node3"),
                started("node1"),
                at("node1", CONNECTING),
            ),
        },
    ),
    "failover": Story(before=KILL, may_fail=("qpid-ha -b amqp://node2:5672 backups",)),
    "first-start": Story(
        is_started=False,
        run_on=("agent",),
        besides={
            "**With the embedded": started("node2 node3"),
            "**By hand**": lines(
                SERVED, STOP_WHAT_RUNS, "rm -r /shared/qpid-ha/*", at(THREE, "rm -r /var/lib/qpid-ha/default"), BY_HAND
            ),
            "## Check": at("node2 node3", READY),
        },
        may_fail=("qpid-ha diagnose",),
    ),
    "flood-of-connections": Story(before=FLOOD, besides={"## Check": "kill $(pgrep -f /mnt/flood.py)"}),
    "full-disk": Story(
        prepared=lines(
            "mount -t tmpfs -o size=24m,mode=0750 none /var/lib/qpid-ha",
            f"echo 'store: {{segment-size: 1MiB}}' >> {FILE}",
        ),
        before=lines(
            MESSAGES,
            "dd if=/dev/zero of=/var/lib/qpid-ha/other-peoples-file bs=64k status=none || true",
            "head -c 500000 /dev/zero > /mnt/large",
            f"({sent('node1', '--file /mnt/large', 9)} || true) >/dev/null 2>&1",
            until("qpid-ha diagnose | grep store-cannot-write"),
        ),
        besides={
            "1. What fills it": "du -xsh /var/lib/qpid-ha/*",
            "3. Enlarge the volume": lines("mount -o remount,size=64m /var/lib/qpid-ha", SERVED),
        },
    ),
    "lost-disk": Story(before=DAMAGE, may_fail=("qpid-ha store check", "qpid-ha backups")),
    "maintenance": Story(),
    "move-of-a-store": Story(
        at="node4",
        before=lines(
            MESSAGES,
            stopped("node3"),
            "ssh node3 cp -a /var/lib/qpid-ha/default /mnt/moved",
            "ssh node4 cp -a /mnt/moved /var/lib/qpid-ha/default",
            f"ssh node4 sed -i s/node4/node3/ {FILE}",
            started("node4"),
            at("node4", READY),
        ),
        instead={"pcs resource create": NOT_HERE},
    ),
    "nobody-is-primary": Story(before=lines(STOP_ALL, BY_HAND), may_fail=("qpid-ha diagnose",)),
    "nobody-may-lead": Story(
        before=lines(
            MESSAGES,
            "qpid-ha switchover node3",
            stopped("node1 node2 node3"),
            "mv /mnt/node3.pid /mnt/out-of-reach",
            started("node1 node2"),
            at("node1 node2", CONNECTING),
        ),
        besides={
            "## Check": "qpid-ha activation set --from-store node2:/var/lib/qpid-ha/default --force "
            "/var/lib/qpid-ha/default\nqpid-ha promote -b amqp://node2:5672",
        },
        may_fail=("qpid-ha activation list /var",),
    ),
    "planned-switchover": Story(),
    "promote-was-refused": Story(
        before=lines(
            stopped("node3"),
            MESSAGES,
            stopped("node1 node2"),
            started("node3"),
            at("node3", CONNECTING),
            says("ssh node3 qpid-ha promote", "knows a newer in-sync set without this broker"),
        ),
        besides={"## Check": lines(started("node2"), "ssh node2 qpid-ha status --expect primary --wait 1m")},
    ),
    "publishers-hang": Story(may_fail=("qpid-ha diagnose",)),
    "refused-with-not-found": Story(
        before=lines(
            "qpid-ha config set auto-create false",
            says(f"{sent('node1', 'one')} --create", "there is no queue or exchange orders, and auto-create is off"),
        ),
        besides={"## Check": MESSAGES},
    ),
    "reader-detached": Story(before=SLOW_READER),
    "restore-from-a-copy": Story(
        before=MESSAGES,
        besides={
            "**To restore:**": lines(sent("node1", "late", 3), STOP_ALL),
            "## Check": lines(
                started(THREE),
                "ssh node3 qpid-ha status --expect connecting --expect primary --wait 1m",
                "ssh node3 qpid-ha promote --force",
                SERVED,
            ),
        },
    ),
    "rolling-upgrade": Story(
        before=lines(
            "for set in orders invoices; do qpid-ha set create $set --preferred node2; done",
            "qpid-ha set list --wait 1m",
            NEW_VERSION,
        ),
        besides={
            "## Check": "qpid-ha query --all --format yaml | grep -c 'version: .*2.1' | grep 3",
            "## By hand": lines(
                at("node2 node3", "qpid-ha switchover node1 || true"), "qpid-ha status --expect primary --wait 1m"
            ),
        },
        instead={
            "ssh node3 'apt-get": "ssh node3 systemctl restart qpid-ha",
            "...": lines(
                "ssh node2 systemctl restart qpid-ha",
                "qpid-ha -b amqp://node2:5672 status --expect ready --expect observer --wait 10m",
            ),
            "ssh node1 'apt-get": "ssh node1 systemctl restart qpid-ha",
        },
    ),
    "set-without-primary": Story(
        prepared=at("node4 node5", f"sed -i s/10.0.0.3:5672/{FIVE}/ {FILE}"),
        before=lines(
            at(THREE, f"qpid-ha config set --brokers-url amqp://10.0.0.1:5672,10.0.0.2:5672,{FIVE}"),
            started("node4 node5"),
            at("node4 node5", READY),
            until("qpid-ha set create orders --replica node4 --replica node5 --preferred node4 --min-replicas 1"),
            "qpid-ha set list --wait 1m",
            stopped("node5"),
            until("qpid-ha set list | grep 'orders *node4 *1 of '"),
            stopped("node4"),
            started("node5"),
            until("qpid-ha status --all 2>&1 | grep 'start node4'"),
            until("qpid-ha set show orders | grep 'node5=connecting'"),
        ),
        besides={
            "qpid-ha set delete --lost": lines("qpid-ha set show orders | grep '^primary  *node5'", stopped("node5")),
            "## Check": until("qpid-ha set create orders"),
        },
        may_fail=("qpid-ha set promote orders node5",),
    ),
    "stop-a-broker-with-sets": Story(
        before=lines(
            "qpid-ha replicas policies '*=2'",
            "for set in a b c; do qpid-ha set create $set; done",
            "qpid-ha set list --wait 1m",
        ),
    ),
    "support-bundle": Story(),
    "total-crash": Story(before=lines(KILL, STOP_ALL), besides={"## Check": lines(started(THREE), SERVED)}),
    "two-primaries": Story(
        before=lines(
            'stopped="$(cat /run/agent.pid) $(pgrep -f /run/qpid-ha/node1.sock)"',
            "kill -STOP $stopped",
            until("ssh node2 qpid-ha status --all | grep 'node[23] .*primary'"),
            "kill -CONT $stopped",
        ),
        besides={"2. One cluster": READY},
        may_fail=("qpid-ha -b amqp://node1:5672 demote",),
    ),
    "virtual-ip": Story(
        prepared=VIRTUAL_IP,
        besides={
            "## Check": lines(until(f"{AT_NODE1} | grep {ADDRESS}"), "grep 'promoted [0-9]* 10.0.0.100$' /mnt/told")
        },
        instead={
            "qpid-ha switchover": lines(
                "qpid-ha switchover node2",
                until(f"ssh node2 ip -brief address show | grep {ADDRESS}"),
                f"! {AT_NODE1} | grep {ADDRESS}",
                until("grep 'demoted [0-9]* 10.0.0.100$' /mnt/told"),
            ),
        },
    ),
}
"""By page."""
