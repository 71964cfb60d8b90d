"""What `test_processes.py` starts in one process and in two: gradients and metrics of one step, written by rank 0."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]
torch.set_num_threads(1)


def main(out: Path) -> None:
    from test_loop import gradients, trainer

    from pte_cli.train.processes import Processes

    found = {}
    for phase, *sets in (
        ("sft", "sft.batch=5"),
        ("grpo", "grpo.prompts=3", "grpo.beta=0.1"),
        ("grpo", "grpo.prompts=3", "grpo.loss_type=grpo", "grpo.scale_rewards=batch", "train.gradient=exact"),
    ):
        processes = Processes("cpu")
        one = trainer("sampling.temperature=1.5", "model.device=cpu", *sets, processes=processes)
        metrics = getattr(one, phase)()
        one.processes.sum_gradients(one.lora + one.encoder)
        kept = {k: v for k, v in metrics.items() if not k.startswith("tokens_per_second") and k != "cache_bytes"}
        found[str([phase, *sets])] = (gradients(one), kept)
    if processes.main:
        torch.save((processes.count, found), out)
    processes.end()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
