"""An argument that would be taken and do nothing is refused, with the name of the one that does what is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues.foreign_arguments import FOREIGN, RABBITMQ
from qpid_ha_broker.model.queues.queue_arguments import (
    PREFIX,
    check_binding_arguments,
    check_exchange_arguments,
    check_settable,
    is_known_argument,
)

MIGRATING = Path(__file__).resolve().parents[2] / "docs" / "migrating.md"
MEANT = {
    "x-max-length": "qpid.max_count",
    "x-max-priority": "qpid.priorities (one more, 10 at most)",
    "x-queue-type": "leave it out",
    "max-length": "qpid.max_count",
    "max_count": "qpid.max_count",
    "max-count": "qpid.max_count",
    "maxCount": "qpid.max_count",
    "x-max-count": "qpid.max_count",
    "Qpid.max_count": "qpid.max_count",
    "max_countt": "qpid.max_count",
    "message_ttl": "qpid.message_ttl_ms",
    "ring-size": "qpid.max_count (with qpid.policy_type ring)",
    "alternate-exchange": "qpid.alternate_exchange",
    "qpid.max_cuont": "did you mean qpid.max_count?",
    "qpid.max-count": "did you mean qpid.max_count?",
    "qpid.auto_delete_timeout": "qpid.auto_delete_delay_s",
    "qpid.browse-only": "browse",
}


@pytest.mark.parametrize("name", MEANT)
def test_a_queue_argument_that_would_do_nothing_is_refused_with_the_one_that_is_meant(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_settable({name: 10})
    assert MEANT[name] in str(refused.value)


@pytest.mark.parametrize("name", ["x-note", "note", "owner", "x", "x-token", "team.max", "priority-of-the-team"])
def test_what_is_the_applications_own_is_kept(name: str) -> None:
    check_settable({name: "mine"})


def test_what_is_to_go_away_may_have_any_name() -> None:
    check_settable({"x-max-length": None, "qpid.of-a-newer-release": None})


def test_an_exchange_has_few_arguments_and_what_means_nothing_to_it_is_refused() -> None:
    check_exchange_arguments({"qpid.alternate_exchange": "dead", "qpid.replicate": "none", "note": 1})
    for name, meant in (
        ("alternate-exchange", "here it is qpid.alternate_exchange"),
        ("qpid.alternate-exchange", "did you mean qpid.alternate_exchange?"),
        ("x-max-length", "leave it out"),
        ("qpid.max_count", "unknown argument"),
    ):
        with pytest.raises(InvalidArgument, match=meant.replace("?", r"\?")):
            check_exchange_arguments({name: "x"})


def test_a_binding_may_have_any_argument_but_one_of_ours_that_is_not_for_it() -> None:
    check_binding_arguments({"qpid.replicate": "none", "x-filter-jms-selector": "a = 1", "anything": 1})
    with pytest.raises(InvalidArgument, match=r"did you mean qpid\.replicate"):
        check_binding_arguments({"qpid.replication": "none"})


def test_each_counterpart_is_an_argument_and_stands_in_the_guide_for_who_comes_from_rabbitmq() -> None:
    text = MIGRATING.read_text(encoding="utf-8")
    for name, counterpart in FOREIGN.items():
        assert not counterpart.own or is_known_argument(counterpart.own), name
        assert not is_known_argument(name)
    for name, counterpart in RABBITMQ.items():
        if counterpart.own:
            assert f"`{name}" in text, name
            assert f"`{counterpart.own}" in text, name
    assert PREFIX == "qpid."
