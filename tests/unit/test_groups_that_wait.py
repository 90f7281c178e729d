"""Where message groups meet messages that are due later: what is not due holds nobody up, what has failed does."""

from __future__ import annotations

from random import Random

import pytest

from model_support import Core, bodies, message
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue

SECOND = 1000


def consumers(core: Core, queue: Queue, count: int = 2) -> list[Consumer]:
    made = [core.consumer(queue) for _ in range(count)]
    for consumer in made:
        core.give_credit(queue, consumer, 1000)
    return made


def given(core: Core, *takers: Consumer) -> list[list[str]]:
    core.hand_out()
    return [bodies(core.inbox(taker)) for taker in takers]


def test_a_message_that_is_due_later_does_not_hold_up_its_group_and_goes_to_its_owner() -> None:
    core = Core()
    queue = core.queue("q")
    first, second = consumers(core, queue)
    core.publish(queue, message("later", group="g", delay_ms=SECOND), message("a", group="g"))
    owner, other = (first, second) if given(core, first, second) == [["a"], []] else (second, first)
    core.publish(queue, message("b", group="g"))
    assert given(core, owner, other) == [["b"], []]
    core.tick(after_ms=SECOND)
    core.publish(queue, message("c", group="g"))
    assert given(core, owner, other) == [["later", "c"], []]
    core.check()


def test_what_is_due_later_belongs_to_nobody_whose_consumer_has_gone() -> None:
    core = Core()
    queue = core.queue("q")
    first, second = consumers(core, queue)
    core.publish(queue, message("later", group="g", delay_ms=SECOND), message("a", group="g"))
    owner, other = (first, second) if given(core, first, second) == [["a"], []] else (second, first)
    core.resources.release(queue, [entry for entry in queue.messages if entry.holder is owner], failed=False)
    core.leave(queue, owner)
    assert given(core, other) == [["a"]]
    core.tick(after_ms=SECOND)
    assert given(core, other) == [["later"]]
    core.check()


def test_a_group_waits_for_its_message_that_is_to_be_delivered_again_later() -> None:
    core = Core()
    queue = core.queue("q", redelivery_delay_ms=SECOND)
    first, second = consumers(core, queue)
    core.publish(queue, message("a", group="g"))
    core.hand_out()
    owner, held = next((taker, entries) for taker in (first, second) if (entries := core.inbox(taker)))
    other = second if owner is first else first
    core.resources.release(queue, held, failed=True)
    core.publish(queue, message("b", group="g"), message("c", group="h"))
    core.tick(after_ms=1)
    assert sorted(text for texts in given(core, owner, other) for text in texts) == ["c"]
    core.tick(after_ms=SECOND)
    assert given(core, owner) == [["a", "b"]]
    core.check()


@pytest.mark.parametrize("seed", range(30))
def test_nobody_has_a_message_early_no_two_have_a_group_and_all_comes(seed: int) -> None:
    random, core = Random(seed), Core()
    queue = core.queue("q", **({"redelivery_delay_ms": SECOND} if seed % 2 else {}))
    takers, due, holding = consumers(core, queue, 3), dict[str, int](), dict[str, Consumer]()
    seen: set[str] = set()
    elapsed = 0
    for number in range(120):
        group, delay = random.choice("ghij"), random.choice((0, 0, 300, 2 * SECOND))
        text = f"{group}{number}"
        due[text] = elapsed + delay
        core.publish(queue, message(text, group=group, delay_ms=due[text] if delay else 0))
        if random.random() < 0.3:
            step = random.choice((1, 100, SECOND))
            core.tick(after_ms=step)
            elapsed += step
        core.hand_out()
        for taker in takers:
            for entry in core.inbox(taker):
                (body,) = bodies([entry])
                assert due[body] <= elapsed, "early"
                assert holding.setdefault(body[0], taker) is taker, "two have one group"
                if random.random() < 0.2:
                    core.resources.release(queue, [entry], failed=True)
                else:
                    core.resources.accept(queue, [entry])
                    seen.add(body)
    for _ in range(40):
        core.tick(after_ms=SECOND)
        core.hand_out()
        for taker in takers:
            for entry in core.inbox(taker):
                seen.update(bodies([entry]))
                core.resources.accept(queue, [entry])
    assert seen == set(due)
    core.check()
