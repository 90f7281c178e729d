"""Machines on which a runbook is followed: `python -m three_machines PAGE CLONE`, by its story in `runbook_stories`.

node1 to node5 and far have a name, a network, a /run, an /etc and a /var of their own; /shared and /backup are on all
of them, and so is /mnt, which has what is not theirs. Their networks are cabled to one switch; their processes are in
the namespace in which this runs. They have the configuration that the runbook `first-start` shows. node1, node2 and
node3 run, with agents, and node1 leads. `ssh` and `systemctl` do there what they do elsewhere, as far as pages need it.

The page's commands are typed at the story's machine, or where their comment says (`# on node3`, `# on every machine`).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from doc_blocks import DOCS, Block, blocks_of
from followed_page import SHELL, PageFailed, Terminal, follow
from runbook_stories import STORIES, Story

BASE = Path("/mnt")
NODES = ("node1", "node2", "node3")
MACHINES = {
    "node1": "10.0.0.1", "node2": "10.0.0.2", "node3": "10.0.0.3", "node4": "10.0.0.4", "node5": "10.0.0.5",
    "far": "10.1.0.1",
}  # fmt: skip
WAIT = "qpid-ha status --expect primary --expect ready --wait 1m"
_ROOT = """\
mount -t tmpfs none /mnt
for path in /*; do
    if [ -L $path ]; then cp -P $path /mnt$path
    elif [ $path != /mnt ] && [ -d $path ]; then mkdir /mnt$path && mount --rbind $path /mnt$path
    fi
done
mkdir /mnt/mnt /mnt/shared /mnt/backup /mnt/before
mkdir -m 0770 /mnt/shared/qpid-ha
pivot_root /mnt /mnt/before
cd /
umount -l /before
rmdir /before
"""
"""The directories of this machine, and some that it has not: nobody else sees them."""
_SSH = """\
#!/bin/sh
while :; do
    case $1 in -o) shift 2 ;; -*) shift ;; *) break ;; esac
done
host=$1
shift
exec nsenter --target "$(cat /mnt/$host.pid)" --mount --uts --net --wd=/ sh -c "$*"
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
cp /mnt/hosts /etc/hosts
umask 077
cp /mnt/{name}.yaml /etc/qpid-ha/qpid-ha.yaml
cp /mnt/replicator.password /mnt/users.sasldb /etc/qpid-ha/
echo $$ > /mnt/{name}.pid
exec sleep infinity
"""
_SWITCH = "ip link add switch type bridge\nip link set switch up"
_CABLE = """\
ip netns add {name}
ip link add {name} type veth peer name eth0 netns {name}
ip link set {name} master switch up
ip -n {name} address add {address}/8 dev eth0
ip -n {name} link set eth0 up
ip -n {name} link set lo up
"""
_USERS = """\
umask 077
echo not-a-secret > /mnt/replicator.password
for realm in {realms}; do
    for user in replicator app; do
        printf not-a-secret | saslpasswd2 -p -c -f /mnt/users.sasldb -u $realm $user
    done
done
"""
"""As `qpid-ha user add` makes them, on all machines at once."""
_TYPED_ELSEWHERE = re.compile(
    r"^(?P<command>[^#]+?)\s+# on (?:(?P<name>node\d)|(?:every|each) machine)\b.*$", re.MULTILINE
)


_NUMBER = re.compile(r"(?<![\w./:])\d[\d.:]*Z?(?!\w)|(?<= )-(?= )")
"""In what a page shows: a time, a generation, a position, or none. They are others here."""


def build(clone: Path) -> None:
    """All machines; none runs a broker. Raises PageFailed."""
    subprocess.run(["sh", "-ec", _ROOT], check=True)
    os.chdir(clone)
    programs = clone / ".venv" / "bin"
    for name, text in (("ssh", _SSH), ("systemctl", _SYSTEMCTL), ("journalctl", _JOURNALCTL)):
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
    cables = [_CABLE.format(name=name, address=address) for name, address in MACHINES.items()]
    subprocess.run(["sh", "-ec", "\n".join([_SWITCH, *cables])], check=True)
    hosts = [f"{address} {name} {name}.example.com" for name, address in MACHINES.items()]
    (BASE / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts]) + "\n", encoding="utf-8")
    subprocess.run(["sh", "-ec", _USERS.format(realms=" ".join(MACHINES))], check=True)
    for name in MACHINES:
        (BASE / f"{name}.yaml").write_text(_configuration(name), encoding="utf-8")
        apart = ["ip", "netns", "exec", name, "unshare", "--mount", "--uts"]
        subprocess.Popen([*apart, "sh", "-ec", _KEEPER.format(name=name)])


def _configuration(name: str) -> str:
    """Of node1 to node5 as on the page, "the same file on each node, but for `name` and `listen`"; `far` is alone."""
    page = DOCS / "runbooks" / "first-start.md"
    text = next(block.text for block in blocks_of(page) if block.language == "yaml")
    text = text.replace("name: node1", f"name: {name}", 1).replace("10.0.0.1", MACHINES[name], 1)
    return text if name != "far" else re.sub(r"^ha:\n(  .*\n)+", "", text, flags=re.MULTILINE)


MADE = "".join(f"while [ ! -s /mnt/{name}.pid ]; do sleep 0.05; done\n" for name in MACHINES)
START = "\n".join(
    [
        *(f"ssh {name} systemctl start qpid-ha" for name in NODES),
        *(f"ssh {name} {WAIT}" for name in NODES),
        "ssh node1 qpid-ha promote",
        *(f"ssh {name} qpid-ha status --expect ready --wait 2m" for name in NODES[1:]),
        "",
    ]
)


def blocks_of_story(page: Path, story: Story) -> Iterator[Block]:
    """Those of the page, and what is typed besides. Raises PageFailed: the page has no line that the story names."""
    lines = page.read_text(encoding="utf-8").splitlines()
    places = {_line_of(lines, begin): text for begin, text in story.besides.items()}
    for begin in story.instead:
        _line_of(lines, begin)
    first = _line_of(lines, story.first) if story.first else 1
    blocks = sorted(blocks_of(page), key=lambda block: block.line < first)
    for block in blocks:
        last = block.line + block.text.count("\n") - 1
        for place in sorted(place for place in places if place <= last and (place >= first) == (last >= first)):
            yield Block(page, place, SHELL, "", places.pop(place))
        yield (
            _as_typed(block, story) if block.language == SHELL else block._replace(text=_NUMBER.sub("...", block.text))
        )
    for place in sorted(places):
        yield Block(page, place, SHELL, "", places[place])


def _line_of(lines: list[str], begin: str) -> int:
    found = [number for number, line in enumerate(lines, 1) if line.strip().startswith(begin)]
    if not found:
        raise PageFailed(f"no line begins with {begin!r}, before which something is typed")
    return found[0]


def _as_typed(block: Block, story: Story) -> Block:
    """Where its comments say, and in the one terminal but for what runs on."""
    text = "".join(f"{_instead(line, story)}\n" for line in block.text.splitlines())
    title = block.title if block.title in story.run_on else ""
    return block._replace(text=_TYPED_ELSEWHERE.sub(_there, text), title=title)


def _instead(line: str, story: Story) -> str:
    return next((text for begin, text in story.instead.items() if line.startswith(begin)), line)


def _there(found: re.Match[str]) -> str:
    typed = "ssh {} " + shlex.quote(found["command"])
    if found["name"]:
        return typed.format(found["name"])
    return f"for node in {' '.join(NODES)}; do {typed.format('$node')}; done"


def _type(terminal: Terminal, text: str) -> None:
    if text:
        print(f"--- besides the page\n{text}", flush=True)
        terminal.type(text, waits=True)
        print(terminal.output, flush=True)


def _shell_at(name: str, directory: Path) -> list[str]:
    pid = (BASE / f"{name}.pid").read_text(encoding="ascii").strip()
    return ["nsenter", "--target", pid, "--mount", "--uts", "--net", f"--wd={directory}", "bash"]


def main() -> None:
    """Exit code 1: the page does not work, or there was nothing to try it on."""
    page, clone = map(Path, sys.argv[1:])
    story = STORIES[page.stem]
    try:
        build(clone)
        _type(Terminal(clone), MADE)
        for text in (story.prepared, START if story.is_started else "", story.before):
            _type(Terminal(clone, _shell_at("node1", clone)), text)
        shell = _shell_at(story.at, clone)
        follow(blocks_of_story(page, story), clone, shell=shell, may_fail=story.may_fail)
    except (PageFailed, TimeoutError) as failure:
        for log in sorted(BASE.glob("*/var.upper/log/*.log")):
            print(f"--- the end of {log}", *log.read_text(encoding="utf-8").splitlines()[-20:], sep="\n")
        print(f"THE PAGE IS WRONG: {failure}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
