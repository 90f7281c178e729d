"""Exclusive queues of a group: one client at a time has them, over all members."""

from __future__ import annotations

import pytest

from little_group import LittleGroup, LittleMember
from model_support import NOW_MS
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.errors import InUse, ModelError
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.sequence import SessionOwner
from qpid_ha_broker.model.sets.following import owner_name
from qpid_ha_broker.model.sets.session_messages import held_for
from session_support import FIRST, SessionTaker

COMEBACK_MS = 10_000


@pytest.fixture
def group() -> LittleGroup:
    """With an exclusive queue that has two messages."""
    group = LittleGroup()
    group.a.write(ev.QueueDeclared("mine", {"qpid.exclusive": True}))
    group.settle()
    pass_time(group, NOW_MS)
    pass_time(group, NOW_MS + COMEBACK_MS)
    group.a.core.publish(group.a.queue("mine"), "1", "2")
    group.settle()
    return group


def pass_time(group: LittleGroup, now_ms: int) -> None:
    for member in group.members:
        member.core.now_ms = now_ms
        member.resources.timers.tick(now_ms)
    group.settle()


class Client:
    """A connection with links to the queue, of which each has credit from the first moment on."""

    def __init__(self, group: LittleGroup, name: str = "") -> None:
        self._group, self._name = group, name or str(id(self))
        self.links: list[tuple[LittleMember, Consumer]] = []

    def come(self, member: LittleMember, credit: int = 10) -> ModelError | None:
        """Why it may not have the queue, and then its link is ended, as far as is known without a turn."""
        queue, consumer = member.queue("mine"), Consumer()
        try:
            member.core.add_consumer(queue, consumer, owner_name("user", self._name), owner=self)
        except InUse as error:
            return error
        member.core.give_credit(queue, consumer, credit)
        self.links.append((member, consumer))
        return None

    def attach(self, member: LittleMember) -> ModelError | None:
        """As `come`, once all have heard of it."""
        refusal = self.come(member)
        self._group.settle()
        return refusal or self.refusal()

    def refusal(self) -> ModelError | None:
        """What became of the newest link: it ends where it was refused."""
        member, _ = self.links[-1]
        token = member.replication.exclusive_use.awaited(member.queue("mine"))
        if token is None:
            return None
        assert not token.is_committed
        assert token.failure is not None
        self.detach()
        return token.failure

    def detach(self) -> None:
        member, consumer = self.links.pop()
        member.resources.release(member.queue("mine"), list(member.core.inbox(consumer)), failed=False)
        member.core.leave(member.queue("mine"), consumer)
        self._group.settle()

    def got(self) -> int:
        return sum(len(member.core.inbox(consumer)) for member, consumer in self.links)


@pytest.mark.parametrize("where", ["a", "b"])
def test_who_comes_second_is_refused_at_whichever_member(group: LittleGroup, where: str) -> None:
    first, second = Client(group), Client(group)
    assert first.attach(group.a) is None
    refusal = second.attach(next(member for member in group.members if member.name == where))
    assert isinstance(refusal, InUse)
    assert "exclusive" in str(refusal)
    assert (first.got(), second.got()) == (2, 0)


def test_of_two_who_come_at_the_same_time_the_first_in_the_order_has_it_and_the_other_gets_nothing(
    group: LittleGroup,
) -> None:
    first, second = Client(group), Client(group)
    second.come(group.a)
    first.come(group.b, credit=0)  # so that the queue is handed out at a
    group.turn()
    group.deliver_those_of("b")
    group.settle()
    assert group.a.serving.member.queues.owner(group.a.queue("mine").id) == "a"
    assert (first.got(), second.got()) == (0, 0)
    assert first.refusal() is None
    assert isinstance(second.refusal(), InUse)
    group.settle()
    queue = group.a.queue("mine").id
    assert [member.serving.member.queues.is_anybodys(queue) for member in group.members] == [False] * 3


