"""A whole training run: measure, train, save, measure again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pte_cli.config import RunConfig
from pte_cli.eval.accuracy import Accuracy, evaluate
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
            run.log(metrics)
            on_step(metrics, trainer.steps)

        trainer = Trainer(config, prepared.model, prepared.policy, prepared.examples, log)
        before = asdict(evaluate(prepared, config)) if measurable else None
        trained_at = time.perf_counter()
        trainer.run()
        seconds = time.perf_counter() - trained_at
        save_adapter(prepared, run)
        after = asdict(evaluate(prepared, config)) if measurable else None
    except BaseException as error:
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        run.status(state, step=trainer.step if trainer else 0, error=f"{type(error).__name__}: {error}")
        raise
    result = {
        "run": str(run.path),
        "steps": trainer.steps,
        "before": before,
        "after": after,
        "trainable_parameters": sum(p.numel() for p in trainer.lora + trainer.encoder),
        "seconds": {"training": seconds, "all": time.perf_counter() - start},
    }
    run.status("finished", step=trainer.step, result=result)
    return result


def save_adapter(prepared: Prepared, run: RunDir) -> None:
    """The adapter as PEFT writes it: adapter_config.json and adapter_model.safetensors."""
    prepared.model.model.save_pretrained(run.adapter, safe_serialization=True)


def evaluate_saved(config: RunConfig, run: RunDir | None) -> Accuracy:
    """Accuracy of a run's adapter, or of the bare model when there is no run."""
    return evaluate(prepare(config, adapter=run.adapter if run else None), config)
