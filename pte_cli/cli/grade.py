"""`pte eval --grade FILE`: scores of recorded completions, without a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from pte_cli.cli import ui
from pte_cli.errors import UsageError
from pte_cli.eval.grade import GradedScores, grade_file
from pte_cli.eval.statistics import Estimate


def grade_recorded(
    file: Path, k: str | None, out: Path | None, json: bool, others: Mapping[str, object | None]
) -> None:
    """Grade `file` and print its scores. others: what else was given, by name; UsageError, as none of it applies."""
    if given := [name for name, value in others.items() if value is not None]:
        raise UsageError(f"--grade {file}: grades what is recorded, without run or model; leave out {', '.join(given)}")
    scores = grade_file(file, numbers(k), out)
    if scores.reasons.get("no_reference"):
        ui.err().print(
            f"{scores.reasons['no_reference']} samples counted as 0: their reference can only be matched as text",
            soft_wrap=True,
        )
    if json:
        ui.print_json({"file": str(file), **scores.as_json()})
    else:
        ui.out().print(heading(file, scores), soft_wrap=True)
        ui.out().print(table(scores))
        ui.next_step(f"pte eval --grade {file} --out FILE keeps the grade of every sample")


def numbers(k: str | None) -> list[int] | None:
    """`1,2,4` as numbers. UsageError for anything else."""
    if k is None:
        return None
    try:
        return [int(part) for part in k.split(",")]
    except ValueError:
        raise UsageError(f"--k {k}: whole numbers with commas are expected, for example 1,4") from None


def heading(file: Path, scores: GradedScores) -> str:
    """What was graded, how much of it, and by which grader."""
    problems = f"{scores.problems} problem{'s' * (scores.problems != 1)}"
    return f"{file}: {problems} x {samples(scores)}, grader: {scores.grader}"


def samples(scores: GradedScores) -> str:
    """Samples of a problem: `4`, or `3 to 4`."""
    low, high = scores.samples
    return f"{low}" if low == high else f"{low} to {high}"


def table(scores: GradedScores) -> Table:
    """Scores with their 95 % intervals over problems, and how often each reason occurred."""
    shown = Table(show_edge=False, pad_edge=False)
    shown.add_column("score (95 % interval over problems)")
    shown.add_column("result", justify="right")
    shown.add_row(f"avg@{samples(scores)}", percent(scores.average))
    for k, found in scores.pass_at.items():
        shown.add_row(f"pass@{k}", percent(found))
    if scores.truncated is not None:
        shown.add_row("truncated at the token limit", f"{100 * scores.truncated:.1f} %")
    for reason, count in scores.reasons.items():
        shown.add_row(f"reason: {reason}", str(count))
    return shown


def percent(found: Estimate) -> str:
    """`37.5 % (30.1 to 44.9)`, or without an interval where one problem gives none."""
    if found.low is None or found.high is None:
        return f"{100 * found.mean:.1f} % (no interval)"
    return f"{100 * found.mean:.1f} % ({100 * found.low:.1f} to {100 * found.high:.1f})"
