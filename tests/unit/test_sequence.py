"""Stories about the coat rack: what hangs where, what comes back, and how much of it is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpid_ha_broker.model.queues import sequence
from qpid_ha_broker.model.queues.cold import ColdMessages, packed
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import Body, BodyRef
from qpid_ha_broker.model.queues.sequence import (
    NO_LIMIT,
    Cursor,
    Entry,
    HistoryCursor,
    Holder,
    MessageSequence,
    SequenceBlock,
)

SOMEBODY = Holder()
COMMON, RARE = MessageHeader((1,), False, 4, 0, ""), MessageHeader((1,), True, 4, 0, "")


def entry_of(message_id: int) -> Entry:
    return Entry(message_id, MessageHeader((1,), False, 4, 0, ""), b"%d" % message_id)


def filled(*ids: int) -> tuple[MessageSequence, list[Entry]]:
    messages = MessageSequence()
    entries = [entry_of(message_id) for message_id in ids]
    for entry in entries:
        messages.append(entry)
    return messages, entries


def seen_by(cursor: Cursor) -> list[int]:
    found = []
    while (entry := cursor.peek()) is not None:
        found.append(entry.id)
        cursor.skip()
    return found


def release(entry: Entry, *cursors: Cursor) -> None:
    entry.holder = None
    for cursor in cursors:
        cursor.rewind(entry)


def blocks_of(messages: MessageSequence) -> list[SequenceBlock]:
    found: list[SequenceBlock] = []
    block: SequenceBlock | None = messages.start()[0]
    while block is not None:
        found.append(block)
        block = block.next
    return found


def distinct_entries(messages: MessageSequence) -> int:
    return len({id(entry) for block in blocks_of(messages) for entry in block.entries})


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "BLOCK_LENGTH", 4)
    monkeypatch.setattr(sequence, "SEAL_LENGTH", 2)
    monkeypatch.setattr(sequence, "THIN_LENGTH", 1)


def test_messages_are_seen_once_and_in_order_of_arrival() -> None:
    messages, _ = filled(3, 5, 8)
    cursor = Cursor(messages)
    assert seen_by(cursor) == [3, 5, 8]
    messages.append(entry_of(9))
    assert seen_by(cursor) == [9]


def test_what_somebody_has_is_passed_by() -> None:
    messages, entries = filled(1, 2, 3)
    entries[1].holder = SOMEBODY
    assert seen_by(Cursor(messages)) == [1, 3]
    assert [entry.id for entry in messages] == [1, 2, 3]


def test_what_comes_back_is_seen_again_in_its_old_place_before_later_ones() -> None:
    messages, entries = filled(1, 2, 3, 4)
    cursor = Cursor(messages)
    for _ in range(3):
        cursor.peek()
        cursor.skip()
    for entry in entries[:3]:
        entry.holder = SOMEBODY
    release(entries[1], cursor)
    release(entries[0], cursor)
    assert seen_by(cursor) == [1, 2, 4]


def test_rewinding_to_what_lies_ahead_changes_nothing() -> None:
    messages, entries = filled(1, 2, 3)
    cursor = Cursor(messages)
    cursor.rewind(entries[2])
    assert seen_by(cursor) == [1, 2, 3]


def test_what_has_left_lets_go_of_its_content_and_cannot_leave_again() -> None:
    messages, entries = filled(1, 2)
    messages.remove([entries[0]])
    assert messages.find(1) is None
    assert len(messages) == 1
    with pytest.raises(LookupError, match="message 1"):
        messages.remove([entries[0]])
    with pytest.raises(LookupError, match="message 1"):
        entries[0].resident_body()


@pytest.mark.usefixtures("small_blocks")
def test_a_cursor_that_slept_while_its_block_was_forgotten_finds_its_way() -> None:
    messages, entries = filled(1, 2, 3)
    sleeping = Cursor(messages)
    sleeping.peek()
    sleeping.skip()
    for message_id in range(4, 2000):
        entries.append(entry_of(message_id))
        messages.append(entries[-1])
    survivor = entries.pop(1200)
    for entry in entries:
        messages.remove([entry])
    messages.append(entry_of(3000))
    assert seen_by(sleeping) == [survivor.id, 3000]


@pytest.mark.usefixtures("small_blocks")
def test_an_emptied_last_block_is_closed_and_the_next_message_is_still_found() -> None:
    messages, entries = filled(1, 2)
    cursor = Cursor(messages)
    assert seen_by(cursor) == [1, 2]
    for entry in entries:
        messages.remove([entry])
    assert distinct_entries(messages) == 0
    messages.append(entry_of(9))
    assert seen_by(cursor) == [9]
    assert messages.find(9) is not None


def test_a_million_messages_pass_by_one_that_stays_and_leave_nothing_behind() -> None:
    messages, (old,) = filled(1)
    consumer, idle = Cursor(messages), Cursor(messages)
    old.holder = SOMEBODY
    most_blocks = most_entries = 0
    for message_id in range(2, 1_000_002):
        entry = entry_of(message_id)
        messages.append(entry)
        assert consumer.peek() is entry
        consumer.skip()
        messages.remove([entry])
        if message_id % 50_000 == 0:
            most_blocks = max(most_blocks, len(blocks_of(messages)))
            most_entries = max(most_entries, distinct_entries(messages))
    assert most_blocks < 100
    assert most_entries < 2 * sequence.BLOCK_LENGTH
    release(old, consumer)
    assert seen_by(idle) == seen_by(consumer) == [1]


def test_one_unwanted_message_in_each_block_does_not_keep_the_others() -> None:
    messages, entries = filled(*range(1, 512 * 40 + 1))
    for entry in entries:
        if entry.id % 512:
            messages.remove([entry])
    cursor = Cursor(messages)
    assert distinct_entries(messages) < 40 * 2 * sequence.THIN_LENGTH + sequence.BLOCK_LENGTH
    assert seen_by(cursor) == [512 * n for n in range(1, 41)]
    assert all((messages.find(message_id) is None) == bool(message_id % 512) for message_id in range(1, 512 * 40))


@pytest.mark.usefixtures("small_blocks")
def test_ids_that_come_again_are_found_with_others_that_stayed() -> None:
    """They are in the block behind the one in which they had been."""
    messages, entries = filled(1, 2, 3)
    for entry in entries[1:]:
        messages.remove([entry])
    messages.go_back(1)
    messages.append(entry_of(3))
    assert [entry.id for entry in messages.find_all([1, 3])] == [1, 3]


@pytest.mark.usefixtures("small_blocks")
def test_ids_that_come_again_are_found_also_by_a_browser_that_slept() -> None:
    messages, entries = filled(*range(1, 12))
    browser = Cursor(messages)
    assert seen_by(browser) == list(range(1, 12))
    for entry in entries[2:]:
        messages.remove([entry])

    messages.go_back(2)
    for message_id in (3, 5):
        messages.append(entry_of(message_id))

    found = messages.find(5)
    assert found is not None
    assert found.id == 5
    assert [entry.id for entry in messages.newest_before(6, 10)] == [1, 2, 3, 5]
    assert messages.newest_id(4) == 3
    assert seen_by(browser) == [3, 5]


def plain(count: int) -> MessageSequence:
    """As many messages of which nobody has an entry, alike but for each hundredth."""
    messages = MessageSequence()
    for message_id in range(1, count + 1):
        messages.append_run([message_id], RARE if message_id % 100 == 0 else COMMON, [b"%d" % message_id])
    return messages


def test_a_message_at_rest_has_no_entry_and_one_header_with_others() -> None:
    messages = plain(20 * 512)
    assert distinct_entries(messages) == 0
    assert messages.newest_id(5000) == 5000
    assert messages.id_ahead(100, 3000) == 3100
    assert messages.after(700)[0].first_id == 513
    assert distinct_entries(messages) == 0, "ids are known without"
    alike = MessageSequence()
    for message_id in range(1, 2 * 512 + 1):
        alike.append_run([message_id], COMMON, [b""])
    assert [len(block.headers) for block in blocks_of(alike)] == [1, 512]


def test_small_bodies_at_rest_are_one_object_until_somebody_asks_for_them() -> None:
    messages = MessageSequence()
    for message_id in range(1, 4 * 512 + 2):
        messages.append_run([message_id], COMMON, [b"body %d" % message_id])
    assert [block.joined is not None for block in blocks_of(messages)] == [True, True, False, False, False]
    assert sum(len(block.bodies) for block in blocks_of(messages)) == 2 * 512 + 1
    found = messages.find(700)
    assert found is not None
    assert found.body == b"body 700"
    assert [block.joined is not None for block in blocks_of(messages)][:2] == [True, False]
    del found
    assert [entry.body for entry in messages] == [b"body %d" % message_id for message_id in range(1, 4 * 512 + 2)]


def test_bodies_that_were_looked_at_are_joined_again_when_nobody_has_them_any_more() -> None:
    messages = MessageSequence()
    for message_id in range(1, 10 * 512 + 1):
        messages.append_run([message_id], COMMON, [b"body %d" % message_id])
    kept = messages.find(600)
    assert kept is not None
    body = kept.body
    del kept
    assert len(seen_by(Cursor(messages))) == 10 * 512
    states = [(block.is_closed, block.joined is not None) for block in blocks_of(messages)]
    assert states[:4] == [(True, True), (True, False), (True, True), (True, True)], "somebody has one of the second's"
    found = messages.find(600)
    assert found is not None
    assert found.body is body


def test_bodies_that_another_queue_has_or_that_are_large_stay_as_they_are() -> None:
    here, elsewhere, large = MessageSequence(), MessageSequence(), MessageSequence()
    for message_id in range(1, 4 * 512 + 1):
        body = b"body %d" % message_id
        here.append_run([message_id], COMMON, [body])
        elsewhere.append_run([message_id], COMMON, [body])
        large.append_run([message_id], COMMON, [bytes(sequence.JOINED_BYTES + 1)])
    assert not [block for queue in (here, elsewhere, large) for block in blocks_of(queue) if block.joined is not None]
    pairs = zip(here, elsewhere, strict=True)
    assert all(one.body is other.body for one, other in pairs)


def test_who_looks_through_all_leaves_few_entries_behind_and_sees_what_came() -> None:
    messages = plain(40 * 512)
    cursor = Cursor(messages)
    for message_id in range(1, 40 * 512 + 1):
        entry = cursor.peek()
        assert entry is not None
        header = RARE if message_id % 100 == 0 else COMMON
        assert (entry.id, entry.header, entry.body) == (message_id, header, b"%d" % message_id)
        cursor.skip()
    assert distinct_entries(messages) <= (sequence.OPENED_LENGTH + 1) * 512
    assert [entry.id for entry in messages] == list(range(1, 40 * 512 + 1))
    assert distinct_entries(messages) <= (sequence.OPENED_LENGTH + 1) * 512


def test_an_entry_that_somebody_refers_to_or_that_has_a_history_stays_the_only_one() -> None:
    messages = plain(40 * 512)
    kept, held, returned = (messages.find(at * 512 + 7) for at in (1, 10, 20))
    assert kept is not None
    assert held is not None
    assert returned is not None
    held.holder, returned.delivery_count = SOMEBODY, 3
    ids = held.id, returned.id
    del held, returned
    assert len(list(messages)) == len(seen_by(Cursor(messages))) + 1 == 40 * 512
    again = [messages.find(message_id) for message_id in (kept.id, *ids)]
    assert again[0] is kept
    assert [(entry.holder, entry.delivery_count) for entry in again if entry is not None] == [
        (None, 0), (SOMEBODY, 0), (None, 3)
    ]  # fmt: skip
    messages.remove([kept])
    assert messages.find(kept.id) is None
    assert len(messages) == 40 * 512 - 1


class _File:
    """Has the body of each message at ten times its id."""

    def __init__(self, name: str = "snapshot") -> None:
        self.name = name

    def read(self, offset: int, length: int) -> bytes:
        raise AssertionError("nobody needs a body to find its message")


FILE = _File()


def cold_of(*ids: int) -> ColdMessages:
    columns = packed(ids, [10 * message_id for message_id in ids], [3 * (at + 1) for at in range(len(ids))])
    return ColdMessages(
        COMMON, FILE, columns, count=len(ids), first_id=ids[0], last_id=ids[-1], body_bytes=3 * len(ids)
    )  # fmt: skip


def stretches(count: int, length: int = 512) -> MessageSequence:
    """So many of which nobody knows more than a snapshot's index tells, and one behind them."""
    messages, _ = filled(length * count + 1)
    messages.prepend_cold([cold_of(*range(at * length + 1, (at + 1) * length + 1)) for at in range(count)])
    return messages


