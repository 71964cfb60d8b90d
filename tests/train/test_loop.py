"""The trainer: what one step computes, on the built-in model."""

from __future__ import annotations

import math

import pytest
import torch

from pte_cli.config import load_config
from pte_cli.rollout.prepare import prepare
from pte_cli.tasks.examples import Scores
from pte_cli.train.loop import Trainer, linear_schedule
from pte_cli.train.sft import token_weights


def trainer(*sets, log=lambda metrics: None):
    """A trainer of the built-in model in float64 whose LoRA is not zero."""
    small = ["model.dtype=float64", "sft.batch=6", "grpo.prompts=2", "grpo.group_size=4", "sampling.rows=3"]
    config = load_config(env={}, sets=[*small, *sets])
    prepared = prepare(config)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in prepared.model.model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return Trainer(config, prepared.model, prepared.policy, prepared.examples, log)


def gradients(one):
    return [parameter.grad.clone() for parameter in one.lora + one.encoder]


@pytest.mark.parametrize("phase", ["sft", "grpo"])
def test_micro_batches_give_the_gradient_and_metrics_of_the_whole_batch(phase):
    whole, parts = trainer("grpo.beta=0.1"), trainer("grpo.beta=0.1", "train.micro_batch=3")
    first, second = getattr(whole, phase)(), getattr(parts, phase)()
    for a, b in zip(gradients(whole), gradients(parts), strict=True):
        assert (a - b).abs().max() < 1e-10
    for name in ("loss", "reward", "kl", "gap/max", "evictions"):
        assert first.get(name, 0) == pytest.approx(second.get(name, 0), abs=1e-9)


def test_no_spread_no_gradient():
    """Public bug report B09: equal rewards and beta 0 leave every weight as it is."""
    one = trainer()
    one.score = lambda questions, traces: Scores([0.1] * len(traces), [False] * len(traces))
    metrics = one.grpo()
    assert metrics["frac_reward_zero_std"] == 1
    assert metrics["loss"] == 0
    assert all(gradient.eq(0).all() for gradient in gradients(one))


def test_the_reference_of_an_untrained_adapter_is_the_policy():
    config = load_config(env={}, sets=["grpo.beta=0.5", "grpo.prompts=2", "grpo.group_size=2"])
    prepared = prepare(config)
    one = Trainer(config, prepared.model, prepared.policy, prepared.examples, lambda metrics: None)
    assert one.grpo()["kl"] == pytest.approx(0, abs=1e-9)


def test_steps_and_phases():
    seen = []
    one = trainer(
        "train.objective=sft+grpo",
        "sft.steps=2",
        "grpo.steps=1",
        "train.warmup=1",
        "sft.learning_rate=0.5",
        log=seen.append,
    )
    one.run()
    assert [(line["step"], line["phase"]) for line in seen] == [(1, "sft"), (2, "sft"), (3, "grpo")]
    assert [line["learning_rate"] for line in seen[:2]] == pytest.approx([0.25, 0.25])
    assert one.steps == 3
    assert trainer("train.objective=grpo", "grpo.steps=7").steps == 7


def test_schedule_by_hand():
    assert [linear_schedule(done, 4, 0) for done in range(4)] == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert [linear_schedule(done, 10, 4) for done in (0, 4, 9)] == pytest.approx([0.2, 0.6, 0.1])


def test_token_weights_sum_to_one_and_favour_the_answer():
    one = trainer()
    examples = one.examples.worked(3)
    weights = token_weights(examples, 4.0)
    assert weights.sum().item() == pytest.approx(1)
    assert weights.shape == (3, 24 + 8)
    assert (weights[0, 24:] / weights[0, 0]).tolist() == pytest.approx([4.0] * 8)


def with_rewards(one, *rewards):
    """The trainer with these rewards for the samples of each step."""
    one.score = lambda questions, traces: Scores(rewards, [None] * len(rewards), {"mine": rewards})
    return one


def test_samples_without_reward_leave_no_gradient_and_are_not_counted():
    """The second group has no reward at all: the step is that of the first group alone."""
    nothing = math.nan
    both = with_rewards(trainer(), 1.0, 0.0, 0.0, 1.0, nothing, nothing, nothing, nothing)
    alone = with_rewards(trainer("grpo.prompts=1"), 1.0, 0.0, 0.0, 1.0)
    metrics = both.grpo()
    alone.grpo()
    for a, b in zip(gradients(both), gradients(alone), strict=True):
        assert (a - b).abs().max() < 1e-10
    assert any(gradient.abs().max() > 0 for gradient in gradients(both))
    assert (metrics["without_reward"], metrics["groups_skipped"], metrics["reward"]) == (4, 1, 0.5)


def test_a_step_without_any_reward_changes_nothing():
    seen = []
    one = with_rewards(trainer("train.objective=grpo", "grpo.steps=1", log=seen.append), *[math.nan] * 8)
    before = [parameter.clone() for parameter in one.lora + one.encoder]
    one.run()
    assert all(torch.equal(a, b) for a, b in zip(before, one.lora + one.encoder, strict=True))
    assert seen[0]["groups_skipped"] == 2
    assert "reward" not in seen[0]
