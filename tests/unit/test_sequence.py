"""Stories about the coat rack: what hangs where, what comes back, and how much of it is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qpid_ha_broker.model.queues import sequence
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.sequence import Cursor, Entry, Holder, MessageSequence, SequenceBlock

SOMEBODY = Holder()


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
    messages.remove(entries[0])
    assert messages.find(1) is None
    assert len(messages) == 1
    with pytest.raises(LookupError, match="message 1"):
        messages.remove(entries[0])
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
        messages.remove(entry)
    messages.append(entry_of(3000))
    assert seen_by(sleeping) == [survivor.id, 3000]


@pytest.mark.usefixtures("small_blocks")
def test_an_emptied_last_block_is_closed_and_the_next_message_is_still_found() -> None:
    messages, entries = filled(1, 2)
    cursor = Cursor(messages)
    assert seen_by(cursor) == [1, 2]
    for entry in entries:
        messages.remove(entry)
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
        messages.remove(entry)
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
            messages.remove(entry)
    cursor = Cursor(messages)
    assert distinct_entries(messages) < 40 * 2 * sequence.THIN_LENGTH + sequence.BLOCK_LENGTH
    assert seen_by(cursor) == [512 * n for n in range(1, 41)]
    assert all((messages.find(message_id) is None) == bool(message_id % 512) for message_id in range(1, 512 * 40))


@pytest.mark.usefixtures("small_blocks")
def test_ids_that_come_again_are_found_with_others_that_stayed() -> None:
    """They are in the block behind the one in which they had been."""
    messages, entries = filled(1, 2, 3)
    for entry in entries[1:]:
        messages.remove(entry)
    messages.go_back(1)
    messages.append(entry_of(3))
    assert [entry.id for entry in messages.find_all([1, 3])] == [1, 3]


@pytest.mark.usefixtures("small_blocks")
def test_ids_that_come_again_are_found_also_by_a_browser_that_slept() -> None:
    messages, entries = filled(*range(1, 12))
    browser = Cursor(messages)
    assert seen_by(browser) == list(range(1, 12))
    for entry in entries[2:]:
        messages.remove(entry)

    messages.go_back(2)
    for message_id in (3, 5):
        messages.append(entry_of(message_id))

    found = messages.find(5)
    assert found is not None
    assert found.id == 5
    assert [entry.id for entry in messages.newest_before(6, 10)] == [1, 2, 3, 5]
    assert messages.newest_id(4) == 3
    assert seen_by(browser) == [3, 5]


class NaiveSequence:
    """The same as one list that is never tidied up. Cursors hold what they have seen."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.held: set[int] = set()
        self.places = [0, 0, 0]

    def peek(self, cursor: int) -> int | None:
        return next((i for i in self.ids if i >= self.places[cursor] and i not in self.held), None)


KINDS = "append", "append", "append", "look", "take", "release", "remove", "remove", "remove first", "go back"

operations = st.lists(
    st.tuples(
        st.sampled_from(KINDS),
        st.integers(min_value=0, max_value=2),
        st.integers(min_value=0, max_value=1000),
    ),
    max_size=150,
)


@settings(max_examples=800, deadline=None)
@given(operations, st.integers(1, 5), st.integers(1, 5), st.integers(0, 3))
def test_it_behaves_like_a_list_that_is_never_tidied_up(
    steps: list[tuple[str, int, int]], block_length: int, seal_length: int, thin_length: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "BLOCK_LENGTH", block_length)
        patch.setattr(sequence, "SEAL_LENGTH", seal_length)
        patch.setattr(sequence, "THIN_LENGTH", thin_length)
        _compare(steps)


def _compare(steps: list[tuple[str, int, int]]) -> None:
    # 120 messages come and go first, so that dead blocks are forgotten early on; one cursor slept meanwhile.
    messages, entries = filled(*range(1, 121))
    naive = NaiveSequence()
    cursors = [Cursor(messages) for _ in range(3)]
    for entry in entries:
        messages.remove(entry)
    there: dict[int, Entry] = {}
    next_id = 200
    ids = naive.ids
    for kind, which, number in steps:
        cursor = cursors[which]
        picked = ids[number % len(ids)] if ids else None
        if kind == "append":
            next_id += 1 + number % 3
            there[next_id] = entry_of(next_id)
            messages.append(there[next_id])
            ids.append(next_id)
        elif kind in ("look", "take"):
            found = cursor.peek()
            expected = naive.peek(which)
            assert (found.id if found else None) == expected
            if found is not None:
                cursor.skip()
                naive.places[which] = found.id + 1
                if kind == "take":
                    found.holder = SOMEBODY
                    naive.held.add(found.id)
        elif kind == "release" and naive.held:
            back = sorted(naive.held)[number % len(naive.held)]
            naive.held.remove(back)
            release(there[back], *cursors)
            naive.places = [min(place, back) for place in naive.places]
        elif kind.startswith("remove") and picked is not None:
            leaving = ids[0] if kind == "remove first" else picked
            messages.remove(there.pop(leaving))
            ids.remove(leaving)
            naive.held.discard(leaving)
        elif kind == "go back":
            next_id = picked if picked is not None else max(0, next_id - number % 100)
            for leaving in [each for each in ids if each > next_id]:
                messages.remove(there.pop(leaving))
                ids.remove(leaving)
                naive.held.discard(leaving)
            messages.go_back(next_id)
            for each in cursors:
                each.restart()
            naive.places = [0, 0, 0]
        assert [entry.id for entry in messages] == ids
        assert [entry.id for entry in messages.newest_before(next_id + 1, len(ids))] == ids
        assert messages.newest_id(next_id) == (ids[-1] if ids else 0)
        assert len(messages) == len(ids)
        assert sum(block.live for block in messages._blocks) == len(ids)
        if picked is not None:
            assert messages.find(picked) is there.get(picked)
    for number, cursor in enumerate(cursors):
        assert seen_by(cursor) == [i for i in ids if i >= naive.places[number] and i not in naive.held]