def test_ids_of_cold_messages_are_known_and_nothing_is_opened_for_them() -> None:
    messages = stretches(20)
    assert len(messages) == 20 * 512 + 1
    assert messages.newest_id(5000) == 5000
    assert messages.id_ahead(100, 3000) == 3100
    assert messages.after(700)[0].first_id == 513
    assert distinct_entries(messages) == 1
    assert all(block.cold is not None for block in blocks_of(messages)[:-1])


def test_who_looks_through_cold_messages_sees_all_and_leaves_them_cold() -> None:
    messages = stretches(20)
    assert seen_by(Cursor(messages)) == list(range(1, 20 * 512 + 2))
    entry = messages.find(700)
    assert entry is not None
    assert (entry.ref().lsn, entry.ref().offset, entry.size) == (700, 7000, 3)
    assert seen_by(HistoryCursor(messages, 5000)) == list(range(5001, 20 * 512 + 2))
    assert messages.find(700) is entry, "the only one, as long as somebody has it"
    assert sum(block.cold is None for block in blocks_of(messages)) <= sequence.OPENED_LENGTH + 2


def test_what_was_brought_in_or_is_in_another_file_stays_where_it_is() -> None:
    messages = stretches(20)
    for at, body in ((700, b"700"), (2000, BodyRef(2000, _File("other"), 0, 3))):
        entry = messages.find(at)
        assert entry is not None
        entry.replace_body(body)
    del entry
    assert len(seen_by(Cursor(messages))) == 20 * 512 + 1
    brought, moved = messages.find(700), messages.find(2000)
    assert brought is not None
    assert moved is not None
    assert (brought.body, moved.ref().source.name) == (b"700", "other")


