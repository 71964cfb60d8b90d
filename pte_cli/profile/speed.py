"""`--report speed`: how fast a training step is here, where its time goes, what a token costs as rows get longer."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pte_cli.api import Evicted, State
from pte_cli.profile.arms import Arm, Question
from pte_cli.profile.measure import adapted_model
from pte_cli.profile.step import Setting, replay_all
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.cache import BoundedCache
from pte_cli.rollout.engine import RolloutEngine
from pte_cli.rollout.prepare import build_policy
from pte_cli.rollout.sampling import Sampling
from pte_cli.rollout.trace import Trace

BINS = 16
LAYERS, ENCODER, REST = "layers, forward", "encoder", "all else"


class TimedModel(BoundedModel):
    """A `BoundedModel` that keeps the time of its passes and of its encoder in `seconds`."""

    seconds: Counter[str]

    def clock(self) -> float:
        """Seconds, once the device has done what it was told."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()
        return time.perf_counter()

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = self.clock()
        yield
        self.seconds[name] += self.clock() - start

    def hidden(self, ids: Tensor, position_ids: Tensor, cache: BoundedCache, cores: Sequence[Tensor | None]) -> Tensor:
        with self.timed(LAYERS):
            return super().hidden(ids, position_ids, cache, cores)

    def absorb(self, state: State, evicted: Evicted) -> State:
        with self.timed(ENCODER):
            return super().absorb(state, evicted)

    def cores(self, state: State) -> list[Tensor | None]:
        with self.timed(ENCODER):
            return super().cores(state)


def speed_report(question: Question, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The report as JSON: `steps`, one for each arm, budget and length. Loads the model and trains it one step each."""
    steps = []
    for curve in question.curves():
        for step in curve.steps:
            tell(f"{curve}, {step.length} tokens")
            steps.append({**curve.head(step), **step_speed(curve.arm, step)})
    return {**question.head("speed"), "threads": torch.get_num_threads(), "steps": steps}


def step_speed(arm: Arm, setting: Setting) -> dict[str, Any]:
    """One step: per phase its seconds, tokens per second and `breakdown` (s), and `decode`: ms per step by length.

    The rollout is run twice, so that neither a first call's extra work nor the clock of each token counts.
    """
    model = TimedModel(adapted_model(arm.config), gradient_checkpointing=arm.config.train.gradient_checkpointing)
    policy = build_policy(arm.config)
    model.seconds = Counter()
    engine = RolloutEngine(model, policy, setting.budget, Sampling(max_new_tokens=setting.length), batch=setting.rows)
    prompts = setting.prompts(model.head.weight.shape[0])
    decode = decode_cost(model, engine, prompts)
    traces: list[Trace] = []
    phases = {"rollout": _phase(model, lambda: traces.extend(engine.generate(prompts)))}
    phases["replay"] = _phase(model, lambda: replay_all(model, traces, policy, setting))
    trained = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    phases["update"] = _phase(model, optimizer.step)
    tokens = sum(len(trace.completion) for trace in traces)
    for phase in phases.values():
        phase["tokens_per_second"] = tokens / phase["seconds"]
    return {"tokens": tokens, "phases": phases, "decode": decode}


def decode_cost(model: TimedModel, engine: RolloutEngine, prompts: list[list[int]]) -> list[dict[str, float]]:
    """Milliseconds per decode step of the whole batch, the median of each of up to `BINS` equal stretches of it."""
    times = [model.clock()]

    def on_token(sequence: int, _: int) -> None:
        if sequence == 0:
            times.append(model.clock())

    for _ in engine.stream(prompts, on_token=on_token):
        pass
    # The first two hold the prefill and a first call's extra work.
    steps = [after - before for before, after in pairwise(times)][2:]
    size = max(1, -(-len(steps) // BINS))
    return [
        {"tokens": 2 + min(start + size, len(steps)), "ms": 1000 * statistics.median(steps[start : start + size])}
        for start in range(0, len(steps), size)
    ]


def _phase(model: TimedModel, work: Callable[[], object]) -> dict[str, Any]:
    model.seconds.clear()
    start, cpu = model.clock(), time.process_time()
    work()
    seconds, cpu = model.clock() - start, time.process_time() - cpu
    breakdown = {name: model.seconds[name] for name in (LAYERS, ENCODER)}
    return {"seconds": seconds, "cpu_seconds": cpu, "breakdown": {**breakdown, REST: seconds - sum(breakdown.values())}}
