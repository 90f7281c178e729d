"""Which store a cluster begins with again after a crash of everything. The cases are in store_best/cases.txt."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import GenerationEntry
from qpid_ha_broker.store.best import Admin, Doubt, Equal, Standing, Verdict, Winner, best, choose
from qpid_ha_broker.store.facts import FactsError, Integrity, StoreFacts

CASES = Path(__file__).parent / "store_best" / "cases.txt"


class Case(NamedTuple):
    """A story, its stores, and the verdict as text."""

    title: str
    stores: tuple[StoreFacts, ...]
    verdict: str


def read_cases() -> list[Case]:
    _head, *texts = CASES.read_text(encoding="utf-8").split("=== ")
    cases = []
    for text in texts:
        title, *lines = text.strip().splitlines()
        stores, verdict = "\n".join(lines).split("-> ")
        cases.append(Case(title, tuple(map(read_store, stores.splitlines())), verdict.strip()))
    return cases


def read_store(line: str) -> StoreFacts:
    """`a history=1:a@1 3:b@50 set=4:a,b lsn=120 damaged`."""
    name, *words = line.split()
    if words == ["empty"]:
        return StoreFacts(f"{name}:/data", broker=name)
    given: dict[str, Any] = {"where": f"{name}:/data", "cluster": "ours", "set": "default", "history": ()}
    for word in words:
        key, _, value = word.removeprefix("history=").partition("=")
        match key:
            case "lsn" | "committed":
                given["last_lsn" if key == "lsn" else "committed_lsn"] = int(value)
            case "set":
                epoch, _, members = value.partition(":")
                given |= {"epoch": int(epoch), "members": tuple(members.split(","))}
            case "before":
                given["members_before"] = tuple(value.split(","))
            case "set-lsn":
                given["epoch_lsn"] = int(value)
            case "torn" | "damaged" | "newer":
                given["integrity"] = Integrity[key.upper()]
            case "in":
                given["set"] = value
            case "where" | "cluster" | "clean" | "role":
                given[key] = value
            case _:
                generation, _, begin = key.partition(":")
                primary, _, lsn = begin.partition("@")
                given["history"] += (GenerationEntry(int(generation), primary, int(lsn)),)
    return StoreFacts(broker=name, **given)


def written(verdict: Verdict) -> str:
    """The verdict, and what each store is to it, in the words of the file."""
    match verdict:
        case Winner():
            head = f"winner {verdict.store.broker}" + ("" if verdict.is_safe else ", not safe")
        case Equal():
            head = "equal " + ", ".join(store.broker for store in verdict.stores)
        case Admin():
            head = f"admin: {verdict.doubt}" + (f": {', '.join(verdict.missing)}" if verdict.missing else "")
    return f"{head}\n   {', '.join(f'{each.broker} {each.standing}' for each in verdict.reasons)}".strip()


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.title)
def test_the_verdict_is_what_the_case_says(case: Case) -> None:
    assert written(best(case.stores)) == case.verdict


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.title)
def test_the_order_in_which_stores_are_named_changes_nothing(case: Case) -> None:
    expected = best(case.stores)
    for order in itertools.permutations(case.stores):
        found = best(order)
        assert written(found).splitlines()[0] == written(expected).splitlines()[0]
        assert sorted(found.reasons) == sorted(expected.reasons)


def named(title: str) -> tuple[StoreFacts, ...]:
    return next(case.stores for case in read_cases() if case.title.startswith(title))


def test_every_kind_of_doubt_and_of_standing_has_a_case() -> None:
    verdicts = [best(case.stores) for case in read_cases()]
    assert {verdict.doubt for verdict in verdicts if isinstance(verdict, Admin)} == set(Doubt) - {Doubt.OLD_STORES}
    assert {reason.standing for verdict in verdicts for reason in verdict.reasons} == set(Standing)


def test_a_safe_verdict_never_hangs_on_a_store_that_could_be_further() -> None:
    """Whatever a single member's store might have said that is not here: take any one away, and nobody wins safely."""
    stores = named("All members")
    for absent in stores:
        found = best([store for store in stores if store is not absent])
        assert isinstance(found, Admin)
        assert found.missing == (absent.broker,)


def test_the_next_command_goes_to_the_machine_that_has_the_store_and_says_what_was_seen() -> None:
    found = best(named("All members"))
    assert isinstance(found, Winner)
    assert found.next_commands == (
        "ssh a qpid-ha store recover /data --winner a --position 1:120",
        "ssh a systemctl start qpid-ha",
        "ssh b systemctl start qpid-ha",
        "ssh c systemctl start qpid-ha",
        "qpid-ha promote -b amqp://a:5672",
    )


