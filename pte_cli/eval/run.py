"""A whole training run: measure, train, save, measure again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from pte_cli.config import RunConfig
from pte_cli.eval.accuracy import Accuracy, Evaluation, evaluate
from pte_cli.eval.peak import peak_bytes
from pte_cli.rollout.prepare import Prepared, prepare
from pte_cli.runs import RunDir
from pte_cli.tasks.data.rendered import RenderedDataset
from pte_cli.train.loop import Trainer

OnStep = Callable[[dict[str, Any], int], None]
"""Called after each step with its metrics and the number of steps in all."""


def train_and_evaluate(
    config: RunConfig, run: RunDir, on_step: OnStep, dataset: RenderedDataset | None = None
) -> dict[str, Any]:
    """Train as `config` says; held-out accuracy before and after, and what it took, as written to status.json.

    dataset: the data of `config`, where it has been read already. Without held-out rows that can be scored, `before`
    and `after` are None.
    """
    start = time.perf_counter()
    run.status("running", step=0)
    trainer: Trainer | None = None
    try:
        prepared = prepare(config, dataset=dataset)
        measurable = prepared.examples.scored and bool(prepared.examples.held_out(1, 0))

        def log(metrics: dict[str, Any]) -> None:
            run.log({**metrics, "peak_bytes": peak_bytes()})
            on_step(metrics, trainer.steps)

        trainer = Trainer(config, prepared.model, prepared.policy, prepared.examples, log)
        before = asdict(evaluate(prepared, config).accuracy) if measurable else None
        trained_at = time.perf_counter()
        trainer.run()
        seconds = time.perf_counter() - trained_at
        save_adapter(prepared, run)
        after = record_problems(run, evaluate(prepared, config)) if measurable else None
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        run.status(state, step=trainer.step if trainer else 0, error=f"{type(error).__name__}: {error}")
        raise
    result = {
        "run": str(run.path),
        "steps": trainer.steps,
        "before": before,
        "after": after,
        "peak_bytes": peak_bytes(),
        "trainable_parameters": sum(p.numel() for p in trainer.lora + trainer.encoder),
        "seconds": {"training": seconds, "all": time.perf_counter() - start},
    }
    run.status("finished", step=trainer.step, result=result)
    return result


def save_adapter(prepared: Prepared, run: RunDir) -> None:
    """The adapter as PEFT writes it: adapter_config.json and adapter_model.safetensors."""
    prepared.model.model.save_pretrained(run.adapter, safe_serialization=True)


def record_problems(run: RunDir, evaluation: Evaluation) -> dict[str, Any]:
    """Write what became of each held-out problem to held_out.jsonl; the accuracy, as status.json has it."""
    run.write_lines("held_out.jsonl", evaluation.problems)
    return asdict(evaluation.accuracy)


def evaluate_saved(config: RunConfig, run: RunDir | None, into: RunDir | None = None) -> Accuracy:
    """Accuracy of a run's adapter, or of the bare model when there is no run.

    into: a new run's folder to record it in, with what became of each problem.
    """
    start = time.perf_counter()
    if into is not None:
        into.status("running", step=0)
    try:
        evaluation = evaluate(prepare(config, adapter=run.adapter if run else None), config)
    except BaseException as error:
        if into is not None:
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            into.status(state, step=0, error=f"{type(error).__name__}: {error}")
        raise
    if run is None:
        # What was prepared has an adapter that does nothing; the bare model needs none.
        evaluation = replace(evaluation, accuracy=replace(evaluation.accuracy, state_bytes=0, adapter_bytes=0))
    if into is not None:
        result = {
            "run": str(into.path),
            "adapter": str(run.path) if run else None,
            "after": record_problems(into, evaluation),
            "peak_bytes": peak_bytes(),
            "seconds": {"all": time.perf_counter() - start},
        }
        into.status("finished", step=0, result=result)
    return evaluation.accuracy
