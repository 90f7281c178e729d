"""A container that is the only member of a group, over a transport that the test lets go on or stalls."""

from __future__ import annotations

from collections import deque

from little_group import answer_to
from paired_engines import PairedBroker
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.frames import decode_batch
from qpid_ha_broker.group.serving import GroupServing
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.model.sets.grouped import Grouped
from several_sets import ClusterDirectory

ROUNDS = 1000


class LoneGroupMember(PairedBroker):
    """`a`, which serves the group `orders` with a queue `q`."""

    def __init__(self, settings: ContainerSettings | None = None, *, window_bytes: int = 10_000) -> None:
        super().__init__(settings)
        self.directory = self.container.directory = ClusterDirectory()
        self.now_s, self.is_stalled = 0.0, False
        self.waiting: deque[tuple[str, bytes]] = deque()
        """Multicasts, and who has sent them."""
        resources = self.container.new_resources("orders", is_group=True)
        replication = resources.replication
        assert isinstance(replication, Grouped)
        self.replication = replication
        self.hosted = self.container.host("orders", resources)
        self.hosted.take_batch = lambda: None
        self._record = ClusterRecord()
        group_settings = GroupSettings("a", "a-1", patience_s=0.1, ask_again_s=0.1, window_bytes=window_bytes)
        self.serving = GroupServing(group_settings, resources, replication, 0, self.feed, 0.02)
        self.feed(fx.Started())
        self.feed(fx.ViewChanged(("a",), ("a",), ()))
        while self.serving.member.role is not GroupRole.SERVING:
            self.now_s += 0.1
            self.feed(fx.Ticked())
            self.go_on()
        resources.replicated.submit((ev.QueueDeclared("q", {}),))
        self.directory.queues["q"] = "orders"
        self.go_on()

    def feed(self, happened: fx.Input) -> None:
        """Something happens to the member."""
        for effect in self.serving.member.handle(happened, self.now_s):
            self._carry_out(effect)
        self.hosted.touch()

    def _carry_out(self, effect: fx.Effect) -> None:
        answer, self._record = answer_to(effect, self._record)
        if answer is not None:
            self.feed(answer)
        match effect:
            case fx.Multicast(data):
                self.waiting.append(("a", data))
            case fx.Placed():
                self.serving.placed(effect)
            case fx.SubmitRefused():
                self.serving.refused(effect)
            case fx.RoleChanged():
                self.serving.look(effect.reason)
            case fx.Progressed():
                self.serving.progressed()
                self.hosted.touch()

    def turn(self) -> None:
        """The set's is the member's."""
        super().turn()
        self.serving.turn_ends(self.now_s)
        for _ in range(2):  # what was stored with the first is acknowledged with the second
            for effect in self.serving.member.handle(fx.GroupTurnEnded(), self.now_s):
                self._carry_out(effect)
        if self.hosted.resources.has_work:
            self.hosted.touch()

    def go_on(self) -> None:
        """Until nothing moves. Raises RuntimeError when it never ends."""
        for _ in range(ROUNDS):
            self.settle_down()
            self.turn()
            if self.is_stalled or not self.waiting:
                self.settle_down()
                return
            sender, data = self.waiting.popleft()
            self.feed(fx.Delivered(sender, tuple(decode_batch(data)[1]), len(data)))
        raise RuntimeError("the member does not come to rest")
