"""What drives a `Member`, of whichever set: feeds it its inputs in their order, and carries its effects out in theirs.

It decides nothing. Each kind of effect has its place: channels (`PeerLinks`), questions to other brokers, the record,
the store (`MemberStore`), requests (`OperatorRequests`); what else there is, who derives from this says: `Membership`
drives the member of `default`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from qpid_ha_broker.amqp.nodes.hosted_set import HostedSet
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.process_time import ProcessTime
from qpid_ha_broker.ha.states import LEADING
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue_arguments import StoreErrorPolicy as Policy
from qpid_ha_broker.server.control.operator_requests import OperatorRequests
from qpid_ha_broker.server.peers.peer_links import PeerLinks
from qpid_ha_broker.server.runtime.host import Host
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.store.errors import StoreError

log = logging.getLogger("cluster")

WATCHED_BYTES = 32 * 1024
"""Written in one turn: for less, it is enough to look at each tick whether channels keep up."""

Action = Callable[[Any], None]
"""Carries one kind of effect out."""


class Questions(Protocol):
    """Who asks other brokers."""

    def ask_for_core(self, effect: fx.Ask) -> None:
        """`PeersAnswered` follows."""


class RecordAccess(Protocol):
    """Who reads and writes the set's record."""

    def read(self, effect: fx.ReadRecord) -> None:
        """`RecordRead` follows."""

    def write(self, effect: fx.WriteRecord) -> None:
        """`RecordWritten` follows."""


class MemberDriver:
    """The promise: inputs reach the core in the order in which they happen, and effects are carried out in theirs.

    The core is never entered twice: what happens while its effects are carried out waits for its turn.
    `log_prefix`: of lines in the log about what was asked of the member.
    """

    def __init__(
        self, broker: Host, member: Member, hosted: HostedSet, process: ProcessTime, log_prefix: str = ""
    ) -> None:
        self.member = member
        self.process = process
        hosted.prove_lead = self.prove_lead
        self.requests = OperatorRequests(member, self.feed, log_prefix)
        self.links: PeerLinks
        """Since `_carry_out`."""
        self._broker = broker
        self._log = hosted.resources.replicated.log
        self._store: MemberStore | None = None
        self._has_witness = member.settings.has_witness
        self._inputs: deque[fx.Input] = deque()
        self._effects: Iterator[fx.Effect] = iter(())
        """What is left to do of the last input."""
        self._is_held = False
        """Until `_go_on` is called nothing more is carried out: what was done last is not complete yet."""
        self._is_feeding = False
        self._is_stopped = False
        self._actions: dict[type, Action] = {}

    def _carry_out(
        self,
        links: PeerLinks,
        questions: Questions,
        records: RecordAccess,
        store: MemberStore | None,
        own: dict[type, Action],
    ) -> None:
        """Who has what done; `own`: the effects that the others know nothing of."""
        self.links, self._store = links, store
        self._actions = {
            fx.Connect: links.connect,
            fx.Send: links.send,
            fx.Close: links.close,
            fx.Ask: questions.ask_for_core,
            fx.ReadRecord: records.read,
            fx.WriteRecord: records.write,
            fx.Answered: self.requests.answered,
            **own,
        }
        if store is not None:
            self._actions |= {
                fx.Persist: store.persist,
                fx.TruncateLog: store.truncate,
                fx.BeginCheckpoint: store.begin_checkpoint,
                fx.WriteCheckpoint: store.write_checkpoint,
                fx.PersistVote: store.persist_vote,
            }

    def prove_lead(self) -> LeadProof:
        """How sure it is that this broker leads the set; in each turn in which consumers may be given something."""
        now_s = time.monotonic()
        return self.member.lead_proof(now_s, self.process.look(now_s))

    def feed(self, happened: fx.Input) -> None:
        """Put it before the core, and do what it wants."""
        if self._is_stopped:
            return
        self._inputs.append(happened)
        if not self._is_feeding and not self._is_held:
            self._go_on()

    def _go_on(self) -> None:
        """Carry out what is left, and put the inputs that wait before the core, until one of the effects holds it."""
        self._is_feeding, self._is_held = True, False
        try:
            while self._carry_out_effects() and self._inputs:
                self._effects = iter(self.member.handle(self._inputs.popleft(), time.monotonic()))
        except StoreError as error:
            self._give_up(str(error))
        except Exception as error:  # whatever state the core is in now, it must not speak for this broker any more
            log.exception("a bug: %s", error)
            self._give_up(f"a bug in the cluster's logic ({type(error).__name__}); the log has it")
        finally:
            self._is_feeding = False
        self.links.flush()

    def _carry_out_effects(self) -> bool:
        """Whether all of them could be."""
        for effect in self._effects:
            self._actions[type(effect)](effect)
            if self._is_held:
                return False
        return True

    def _give_up(self, reason: str) -> None:
        self._inputs.clear()
        self._effects = iter(())
        self.fail(reason)

    def fail(self, reason: str) -> None:
        """The core must not go on. Of `default`: the broker ends."""
        self._broker.fail(reason)

    def turn_ended(self, batch: LogBatch | None) -> None:
        """The set had a turn, and its log has nothing pending."""
        if not self._has_witness:
            return
        rest = self._log.take_batch()  # what the turn's last steps have written
        if rest is not None:
            batch = rest if batch is None else _joined(batch, rest)
        primary = self.member.primary
        behind = primary if primary is not None and primary.has_somebody_behind else None
        if batch is None and behind is None:
            return
        if behind is not None or self.links.is_any_full or (batch is not None and len(batch.data) > WATCHED_BYTES):
            self.links.watch()
        self.feed(fx.TurnEnded(batch))
        if behind is not None and behind.has_work:
            self._turn_again()

    def _turn_again(self) -> None:
        """The set has more to do than fits into this turn."""
        self._broker.schedule_turn()

    def persisted(self, number: int) -> None:
        """The store holds what was asked for under that number."""
        if self._store is not None:
            self._store.persisted(number)

    def store_writable(self, problem: str) -> None:
        """Why the store takes nothing now; empty: it does."""
        self.feed(fx.StoreWritable(problem))

    def store_failed(self, text: str) -> None:
        """Nothing more can be stored: who leads ends; a backup does as it was told. Raises StoreError."""
        policy = Policy(self._broker.current().ha.store_error)
        if self._store is None or self.member.status.state in LEADING:
            raise StoreError(text)
        self._store.go_on_without(text, policy)


def _joined(batch: LogBatch, rest: LogBatch) -> LogBatch:
    return LogBatch(batch.first_lsn, rest.last_lsn, batch.data + rest.data, batch.transient + rest.transient)