def test_the_same_connection_has_as_many_links_as_it_likes_and_the_queue_is_free_with_the_last(
    group: LittleGroup,
) -> None:
    first, second = Client(group), Client(group)
    assert [first.attach(group.a), first.attach(group.a)] == [None, None]
    first.detach()
    assert isinstance(second.attach(group.b), InUse)
    first.detach()
    assert second.attach(group.b) is None
    assert second.got() == 2


def test_a_client_of_the_same_name_is_another_client(group: LittleGroup) -> None:
    assert Client(group, "twin").attach(group.a) is None
    assert isinstance(Client(group, "twin").attach(group.b), InUse)


def test_who_was_refused_keeps_it_from_nobody(group: LittleGroup) -> None:
    first, second, third = Client(group), Client(group), Client(group)
    assert first.attach(group.a) is None
    assert isinstance(second.attach(group.b), InUse)
    assert isinstance(third.attach(group.c), InUse), "the second has not freed it"
    first.detach()
    assert third.attach(group.b) is None
    assert third.got() == 2


def test_who_goes_before_it_is_known_whether_it_has_the_queue_leaves_it_free(group: LittleGroup) -> None:
    first, second = Client(group), Client(group)
    first.come(group.a)
    first.detach()
    assert second.attach(group.b) is None


def test_who_goes_before_it_is_known_that_somebody_else_has_it_leaves_it_to_that_one(group: LittleGroup) -> None:
    first, second = Client(group), Client(group)
    assert first.attach(group.a) is None
    second.come(group.b)
    second.detach()
    assert isinstance(Client(group).attach(group.c), InUse)


def test_the_next_client_of_a_member_that_hands_the_queue_out_already_is_given_messages(group: LittleGroup) -> None:
    first, second = Client(group), Client(group)
    assert first.attach(group.a) is None
    member, consumer = first.links.pop()
    member.resources.release(member.queue("mine"), list(member.core.inbox(consumer)), failed=False)
    member.core.leave(member.queue("mine"), consumer)
    assert second.attach(group.a) is None
    assert second.got() == 2


def test_the_member_of_who_was_refused_does_with_the_queue_what_has_to_be_done(group: LittleGroup) -> None:
    first, second = Client(group), Client(group)
    assert first.attach(group.b) is None
    assert isinstance(second.attach(group.a), InUse)
    first.detach()
    purge = group.a.resources.purges.begin(group.a.queue("mine"))
    group.settle()
    assert (purge.count, purge.failure) == (2, None)


def test_a_member_that_is_left_behind_has_no_users(group: LittleGroup) -> None:
    assert Client(group).attach(group.a) is None
    assert group.a.replication.exclusive_use.user(group.a.queue("mine"))
    group.a.replication.left_behind("the others go on without it")
    assert not group.a.replication.exclusive_use.user(group.a.queue("mine"))


def test_who_goes_and_comes_again_at_once_at_another_member_has_it(group: LittleGroup) -> None:
    client = Client(group)
    assert client.attach(group.a) is None
    member, consumer = client.links.pop()
    member.resources.release(member.queue("mine"), list(member.core.inbox(consumer)), failed=False)
    member.core.leave(member.queue("mine"), consumer)
    assert client.come(group.b) is None
    group.turn()
    group.settle()
    assert client.refusal() is None
    assert client.got() == 2


def test_who_browses_needs_nobodys_leave_and_keeps_it_from_nobody(group: LittleGroup) -> None:
    group.c.core.browser(group.c.queue("mine"))
    assert Client(group).attach(group.a) is None
    browser = group.b.core.browser(group.b.queue("mine"))
    group.b.core.give_credit(group.b.queue("mine"), browser)
    group.settle()
    assert len(group.b.core.inbox(browser)) == 2


def test_a_member_that_leaves_frees_the_queue_for_its_client_first_and_then_for_all(group: LittleGroup) -> None:
    assert Client(group, "first").attach(group.a) is None
    group.lose(group.a)
    other, again = Client(group), Client(group, "first")
    refusal = other.attach(group.b)
    assert isinstance(refusal, InUse)
    assert "kept" in str(refusal)
    assert again.attach(group.c) is None
    again.detach()
    assert other.attach(group.b) is None


