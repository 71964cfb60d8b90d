"""The estimate of a run's time: its arithmetic, and that trying a step changes nothing."""

from __future__ import annotations

import itertools

import pytest
import torch

from pte_cli.config import GrpoConfig, validate
from pte_cli.rollout.prepare import prepare
from pte_cli.train import clock as clock_module
from pte_cli.train.loop import Trainer
from pte_cli.train.rehearsal import grpo_seconds, rehearse


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        # 128 completions twice as long, 64 at a time: 2 x 2 x 3 s; a replay of 32 took 1 s: 4 x 2 x 1 s.
        ({}, 12 + 8),
        # Two updates share one rollout.
        ({"num_iterations": 2}, (12 + 2 * 8) / 2),
        # The reference is scored without gradients, at a third.
        ({"beta": 0.1}, 12 + 8 + 8 / 3),
        ({"loss_type": "gspo", "importance_sampling": "token_truncate"}, 12 + 8 + 2 * 8 / 3),
    ],
)
def test_the_time_of_a_grpo_step(settings, seconds):
    found = grpo_seconds(3.0, 1.0, rows=64, replayed=32, longer=2.0, batch=128, grpo=GrpoConfig(**settings))
    assert found == pytest.approx(seconds)


def trainer_of(objective):
    config = validate(
        {
            "train": {"objective": objective},
            "sft": {"steps": 3, "batch": 4},
            "grpo": {"steps": 2, "prompts": 2, "group_size": 2},
        }
    )
    prepared = prepare(config)
    return Trainer(config, prepared.model, prepared.policy, prepared.examples, lambda metrics: None)


def test_a_rehearsal_adds_up_the_steps_that_are_left(monkeypatch):
    trainer = trainer_of("sft+grpo")
    ticks = itertools.count()
    monkeypatch.setattr(clock_module.time, "perf_counter", lambda: float(next(ticks)))
    # Every measured part takes a second. SFT: a batch at once. GRPO: a rollout and a replay, at 16 of 32 tokens.
    assert rehearse(trainer, 16.0) == pytest.approx(3 * 1 + 2 * (0.5 + 0.5))
    trainer.step = 4
    assert rehearse(trainer, 16.0) == pytest.approx(1 * (0.5 + 0.5))


def test_a_rehearsal_leaves_no_trace():
    trainer = trainer_of("sft+grpo")
    position, random = trainer.examples.position(), torch.get_rng_state()
    before = {name: p.detach().clone() for name, p in trainer.trained.items()}
    assert rehearse(trainer, 8.0) > 0
    assert trainer.examples.position() == position
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in trainer.trained.items())
    assert trainer.passes.last_state == {}
