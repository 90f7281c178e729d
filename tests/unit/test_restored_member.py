"""Stories about what a broker says of itself that has its log from a store: whom it has to ask before it leads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from member_harness import MemberHarness, StoreRequest
from model_support import NOW_MS, TextReader
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.types import (
    Dequeued,
    DequeueReason,
    Enqueued,
    Event,
    GenerationStarted,
    InSyncChanged,
    QueueDeclared,
    QueueDeleted,
    SessionAcquired,
    TransactionCommitted,
    TransientsLost,
)
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.link_ends import end_of
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Held, Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources

SETTINGS = MemberSettings("a", "a-2", ("a:5672", "b:5672", "c:5672"), "a:5672", has_store=True)
BEGAN = GenerationStarted(1, "a", "uuid", 0, False, "first start")
ALL = InSyncChanged(1, ("a", "b", "c"))
ALONE = InSyncChanged(2, ("a",))


def member(
    *held: Event,
    store: StoreOrigin = StoreOrigin.DIRTY,
    settings: MemberSettings = SETTINGS,
    promised: int = 0,
    to: str = "",
    left_out: int = 0,
) -> Member:
    """One whose log goes up to LSN 2 for certain: all three were in sync. `left_out`: messages after `held`."""
    resources = Resources(TextReader())
    for event in (BEGAN, ALL):
        resources.replicated.write(event)
    resources.replicated.log.reset(2)
    records = [LogRecord(lsn, event, False) for lsn, event in enumerate(held, start=3)]
    end = 2 + len(records) + left_out
    batches = (Held(end, records),) if end > 2 else ()
    restored = Restored(store, batches, lost_transient=left_out, promised=promised, promised_to=to)
    return Member(settings, resources.replicated, lambda: 0.5, lambda: NOW_MS, restored)


def test_who_was_left_out_may_not_know_so_is_asked_while_that_is_not_certain() -> None:
    """A primary that was cut off wrote that it is alone; the others had gone on without it."""
    found = member(ALONE)
    assert (found.status.epoch, found.status.members) == (2, ("a", "b", "c"))
    assert (found.answer().members, found.answer().newest_members) == (("a", "b", "c"), ("a",))


def test_a_generation_that_began_by_a_verdict_needs_no_more_than_its_own_set() -> None:
    found = member(GenerationStarted(2, "a", "uuid", 0, False, "b died"), InSyncChanged(2, ("a", "c")))
    assert (found.status.generation, found.status.members) == (2, ("a", "c"))


def test_but_what_that_generation_changed_later_may_not_have_been_agreed_on() -> None:
    began = GenerationStarted(2, "a", "uuid", 0, False, "b died")
    found = member(began, InSyncChanged(2, ("a", "c")), InSyncChanged(3, ("a",)))
    assert found.status.members == ("a", "c")


@pytest.mark.parametrize("store", [StoreOrigin.MEMORY, StoreOrigin.CLEAN])
def test_without_a_crash_the_newest_set_is_the_one(store: StoreOrigin) -> None:
    assert member(ALONE, store=store).status.members == ("a",)


def test_what_it_has_on_disk_it_holds() -> None:
    assert member(ALONE).position.lsn == 3


@pytest.mark.parametrize("held", [(), (ALONE,)])
def test_what_a_store_left_out_was_written_all_the_same(held: tuple[Event, ...]) -> None:
    """Its LSNs are taken, and are not given to anything else."""
    found = member(*held, left_out=3, settings=replace(SETTINGS, addresses=("a:5672",)))
    end = found.position.lsn
    assert end == 2 + len(held) + 3
    waking = Waking(found)
    waking.promote(force=True)
    assert found.status.state is State.PRIMARY
    assert [line["first_lsn"] for line in found.history()] == [1, end + 1]


@pytest.mark.parametrize("common", [3, 4, 5])
def test_a_part_of_what_a_store_left_out_may_be_taken_back(common: int) -> None:
    waking = Waking(member(left_out=3))
    assert waking.is_welcome(common)
    assert waking.member.position.lsn == common


def with_held(records: list[LogRecord], lost_transient: int, resources: Resources | None = None) -> Member:
    """As `member`, of a log with gaps, where the store left something out. `resources`: to be filled."""
    resources = resources or Resources(TextReader())
    for event in (BEGAN, ALL):
        resources.replicated.write(event)
    resources.replicated.log.reset(2)
    held = (Held(records[-1].lsn, records),)
    return Member(
        SETTINGS,
        resources.replicated,
        lambda: 0.5,
        lambda: NOW_MS,
        Restored(StoreOrigin.DIRTY, held, lost_transient=lost_transient),
    )


QUEUE = 3
LOST_BEFORE_AND_AFTER = [
    LogRecord(QUEUE, QueueDeclared("q", {}), False),
    LogRecord(5, TransientsLost(5), False),
    LogRecord(7, Dequeued(QUEUE, (6,), DequeueReason.CONSUMED), False),
]
"""Messages 4 and 6 were not durable."""


@pytest.mark.parametrize(
    ("lost_transient", "state", "is_complete"),
    [
        pytest.param(2, State.CATCHUP, True, id="it knows what it lacks: that others remove it is no error"),
        pytest.param(0, State.CONNECTING, False, id="it should know, and does not: it compares, and is not promoted"),
    ],
)
def test_messages_that_were_lost_later_than_others_were_given_up_are_still_missed(
    lost_transient: int, state: State, is_complete: bool
) -> None:
    """Those who did not lose their memory have them, and tell when they go."""
    waking = Waking(with_held(LOST_BEFORE_AND_AFTER, lost_transient))
    assert waking.is_welcome(7)
    waking.commit(7)
    assert waking.member.status.state is state
    assert waking.says_of_itself() == (is_complete, lost_transient > 0)


def test_who_held_nothing_but_what_was_lost_is_not_remembered() -> None:
    """It would be for good: a queue that nothing is held of is deleted without a look at who holds something."""
    resources = Resources(TextReader())
    records = [
        LogRecord(QUEUE, QueueDeclared("q", {}), False),
        LogRecord(5, SessionAcquired(QUEUE, 1, "session", "link", (4,)), False),
    ]
    waking = Waking(with_held(records, lost_transient=1, resources=resources))
    assert waking.is_welcome(5)
    waking.commit(5)
    assert resources.replicated.log.last_lsn == 5
    assert list(resources.catalog.holdings) == []


def durable_message(body: bytes, *queues: int) -> Enqueued:
    return Enqueued(queues, body, durable=True, priority=4, expires_at_ms=0, key="")


def test_what_may_have_been_confirmed_is_kept_before_it_is_taken_back_for_a_primary_that_lacks_it() -> None:
    """Its store does not tell; if it was confirmed, that primary was promoted by force."""
    held = [
        LogRecord(QUEUE, QueueDeclared("q", {}), False),
        LogRecord(4, durable_message(b"the primary has it", QUEUE), False),
        LogRecord(5, durable_message(b"half of a transaction", QUEUE), True),
        LogRecord(6, durable_message(b"the other half", QUEUE), True),
        LogRecord(7, TransactionCommitted(2), False),
        LogRecord(8, QueueDeclared("new", {}), False),
        LogRecord(9, durable_message(b"in two queues", QUEUE, 8), False),
        LogRecord(10, durable_message(b"consumed", QUEUE), False),
        LogRecord(11, Dequeued(QUEUE, (10, 4), DequeueReason.CONSUMED), False),
        LogRecord(12, QueueDeclared("gone", {}), False),
        LogRecord(13, durable_message(b"deleted with its queue", 12), False),
        LogRecord(14, QueueDeleted(12), False),
        LogRecord(15, durable_message(b"of a transaction that never ended", QUEUE), True),
    ]
    waking = Waking(with_held(held, 0))
    assert waking.is_welcome(5)
    assert waking.done == [
        fx.Discarded("q", (5, 6, 9), (b"half of a transaction", b"the other half", b"in two queues")),
        fx.Discarded("new", (9,), (b"in two queues",)),
        fx.TruncateLog(5),
    ]


def test_what_the_primary_has_too_is_no_reason_to_keep_anything() -> None:
    queue = LogRecord(QUEUE, QueueDeclared("q", {}), False)
    waking = Waking(with_held([queue, LogRecord(4, durable_message(b"both have it", QUEUE), False)], 0))
    assert waking.is_welcome(4)
    assert waking.done == []


@pytest.mark.parametrize(
    ("store", "limit_s"), [(StoreOrigin.DIRTY, 1.0), (StoreOrigin.CLEAN, 0.2), (StoreOrigin.MEMORY, 0.2)]
)
def test_beside_a_coordinator_the_others_are_waited_for_only_if_their_stores_count(
    store: StoreOrigin, limit_s: float
) -> None:
    """They may have been started a moment ago; no record says how far their stores go."""
    waking = member(store=store, settings=COORDINATED)
    waking.handle(fx.Started(), 1000.0)
    asked = [each for each in waking.handle(fx.PromoteAsked(1, False), 1000.0) if isinstance(each, fx.Ask)]
    assert [each.limit_s for each in asked] == [limit_s]


COORDINATED = replace(SETTINGS, has_coordinator=True)
LED_BY_B = ClusterRecord("uuid", 1, "b", 1, ("a", "b", "c"))
LED_BY_A = ClusterRecord("uuid", 2, "a", 2, ("a",))


Greeting = tuple[tuple[int, ...], bool, bool, bool, bool]
"""Of a Hello: `started`, `reads_marks`, `reads_schedules`, `reads_annotations` and `reads_details`."""


class Waking(MemberHarness):
    """A member that starts, and that the primary of generation 1 welcomes again and again."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.now_s = 1000.0
        self.asked = 0
        """Number of the last question for the record."""
        self._link = self._asked_peers = 0
        self._hello: fr.Hello | None = None
        self._address = ""
        self.cannot_read: set[str] = set()
        """Addresses of brokers that can read no greeting, see `CANNOT_READ`."""
        self.done: list[fx.Discarded | StoreRequest] = []
        """What was to be kept, and what the store was asked for."""
        self.apply(fx.Started())

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return NOW_MS

    def read_record(self, number: int) -> None:
        self.asked = number

    def note_discarded(self, discarded: fx.Discarded) -> None:
        self.done.append(discarded)

    def give_to_store(self, request: StoreRequest) -> None:
        self.done.append(request)

    def open_link(self, link: int, address: str) -> None:
        self._link, self._address = link, address

    def send_frame(self, link: int, frame: fr.Frame) -> None:
        if isinstance(frame, fr.Hello):
            self._hello = frame

    def ask_peers(self, asked: fx.Ask) -> None:
        self._asked_peers = asked.question.number

    def promote(self, *, force: bool) -> None:
        """An operator says so; nobody else answers."""
        self.apply(fx.PromoteAsked(1, force))
        self.apply(fx.PeersAnswered(self._asked_peers, (), ()))
        self.apply(fx.PeersAnswered(self._asked_peers, (), ()))

    def is_welcome(self, common: int = 2) -> bool:
        """Whether it follows that primary, which has the log up to `common`."""
        self.now_s += 5.0
        self.apply(fx.Ticked())
        self.apply(fx.LinkOpened(self._link))
        history = (fr.GenerationEntry(1, "a", 1),)
        welcome = fr.Welcome("b", "uuid", 1, history, common, fr.Resync.TAIL, "", 10.0)
        self.apply(fx.FrameReceived(self._link, welcome))
        return self.member.status.state is State.CATCHUP

    def commit(self, lsn: int) -> None:
        """The primary says that all up to `lsn` is certain."""
        self.apply(fx.FrameReceived(self._link, fr.Heartbeat(1, lsn, lsn)))

    def says_of_itself(self) -> tuple[bool, bool]:
        """In its next Hello: whether it is complete, and whether it lacks transient messages."""
        self.apply(fx.LinkLost(self._link, "connection reset"))
        self.now_s += 5.0
        self.apply(fx.Ticked())
        self.apply(fx.LinkOpened(self._link))
        assert self._hello is not None
        return self._hello.complete, self._hello.lacks_transient

    def greetings(self, reasons: list[str]) -> dict[str, list[Greeting]]:
        """It looks for the primary, and its channels end, for these reasons one after the other: how it greets at each
        address."""
        if self.member.status.state is State.CATCHUP:
            self.apply(fx.LinkLost(self._link, "connection reset"))
        greetings: dict[str, list[Greeting]] = {"b:5672": [], "c:5672": []}
        greeted = 0
        for reason in reasons:
            self.now_s += 5.0
            self.apply(fx.Ticked())
            while self._link == greeted:  # the pause between two rounds grows
                self.now_s += 5.0
                self.apply(fx.Ticked())
            greeted = self._link
            self.apply(fx.LinkOpened(self._link))
            hello = self._hello
            assert hello is not None
            reads = hello.reads_marks, hello.reads_schedules, hello.reads_annotations, hello.reads_details
            greetings[self._address].append((hello.started, *reads))
            said = CANNOT_READ if self._address in self.cannot_read else reason
            self.apply(fx.LinkLost(self._link, said, end_of(said)))
        return greetings

    def read(self, record: ClusterRecord | None) -> None:
        """The coordinator answers; None: it cannot be reached."""
        assert self.asked
        self.apply(fx.RecordRead(self.asked, record, "" if record else "unreachable"))
        self.asked = 0


