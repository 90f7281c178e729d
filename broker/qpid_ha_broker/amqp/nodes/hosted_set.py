"""A resource set as this broker hosts it: its state, commands on it, its links, and its part of a turn.

A broker hosts `default`, and as many others as it has replicas of. Each is led by one broker, which may be another one
for each set. A set in which nothing has happened has no turn: whoever changes one, or commits what it wrote, touches
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import chain, islice
from typing import Protocol

from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere, SetDirectory
from qpid_ha_broker.amqp.nodes.ended_queues import EndedQueues
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint, NumberedPublishers, endpoint_of
from qpid_ha_broker.amqp.nodes.node_wait import NodeWait
from qpid_ha_broker.amqp.nodes.subscriptions import NamedConsumers
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED, RESOURCE_LIMIT, AmqpError, as_amqp
from qpid_ha_broker.model.budget import Budget, Clock
from qpid_ha_broker.model.commands.administration import Administration
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.errors import ModelError, NotPrimary
from qpid_ha_broker.model.exchanges.exchange import Exchange
from qpid_ha_broker.model.logs.log import Commitment, LogBatch
from qpid_ha_broker.model.queues.dispatcher import Consumer, Handout
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.message_clock import SteadyTime, by_clock
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.model.work import Task

HANDOUT_LIMIT = 256
"""Messages for one consumer in one turn: enough to fill frames, few enough that nobody waits for long."""

HANDOUT_S = 0.004
"""For looking for them, in one turn, whatever selectors ask of how many messages."""
EXPIRY_S = 0.004
"""For dropping what has expired, in one turn, however much it is."""
ASK_AGAIN_MS = 5000
"""Until the controller is asked again to have a queue deleted that nobody uses any more."""
WITHHELD_SEEN = 500
"""Handouts that are looked at for one consumer."""
PORTIONS_S = 0.004
"""For all work that is done in portions, in one turn."""


class NoticesDue(Protocol):
    """Who hears that there is something to log."""

    due: Callable[[], None]


class SetContainer(Protocol):
    """What a hosted set needs of the container."""

    clock: Clock
    now_ms: int
    directory: SetDirectory
    default: HostedSet
    steady: SteadyTime

    @property
    def notices(self) -> NoticesDue:
        """What there is to log."""

    def touched(self, hosted: HostedSet) -> None:
        """`hosted` is to have a turn."""

    def led(self, hosted: HostedSet) -> None:
        """`hosted` is led here after another broker has led it."""

    def end_links_now(self) -> None:
        """Let all links that are about to end do so: what they hold of a set must be back before others write it."""


class OpenTransactions(Protocol):
    """The transactions of one connection."""

    def set_ended(self, hosted: HostedSet, error: AmqpError) -> None:
        """Roll back those in `hosted`; who discharges one of them later gets `error`."""


class HostedSet:
    """The promise: nobody hears of an event, and no message goes out on its acquisition, before that is committed."""

    def __init__(self, host: SetContainer, resources: Resources) -> None:
        self._host = host
        self.name = resources.name
        self.resources = resources
        self.configuration = Configuration(resources)
        self.configuration.changed = lambda: host.notices.due()
        self.administration = Administration(resources, self.configuration)
        self._read_only = False
        self.is_touched = False
        """It has a turn that is still to come."""
        self.counted_bytes = 0
        """Of its messages, in what the container believes that all sets take."""
        self.overrun_queues_total = 0
        """Queues that were deleted because they were full, as their policy says."""
        # Dictionaries, not sets: who is served first must follow from who asked first, so that a run can be repeated.
        self.unconfirmed: dict[LinkEndpoint, None] = {}
        """Links with something to tell once the log has committed it."""
        self.accepting: dict[LinkEndpoint, None] = {}
        """Links whose peer has answered messages in this turn."""
        self.draining: dict[LinkEndpoint, None] = {}
        """Links whose peer wants its credit used or given up now."""
        self.links: dict[LinkEndpoint, None] = {}
        """All that publish to nodes of this set, or consume from them."""
        self.named_consumers = NamedConsumers()
        """Those of `links` that end when their client attaches them anew."""
        self.numbered_publishers = NumberedPublishers()
        """Those of `links` on which another broker relays a client's messages, or hands on what came to an exchange."""
        self.transactions: dict[OpenTransactions, None] = {}
        """Of connections that have, or had, something of this set in one."""
        self.garbage = resources.catalog.garbage
        self.prove_lead: Callable[[], LeadProof] = lambda: LeadProof.ALONE
        """How sure it is that this broker leads the set, if it does; the driver sets it."""
        self.take_batch: Callable[[], LogBatch | None] = resources.replicated.log.take_batch
        """What the turn wrote; of a group, whose core takes it itself, the driver has it take nothing."""
        self._withheld: deque[Handout] = deque()
        self._withheld_of_sessions: deque[Handout] = deque()
        """Apart from the others, which need not wait for what is committed."""
        self._commit_waits: list[tuple[Commitment, NodeWait]] = []
        """What attaches, detaches and opens wait for."""
        self._ended_queues = EndedQueues(resources, self._begin)
        self._awaited: dict[str, NodeWait] = {}
        """What attaches wait for, by name of a queue that is to be declared here."""
        self._unused: dict[str, int] = {}
        """Queues that are due for deletion, and which the directory has: when their deletion was asked for."""
        resources.replication.became_read_only = self._finish_work
        resources.replication.not_primary = self._not_primary

    @property
    def read_only(self) -> bool:
        """What is here belongs to another broker, its primary: it may be browsed, and nothing else."""
        return self._read_only

    @read_only.setter
    def read_only(self, read_only: bool) -> None:
        begins_to_lead = self._read_only and not (read_only or self.resources.replication.counts_later)
        self._read_only = read_only
        if begins_to_lead and len(self.resources.replicated.state.generations) > 1:
            self._host.led(self)

    @property
    def now_ms(self) -> int:
        """By that its messages expire; see `model.message_clock`."""
        return self.resources.catalog.clock.now_ms(self._host.now_ms)

    def by_own_clock(self, message: Message, other: HostedSet) -> Message:
        """`message`, whose times are by the clock of `other`."""
        if other is self:
            return message
        return by_clock(message, self.resources.catalog.clock, other.resources.catalog.clock)

    def open_gate(self) -> None:
        """Whoever comes for what it had before this broker led, has come."""
        self.resources.is_gated = False
        self.resources.catalog.wake_consumers()
        self.touch()

    def _look_at_lead(self) -> None:
        """Whether this broker can still prove that it leads; consumers that had to wait are served again."""
        replication = self.resources.replication
        before, replication.lead_proof = replication.lead_proof, self.prove_lead()
        if before is LeadProof.MISSING and replication.lead_proof is not before:
            self.resources.catalog.wake_consumers()

    def touch(self) -> None:
        """Something happened here, or was committed: have a turn."""
        self.resources.catalog.now_ms = 0 if self.read_only else self.now_ms
        if not self.is_touched:
            self.is_touched = True
            self._host.touched(self)

    @property
    def has_work(self) -> bool:
        """Whether another turn is due at once."""
        resources = self.resources
        for log in resources.sets.logs:
            if log.pending:
                return True
        goes_on = bool(resources.timers.is_behind or resources.work.tasks or self.garbage.tasks)
        return goes_on or resources.has_work or self._ended_queues.are_due

    @property
    def awaits_turn(self) -> bool:
        """Whether a turn would find something to do."""
        is_heard = bool(self.accepting or self.resources.overrun)
        withheld = self._withheld, self._withheld_of_sessions
        return is_heard or self.has_work or any(handouts and handouts[0].written.is_committed for handouts in withheld)

    def turn(self) -> LogBatch | None:
        """End a round; returns what witnesses must see. Call again when one has acknowledged."""
        resources, host = self.resources, self._host
        catalog = resources.catalog
        if resources.timers.is_behind:
            self.tick()
        if self.accepting:
            self.flush_accepted()
        if resources.overrun:
            self._delete_overrun_queues()
        if self._ended_queues.are_due:
            self._ended_queues.look(read_only=self._read_only)
        if resources.work.tasks or self.garbage.tasks:
            budget = Budget(host.clock, PORTIONS_S)
            resources.work.run(budget)
            self.garbage.run(budget)
        if self._awaited:
            self._tell_awaited()
        # On a replica no time passes: what has expired there, the primary decides.
        catalog.now_ms = now_ms = 0 if self._read_only else catalog.clock.now_ms(host.now_ms)
        has_work = resources.has_work
        if has_work or resources.replication.lead_proof is LeadProof.MISSING:
            self._look_at_lead()
            has_work = resources.has_work
        if has_work:
            for handout in resources.hand_out(now_ms, HANDOUT_LIMIT, Budget(host.clock, HANDOUT_S)):
                of_session = handout.consumer.session_owner is not None
                (self._withheld_of_sessions if of_session else self._withheld).append(handout)
        if self._withheld:
            self._deliver_withheld()
        for log in resources.sets.logs:
            if log.last_lsn != log.write_times.last_lsn:
                log.note_time(host.steady.wall_ms())
        batch = self.take_batch()
        self.tell_what_is_committed()
        return batch

    def _deliver_withheld(self) -> None:
        withheld = self._withheld
        while withheld and withheld[0].written.is_committed:
            consumer, entries, _ = withheld.popleft()
            _deliver(consumer, entries)

    def withholds_from(self, consumer: Consumer) -> bool:
        """Whether messages were handed out to it that may not be sent before that is committed.

        As far as can be seen in a moment: of very many handouts not all are looked at.
        """
        withheld = islice(chain(self._withheld, self._withheld_of_sessions), WITHHELD_SEEN)
        return any(handout.consumer is consumer for handout in withheld)

    def tell_what_is_committed(self) -> None:
        """Tell those who wait, and give out what was held back for that: at the end of a turn, and whenever something
        is committed after it."""
        if self._withheld:
            self._deliver_withheld()
        if self.resources.replication.lead_proof is LeadProof.MISSING or self._withheld_of_sessions:
            self._look_at_lead()
        is_doubtful, of_sessions = (
            self.resources.replication.lead_proof is LeadProof.MISSING,
            self._withheld_of_sessions,
        )
        while of_sessions and not is_doubtful:
            consumer, entries, written = of_sessions[0]
            if not written.is_committed and written.failure is None:
                break
            of_sessions.popleft()
            if written.failure is None:
                _deliver(consumer, entries)
            else:  # of a group: the link is attached at another member
                endpoint_of(consumer).end(AmqpError(CONNECTION_FORCED, str(written.failure)))
        if self._commit_waits:
            self._tell_commit_waits()
        if self.unconfirmed:
            unconfirmed, self.unconfirmed = self.unconfirmed, {}
            self.unconfirmed |= {link: None for link in unconfirmed if _asked(link, link.confirm, has_ended=False)}
        if self.draining and not (self.resources.has_work or self._withheld or self._withheld_of_sessions):
            draining, self.draining = self.draining, {}
            self.draining |= {link: None for link in draining if not _asked(link, link.finish_drain, has_ended=True)}

    def flush_accepted(self) -> None:
        """Carry out what consumers have accepted in this turn: due before anything that asks how full a queue is."""
        accepting, self.accepting = self.accepting, {}
        for link in accepting:
            link.flush_accepted()

    def tick(self) -> None:
        """Expire messages and delete queues whose time has come; that is the primary's to do.

        What is due, others may look at.
        """
        if self.read_only:
            self.resources.timers.fall_due(self.now_ms, Budget(self._host.clock, EXPIRY_S))
            return
        due = self.resources.timers.tick(self.now_ms, Budget(self._host.clock, EXPIRY_S))
        if due or self._unused:
            asked, self._unused = self._unused, {}
            for queue in due:
                if self._is_placed(queue.name):
                    self._unused[queue.name] = self._have_deleted(queue.name, asked.get(queue.name))
                else:
                    self.configuration.delete_queue(queue.name)

    def _is_placed(self, name: str) -> bool:
        """Whether the directory has a queue of that name here."""
        return name in self._host.default.resources.catalog.map.queues_of(self.name)

    def _have_deleted(self, name: str, asked_ms: int | None) -> int:
        """Its entry in the directory has to go, too, or the queue would be made again; when that was asked for.

        Whoever begins to use it before this broker is told to delete it, keeps it.
        """
        now_ms = self._host.now_ms
        if asked_ms is not None and now_ms - asked_ms < ASK_AGAIN_MS:
            return asked_ms
        self._host.directory.delete_queue(name, if_empty=False, if_unused=True)
        return now_ms

    def tick_in_turn(self) -> None:
        """Have a turn that begins with a tick, if time may change anything here."""
        if self.resources.catalog.timed and not self.read_only:
            self.resources.timers.is_behind = True
            self.touch()

    def is_there(self, node: Queue | Exchange) -> bool:
        """Whether a node still exists."""
        catalog = self.resources.catalog
        return (catalog.queues_by_id if isinstance(node, Queue) else catalog.exchanges_by_id).get(node.id) is node

    # --- links

    def forget(self, link: LinkEndpoint) -> None:
        """`link` has ended."""
        for links in (self.unconfirmed, self.accepting, self.draining, self.links):
            links.pop(link, None)

    def end_links(self, error: AmqpError, *, browsers: bool) -> None:
        """This broker serves the set no more: its links end with `error`, and its transactions are rolled back.

        So do links of no set (to `$management`, coordinators, relays) that wait for something to be committed here.

        `browsers`: also those of clients of this broker who only look.
        """
        for transactions in list(self.transactions):
            transactions.set_ended(self, error)
        if self._awaited:
            self._tell_awaited()
        waits, self._commit_waits = self._commit_waits, []
        for _, wait in waits:
            wait.fail(error)
        self._ended_queues.forget()
        for link in list(self.links):
            if browsers or link.needs_primary:
                link.end(error)
        log = self.resources.replicated.log
        for link in list(self._host.default.unconfirmed):  # among them those that belong to no set
            if link.waits_for(log):
                link.end(error)

    def _delete_overrun_queues(self) -> None:
        """Who did not read what came is told so; publishers and other readers go on."""
        for queue, error in self.resources.take_overrun().items():
            if self.is_there(queue) and self.configuration.deletion_of(queue) is None:
                self.configuration.delete_queue(queue.name)
                if self._is_placed(queue.name):  # what is made anew meanwhile, and used, stays
                    self._host.directory.delete_queue(queue.name, if_empty=True, if_unused=True)
                self._ended_queues.end_consumers(
                    queue, AmqpError(RESOURCE_LIMIT, f"{error}; it is deleted: read faster")
                )
                self.overrun_queues_total += 1

    def _begin(self, task: Task) -> None:
        self.resources.begin(task, Budget(self._host.clock, PORTIONS_S))

    def await_commit(self, token: Commitment, reason: str) -> NodeWait:
        """What to wait for until `token`, of this set, is committed; it fails when another broker leads the set."""
        wait = NodeWait(reason)
        self._commit_waits.append((token, wait))
        return wait

    def _tell_commit_waits(self) -> None:
        waits, self._commit_waits = self._commit_waits, []
        for token, wait in waits:
            if token.is_committed:
                wait.ready()
            elif token.failure is not None:
                wait.fail(as_amqp(token.failure))
            else:
                self._commit_waits.append((token, wait))

    def await_queue(self, name: str) -> NodeWait:
        """What to wait for until there is a queue of that name, which is about to be declared here."""
        wait = self._awaited.get(name)
        if wait is None:
            wait = self._awaited[name] = NodeWait(f"the queue {name} is being made in the resource set {self.name}")
        return wait

    def _tell_awaited(self) -> None:
        """Let those attach whose queue has come, or who have to go elsewhere for it."""
        there = self.resources.catalog.queues
        for name, wait in list(self._awaited.items()):
            if name in there or self.read_only or not len(wait):
                del self._awaited[name]
                wait.ready()

    def _not_primary(self, text: str) -> ModelError:
        directory = self._host.directory
        return ServedElsewhere(directory, self.name) if directory.has_many_sets else NotPrimary(text)

    def _finish_work(self) -> None:
        """Nothing may be written any more: each task finds that out and comes to its end."""
        self._host.end_links_now()
        self.resources.work.run()


def _asked(link: LinkEndpoint, ask: Callable[[], bool], *, has_ended: bool) -> bool:
    """What `link` answers; `has_ended`: the answer of one on which a bug comes up, and which ends with it."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 # see `LinkEndpoint.bug`
        link.bug(error)
        return has_ended


def _deliver(consumer: Consumer, entries: list[Entry]) -> None:
    try:
        consumer.deliver(entries)
    except Exception as error:  # noqa: BLE001 # see `LinkEndpoint.bug`
        endpoint_of(consumer).bug(error, entries)
