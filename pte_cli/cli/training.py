"""What `pte train` says before and while it trains, and what it needs to go on with a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pte_cli.cli import ui
from pte_cli.config import RunConfig
from pte_cli.errors import UsageError
from pte_cli.model.families import FAMILIES
from pte_cli.model.source import describe_model
from pte_cli.runs import FINISHED, RunDir, is_main_process

if TYPE_CHECKING:
    from pte_cli.eval.run import Listener

MIB = 2**20


def listener(progress: ui.StepProgress, config: RunConfig) -> Listener:
    """Says what a run does: what is trained before the first step, then progress, signals and broken checkpoints."""
    from pte_cli.eval.run import Listener

    console = progress.console  # its live bar makes room for lines

    def start(groups: dict[str, int], step: int) -> None:
        trained = ", ".join(f"{name} {count:,}" for name, count in groups.items() if count)
        console.print(f"trained parameters: {trained}", soft_wrap=True)
        if (sizes := planned_sizes(config)) is not None:
            console.print(memory(config, sizes["bytes"]), soft_wrap=True)
        if step:
            console.print(f"goes on after step {step}", soft_wrap=True)

    said: set[str] = set()

    def step(metrics: dict[str, Any], total: int) -> None:
        why = why_nothing(metrics, config)
        if why is not None and why not in said:
            said.add(why)
            console.print(f"step {metrics['step']}: nothing was learnt: {why}", soft_wrap=True)
        progress.step(metrics, total)

    def estimated(seconds: float) -> None:
        console.print(f"time: about {duration(seconds)} of training, by parts of a step tried before", soft_wrap=True)

    def stopping() -> None:
        console.print("finishing this step, then saving; once more to stop at once", soft_wrap=True)

    def broken(folder: Path, why: str) -> None:
        console.print(f"checkpoint {folder} can't be used: {why}; trying the one before", soft_wrap=True)

    if not is_main_process():
        return Listener(stopping=stopping, broken=broken)
    return Listener(start, step, progress.measured, estimated, stopping, broken)


def why_nothing(metrics: dict[str, Any], config: RunConfig) -> str | None:
    """Why no completion of this step's rollout taught anything, and what helps; None where some did."""
    if metrics.get("completions/learnt_from") != 0:
        return None
    count = config.grpo.prompts * config.grpo.group_size
    if metrics["completions/clipped_ratio"] == 1 and config.grpo.mask_truncated_completions:
        limit = config.sampling.max_new_tokens
        return f"all {count} completions were cut off and are masked; raise sampling.max_new_tokens = {limit}"
    if metrics.get("without_reward") == count:
        return f"none of the {count} completions has a reward; look at the answers in the data"
    return "in every group the completions that count have equal rewards"


def duration(seconds: float) -> str:
    """`40 s`, `3.1 min` or `5.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def memory(config: RunConfig, sizes: dict[str, int]) -> str:
    """One line on what a run holds besides activations, by arithmetic."""
    per_token = sizes["cache per token"]
    rows = config.sampling.rows if "grpo" in config.train.objective else config.train.micro_batch
    fixed = sum(count for name, count in sizes.items() if not name.startswith("cache"))
    return (
        f"memory, without activations: {fixed / MIB:.1f} MiB of weights, gradients and optimizer, and a cache of "
        f"{per_token * config.evict.budget * rows / MIB:.1f} MiB ({rows} sequences of {config.evict.budget} tokens)"
    )


def refuse_beside_resume(given: dict[str, Any]) -> None:
    """UsageError for a setting beside --resume: a run goes on with its own."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} = {value}: --resume goes on with the run's own settings; leave it out")


def resumable(path: Path) -> RunDir:
    """The run to go on with. UsageError for none, or one that has finished."""
    run = RunDir.open(path)
    if run.state() == FINISHED:
        raise UsageError(f"--resume {str(path)!r}: has finished; see `pte eval {path}`")
    return run


def planned_sizes(config: RunConfig) -> dict[str, Any] | None:
    """Parameters and bytes of the model with its adapter; nothing of it is allocated. Imports torch."""
    described = describe_model(config.model)
    if described.get("model_type") not in FAMILIES:
        return None  # a GGUF file on the hub, or code of its own: known only once it is loaded
    from pte_cli.profile.sizes import run_sizes

    return run_sizes(config, described)