def test_directories_of_this_machine_need_no_ssh_and_odd_names_are_quoted() -> None:
    store = replace(named("A single store that was alone")[0], where="/var/lib/qpid ha/default")
    found = best([store])
    assert isinstance(found, Winner)
    assert found.next_commands[0] == ("qpid-ha store recover '/var/lib/qpid ha/default' --winner b --position 3:120")
    assert not any(command.startswith("ssh") for command in found.next_commands)


def test_whoever_can_do_without_the_missing_store_is_told_what_it_costs_and_how() -> None:
    found = best(named("A member's store is not here"))
    assert isinstance(found, Admin)
    wait, force = found.options
    assert wait.commands == ("qpid-ha store best a:/data b:/data c:DATA-DIR",)
    assert force.commands[0] == "ssh a qpid-ha store recover /data --winner a --force"
    assert "generation 1, LSN 120" in force.text


def test_a_fork_names_the_last_common_position_and_leaves_the_choice() -> None:
    found = best(named("Two primaries in one generation"))
    assert isinstance(found, Admin)
    assert "generation 1, LSN 97" in found.question
    assert [option.commands[0].split("--winner ")[1] for option in found.options] == ["a --force", "b --force"]


def test_where_others_know_a_newer_set_the_promotion_has_to_be_forced_as_well() -> None:
    found = best(named("A damaged store is still a witness"))
    assert isinstance(found, Admin)
    _wait, force = found.options
    assert force.commands[-1] == "qpid-ha promote --force -b amqp://b:5672"


def test_a_promise_that_nobody_here_saw_kept_is_told() -> None:
    promising = replace(named("A single store of a cluster")[0], promised=2, promised_to="c")
    (reason, *_) = best([promising]).reasons
    assert "promised generation 2 to c" in reason.text


def test_an_operator_may_choose_any_store_that_can_be_loaded_and_no_other() -> None:
    stores = named("A damaged store never wins")
    chosen = choose(stores, "b", "an operator said so")
    assert chosen is not None
    assert (chosen.store.broker, chosen.is_safe) == ("b", False)
    assert choose(stores, "a", "an operator said so") is None
    assert choose(stores, "nobody", "an operator said so") is None


def recorded(generation: int, epoch: int, primary: str = "a") -> ClusterRecord:
    return ClusterRecord(named("All members")[0].cluster, generation, primary, epoch, ("a", "b", "c"))


def test_stores_that_are_older_than_the_coordinators_record_are_no_winners() -> None:
    stores = named("All members")
    (at, epoch) = (stores[0].generation, stores[0].epoch)
    assert isinstance(best(stores, recorded(at, epoch)), Winner)
    for record in (recorded(at + 2, epoch + 3), recorded(at, epoch + 1)):
        found = best(stores, record)
        assert isinstance(found, Admin)
        assert found.doubt is Doubt.OLD_STORES
        wait, forced = found.options
        assert wait.commands[0].startswith("qpid-ha store best a:/data b:/data c:/data")
        assert forced.commands[-1] == "qpid-ha promote --force -b amqp://a:5672"


def test_a_recorded_primary_that_died_before_its_first_event_is_no_reason_to_doubt_the_stores() -> None:
    stores = named("All members")
    record = recorded(stores[0].generation + 1, stores[0].epoch + 1, primary="b")
    claimed = [
        replace(each, claims=(record.generation - 1, record.generation)) if each.broker == "b" else each
        for each in stores
    ]
    assert isinstance(best(claimed, record._replace(claimed=True)), Winner)
    assert isinstance(best(stores, record._replace(claimed=True)), Admin)
    assert isinstance(best(claimed, record), Admin)


def test_a_record_that_was_lost_makes_the_promotion_one_by_force() -> None:
    stores = named("All members")
    found = best(stores, ClusterRecord())
    assert isinstance(found, Winner)
    assert found.next_commands[-1] == "qpid-ha promote --force -b amqp://a:5672"
    assert "The coordinator's record is empty" in found.text


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.title)
def test_facts_survive_the_way_from_one_machine_to_another(case: Case) -> None:
    assert [StoreFacts.from_json(store.to_json()) for store in case.stores] == list(case.stores)


@pytest.mark.parametrize(
    "document", [None, [], {}, {"where": 1}, {"where": "a", "epoch": "4"}, {"where": "a", "history": [[1]]},
                 {"where": "a", "integrity": "fine"}],
)  # fmt: skip
def test_what_is_no_facts_is_refused(document: object) -> None:
    with pytest.raises(FactsError):
        StoreFacts.from_json(document)
