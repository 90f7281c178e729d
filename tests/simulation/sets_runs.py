"""One cluster of many sets: what operators want of it, what goes wrong, and whether it recovers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import partial

from qpid_ha_broker.cluster import messages as ms
from simulation.node import Violation, problem_of
from simulation.sets_nodes import Members
from simulation.sets_plan import FAULTS_END_S, SetsPlan
from simulation.sets_queues import QueueTraffic
from simulation.sets_trouble import Trouble
from simulation.sets_world import World

REST_S = 120.0
SETTINGS = ms.ControllerSettings(recovery_interval_s=6.0, check_interval_s=4.0)
MOVES, MOVES_OF_A_FAULT = 3, 2
"""So many primaries a set may have, and so many more for each fault: what fails and what comes back."""
LAST_CONTROLLER_DIES, LAST_RUN_S = 0.5, 6.0
"""In how many runs the controller's broker fails for good, after everything else has had some time to recover."""
STAY_DOWN = 0.3
"""How many of the brokers that are down in the end stay so."""


@dataclass(frozen=True)
class SetsOutcome:
    """What became of a run; `problem` is empty when every promise was kept."""

    plan: SetsPlan
    problem: str
    steps: int
    confirmed: int
    """Writes to all sets."""
    generations: int
    trace: tuple[str, ...]
    """And the controllers' notes among them."""
    fingerprint: str


def make_world(plan: SetsPlan, with_trace: bool) -> World:
    zones = {f"n{number}": zone for number, zone in enumerate(plan.zones)}
    return World(plan.seed, zones, Members, SETTINGS, with_trace=with_trace)


def play(world: World, plan: SetsPlan) -> None:
    """Raises Violation."""
    world.has_faults = True
    world.lead("n0")
    world.run(1.0)
    for number, replicas in enumerate(plan.sets):
        world.ask(ms.CreateSet(f"set-{number}", min_replicas=replicas))
    trouble = Trouble(world)
    traffic = QueueTraffic(world, trouble, plan)
    for fault in plan.faults:
        world.after(fault.at_s, partial(trouble.strike, fault))
    world.run(FAULTS_END_S + 0.5)
    trouble.end()
    draw = random.Random(f"{plan.seed}/end")
    for name in world.brokers:
        if draw.random() >= STAY_DOWN or sum(each.is_up for each in world.brokers.values()) < 2:
            trouble.start(name)
    if draw.random() < LAST_CONTROLLER_DIES and sum(each.is_up for each in world.brokers.values()) > 2:
        world.run(LAST_RUN_S)
        if world.leader:
            world.kill(world.leader, has_power=draw.random() < 0.5)
            trouble.find_controller()
    world.settle(REST_S)
    _check_moves(world, len(plan.faults) + traffic.deaths)


def _check_moves(world: World, faults: int) -> None:
    """A set changes its primary because something happened, and not again and again. Raises Violation."""
    for key, moves in Counter(key[:2] for key in world.checks.primaries).items():
        if moves > MOVES + MOVES_OF_A_FAULT * faults:
            raise Violation(f"{key} has had {moves} primaries, and there were {faults} faults")


def run_sets(plan: SetsPlan, with_trace: bool = False) -> SetsOutcome:
    """The whole run of `plan`. A problem is the outcome, not an exception."""
    world = make_world(plan, with_trace)
    problem = problem_of(partial(play, world, plan), world.trace)
    confirmed = sum(map(len, world.members.confirmed.values()))
    return SetsOutcome(
        plan, problem, world.schedule.count, confirmed, len(world.checks.primaries),
        tuple(world.trace.lines), world.trace.fingerprint(),
    )  # fmt: skip