def test_a_queue_whose_client_does_not_come_back_is_anybodys_after_a_while(group: LittleGroup) -> None:
    assert Client(group).attach(group.a) is None
    group.lose(group.a)
    pass_time(group, NOW_MS + 2 * COMEBACK_MS)
    assert Client(group).attach(group.b) is None


def test_who_joins_knows_who_has_it(group: LittleGroup) -> None:
    client = Client(group)
    assert client.attach(group.b) is None
    group.lose(group.c)
    new = group.come_anew("c")
    assert isinstance(Client(group).attach(new), InUse)
    client.detach()
    assert Client(group).attach(new) is None


def test_a_queue_of_the_same_name_that_is_made_anew_is_free(group: LittleGroup) -> None:
    client = Client(group)
    assert client.attach(group.a) is None
    group.b.write(ev.QueueDeleted(group.b.queue("mine").id))
    group.settle()
    group.b.write(ev.QueueDeclared("mine", {"qpid.exclusive": True}))
    group.settle()
    assert Client(group).attach(group.a) is None


def test_a_proxy_that_loses_its_member_may_come_to_another_one(group: LittleGroup) -> None:
    """Where it was kept for it, that one would not know."""
    client = Client(group)
    assert client.attach(group.a) is None
    member, consumer = client.links.pop()
    member.resources.unsubscribe(member.queue("mine"), consumer, NOW_MS, keep_until_ms=NOW_MS + 20_000)
    group.settle()
    assert client.attach(group.b) is None


def test_who_had_a_queue_that_is_exclusive_no_more_leaves_it_unused(group: LittleGroup) -> None:
    client = Client(group)
    assert client.attach(group.a) is None
    group.b.write(ev.QueueUpdated(group.b.queue("mine").id, {}))
    group.settle()
    client.detach()
    group.b.core.configuration.delete_queue("mine", if_unused=True)
    group.settle()
    assert "mine" not in group.a.core.catalog.queues


def test_what_a_session_holds_stays_its_own_while_others_have_the_queue(group: LittleGroup) -> None:
    """Its client comes back to it at another member once that is free."""
    queue, link = group.a.queue("mine"), SessionOwner(1, FIRST, "in")

    def come(member: LittleMember, epoch: int) -> SessionTaker:
        taker = SessionTaker(FIRST, "in")
        token = member.replication.take_link(member.queue("mine"), link, epoch)
        group.settle()
        assert token is not None
        assert token.is_committed
        member.core.add_consumer(member.queue("mine"), taker, owner_name("user", "session"))
        group.settle()
        return taker

    first = come(group.a, 1)
    group.a.core.give_credit(queue, first, 1)
    group.settle()
    assert len(held_for(group.a.resources, queue, link)) == 1
    group.a.replication.leave_link(queue, link)
    group.a.core.leave(queue, first)
    group.settle()
    other = Client(group)
    assert other.attach(group.b) is None
    assert other.got() == 1
    again = come(group.c, 2)
    refused = group.c.replication.exclusive_use.awaited(group.c.queue("mine"))
    assert refused is not None
    assert isinstance(refused.failure, InUse)
    group.c.core.leave(group.c.queue("mine"), again)
    other.detach()
    come(group.c, 3)
    assert group.c.replication.exclusive_use.awaited(group.c.queue("mine")) is None
    assert len(held_for(group.c.resources, group.c.queue("mine"), link)) == 1


def test_a_queue_that_somebody_has_is_used(group: LittleGroup) -> None:
    consumer = Consumer()
    group.a.resources.subscribe(group.a.queue("mine"), consumer, consumer, "client")
    group.settle()
    with pytest.raises(InUse):
        group.b.core.configuration.delete_queue("mine", if_unused=True)
