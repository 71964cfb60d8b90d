"""TRL's own GRPO loss on given log-probabilities: `python tests/train/trl_reference.py > tests/train/trl_losses.json`.

Calls `GRPOTrainer._compute_loss` with a stand-in for the trainer, so that it computes nothing but the loss. The stored
values were made with trl 1.16.0; where trl is installed, the test makes them again.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch

SEQUENCES, TOKENS, MAX_NEW_TOKENS = 4, 6, 10
SETTINGS = [
    {"loss_type": loss, "epsilon": 0.2, "epsilon_high": high, "delta": delta, "beta": beta}
    for loss in ("grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo")
    for high, delta, beta in ((0.2, None, 0.0), (0.28, None, 0.0), (0.2, 1.5, 0.0), (0.3, None, 0.1))
    if not (loss == "cispo" and delta)
]


def inputs():
    """Log-probabilities now, when sampled and of the reference, advantages, lengths; ratios from 0.2 to 5."""
    generator = torch.Generator().manual_seed(0)
    now = -torch.rand(SEQUENCES, TOKENS, generator=generator, dtype=torch.float64) * 3
    old = now + torch.randn(SEQUENCES, TOKENS, generator=generator, dtype=torch.float64) * 0.5
    reference = now + torch.randn(SEQUENCES, TOKENS, generator=generator, dtype=torch.float64) * 0.5
    return now, old, reference, torch.tensor([1.2, -0.7, 0.4, -0.9], dtype=torch.float64), [6, 3, 1, 5]


def trl_loss(settings):
    """The loss and its gradient with respect to the log-probabilities, from TRL."""
    from trl import GRPOTrainer

    now, old, reference, advantages, lengths = inputs()
    now.requires_grad_()
    mask = (torch.arange(TOKENS) < torch.tensor(lengths)[:, None]).long()
    sequence = settings["loss_type"] == "gspo"
    accelerator = SimpleNamespace(
        gather=lambda x: x, reduce=lambda x, **_: x, gather_for_metrics=lambda x: x, num_processes=1
    )
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (now, torch.zeros_like(now), None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level="sequence" if sequence else "token",
        beta=settings["beta"],
        loss_type="grpo" if sequence else settings["loss_type"],
        epsilon_low=settings["epsilon"],
        epsilon_high=settings["epsilon_high"],
        args=SimpleNamespace(delta=settings["delta"], use_bias_correction_kl=False, steps_per_generation=1),
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=1,
        max_completion_length=MAX_NEW_TOKENS,
        accelerator=accelerator,
        _metrics={"train": defaultdict(list)},
        _entropy_bonus_enabled=False,
    )
    batch = {
        "prompt_ids": torch.zeros(SEQUENCES, 1, dtype=torch.long),
        "prompt_mask": torch.ones(SEQUENCES, 1, dtype=torch.long),
        "completion_ids": torch.zeros(SEQUENCES, TOKENS, dtype=torch.long),
        "completion_mask": mask,
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, batch)
    loss.backward()
    return loss.item(), now.grad.tolist()


def main() -> None:
    import trl

    rows = [{"settings": s, "loss": loss, "gradient": grad} for s in SETTINGS for loss, grad in [trl_loss(s)]]
    json.dump({"origin": f"trl {trl.__version__}, GRPOTrainer._compute_loss", "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
