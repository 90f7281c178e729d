"""What `./dev soak --sets` says of books, and what it does to a cluster, by seed and by what the machine has."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from proton import Delivery, Message

from bench.crossing_traffic import (
    MOVED,
    QUEUES,
    SETS,
    Book,
    Books,
    CrossingTraffic,
    PlainPublisher,
    SessionPublisher,
    TransactingPublisher,
    broken_promises,
)
from bench.crossing_trouble import CrossingTrouble
from qpid_ha_demo.cluster import LocalCluster
from qpid_ha_demo.ledger import Arrival
from qpid_ha_demo.load import numbered
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble

URLS = [f"amqp://127.0.0.1:{port}" for port in range(1, 6)]
CONFIRMED_AT_S = 105.0


@pytest.fixture
def books() -> Books:
    """Of a producer that was confirmed 0 to 3, and published them to two queues."""
    producer, books = PlainPublisher("printer", URLS, "news"), Books()
    for queue in ("news-1", "news-2"):
        books.open(producer, queue, is_exact=queue == "news-2", is_sole=queue == "news-2")
    for number in range(4):
        producer.ledger.confirm(number, CONFIRMED_AT_S + number)
    return books


def come(book: Book, *numbers: int, **marks: bool) -> None:
    for number in numbers:
        book.ledger.arrive(Arrival(number, 110.0 + number, marks.get("marked", False), marks.get("sent_again", False)))


def told(book: Book) -> list[str]:
    return list(broken_promises(book, 100.0))


def of(books: Books, queue: str) -> Book:
    return books.of[queue, "printer"]


def test_a_book_in_which_all_came_in_order_balances(books: Books) -> None:
    come(of(books, "news-1"), 0, 1, 2, 3)

    assert told(of(books, "news-1")) == []


def test_what_came_out_of_one_queue_of_an_exchange_and_not_of_the_other_is_lost_there(books: Books) -> None:
    come(of(books, "news-1"), 0, 1, 2, 3)
    come(of(books, "news-2"), 0, 3)

    assert told(of(books, "news-1")) == []
    assert told(of(books, "news-2")) == ["lost 2 of 4 confirmed: 1, 2, confirmed at 6.0 to 7.0 s"]


def test_a_copy_needs_a_mark_and_a_client_with_a_session_gets_none_at_all(books: Books) -> None:
    first, second = of(books, "news-1"), of(books, "news-2")
    for book in (first, second):
        come(book, 0, 1, 2, 3)
        come(book, 3, marked=True)
    assert told(first) == []
    assert told(second) == ["1 came twice to a client with a session, of one with a session"]

    come(first, 2)
    assert told(first) == ["1 came twice without a mark: 2: 2 at 12.0 s and 12.0 s"]


def test_what_comes_behind_a_later_one_is_out_of_order_in_that_queue(books: Books) -> None:
    come(of(books, "news-1"), 0, 2, 1, 3)

    assert told(of(books, "news-1")) == ["1 out of order: 1, at 11.0 to 11.0 s"]


def test_what_comes_late_to_a_consumer_that_came_again_is_no_fault_but_where_it_is_alone(books: Books) -> None:
    first, second = of(books, "news-1"), of(books, "news-2")
    for queue in ("news-1", "news-2"):
        books.comes_again(queue)
    assert first.came_again_s < second.came_again_s
    first.came_again_s = 111.5

    for book in (first, second):
        come(book, 0, 3, 2)
        book.ledger.arrive(Arrival(1, 111.0, marked=False, sent_again=False))

    assert told(first) == ["1 out of order: 1, at 11.0 to 11.0 s"]
    assert told(second) == ["2 out of order: 2, 1, at 11.0 to 12.0 s"]


def test_lost_sessions_are_said_with_their_times_and_what_else_a_client_was_told_by_kinds() -> None:
    publisher = SessionPublisher("printer", URLS, "news")
    publisher.problems = ["the session was lost: 7 are in doubt", "not taken: 7 of set-1", "not taken: 8 of set-2"]
    publisher.lost_at_s = [103.0]

    assert list(publisher.broken_promises(100.0)) == ["its session was lost, at 3.0 s", "2 times: not taken: N of SET"]


def test_a_message_is_written_down_for_its_producer_and_a_strange_one_is_a_finding(books: Books) -> None:
    books.arrive("news-1", numbered(0, "printer"))
    assert of(books, "news-1").ledger.arrived == {0}

    books.arrive("news-3", numbered(7, "printer"))
    books.arrive("news-1", Message(numbered(8, "").body))
    assert books.strays == ["7 of printer came out of news-3", "8 of nobody came out of news-1"]


def test_what_was_in_doubt_when_a_session_was_lost_may_come_twice(books: Books) -> None:
    book = of(books, "news-1")
    come(book, 0, 1, 2, 3)
    book.producer.in_doubt.add(3)
    books.arrive("news-1", numbered(3, "printer"))

    assert told(book) == []


def test_each_producers_messages_have_a_book_for_each_queue_that_they_are_to_come_to() -> None:
    traffic = CrossingTraffic(URLS)

    assert {book.queue for book in traffic.books.of.values()} == QUEUES.keys() - {MOVED[0]}
    assert {consumer.queue for consumer in traffic.consumers} == QUEUES.keys() - {MOVED[0]}
    assert {*QUEUES.values()} == {*SETS, "default"}
    shared = [book.queue for book in traffic.books.of.values() if book.producer.name == "newsman's session"]
    assert len({QUEUES[queue] for queue in shared}) == len(shared) == 3


# --- steps


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """It is never started."""
    return LocalCluster(tmp_path, 5, stores=tmp_path / "stores")


def trouble_of(cluster: LocalCluster, directory: Path, *, has_all: bool) -> CrossingTrouble:
    ensemble = ZookeeperEnsemble(directory) if has_all else None
    disks = directory / "disks" if has_all else None
    return CrossingTrouble(cluster, SETS, directory / "stores", 7, ensemble=ensemble, disks=disks, moves=MOVED)


def test_a_seed_names_the_same_steps_again(cluster: LocalCluster, tmp_path: Path) -> None:
    first, second = (trouble_of(cluster, tmp_path, has_all=True) for _ in range(2))

    assert [first.draw() for _ in range(300)] == [second.draw() for _ in range(300)]


def test_what_the_machine_cannot_do_is_not_drawn(cluster: LocalCluster, tmp_path: Path) -> None:
    few, more = (trouble_of(cluster, tmp_path, has_all=has_all).kinds().keys() for has_all in (False, True))

    assert more - few == {"coordinator away", "coordinator away, and a kill", "disk full"}
    assert {"kill", "stop all", "kill the controller, then another", "switchover", "move a queue"} <= few


def test_a_full_disk_has_room_again_and_is_not_filled_twice(cluster: LocalCluster, tmp_path: Path) -> None:
    trouble = trouble_of(cluster, tmp_path, has_all=True)
    step = next(step for step in iter(trouble.draw, None) if step.kind == "disk full")
    broker = cluster.brokers[step.brokers[0]]
    place = tmp_path / "disks" / broker.name
    place.mkdir(parents=True)
    (place / "ballast").touch()

    trouble.make(step)

    assert trouble.outcomes[-1].target == f"the disk of {broker.name} is full already"
    assert trouble.counts() == {"disk full": {"skipped": 1}}


@pytest.mark.parametrize("state", [Delivery.RELEASED, None], ids=["released", "settled without a word"])
def test_a_commit_that_is_not_accepted_is_no_confirmation(state: object) -> None:
    publisher = TransactingPublisher("booker", URLS, ("debit", "credit"))
    publisher._connection, publisher._batch = object(), [(7, False)]
    delivery = SimpleNamespace(remote_state=state)

    publisher.on_transaction_committed(SimpleNamespace(connection=publisher._connection, delivery=delivery))

    assert (dict(publisher.ledger.confirmed_at_s), list(publisher._again)) == ({}, [7])
    assert publisher.problems == [f"a commit was answered with {state}"]
