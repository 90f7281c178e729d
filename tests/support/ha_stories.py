"""Stories of a cluster as files: an operator's commands, each followed by what the brokers did because of it.

A line that begins with `#` or is empty is a comment, an indented one is what happened, and any other one is a command:

    cluster a b c [coordinator] [store] [min-in-sync=2] [backup-timeout=4s] [chunk=10] [tail-bytes=1]
    start a ... | kill a ... | power off a ... | pause a | wake a
    cut a b ... | heal                    no byte passes between the first and the others; every byte passes again
    delay a b | deliver a b               what a sends to b on its channel stays on its way; it arrives
    disk a stops | disk a goes on | copy store a | put store back a
    logins of a refused by b
    coordinator down | up | mute | heard | loses the record
    declare a q | publish a q "x" ... | publish a q 10 messages | consume a q 3
    promote a [b] [force] [failover] | demote a | switchover a [to b] | shutdown a
    ask a promote | ask a switchover ...  the same without waiting for the answer
    tick 3s
    when "TEXT": COMMAND                  once a line contains that, at the end of the round
    quiet | loud                          what happens is not shown; it is again
    expect ...                            holds, or the story is wrong, also while it is rewritten:
        expect a refused | done | silent                     the last request to that broker
        expect a is STATE                                    a state, or `down`
        expect primary a | expect primary nobody             who serves clients
        expect "x" confirmed | waiting | refused | unknown   what its publisher has heard; unknown: never anything
        expect "x" settled | unsettled                       what its consumer has heard
        expect a holds q "x" ... | expect a holds q nothing | expect a holds q 10 messages
        expect a in sync a b | expect record in sync a b

`mute`: the coordinator takes what is written, and its answers get lost. Messages are durable. What is published to a
paused broker is the first thing that it finds when it wakes up.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import partial

from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from traced_cluster import TracedCluster

INDENT = "    "
SHUTDOWN_UUID = "end-of-the-day"
FLAGS = {"coordinator": "has_coordinator", "store": "has_store"}
SETTINGS = {
    "min-in-sync": "min_in_sync",
    "backup-timeout": "backup_timeout_s",
    "chunk": "chunk_messages",
    "tail-bytes": "tail_bytes",
}


class StoryError(Exception):
    """A line that cannot be told, or an expectation that does not hold: which, and why."""


def commands_of(text: str) -> list[str]:
    """The file without what happened."""
    return [line for line in text.splitlines() if not line.startswith(INDENT)]


def tell(text: str) -> str:
    """The story with what happens now. Raises StoryError, BrokenPromise."""
    story = Story()
    told: list[str] = []
    for number, line in enumerate(commands_of(text), start=1):
        told.append(line)
        if line and not line.startswith("#"):
            try:
                told += [INDENT + each for each in story.do(line)]
            except StoryError as error:
                raise StoryError(f"command {number}, {line!r}: {error}") from error
    story.end()
    return "\n".join(told) + "\n"


class Story:
    """One cluster, and what was asked of it."""

    def __init__(self) -> None:
        self._cluster = TracedCluster(())
        self._is_quiet = False
        self._requests: dict[str, int] = {}
        """By broker, the last one."""
        self._outcomes: dict[str, str] = {}
        """By message, what became of it at once."""
        self._shown: dict[str, tuple[str, str]] = {}
        self._verbs: dict[str, Callable[[list[str]], None]] = {
            "cluster": self._make,
            "start": lambda args: self._each(args, lambda name: self._cluster.start(name)),
            "kill": lambda args: self._each(args, self._cluster.kill),
            "power": lambda args: self._each(args[1:], self._cluster.power_off),
            "pause": lambda args: self._pause(args[0], True),
            "wake": lambda args: self._pause(args[0], False),
            "cut": lambda args: self._cluster.cut(*args),
            "heal": lambda _: self._cluster.heal(),
            "delay": lambda args: self._cluster.delay(*args),
            "deliver": lambda args: self._cluster.deliver(*args),
            "disk": self._disk,
            "copy": lambda args: self._cluster.copy_store(args[1]),
            "put": lambda args: self._cluster.put_store_back(args[2]),
            "logins": lambda args: self._cluster.nodes[args[4]].not_let_in.add(args[1]),
            "coordinator": self._coordinator,
            "declare": self._declare,
            "publish": self._publish,
            "consume": lambda args: self._cluster.consume_messages(args[0], args[1], int(args[2])),
            "ask": lambda args: self._ask(args[0], args[1:]),
            "promote": self._promote,
            "demote": lambda args: self._command(args[0], ["demote"]),
            "switchover": lambda args: self._command(args[0], ["switchover", *args[1:]]),
            "shutdown": lambda args: self._command(args[0], ["shutdown"]),
            "tick": lambda args: self._cluster.wait(float(args[0].removesuffix("s"))),
            "expect": lambda args: Expectation(self._cluster, self._requests, self._outcomes).check(args),
        }

    def do(self, line: str) -> list[str]:
        """What happens because of `line`, and then who is in another state than before."""
        if line in ("quiet", "loud"):
            self._is_quiet = line == "quiet"
            return []
        if line.startswith("when "):
            self._watch(line)
            return []
        self._run(line)
        self._cluster.run()
        lines, self._cluster.lines = self._cluster.lines, []
        if line.startswith("tick "):
            lines = list(dict.fromkeys(lines))  # what repeats itself while time goes by is told once
        lines += self._changes(lines)
        return [] if self._is_quiet else lines

    def _run(self, line: str) -> None:
        verb, *args = shlex.split(line)
        if verb not in self._verbs:
            raise StoryError(f"no such command; there are {', '.join(sorted(self._verbs))}")
        try:
            self._verbs[verb](args)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise StoryError(f"not understood: {error!r}") from error

    def end(self) -> None:
        """Raises StoryError when something was waited for that did not happen."""
        if self._cluster.triggers:
            raise StoryError(f"this never happened: {self._cluster.triggers[0][0]!r}")

    def _changes(self, told: list[str]) -> list[str]:
        lines = []
        for node in self._cluster.all_traced():
            status, problem = ("paused", "") if node.paused else node.status()
            if self._shown.get(node.name) != (status, problem):
                self._shown[node.name] = status, problem
                if problem:
                    is_told = any(problem in line for line in told)
                    status += f"; problem: {'as above' if is_told else problem}"
                lines.append(f"= {node.name} {status}")
        return lines

    def _watch(self, line: str) -> None:
        match = re.fullmatch(r'when "([^"]+)": (.+)', line)
        if match is None:
            raise StoryError('expected: when "TEXT": COMMAND')
        self._cluster.triggers.append((match[1], partial(self._run, match[2])))

    # --- the cluster and its machines

    def _make(self, args: list[str]) -> None:
        brokers = tuple(each for each in args if each not in FLAGS and "=" not in each)
        settings: dict[str, float] = {FLAGS[each]: True for each in args if each in FLAGS}
        for each in args:
            if "=" in each:
                name, value = each.split("=")
                number = float(value.removesuffix("s"))
                settings[SETTINGS[name]] = number if name == "backup-timeout" else int(number)
        self._cluster = TracedCluster(brokers, **settings)

    def _each(self, brokers: list[str], action: Callable[[str], object]) -> None:
        for name in brokers:
            action(name)

    def _pause(self, name: str, is_paused: bool) -> None:
        self._cluster.nodes[name].paused = is_paused

    def _disk(self, args: list[str]) -> None:
        if args[1] == "stops":
            self._cluster.stopped_disks.add(args[0])
        else:
            self._cluster.stopped_disks.remove(args[0])

    def _coordinator(self, args: list[str]) -> None:
        cluster = self._cluster
        match args:
            case ["down" | "up" as state]:
                cluster.record_is_reachable = state == "up"
            case ["mute" | "heard" as state]:
                cluster.answers_get_lost = state == "mute"
            case ["loses", "the", "record"]:
                cluster.record = ClusterRecord()
            case _:
                raise StoryError("see the list of commands")

    # --- clients

    def _declare(self, args: list[str]) -> None:
        self._cluster.nodes[args[0]].declare(args[1])

    def _publish(self, args: list[str]) -> None:
        name, queue, *bodies = args
        if bodies[-1] == "messages":
            bodies = [f"m{number}" for number in range(1, int(bodies[0]) + 1)]
        results = self._cluster.publish(name, queue, bodies)
        self._outcomes |= dict(zip(bodies, results, strict=True))

    # --- operators

    def _ask(self, name: str, words: list[str]) -> None:
        makers: dict[str, Callable[[int], fx.Input]] = {
            "promote": lambda number: fx.PromoteAsked(number, "force" in words, failover="failover" in words),
            "demote": lambda number: fx.DemoteAsked(number),
            "switchover": lambda number: fx.SwitchoverAsked(number, words[-1] if "to" in words else ""),
            "shutdown": lambda number: fx.ShutdownAsked(number, SHUTDOWN_UUID),
        }
        self._requests[name] = self._cluster.request(name, makers[words[0]])

    def _command(self, name: str, words: list[str]) -> None:
        self._ask(name, words)
        self._cluster.await_answers([(name, self._requests[name])])

    def _promote(self, args: list[str]) -> None:
        brokers = [each for each in args if each not in ("force", "failover")]
        for name in brokers:
            self._ask(name, ["promote", *args])
        self._cluster.await_answers([(name, self._requests[name]) for name in brokers])


class Expectation:
    """What a story says must be so, whatever the lines around it are."""

    def __init__(self, cluster: TracedCluster, requests: dict[str, int], outcomes: dict[str, str]) -> None:
        self._cluster = cluster
        self._requests = requests
        self._outcomes = outcomes

    def check(self, args: list[str]) -> None:
        """Raises StoryError."""
        wanted, found = self._compare(args)
        if wanted != found:
            raise StoryError(f"expected {wanted}, found {found}")

    def _compare(self, args: list[str]) -> tuple[object, object]:
        cluster = self._cluster
        match args:
            case [text, "confirmed" | "waiting" | "refused" | "unknown" as outcome] if text in self._outcomes:
                return outcome, self._outcome_of_message(text)
            case [text, "settled" | "unsettled" as outcome]:
                return outcome, "settled" if text in cluster.promises.settled else "unsettled"
            case ["primary", *brokers]:
                serving = [node.name for node in cluster.all_traced() if node.serves]
                return " ".join(brokers), " ".join(serving) or "nobody"
            case ["record", "in", "sync", *members]:
                return tuple(members), cluster.record.members if cluster.record is not None else ()
            case [name, "in", "sync", *members]:
                return tuple(members), cluster.nodes[name].member.status.members
            case [name, "is", state]:
                return state, self._state(name)
            case [name, "holds", queue, *bodies]:
                return self._holdings(name, queue, bodies)
            case [name, "refused" | "done" | "silent" as outcome]:
                return outcome, self._outcome(name)
        raise StoryError("no such expectation")

    def _state(self, name: str) -> str:
        node = self._cluster.nodes[name]
        return str(node.state) if node.running else "down"

    def _holdings(self, name: str, queue: str, bodies: list[str]) -> tuple[object, object]:
        found = self._cluster.nodes[name].bodies(queue)
        if bodies == ["nothing"]:
            return [], found
        if bodies[-1] == "messages":
            return int(bodies[0]), len(found)
        return bodies, found

    def _outcome(self, name: str) -> str:
        answer = self._cluster.nodes[name].answers.get(self._requests[name])
        if answer is None:
            return "silent"
        return "done" if answer.done else "refused"

    def _outcome_of_message(self, text: str) -> str:
        if self._outcomes[text] == "refused":
            return "refused"
        if text in self._cluster.promises.ever_confirmed:
            return "confirmed"
        waiting = [each.body for node in self._cluster.all_traced() for each in node.waiting]
        return "waiting" if text in waiting else "unknown"
