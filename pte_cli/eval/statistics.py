"""Scores of k samples of each of n problems: pass@k, avg@k, and intervals that treat a problem as the unit.

Samples of one problem are not independent, so every standard error is over problem means. Pure functions on plain
numbers; `scores` maps a problem's id to the scores of its samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pte_cli.errors import UsageError

Scores = Mapping[str, Sequence[float]]
LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over n problems and its interval; `low` and `high` are None where one problem gives no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


def problem_means(scores: Scores) -> dict[str, float]:
    """The mean score of each problem's samples. UsageError where there are no problems or a problem has no samples."""
    if not scores:
        raise UsageError("no problems to score")
    for problem, samples in scores.items():
        if not samples:
            raise UsageError(f"problem {problem!r} has no samples")
    return {problem: math.fsum(samples) / len(samples) for problem, samples in scores.items()}


def average(scores: Scores, level: float = LEVEL) -> Estimate:
    """avg@k: the mean over problems of the mean over samples. Its expectation is pass@1 whatever the k."""
    return estimate(list(problem_means(scores).values()), level)


def pass_at_k(samples: int, right: int, k: int) -> float:
    """The chance that at least one of k of these samples is right: 1 - C(n - c, k) / C(n, k).

    Unbiased (Chen et al. 2021, arXiv 2107.03374). UsageError where k is not in 1..samples.
    """
    if not 1 <= k <= samples:
        raise UsageError(f"pass@{k}: there are {samples} samples a problem; k can be 1 to {samples}")
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def mean_pass_at_k(scores: Scores, k: int, level: float = LEVEL) -> Estimate:
    """pass@k over problems; a sample is right when its score is 1. UsageError where a problem has fewer than k."""
    problem_means(scores)
    fewest = min(scores, key=lambda problem: len(scores[problem]))
    if k > len(scores[fewest]):
        found = len(scores[fewest])
        raise UsageError(f"pass@{k}: problem {fewest!r} has {found} samples; k can be 1 to {found}")
    values = [pass_at_k(len(s), sum(score == 1 for score in s), k) for s in scores.values()]
    return estimate(values, level)


def paired_difference(first: Scores, second: Scores, level: float = LEVEL) -> Estimate:
    """Mean over problems of (second's mean - first's mean), with the interval of the paired differences.

    UsageError where the two are not over the same problems.
    """
    a, b = problem_means(first), problem_means(second)
    if a.keys() != b.keys():
        only = sorted(a.keys() ^ b.keys())
        raise UsageError(
            f"the two runs are not over the same problems: {len(only)} are in one of them only, first {only[0]!r}"
        )
    return estimate([b[problem] - a[problem] for problem in a], level, lowest=-1.0)


def estimate(values: Sequence[float], level: float = LEVEL, lowest: float = 0.0, highest: float = 1.0) -> Estimate:
    """The mean of independent values with Student's interval, cut to what a score can be.

    Where all values are at the same end of the scale, their spread says nothing, and Wilson's interval takes its place.
    """
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Estimate(mean, None, None, n)
    if lowest == 0 and all(value == values[0] for value in values) and mean in (0.0, 1.0):
        return Estimate(mean, *wilson(round(mean * n), n), n)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    half = student_quantile((1 + level) / 2, n - 1) * math.sqrt(variance / n)
    return Estimate(mean, max(lowest, mean - half), min(highest, mean + half), n)


def wilson(right: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval for a proportion (E. B. Wilson, JASA 1927), 95 % by default."""
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def student_quantile(p: float, freedom: int) -> float:
    """Quantile of Student's t for p > 1/2, by bisection of its distribution function, to 1e-9."""
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < p:
        high *= 2
    while high - low > 1e-9 * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2


def student_cdf(t: float, freedom: int) -> float:
    """P(T <= t) for whole degrees of freedom, a finite sum (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for j in range(odd + 2, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (j - 1) / j
    two_sided = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + two_sided) / 2