def test_cold_messages_point_to_the_file_that_replaces_theirs() -> None:
    messages = stretches(3)
    first, second, _ = messages.cold_within(1, NO_LIMIT)
    assert messages.cold_within(513, 1100) == [second], "of the third block there is more"
    other = _File("other")
    assert messages.replace_cold(first, first.moved(other, range(512)))
    assert [entry.id for entry in messages.find_all([1, 600, 1537], {"snapshot"})] == [600, 1537]
    assert not messages.replace_cold(second, second.moved(other, range(512))), "it was opened meanwhile"
    found = messages.find(3)
    assert found is not None
    assert (found.ref().source, found.ref().offset, found.ref().lsn, found.size) == (other, 2, 3, 3)


@pytest.mark.parametrize("is_open", [False, True])
def test_all_bodies_of_cold_messages_come_at_once_wherever_somebody_looked(is_open: bool) -> None:
    messages = stretches(3)
    _, cold, _ = messages.cold_within(1, NO_LIMIT)
    entry = messages.find(513) if is_open else None
    if entry is not None:
        messages.remove([entry])
    bodies = [b"%d" % message_id for message_id in cold.ids()]
    brought = messages.bring_cold(cold, bodies)
    assert brought == (len(b"".join(bodies[1:])) if is_open else cold.body_bytes)
    assert [entry.body for entry in messages if 513 <= entry.id <= 1024] == bodies[is_open:]
    assert messages.bring_cold(cold, bodies) == 0, "they are there"


