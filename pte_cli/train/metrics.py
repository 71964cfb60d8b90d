"""What is logged of a step, with TRL's names where it is the same thing. Pure functions over gathered records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pte_cli.api import State
from pte_cli.model.adapter import adapted_layers
from pte_cli.rollout.bounded_model import BoundedModel
from pte_cli.rollout.trace import Trace
from pte_cli.train.advantages import without_spread

Metrics = dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """What all processes know of a completion. reward: NaN for none; index: its place in the whole batch."""

    index: int
    length: int
    stopped: bool
    evictions: int
    reward: float
    right: bool | None
    by_name: dict[str, float | None] = field(default_factory=dict)


def length_metrics(batch: Sequence[Sampled]) -> Metrics:
    """How long the completions got."""
    lengths = [sample.length for sample in batch]
    ended = [sample.length for sample in batch if sample.stopped]
    return {
        "completions/mean_length": sum(lengths) / len(lengths),
        "completions/min_length": min(lengths),
        "completions/max_length": max(lengths),
        "completions/clipped_ratio": 1 - len(ended) / len(lengths),
        "completions/mean_terminated_length": sum(ended) / max(len(ended), 1),
        "evictions": sum(sample.evictions for sample in batch) / len(batch),
        "rounds": 1 + max(sample.evictions for sample in batch),
    }


def reward_metrics(batch: Sequence[Sampled], rewards: Tensor) -> Metrics:
    """Of a batch whose rewards `[P, G]` hold NaN for none; what can't be told is left out."""
    known = ~rewards.isnan()
    groups = [row[there] for row, there in zip(rewards, known, strict=True) if there.sum() > 1]
    right = [sample.right for sample in batch if sample.right is not None]
    metrics: Metrics = {}
    if known.any():
        metrics["reward"] = rewards[known].mean().item()
    if groups:
        metrics["reward_std"] = torch.stack([group.std() for group in groups]).mean().item()
        compared = rewards[known.sum(1) > 1]
        metrics["frac_reward_zero_std"] = without_spread(compared).float().mean().item()
    metrics["groups_skipped"] = int(without_spread(rewards).sum())
    if right:
        metrics["accuracy"] = sum(right) / len(right)
    for name in dict.fromkeys(name for sample in batch for name in sample.by_name):
        given = torch.tensor([v for sample in batch if (v := sample.by_name.get(name)) is not None])
        if len(given):
            metrics[f"rewards/{name}/mean"] = given.mean().item()
            metrics[f"rewards/{name}/std"] = given.std().item() if len(given) > 1 else 0.0
    if not known.all():
        metrics["without_reward"] = int((~known).sum())
    return metrics


def gap_metrics(gaps: Sequence[float]) -> Metrics:
    """|log p(rollout) - log p(replay)| over tokens. overlap: the smaller probability as a share of the larger."""
    if not gaps:
        return {}
    gap = torch.tensor(gaps, dtype=torch.float64)
    return {
        "gap/mean": gap.mean().item(),
        "gap/max": gap.max().item(),
        "gap/p95": gap.quantile(0.95).item(),
        "overlap/p5": (-gap).exp().quantile(0.05).item(),
    }


def shape_metrics(traces: Sequence[Trace]) -> Metrics:
    """Evictions per sequence and the number of rounds the replay takes."""
    evictions = [len(trace.evictions) for trace in traces]
    return {"evictions": sum(evictions) / len(evictions), "rounds": 1 + max(evictions)} if evictions else {}


@torch.no_grad()
def state_metrics(model: BoundedModel, state: State) -> Metrics:
    """How large the encoder's state is at the end of the longest sequences, and how much of the update it makes.

    norm: mean Frobenius norm over layers, rows and tensors of the state. update_share: |B M A|^2 over |B M A|^2 +
    |B A|^2, summed over adapted layers and rows, with M the core: 0 is plain LoRA.
    """
    if not state:
        return {}
    norms = [tensor.float().flatten(2).norm(dim=-1).mean() for tensor in state.values()]
    own = plain = torch.zeros((), device=model.device)
    cores = model.cores(state)
    for layer, down, up in adapted_layers(model.model):
        core = cores[layer]
        if core is None:
            continue
        inner, outer = (down @ down.mT).float(), (up.mT @ up).float()
        own = own + ((outer @ core.float()) * (core.float() @ inner)).sum()
        plain = plain + len(core) * (outer * inner).sum()
    total = own + plain
    share = torch.where(total > 0, own / total, 0.0)
    return {"encoder/state_norm": torch.stack(norms).mean().item(), "encoder/update_share": share.item()}


def device_metrics(device: torch.device) -> Metrics:
    """Peak bytes on an accelerator since the run began; nothing for a CPU, where nobody counts them."""
    if device.type != "cuda":
        return {}
    return {"device_bytes": torch.cuda.max_memory_allocated(device)}
