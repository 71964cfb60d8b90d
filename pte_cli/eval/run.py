"""A whole training run: measure, train, save, measure again; or the rest of one that was stopped."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from pte_cli.config import RunConfig, flat
from pte_cli.eval.accuracy import Accuracy, Evaluation, evaluate
from pte_cli.eval.peak import peak_bytes
from pte_cli.rollout.prepare import Prepared, prepare
from pte_cli.rollout.trace import Trace
from pte_cli.runs import FAILED, FINISHED, INTERRUPTED, RUNNING, RunDir
from pte_cli.tasks.data.rendered import RenderedDataset
from pte_cli.tasks.examples import Question, Scores
from pte_cli.train.checkpoint import Checkpoints
from pte_cli.train.completions import write_completions
from pte_cli.train.loop import Trainer
from pte_cli.train.processes import Processes
from pte_cli.train.rehearsal import rehearse
from pte_cli.train.stop import StopRequest


def _nothing(*_: Any) -> None:
    """Tell no one."""


@dataclass(frozen=True)
class Listener:
    """Whom a run tells what it does; by default no one.

    start: parameters trained by group, the step it starts from. step: the metrics of a step and how many there are.
    measured: held-out problems done, and of how many. estimated: seconds that the training ahead will take.
    stopping: a signal came; the step under way is finished first. broken: a checkpoint that can't be used, and why.
    """

    start: Callable[[dict[str, int], int], None] = _nothing
    step: Callable[[dict[str, Any], int], None] = _nothing
    measured: Callable[[int, int], None] = _nothing
    estimated: Callable[[float], None] = _nothing
    stopping: Callable[[], None] = _nothing
    broken: Callable[[Path, str], None] = _nothing


def train_and_evaluate(
    config: RunConfig, run: RunDir, listener: Listener = Listener(), dataset: RenderedDataset | None = None
) -> dict[str, Any]:
    """Train as `config` says; held-out accuracy before and after, and what it took, as written to status.json.

    A run that was stopped goes on from its newest whole checkpoint, with the same numbers as if it never had been.
    dataset: the data of `config`, where it has been read already. Without held-out rows that can be scored, `before`
    and `after` are None. KeyboardInterrupt once it has been asked to stop and has saved.
    """
    with StopRequest(listener.stopping) as stop:
        processes = Processes(config.model.device, config.train.trackers, run.path)
        work = _Run(config, run, listener, processes, stop)
        try:
            return work.all(dataset)
        except BaseException as error:
            work.failed(error)
            raise


class _Run:
    """One process's part of a run. Only the main process writes."""

    def __init__(
        self, config: RunConfig, run: RunDir, listener: Listener, processes: Processes, stop: StopRequest
    ) -> None:
        self.config, self.run, self.listener = config, run, listener
        self.processes, self.stop = processes, stop
        self.checkpoints = Checkpoints(run.checkpoints, config.train.keep_checkpoints)
        self.trainer: Trainer | None = None

    def all(self, dataset: RenderedDataset | None) -> dict[str, Any]:
        start = time.perf_counter()
        prepared = prepare(self.config, dataset=dataset, shards=self.processes.shards)
        self.trainer = trainer = Trainer(
            self.config,
            prepared.model,
            prepared.policy,
            prepared.examples,
            self._log,
            processes=self.processes,
            table=self._table if self.config.train.completions_every else None,
        )
        self._go_on(trainer)
        groups = {"LoRA": _count(trainer.lora), f"encoder {self.config.encoder.name}": _count(trainer.encoder)}
        self.listener.start(groups, trainer.step)
        self.processes.start_trackers("pte", _flat(self.config.model_dump(mode="json")))
        measurable = prepared.examples.scored and bool(prepared.examples.held_out(1, 0))
        before = self._before(prepared) if measurable else None
        estimate = rehearse(trainer, before["mean_length"] if before else self.config.sampling.max_new_tokens)
        self.listener.estimated(estimate)
        trained_at = time.perf_counter()
        self._train(trainer)
        seconds = time.perf_counter() - trained_at
        if self.processes.main:
            save_adapter(prepared, self.run)
        after = self._after(prepared) if measurable else None
        result = {
            "run": str(self.run.path),
            "steps": trainer.steps,
            "before": before,
            "after": after,
            "peak_bytes": peak_bytes(),
            "trainable_parameters": _count(trainer.lora + trainer.encoder),
            "seconds": {"estimated": estimate, "training": seconds, "all": time.perf_counter() - start},
        }
        self.processes.end()
        if self.processes.main:
            self.run.status(FINISHED, step=trainer.step, result=result)
        return result

    def _go_on(self, trainer: Trainer) -> None:
        """Take up the newest whole checkpoint, if there is one."""
        checkpoint = self.checkpoints.newest(self.listener.broken)
        if checkpoint is not None:
            trainer.load_state(checkpoint)
        if self.processes.main:
            self.run.forget_after(trainer.step)
            self.run.status(RUNNING, step=trainer.step)

    def _before(self, prepared: Prepared) -> dict[str, Any]:
        """Accuracy before training, measured once in the life of a run."""
        found: dict[str, Any] | None = self.run.read_json("before.json")
        if found is None:
            found = asdict(evaluate(prepared, self.config, self.listener.measured).accuracy)
            if self.processes.main:
                self.run.write_json("before.json", found)
        return found

    def _after(self, prepared: Prepared) -> dict[str, Any]:
        evaluation = evaluate(prepared, self.config, self.listener.measured)
        return record_problems(self.run, evaluation) if self.processes.main else asdict(evaluation.accuracy)

    def _train(self, trainer: Trainer) -> None:
        every = self.config.train.save_every
        with self.stop.patiently():
            for step in trainer.run():
                stopped = self.processes.any(self.stop.requested)
                if stopped or (every and (step % every == 0 or step == trainer.steps)):
                    state = trainer.state()
                    if self.processes.main:
                        self.checkpoints.write(step, state)
                if stopped:
                    raise KeyboardInterrupt

    def _log(self, metrics: dict[str, Any]) -> None:
        if self.processes.main:
            self.run.log({**metrics, "peak_bytes": peak_bytes()})
            self.listener.step(metrics, self.trainer.steps)
        self.processes.track(metrics, metrics["step"])

    def _table(
        self, questions: Sequence[Question], traces: Sequence[Trace], scores: Scores, advantages: Tensor
    ) -> None:
        step, (_, done, _) = self.trainer.step + 1, self.trainer.place()
        if done % self.config.train.completions_every:
            return
        own = "" if self.processes.count == 1 else f"-{self.processes.rank}"
        file = self.run.path / "completions" / f"step-{step:06d}{own}.parquet"
        write_completions(file, step, self.trainer.examples.codec, questions, traces, scores, advantages)

    def failed(self, error: BaseException) -> None:
        if self.processes.main:
            state = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
            step = self.trainer.step if self.trainer else 0
            # A full disk must not hide what went wrong.
            with suppress(OSError):
                self.run.status(state, step=step, error=f"{type(error).__name__}: {error}")


