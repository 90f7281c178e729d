"""What brokers do, in an operator's words: where the golden stories meet the names in the code.

Each frame, question, record and request to the store has its line here; what belongs to the driver (states, answers,
channels) has it in `traced_cluster`. A class that gets another name, or another shape, changes these two and no story.
"""

from __future__ import annotations

from collections.abc import Iterable

from model_support import body
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.cluster_record import ClusterRecord

RESYNC = {fr.Resync.TAIL: "the tail of the stream follows", fr.Resync.DIFF: "compare"}
STORES = {
    fr.StoreOrigin.MEMORY: "",
    fr.StoreOrigin.UNVERIFIED: ", from a primary that is not known to be the recorded one",
    fr.StoreOrigin.DIRTY: ", from a store that was not closed in order",
    fr.StoreOrigin.CLEAN: ", from a store that was closed in order",
    fr.StoreOrigin.FAILED: ", its store has failed",
}
PLAIN_EVENTS: dict[type, str] = {
    ev.QueueDeclared: "queue declared",
    ev.QueueUpdated: "queue updated",
    ev.QueueDeleted: "queue deleted",
    ev.ExchangeDeclared: "exchange declared",
    ev.ExchangeDeleted: "exchange deleted",
    ev.Bound: "bound",
    ev.Unbound: "unbound",
    ev.QueueUsed: "queue used",
    ev.ReplicationChanged: "replication changed",
    ev.Enqueued: "enqueued",
    ev.Dequeued: "dequeued",
    ev.Acquired: "acquired",
    ev.Released: "released",
    ev.ProducerAdvanced: "producer advanced",
    ev.NumbersRefused: "numbers refused",
    ev.HandedOut: "handed out",
    ev.SessionAcquired: "held for a session",
    ev.SessionStarted: "session started",
    ev.SessionResumed: "session resumed",
    ev.SessionDetached: "session detached",
    ev.SessionEnded: "session ended",
    ev.TransactionCommitted: "transaction committed",
    ev.TransientsLost: "transient messages lost",
    ev.BrokerRegistered: "broker registered",
    ev.BrokerChanged: "broker changed",
    ev.BrokerRemoved: "broker removed",
    ev.SetPlaced: "set placed",
    ev.SetDeleted: "set deleted",
    ev.SetGrouped: "set grouped",
    ev.SetRecorded: "set recorded",
    ev.QueuePlaced: "queue placed",
    ev.QueueRemoved: "queue removed",
    ev.ReplicaPoliciesChanged: "replica policies changed",
    ev.SettingChanged: "setting changed",
}


def names(members: Iterable[str]) -> str:
    """`a b c`, or `nobody`."""
    return " ".join(members) or "nobody"


