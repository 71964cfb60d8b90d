"""Policy losses against TRL's own and values worked out by hand."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch
from trl_reference import MAX_NEW_TOKENS, SETTINGS, TOKENS, inputs, trl_loss

from pte_cli.train.policy_loss import (
    PolicyLoss,
    importance_correction,
    kl_estimate,
    sequence_weights,
)

STORED = json.loads((Path(__file__).parent / "trl_losses.json").read_text())


@pytest.mark.parametrize("index", range(len(SETTINGS)), ids=[str(list(s.values())) for s in SETTINGS])
def test_loss_and_gradient_are_trls(index):
    settings = SETTINGS[index]
    stored = STORED["rows"][index]
    assert stored["settings"] == settings
    wanted, gradient = trl_loss(settings) if importlib.util.find_spec("trl") else (stored["loss"], stored["gradient"])

    now, old, reference, advantages, lengths = inputs()
    now.requires_grad_()
    lengths = torch.tensor(lengths)
    rows, tokens = (torch.arange(TOKENS) < lengths[:, None]).nonzero(as_tuple=True)
    loss = PolicyLoss(settings["loss_type"], settings["epsilon"], settings["epsilon_high"], settings["delta"])
    means = torch.stack([(now - old)[i, :n].mean() for i, n in enumerate(lengths)]).detach()
    each = loss(
        now[rows, tokens], old[rows, tokens], advantages[rows], means[rows] if loss.loss_type == "gspo" else None
    )
    each = each + settings["beta"] * kl_estimate(now[rows, tokens], reference[rows, tokens])
    weights = sequence_weights(loss.loss_type, lengths, torch.ones(4, dtype=torch.bool), MAX_NEW_TOKENS)
    total = (each * weights[rows]).sum()
    total.backward()
    assert total.item() == pytest.approx(wanted, abs=1e-12)
    assert torch.allclose(now.grad, torch.tensor(gradient, dtype=torch.float64), atol=1e-12)


def test_masked_sequences_count_in_no_divisor():
    lengths, counted = torch.tensor([4, 2, 10]), torch.tensor([True, True, False])
    assert sequence_weights("grpo", lengths, counted, 10).tolist() == [1 / 8, 1 / 4, 0]
    assert sequence_weights("dapo", lengths, counted, 10).tolist() == [1 / 6, 1 / 6, 0]
    assert sequence_weights("dr_grpo", lengths, counted, 10).tolist() == [1 / 20, 1 / 20, 0]
    nothing = torch.zeros(3, dtype=torch.bool)
    for loss_type in ("grpo", "dapo", "dr_grpo"):
        assert sequence_weights(loss_type, lengths, nothing, 10).eq(0).all()


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo"])
@pytest.mark.parametrize("ratio", [60.0, -60.0])
def test_extreme_ratios_stay_finite(loss_type, ratio):
    logprobs = torch.tensor([0.0], requires_grad=True)
    for advantage in (1.0, -1.0):
        loss = PolicyLoss(loss_type)(
            logprobs, torch.tensor([-ratio]), torch.tensor([advantage]), torch.tensor([ratio])
        ).sum()
        loss.backward()
        assert loss.isfinite()
        assert logprobs.grad.isfinite().all()


def test_kl_estimates_by_hand():
    now, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    assert kl_estimate(now, reference, "k1").item() == pytest.approx(math.log(2))
    assert kl_estimate(now, reference, "k2").item() == pytest.approx(math.log(2) ** 2 / 2)
    assert kl_estimate(now, reference, "k3").item() == pytest.approx(0.5 - 1 + math.log(2))
    for estimator in ("k1", "k2", "k3"):
        assert kl_estimate(torch.zeros(2), torch.tensor([60.0, -60.0]), estimator).isfinite().all()


def test_importance_correction_by_hand():
    now, then = torch.tensor([1.5, 1.0, 0.25]).log(), torch.zeros(3)
    assert importance_correction(now, then, "token_truncate", 0.5, 1.2).tolist() == pytest.approx([1.2, 1.0, 0.5])
    assert importance_correction(now, then, "token_mask", 0.5, 1.2).tolist() == pytest.approx([0.0, 1.0, 0.0])
    assert importance_correction(now, then, "none", 0.5, 1.2).tolist() == [1.0, 1.0, 1.0]


def test_clipped_says_whose_gradient_stops():
    log = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    assert PolicyLoss("dapo").clipped(log, torch.zeros(5), advantages).tolist() == [True, False, False, True, False]
    logprobs = log.clone().requires_grad_()
    PolicyLoss("dapo")(logprobs, torch.zeros(5), advantages).sum().backward()
    assert logprobs.grad.eq(0).tolist() == [True, False, False, True, False]
