"""FLOPs by arithmetic against torch's own counter, and against the paper."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pte_cli.checks import check_config
from pte_cli.config import load_config
from pte_cli.errors import UsageError
from pte_cli.model.source import describe_model
from pte_cli.profile.arms import arms_of
from pte_cli.profile.flops import Lengths, step_flops
from pte_cli.profile.step import Setting, generate, replay_all
from pte_cli.rollout.engine import Budget, RolloutEngine
from pte_cli.rollout.prepare import prepare
from pte_cli.rollout.sampling import Sampling


def in_place(_, left, right, *args, **kwargs):
    """The product in `addmm_`, which torch's counter overlooks."""
    return 2 * left.shape[0] * left.shape[1] * right.shape[1]


in_place._get_raw = True  # it wants tensors, not shapes
IN_PLACE = {torch.ops.aten.addmm_: in_place}


def config_of(*sets):
    return check_config(load_config(env={}, sets=sets), dry_run=True, asks_task=False)


@pytest.mark.parametrize(
    ("index", "gradient", "checkpointing"),
    [
        (0, "truncated", False),
        (1, "exact", False),
        (2, "truncated", False),
        (2, "exact", False),
        (2, "truncated", True),
    ],
)
def test_as_torch_counts(index, gradient, checkpointing):
    """All alike but for 0.6 % of the encoder's rollout; with checkpointing torch spares the last product of a layer."""
    options = ("encoder.global_tokens=16", "encoder.initial=global")
    config = config_of(*options, f"train.gradient_checkpointing={str(checkpointing).lower()}")
    arm = arms_of(config)[index]
    setting = Setting(3, 8, 40, Budget(32 if arm.bounded else None, 0.25), gradient)
    counted = step_flops(arm, describe_model(config.model), setting)
    ready = prepare(arm.config)
    engine = RolloutEngine(
        ready.model, ready.policy, setting.budget, Sampling(max_new_tokens=setting.length), batch=setting.rows
    )
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as rollout:
        traces = generate(engine, setting.prompts(48))
    with FlopCounterMode(display=False, custom_mapping=IN_PLACE) as replay:
        replay_all(ready.model, traces, ready.policy, setting)
    generated = sum(counted["phases"]["rollout"].values())
    assert generated == pytest.approx(rollout.get_total_flops(), rel=0.006 if index == 2 else 0)
    ours, theirs = sum(counted["phases"]["replay"].values()), replay.get_total_flops()
    assert ours == pytest.approx(theirs, rel=0.005 if checkpointing else 0)
    assert counted["total"] == ours + generated


def test_the_papers_attention_with_the_full_cache():
    """arXiv 2602.16839: 7.4 TFLOPs for 3,072 tokens of an 8B model, 32 layers with 32 heads of 128, in training."""
    config = config_of("model.name=preset:deepseek-r1-distill-llama-8b")
    full = arms_of(config)[0]
    counted = step_flops(full, describe_model(config.model), Setting(1, 1, 3072, Budget(None)))
    attention = counted["attention"]["needed_in_replay"]
    assert attention == 3 * 32 * 4 * 32 * 128 * (3072 * 3073 // 2)
    assert attention == pytest.approx(7.4e12, rel=0.01)


def test_what_a_bounded_row_sees():
    """Prompt 4, budget 10, half of the window leaves: round 0 feeds 10 tokens, then 3 at a time onto 7 cached ones."""
    lengths = Lengths.of(Setting(1, 4, 14, Budget(10, 0.5)), pinned=4)
    assert lengths.rounds == (10, 3, 3, 1)
    assert lengths.visible == sum(range(1, 11)) + 2 * (8 + 9 + 10) + 8
    assert lengths.capacity == 10
    unbounded = Lengths.of(Setting(1, 4, 14, Budget(None)), pinned=4)
    assert (unbounded.rounds, unbounded.visible, unbounded.capacity) == ((17,), 17 * 18 // 2, 18)


def test_an_encoder_that_reads_again_is_refused():
    config = config_of("encoder.name=ttt", "encoder.objective=nll", "train.gradient=truncated")
    with pytest.raises(UsageError, match="does not count"):
        step_flops(arms_of(config)[2], describe_model(config.model), Setting(1, 8, 40, Budget(32, 0.25)))
