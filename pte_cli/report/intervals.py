"""Intervals over seeds, and of paired differences over seeds and problems. Pure functions on plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from pte_cli.eval.statistics import LEVEL, student_quantile

RESAMPLES = 4000
Outcomes = Mapping[tuple[int, str], float]
"""1 or 0 (or a score) by problem."""


@dataclass(frozen=True)
class Interval:
    """A mean of n values; `low` and `high` are None where one value gives no interval."""

    mean: float
    low: float | None
    high: float | None
    n: int


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of independent values with Student's interval: mean +- t(n-1) s / sqrt(n)."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Interval(mean, None, None, n)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = student_quantile((1 + level) / 2, n - 1) * spread / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired_difference(
    ours: Mapping[int | None, Outcomes], theirs: Mapping[int | None, Outcomes], level: float = LEVEL
) -> Interval | None:
    """The mean of (ours - theirs) on the same problems, with a bootstrap interval over seeds and over problems.

    Both are by seed; runs of one seed are paired. A side whose only seed is None does not depend on one, and is
    compared with every run of the other. Seeds and problems are resampled independently of each other (Owen 2007, "The
    pigeonhole bootstrap", Annals of Applied Statistics 1(2)): percentiles of 4,000 resamples with a fixed seed. A
    bootstrap of few values is too narrow (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"), so what
    seeds contribute is spread as Student's t has it. One pair gives no interval. None where the two had other problems,
    or no seed in common.
    """
    seeds = (ours.keys() | theirs.keys()) - {None} or {None}
    pairs = [
        (mine, other) for seed in sorted(seeds, key=str) if (mine := _of(ours, seed)) and (other := _of(theirs, seed))
    ]
    if not pairs:
        return None
    shared = sorted(set.intersection(*(set(side) for pair in pairs for side in pair)))
    if not shared or any(len(shared) < len(side) for pair in pairs for side in pair):
        return None
    differences = np.array([[mine[p] - other[p] for p in shared] for mine, other in pairs])
    mean = float(differences.mean())
    if len(pairs) < 2:
        return Interval(mean, None, None, len(pairs))
    low, high = np.quantile(resampled_means(differences, level), [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean, float(low), float(high), len(pairs))


def _of(runs: Mapping[int | None, Outcomes], seed: int | None) -> Outcomes | None:
    return runs.get(seed, runs.get(None))


def resampled_means(values: np.ndarray, level: float) -> np.ndarray:
    """Means of `RESAMPLES` resamples of the rows (at least 2 seeds) and columns (problems) of `values` `[S, P]`."""
    rows, columns = values.shape
    spread = small_sample_spread(rows, level)
    by_seed = 1 / rows + spread * (_weights(rows, 0) - 1 / rows)
    return ((_weights(columns, 1) @ values.T) * by_seed).sum(1)


def small_sample_spread(n: int, level: float) -> float:
    """How much wider Student's interval of the mean of n values is than the percentiles of its bootstrap.

    sqrt(n / (n - 1)) for the variance that the bootstrap estimates, and t(n - 1) / z for its estimate being uncertain.
    """
    p = (1 + level) / 2
    return math.sqrt(n / (n - 1)) * student_quantile(p, n - 1) / NormalDist().inv_cdf(p)


@cache
def _weights(n: int, stream: int) -> np.ndarray:
    """The share of each of n items in each of `RESAMPLES` resamples with replacement, `[RESAMPLES, n]`."""
    generator = np.random.default_rng([0, stream])
    picked = generator.integers(n, size=(RESAMPLES, n))
    counts = np.zeros((RESAMPLES, n))
    np.add.at(counts, (np.arange(RESAMPLES)[:, None], picked), 1.0)
    return counts / n
