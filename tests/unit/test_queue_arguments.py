"""Stories about what a queue can be asked to be."""

from __future__ import annotations

import pytest

from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues.queue_arguments import FullPolicy, QueueArguments, Replicate


def test_a_queue_that_was_asked_nothing_has_no_limits() -> None:
    assert QueueArguments.parse({}) == QueueArguments()


@pytest.mark.parametrize(
    ("name", "given", "means"),
    [
        ("max_count", 5, 5),
        ("max_count", "5", 5),
        ("max_size", (1 << 63) - 1, (1 << 63) - 1),
        ("message_ttl_ms", "1000", 1000),
        ("priorities", 10, 10),
        ("priorities", "2", 2),
        ("last_value_queue_key", "symbol", "symbol"),
        ("alternate_exchange", "dlx", "dlx"),
        ("delivery_limit", 3, 3),
        ("exclusive", True, True),
        ("durable", "TRUE", True),
        ("auto_delete", "false", False),
        ("replicate", "all", Replicate.MESSAGES),
        ("replicate", "Configuration", Replicate.CONFIGURATION),
    ],
)
def test_arguments_come_as_what_they_are_or_as_text(name: str, given: Scalar, means: object) -> None:
    assert getattr(QueueArguments.parse({f"qpid.{name}": given}), name) == means


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_count", -1, "whole number"),
        ("max_count", 1.5, "whole number"),
        ("max_count", True, "whole number"),
        ("max_count", "many", "whole number"),
        ("max_count", "٣", "whole number"),
        ("max_count", "0" * 30 + "5", "whole number"),
        ("max_count", "9" * 20, "whole number"),
        ("max_count", 1 << 63, "whole number"),
        ("max_count", None, "whole number"),
        ("priorities", 0, "from 1 to 10"),
        ("priorities", 11, "from 1 to 10"),
        ("auto_delete_delay_s", "nan", "seconds"),
        ("auto_delete_delay_s", "soon", "seconds"),
        ("auto_delete_delay_s", -0.5, "seconds"),
        ("exclusive", "yes", "true or false"),
        ("exclusive", 1, "true or false"),
        ("policy_type", "flow_to_disk", "reject, ring or self-destruct"),
        ("replicate", "some", "none, configuration, messages or all"),
        ("last_value_queue_key", 7, "a text"),
    ],
)
def test_what_makes_no_sense_is_named_with_what_would(name: str, value: Scalar, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=f"qpid.{name}=.*expected .*{expected}"):
        QueueArguments.parse({f"qpid.{name}": value})


def test_an_unknown_argument_of_ours_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidArgument, match=r"qpid\.max_cuont: did you mean qpid\.max_count\?"):
        QueueArguments.parse({"qpid.max_cuont": 5})


def test_arguments_of_the_application_are_kept_and_not_read() -> None:
    arguments: dict[str, Scalar] = {"owner": "billing", "max_count": "anything", "qpid.max_count": 5}
    parsed = QueueArguments.parse(arguments)
    assert parsed.max_count == 5
    assert parsed.given == arguments


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"qpid.policy_type": "ring"}, "max_count or qpid.max_size"),
        ({"qpid.fairshare": 5}, "qpid.priorities"),
        ({"qpid.last_value_queue_key": "k", "qpid.priorities": 5}, "one order"),
        ({"qpid.auto_delete_delay_s": 5}, "qpid.auto_delete"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments: dict[str, Scalar], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        QueueArguments.parse(arguments)


def test_a_ring_of_messages_and_one_of_bytes_are_both_rings() -> None:
    for limit in ("qpid.max_count", "qpid.max_size"):
        assert QueueArguments.parse({"qpid.policy_type": "ring", limit: 1}).policy_type is FullPolicy.RING
