"""Scores of a benchmark, by hand."""

from __future__ import annotations

import pytest

from pte_cli.errors import UsageError
from pte_cli.eval.scores import bench_score
from pte_cli.eval.store import Outcome


def outcomes(scores, finish="stop", length=10):
    return [
        Outcome(identity, i, score, "right" if score else "no_box", finish, length, 2)
        for identity, of_problem in scores.items()
        for i, score in enumerate(of_problem)
    ]


def test_scores_by_hand():
    found = bench_score(
        [
            *outcomes({"a": [1, 0, 0, 0], "b": [1, 1, 1, 1]}),
            *outcomes({"c": [0, 0, 0, 0]}, finish="length", length=40),
        ],
        (1, 2, 4),
    )
    assert found.n == 3
    assert found.average.mean == pytest.approx((0.25 + 1 + 0) / 3)
    assert found.pass_at[1].mean == pytest.approx(found.average.mean)
    # pass@2 of a: 1 - C(3,2)/C(4,2) = 1 - 3/6.
    assert found.pass_at[2].mean == pytest.approx((0.5 + 1 + 0) / 3)
    assert found.pass_at[4].mean == pytest.approx(2 / 3)
    # Clustered: from the three problem means, s = sqrt(0.2708333), t(0.975, 2) = 4.302653; cut to 0..1.
    assert (found.average.low, found.average.high) == (0.0, 1.0)
    assert found.truncated == pytest.approx(1 / 3)
    assert found.mean_length == pytest.approx(20)
    assert found.evictions == 2
    assert found.reasons == {"right": 5, "no_box": 7}


def test_one_problem_gives_no_interval():
    found = bench_score(outcomes({"a": [1, 0]}), (1, 2))
    assert (found.average.mean, found.average.low, found.average.high, found.n) == (0.5, None, None, 1)
    assert (found.pass_at[2].mean, found.pass_at[2].low) == (1.0, None)


def test_a_problem_with_fewer_samples_than_k_is_named():
    with pytest.raises(UsageError, match="pass@2: problem 'b' has 1 samples"):
        bench_score(outcomes({"a": [1, 0], "b": [1]}), (2,))
