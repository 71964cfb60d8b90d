"""Intervals, against tables and normal theory."""

from __future__ import annotations

import numpy as np
import pytest

from pte_cli.report.intervals import mean_interval, paired_difference


def runs(matrix):
    """`matrix` `[S, P]` as outcomes by seed."""
    return {seed: {(i, f"p{i}"): float(v) for i, v in enumerate(row)} for seed, row in enumerate(matrix)}


def test_the_mean_of_five_has_students_interval():
    found = mean_interval([1, 2, 3, 4, 5])
    # s = 1.5811, t(0.975, 4) = 2.776 from the table: 2.776 * 1.5811 / sqrt(5) = 1.963
    assert (found.mean, found.n) == (3, 5)
    assert found.high - 3 == pytest.approx(1.963, abs=1e-3)
    assert 3 - found.low == pytest.approx(1.963, abs=1e-3)


def test_one_value_has_no_interval():
    found = mean_interval([0.4])
    assert (found.mean, found.low, found.high, found.n) == (0.4, None, None, 1)


@pytest.mark.parametrize("axis", [0, 1], ids=["seeds", "problems"])
def test_what_varies_along_one_axis_alone_has_the_normal_interval_of_its_mean(axis):
    effect = np.random.default_rng(1).normal(0.2, 1.0, 400)
    matrix = np.repeat(effect[:, None], 3, 1) if axis == 0 else np.repeat(effect[None, :], 3, 0)
    found = paired_difference(runs(matrix), runs(np.zeros_like(matrix)))
    half = 1.96 * effect.std() / 20
    assert found.mean == pytest.approx(effect.mean())
    assert found.low == pytest.approx(effect.mean() - half, abs=0.1 * half)
    assert found.high == pytest.approx(effect.mean() + half, abs=0.1 * half)


def test_with_few_seeds_it_is_as_wide_as_students():
    """Five seeds that differ alike on all problems: the interval of their five means."""
    effect = np.array([0.1, 0.3, 0.25, 0.4, 0.2])
    found = paired_difference(runs(np.repeat(effect[:, None], 50, 1)), runs(np.zeros((5, 50))))
    half = 2.776 * effect.std(ddof=1) / np.sqrt(5)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_both_kinds_of_spread_add_up():
    """Additive effects of seeds and problems: the variances of both means, plus nothing."""
    generator = np.random.default_rng(2)
    seeds, problems = generator.normal(0, 0.1, 40), generator.normal(0, 1, 300)
    found = paired_difference(runs(seeds[:, None] + problems), runs(np.zeros((40, 300))))
    half = 1.96 * np.sqrt(seeds.var() / 40 + problems.var() / 300)
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.1)


def test_pairing_takes_out_what_a_problem_has_in_common():
    hard = np.random.default_rng(3).random((1, 500)) < 0.5
    ours, theirs = np.repeat(hard, 4, 0) * 1.0, np.repeat(hard, 4, 0) * 1.0
    found = paired_difference(runs(ours), runs(theirs))
    assert (found.mean, found.low, found.high) == (0, 0, 0)


def test_runs_are_paired_by_seed():
    ours, theirs = runs([[1, 1], [0, 0], [1, 1]]), runs([[1, 1], [0, 0]])
    found = paired_difference(ours, theirs)
    assert (found.mean, found.n) == (0, 2)
    assert paired_difference({3: ours[0]}, theirs) is None


def test_one_pair_gives_no_interval():
    found = paired_difference(runs([[1, 1, 0, 1]]), runs([[0, 0, 0, 1]]))
    assert (found.mean, found.low, found.high, found.n) == (0.5, None, None, 1)


def test_what_has_no_seed_is_compared_with_every_run():
    bare = {None: {(0, "p0"): 1.0, (1, "p1"): 0.0}}
    found = paired_difference(bare, runs([[0, 0], [1, 0], [1, 1]]))
    assert (found.mean, found.n) == (pytest.approx(0), 3)
    assert paired_difference(bare, bare).low is None


def test_other_problems_are_not_compared():
    ours = runs([[1, 0], [1, 0]])
    other = {seed: {(i, "q"): 1.0 for i, _ in run} for seed, run in ours.items()}
    assert paired_difference(ours, other) is None
    assert paired_difference(ours, runs([[1, 0, 1], [1, 0, 1]])) is None