def test_cold_messages_that_get_other_ids_are_read_by_those_of_their_records() -> None:
    messages = stretches(2)
    messages.renumber({message_id: message_id + 5000 for message_id in range(1, 2 * 512 + 2)})
    entry = messages.find(5003)
    assert entry is not None
    assert (entry.id, entry.ref().lsn) == (5003, 3)
    assert seen_by(Cursor(messages)) == list(range(5001, 5000 + 2 * 512 + 2))


class NaiveSequence:
    """The same as one list that is never tidied up. Cursors hold what they have seen."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.held: set[int] = set()
        self.places = [0, 0, 0]

    def peek(self, cursor: int) -> int | None:
        return next((i for i in self.ids if i >= self.places[cursor] and i not in self.held), None)


def place_of(body: Body | None) -> object:
    """What can be compared."""
    return (body.lsn, body.source, body.offset, body.size) if isinstance(body, BodyRef) else body


KINDS = (
    *("append", "plain", "plain", "plain", "plain", "look", "find", "keep", "take", "release"),
    *("remove", "remove", "remove first", "go back", "bring", "move", "bring all", "give up"),
)

operations = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(min_value=0, max_value=2),
        st.integers(min_value=0, max_value=1000),
    ),
    max_size=150,
)


@settings(max_examples=800, deadline=None)
@given(operations, st.integers(1, 5), st.integers(1, 5), st.integers(0, 3), st.sampled_from([0, 0, 1, 4, 9]))
def test_it_behaves_like_a_list_that_is_never_tidied_up(
    steps: list[tuple[str, int, int]], block_length: int, seal_length: int, thin_length: int, cold: int
) -> None:
    """Whether or not it begins with some messages that are on disk alone (`cold`: so many stretches)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "BLOCK_LENGTH", block_length)
        patch.setattr(sequence, "SEAL_LENGTH", seal_length)
        patch.setattr(sequence, "THIN_LENGTH", thin_length)
        patch.setattr(sequence, "OPENED_LENGTH", 1)
        _compare(steps, cold)


