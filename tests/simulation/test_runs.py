"""Which kind of cluster a seed stands for, and what `./dev simulate` says of it."""

from __future__ import annotations

from collections import Counter

import pytest
from click.testing import CliRunner

from simulation.__main__ import main
from simulation.proxies_plan import draw_forwarding_plan, draw_proxies_plan
from simulation.runs import DRAWS, FORWARDING, ONE_SET, PROXIES, SETS, kind_of, replay_command, run_many
from simulation.sets_plan import draw_sets_plan

SEEDS = 2_000


def test_without_weights_one_seed_in_ten_is_of_many_sets_one_of_forwarding_and_one_in_twenty_of_proxies() -> None:
    counts = Counter(kind_of(seed) for seed in range(SEEDS))

    assert set(counts) == set(DRAWS)
    assert 150 < counts[SETS] < 250
    assert 50 < counts[PROXIES] < 150
    assert 130 < counts[FORWARDING] < 230


def test_without_weights_a_seed_is_of_the_kind_that_it_was_when_it_was_written_down() -> None:
    kinds = {kind: [seed for seed in range(50) if kind_of(seed) == kind] for kind in (SETS, PROXIES)}

    assert kinds == {SETS: [5, 6, 9, 11, 22, 32, 47], PROXIES: [23, 28, 35, 40, 41, 44]}


def test_weights_say_how_often_each_kind_is_drawn() -> None:
    counts = Counter(kind_of(seed, {ONE_SET: 60, SETS: 30, PROXIES: 10}) for seed in range(SEEDS))

    assert counts[ONE_SET] == pytest.approx(0.6 * SEEDS, rel=0.1)
    assert counts[SETS] == pytest.approx(0.3 * SEEDS, rel=0.1)
    assert counts[PROXIES] == pytest.approx(0.1 * SEEDS, rel=0.2)


def test_the_summary_counts_the_clusters_of_each_kind() -> None:
    shown = CliRunner().invoke(main, ["--seeds", "2", "--seed", "3", "--weights", "one-set=1", "--jobs", "1"])

    assert shown.exit_code == 0
    assert shown.output.startswith("2 clusters (2 one-set, 0 sets, 0 proxies, 0 forwarding) in ")


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--weights", "one-set"], "'one-set' should be one-set=N"),
        (["--weights", "one-set=-1"], "'one-set=-1' should be one-set=N"),
        (["--weights", "many=1"], "'many' is none of one-set, sets, proxies"),
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
    assert replay_command(draw_forwarding_plan(9)) == "./dev simulate --seed 9 --only forwarding --trace"


@pytest.mark.parametrize("jobs", [1, 2])
def test_many_runs_come_in_the_order_in_which_they_were_asked_for(jobs: int) -> None:
    assert list(run_many(abs, [-3, -1, -2], jobs)) == [3, 1, 2]
