"""From samples to scores of a benchmark, and to the difference from another evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pte_cli.errors import UsageError
from pte_cli.eval.benchmarks import BenchProblem
from pte_cli.eval.statistics import Estimate, Scores, average, mean_pass_at_k, paired_difference
from pte_cli.eval.store import Outcome, differences, find_recorded, outcome_of, read_header, read_recorded
from pte_cli.tasks.grading import REASONS


@dataclass(frozen=True)
class BenchScore:
    """The scores of one benchmark.

    average: avg@k, an estimate of pass@1. pass_at: by k. Intervals are over problems. truncated: share of samples that
    hit the token limit. mean_length: tokens, the end token included. evictions: of a sample, on average.
    """

    n: int
    average: Estimate
    pass_at: dict[int, Estimate]
    truncated: float
    mean_length: float
    evictions: float
    reasons: dict[str, int]


def scores_by_problem(outcomes: Sequence[Outcome]) -> dict[str, list[float]]:
    """The scores of each problem's samples, by its id."""
    scores: dict[str, list[float]] = {}
    for outcome in outcomes:
        scores.setdefault(outcome.id, []).append(outcome.score)
    return scores


def bench_score(outcomes: Sequence[Outcome], ks: Sequence[int]) -> BenchScore:
    """The scores of one benchmark's samples. UsageError where a problem has fewer than k of them."""
    scores = scores_by_problem(outcomes)
    reasons = Counter(outcome.reason for outcome in outcomes)
    count = len(outcomes)
    return BenchScore(
        n=len(scores),
        average=average(scores),
        pass_at={k: mean_pass_at_k(scores, k) for k in ks},
        truncated=sum(outcome.finish == "length" for outcome in outcomes) / count,
        mean_length=sum(outcome.length for outcome in outcomes) / count,
        evictions=sum(outcome.evictions for outcome in outcomes) / count,
        reasons={reason: reasons[reason] for reason in REASONS if reasons[reason]},
    )


@dataclass(frozen=True)
class Recorded:
    """Another evaluation, to compare with: its scores, and the settings it differs in."""

    path: Path
    differs: Mapping[str, tuple[Any, Any]]
    scores: Mapping[str, Scores]

    @classmethod
    def read(cls, path: Path, benchmarks: Mapping[str, Sequence[BenchProblem]], own: Mapping[str, Any]) -> Recorded:
        """UsageError where it lacks one of the problems, or was graded by other rules."""
        folder = find_recorded(path)
        differs = differences(read_header(folder), own)
        if "grader" in differs:
            old, new = differs["grader"]
            raise UsageError(f"--compare {path}: was graded by {old}, this is {new}; their scores can't be compared")
        scores = {}
        for name, problems in benchmarks.items():
            found = scores_by_problem([outcome_of(record) for record in read_recorded(folder, name)])
            lacking = [problem.id for problem in problems if problem.id not in found]
            if lacking:
                raise UsageError(
                    f"--compare {path}: has no samples of {len(lacking)} of the {len(problems)} problems of {name}, "
                    f"the first is {lacking[0]!r}"
                )
            scores[name] = {problem.id: found[problem.id] for problem in problems}
        return cls(folder, differs, scores)

    def against(self, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
        """How much better `outcomes` are, by benchmark: the mean paired difference with its interval."""
        return {
            "with": str(self.path),
            "differs": {name: list(values) for name, values in self.differs.items()},
            "difference": {
                name: asdict(paired_difference(scores, scores_by_problem(outcomes[name])))
                for name, scores in self.scores.items()
            },
        }
