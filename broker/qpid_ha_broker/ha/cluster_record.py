"""What a coordinator remembers of a cluster. Agents read it, which have no use for the rest of `ha`."""

from __future__ import annotations

from typing import NamedTuple


class ClusterRecord(NamedTuple):
    """What a coordinator remembers of a cluster; `ClusterRecord()` is one that remembers nothing."""

    cluster: str = ""
    generation: int = 0
    primary: str = ""
    epoch: int = 0
    members: tuple[str, ...] = ()
    claimed: bool = False
    """The primary was named, and has not had it written yet that its generation has begun; False: it has begun."""

    @property
    def position(self) -> tuple[int, int, bool]:
        """Of two records of one cluster, the one with the greater position is the later one."""
        return self.generation, self.epoch, not self.claimed