def save_adapter(prepared: Prepared, run: RunDir) -> None:
    """The adapter as PEFT writes it, adapter_config.json and adapter_model.safetensors, whole or not at all."""
    scratch = run.adapter.with_name(".adapter.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    prepared.model.model.save_pretrained(scratch, safe_serialization=True)
    shutil.rmtree(run.adapter, ignore_errors=True)
    scratch.replace(run.adapter)


def record_problems(run: RunDir, evaluation: Evaluation) -> dict[str, Any]:
    """Write held_out.jsonl, what became of each problem, and samples.jsonl; the accuracy, as status.json has it."""
    run.write_lines("held_out.jsonl", evaluation.problems)
    run.write_lines("samples.jsonl", evaluation.samples)
    return asdict(evaluation.accuracy)


def evaluate_saved(
    config: RunConfig,
    run: RunDir | None,
    into: RunDir | None = None,
    on_done: Callable[[int, int], None] = _nothing,
) -> Accuracy:
    """Accuracy of a run's adapter, or of the bare model when there is no run.

    into: a new run's folder to record it in, with what became of each problem.
    """
    start = time.perf_counter()
    if into is not None:
        into.status(RUNNING, step=0)
    try:
        evaluation = evaluate(prepare(config, adapter=run.adapter if run else None), config, on_done)
    except BaseException as error:
        if into is not None:
            state = INTERRUPTED if isinstance(error, KeyboardInterrupt) else FAILED
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
        into.status(FINISHED, step=0, result=result)
    return evaluation.accuracy


def _count(parameters: Sequence[Tensor]) -> int:
    return sum(p.numel() for p in parameters)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as trackers take them: dotted names, and text for what is neither number nor text."""
    return {k: v if isinstance(v, int | float | str | bool) else str(v) for k, v in flat(settings).items()}
