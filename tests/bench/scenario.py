"""What every measurement starts from: how much to do, a fresh broker, and a way to ask it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Measurement
from bench.profile import Profile
from limits import LIMIT_S
from qpid_ha_agent.control import ControlClient
from running_broker import RunningBroker

LAST_WORDS = 2000
"""Characters of a log."""


@dataclass(frozen=True)
class Scenario:
    """How much to do. Each measurement starts brokers of its own, so that none inherits another's memory."""

    messages: int = 200_000
    memory_messages: int = 500_000
    paged_messages: int = 2_000_000
    """Of 1 KiB: 2 GB."""
    queues: int = 10_000
    connections: int = 1_000
    starts: int = 5
    latency_s: float = 10.0
    held_s: float = 5.0
    watched_rounds: int = 9
    watched_idle_s: float = 24.0
    proton_messages: int = 20_000
    catch_up_messages: int = 500_000
    replayed_messages: int = 250_000
    """What fits into the stream's tail, at 100 B."""
    calm_s: float = 3.0
    """How long the primary's own pace is measured before a backup joins."""
    deep_messages: int = 1_000_000
    absence_s: float = 5.0
    promotes: int = 3
    cluster_queues: tuple[int, int] = (1_000, 10_000)
    kills: int = 20
    pauses: int = 3
    attack_s: float = 120.0
    recovered_events: int = 1_000_000
    queued_messages: int = 10_000_000
    crashed_messages: int = 1_000_000
    folded_mb: int = 512
    folding_messages: int = 1_000_000
    counted_mb: int = 4096
    planned_stores: int = 1_000
    audited_messages: int = 10_000_000
    consolidated_stores: int = 10
    consolidated_mb: int = 1024
    idle_stores: int = 1_000
    proxied_links: int = 1_000
    proxied_sets: int = 10
    hosted_sets: int = 1_000
    failed_over_sets: int = 900
    mapped_queues: int = 10_000
    crashes: int = 50
    monitors: int = 20
    """From here on: in the lab, under Pacemaker."""
    cluster_kills: int = 10
    power_offs: int = 5
    cluster_pauses: int = 3
    moves: int = 5
    coordinator_kills: int = 20
    """From here on: with ZooKeeper and etcd."""
    coordinator_pauses: int = 5
    coordinator_changes: int = 500
    idle_clusters: int = 200
    settled_s: float = 15.0
    """After a start, agents look around more often."""
    idle_s: float = 60.0
    stream_rate: int = 20_000
    stream_s: float = 15.0
    profile_directory: Path | None = None

    @classmethod
    def quick(cls) -> Scenario:
        """Enough to see that everything runs; the figures mean nothing."""
        return cls(
            messages=1_000,
            memory_messages=1_000,
            paged_messages=8_000,
            queues=20,
            connections=5,
            starts=1,
            latency_s=0.1,
            held_s=0.5,
            watched_rounds=1,
            watched_idle_s=0.1,
            proton_messages=50,
            catch_up_messages=1_000,
            replayed_messages=1_000,
            calm_s=0.1,
            deep_messages=1_000,
            absence_s=0.1,
            promotes=1,
            cluster_queues=(5, 10),
            kills=1,
            pauses=1,
            attack_s=4.0,
            recovered_events=2_000,
            queued_messages=1_000,
            crashed_messages=1_000,
            folded_mb=1,
            folding_messages=1_000,
            counted_mb=1,
            planned_stores=4,
            audited_messages=2_000,
            consolidated_stores=2,
            consolidated_mb=1,
            idle_stores=5,
            proxied_links=20,
            proxied_sets=2,
            hosted_sets=4,
            failed_over_sets=6,
            mapped_queues=20,
            crashes=1,
            monitors=1,
            cluster_kills=1,
            power_offs=1,
            cluster_pauses=1,
            moves=1,
            coordinator_kills=1,
            coordinator_pauses=1,
            coordinator_changes=2,
            idle_clusters=2,
            settled_s=0.1,
            idle_s=1.0,
            stream_rate=500,
            stream_s=1.0,
        )

    def profile(self, broker: RunningBroker, name: str) -> AbstractContextManager[object]:
        """Record where the broker spends its time, if that was asked for."""
        return self.profile_of(broker.pid, name)

    def profile_of(self, pid: int, name: str) -> AbstractContextManager[object]:
        """The same of any process."""
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


def ask(broker: RunningBroker, method: str, **params: object) -> dict[str, Any]:
    """What the broker answers on its control socket."""
    with ControlClient(broker.control_socket) as client:
        answer = client.call(method, **params)
    if not isinstance(answer, dict):
        raise TypeError(f"{method} answered {answer!r}")
    return answer