def count(number: int, noun: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def lsns(first: int, last: int) -> str:
    """A range of the log."""
    return str(first) if first == last else f"{first}..{last}"


def record_words(record: ClusterRecord | None) -> str:
    """What a coordinator holds; None: it was not heard."""
    if record is None:
        return "cannot be reached"
    if not record.generation:
        return "empty"
    cluster, generation, primary, epoch, members, claimed = record
    text = f"generation {generation}, primary {primary}, epoch {epoch}, in sync {names(members)}, cluster {cluster}"
    return f"{text}, claimed" if claimed else text


def batch_words(data: bytes) -> str:
    """The events of a part of the log, those of one kind that follow each other together."""
    decoded = decode(data)
    if decoded.problem is not None:
        raise AssertionError(f"a damaged batch: {decoded.problem}")
    words: list[tuple[str, int]] = []
    for record in decoded.records:
        text = _event_words(record.event)
        if words and words[-1][0] == text:
            words[-1] = text, words[-1][1] + 1
        else:
            words.append((text, 1))
    return ", ".join(text if number == 1 else f"{number} x {text}" for text, number in words)


def _event_words(event: object) -> str:
    if isinstance(event, ev.GenerationStarted):
        force = " by force" if event.forced else ""
        return f"generation {event.generation} of {event.cluster} begins{force}, primary {event.primary}"
    if isinstance(event, ev.InSyncChanged):
        return f"epoch {event.epoch}, in sync {names(event.members)}"
    if isinstance(event, ev.Enqueued):
        return f'enqueued "{body(event.payload)}"'
    return PLAIN_EVENTS[type(event)]


def frame_words(frame: fr.Frame) -> str:
    """What one broker says to another one."""
    match frame:
        case fr.Hello() | fr.Welcome() | fr.Refused() | fr.TakeOver() | fr.Shutdown():
            return _greeting_words(frame)
        case fr.Batch(_, first, last, committed, _):
            return f"log {lsns(first, last)}, committed {committed}"
        case fr.Ack(_, lsn, chunks):
            return f"holds up to {lsn}{f', chunks taken in {chunks}' if chunks else ''}"
        case fr.Heartbeat(_, committed, last):
            return f"heartbeat: log ends at {last}, committed {committed}"
        case fr.Holdings(queue, ranges):
            return f"has of queue {queue}: {', '.join(lsns(*each) for each in ranges)}"
        case fr.HoldingsDone():
            return "has told all it has"
        case fr.Objects(_, lsn, epoch, members, _, _, data):
            return f"configuration as of {lsn}: epoch {epoch}, in sync {names(members)}; {batch_words(data)}"
        case fr.Chunk(_, queue, low, high, last, dropped, _, data):
            news = f"{count(len(decode(data).records), 'message')}, {len(dropped)} to drop"
            return f"chunk of queue {queue} from {high} down to {low}: {news}{', the last' if last else ''}"
        case fr.CaughtUp(_, lsn):
            return f"caught up with the log at {lsn}"
        case fr.Answer():
            return _answer_words(frame)
    raise AssertionError(f"no word for {frame}")


def _greeting_words(frame: fr.Hello | fr.Welcome | fr.Refused | fr.TakeOver | fr.Shutdown) -> str:
    match frame:
        case fr.Hello():
            return f"hello: {_log_words(frame)}"
        case fr.Welcome(_, cluster, generation, _, common, resync):
            return f"welcome to generation {generation} of {cluster}: common up to {common}; {RESYNC[resync]}"
        case fr.Refused(code, text, address):
            where = f"; ask {address}" if address else ""
            return f"refused ({code.value}): {text}{where}"
        case fr.TakeOver(generation):
            return f"take over from me, the primary of generation {generation}"
        case fr.Shutdown(_, lsn, uuid):
            return f"shut down at {lsn}{f', mark the store clean under {uuid}' if uuid else ''}"


def _log_words(hello: fr.Hello) -> str:
    if not hello.history:
        log = "log empty"
    else:
        newest = hello.history[-1].generation
        log = f"log of {hello.cluster} up to {hello.last_lsn} in generation {newest}, applied {hello.applied_lsn}"
    facts = [
        "" if hello.complete else "not whole",
        "lacks transient messages" if hello.lacks_transient else "",
        f"has promised generation {hello.promised}" if hello.promised else "",
        "" if hello.remembers else "may have forgotten what it confirmed",
    ]
    return ", ".join([log, *filter(None, facts)])


def _answer_words(answer: fr.Answer) -> str:
    log = (
        f"log up to {answer.lsn} in generation {answer.generation}, epoch {answer.epoch}, in sync"
        f" {names(answer.members)}{'' if answer.complete else ', not whole'}"
        if answer.generation
        else "log empty"
    )
    promised = f", has promised generation {answer.promised} to {answer.promised_to}" if answer.promised_to else ""
    says = f"agrees{f': {answer.text}' if answer.text else ''}" if answer.granted else f"does not agree: {answer.text}"
    return f"{answer.state}, {log}{STORES[answer.store]}{promised}; {says}"


def question_words(question: fr.Question) -> str:
    """What a broker asks all the others."""
    match question.topic:
        case fr.Topic.STATUS:
            return "what are you?"
        case fr.Topic.CLAIM:
            return f"will you follow nobody older than generation {question.generation}, mine?"
        case fr.Topic.WITHDRAW:
            return f"forget my generation {question.generation}"
        case fr.Topic.STEP_DOWN:
            return "hand over to me"
        case fr.Topic.ANNOUNCE:
            return f"I am primary of generation {question.generation}"
        case fr.Topic.QUERY:
            return "facts and figures?"
        case fr.Topic.CONNECTIONS:
            return f"about your connections: {question.request}"


def store_words(effect: fx.Effect) -> str:
    """What a broker wants of its store; empty: `effect` is no such thing."""
    match effect:
        case fx.Persist(_, first, last, committed, _, _):
            return f"persist {lsns(first, last)}, committed {committed}"
        case fx.TruncateLog(lsn):
            return f"truncate after {lsn}"
        case fx.BeginCheckpoint(_, lsn):
            return f"begin a checkpoint at {lsn}; what is there counts no more"
        case fx.WriteCheckpoint():
            return "checkpoint the state"
        case fx.PersistVote(generation, to):
            return f"write down at once that generation {generation} is promised to {to or 'nobody any more'}"
        case fx.CleanEnd(uuid):
            return f"close, clean under {uuid}" if uuid else "close, not clean"
    return ""
