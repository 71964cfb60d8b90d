"""The trainer: what one step computes, on the built-in model."""

from __future__ import annotations

import math

import pytest
import torch

from pte_cli.config import load_config
from pte_cli.rollout.prepare import prepare
from pte_cli.tasks.examples import Scores
from pte_cli.train.loop import Trainer, linear_schedule
from pte_cli.train.metrics import gap_metrics, state_metrics
from pte_cli.train.sft import token_weights


def trainer(*sets, log=lambda metrics: None, processes=None):
    """A trainer of the built-in model in float64 whose LoRA is not zero."""
    small = ["model.dtype=float64", "sft.batch=6", "grpo.prompts=2", "grpo.group_size=4", "sampling.rows=3"]
    config = load_config(env={}, sets=[*small, *sets])
    prepared = prepare(config, shards=processes.shards if processes else None)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in prepared.model.model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return Trainer(config, prepared.model, prepared.policy, prepared.examples, log, processes=processes)


def gradients(one):
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in one.lora + one.encoder]


def run(one):
    for _ in one.run():
        pass


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
    run(one)
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
    run(one)
    assert all(torch.equal(a, b) for a, b in zip(before, one.lora + one.encoder, strict=True))
    assert seen[0]["groups_skipped"] == 2
    assert "reward" not in seen[0]


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo"])
def test_on_fresh_samples_every_loss_has_the_gradient_worked_out_by_autograd(loss_type):
    """With ratio 1 the gradient of each is that of -A log p with its own weights (cispo: times its cap of 0.2)."""
    one = with_rewards(
        trainer(f"grpo.loss_type={loss_type}", "sampling.temperature=1.5"), 1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0
    )
    one.grpo()
    again = with_rewards(trainer("sampling.temperature=1.5"), 1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0)
    rollout = again.groups.rollout(1)
    lengths = torch.tensor([len(trace.completion) for trace in rollout.traces], dtype=torch.float64)
    by_hand = {
        "grpo": 1 / (8 * lengths),
        "gspo": 1 / (8 * lengths),
        "dr_grpo": torch.full_like(lengths, 1 / (8 * 64)),
    }.get(loss_type, torch.full_like(lengths, 1 / lengths.sum().item()))
    scale = by_hand * rollout.advantages.double() * (0.2 if loss_type == "cispo" else 1)
    again.passes.backward(
        rollout.traces, lambda rows: lambda scored: -(scored.logprobs * scale[scored.rows + rows.start]).sum()
    )
    for a, b in zip(gradients(one), gradients(again), strict=True):
        assert (a - b).abs().max() < 1e-9


def test_later_updates_on_a_rollout_are_clipped_and_the_first_is_not():
    seen = []
    one = trainer(
        "train.objective=grpo",
        "grpo.steps=4",
        "grpo.num_iterations=2",
        "grpo.learning_rate=0.005",
        "grpo.epsilon=0.001",
        "sampling.temperature=1.5",
        "train.warmup=0",
        log=seen.append,
    )
    with_rewards(one, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    run(one)
    assert [line["clip_ratio/region_mean"] > 0 for line in seen] == [False, True, False, True]
    assert ["reward" in line for line in seen] == [True, False, True, False]
    assert all(("gap/max" in line) == ("reward" in line) for line in seen)
    assert max(line["gap/max"] for line in seen if "gap/max" in line) < 1e-10


def test_masked_truncated_completions_count_in_no_divisor():
    """Cut off at 20 tokens, all are masked: nothing is learnt; with room, masking changes nothing."""
    short = ["sampling.max_new_tokens=20", "grpo.mask_truncated_completions=true"]
    one = with_rewards(trainer(*short), 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    metrics = one.grpo()
    assert metrics["completions/clipped_ratio"] == 1
    assert metrics["loss"] == 0
    assert all(gradient.eq(0).all() for gradient in gradients(one))
    masked, plain = trainer("grpo.mask_truncated_completions=true"), trainer()
    for each in (masked, plain):
        with_rewards(each, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0).grpo()
    for a, b in zip(gradients(masked), gradients(plain), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_the_importance_correction_of_no_gap_is_none(mode):
    corrected = with_rewards(trainer(f"grpo.importance_sampling={mode}"), 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    plain = with_rewards(trainer(), 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0)
    corrected.grpo(), plain.grpo()
    for a, b in zip(gradients(corrected), gradients(plain), strict=True):
        assert (a - b).abs().max() < 1e-10


def test_the_exact_gradient_is_another_one():
    exact, truncated = trainer(), trainer("train.gradient=truncated")
    assert exact.sft()["loss"] == pytest.approx(truncated.sft()["loss"], abs=1e-12)
    different = [(a - b).abs().max() for a, b in zip(gradients(exact), gradients(truncated), strict=True)]
    assert max(different) > 1e-6


def test_the_share_of_the_update_that_the_state_makes():
    """By hand: B M A against B A with M = 2 I has 4 of 5 parts, whatever A and B are."""
    one = trainer("encoder.options.initial=identity")
    layers, rank = len(one.model.cores(one.model.init_state(1))), one.config.adapter.rank
    state = {"S": (2 * torch.eye(rank, dtype=torch.float64)).expand(layers, 3, rank, rank)}
    found = state_metrics(one.model, state)
    assert found["encoder/update_share"] == pytest.approx(0.8)
    assert found["encoder/state_norm"] == pytest.approx(2 * rank**0.5)
    assert state_metrics(one.model, {}) == {}


def test_gap_metrics_by_hand():
    found = gap_metrics([0.0, 0.1, 0.2])
    assert found["gap/mean"] == pytest.approx(0.1)
    assert found["gap/max"] == pytest.approx(0.2)
    assert found["gap/p95"] == pytest.approx(0.19)
    assert found["overlap/p5"] == pytest.approx(0.1 * math.exp(-0.1) + 0.9 * math.exp(-0.2))


def test_every_trained_tensor_has_a_gradient_in_the_first_step_that_evicts():
    """With B zero, as a new adapter has it, only B learns at first; A and the encoder follow at the second step."""
    config = load_config(env={}, sets=["sft.steps=2", "train.warmup=0", "sft.batch=8"])
    prepared = prepare(config)
    one = Trainer(config, prepared.model, prepared.policy, prepared.examples, lambda metrics: None)
    seen = []
    plain = one.update

    def update(share):
        seen.append({name: float(p.grad.abs().max()) for name, p in one.trained.items()})
        return plain(share)

    one.update = update
    run(one)
    assert all(size > 0 for name, size in seen[0].items() if "lora_B" in name)
    assert all(size > 0 for size in seen[1].values())
