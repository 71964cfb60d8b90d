"""`--report trace`: one training step under torch's profiler, as a file for Perfetto or chrome://tracing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pte_cli.profile.arms import Question
from pte_cli.profile.measure import adapted_model
from pte_cli.profile.step import PHASES, replay_all
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.engine import RolloutEngine
from pte_cli.rollout.prepare import build_policy
from pte_cli.rollout.sampling import Sampling

TOP = 15


def trace_report(question: Question, folder: Path) -> dict[str, Any]:
    """Writes `perfetto.json`, and on CUDA `memory.pickle` (for pytorch.org/memory_viz), to `folder`.

    Of the last arm's shortest step. Says which operators took long. Loads the model and trains it; `rollout`, `replay`
    and `update` are ranges in the trace.
    """
    curve = list(question.curves())[-1]
    arm, setting = curve.arm, curve.steps[0]
    model = BoundedModel(adapted_model(arm.config), gradient_checkpointing=arm.config.train.gradient_checkpointing)
    policy = build_policy(arm.config)
    trained = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    engine = RolloutEngine(model, policy, setting.budget, Sampling(max_new_tokens=setting.length), batch=setting.rows)
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.memory._record_memory_history()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        with record_function("rollout"):
            traces = engine.generate(setting.prompts(model.head.weight.shape[0]))
        with record_function("replay"):
            replay_all(model, traces, policy, setting)
        with record_function("update"):
            optimizer.step()
    files = {"trace": str(folder / "perfetto.json")}
    folder.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(files["trace"])
    if cuda:
        files["cuda_memory"] = str(folder / "memory.pickle")
        torch.cuda.memory._dump_snapshot(files["cuda_memory"])
        torch.cuda.memory._record_memory_history(enabled=None)
    operators = sorted(
        (event for event in profiler.key_averages() if event.key not in PHASES),
        key=lambda event: -(event.self_device_time_total if cuda else event.self_cpu_time_total),
    )
    return {
        **question.head("trace"),
        **curve.head(setting),
        "files": files,
        "operators": [
            {
                "name": event.key,
                "calls": event.count,
                "cpu_ms": event.self_cpu_time_total / 1000,
                "device_ms": event.self_device_time_total / 1000,
            }
            for event in operators[:TOP]
        ],
    }
