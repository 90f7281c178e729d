"""A coordinator that moves while it is used: nothing is confirmed where it is no more, whenever the move stops."""

from __future__ import annotations

import threading
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from qpid_ha_agent.coordinator_migration import CannotMigrate, Place, migrate
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.moved import decode_pointer, encode_pointer
from qpid_ha_broker.coordination.registry import open_coordinator, open_place
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings

EMPTY = ClusterRecord()
FIRST = ClusterRecord("c1", 3, "a", 7, ("a", "b"))
SECOND = FIRST._replace(epoch=8, members=("a",))
NOTES = ("pause", "priorities")
STEPS = 4


class Places:
    """Directories, and what uses them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def settings(self, name: str) -> CoordinatorSettings:
        place = self._directory / name
        place.mkdir(exist_ok=True)
        return CoordinatorSettings(CoordinatorUrl.parse(f"file:{place}"))

    def used(self, name: str) -> Coordinator:
        """As brokers and agents open it."""
        return open_coordinator(self.settings(name))

    def place(self, name: str) -> Place:
        settings = self.settings(name)
        return Place(str(settings.url), open_place(settings))

    def migrate(self, source: str, target: str, steps: int = STEPS) -> list[str]:
        """As far as `steps`."""
        return list(islice(migrate(self.place(source), self.place(target), NOTES), steps))


@pytest.fixture
def places(tmp_path: Path) -> Places:
    made = Places(tmp_path)
    used = made.used("from")
    used.compare_and_set(EMPTY, FIRST)
    used.replace_note("pause", "", "maintenance")
    return made


def test_a_pointer_keeps_what_was_there() -> None:
    pointer = decode_pointer(encode_pointer("etcd://[::1]:1/x", FIRST))
    assert pointer is not None
    assert pointer == ("etcd://[::1]:1/x", FIRST)
    assert decode_pointer(FIRST) is None


def test_whoever_uses_it_goes_on_at_the_new_place(places: Places) -> None:
    before = places.used("from")
    assert before.read() == FIRST

    assert len(places.migrate("from", "to")) == STEPS

    for coordinator in (before, places.used("from"), places.used("to")):
        assert coordinator.read() == FIRST
        assert coordinator.read_note("pause") == "maintenance"
    assert before.compare_and_set(FIRST, SECOND) == (True, SECOND)
    assert places.place("to").coordinator.read() == SECOND
    assert before.replace_note("pause", "maintenance", "")
    assert places.used("to").read_note("pause") == ""


def test_who_has_not_heard_of_it_confirms_nothing_at_the_old_place(places: Places) -> None:
    before = places.used("from")
    before.read()
    places.migrate("from", "to")

    assert before.compare_and_set(FIRST, SECOND) == (True, SECOND)
    assert places.used("to").read() == SECOND

    late = places.place("from").coordinator
    assert late.compare_and_set(FIRST, FIRST._replace(epoch=99))[0] is False


def test_a_note_of_who_has_not_heard_of_it_is_written_at_the_new_place(places: Places) -> None:
    before = places.used("from")
    before.read()
    places.migrate("from", "to")

    assert before.replace_note("pause", "maintenance", "later")
    assert places.used("to").read_note("pause") == "later"


@pytest.mark.parametrize("steps", range(STEPS))
def test_interrupted_and_repeated_it_is_done(steps: int, places: Places) -> None:
    user = places.used("from")
    places.migrate("from", "to", steps)
    is_between = decode_pointer(places.place("from").coordinator.read()) is not None and (
        decode_pointer(places.place("to").coordinator.read()) is not None
    )
    if is_between:
        with pytest.raises(CoordinatorError, match="repeat `qpid-ha coordinator migrate`"):
            user.read()
        record = FIRST
    else:
        assert user.compare_and_set(user.read(), SECOND)[0]
        assert places.used("to").read() == (SECOND if steps else EMPTY)
        record = SECOND

    places.migrate("from", "to")

    assert [places.used(name).read() for name in ("from", "to")] == [record, record]
    assert places.used("from").read_note("pause") == "maintenance"
    assert user.compare_and_set(record, record._replace(epoch=20))[0]
    assert user.replace_note("pause", "maintenance", "")
    places.migrate("from", "to")  # once more, by somebody who did not see that it was done
    assert (places.used("to").read().epoch, places.used("to").read_note("pause")) == (20, "")


def test_it_can_move_back(places: Places) -> None:
    user = places.used("from")
    places.migrate("from", "to")
    user.compare_and_set(FIRST, SECOND)

    places.migrate("to", "from")

    assert [coordinator.read() for coordinator in (user, places.used("from"), places.used("to"))] == [SECOND] * 3
    assert places.place("from").coordinator.read() == SECOND


def test_writers_lose_nothing_while_it_moves(places: Places) -> None:
    made: list[int] = []
    problems: list[Exception] = []

    def climb() -> None:
        with closing(places.used("from")) as coordinator:
            try:
                for _ in range(40):
                    found = coordinator.read()
                    if coordinator.compare_and_set(found, found._replace(epoch=found.epoch + 1))[0]:
                        made.append(found.epoch)
            except CoordinatorError as error:
                problems.append(error)

    threads = [threading.Thread(target=climb) for _ in range(3)]
    for thread in threads:
        thread.start()
    places.migrate("from", "to")
    for thread in threads:
        thread.join()

    assert problems == []
    assert sorted(made) == list(range(FIRST.epoch, FIRST.epoch + len(made)))
    assert places.used("to").read().epoch == FIRST.epoch + len(made)


def test_a_watch_goes_along(places: Places) -> None:
    called = threading.Event()
    user = places.used("from")
    unwatch = user.watch(called.set)
    places.migrate("from", "to")
    assert called.wait(5)
    assert user.read() == FIRST
    called.clear()

    places.used("to").compare_and_set(FIRST, SECOND)

    assert called.wait(5)
    unwatch()


def test_a_lease_is_lost_with_the_old_place_and_got_at_the_new_one(places: Places) -> None:
    primary, backup = places.used("from"), places.used("from")
    held, wanted = primary.lease("a"), backup.lease("b")
    assert held.try_lock()
    outcome: list[bool] = []
    waiting = threading.Thread(target=lambda: outcome.append(wanted.acquire(threading.Event())), daemon=True)
    waiting.start()
    places.migrate("from", "to")
    assert held.is_held()  # it has not heard of it

    primary.read()
    assert not held.is_held()
    held.release()
    waiting.join(5)

    assert outcome == [True]
    assert wanted.is_held()
    assert not places.used("to").lease("c").try_lock()
    assert not held.try_lock()


def test_a_place_of_another_cluster_is_refused(places: Places) -> None:
    places.used("to").compare_and_set(EMPTY, FIRST._replace(cluster="c2"))

    with pytest.raises(CannotMigrate, match=r"record of the cluster c2 \(this cluster is c1\)"):
        places.migrate("from", "to")
    assert places.place("from").coordinator.read() == FIRST


def test_a_place_without_a_record_is_not_moved(places: Places) -> None:
    with pytest.raises(CannotMigrate, match="holds no record"):
        places.migrate("none-yet", "to")


def test_what_has_moved_elsewhere_is_not_moved_from_where_it_was(places: Places) -> None:
    places.migrate("from", "to")

    with pytest.raises(CannotMigrate, match="has moved to"):
        places.migrate("from", "third")


def test_a_new_place_that_lost_everything_is_not_filled_with_the_old_record(places: Places) -> None:
    places.migrate("from", "to")
    lost = places.place("to").coordinator
    lost.compare_and_set(lost.read(), EMPTY)

    with pytest.raises(CannotMigrate, match="has lost what was written there"):
        places.migrate("from", "to")
