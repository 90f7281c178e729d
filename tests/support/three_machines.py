"""Three machines on which a runbook is followed: `python -m three_machines PAGE CLONE BEFORE THEN MAY_FAIL...`.

node1 to node3 have a name, a /run, an /etc and a /var of their own; their network and processes are those of the
namespaces in which this runs, so node2 is 127.0.0.2. The cluster runs with stores, node1 leads. `ssh` and `systemctl`
do there what they do elsewhere, as far as pages use them. BEFORE is typed at node1 before: it breaks what the page
mends. THEN is typed before what stands below the heading Check: what the page says in a sentence.
MAY_FAIL: commands of the page that say no while something is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from doc_blocks import blocks_of
from followed_page import PageFailed, Terminal, follow

BASE = Path("/mnt")
NODES = ("node1", "node2", "node3")
WAIT = "qpid-ha status --expect primary --expect ready --wait 2m"
_CONFIGURATION = """\
name: {name}
listen: [amqp://127.0.0.{number}:5672]
data-dir: /var/lib/qpid-ha
ha:
  cluster: true
  brokers-url: amqp://node1:5672,node2:5672,node3:5672
  username: replicator
  password-file: /etc/qpid-ha/replicator.password
  coordinator: file:/mnt/shared/qpid-ha
sasl:
  mechanisms: [SCRAM-SHA-256]
  users-db: /etc/qpid-ha/users.sasldb
acl:
  rules: [allow replicator administer, allow authenticated all]
"""
"""As on docs/runbooks/first-start.md."""
_SSH = """\
#!/bin/sh
while :; do
    case $1 in -o) shift 2 ;; -*) shift ;; *) break ;; esac
done
host=$1
shift
exec nsenter --target "$(cat /mnt/$host.pid)" --mount --uts --wd=/ sh -c "$*"
"""
_SYSTEMCTL = """\
#!/bin/sh
# start, stop and restart of the agent of this machine.
stop() {
    pid=$(cat /run/agent.pid 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || return 0
    while [ -e "/proc/$pid/exe" ]; do sleep 0.05; done # gone, or ended and not waited for
    rm -f /run/agent.pid
}
start() {
    setsid qpid-ha-agent run --config /etc/qpid-ha/qpid-ha.yaml >>/var/log/agent.log 2>&1 </dev/null &
    echo $! >/run/agent.pid
}
case $1 in
    start) start ;;
    stop) stop ;;
    restart) stop; start ;;
esac
"""
_JOURNALCTL = "#!/bin/sh\ntail -n 50 /var/log/agent.log\n"
_KEEPER = """\
mount -t tmpfs none /run
hostname {name}
for directory in etc var; do
    mkdir -p /mnt/{name}/$directory.upper /mnt/{name}/$directory.work
    layers=upperdir=/mnt/{name}/$directory.upper,workdir=/mnt/{name}/$directory.work
    mount -t overlay overlay -o lowerdir=/$directory,$layers /$directory
done
mkdir -p /etc/qpid-ha /var/lib/qpid-ha /run/qpid-ha
chmod 0750 /var/lib/qpid-ha
cp /mnt/{name}.yaml /etc/qpid-ha/qpid-ha.yaml
cp /mnt/hosts /etc/hosts
umask 077
echo not-a-secret > /etc/qpid-ha/replicator.password
qpid-ha user add replicator --sasldb /etc/qpid-ha/users.sasldb --password-from /etc/qpid-ha/replicator.password
echo $$ > /mnt/{name}.pid
exec sleep infinity
"""


def build(clone: Path) -> None:
    """All three, with a cluster that runs. Raises PageFailed."""
    subprocess.run(["mount", "-t", "tmpfs", "none", str(BASE)], check=True)
    programs = clone / ".venv" / "bin"
    for name, text in (("ssh", _SSH), ("systemctl", _SYSTEMCTL), ("journalctl", _JOURNALCTL)):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    (BASE / "shared" / "qpid-ha").mkdir(parents=True)
    hosts = [f"127.0.0.{number} {name}" for number, name in enumerate(NODES, 1)]
    (BASE / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts]) + "\n", encoding="utf-8")
    for number, name in enumerate(NODES, 1):
        text = _CONFIGURATION.format(name=name, number=number)
        (BASE / f"{name}.yaml").write_text(text, encoding="utf-8")
        subprocess.Popen(["unshare", "--mount", "--uts", "sh", "-ec", _KEEPER.format(name=name)])


START = "\n".join(
    [
        *(f"while [ ! -s /mnt/{name}.pid ]; do sleep 0.05; done" for name in NODES),
        *(f"ssh {name} systemctl start qpid-ha" for name in NODES),
        *(f"ssh {name} {WAIT}" for name in NODES),
        "ssh node1 qpid-ha promote",
        *(f"ssh {name} qpid-ha status --expect ready --wait 2m" for name in NODES[1:]),
        "",
    ]
)


def _type(terminal: Terminal, text: str) -> None:
    print(f"--- besides the page\n{text}")
    terminal.type(text, waits=True)
    print(terminal.output, flush=True)


def main() -> None:
    """Exit code 1: the page does not work, or there was nothing to try it on."""
    page, clone, before, then, *may_fail = sys.argv[1:]
    blocks = list(blocks_of(Path(page)))
    check = Path(page).read_text(encoding="utf-8").partition("\n## Check\n")[0].count("\n") + 1
    parts = [block for block in blocks if block.line <= check], [block for block in blocks if block.line > check]
    try:
        build(Path(clone))
        _type(Terminal(Path(clone)), START)
        pid = (BASE / "node1.pid").read_text(encoding="ascii").strip()
        at_node1 = ["nsenter", "--target", pid, "--mount", "--uts", f"--wd={clone}", "bash"]
        for text, part in zip((before, then), parts, strict=True):
            _type(Terminal(Path(clone), at_node1), text)
            follow(part, Path(clone), shell=at_node1, may_fail=may_fail)
    except (PageFailed, TimeoutError) as failure:
        print(f"THE PAGE IS WRONG: {failure}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
