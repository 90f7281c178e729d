"""What a member has recorded when it begins a group."""

from __future__ import annotations

from little_group import LittleGroup


def test_a_group_begins_under_the_uuid_that_its_set_was_made_with() -> None:
    group = LittleGroup(cluster="c0ffee")
    assert (group.record.cluster, group.record.members) == ("c0ffee", ("a", "b", "c"))
    logs = [member.resources.replicated.state.generations for member in group.members]
    assert {started.cluster for log in logs for _, started in log} == {"c0ffee"}


def test_a_group_without_a_uuid_gets_one_from_whoever_begins_it() -> None:
    assert LittleGroup().record.cluster in ("a-1", "b-1", "c-1")
