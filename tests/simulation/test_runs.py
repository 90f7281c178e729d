"""Which kind of cluster a seed stands for, and what `./dev simulate` says of it."""

from __future__ import annotations

from collections import Counter

import pytest
from click.testing import CliRunner

from simulation.__main__ import main
from simulation.brokers.plan import BrokersPlan, draw_agents_plan, draw_forwarding_plan, draw_proxies_plan
from simulation.core.plan import draw_plan
from simulation.runs import (
    DRAWS,
    ONE_SET,
    PROXIES,
    SETS,
    SHARES,
    crosses,
    kind_of,
    replay_command,
    run_many,
)
from simulation.sets.plan import SetsPlan, draw_sets_plan
from simulation.test_new_seeds import CLUSTERS

SEEDS = 2_000


def test_without_weights_kinds_have_their_shares() -> None:
    counts = Counter(kind_of(seed) for seed in range(SEEDS))

    assert set(SHARES) == set(DRAWS)
    for kind, share in SHARES.items():
        assert counts[kind] == pytest.approx(share / sum(SHARES.values()) * SEEDS, rel=0.2)


def test_in_half_of_what_is_drawn_something_crosses_sets_brokers_or_lives_of_a_client() -> None:
    plans = [DRAWS[kind_of(seed)](seed) for seed in range(SEEDS)]

    assert sum(map(crosses, plans)) > SEEDS / 2
    assert sum(isinstance(plan, SetsPlan) and len(plan.wanted) > 1 for plan in plans) > SEEDS / 5
    of_proxies = [plan for plan in plans if isinstance(plan, BrokersPlan)]
    assert len(of_proxies) > SEEDS / 4
    assert sum(plan.sessions > 0 for plan in of_proxies) > SEEDS / 10
    assert sum(bool(plan.replicas) for plan in of_proxies) > SEEDS / 10


def test_one_set_crosses_nothing_however_it_is_drawn() -> None:
    alone = next(plan for plan in map(draw_sets_plan, range(SEEDS)) if len(plan.wanted) == 1)

    assert not crosses(alone)
    assert not crosses(draw_plan(1))
    assert not crosses(draw_agents_plan(1))
    assert crosses(draw_proxies_plan(1))


def test_half_of_the_new_seeds_of_each_time_are_of_kinds_in_which_something_crosses() -> None:
    assert set(CLUSTERS) == set(DRAWS)
    assert CLUSTERS[ONE_SET] <= sum(CLUSTERS.values()) / 2


def test_without_weights_a_seed_stands_for_the_kind_that_it_stood_for_yesterday() -> None:
    assert "".join(kind_of(seed)[0] for seed in range(50)) == "pssppsfpfsaspapapspsaosfppaoososppsssspsppooaspsps"


def test_weights_say_how_often_each_kind_is_drawn() -> None:
    counts = Counter(kind_of(seed, {ONE_SET: 60, SETS: 30, PROXIES: 10}) for seed in range(SEEDS))

    assert counts[ONE_SET] == pytest.approx(0.6 * SEEDS, rel=0.1)
    assert counts[SETS] == pytest.approx(0.3 * SEEDS, rel=0.1)
    assert counts[PROXIES] == pytest.approx(0.1 * SEEDS, rel=0.2)


def test_the_summary_counts_the_clusters_of_each_kind() -> None:
    shown = CliRunner().invoke(main, ["--seeds", "2", "--seed", "3", "--weights", "one-set=1", "--jobs", "1"])

    assert shown.exit_code == 0
    assert shown.output.startswith("2 clusters (2 one-set, 0 agents, 0 sets, 0 proxies, 0 forwarding, 0 group) in ")


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--weights", "one-set"], "'one-set' should be one-set=N"),
        (["--weights", "one-set=-1"], "'one-set=-1' should be one-set=N"),
        (["--weights", "many=1"], "'many' is none of one-set, agents, sets, proxies"),
        (["--weights", "sets=1,sets=2"], "sets comes twice"),
        (["--weights", "sets=0"], "at least one kind has to be drawn"),
        (["--weights", "sets=1", "--only", "sets"], "give one of them"),
    ],
    ids=["no number", "negative", "unknown kind", "twice", "none at all", "beside --only"],
)
def test_weights_that_say_nothing_are_refused(arguments: list[str], refusal: str) -> None:
    shown = CliRunner().invoke(main, arguments)

    assert shown.exit_code == 2
    assert refusal in shown.output


def test_a_failure_names_the_command_that_shows_it_again() -> None:
    assert replay_command(draw_sets_plan(7)) == "./dev simulate --seed 7 --only sets --trace"
    assert replay_command(draw_proxies_plan(8)) == "./dev simulate --seed 8 --only proxies --trace"
    assert replay_command(draw_agents_plan(8)) == "./dev simulate --seed 8 --only agents --trace"
    assert replay_command(draw_forwarding_plan(9)) == "./dev simulate --seed 9 --only forwarding --trace"


@pytest.mark.parametrize("jobs", [1, 2])
def test_many_runs_come_in_the_order_in_which_they_were_asked_for(jobs: int) -> None:
    assert list(run_many(abs, [-3, -1, -2], jobs)) == [3, 1, 2]
