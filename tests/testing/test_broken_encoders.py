"""Encoders with one thing wrong each, and the check that catches it."""

from __future__ import annotations

import pytest
import torch
from catching import assert_caught, contract_of
from torch import nn

from pte_cli.api import EncoderSpec
from pte_cli.testing import EncoderContract, run_checks


class Plain(nn.Module):
    """A running mean of projected values: the smallest encoder that is right."""

    rotated_keys = False

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.keys = nn.Parameter(torch.randn(shape.rank, shape.head_dim) / 4)
        self.values = nn.Parameter(torch.randn(shape.rank, shape.head_dim) / 4)

    def init(self, batch):
        return {"S": self.keys.new_zeros(self.shape.layers, batch, self.shape.rank, self.shape.rank)}

    def new(self, evicted):
        keys = (evicted.keys.mean(2) * evicted.mask[None, :, :, None]) @ self.keys.mT
        values = evicted.values.mean(2) @ self.values.mT
        return keys.mT @ values

    def absorb(self, state, evicted):
        return {"S": torch.tanh(state["S"] + self.new(evicted))}

    def core(self, state, layer):
        return state["S"][layer]


class StateGrows(Plain):
    def absorb(self, state, evicted):
        return {"S": torch.cat((state["S"], self.new(evicted)), -1)[..., : state["S"].shape[-1] + 1]}

    def core(self, state, layer):
        return state["S"][layer][..., : self.shape.rank]


class CoreOfWrongShape(Plain):
    def core(self, state, layer):
        return state["S"][layer].mean(0)


class InPlace(Plain):
    def absorb(self, state, evicted):
        with torch.no_grad():
            evicted.keys.mul_(0.5)
        return super().absorb(state, evicted)


class MixesRows(Plain):
    def absorb(self, state, evicted):
        return {"S": torch.tanh(state["S"] + self.new(evicted).mean(1, keepdim=True))}


class IgnoresTheMask(Plain):
    def new(self, evicted):
        return (evicted.keys.mean(2) @ self.keys.mT).mT @ (evicted.values.mean(2) @ self.values.mT)


class RemembersSequences(Plain):
    """Keeps a count of its own that no new sequence resets."""

    seen = 0

    def absorb(self, state, evicted):
        self.seen += 1
        return {"S": torch.tanh(state["S"] + self.new(evicted) / self.seen)}


class UnusedParameter(Plain):
    def __init__(self, shape):
        super().__init__(shape)
        self.spare = nn.Parameter(torch.ones(3))


class InfiniteGradient(Plain):
    """sqrt at 0: the value is fine, its derivative is not."""

    def new(self, evicted):
        return super().new(evicted) + (self.keys.sum() * 0).sqrt()


class Detaches(Plain):
    """The gradient of one factor is lost on the way."""

    def new(self, evicted):
        return super().new(evicted) * (1 + self.keys.square().sum().detach())


class KeepsWeightsElsewhere(Plain):
    """A random matrix that is neither parameter nor buffer."""

    def __init__(self, shape):
        super().__init__(shape)
        self.hidden = [torch.randn(shape.head_dim, dtype=torch.float64)]

    def new(self, evicted):
        keys = evicted.keys.mean(2) * evicted.mask[None, :, :, None] * self.hidden[0].to(evicted.keys.dtype)
        return (keys @ self.keys.mT).mT @ (evicted.values.mean(2) @ self.values.mT)


class Noisy(Plain):
    def absorb(self, state, evicted):
        return {"S": torch.tanh(state["S"] + self.new(evicted) + 0.1 * torch.rand_like(state["S"]))}


BROKEN_ENCODERS = [
    (StateGrows, "shapes", "absorb turns 'S' from"),
    (CoreOfWrongShape, "shapes", "core has shape [8, 8]; it must be [rows, r, r]"),
    (InPlace, "inputs_unchanged", "absorb changed the keys it was given"),
    (MixesRows, "rows_kept_apart", "other keys in one row change 'S' of another"),
    (IgnoresTheMask, "padding_ignored", "what the mask hides changes 'S'"),
    (RemembersSequences, "state_reset_between_sequences", "scoring other sequences changes"),
    (UnusedParameter, "gradients", "parameter 'spare' gets no gradient"),
    (InfiniteGradient, "gradients", "the gradient of 'keys' is infinite or NaN"),
    (Detaches, "gradient_equals_finite_difference", "the gradient of 'keys' is"),
    (KeepsWeightsElsewhere, "save_and_load", "after saving and loading"),
    (Noisy, "rollout_equals_replay", "log-probabilities differ by"),
]


def test_the_encoder_that_the_broken_ones_are_made_of_is_right():
    outcomes = run_checks(EncoderSpec("plain", "", lambda _, shape: Plain(shape)))
    assert [outcome for outcome in outcomes if not outcome.passed] == []
    assert {check for _, check, _ in BROKEN_ENCODERS} == {outcome.check for outcome in outcomes}


@pytest.mark.parametrize(("encoder", "check", "reason"), BROKEN_ENCODERS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_broken_encoder_is_caught(encoder, check, reason):
    contract = contract_of(EncoderContract, EncoderSpec("broken", "", lambda _, shape: encoder(shape)))
    assert_caught(contract, check, reason)


def test_an_encoder_that_is_no_module_is_named():
    class NoModule:
        rotated_keys, init, absorb, core, parameters = False, None, None, None, None

    contract = contract_of(EncoderContract, EncoderSpec("broken", "", lambda _, shape: NoModule()))
    assert_caught(contract, "shapes", "build returned a NoModule, not a torch.nn.Module")


def test_an_encoder_given_constants_is_not_held_to_a_finite_difference():
    class Needs(Detaches):
        needs = frozenset({"something"})

    contract = contract_of(EncoderContract, EncoderSpec("needs", "", lambda _, shape: Needs(shape)))
    outcome = contract.outcome("gradient_equals_finite_difference")
    assert outcome.passed
    assert outcome.reason.startswith("does not apply: it is given something")