def _compare(steps: list[tuple[str, int, int]], cold: int) -> None:
    comparison = Comparison(cold)
    for kind, which, number in steps:
        comparison.step(kind, which, number)
        comparison.check(number)
    comparison.check_cursors()


class Comparison:
    """Both, and who refers to which entry."""

    def __init__(self, cold: int) -> None:
        # 120 messages come and go first, so that dead blocks are forgotten early on; one cursor slept meanwhile.
        self.messages, entries = filled(*range(1, 121))
        self.naive = NaiveSequence()
        self.cursors = [Cursor(self.messages) for _ in range(3)]
        for entry in entries:
            self.messages.remove([entry])
        found = [cold_of(*range(10 * at + 1, 10 * at + 2 + at % 4)) for at in range(cold)]
        self.messages.prepend_cold(found)
        for cursor in self.cursors:
            cursor.restart()
        self.stretches = found
        self.naive.ids += [message_id for stretch in found for message_id in stretch.ids()]
        self.on_disk = dict.fromkeys(self.naive.ids, FILE)
        self.kept: dict[int, Entry] = {}
        """Entries that somebody refers to."""
        self.failures: dict[int, int] = {}
        self.newest = 200

    def entry_at(self, message_id: int) -> Entry:
        entry = self.kept.get(message_id) or self.messages.find(message_id)
        assert entry is not None
        return entry

    def picked(self, number: int) -> int | None:
        return self.naive.ids[number % len(self.naive.ids)] if self.naive.ids else None

    def step(self, kind: str, which: int, number: int) -> None:
        naive, picked = self.naive, self.picked(number)
        if kind in ("append", "plain"):
            self.append(kind, number)
        elif kind in ("look", "take"):
            self.look(which, takes=kind == "take")
        elif kind == "keep" and picked is not None:
            self.kept[picked] = self.entry_at(picked)
        elif kind == "bring" and picked is not None:
            self.entry_at(picked).replace_body(b"%d" % picked)
            self.on_disk.pop(picked, None)
        elif kind == "bring all" and self.stretches:
            self.bring_all(self.stretches[number % len(self.stretches)])
        elif kind == "give up" and self.stretches:
            self.messages.bring_cold(self.stretches[number % len(self.stretches)], None)
        elif kind == "move" and picked is not None:
            self.move(self.messages.cold_within(picked, NO_LIMIT)[:1], _File(str(number)))
        elif kind == "release" and naive.held:
            self.release(sorted(naive.held)[number % len(naive.held)], number)
        elif kind.startswith("remove") and picked is not None:
            self.remove(naive.ids[0] if kind == "remove first" else picked)
        elif kind == "go back":
            self.newest = picked if picked is not None else max(0, self.newest - number % 100)
            for leaving in [message_id for message_id in naive.ids if message_id > self.newest]:
                self.remove(leaving)
            self.messages.go_back(self.newest)
            for cursor in self.cursors:
                cursor.restart()
            naive.places = [0, 0, 0]

    def bring_all(self, cold: ColdMessages) -> None:
        there = [message_id for message_id in cold.ids() if self.on_disk.get(message_id) is cold.source]
        if size := self.messages.bring_cold(cold, [b"%d" % message_id for message_id in cold.ids()]):
            for message_id in there:  # others have left, or are new ones whose ids have come again
                del self.on_disk[message_id]
            assert size in (cold.body_bytes, sum(len(b"%d" % message_id) for message_id in there))

    def move(self, colds: list[ColdMessages], file: _File) -> None:
        for cold in colds:
            assert self.messages.replace_cold(cold, cold.moved(file, [10 * at for at in cold.ids()]))
            self.on_disk.update(dict.fromkeys(cold.ids(), file))

    def body_of(self, message_id: int) -> Body:
        file = self.on_disk.get(message_id)
        return b"%d" % message_id if file is None else BodyRef(message_id, file, 10 * message_id, 3)

    def append(self, kind: str, number: int) -> None:
        self.newest += 1 + number % 3
        if kind == "append":
            self.kept[self.newest] = entry_of(self.newest)
            self.messages.append(self.kept[self.newest])
        else:
            self.messages.append_run([self.newest], RARE if number % 5 == 0 else COMMON, [b"%d" % self.newest])
        self.naive.ids.append(self.newest)

    def look(self, which: int, *, takes: bool) -> None:
        entry, expected = self.cursors[which].peek(), self.naive.peek(which)
        assert (entry.id if entry else None) == expected
        if entry is None:
            return
        assert self.kept.get(entry.id, entry) is entry
        self.cursors[which].skip()
        self.naive.places[which] = entry.id + 1
        if takes:
            entry.holder = SOMEBODY
            self.naive.held.add(entry.id)

    def release(self, back: int, number: int) -> None:
        self.naive.held.remove(back)
        self.failures[back] = self.entry_at(back).delivery_count = self.failures.get(back, 0) + number % 2
        release(self.entry_at(back), *self.cursors)
        self.naive.places = [min(place, back) for place in self.naive.places]
        if number % 3:
            self.kept.pop(back, None)

    def remove(self, leaving: int) -> None:
        self.messages.remove([self.entry_at(leaving)])
        self.naive.ids.remove(leaving)
        self.naive.held.discard(leaving)
        for known in (self.kept, self.failures, self.on_disk):
            known.pop(leaving, None)

    def check(self, number: int) -> None:
        messages, ids, picked = self.messages, self.naive.ids, self.picked(number)
        assert messages.newest_id(self.newest) == (ids[-1] if ids else 0)
        if picked is not None:
            entry = self.entry_at(picked)
            assert messages.newest_id(picked) == picked
            assert messages.find(picked) is entry
            assert place_of(entry.body) == place_of(self.body_of(picked))
            assert entry.delivery_count == self.failures.get(picked, 0)
            assert (entry.holder is SOMEBODY) == (picked in self.naive.held)
        if picked is not None and number % 3 == 0:
            later = [message_id for message_id in ids if message_id > picked]
            assert [entry.id for entry in HistoryCursor(messages, picked).ahead()] == later
            assert seen_by(HistoryCursor(messages, picked)) == later
        if number % 2:
            assert [entry.id for entry in messages] == ids
            assert [entry.id for entry in messages.newest_before(self.newest + 1, len(ids))] == ids
            assert [entry.id for entry in messages.find_all(ids)] == ids
        assert len(messages) == len(ids)
        assert sum(block.live for block in messages._blocks) == len(ids)

    def check_cursors(self) -> None:
        naive = self.naive
        for place, cursor in zip(naive.places, self.cursors, strict=True):
            assert seen_by(cursor) == [at for at in naive.ids if at >= place and at not in naive.held]
