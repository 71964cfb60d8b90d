"""What `test_processes.py` starts in one process and in two: gradients and metrics of one step, written by rank 0.

Two processes take the steps twice: each with a whole base model, then sharing one out, with the bytes of its layers.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
torch.set_num_threads(1)


class Bytes:
    """Of the layers' matrices: what this process has beside its parts, and the `most` of that during a pass."""

    def __init__(self, shards) -> None:
        from pte_cli.model.shards import Shard

        self.shards, self.most = shards, 0
        allocate = Shard.allocate

        def watched(shard):
            allocate(shard)
            self.most = max(self.most, self.there())

        Shard.allocate = watched

    def there(self) -> int:
        return sum(layer.whole.untyped_storage().nbytes() for layer in self.shards.layers)

    def report(self, model) -> dict[str, int]:
        """`kept` at rest, and the `matrices` of the whole model by their shapes."""
        frozen = [p for layer in model.backbone.layers for p in layer.parameters() if not p.requires_grad]
        return {
            "kept": sum(layer.part.nbytes for layer in self.shards.layers) + self.there(),
            "most": self.most,
            "largest": max(layer.whole.nbytes for layer in self.shards.layers),
            "matrices": sum(p.nbytes for p in frozen if p.dim() > 1),
        }


def steps() -> tuple[dict, list[dict[str, int]]]:
    """Gradients and metrics by settings; and of every process the bytes, where a base is shared out."""
    from test_loop import gradients, trainer

    from pte_cli.train.processes import Processes

    found, sizes = {}, []
    for phase, *sets in (
        ("sft", "sft.batch=5"),
        ("sft", "sft.batch=1", "train.gradient=exact"),  # the second process has nothing to replay
        ("grpo", "grpo.prompts=3", "grpo.beta=0.1"),
        ("grpo", "grpo.prompts=3", "grpo.loss_type=grpo", "grpo.scale_rewards=batch", "train.gradient=exact"),
    ):
        processes = Processes("cpu")
        one = trainer("sampling.temperature=1.5", "model.device=cpu", *sets, processes=processes)
        watched = Bytes(processes.shards) if processes.shards else None
        metrics = getattr(one, phase)()
        one.processes.sum_gradients(one.lora + one.encoder)
        kept = {k: v for k, v in metrics.items() if not k.startswith("tokens_per_second") and k != "cache_bytes"}
        found[str([phase, *sets])] = (gradients(one), kept)
        if watched:
            sizes += processes.gather([watched.report(one.model)])
    return found, sizes


def main(out: Path) -> None:
    from pte_cli.train.processes import Processes

    processes = Processes("cpu")
    results = {"whole": steps()}
    if processes.count > 1:
        # What `accelerate launch --use_fsdp --fsdp_version 2` sets.
        os.environ |= {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
        results["shared"] = steps()
    if processes.main:
        torch.save((processes.count, results), out)
    processes.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
