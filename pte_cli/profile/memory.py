"""`--report memory`: peak bytes by phase and part, per arm, length and budget, predicted and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pte_cli.profile.arms import Arm
from pte_cli.profile.live import Peak
from pte_cli.profile.measure import Measurement, measure_step
from pte_cli.profile.predict import Prediction, Predictor, largest
from pte_cli.profile.step import Gradient, Setting
from pte_cli.rollout.engine import Budget

MOST_TOKENS, MOST_ROWS = 2**20, 2**14


@dataclass(frozen=True)
class MemoryQuestion:
    """Which steps to predict. lengths: sampled tokens; memory: bytes of the machine they should fit, or None.

    measure: also train each step, where the model is one that can be loaded. accelerator: predict for one.
    """

    arms: Sequence[Arm]
    lengths: Sequence[int]
    budgets: Sequence[int]
    rows: int
    prompt: int
    gradient: Gradient = "truncated"
    memory: int | None = None
    measure: bool = True
    accelerator: bool = False

    def settings(self) -> list[tuple[Arm, int | None, Setting]]:
        """(arm, budget, step at the shortest length), one for each curve."""
        return [(arm, budget, self.setting(arm, budget)) for arm in self.arms for budget in self._budgets(arm)]

    def setting(self, arm: Arm, budget: int | None) -> Setting:
        """The step of one curve at the shortest length."""
        config = arm.config
        # AdamW updates all parameters of an accelerator at once, one after the other on a CPU.
        foreach = True if self.accelerator else None
        bound, micro_batch = Budget(budget, config.evict.frac), config.train.micro_batch
        return Setting(self.rows, self.prompt, min(self.lengths), bound, self.gradient, micro_batch, foreach)

    def _budgets(self, arm: Arm) -> Sequence[int | None]:
        return self.budgets if arm.bounded else (None,)


def memory_report(
    question: MemoryQuestion, model: Mapping[str, Any], tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The report as JSON: `steps`, one for each arm, budget and length, and `fits` where a memory is given.

    model: the model's config.json. tell: what is being worked on.
    """
    steps, fits = [], []
    for arm, budget, shortest in question.settings():
        predictor = Predictor(arm.config, model)
        for length in sorted(question.lengths):
            setting = replace(shortest, length=length)
            bound = "full cache" if budget is None else f"budget {budget}"
            tell(f"{arm.name}, {bound}, {length} tokens: predict")
            predicted, measured = predictor.predict(setting), None
            if question.measure:
                tell(f"{arm.name}, {bound}, {length} tokens: measure")
                measured = measure_step(arm.config, setting)
            steps.append({"arm": arm.name, "budget": budget, "length": length, **_step(predicted, measured)})
        if question.memory is not None:
            tell(f"{arm.name}, {bound}: what fits")
            longest = replace(shortest, length=max(question.lengths))
            fits.append({"arm": arm.name, "budget": budget, **what_fits(predictor, longest, question.memory)})
    report: dict[str, Any] = {"report": "memory", "rows": question.rows, "prompt": question.prompt, "steps": steps}
    if question.memory is not None:
        report |= {"memory": question.memory, "fits": fits}
    return report


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