def test_who_died_while_it_wanted_to_lead_follows_nobody_older_before_it_has_seen_the_record() -> None:
    """The record may name it by now: then its log is the one, and a comparison with another would take from it."""
    waking = Waking(member(settings=COORDINATED, promised=2, to="a"))
    assert not waking.is_welcome()
    waking.read(None)
    assert not waking.is_welcome()
    waking.read(LED_BY_B)
    assert waking.is_welcome()


def test_and_follows_nobody_older_at_all_once_it_has_seen_that_the_record_names_it() -> None:
    waking = Waking(member(settings=COORDINATED, promised=2, to="a"))
    assert not waking.is_welcome()
    waking.read(LED_BY_A)
    assert not waking.is_welcome()
    assert not waking.asked


@pytest.mark.parametrize(("settings", "promised"), [(COORDINATED, 1), (COORDINATED, 0), (SETTINGS, 2)])
def test_whoever_has_nothing_to_ask_the_coordinator_follows_at_once(settings: MemberSettings, promised: int) -> None:
    """Its log has begun what it wanted, or it never wanted to lead, or there is no record."""
    waking = Waking(member(settings=settings, promised=promised, to="a" if promised else ""))
    assert waking.is_welcome()


CANNOT_READ = "HELLO: expected no field called reads_details"
"""As a release says it that knows no such field."""
FULL, WITHOUT_THE_LAST, NO_ANNOTATIONS, NO_SCHEDULES, OLDER = (
    ((0,), *(number < count for number in range(4))) for count in range(4, -1, -1)
)
BAREST = ((), False, False, False, False)


