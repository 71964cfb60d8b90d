"""`--report memory`: peak bytes by phase and part, per arm, length and budget, predicted and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pte_cli.profile.arms import Question
from pte_cli.profile.live import Peak
from pte_cli.profile.measure import Measurement, measure_step
from pte_cli.profile.predict import Prediction, Predictor, largest
from pte_cli.profile.step import Setting

MOST_TOKENS, MOST_ROWS = 2**20, 2**14


def memory_report(
    question: Question,
    model: Mapping[str, Any],
    *,
    measure: bool,
    memory: int | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The report as JSON: `steps`, one for each arm, budget and length, and `fits` where a memory is given.

    model: the model's config.json. measure: also train each step. memory: bytes of the machine that it should fit.
    tell: what is being worked on.
    """
    steps, fits = [], []
    for curve in question.curves():
        predictor = Predictor(curve.arm.config, model)
        for step in curve.steps:
            tell(f"{curve}, {step.length} tokens: predict")
            predicted, measured = predictor.predict(step), None
            if measure:
                tell(f"{curve}, {step.length} tokens: measure")
                measured = measure_step(curve.arm.config, step)
            steps.append({**curve.head(step), **_step(predicted, measured)})
        if memory is not None:
            tell(f"{curve}: what fits")
            found = what_fits(predictor, curve.steps[-1], memory)
            fits.append({"arm": curve.arm.name, "budget": curve.budget, **found})
    report = {**question.head("memory"), "steps": steps}
    return report if memory is None else {**report, "memory": memory, "fits": fits}


def what_fits(predictor: Predictor, setting: Setting, memory: int) -> dict[str, Any]:
    """The most tokens for the rows of `setting`, and the most rows at its length.

    Each as `at_most`, to within 1 %, None where not even 1 fits; `or_more` where the search went no further.
    """

    def at_length(tokens: int) -> int:
        return predictor.predict(replace(setting, length=tokens)).peak.total

    def at_rows(rows: int) -> int:
        return _grown(predictor, setting, rows)

    tokens = largest(at_length, memory, setting.length, MOST_TOKENS)
    rows = largest(at_rows, memory, setting.rows, MOST_ROWS)
    return {
        "most_tokens": {"at_most": tokens, "or_more": tokens == MOST_TOKENS},
        "most_rows": {"at_most": rows, "or_more": rows == MOST_ROWS},
    }


def _grown(predictor: Predictor, setting: Setting, rows: int) -> int:
    """The peak with another number of rows. What a long step adds to its first rounds is taken to be in proportion to
    the rows, so that one short run tells."""
    short = predictor.shortest(setting)
    added = predictor.predict(setting).peak.total - predictor.predict(short).peak.total
    return predictor.predict(replace(short, rows=rows)).peak.total + added * rows // setting.rows


def _step(predicted: Prediction, measured: Measurement | None) -> dict[str, Any]:
    """One step of the report; bytes."""
    found: dict[str, Any] = {
        "predicted": _peaks(predicted.peaks, predicted.peak),
        "rounds_run": predicted.rounds,
        "extrapolated": not predicted.whole,
    }
    if measured is not None:
        found["measured"] = _peaks(measured.peaks, measured.peak)
        found["measured"]["allocated"] = measured.allocated
        found["predicted_to_measured"] = predicted.peak.total / measured.peak.total
    return found


def _peaks(peaks: Mapping[str, Peak], highest: Peak) -> dict[str, Any]:
    def shown(peak: Peak) -> dict[str, int]:
        return {part: size for part, size in peak.parts.items() if size}

    return {
        "peak": highest.total,
        "parts": shown(highest),
        "phases": {phase: {"peak": peak.total, "parts": shown(peak)} for phase, peak in peaks.items()},
    }
