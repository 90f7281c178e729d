"""What can happen to things that were kept: stores that are lost, cut short, flipped or put back, and the record."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulated_disk import SimulatedDisk
from simulation.core.ledger import UNNOTICED_S, Ledger
from simulation.core.node import Node
from simulation.core.node_store import Machine
from simulation.core.plan import Fault, Kind
from simulation.core.register import Register
from simulation.custody import Custody
from simulation.virtual_time import Schedule

Crash = Callable[[Node, float, bool, str], None]
"""Ends a process, and starts another one later: whose, after how long, whether the machine keeps its power, and why."""


class Image(NamedTuple):
    """A copy of a store; perhaps of one that was damaged."""

    files: dict[str, bytes]
    is_damaged: bool
    known: tuple[int, int] = (0, 0)
    """Generation and epoch that its broker knew."""


EMPTY = Image({}, False)


class Damage:
    """Damages what disks and the coordinator keep, and says what nobody can count on any more.

    Of a file that was cut or changed nothing is said: a broker has to notice, and to refuse.
    """

    def __init__(
        self,
        schedule: Schedule,
        draw: random.Random,
        nodes: Sequence[Node],
        register: Register,
        custody: Custody,
        ledger: Ledger,
        crash: Crash,
    ) -> None:
        self._schedule = schedule
        self._draw = draw
        self._nodes = nodes
        self._register = register
        self._custody = custody
        self._ledger = ledger
        self._crash = crash
        self._copies: dict[Fault, dict[str, Image]] = {}
        self.has_struck = False
        """Whether an operator may have to decide what brokers cannot know."""

    def prepare(self, faults: Sequence[Fault]) -> None:
        """Copies of stores are made before they are put back."""
        for fault in faults:
            if fault.kind in (Kind.DISK_PUT_BACK, Kind.ALL_DISKS_PUT_BACK):
                self._schedule.at(_copied_s(fault), lambda fault=fault: self._copy(fault))  # type: ignore[misc]

    def _copy(self, fault: Fault) -> None:
        def image_of(node: Node) -> Image:
            machine = machine_of(node)
            known = (node.member.status.generation, node.member.status.epoch) if node.is_up else (0, 0)
            return Image(machine.disk.files(), machine.is_damaged, known)

        self._copies[fault] = {node.name: image_of(node) for node in self._nodes}

    # --- disks

    def disk_lost(self, fault: Fault, node: Node) -> None:
        machine = self._stopped(fault, node)
        self._replace(node, machine, EMPTY)
        self._custody.disk_lost(node.name, fault.kind)

    def disk_put_back(self, fault: Fault, node: Node) -> None:
        machine, copied_s = self._stopped(fault, node), _copied_s(fault)
        copies, record = self._copies[fault], self._register.record
        self._replace(node, machine, copies[node.name])
        machine.is_put_back = True
        # A record of a newer generation or epoch than that of the copies tells that something is missing. Brokers know
        # of one before it is recorded.
        is_known = max(image.known for image in copies.values()) >= (record.generation, record.epoch)
        is_silent = is_known or self._register.at(copied_s) == record
        self._custody.disk_put_back(node.name, fault.kind, copied_s, is_silent=is_silent)

    def all_disks_put_back(self, fault: Fault) -> None:
        for node in self._nodes:
            self.disk_put_back(fault, node)

    def disk_truncated(self, fault: Fault, node: Node) -> None:
        machine = self._stopped(fault, node)
        path, data = self._some_file(machine)
        if path:
            machine.disk.put(path, data[: self._draw.randrange(_used(data))])
            machine.is_damaged = True

    def disk_flipped(self, fault: Fault, node: Node) -> None:
        machine = self._stopped(fault, node)
        path, data = self._some_file(machine)
        if not path:
            return
        at, last_synced_at = self._draw.randrange(_used(data)), machine.disk.last_synced_at(path)
        changed = bytearray(data)
        changed[at] ^= 1 << self._draw.randrange(8)
        machine.disk.put(path, bytes(changed))
        machine.is_damaged = True
        if at >= last_synced_at:  # for all that anybody can tell, this was never written to its end
            self._custody.disk_lost(node.name, fault.kind, self._custody.synced_s(node.name), is_silent=True)

    def set_aside(self, node: Node, problem: str) -> None:
        """An operator has read that the store is damaged: the broker begins anew."""
        self._replace(node, machine_of(node), EMPTY)
        self._custody.disk_lost(node.name, f"set aside by an operator, because {problem}")

    def _stopped(self, fault: Fault, node: Node) -> Machine:
        self.has_struck = self._ledger.is_memory_damaged = True
        if node.is_up:
            self._crash(node, fault.for_s, False, fault.kind)
        return machine_of(node)

    def _replace(self, node: Node, machine: Machine, image: Image) -> None:
        disk = SimulatedDisk(machine.disk.random, machine.disk.capacity)
        disk.on_sync = machine.disk.on_sync
        for path, data in image.files.items():
            disk.put(path, data)
        machine.replace_disk(disk)
        machine.is_damaged, machine.is_put_back = image.is_damaged, False

    def _some_file(self, machine: Machine) -> tuple[str, bytes]:
        """One with something in it; of the journal most of the time."""
        files = {path: data for path, data in machine.disk.files().items() if _used(data)}
        journal = sorted(path for path in files if path.startswith("journal/"))
        path = self._draw.choice((journal if self._draw.random() < 0.8 else None) or sorted(files) or [""])
        return path, files.get(path, b"")

    # --- the coordinator's record

    def record_lost(self) -> None:
        self.has_struck = True
        self._register.lose()
        self._ledger.is_record_lost = self._ledger.is_memory_damaged = True

    def record_put_back(self, fault: Fault) -> None:
        self.has_struck = True
        now_s = self._schedule.now_s
        self._ledger.is_memory_damaged = True
        since_s = self._register.put_back(max(0.0, now_s - fault.detail / 1000))
        self._ledger.record_put_back(since_s, lambda: self._register.misleads_until_s(now_s, UNNOTICED_S))


def machine_of(node: Node) -> Machine:
    """The machine of a node with a store."""
    if node.machine is None:
        raise ValueError(f"{node.name} has no disk: this fault is for clusters with stores")
    return node.machine


def _copied_s(fault: Fault) -> float:
    return max(0.1, fault.at_s - fault.detail / 1000)


def _used(data: bytes) -> int:
    """Where the zeros begin with which a file was made."""
    return len(data.rstrip(b"\0"))