def test_who_cannot_read_the_greeting_is_an_older_release_perhaps_and_greeted_as_such() -> None:
    waking = Waking(member())
    assert waking.is_welcome()
    greetings = waking.greetings([CANNOT_READ] * 12)
    said = [FULL, WITHOUT_THE_LAST, NO_ANNOTATIONS, NO_SCHEDULES, OLDER, BAREST]
    assert greetings["b:5672"][:6] == greetings["c:5672"][:6] == said


@pytest.mark.parametrize(
    "reason",
    [
        "connection reset",
        "stopping",
        "broker b has no replica of the resource set set1",  # which is made just now
    ],
)
def test_and_nobody_else_is_who_ends_the_channel_without_a_word(reason: str) -> None:
    waking = Waking(member())
    assert waking.is_welcome()
    greetings = waking.greetings([reason] * 6)
    assert set(greetings["b:5672"] + greetings["c:5672"]) == {FULL}


def test_nor_whoever_is_at_another_address() -> None:
    waking = Waking(member())
    waking.cannot_read = {"b:5672"}
    greetings = waking.greetings(["connection reset"] * 6)
    assert greetings["b:5672"][:3] == [FULL, WITHOUT_THE_LAST, NO_ANNOTATIONS]
    assert set(greetings["c:5672"]) == {FULL}


def test_nor_the_next_process_at_that_address() -> None:
    """It is of a newer release, perhaps: that is what a rolling upgrade is."""
    waking = Waking(member())
    greetings = waking.greetings([CANNOT_READ] * 2 + ["connection reset"] * 2 + [CANNOT_READ] * 2)
    assert greetings["b:5672"][:3] == [FULL, WITHOUT_THE_LAST, FULL]


def test_nor_who_is_there_when_a_primary_is_looked_for_again() -> None:
    waking = Waking(member())
    waking.greetings([CANNOT_READ] * 4)
    assert waking.is_welcome()
    greetings = waking.greetings(["connection reset"] * 4)
    assert greetings["b:5672"][0] == greetings["c:5672"][0] == FULL
