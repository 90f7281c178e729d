"""The lab in namespaces between two scenarios: made new, or put in order again."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from lab.cluster import Cluster, NotInTime
from lab.machines import MachineError
from lab.netns import installation
from lab.netns.namespace_lab import NamespaceLab
from lab.plan import Plan
from lab.restoring import restore

RESOURCES: Final = ("properties", "virtual-ip")
"""Blocks of docs/pacemaker.md that make the cluster most scenarios run on."""


class Stage:
    """Hands out a cluster that is well, as quickly as that can be had."""

    def __init__(self, lab: NamespaceLab) -> None:
        self.lab = lab
        self.cluster = Cluster(lab)
        self._titles: tuple[str, ...] | None = None
        """What the cluster was given; None when it is to be made new."""

    @classmethod
    def set_up(cls, plan: Plan) -> Stage:
        """A lab with the project installed, its machines off."""
        lab = NamespaceLab.up(plan)
        try:
            installation.install(lab)
        except BaseException:
            lab.down()
            raise
        return cls(lab)

    def empty(self) -> Cluster:
        """Formed on empty disks, and without a resource."""
        self.distrust()
        installation.furnish(self.lab)
        self.cluster.wait_formed()
        return self.cluster

    def fresh(self, *titles: str) -> Cluster:
        """On empty disks, with these blocks of docs/pacemaker.md loaded, and well."""
        self.empty()
        self.load(*titles)
        self.cluster.wait_well()
        return self.cluster

    def load(self, *titles: str) -> None:
        """These blocks of docs/pacemaker.md, into a cluster that has formed."""
        installation.load_resources(self.lab, *titles)
        self._titles = titles

    def ready(self, *titles: str) -> Cluster:
        """The one there is, if it can be put in order, else a fresh one."""
        if self._titles == titles:
            with suppress(NotInTime, MachineError):
                restore(self.cluster, has_fencing=self.lab.plan.has_fencing and "no-fencing" not in titles)
                return self.cluster
        return self.fresh(*titles)

    def distrust(self) -> None:
        """The next one is made new."""
        self._titles = None

    def close(self) -> None:
        """End the lab."""
        self.lab.down()
