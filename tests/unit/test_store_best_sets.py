"""After a crash of everything, of many sets: each is judged beside its record, which the stores of `default` have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.store.best import Admin, Doubt, Equal, Standing, Winner
from qpid_ha_broker.store.best_sets import Nothing, best_of_sets
from qpid_ha_broker.store.facts import StoreFacts
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.inspection import examine
from store_writing import StoreWriter, opening

ORDERS = ev.SetRecorded("orders", "uuid-orders", 3, "b", 7, ("b", "c"), False)


def store(broker: str, set_name: str, lsn: int, members: str, *, generation: int = 3, epoch: int = 7) -> StoreFacts:
    """`members`: a letter each."""
    history = (GenerationEntry(generation, members[0], 1),)
    return StoreFacts(
        f"{broker}:/data/{set_name}", broker=broker, cluster=f"uuid-{set_name}", set=set_name, history=history,
        epoch=epoch, members=tuple(members), epoch_lsn=2, last_lsn=lsn, committed_lsn=2,
    )  # fmt: skip


def defaults(*records: ev.SetRecorded, brokers: str = "ab") -> list[StoreFacts]:
    """Stores of `default`, whose in-sync set is `a` and `b`, with those of `brokers` here."""
    return [replace(store(each, "default", 100, "ab"), set_records=records) for each in brokers]


def test_the_best_copy_is_judged_beside_the_record_in_the_map() -> None:
    stores = [*defaults(ORDERS), store("b", "orders", 40, "bc"), store("c", "orders", 42, "bc")]

    found = best_of_sets(stores)["orders"]

    assert isinstance(found.verdict, Winner)
    assert found.verdict.store.broker == "c"
    assert (found.record, found.is_recorded) == (ORDERS, True)


def test_stores_that_are_older_than_the_record_are_copies_or_the_newer_ones_are_not_here() -> None:
    newer = ORDERS._replace(generation=4, epoch=8, primary="d", members=("d",))
    stores = [store("b", "orders", 40, "bc"), store("c", "orders", 42, "bc")]

    found = best_of_sets([*defaults(newer), *stores])["orders"]

    assert isinstance(found.verdict, Admin)
    assert found.verdict.doubt is Doubt.OLD_STORES
    assert "The record in the cluster map says generation 4" in found.verdict.question
    assert "d:DATA-DIR" in found.verdict.options[0].commands[0]
    forced = found.verdict.options[1].commands
    assert forced[0].startswith("ssh c qpid-ha store recover /data/orders --winner c --force")
    assert forced[-1].startswith("qpid-ha set promote orders c --force")
    assert found.is_recorded is False
    assert isinstance(best_of_sets(stores)["orders"].verdict, Winner), "alone they look whole"


def test_who_was_named_and_died_before_its_generation_began_has_that_on_disk_and_nobody_lacks_anything() -> None:
    claimed = ORDERS._replace(generation=4, epoch=8, primary="c", members=("b", "c"), claimed=True)
    stores = [store("b", "orders", 42, "bc"), replace(store("c", "orders", 42, "bc"), claims=(4,))]
    assert isinstance(best_of_sets([*defaults(claimed), *stores])["orders"].verdict, Equal)


def test_an_older_record_counts_only_where_all_that_was_confirmed_of_default_is_here() -> None:
    old = ORDERS._replace(generation=2, epoch=3)
    stores = [store("b", "orders", 40, "bc"), store("c", "orders", 42, "bc")]

    whole = best_of_sets([*defaults(old), *stores])["orders"].verdict
    assert isinstance(whole, Winner)
    assert "The record in the cluster map knows no more than generation 2" in whole.text
    assert whole.next_commands[-1].startswith("qpid-ha set promote orders c --force")

    partly = best_of_sets([*defaults(old, brokers="a"), *stores])["orders"].verdict
    assert isinstance(partly, Winner)
    assert not any("promote" in command for command in partly.next_commands)


def test_a_set_of_which_no_store_is_here_is_not_forgotten() -> None:
    found = best_of_sets([*defaults(ORDERS), StoreFacts("b:/data/orders", broker="b", set="orders")])["orders"]

    assert isinstance(found.verdict, Admin)
    assert (found.verdict.doubt, found.verdict.missing) == (Doubt.NO_STORES, ("b", "c"))
    assert {each.broker: each.standing for each in found.verdict.reasons} == {
        "b": Standing.EMPTY, "c": Standing.MISSING
    }  # fmt: skip
    assert "orders" in best_of_sets(defaults(ORDERS))
    assert "orders" not in best_of_sets(defaults(ORDERS), has_all=False)

    never_led = ORDERS._replace(generation=0, primary="", epoch=0, members=())
    assert isinstance(best_of_sets(defaults(never_led))["orders"].verdict, Nothing)


def test_what_is_left_of_a_deleted_set_or_of_an_earlier_one_of_its_name_is_nobodys_doubt() -> None:
    left = store("c", "bills", 42, "bc")
    assert isinstance(best_of_sets([*defaults(ORDERS), left])["bills"].verdict, Nothing)
    assert isinstance(best_of_sets([*defaults(ORDERS, brokers="a"), left])["bills"].verdict, Admin), "it may be known"

    earlier = replace(store("c", "orders", 99, "cd"), cluster="uuid-earlier")
    stores = [*defaults(ORDERS), store("b", "orders", 40, "bc"), earlier, store("c", "orders", 42, "bc")]
    found = best_of_sets(stores)["orders"]
    assert isinstance(found.verdict, Winner)
    assert found.verdict.store.last_lsn == 42
    assert [each.where for each in found.verdict.reasons if each.standing is Standing.STRANGER] == [earlier.where]


def test_a_store_of_default_tells_of_the_records_in_its_log_as_far_as_that_counts(tmp_path: Path) -> None:
    writer = StoreWriter(LocalDisk(tmp_path)).write(opening())
    placed = ev.SetPlaced("orders", ("b", "c"), (), "", 0, 0)
    writer.write([placed, ORDERS, placed._replace(name="bills"), ev.SetDeleted("bills"), placed._replace(name="new")])
    kept = writer.last_lsn
    writer.write([ORDERS._replace(generation=4, epoch=8)])
    writer.take_back(kept)
    writer.kill()

    facts = examine(LocalDisk(tmp_path), "here")

    assert facts.set_records == (ORDERS, ev.SetRecorded("new", "", 0, "", 0, (), False))
    assert StoreFacts.from_json(facts.to_json()) == facts
