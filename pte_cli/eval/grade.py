"""Grading recorded completions without a model: scores, reasons, pass@k with intervals."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from pte_cli.errors import UsageError
from pte_cli.eval.recorded import Sample, read_samples
from pte_cli.eval.statistics import Estimate, average, mean_pass_at_k
from pte_cli.tasks.grading import REASONS, Grade, Grader, Item, grader_version

CUT = "length"
"""What `finish` says of a completion that hit its token limit."""


@dataclass(frozen=True)
class GradedScores:
    """What a set of graded samples amounts to.

    samples: of each problem, fewest and most. average: avg@k, an estimate of pass@1. pass_at: by k. reasons: how often
    each occurred. truncated: share of the samples with a known finish that were cut off; None where none is known.
    """

    grader: str
    problems: int
    samples: tuple[int, int]
    average: Estimate
    pass_at: dict[int, Estimate]
    reasons: dict[str, int]
    truncated: float | None

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


class Tally:
    """Collects grades one at a time, holding a number per sample and no text but the problems' ids."""

    def __init__(self) -> None:
        self.scores: dict[str, list[float]] = {}
        self.reasons: Counter[str] = Counter()
        self.finished = self.cut = 0

    def add(self, sample: Sample, grade: Grade) -> None:
        self.scores.setdefault(sample.id, []).append(grade.score)
        self.reasons[grade.reason] += 1
        self.finished += sample.finish is not None
        self.cut += sample.finish == CUT

    def result(self, ks: Sequence[int]) -> GradedScores:
        """UsageError where a problem has fewer than k samples for a k asked for."""
        sizes = [len(samples) for samples in self.scores.values()]
        return GradedScores(
            grader=grader_version(),
            problems=len(sizes),
            samples=(min(sizes), max(sizes)),
            average=average(self.scores),
            pass_at={k: mean_pass_at_k(self.scores, k) for k in ks},
            reasons={reason: self.reasons[reason] for reason in REASONS if self.reasons[reason]},
            truncated=self.cut / self.finished if self.finished else None,
        )


def grade_file(path: Path, ks: Sequence[int] | None = None, out: Path | None = None) -> GradedScores:
    """Grade a file of recorded completions; `out` gets one line per sample. ks: default 1 and the samples there are.

    Problems are checked before anything is graded: UsageError for a bad line or too large a k.
    """
    sizes = Counter(sample.id for sample in read_samples(path))
    fewest = min(sizes.values())
    ks = sorted({1, fewest} if ks is None else set(ks))
    if wrong := [k for k in ks if not 1 <= k <= fewest]:
        raise UsageError(
            f"k = {wrong[0]}: {path} has {fewest} sample{'s' * (fewest > 1)} of a problem; k can be 1 to {fewest}"
        )
    if out is not None and out.exists() and out.samefile(path):
        raise UsageError(f"--out {out}: is the file that is graded; choose another")
    tally = Tally()
    with Grader() as grader, _writing(out) as file:
        for sample, grade in graded(grader, read_samples(path)):
            tally.add(sample, grade)
            if file is not None:
                file.write(json.dumps(record(sample, grade), ensure_ascii=False) + "\n")
    return tally.result(ks)


def graded(grader: Grader, samples: Iterable[Sample]) -> Iterator[tuple[Sample, Grade]]:
    """Each sample with its grade, a bounded number of them in memory."""
    held: deque[Sample] = deque()

    def items() -> Iterator[Item]:
        for sample in samples:
            held.append(sample)
            yield Item(sample.answer, sample.completion, sample.problem)

    for grade in grader.stream(items()):
        yield held.popleft(), grade


def record(sample: Sample, grade: Grade) -> dict[str, Any]:
    """A graded sample as `--out` writes it: `extracted` is the text of its final box, or null."""
    return {
        **{k: v for k, v in asdict(sample).items() if k != "index"},
        "sample": sample.index,
        "extracted": grade.answer,
        "score": grade.score,
        "reason": grade.reason,
        "grader": grader_version(),
    }


@contextmanager
def _writing(path: Path | None) -> Iterator[IO[str] | None]:
    """A text file that appears under its name only when it is complete; None for no path."""
    if path is None:
        yield None
        return
    part = path.with_name(path.name + ".part")
    try:
        if path.is_dir():
            raise UsageError(f"--out {path}: is a folder; name a file for the grades")
        file = part.open("w", encoding="utf-8", errors="surrogatepass")
    except OSError as error:
        raise UsageError(f"--out {path}: can't be written: {error.strerror}") from None
    try:
        with file:
            yield file
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
