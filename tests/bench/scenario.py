"""What every measurement starts from: how much to do, a fresh broker, and a way to ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from bench.figures import Measurement
from bench.profile import Profile
from limits import LIMIT_S
from qpid_ha_agent.control import ControlClient
from running_broker import RunningBroker

LAST_WORDS = 2000
"""Characters of a log."""


_Amount = TypeVar("_Amount")


def _amount(default: _Amount, *, quick: _Amount) -> _Amount:
    """A field of `Scenario`: how much in earnest, and how much with `--quick`."""
    amount: _Amount = field(default=default, metadata={"quick": quick})
    return amount


@dataclass(frozen=True)
class Scenario:
    """How much to do. Each measurement starts brokers of its own, so that none inherits another's memory."""

    messages: int = _amount(200_000, quick=1_000)
    memory_messages: int = _amount(500_000, quick=1_000)
    replicated_memory_messages: tuple[int, int] = _amount((100_000, 1_000_000), quick=(500, 1_000))
    paged_messages: int = _amount(2_000_000, quick=8_000)
    """Of 1 KiB: 2 GB."""
    delayed_messages: int = _amount(1_000_000, quick=1_000)
    shared_subscribers: int = _amount(10_000, quick=20)
    queues: int = _amount(10_000, quick=20)
    connections: int = _amount(1_000, quick=5)
    starts: int = _amount(5, quick=1)
    latency_s: float = _amount(10.0, quick=0.1)
    held_s: float = _amount(5.0, quick=0.5)
    watched_rounds: int = _amount(9, quick=1)
    watched_idle_s: float = _amount(24.0, quick=0.1)
    proton_messages: int = _amount(20_000, quick=50)
    catch_up_messages: int = _amount(500_000, quick=1_000)
    replayed_messages: int = _amount(250_000, quick=1_000)
    """What fits into the stream's tail, at 100 B."""
    calm_s: float = _amount(3.0, quick=0.1)
    """How long the primary's own pace is measured before a backup joins."""
    deep_messages: int = _amount(1_000_000, quick=1_000)
    absence_s: float = _amount(5.0, quick=0.1)
    promotes: int = _amount(3, quick=1)
    cluster_queues: tuple[int, int] = _amount((1_000, 10_000), quick=(5, 10))
    kills: int = _amount(20, quick=1)
    pauses: int = _amount(3, quick=1)
    agent_stops: int = _amount(100, quick=2)
    attack_s: float = _amount(120.0, quick=4.0)
    recovered_events: int = _amount(1_000_000, quick=2_000)
    queued_messages: int = _amount(10_000_000, quick=1_000)
    crashed_messages: int = _amount(1_000_000, quick=1_000)
    folded_mb: int = _amount(512, quick=1)
    folding_messages: int = _amount(1_000_000, quick=1_000)
    counted_mb: int = _amount(1100, quick=1)
    """Of journal; of messages of 100 B there are `folded_mb`."""
    planned_stores: int = _amount(1_000, quick=4)
    audited_messages: int = _amount(10_000_000, quick=2_000)
    consolidated_stores: int = _amount(10, quick=2)
    consolidated_mb: int = _amount(1024, quick=1)
    idle_stores: int = _amount(1_000, quick=5)
    proxied_links: int = _amount(1_000, quick=20)
    proxied_sets: int = _amount(10, quick=2)
    hosted_sets: int = _amount(1_000, quick=4)
    failed_over_sets: int = _amount(900, quick=6)
    mapped_queues: int = _amount(10_000, quick=20)
    crashes: int = _amount(50, quick=1)
    monitors: int = _amount(20, quick=1)
    """From here on: in the lab, under Pacemaker."""
    cluster_kills: int = _amount(10, quick=1)
    power_offs: int = _amount(5, quick=1)
    cluster_pauses: int = _amount(3, quick=1)
    moves: int = _amount(5, quick=1)
    coordinator_kills: int = _amount(20, quick=1)
    """From here on: with ZooKeeper and etcd."""
    coordinator_pauses: int = _amount(5, quick=1)
    coordinator_changes: int = _amount(500, quick=2)
    idle_clusters: int = _amount(200, quick=2)
    settled_s: float = _amount(15.0, quick=0.1)
    """After a start, agents look around more often."""
    idle_s: float = _amount(60.0, quick=1.0)
    stream_rate: int = _amount(20_000, quick=500)
    stream_s: float = _amount(15.0, quick=1.0)
    profile_directory: Path | None = None

    @classmethod
    def quick(cls) -> Scenario:
        """Enough to see that everything runs; the figures mean nothing."""
        return cls(**{one.name: one.metadata["quick"] for one in fields(cls) if one.metadata})

    def profile(self, pid: int, name: str) -> AbstractContextManager[object]:
        """Record where that broker spends its time, if that was asked for."""
        if self.profile_directory is None:
            return nullcontext()
        return Profile(pid, self.profile_directory / f"{name}.folded")


Measure = Callable[[Scenario], Iterator[Measurement]]


@contextmanager
def fresh_broker(
    settings: Mapping[str, object] | None = None, *, start_timeout_s: float = LIMIT_S
) -> Iterator[RunningBroker]:
    """A broker of one's own. What it said goes with a failure as a note, because its log goes with it."""
    with RunningBroker(settings, start_timeout_s=start_timeout_s) as broker:
        try:
            yield broker
        except Exception as error:
            error.add_note(f"the broker's last words: {broker.log()[-LAST_WORDS:]}")
            raise


def create_queues(control_socket: Path, names: Iterable[str], **arguments: object) -> None:
    """One call after the other, on one connection."""
    with ControlClient(control_socket, timeout_s=60.0) as control:
        for name in names:
            control.call("queues", action="create", name=name, **arguments)


def ask(broker: RunningBroker, method: str, **params: object) -> dict[str, Any]:
    """What the broker answers on its control socket."""
    with ControlClient(broker.control_socket) as client:
        answer = client.call(method, **params)
    if not isinstance(answer, dict):
        raise TypeError(f"{method} answered {answer!r}")
    return answer
