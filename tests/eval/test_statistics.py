"""pass@k, avg@k and intervals against hand-computed values and printed tables."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from pte_cli.errors import UsageError
from pte_cli.eval.statistics import (
    average,
    estimate,
    mean_pass_at_k,
    paired_difference,
    pass_at_k,
    student_quantile,
)

TWO = {"a": [1, 1, 0, 0], "b": [1, 0, 0, 0]}


def test_pass_at_k_of_two_problems():
    assert mean_pass_at_k(TWO, 1).mean == pytest.approx(0.375)
    assert mean_pass_at_k(TWO, 2).mean == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert mean_pass_at_k(TWO, 4).mean == 1.0
    assert average(TWO).mean == pytest.approx(0.375)


@pytest.mark.parametrize(("n", "c", "k"), [(6, 2, 3), (5, 0, 2), (5, 5, 5), (7, 3, 1), (8, 6, 3)])
def test_pass_at_k_is_the_share_of_all_subsets_with_a_right_one(n, c, k):
    samples = [1] * c + [0] * (n - c)
    subsets = list(combinations(samples, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(s) for s in subsets) / len(subsets))


@pytest.mark.parametrize("k", [0, 5, 8])
def test_more_than_the_samples_is_refused(k):
    with pytest.raises(UsageError, match="k can be 1 to 4"):
        pass_at_k(4, 2, k)


def test_the_problem_with_too_few_samples_is_named():
    with pytest.raises(UsageError, match="problem 'b' has 2 samples"):
        mean_pass_at_k({"a": [1, 0, 0], "b": [1, 0]}, 3)


def test_students_t_table():
    for freedom, value in {1: 12.706, 2: 4.303, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980}.items():
        assert student_quantile(0.975, freedom) == pytest.approx(value, abs=5e-4)
    assert student_quantile(0.95, 7) == pytest.approx(1.895, abs=5e-4)


def test_the_interval_is_over_problems():
    # Means 0.2, 0.4, 0.6: mean 0.4, sample deviation 0.2, standard error 0.2 / sqrt(3), t(2) = 4.303.
    found = estimate([0.2, 0.4, 0.6])
    assert (found.mean, found.n) == (pytest.approx(0.4), 3)
    assert found.high == pytest.approx(0.4 + 4.3026527 * 0.2 / math.sqrt(3), abs=1e-6)
    assert found.low == 0.0  # would be below what a score can be
    # Ten copies of each sample add nothing: the problem is the unit.
    few = {"a": [1, 0], "b": [0, 0], "c": [1, 1]}
    many = {problem: samples * 10 for problem, samples in few.items()}
    assert average(few) == average(many)


def test_one_problem_has_no_interval():
    found = average({"a": [1, 0]})
    assert (found.mean, found.low, found.high, found.n) == (0.5, None, None, 1)
    assert paired_difference({"a": [1]}, {"a": [0]}).low is None


def test_all_right_is_not_certainty():
    # Wilson at 10 of 10: n / (n + z^2).
    found = estimate([1.0] * 10)
    assert found.low == pytest.approx(10 / (10 + 1.959964**2))
    assert found.high == pytest.approx(1.0)


def test_paired_difference():
    # Differences 0.5, 0, 0.5, 0: mean 0.25, deviation 0.288675, standard error 0.144338, t(3) = 3.182446.
    first = {"a": [0, 0], "b": [1, 0], "c": [0, 1], "d": [1, 1]}
    second = {"d": [1], "c": [1], "b": [0, 1], "a": [1, 0]}
    found = paired_difference(first, second)
    assert found.mean == pytest.approx(0.25)
    assert found.low == pytest.approx(0.25 - 3.182446 * 0.144338, abs=1e-5)
    assert found.high == pytest.approx(0.25 + 3.182446 * 0.144338, abs=1e-5)


def test_different_problems_cannot_be_paired():
    with pytest.raises(UsageError, match="1 are in one of them only, first 'c'"):
        paired_difference({"a": [1], "b": [1]}, {"a": [1], "b": [1], "c": [0]})


def test_nothing_to_score():
    with pytest.raises(UsageError, match="no problems"):
        average({})
    with pytest.raises(UsageError, match="'a' has no samples"):
        average({"a": []})
