"""A batch of completions as the updates need it, and as a checkpoint keeps it between two of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pte_cli.rollout.trace import Eviction, Trace

PART = "trace"
OPTIONAL = ("old", "correction", "reference")


@dataclass(frozen=True)
class Rollout:
    """This process's completions that something is to be learnt from, B of them.

    advantages `[B]`; weights `[B]`: of each token of a sequence in the loss of the whole batch.
    old `[B, T]`: log-probabilities the ratio is taken to. correction, reference `[B, T]`: importance weights, and
    log-probabilities of the reference; None where they are not used.
    metrics: of the whole batch, logged with its first update.
    """

    traces: list[Trace]
    advantages: Tensor
    weights: Tensor
    old: Tensor
    correction: Tensor | None = None
    reference: Tensor | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Everything but the metrics as named tensors on the CPU; `rollout_of` is the reverse."""
        found = {"advantages": self.advantages, "weights": self.weights}
        found |= {name: value for name in OPTIONAL if (value := getattr(self, name)) is not None}
        for i, trace in enumerate(self.traces):
            found |= {f"{PART}.{i}.{name}": tensor for name, tensor in trace_tensors(trace).items()}
        return {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}


def rollout_of(tensors: dict[str, Tensor], device: torch.device) -> Rollout:
    """The rollout whose `tensors` these are."""
    count = len(tensors["advantages"])
    parts: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, tensor in tensors.items():
        if name.startswith(f"{PART}."):
            _, i, key = name.split(".", 2)
            parts[int(i)][key] = tensor
    own = {name: tensors[name].to(device) for name in ("advantages", "weights", *OPTIONAL) if name in tensors}
    return Rollout(traces=[trace_of(part) for part in parts], **own)


def trace_tensors(trace: Trace) -> dict[str, Tensor]:
    """A sampled trace as named tensors, all of whose evictions have recorded positions."""
    facts = {
        "finish": trace.finish,
        "budget": trace.budget,
        "evictions": [(e.step, e.count, list(e.positions.shape)) for e in trace.evictions],
    }
    positions = [e.positions.flatten() for e in trace.evictions]
    return {
        "prompt": torch.tensor(trace.prompt, dtype=torch.int64),
        "completion": torch.tensor(trace.completion, dtype=torch.int64),
        "logprobs": trace.logprobs,
        "positions": torch.cat(positions) if positions else torch.zeros(0, dtype=torch.int32),
        "facts": torch.tensor(list(json.dumps(facts).encode()), dtype=torch.uint8),
    }


def trace_of(tensors: dict[str, Tensor]) -> Trace:
    """The reverse of `trace_tensors`."""
    facts = json.loads(bytes(tensors["facts"].tolist()))
    sizes = [torch.Size(shape) for _, _, shape in facts["evictions"]]
    positions = tensors["positions"].split([size.numel() for size in sizes]) if sizes else ()
    return Trace(
        prompt=tuple(tensors["prompt"].tolist()),
        completion=tuple(tensors["completion"].tolist()),
        finish=facts["finish"],
        budget=facts["budget"],
        evictions=tuple(
            Eviction(step, count, flat.view(size))
            for (step, count, _), size, flat in zip(facts["evictions"], sizes, positions, strict=True)
        ),
        logprobs=tensors["logprobs"],
    )


def chosen(items: Sequence[Any], which: Tensor) -> list[Any]:
    """Those of `items` for which `which` (bool) holds."""
    return [item for item, wanted in zip(items, which.tolist(), strict=True) if wanted]
