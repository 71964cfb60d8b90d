"""`pte eval --bench`: scores on benchmarks, or on problems of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pte_cli.cli import ui
from pte_cli.cli.grade import numbers
from pte_cli.cli.options import conditions, prompting, sampling
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError, did_you_mean
from pte_cli.eval.bench import Evaluation, Plan
from pte_cli.eval.benchmarks import read_benchmarks
from pte_cli.eval.store import FORMATS
from pte_cli.runs import RunDir

DEFAULTS = {"evict.budget": 4096, "sampling.max_new_tokens": 3072, "sampling.rows": 16}
"""Of the bare model; a run brings its own."""


@dataclass(frozen=True)
class Asked:
    """The options of a benchmark evaluation as they were given; None where they were not."""

    bench: str
    folder: Path | None
    limit: int | None
    samples: int | None
    k: str | None
    temperature: float | None
    top_p: float | None
    seed: int | None
    style: str | None
    out: Path | None
    form: str | None
    compare: Path | None

    def plan(self, config: RunConfig) -> Plan:
        """What to evaluate. UsageError for whatever can't be, before a model is loaded."""
        samples = 1 if self.samples is None else self.samples
        if samples < 1:
            raise UsageError(f"--samples {samples}: at least 1")
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"--limit {self.limit}: at least 1")
        temperature = self.temperature
        if temperature is None:
            temperature = 0.0 if samples == 1 else config.sampling.temperature
        if samples > 1 and temperature == 0:
            raise UsageError(f"--samples {samples}: at temperature 0 they would all be equal; use more than 0")
        style, system = prompting(config, self.style)
        return Plan(
            benchmarks=read_benchmarks(self.bench, self.folder, self.limit),
            samples=samples,
            ks=pass_at(self.k, samples),
            sampling=sampling(config, temperature, self.top_p),
            seed=self.seed or 0,
            style=style,
            system=system,
        )


def evaluate_benchmarks(config: RunConfig, run: RunDir | None, asked: Asked, json: bool) -> None:
    """Evaluate a run, or the bare model, and print the scores."""
    form = asked.form or FORMATS[0]
    if form not in FORMATS:
        raise UsageError(f"--format {form}: {did_you_mean(form, FORMATS)}")
    if asked.form and asked.out is None:
        raise UsageError(f"--format {form}: is that of the samples in --out FOLDER; add it")
    evaluation = Evaluation(config, run, asked.plan(config), asked.out, asked.compare)
    if evaluation.recorded:
        ui.err().print(f"{asked.out}: {evaluation.recorded} of {evaluation.total} samples are there", soft_wrap=True)
    with ui.only_results_on_stdout(), ui.StepProgress() as progress:

        def on_done(done: int, total: int, right: float) -> None:
            progress.step({"phase": "samples", "step": done, "accuracy": right}, total)

        try:
            evaluation.generate(on_done)
        except KeyboardInterrupt:
            if asked.out is not None:
                ui.err().print(
                    f"{evaluation.done} samples are in {asked.out}; the same command goes on", soft_wrap=True
                )
            raise
    result = evaluation.finish(form)
    if json:
        ui.print_json(result)
        return
    ui.out().print(heading(config, result), soft_wrap=True)
    ui.out().print(table(result))
    if result["compare"] is not None:
        ui.out().print(comparison(result["compare"]), soft_wrap=True)
    ui.next_step(
        f"the same on another run with --compare {asked.out}"
        if asked.out
        else "the same with --out FOLDER keeps every sample, to compare others with"
    )


def pass_at(k: str | None, samples: int) -> tuple[int, ...]:
    """Which pass@k: those asked for, else 1 and all. UsageError where there aren't k samples."""
    ks = sorted({1, samples} if k is None else set(numbers(k) or ()))
    if wrong := [k for k in ks if not 1 <= k <= samples]:
        raise UsageError(f"--k {wrong[0]}: there are {samples} samples a problem; k can be 1 to {samples}")
    return tuple(ks)


def heading(config: RunConfig, result: dict[str, Any]) -> str:
    """Everything a score depends on, in three lines."""
    sampled = f"temperature {result['temperature']:g}, top-p {result['top_p']:g}"
    drawn = "greedy (temperature 0)" if result["temperature"] == 0 else f"{sampled}, seed {result['seed']}"
    return (
        f"{result['run'] or config.model.name}: {conditions(config)}, encoder {result['encoder']}\n"
        f"{result['samples']} sample{'s' * (result['samples'] > 1)} a problem, {drawn}, "
        f"at most {result['max_new_tokens']} tokens\n"
        f"prompt style {result['prompt_style']}, grader: {result['grader']}"
    )


def table(result: dict[str, Any]) -> Table:
    """A column for each benchmark; intervals are 95 % over problems."""
    shown = Table(show_edge=False, pad_edge=False)
    shown.add_column("score (95 % interval over problems)")
    scores: dict[str, dict[str, Any]] = result["benchmarks"]
    for name in scores:
        shown.add_column(name, justify="right")
    each = scores.values()
    shown.add_row("problems", *(str(score["n"]) for score in each))
    if result["samples"] > 1:
        shown.add_row(f"avg@{result['samples']}", *(interval(score["average"]) for score in each))
    for k in next(iter(each))["pass_at"]:
        shown.add_row(f"pass@{k}", *(interval(score["pass_at"][k]) for score in each))
    shown.add_row("truncated at the token limit", *(f"{100 * score['truncated']:.1f} %" for score in each))
    shown.add_row("mean length, tokens", *(f"{score['mean_length']:.1f}" for score in each))
    shown.add_row("evictions per sample", *(f"{score['evictions']:.1f}" for score in each))
    reasons = dict.fromkeys(reason for score in each for reason in score["reasons"])
    for reason in reasons:
        shown.add_row(f"reason: {reason}", *(str(score["reasons"].get(reason, 0)) for score in each))
    over_all = {
        "mean over benchmarks": f"{100 * result['mean']:.1f} %" if len(scores) > 1 else None,
        "tokens per second": _number(result["tokens_per_second"], "{:.0f}"),
        "KV cache, whole batch": _number(result["peak_cache_bytes"], "{:.2f} MiB", 2**20),
    }
    for name, value in over_all.items():
        if value is not None:
            shown.add_row(name, value, *[""] * (len(scores) - 1))
    return shown


def interval(estimate: dict[str, Any]) -> str:
    """`37.5 % (30.1 to 44.9)`, or without an interval where one problem gives none."""
    if estimate["low"] is None:
        return f"{100 * estimate['mean']:.1f} % (no interval)"
    return f"{100 * estimate['mean']:.1f} % ({100 * estimate['low']:.1f} to {100 * estimate['high']:.1f})"


def comparison(compare: dict[str, Any]) -> str:
    """The paired differences, and what else was different."""
    lines = [f"compared with {compare['with']}, paired by problem"]
    changed: Sequence[str] = [f"{name} {old} -> {new}" for name, (old, new) in compare["differs"].items()]
    lines.append(f"  what differs: {', '.join(changed) or 'no setting'}")
    for name, estimate in compare["difference"].items():
        bounds = "no interval"
        if estimate["low"] is not None:
            bounds = f"{100 * estimate['low']:+.1f} to {100 * estimate['high']:+.1f}"
        lines.append(f"  {name}: {100 * estimate['mean']:+.1f} points ({bounds}), {estimate['n']} problems")
    return "\n".join(lines)


def _number(value: float | None, form: str, unit: int = 1) -> str | None:
    return None if value is None else form.format(value / unit)
